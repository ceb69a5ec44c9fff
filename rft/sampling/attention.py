"""Attention of the fast forward, between two matrix products of a layer.

It turns a layer's queries, keys and values into the input of the layer's output projection. The
products are in rft/sampling/decode.py.

    Step        one token for each of the first slots; keys and values are read in place
    Prompts     tokens of some rows, which are padded here only; no mask if all rows begin

Each is made for one call of the forward, and called once per layer.

Shapes: as in rft/sampling/kv_cache.py; N tokens of a call in one row, Q query heads, P places of
the padded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from rft.sampling.kv_cache import Feed, Slots


@dataclass(frozen=True, slots=True)
class Heads:
    """What attention needs to know of a model, beside the products. The first half of `sin_TD` is
    negated, so that rotating by half is a roll."""

    queries: int
    keys: int
    dim: int
    eps: torch.Tensor
    cos_TD: torch.Tensor
    sin_TD: torch.Tensor


class Attention(Protocol):
    def __call__(self, layer: int, qkv: torch.Tensor, norm_2D: torch.Tensor | None) -> torch.Tensor:
        """Return N x (Q D) for `qkv` N x (Q + 2 H) D. `norm_2D`: the weights of the
        norms of queries and of keys, if the model has them. Keys and values go into the slots."""
        ...

    def last(self, layer: int, qkv: torch.Tensor, kv: torch.Tensor, norm_2D: torch.Tensor | None) -> torch.Tensor:
        """Return B x (Q D), for each row's last token only. `qkv` holds these tokens, and `kv`
        (N x 2 H D) holds all."""
        ...


def normal(x: torch.Tensor, eps: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Normalize as the models do, computing in float32. Starting from the rows' lengths takes half
    the time of functional.rms_norm (64 x 128 and 800 x 128, two cores)."""
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    made = (wide * torch.addcmul(eps, length, length, value=1 / wide.shape[-1]).rsqrt_()).to(x.dtype)
    return made if weight is None else made.mul_(weight)


class _Laid:
    """Normalizes and rotates the heads of some rows' tokens, and writes their keys and values into
    the slots."""

    def __init__(self, slots: Slots, heads: Heads, slot_N: torch.Tensor, position_N: torch.Tensor):
        self.slots, self.heads = slots, heads
        device = position_N.device
        self.cos, self.sin = (functional.embedding(position_N, one)[:, None] for one in (heads.cos_TD, heads.sin_TD))
        # Where keys and values go in a layer's slots, laid out by slot, head and position.
        head_H = torch.arange(heads.keys, device=device)
        self.at_N = ((slot_N[:, None] * heads.keys + head_H) * slots.length + position_N[:, None]).flatten()
        self.kind = torch.tensor([0] * heads.queries + [1] * heads.keys, device=device)

    def __call__(
        self, layer: int, qkv: torch.Tensor, norm_2D: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries N Q D, keys and values N H D. `qkv` may lack the queries."""
        x_NHD = qkv.view(len(qkv), -1, self.heads.dim)
        queries, keys = x_NHD.shape[1] - 2 * self.heads.keys, self.heads.keys
        turned = self.turned(x_NHD[:, : queries + keys], self.kind[-queries - keys :], norm_2D, self.cos, self.sin)
        q, k, v = turned[:, :queries], turned[:, queries:], x_NHD[:, queries + keys :]
        for held, new in ((self.slots.keys_LSHTD, k), (self.slots.values_LSHTD, v)):
            held[layer].view(-1, self.heads.dim).index_copy_(0, self.at_N, new.reshape(-1, self.heads.dim))
        return q, k, v

    def queries(self, qkv: torch.Tensor, norm_2D: torch.Tensor | None, of: torch.Tensor) -> torch.Tensor:
        """Return the queries B Q D of some tokens; `qkv` holds only these tokens."""
        x_BHD = qkv.view(len(qkv), -1, self.heads.dim)[:, : self.heads.queries]
        return self.turned(x_BHD, self.kind[: self.heads.queries], norm_2D, self.cos[of], self.sin[of])

    def turned(
        self,
        x_NHD: torch.Tensor,
        kind: torch.Tensor,
        norm_2D: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Normalize heads, if the model does, and rotate them. `kind`: 0 for each query head, 1 for
        each key head."""
        if norm_2D is not None:
            x_NHD = normal(x_NHD, self.heads.eps, norm_2D.index_select(0, kind))
        return torch.addcmul(x_NHD * cos, x_NHD.roll(self.heads.dim // 2, -1), sin)


# -- a step ----------------------------------------------------------------------------------------
class Step:
    def __init__(self, slots: Slots, heads: Heads, positions_B: torch.Tensor, visible: int):
        self.slots, self.rows, self.visible = slots, len(positions_B), visible
        device = positions_B.device
        self.laid = _Laid(slots, heads, torch.arange(self.rows, device=device), positions_B)
        seen_BT = torch.arange(visible, device=device) <= positions_B[:, None]
        nothing = torch.zeros(1, dtype=slots.keys_LSHTD.dtype, device=device)
        bias = torch.where(seen_BT, nothing, -torch.inf)[:, None, :].expand(self.rows, heads.keys, visible)
        self.bias = bias.reshape(self.rows * heads.keys, 1, visible)

    def __call__(self, layer: int, qkv: torch.Tensor, norm_2D: torch.Tensor | None) -> torch.Tensor:
        q, _, _ = self.laid(layer, qkv, norm_2D)
        keys, values = self._seen(self.slots.keys_LSHTD[layer]), self._seen(self.slots.values_LSHTD[layer])
        dim = q.shape[-1]
        scores = torch.baddbmm(self.bias, q.reshape(len(keys), -1, dim), keys.transpose(1, 2), alpha=dim**-0.5)
        return torch.bmm(scores.softmax(-1), values).view(self.rows, -1)

    def last(self, layer: int, qkv: torch.Tensor, kv: torch.Tensor, norm_2D: torch.Tensor | None) -> torch.Tensor:
        return self(layer, qkv, norm_2D)

    def _seen(self, held_SHTD: torch.Tensor) -> torch.Tensor:
        return held_SHTD[: self.rows].flatten(0, 1)[:, : self.visible]


# -- prompts, and results that continue a dialogue -------------------------------------------------
class _Rows:
    """Where the tokens of rows of different lengths are: in one flat row, in the slots, and when
    padded."""

    def __init__(self, feeds: Sequence[Feed], device: torch.device):
        lengths = [len(feed.ids) for feed in feeds]
        self.width, self.visible = max(lengths), max(feed.end for feed in feeds)
        self.begin = all(feed.start == 0 for feed in feeds)
        self.slot_B = torch.tensor([feed.slot for feed in feeds], device=device)
        length_B = torch.tensor(lengths, device=device)
        start_B = torch.tensor([feed.start for feed in feeds], device=device)
        rows_B = torch.arange(len(feeds), device=device)
        self.row_N = torch.repeat_interleave(rows_B, length_B, output_size=sum(lengths))
        self.first_B = length_B.cumsum(0) - length_B
        self.column_N = torch.arange(sum(lengths), device=device) - self.first_B[self.row_N]
        self.slot_N, self.position_N = self.slot_B[self.row_N], start_B[self.row_N] + self.column_N
        self.last_B = self.first_B + length_B - 1
        self.end_B = start_B + length_B
        self.mask = None
        if not self.begin:
            column_W = torch.arange(self.width, device=device)
            seen_T = torch.arange(self.visible, device=device)
            self.mask = seen_T[None, None, None, :] <= (start_B[:, None] + column_W)[:, None, :, None]

    def flat(self, out_BHWD: torch.Tensor) -> torch.Tensor:
        return out_BHWD.transpose(1, 2)[self.row_N, self.column_N].flatten(1)


class Prompts:
    def __init__(self, slots: Slots, heads: Heads, feeds: Sequence[Feed]):
        self.slots, device = slots, slots.keys_LSHTD.device
        self.rows = _Rows(feeds, device)
        self.last_B = self.rows.last_B
        self.laid = _Laid(slots, heads, self.rows.slot_N, self.rows.position_N)
        column_W = torch.arange(self.rows.width, device=device)
        self.padded_BW = torch.minimum(self.rows.first_B[:, None] + column_W, self.last_B[:, None])

    def __call__(self, layer: int, qkv: torch.Tensor, norm_2D: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.laid(layer, qkv, norm_2D)
        key, value = self._held(layer, k, v)
        return self.rows.flat(_attended(self._padded(q), key, value, self.rows.mask))

    def last(self, layer: int, qkv: torch.Tensor, kv: torch.Tensor, norm_2D: torch.Tensor | None) -> torch.Tensor:
        _, k, v = self.laid(layer, kv, norm_2D)
        q_BQD = self.laid.queries(qkv, norm_2D, self.last_B)
        key, value = self._held(layer, k, v)
        seen_BT = torch.arange(key.shape[2], device=key.device) < self.rows.end_B[:, None]
        return _attended(q_BQD[:, :, None], key, value, seen_BT[:, None, None, :])[:, :, 0].flatten(1)

    def _held(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values B H T D: the new ones, or those in the slots if a row continues a
        dialogue."""
        return (self._padded(k), self._padded(v)) if self.rows.begin else _held(self.slots, self.rows, layer)

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.padded_BW].transpose(1, 2)


def _held(slots: Slots, rows: _Rows, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = slots.keys_LSHTD[layer], slots.values_LSHTD[layer]
    return keys[:, :, : rows.visible][rows.slot_B], values[:, :, : rows.visible][rows.slot_B]


def _attended(q: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        q, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
