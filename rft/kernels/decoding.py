"""What attention does for one token per row on a CPU, between the products: normalize and rotate
queries and keys, write keys and values into their slots, attend.

PyTorch needs some twenty operations for it. They read all slots as far as the longest row reaches,
and its products of two rows with a few hundred leave the processor waiting for memory. Here it is
one loop (rft/kernels/compiled.py), which reads each row's own tokens once. Per layer on two cores,
in operations and as a loop: 64 rows of 64 to 155 tokens, 2 heads of 48: 757 and 226 us; 32 rows of
132 to 264 tokens, 3 heads of 64: 1,179 and 423.

    why_not     why the loop does not work here: it takes Linux with GNU's OpenMP, which PyTorch's
                builds bring, and a place for what Numba compiles
    attend      the loop
    reference   the same in PyTorch's operations

Shapes: B rows, in the first of S slots; H key/value heads, G query heads for each, T positions, D
head size.
"""

from __future__ import annotations

from functools import cache

import torch


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
    """Return what attention gives, B x (H G D), and write keys and values at `position_B`.

    `qkv`: B x (H G + 2 H) D, contiguous, in float32. `sin_TD`: its first half negated.
    `qk_norm_2D`: the weights of RMS norms, of queries and of keys; None: no such norms.
    """
    from rft.kernels import compiled

    return compiled.attend(qkv, keys_SHTD, values_SHTD, position_B, cos_TD, sin_TD, qk_norm_2D, eps)


def reference(
    qkv: torch.Tensor,
    keys_SHTD: torch.Tensor,
    values_SHTD: torch.Tensor,
    position_B: torch.Tensor,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
    qk_norm_2D: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Compute `attend` in PyTorch's operations."""
    rows, heads, dim = len(qkv), keys_SHTD.shape[1], keys_SHTD.shape[3]
    x_BHD = qkv.view(rows, -1, dim)
    queries = x_BHD.shape[1] - 2 * heads
    turned = []
    for kind, x in enumerate((x_BHD[:, :queries], x_BHD[:, queries : queries + heads])):
        if qk_norm_2D is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * qk_norm_2D[kind]
        turned.append(x * cos_TD[position_B][:, None] + x.roll(dim // 2, -1) * sin_TD[position_B][:, None])
    row_B = torch.arange(rows, device=qkv.device)
    keys_SHTD[row_B, :, position_B], values_SHTD[row_B, :, position_B] = turned[1], x_BHD[:, queries + heads :]
    seen_BT = torch.arange(keys_SHTD.shape[2], device=qkv.device) <= position_B[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        turned[0][:, :, None], keys_SHTD[:rows], values_SHTD[:rows], attn_mask=seen_BT[:, None, None], enable_gqa=True
    )
    return out.reshape(rows, -1)


@cache
@torch.inference_mode()
def why_not() -> str:
    """Try the loop on small numbers, beside the operations; empty if it works."""
    try:
        from rft.kernels import compiled
    except (ImportError, OSError, AttributeError, RuntimeError) as error:  # the last is Numba's, of its cache
        return f"{type(error).__name__}: {error}"
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    position_B, norms = torch.tensor([4, 0, 6]), some(2, 6)
    for qk_norm_2D in (None, norms):
        given, keys, values, cos, sin = some(3, 4 * 2 * 6), some(4, 2, 8, 6), some(4, 2, 8, 6), some(8, 6), some(8, 6)
        kept = keys.clone(), values.clone()
        found = compiled.attend(given, keys, values, position_B, cos, sin, qk_norm_2D, 1e-6)
        expected = reference(given, *kept, position_B, cos, sin, qk_norm_2D, 1e-6)
        pairs = ((found, expected), (keys, kept[0]), (values, kept[1]))
        if not all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs):
            return "it computes other numbers"
    return ""
