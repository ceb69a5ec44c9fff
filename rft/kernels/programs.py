"""The programs that run on the GPU, in Triton.

Three kernels. `statistics` walks over the vocabulary in S splits, so that few tokens fill the chip
too. `finish` combines the splits, and computes the chosen logit from its one row of the head.
`slab_gradient` writes the gradient of one slab of logits. All three work in powers of two, as the
chip's exponential does; `finish` returns natural logarithms.

Rows beyond the end repeat the last row and are masked when they are stored or summed: a mask on
each load would cost more. Rows are addressed in 64 bits (V x D passes 2^31), positions within a row
in 32.

Shapes: N tokens, D hidden size, V vocabulary, S splits of it, C columns between two rows of a slab.
Lower case: the same within one tile.
"""
# Triton only looks like Python: a parameter is a pointer, a number or a compile-time constant.
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math

import triton
import triton.language as tl

LN_2 = tl.constexpr(math.log(2))
LOWEST = tl.constexpr(-1e30)
"""Used instead of minus infinity, with which 0 x inf would give NaN. A real infinity in the weights
still gives NaN, as it should."""


@triton.jit
def swizzle(program, num_tiles, num_columns, GROUP: tl.constexpr):
    """Return (tile of tokens, column) of a program. GROUP tiles of tokens go through all columns
    before the next GROUP starts."""
    per_group = GROUP * num_columns
    first = program // per_group * GROUP
    size = tl.minimum(num_tiles - first, GROUP)
    return first + program % per_group % size, program % per_group // size


@triton.jit
def product(
    hidden,
    weight,
    rows_n,
    rows_v,
    D,
    TILE_N: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_D: tl.constexpr,
    EVEN_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(TILE_N, TILE_V) float32: hidden[rows_n] @ weight[rows_v].T"""
    d = tl.arange(0, TILE_D)
    hidden_nd = hidden + rows_n.to(tl.int64)[:, None] * D + d[None, :]
    weight_dv = weight + rows_v.to(tl.int64)[None, :] * D + d[:, None]
    sums_nv = tl.zeros((TILE_N, TILE_V), tl.float32)
    for start in range(0, D, TILE_D):
        if EVEN_D:
            h_nd = tl.load(hidden_nd)
            w_dv = tl.load(weight_dv)
        else:
            h_nd = tl.load(hidden_nd, mask=d[None, :] < D - start, other=0.0)
            w_dv = tl.load(weight_dv, mask=d[:, None] < D - start, other=0.0)
        sums_nv = tl.dot(h_nd, w_dv, sums_nv, input_precision=PRECISION)
        hidden_nd += TILE_D
        weight_dv += TILE_D
    return sums_nv


@triton.jit
def statistics(
    hidden, weight, top_SN, sum_SN, slant_SN, N, V, D, scale, tiles_per_split, num_splits,
    TILE_N: tl.constexpr, TILE_V: tl.constexpr, TILE_D: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    GROUP: tl.constexpr, WITH_ENTROPY: tl.constexpr,
):  # fmt: skip
    """Reduce one split of logits z, in powers of two: top = max z, sum of p = 2^(z - top), slant =
    sum of p (z - top)."""
    tile, split = swizzle(tl.program_id(0), tl.cdiv(N, TILE_N), num_splits, GROUP)
    n = tile * TILE_N + tl.arange(0, TILE_N)
    rows_n = tl.minimum(n, N - 1)
    top_n = tl.full((TILE_N,), LOWEST, tl.float32)
    sum_n = tl.zeros((TILE_N,), tl.float32)
    slant_n = tl.zeros((TILE_N,), tl.float32)
    first = split * tiles_per_split * TILE_V
    last = tl.minimum(first + tiles_per_split * TILE_V, V)
    for start in range(first, last, TILE_V):
        v = start + tl.arange(0, TILE_V)
        z_nv = (
            product(hidden, weight, rows_n, tl.minimum(v, V - 1), D, TILE_N, TILE_V, TILE_D, EVEN_D, PRECISION) * scale
        )
        z_nv = tl.where(v[None, :] < V, z_nv, LOWEST)
        new_n = tl.maximum(top_n, tl.max(z_nv, 1))
        fade_n = tl.exp2(top_n - new_n)
        z_nv -= new_n[:, None]
        p_nv = tl.exp2(z_nv)
        if WITH_ENTROPY:
            slant_n = fade_n * (slant_n + sum_n * (top_n - new_n)) + tl.sum(p_nv * z_nv, 1)
        sum_n = fade_n * sum_n + tl.sum(p_nv, 1)
        top_n = new_n
    at_n = split.to(tl.int64) * N + n
    tl.store(top_SN + at_n, top_n, mask=n < N)
    tl.store(sum_SN + at_n, sum_n, mask=n < N)
    if WITH_ENTROPY:
        tl.store(slant_SN + at_n, slant_n, mask=n < N)


@triton.jit
def finish(
    hidden, weight, ids_N, top_SN, sum_SN, slant_SN, lse_N, logprob_N, entropy_N, N, V, D, scale, num_splits,
    ROWS: tl.constexpr, TILE_D: tl.constexpr, WITH_ENTROPY: tl.constexpr,
):  # fmt: skip
    """Combine the splits' statistics per token. `lse_N` stays in powers of two, for
    `slab_gradient`."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = n < N
    rows_n = tl.minimum(n, N - 1).to(tl.int64)
    id_n = tl.load(ids_N + rows_n)
    known = (id_n >= 0) & (id_n < V)

    d = tl.arange(0, TILE_D)
    hidden_nd = hidden + rows_n[:, None] * D + d[None, :]
    weight_nd = weight + tl.where(known, id_n, 0)[:, None] * D + d[None, :]
    products_nd = tl.zeros((ROWS, TILE_D), tl.float32)
    for start in range(0, D, TILE_D):
        inside = d[None, :] < D - start
        h_nd = tl.load(hidden_nd + start, mask=inside, other=0.0).to(tl.float32)
        products_nd += h_nd * tl.load(weight_nd + start, mask=inside, other=0.0).to(tl.float32)
    chosen_n = tl.sum(products_nd, 1) * scale

    top_n = tl.full((ROWS,), LOWEST, tl.float32)
    sum_n = tl.zeros((ROWS,), tl.float32)
    slant_n = tl.zeros((ROWS,), tl.float32)
    at_n = rows_n
    for _ in range(num_splits):
        part_n = tl.load(top_SN + at_n)
        new_n = tl.maximum(top_n, part_n)
        fade_n = tl.exp2(top_n - new_n)
        grow_n = tl.exp2(part_n - new_n)
        part_sum_n = tl.load(sum_SN + at_n)
        if WITH_ENTROPY:
            part_slant_n = tl.load(slant_SN + at_n) + part_sum_n * (part_n - new_n)
            slant_n = fade_n * (slant_n + sum_n * (top_n - new_n)) + grow_n * part_slant_n
        sum_n = fade_n * sum_n + grow_n * part_sum_n
        top_n = new_n
        at_n += N
    log_n = tl.log2(sum_n)
    tl.store(lse_N + n, top_n + log_n, mask=real)
    logprob_n = tl.where(known, (chosen_n - (top_n + log_n)) * LN_2, float("nan"))
    tl.store(logprob_N + n, logprob_n, mask=real)
    if WITH_ENTROPY:
        tl.store(entropy_N + n, (log_n - slant_n / sum_n) * LN_2, mask=real)


@triton.jit
def slab_gradient(
    hidden, weight, ids_N, lse_N, grad_logprob_N, slab_NC, N, V, D, C, first_v, width, scale,
    TILE_N: tl.constexpr, TILE_V: tl.constexpr, TILE_D: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Write grad_logprob x (one if chosen - p) of `width` columns from `first_v` on into a slab
    with rows C apart."""
    tile, column = swizzle(tl.program_id(0), tl.cdiv(N, TILE_N), tl.cdiv(width, TILE_V), GROUP)
    n = tile * TILE_N + tl.arange(0, TILE_N)
    rows_n = tl.minimum(n, N - 1)
    c = column * TILE_V + tl.arange(0, TILE_V)
    v = first_v + c
    z_nv = product(hidden, weight, rows_n, tl.minimum(v, V - 1), D, TILE_N, TILE_V, TILE_D, EVEN_D, PRECISION) * scale
    p_nv = tl.exp2(z_nv - tl.load(lse_N + rows_n)[:, None])
    is_chosen = tl.load(ids_N + rows_n)[:, None] == v[None, :]
    gradient_nv = tl.load(grad_logprob_N + rows_n)[:, None] * (tl.where(is_chosen, 1.0, 0.0) - p_nv)
    slab_nc = slab_NC + n.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(slab_nc, gradient_nv.to(slab_NC.dtype.element_ty), mask=(n[:, None] < N) & (c[None, :] < width))
