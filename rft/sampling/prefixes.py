"""Plans how to compute once what several prompts have in common.

The prompts of a group are equal; those of a stage begin with the same instructions and tools.
Sorted by their tokens, prompts are a tree: an edge is what all prompts below it have in common. An
edge is computed for one of these prompts, and the others copy its keys and values. So each distinct
token is computed once, after exactly the tokens that it follows, whatever the length.

An edge waits for the edge above it, so a tree is computed in waves, and a wave costs the overhead
of a call. So an edge is shared only if that saves `WORTH` tokens; otherwise each prompt below
computes it with its own part. Prompts that are held already (by a row, or kept from a previous
session) cost nothing: new prompts branch off from them.

    plan        prompts -> waves of parts
    common      the number of tokens that two prompts begin with
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

Prompt = tuple[int, ...]

WORTH = 32
"""Tokens that sharing an edge must save."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `start` to `end` of a prompt. The tokens before `start` are in the prompt's own slot,
    or copied from `source`."""

    prompt: Prompt
    start: int
    end: int
    source: Prompt | None

    @property
    def ids(self) -> Prompt:
        return self.prompt[self.start : self.end]


@dataclass(frozen=True, slots=True)
class _Branch:
    """Sorted prompts that begin alike. Their first `start` tokens are computed already: `source`
    has them."""

    prompts: Sequence[Prompt]
    start: int
    source: Prompt | None
    wave: int


def plan(new: Collection[Prompt], held: Collection[Prompt]) -> list[list[Part]]:
    """Return the parts to compute for the new prompts, in waves: what a part copies is held, or was
    computed in an earlier wave. One part of each new prompt ends where the prompt ends. If a new
    prompt is held too, its last token is computed again."""
    waves: list[list[Part]] = []
    branches = [_Branch(sorted({*new, *held}), 0, None, 0)]
    while branches:
        branch = branches.pop()
        if not any(prompt in new for prompt in branch.prompts):
            continue
        first, until = branch.prompts[0], common(branch.prompts[0], branch.prompts[-1])
        there = next((prompt for prompt in branch.prompts if prompt in held), None)
        if there is not None:
            branch = replace(branch, start=until, source=there)
            if len(first) == until and first in new:  # its last token is computed, for its logits
                _put(waves, branch.wave, Part(first, until - 1, until, there))
        elif len(branch.prompts) == 1 or (until - branch.start) * (len(branch.prompts) - 1) >= WORTH:
            _put(waves, branch.wave, _part(first, branch, until))
            branch = _Branch(branch.prompts, until, first, branch.wave + 1)
        elif len(first) == until:  # it ends here, and the others go on without it
            _put(waves, branch.wave, _part(first, branch, until))
        branches += _split(branch, until)
    return waves


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _split(branch: _Branch, at: int) -> Iterator[_Branch]:
    """Yield the branches that begin after `at` tokens, where the prompts differ."""
    longer = [prompt for prompt in branch.prompts if len(prompt) > at]
    for _, alike in groupby(longer, key=lambda prompt: prompt[at]):
        yield _Branch(list(alike), branch.start, branch.source, branch.wave)


def _part(prompt: Prompt, branch: _Branch, end: int) -> Part:
    is_own = branch.source == prompt or branch.start == 0
    return Part(prompt, branch.start, end, None if is_own else branch.source)


def _put(waves: list[list[Part]], wave: int, part: Part) -> None:
    waves += [[] for _ in range(wave + 1 - len(waves))]
    waves[wave].append(part)
