"""A rollout as the trainer sees it, and the layout of many for one forward pass.

Side by side, a group of G rollouts repeats its prompt G times, and most of a rollout *is* prompt.
In a tree each distinct prefix is computed once. Sorted by their tokens, samples that begin alike
are neighbors. A token whose whole past equals its neighbor's is the same token with the same hidden
state. A row is such a tree in depth-first order. A token sees its ancestors and nothing else, and
its position is its depth. So packing does not mix samples, and forward and backward of a shared
past are done once (tests/trainer/test_packing.py: log-probabilities and gradients are those of each
sample alone).

    trees              rows of samples that share tokens, with few wasted; `widest` says how wide
    microbatches       cuts rows into microbatches of a bounded size
    num_sharing        samples that share a row with another of the same prompt; `why_none` explains
                       when there are none
    layout             one microbatch as tensors

In depth-first order the descendants of a token follow it up to `end`, so `i` sees `j` exactly when
j <= i < end[j].

Shapes: R rows of T tokens, padded behind; N completion tokens of B samples, flat, in the order of
the samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROW_TOKENS, ROW_HIDDEN = 350, 128
"""The width of a tree that the model's own forward reads, and the hidden size for which it holds. A
wider tree shares more, but attention under a mask grows with the square of its width. If
rft/trainer/branches.py reads it, a row is as wide as a microbatch. On one core, a step
of the embedded policy with 64 samples of 130 tokens takes 0.62 s side by side. With trees of up to
200 tokens it takes 0.52, with 260 0.50, with 350 0.49, with 512 0.53."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A rollout: `ids` and `loss_mask` over T tokens, the sampler's `logprobs` where the mask is
    True. A dialogue that no sampler of ours wrote has none."""

    ids: list[int]
    loss_mask: list[bool]
    logprobs: list[float]
    advantage: float
    reward: float = 0.0
    """The whole rollout's; PPO places it on the last completion token."""
    pair: int = -1
    """Samples with the same number are judged together (DPO) and stay in one microbatch, the
    preferred one (advantage > 0) first. -1: none."""
    others: tuple[int, ...] = ()
    """Places of tokens that the policy never writes, and that supervised learning learns all the
    same: tokens of prompts and tool results. They come after the first token and before the last
    completion token."""
    other_weight: float = 0.0
    """What such a token weighs against a completion token."""

    @property
    def num_own(self) -> int:
        return self.loss_mask.count(True)

    @property
    def weight(self) -> float:
        """What all its tokens weigh, if the advantage is a weight (supervised learning)."""
        return self.advantage * (self.num_own + self.other_weight * len(self.others))

    @property
    def prompt(self) -> int:
        """The number of tokens before the first completion token."""
        return self.loss_mask.index(True)

    @property
    def read(self) -> list[int]:
        """The tokens that the network must read: all before the last one that is predicted."""
        last = len(self.loss_mask) - 1
        while last and not self.loss_mask[last]:
            last -= 1
        return self.ids[:last]


@dataclass(frozen=True, slots=True)
class Counted:
    """The divisors of the step's means: all rollouts that the formula counts, with or without a
    gradient (rft/algorithms), and their completion tokens."""

    num_rollouts: int = 0
    num_tokens: int = 0


Row = list[TrainingSample]


@dataclass(frozen=True, slots=True)
class Layout:
    """One microbatch. `samples` are its B samples in the order of the flat tokens."""

    samples: list[TrainingSample]
    ids_RT: torch.Tensor
    positions_RT: torch.Tensor
    end_RT: torch.Tensor | None
    """Where each token's descendants end. None: rows of one sample, where each token sees all
    before it."""
    predictor_N: torch.Tensor
    """Place (in R x T, flat) of the hidden state that predicts each completion token."""
    ids_N: torch.Tensor
    row_N: torch.Tensor
    """The sample of each token, as a number below B; ascending."""
    weight_N: torch.Tensor | None = None
    """What a token weighs against a completion token. None: all are completion tokens."""
    is_own_N: torch.Tensor | None = None
    """Whether it is a completion token. None: all are. Otherwise N counts `others` too."""

    @property
    def mask_RTT(self) -> torch.Tensor | None:
        """Which token may see which. None: each token sees all before it in its row."""
        import torch

        if self.end_RT is None:
            return None
        column = torch.arange(self.end_RT.shape[1], device=self.end_RT.device)
        return (column[:, None] >= column) & (column[None, :, None] < self.end_RT[:, None, :])


@dataclass(slots=True)
class _Tree:
    """A row in depth-first order."""

    ids: list[int]
    depth: list[int]
    end: list[int]
    paths: list[list[int]]
    """The places of each sample's tokens."""


def bundles(samples: Sequence[TrainingSample]) -> list[Row]:
    """List what must stay in one microbatch: a pair, or a sample alone."""
    found: dict[tuple[int, int], Row] = {}
    for n, sample in enumerate(samples):
        found.setdefault((sample.pair, -1 if sample.pair >= 0 else n), []).append(sample)
    return list(found.values())


def share(samples: Sequence[TrainingSample], rank: int, size: int) -> list[TrainingSample]:
    """Return one process's part, about equal in tokens. Samples are sorted by their tokens, so that
    groups stay together."""
    whole, mine, seen = sum(len(sample.ids) for sample in samples), [], 0
    for bundle in sorted(bundles(samples), key=lambda bundle: bundle[0].ids) if size > 1 else bundles(samples):
        tokens = sum(len(sample.ids) for sample in bundle)
        if (2 * seen + tokens) * size // (2 * whole) == rank:
            mine += bundle
        seen += tokens
    return mine


def widest(prompt: int, hidden: float) -> float:
    """Return the width up to which a tree pays, for samples that share a prompt of this length.
    `hidden`: the hidden size; infinite if attention does not grow with the width.

    Per layer, a token costs about 24 H^2 operations, and attention 4 T H in a row of T. In units of
    the former a row costs T + T^2 / 6H. If each sample adds a few tokens to a prompt of s, the cost
    per sample is least at T = s + sqrt(s (s + 6 H)). For prompts of 80 tokens and H = 128 that is
    340, near the measured ROW_TOKENS, which holds for shorter prompts. For 330 tokens it is 932:
    eight rollouts of 370 tokens take 0.68 s alone on one core. In rows of up to 600 tokens they
    take 0.24, in 900 0.09, in 1,400 0.22. (For H = 512 and 400 tokens: alone 6.9 s, in 900 1.8.)
    """
    if math.isinf(hidden):
        return hidden
    usual = max(ROW_TOKENS, ROW_TOKENS * hidden // ROW_HIDDEN)
    return usual if prompt <= usual // 2 else prompt + math.isqrt(int(prompt * (prompt + 6 * hidden)))


def microbatches(samples: Sequence[TrainingSample], max_tokens: int, hidden: float | None) -> list[list[Row]]:
    """Cut into microbatches of at most `max_tokens` with padding, except what cannot be divided.
    Rows of similar width go together, so that there is little padding.

    `hidden`: the model's hidden size, which bounds trees, or infinite (`widest`); None: samples are
    laid side by side.
    """
    if hidden is None:
        units = [[[sample] for sample in bundle] for bundle in bundles(samples)]
    else:
        units = [[row] for row in trees(samples, max_tokens, hidden)]
    sized = sorted(((max(map(width, unit)), unit) for unit in units), key=lambda pair: -pair[0])
    batches: list[list[Row]] = []
    widest = 0
    for size, unit in sized:
        if batches and widest * (len(batches[-1]) + len(unit)) <= max_tokens:
            batches[-1] += unit
        else:
            batches.append(list(unit))
            widest = size
    return batches


def trees(samples: Sequence[TrainingSample], max_tokens: int, hidden: float) -> list[Row]:
    """Put samples that begin alike into rows as wide as pays, of at most `max_tokens` tokens unless
    a bundle alone is wider. A prompt is computed once if its samples fit into a row."""
    rows: list[Row] = []
    used, before = 0, []
    for unit in _groups(samples, max_tokens) if math.isinf(hidden) else _sorted(samples):
        own = _tree(unit)
        shared = _common(before, unit[0].read)
        new, room = len(own.ids) - shared, widest(unit[0].prompt if shared >= unit[0].prompt else 0, hidden)
        if rows and used + new <= min(room, max_tokens):
            rows[-1] += unit
            used += new
        else:
            rows.append(list(unit))
            used = len(own.ids)
        before = max(unit, key=lambda sample: sample.read).read
    return rows


def _sorted(samples: Sequence[TrainingSample]) -> list[Row]:
    return sorted(bundles(samples), key=lambda bundle: bundle[0].read)


def _groups(samples: Sequence[TrainingSample], max_tokens: int) -> Iterator[Row]:
    """Yield sorted samples: those of a prompt together if all fit into a row, else bundle by
    bundle."""
    for _, alike in groupby(_sorted(samples), key=lambda bundle: bundle[0].ids[: bundle[0].prompt]):
        group = list(alike)
        together = [sample for bundle in group for sample in bundle]
        yield from [together] if width(together) <= max_tokens else group


def num_sharing(rows: Iterable[Row]) -> int:
    """Count samples whose whole prompt is computed once for them and another one in their row."""
    count = 0
    for row in rows:
        reads = sorted(((one.read, one.prompt) for one in row), key=lambda one: one[0])
        alike = [_common(one, other) for (one, _), (other, _) in pairwise(reads)]
        count += sum(
            max(before, after) >= prompt
            for before, after, (_, prompt) in zip([-1, *alike], [*alike, -1], reads, strict=True)
        )
    return count


def why_none(samples: Sequence[TrainingSample], max_tokens: int, hidden: float) -> str:
    """Say why no sample shares its prompt, and what to do about train.packing."""
    off = "Set train.packing: false, which computes the same"
    ordered = sorted(bundles(samples), key=lambda one: one[0].read)
    alike = [(one, other) for one, other in pairwise(ordered) if _common(one[0].read, other[0].read) >= other[0].prompt]
    if not alike:
        return f"no two of them have the same prompt, so train.packing saves nothing here. {off}"
    least, room = min((width([*one, *other]), widest(other[0].prompt, hidden)) for one, other in alike)
    two = f"two with the same prompt take {least} tokens in a row"
    if least > room:
        return f"{two}, and here a row beyond {room:.0f} costs more attention than it saves. {off}"
    if least > max_tokens:
        remedy = f"Raise it to at least {least} (memory grows with it), or s{off[1:]}"
        return f"{two}, and train.microbatch_tokens is {max_tokens}. {remedy}"
    return f"those with the same prompt fell into different rows or processes. If it stays so, s{off[1:]}"


def width(row: Row) -> int:
    return len(row[0].read) if len(row) == 1 else len(_tree(row).ids)


def layout(rows: Sequence[Row], device: torch.device) -> Layout:
    """Lay a microbatch out as tensors. Rows of one sample each need no mask."""
    import torch

    planned = [_tree(row) for row in rows]
    wide = max(len(tree.ids) for tree in planned)
    ids_RT = torch.zeros(len(rows), wide, dtype=torch.long)
    positions_RT = torch.zeros(len(rows), wide, dtype=torch.long)
    end_RT = torch.arange(1, wide + 1).repeat(len(rows), 1)  # padding sees itself
    samples: list[TrainingSample] = []
    predictors: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    weights: list[float] = []
    is_own: list[bool] = []
    for n, (row, tree) in enumerate(zip(rows, planned, strict=True)):
        ids_RT[n, : len(tree.ids)] = torch.tensor(tree.ids)
        positions_RT[n, : len(tree.ids)] = torch.tensor(tree.depth)
        end_RT[n, : len(tree.ids)] = torch.tensor(tree.end)
        for sample, path in zip(row, tree.paths, strict=True):
            own = [place for place, loss_mask in enumerate(sample.loss_mask) if loss_mask]
            places = [*own, *sample.others]
            predictors += [n * wide + path[place - 1] for place in places]
            targets += [sample.ids[place] for place in places]
            owners += [len(samples)] * len(places)
            weights += [1.0] * len(own) + [sample.other_weight] * len(sample.others)
            is_own += [True] * len(own) + [False] * len(sample.others)
            samples.append(sample)
    planned_N: dict[str, torch.Tensor] = {}
    if not all(is_own):
        planned_N = {"weight_N": torch.tensor(weights, device=device), "is_own_N": torch.tensor(is_own, device=device)}
    ends = end_RT.to(device) if any(len(row) > 1 for row in rows) else None
    return Layout(
        samples, ids_RT.to(device), positions_RT.to(device), ends, torch.tensor(predictors, device=device),
        torch.tensor(targets, device=device), torch.tensor(owners, device=device), **planned_N,
    )  # fmt: skip


def _tree(row: Row) -> _Tree:
    tree = _Tree([], [], [], [[] for _ in row])
    path: list[int] = []  # of the sample before
    before: list[int] = []
    for n in sorted(range(len(row)), key=lambda n: row[n].read):
        read = row[n].read
        shared = _common(before, read)
        for place in path[shared:]:
            tree.end[place] = len(tree.ids)
        new = range(len(tree.ids), len(tree.ids) + len(read) - shared)
        tree.ids += read[shared:]
        tree.depth += range(shared, len(read))
        tree.end += [0] * len(new)
        path, before = [*path[:shared], *new], read
        tree.paths[n] = path
    for place in path:
        tree.end[place] = len(tree.ids)
    return tree


def _common(one: list[int], other: list[int]) -> int:
    """Count the tokens that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
