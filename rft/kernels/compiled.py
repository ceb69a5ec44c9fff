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
    """Attend to the first `length` tokens, which are read once for all heads of a group."""
    group, dim = q_GD.shape
    for t in range(length):
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
    for t in range(length):
        for g in range(group):
            weight = scores_GT[g, t]
            for d in range(dim):
                out_GD[g, d] += weight * values_TD[t, d]


@cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy")
def _share(address: Any) -> None:
    """Do one thread's share: some rows and key/value heads of them."""
    a = carray(address, 18)
    rows, heads, group, dim, slots, length, threads = a[0], a[1], a[2], a[3], a[4], a[5], a[6]
    qkv_BHD = carray(_floats(a[7]), (rows, (group + 2) * heads, dim))
    keys_SHTD = carray(_floats(a[8]), (slots, heads, length, dim))
    values_SHTD = carray(_floats(a[9]), (slots, heads, length, dim))
    position_B = carray(_integers(a[10]), (rows,))
    cos_TD, sin_TD = carray(_floats(a[11]), (a[17], dim)), carray(_floats(a[12]), (a[17], dim))
    norm_2D = carray(_floats(a[13]), (2, dim))
    numbers = carray(_floats(a[14]), (2,))
    scores_XGT = carray(_floats(a[15]), (threads, group, length))
    q_XGD = carray(_floats(a[15] + 4 * threads * group * length), (threads, group, dim))
    out_BHGD = carray(_floats(a[16]), (rows, heads, group, dim))
    is_normed = a[13] != 0
    # The team may be smaller than what was asked for: OMP_THREAD_LIMIT, OMP_DYNAMIC.
    me, team, units = _thread(), _team(), rows * heads
    q_GD, scores_GT = q_XGD[me], scores_XGT[me]
    for unit in range(units * me // team, units * (me + 1) // team):
        row, head = unit // heads, unit % heads
        at = position_B[row]
        cos_D, sin_D = cos_TD[at], sin_TD[at]
        for g in range(group):
            _turn(qkv_BHD[row, head * group + g], norm_2D[0], is_normed, numbers[0], cos_D, sin_D, q_GD[g])
        key_D = qkv_BHD[row, heads * group + head]
        _turn(key_D, norm_2D[1], is_normed, numbers[0], cos_D, sin_D, keys_SHTD[row, head, at])
        for d in range(dim):
            values_SHTD[row, head, at, d] = qkv_BHD[row, heads * (group + 1) + head, d]
        _attend(q_GD, keys_SHTD[row, head], values_SHTD[row, head], at + 1, numbers[1], scores_GT, out_BHGD[row, head])


def attend(
    qkv: torch.Tensor,
    keys_SHTD: torch.Tensor,
    values_SHTD: torch.Tensor,
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
    given = (
        rows, heads, group, dim, slots, length, threads, qkv.data_ptr(), keys_SHTD.data_ptr(), values_SHTD.data_ptr(),
        position_B.data_ptr(), cos_TD.data_ptr(), sin_TD.data_ptr(), norms, numbers.data_ptr(), room.data_ptr(),
        out.data_ptr(), len(cos_TD),
    )  # fmt: skip
    held = (ctypes.c_int64 * len(given))(*given)
    _parallel(_share.address, ctypes.addressof(held), threads, 0)
    return out
