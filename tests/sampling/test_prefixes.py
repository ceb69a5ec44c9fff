"""What prompts have in common is computed once, after exactly the tokens that it follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.sampling import prefixes
from rft.sampling.prefixes import WORTH, Prompt, plan

PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90)), min_size=1, max_size=5)
PROMPTS = st.lists(
    PIECES.map(lambda pieces: tuple(token for token, count in pieces for _ in range(count))), max_size=12
)


def followed(new: set[Prompt], held: set[Prompt]) -> int:
    """Carry the plan out on lists of tokens; return how many were computed."""
    slots: dict[Prompt, list[int]] = {}
    computed, ended = 0, []
    for wave in plan(new, held):
        before = {prompt: list(tokens) for prompt, tokens in slots.items()}
        for part in wave:
            own = before.get(part.prompt, [])
            if part.source is not None:
                own = [*(part.source if part.source in held else before[part.source])][: part.start]
            assert len(own) == part.start < part.end
            slots[part.prompt] = [*own, *part.prompt[part.start : part.end]]
            computed += part.end - part.start
            ended += [part.prompt] if part.end == len(part.prompt) else []
    assert sorted(ended) == sorted(new), "logits of each prompt, once"
    assert all(tuple(slots[prompt]) == prompt for prompt in new)
    return computed


def distinct(new: set[Prompt], held: set[Prompt]) -> int:
    def paths(prompts: set[Prompt]) -> set[Prompt]:
        return {prompt[: n + 1] for prompt in prompts for n in range(len(prompt))}

    return len(paths(new) - paths(held))


@pytest.mark.slow
@given(PROMPTS, PROMPTS)
def test_every_prompt_is_computed_and_little_of_it_twice(new: list[Prompt], held: list[Prompt]):
    mine, theirs = set(new), set(held)
    computed = followed(mine, theirs)
    assert distinct(mine, theirs) <= computed <= distinct(mine, theirs) + (WORTH - 1) * len(mine) + len(mine)


def test_an_instruction_that_all_prompts_begin_with_is_computed_once():
    prompts = {(*range(1000), 5000 + n, *range(100)) for n in range(8)}
    assert followed(prompts, set()) == 1000 + 8 * 101
    assert len(plan(prompts, set())) == 2, "the instruction, then all that follows it side by side"


def test_what_is_held_is_not_computed_again():
    held = tuple(range(1000))
    assert followed({(*held[:900], 7, 7)}, {held}) == 2
    assert followed({held[:500]}, {held}) == 1
    assert followed({held}, {held}) == 1


def test_a_few_tokens_in_common_are_not_worth_a_wave():
    prompts = {(1, 2, 3, 10 + n, *range(50)) for n in range(5)}
    assert len(plan(prompts, set())) == 1


@given(PROMPTS)
def test_common_is_what_both_begin_with(prompts: list[Prompt]):
    for one in prompts:
        for other in prompts:
            n = prefixes.common(one, other)
            assert one[:n] == other[:n]
            assert n == min(len(one), len(other)) or one[n] != other[n]
