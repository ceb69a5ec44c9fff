"""The loops of `decoding`, compiled by Numba, and run by PyTorch's own helper threads.

Numba's threads would compete with PyTorch's, which go on spinning for some milliseconds after each
operation. So a loop is compiled as a plain C function, and PyTorch's OpenMP library (libgomp) is
asked to run it in its team, as it runs PyTorch's own loops. Each thread takes its share of rows.

Compiling takes 2 s, once: Numba keeps the result in `__pycache__`.

Shapes: as in `decoding`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import binding
from numba import carray, cfunc, njit, types  # pyright: ignore[reportPrivateImportUsage]
from numba.extending import intrinsic

from rft.kernels.placed import Placed


def _library() -> Any:
    """Return PyTorch's OpenMP library. Raises OSError where it is another one."""
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    home = str(Path(torch.__file__).parent)
    places = sorted(place for place in mapped if Path(place).name.startswith("libgomp"))
    ours = [place for place in places if place.startswith(home)] or places
    if len(ours) != 1:
        raise OSError(f"{len(ours)} OpenMP libraries of GNU's kind are loaded")
    return ctypes.CDLL(ours[0])


_gomp = _library()
binding.add_symbol("rft_thread", ctypes.cast(_gomp.omp_get_thread_num, ctypes.c_void_p).value)
binding.add_symbol("rft_team", ctypes.cast(_gomp.omp_get_num_threads, ctypes.c_void_p).value)
_thread = types.ExternalFunction("rft_thread", types.int32())
_team = types.ExternalFunction("rft_team", types.int32())
_parallel = _gomp.GOMP_parallel
_parallel.argtypes, _parallel.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None


_intrinsic: Any = intrinsic  # the decorated function has other arguments than the one below


def _pointer(kind: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return generate


_PLAIN: Any = {"fastmath": {"reassoc", "contract", "arcp", "nsz"}, "error_model": "numpy"}
"""Sums in any order; NaN stays NaN. Nothing raises: these threads have no Python to raise in."""


@_intrinsic
def _floats(context: Any, address: Any) -> Any:
    """Take an address as that of float32 numbers."""
    kind = types.CPointer(types.float32)
    return kind(address), _pointer(kind)


@_intrinsic
def _integers(context: Any, address: Any) -> Any:
    """Take an address as that of int64 numbers."""
    kind = types.CPointer(types.int64)
    return kind(address), _pointer(kind)


@_intrinsic
def _float_of(context: Any, bits: Any) -> Any:
    """Take the bits of an int32 as a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@njit(**_PLAIN, inline="always")
def _exp(x: Any) -> Any:
    """Compute e^x for x <= 0, to 1e-6: 2^n times a polynomial of the rest. The C library's takes
    one number at a time, this a register full."""
    y = max(x, np.float32(-87)) * np.float32(1.44269504)
    n = np.floor(y + np.float32(0.5))
    f = y - n
    p = np.float32(1.52527338e-5)
    p = p * f + np.float32(1.54035304e-4)
    p = p * f + np.float32(1.33335581e-3)
    p = p * f + np.float32(9.61812911e-3)
    p = p * f + np.float32(5.55041087e-2)
    p = p * f + np.float32(2.40226507e-1)
    p = p * f + np.float32(6.93147181e-1)
    p = p * f + np.float32(1)
    return p * _float_of(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))


@njit(fastmath=True, error_model="numpy")
def _most(scores_T: Any, length: Any) -> Any:
    """Return the largest of the first scores; any number where one of them is NaN."""
    most = scores_T[0]
    for t in range(length):
        most = max(most, scores_T[t])
    return most


@njit(**_PLAIN)
def _turn(x_D: Any, norm_D: Any, is_normed: bool, eps: Any, cos_D: Any, sin_D: Any, out_D: Any) -> None:
    """Normalize a head, if the model does, and rotate it."""
    dim = len(x_D)
    half = dim // 2
    scale = np.float32(1)
    if is_normed:
        total = np.float32(0)
        for d in range(dim):
            total += x_D[d] * x_D[d]
        scale = np.float32(1) / np.sqrt(total / np.float32(dim) + eps)
        for d in range(half):
            low, high = x_D[d] * scale * norm_D[d], x_D[d + half] * scale * norm_D[d + half]
            out_D[d] = low * cos_D[d] + high * sin_D[d]
            out_D[d + half] = high * cos_D[d + half] + low * sin_D[d + half]
    else:
        for d in range(half):
            low, high = x_D[d], x_D[d + half]
            out_D[d] = low * cos_D[d] + high * sin_D[d]
            out_D[d + half] = high * cos_D[d + half] + low * sin_D[d + half]


@njit(**_PLAIN)
def _attend(q_GD: Any, keys_TD: Any, values_TD: Any, length: Any, scale: Any, scores_GT: Any, out_GD: Any) -> None:
    """Attend to the first `length` tokens, which are read once for all heads of a group. Four
    tokens at a time take two thirds of the time: a sum is begun, and stored, a quarter as often."""
    group, dim = q_GD.shape
    fours = length // 4 * 4
    for t in range(0, fours, 4):
        for g in range(group):
            s0 = s1 = s2 = s3 = np.float32(0)
            for d in range(dim):
                q = q_GD[g, d]
                s0 += q * keys_TD[t, d]
                s1 += q * keys_TD[t + 1, d]
                s2 += q * keys_TD[t + 2, d]
                s3 += q * keys_TD[t + 3, d]
            scores_GT[g, t], scores_GT[g, t + 1] = s0 * scale, s1 * scale
            scores_GT[g, t + 2], scores_GT[g, t + 3] = s2 * scale, s3 * scale
    for t in range(fours, length):
        for g in range(group):
            score = np.float32(0)
            for d in range(dim):
                score += q_GD[g, d] * keys_TD[t, d]
            scores_GT[g, t] = score * scale
    for g in range(group):
        most = _most(scores_GT[g], length)
        total = np.float32(0)
        for t in range(length):
            weight = _exp(scores_GT[g, t] - most)
            scores_GT[g, t] = weight
            total += weight
        for t in range(length):
            scores_GT[g, t] /= total
        for d in range(dim):
            out_GD[g, d] = np.float32(0)
    for t in range(0, fours, 4):
        for g in range(group):
            w0, w1, w2, w3 = scores_GT[g, t], scores_GT[g, t + 1], scores_GT[g, t + 2], scores_GT[g, t + 3]
            for d in range(dim):
                early = w0 * values_TD[t, d] + w1 * values_TD[t + 1, d]
                out_GD[g, d] += early + (w2 * values_TD[t + 2, d] + w3 * values_TD[t + 3, d])
    for t in range(fours, length):
        for g in range(group):
            weight = scores_GT[g, t]
            for d in range(dim):
                out_GD[g, d] += weight * values_TD[t, d]


@cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy")
def _attend_share(address: Any) -> None:
    """Do one thread's share of `attend`: some rows and key/value heads of them."""
    a = carray(address, 19)
    rows, heads, group, dim, slots, length, threads = a[0], a[1], a[2], a[3], a[4], a[5], a[6]
    qkv_BHD = carray(_floats(a[7]), (rows, (group + 2) * heads, dim))
    keys_SHTD = carray(_floats(a[8]), (slots, heads, length, dim))
    values_SHTD = carray(_floats(a[9]), (slots, heads, length, dim))
    slot_B, position_B = carray(_integers(a[10]), (rows,)), carray(_integers(a[11]), (rows,))
    cos_TD, sin_TD = carray(_floats(a[12]), (a[18], dim)), carray(_floats(a[13]), (a[18], dim))
    norm_2D = carray(_floats(a[14]), (2, dim))
    numbers = carray(_floats(a[15]), (2,))
    scores_XGT = carray(_floats(a[16]), (threads, group, length))
    q_XGD = carray(_floats(a[16] + 4 * threads * group * length), (threads, group, dim))
    out_BHGD = carray(_floats(a[17]), (rows, heads, group, dim))
    is_normed = a[14] != 0
    # The team may be smaller than what was asked for: OMP_THREAD_LIMIT, OMP_DYNAMIC.
    me, team, units = _thread(), _team(), rows * heads
    q_GD, scores_GT = q_XGD[me], scores_XGT[me]
    for unit in range(units * me // team, units * (me + 1) // team):
        row, head = unit // heads, unit % heads
        slot, at = slot_B[row], position_B[row]
        cos_D, sin_D = cos_TD[at], sin_TD[at]
        for g in range(group):
            _turn(qkv_BHD[row, head * group + g], norm_2D[0], is_normed, numbers[0], cos_D, sin_D, q_GD[g])
        key_D = qkv_BHD[row, heads * group + head]
        _turn(key_D, norm_2D[1], is_normed, numbers[0], cos_D, sin_D, keys_SHTD[slot, head, at])
        for d in range(dim):
            values_SHTD[slot, head, at, d] = qkv_BHD[row, heads * (group + 1) + head, d]
        key_TD, value_TD = keys_SHTD[slot, head], values_SHTD[slot, head]
        _attend(q_GD, key_TD, value_TD, at + 1, numbers[1], scores_GT, out_BHGD[row, head])


@cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy")
def _lay_share(address: Any) -> None:
    """Do one thread's share of `lay`: some tokens."""
    a = carray(address, 20)
    tokens, heads, group, dim, slots, length = a[0], a[1], a[2], a[3], a[4], a[5]
    qkv_NHD = carray(_floats(a[6]), (tokens, (group + 2) * heads, dim))
    keys_SHTD = carray(_floats(a[7]), (slots, heads, length, dim))
    values_SHTD = carray(_floats(a[8]), (slots, heads, length, dim))
    slot_N, position_N, place_N = (
        carray(_integers(a[9]), (tokens,)), carray(_integers(a[10]), (tokens,)), carray(_integers(a[11]), (tokens,)),
    )  # fmt: skip
    cos_TD, sin_TD = carray(_floats(a[12]), (a[19], dim)), carray(_floats(a[13]), (a[19], dim))
    norm_2D = carray(_floats(a[14]), (2, dim))
    eps = carray(_floats(a[15]), (1,))[0]
    q_PHD = carray(_floats(a[16]), (a[18], heads * group, dim))
    kv_2PHD = carray(_floats(a[17]), (2, a[18], heads, dim))
    is_normed, is_placed = a[14] != 0, a[18] != 0
    me, team = _thread(), _team()
    for token in range(tokens * me // team, tokens * (me + 1) // team):
        slot, at, place = slot_N[token], position_N[token], place_N[token]
        cos_D, sin_D = cos_TD[at], sin_TD[at]
        if is_placed:
            for query in range(heads * group):
                _turn(qkv_NHD[token, query], norm_2D[0], is_normed, eps, cos_D, sin_D, q_PHD[place, query])
        for head in range(heads):
            key_D, value_D = keys_SHTD[slot, head, at], values_SHTD[slot, head, at]
            _turn(qkv_NHD[token, heads * group + head], norm_2D[1], is_normed, eps, cos_D, sin_D, key_D)
            for d in range(dim):
                value_D[d] = qkv_NHD[token, heads * (group + 1) + head, d]
            if is_placed:
                for d in range(dim):
                    kv_2PHD[0, place, head, d] = key_D[d]
                    kv_2PHD[1, place, head, d] = value_D[d]


def _in_team(share: Any, threads: int, *given: int) -> None:
    held = (ctypes.c_int64 * len(given))(*given)
    _parallel(share.address, ctypes.addressof(held), threads, 0)


def attend(
    qkv: torch.Tensor,
    keys_SHTD: torch.Tensor,
    values_SHTD: torch.Tensor,
    slot_B: torch.Tensor,
    position_B: torch.Tensor,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
    qk_norm_2D: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Compute `decoding.attend`."""
    slots, heads, length, dim = keys_SHTD.shape
    rows, threads = len(qkv), torch.get_num_threads()
    group = qkv.shape[1] // (heads * dim) - 2
    numbers, room = torch.tensor((eps, dim**-0.5)), torch.empty(threads, group, length + dim)
    out = torch.empty(rows, heads * group * dim)
    norms = 0 if qk_norm_2D is None else qk_norm_2D.data_ptr()
    _in_team(
        _attend_share, threads,
        rows, heads, group, dim, slots, length, threads, qkv.data_ptr(), keys_SHTD.data_ptr(), values_SHTD.data_ptr(),
        slot_B.data_ptr(), position_B.data_ptr(), cos_TD.data_ptr(), sin_TD.data_ptr(), norms, numbers.data_ptr(),
        room.data_ptr(), out.data_ptr(), len(cos_TD),
    )  # fmt: skip
    return out


def lay(
    qkv: torch.Tensor,
    keys_SHTD: torch.Tensor,
    values_SHTD: torch.Tensor,
    slot_N: torch.Tensor,
    position_N: torch.Tensor,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
    qk_norm_2D: torch.Tensor | None,
    eps: float,
    placed: Placed | None,
) -> None:
    """Compute `decoding.lay`."""
    slots, heads, length, dim = keys_SHTD.shape
    group = qkv.shape[1] // (heads * dim) - 2
    number = torch.tensor((eps,))
    norms = 0 if qk_norm_2D is None else qk_norm_2D.data_ptr()
    place_N, q, kv, places = slot_N, 0, 0, 0
    if placed is not None:
        place_N, q, kv = placed.place_N, placed.q_PHD.data_ptr(), placed.kv_2PHD.data_ptr()
        places = len(placed.q_PHD)
    _in_team(
        _lay_share, torch.get_num_threads(),
        len(qkv), heads, group, dim, slots, length, qkv.data_ptr(), keys_SHTD.data_ptr(), values_SHTD.data_ptr(),
        slot_N.data_ptr(), position_N.data_ptr(), place_N.data_ptr(), cos_TD.data_ptr(), sin_TD.data_ptr(), norms,
        number.data_ptr(), q, kv, places, len(cos_TD),
    )  # fmt: skip
