"""Attention in rows that are trees, a branch at a time.

rft/trainer/packing.py makes the rows. A mask over the whole row would cost the square of its width,
although a token sees only its own past. Each of eight completions of a 4,000-token prompt would
look at all others. A branch is a run of tokens without a fork: the prompt that a group shares, or
what one rollout added. Its queries need only the keys of its path from the row's first token. So
branches of about the same length are computed side by side, each with the keys of its own path. A
row may be as wide as memory allows, and what is shared is computed once at any length.

Where only some tokens are read (the last layer), only their queries are computed.

Shapes: R rows of T tokens; B branches of about the same length, Q queries and K keys of the
longest; M queries in total; H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class _Branch:
    """`asks`: places of its queries among all queries. `depths`: how many tokens come before each
    query. `path`: flat places (R x T) of all tokens from the row's first to the branch's last."""

    asks: Sequence[int]
    depths: Sequence[int]
    path: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Branches side by side. `is_own_BQ`: what is not padding; `seen_B1QK`: None where each token
    sees all before it."""

    asks_BQ: torch.Tensor
    is_own_BQ: torch.Tensor
    path_BK: torch.Tensor
    seen_B1QK: torch.Tensor | None


class Branches:
    """Attention of all tokens; or of those that are read, `read_M` (flat places, ascending)."""

    def __init__(self, end_RT: torch.Tensor, read_M: torch.Tensor | None = None):
        asked = None if read_M is None else {place: ask for ask, place in enumerate(read_M.tolist())}
        found = [
            branch
            for row, ends in enumerate(end_RT.tolist())
            for branch in _branches(ends, row * end_RT.shape[1], asked)
        ]
        sized: dict[tuple[bool, int], list[_Branch]] = {}
        for branch in found:
            is_whole = len(branch.asks) == len(branch.path)
            sized.setdefault((is_whole, len(branch.asks).bit_length()), []).append(branch)
        self._alike = [_laid(branches, is_whole, end_RT.device) for (is_whole, _), branches in sorted(sized.items())]
        asks = torch.cat([alike.asks_BQ.flatten() for alike in self._alike])
        is_own = torch.cat([alike.is_own_BQ.flatten() for alike in self._alike])
        place_M = torch.empty(int(is_own.sum()), dtype=torch.long, device=asks.device)
        place_M[asks[is_own]] = is_own.nonzero().squeeze(1)
        self._place_M = place_M

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the heads' outputs, flat: M x (H D). `q`, `k`, `v`: ... H D."""
        heads, dim = q.shape[-2:]
        flat = [x.reshape(-1, heads * dim) for x in (q, k, v)]
        found = []
        for alike in self._alike:
            places = (alike.asks_BQ, alike.path_BK, alike.path_BK)
            # embedding, because its backward adds up rows much faster than an index's.
            picked = (functional.embedding(at, x) for at, x in zip(places, flat, strict=True))
            turned = (x.unflatten(-1, (heads, dim)).transpose(1, 2) for x in picked)
            mask = alike.seen_B1QK
            out = functional.scaled_dot_product_attention(*turned, attn_mask=mask, is_causal=mask is None)
            found.append(out.transpose(1, 2).reshape(-1, heads * dim))
        return functional.embedding(self._place_M, torch.cat(found))


def _branches(ends: Sequence[int], first: int, asked: dict[int, int] | None) -> Iterator[_Branch]:
    """Yield the branches of a row in depth-first order. `ends`: where each token's descendants
    end."""
    path: list[int] = []  # columns from the row's first token to the one before this branch
    start = 0
    for column, end in enumerate(ends):
        goes_on = column + 1 < end and ends[column + 1] == end
        if goes_on:
            continue
        while path and ends[path[-1]] <= start:
            path.pop()
        depth = len(path)
        path += range(start, column + 1)
        places = [first + place for place in path]
        if asked is None:
            yield _Branch(places[depth:], range(depth, len(path)), places)
        elif read := [at for at in range(depth, len(path)) if places[at] in asked]:
            yield _Branch([asked[places[at]] for at in read], read, places)
        start = column + 1


def _laid(branches: Sequence[_Branch], is_whole: bool, device: torch.device) -> _Alike:
    asks_BQ = _padded([branch.asks for branch in branches])
    path_BK = _padded([branch.path for branch in branches])
    count_B1 = torch.tensor([[len(branch.asks)] for branch in branches])
    is_own_BQ = torch.arange(asks_BQ.shape[1]) < count_B1
    if is_whole:
        return _Alike(asks_BQ.to(device), is_own_BQ.to(device), path_BK.to(device), None)
    depths_BQ = _padded([branch.depths for branch in branches])
    seen_BQK = torch.arange(path_BK.shape[1]) <= depths_BQ[:, :, None]
    return _Alike(asks_BQ.to(device), is_own_BQ.to(device), path_BK.to(device), seen_BQK[:, None].to(device))


def _padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Make the rows equally long, by repeating each row's last number."""
    wide = max(map(len, rows))
    return torch.tensor([[*row, *[row[-1]] * (wide - len(row))] for row in rows])
