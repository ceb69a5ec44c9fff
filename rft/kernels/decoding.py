"""What attention does on a CPU between the products: normalize and rotate queries and keys, write
keys and values into their slots, attend.

PyTorch needs some twenty operations for it. For one token per row they read all slots as far as the
longest row reaches, and its products of two rows with a few hundred leave the processor waiting for
memory. Here each is one loop (rft/kernels/compiled.py), which reads each row's own tokens once. Per
layer on two cores, in operations and as a loop: 64 rows of 64 to 155 tokens, 2 heads of 48: 757 and
226 us; 32 rows of 132 to 264 tokens, 3 heads of 64: 1,179 and 423.

    why_not     why the loops do not work here: it takes Linux with GNU's OpenMP, which PyTorch's
                builds bring, and a place for what Numba compiles
    attend      all of it for one token per row
    lay         all but the last part, for prompts, whose attention is best in PyTorch's hands
    *_reference the same in PyTorch's operations

Shapes: B rows, or N tokens of some rows; S slots; H key/value heads, G query heads for each, T
positions, D head size, P places.
"""

from __future__ import annotations

from functools import cache

import torch

from rft.kernels.placed import Placed


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
    """Return what attention gives, B x (H G D), and write keys and values at `position_B`.

    `qkv`: B x (H G + 2 H) D, contiguous, in float32. `sin_TD`: its first half negated.
    `qk_norm_2D`: the weights of RMS norms, of queries and of keys; None: no such norms.
    """
    from rft.kernels import compiled

    return compiled.attend(qkv, keys_SHTD, values_SHTD, slot_B, position_B, cos_TD, sin_TD, qk_norm_2D, eps)


def attend_reference(
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
    """Compute `attend` in PyTorch's operations."""
    length = keys_SHTD.shape[2]
    q_BHD, _, _ = _laid(qkv, keys_SHTD, values_SHTD, slot_B, position_B, cos_TD, sin_TD, qk_norm_2D, eps)
    seen_BT = torch.arange(length, device=qkv.device) <= position_B[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        q_BHD[:, :, None], keys_SHTD[slot_B], values_SHTD[slot_B], attn_mask=seen_BT[:, None, None], enable_gqa=True
    )
    return out.reshape(len(qkv), -1)


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
    placed: Placed | None = None,
) -> None:
    """Write keys and values at their slots and positions, and all three to their places.

    As `attend`; without `placed`, `qkv` may lack the queries.
    """
    from rft.kernels import compiled

    compiled.lay(qkv, keys_SHTD, values_SHTD, slot_N, position_N, cos_TD, sin_TD, qk_norm_2D, eps, placed)


def lay_reference(
    qkv: torch.Tensor,
    keys_SHTD: torch.Tensor,
    values_SHTD: torch.Tensor,
    slot_N: torch.Tensor,
    position_N: torch.Tensor,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
    qk_norm_2D: torch.Tensor | None,
    eps: float,
    placed: Placed | None = None,
) -> None:
    """Compute `lay` in PyTorch's operations."""
    made = _laid(qkv, keys_SHTD, values_SHTD, slot_N, position_N, cos_TD, sin_TD, qk_norm_2D, eps)
    if placed is not None:
        for place, new in zip((placed.q_PHD, *placed.kv_2PHD), made, strict=True):
            place[placed.place_N] = new


def _laid(
    qkv: torch.Tensor,
    keys_SHTD: torch.Tensor,
    values_SHTD: torch.Tensor,
    slot_N: torch.Tensor,
    position_N: torch.Tensor,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
    qk_norm_2D: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write keys and values; return queries, keys, values."""
    heads, dim = keys_SHTD.shape[1], keys_SHTD.shape[3]
    x_NHD = qkv.view(len(qkv), -1, dim)
    queries = x_NHD.shape[1] - 2 * heads
    turned = []
    for kind, x in enumerate((x_NHD[:, :queries], x_NHD[:, queries : queries + heads])):
        if qk_norm_2D is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * qk_norm_2D[kind]
        turned.append(x * cos_TD[position_N][:, None] + x.roll(dim // 2, -1) * sin_TD[position_N][:, None])
    q, k, v = turned[0], turned[1], x_NHD[:, queries + heads :]
    keys_SHTD[slot_N, :, position_N], values_SHTD[slot_N, :, position_N] = k, v
    return q, k, v


@cache
@torch.inference_mode()
def why_not() -> str:
    """Try the loops on small numbers, beside the operations; empty if they work."""
    try:
        from rft.kernels import compiled  # noqa: F401
    except (ImportError, OSError, AttributeError, RuntimeError) as error:  # the last is Numba's, of its cache
        return f"{type(error).__name__}: {error}"
    return "" if all(_agree(normed) for normed in (False, True)) else "they compute other numbers"


def _agree(normed: bool) -> bool:
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    slot_B, position_B = torch.tensor([2, 0, 3]), torch.tensor([4, 0, 6])
    qkv, keys, values, norms = some(3, 4 * 2 * 6), some(4, 2, 8, 6), some(4, 2, 8, 6), some(2, 6)
    rest = slot_B, position_B, some(8, 6), some(8, 6), norms if normed else None, 1e-6
    found = []
    for attended, laid in ((attend, lay), (attend_reference, lay_reference)):
        first, second = (keys.clone(), values.clone()), (keys.clone(), values.clone())
        placed = Placed(torch.tensor([1, 4, 3]), torch.zeros(5, 4, 6), torch.zeros(2, 5, 2, 6))
        out = attended(qkv, *first, *rest)
        laid(qkv, *second, *rest, placed)
        found.append((out, *first, *second, placed.q_PHD, placed.kv_2PHD))
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(*found, strict=True))
