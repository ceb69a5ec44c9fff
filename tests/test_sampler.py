"""The in-process sampler against the model's own forward: same tokens in, same log-probabilities out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rft.chat import Chat
from rft.errors import UserError
from rft.sampler import Engine
from rft.types import Opening, ToolCall
from tests import small_policy, tiny_recipe

PROMPTS = [Opening(({"role": "user", "content": f"value of k{n:04d}"},)) for n in (1, 22, 333)]
SEEDS = [(0, n) for n in range(3)]
CALL = ToolCall("call_0_0", "lookup", "{}")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Chat]:
    return small_policy.build(tiny_recipe.make(tmp_path_factory.mktemp("recipe")), structured=False)


@pytest.fixture(scope="module")
def engine(parts: tuple[Any, Chat]) -> Engine:
    return Engine(*parts, small_policy.device())


def expected(engine: Engine, ids: list[int], start: int, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of ids[start:] by one plain forward."""
    with torch.no_grad():
        logits = engine.model(torch.tensor([ids])).logits[0] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_the_models_over_two_turns(engine: Engine, temperature: float):
    session = engine.session(PROMPTS, SEEDS, temperature, max_tokens=160)
    sequences = [list(ids) for ids in session.pending]
    for outputs in (["9153"], ["no such key: k"]):
        sampled = session.sample([0, 1, 2], max_new=12)
        for row, one in enumerate(sampled):
            start = len(sequences[row])
            sequences[row] += one.ids
            assert one.logprobs == pytest.approx(expected(engine, sequences[row], start, temperature), abs=1e-4)
            sequences[row] += session.append(row, [CALL], outputs) or ()


def test_a_row_does_not_depend_on_its_neighbours(engine: Engine):
    together = engine.session(PROMPTS, SEEDS, 1.0, 160).sample([0, 1, 2], 20)
    alone = engine.session(PROMPTS[1:2], SEEDS[1:2], 1.0, 160).sample([0], 20)
    assert alone[0].ids == together[1].ids


def test_a_group_of_one_prompt_is_prefilled_once_and_differs_by_stream(engine: Engine):
    session = engine.session([PROMPTS[0]] * 4, [(7, n) for n in range(4)], 1.0, 160)
    sampled = session.sample([0, 1, 2, 3], 12)
    assert len({one.ids for one in sampled}) > 1
    prompt = engine.chat.prompt_ids(list(PROMPTS[0].messages))
    for one in sampled:
        assert one.logprobs == pytest.approx(expected(engine, [*prompt, *one.ids], len(prompt)), abs=1e-4)


def test_greedy_is_the_argmax(engine: Engine):
    one = engine.session(PROMPTS[:1], SEEDS[:1], 0.0, 160).sample([0], 8)[0]
    ids = engine.chat.prompt_ids(list(PROMPTS[0].messages))
    for token in one.ids:
        with torch.no_grad():
            assert engine.model(torch.tensor([ids])).logits[0, -1].argmax().item() == token
        ids.append(token)


def test_equal_seeds_give_equal_tokens(engine: Engine):
    runs = [[one.ids for one in engine.session(PROMPTS, SEEDS, 1.0, 160).sample([0, 1, 2], 20)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_context_is_a_bound(engine: Engine):
    room = len(engine.chat.prompt_ids(list(PROMPTS[0].messages))) + 3
    session = engine.session(PROMPTS[:1], SEEDS[:1], 1.0, room)
    assert len(session.sample([0], 50)[0].ids) <= 3
    assert session.append(0, [CALL], ["x" * 50]) is None


def test_more_tokens_than_positions_are_refused(engine: Engine):
    with pytest.raises(UserError, match=r"rollout\.max_tokens"):
        engine.session(PROMPTS, SEEDS, 1.0, 10_000)


def test_an_opening_that_fills_the_context_is_refused(engine: Engine):
    with pytest.raises(UserError, match=r"an opening alone has \d+ tokens"):
        engine.session(PROMPTS, SEEDS, 1.0, 4)
