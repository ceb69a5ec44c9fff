"""The in-process sampler against the model's own forward: same tokens in, same log-probabilities
out."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import GemmaConfig, GemmaForCausalLM, MistralConfig, MistralForCausalLM

from rft.chat.renderer import Chat
from rft.errors import UserError
from rft.kernels import onednn
from rft.rollouts.loop_thread import LoopThread
from rft.sampling import engine as sampler
from rft.sampling.batching import Row
from rft.sampling.engine import Engine
from rft.sampling.kv_cache import Feed, Slots
from rft.sampling.prefixes import WORTH
from rft.types import Opening, ToolCall, ToolResult, Usage
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


@pytest.fixture(scope="module")
def other(parts: tuple[Any, Chat]) -> Engine:
    """Of an architecture without a fast path."""
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    settings = GemmaConfig(vocab_size=len(parts[1].tokenizer), max_position_embeddings=256, **size)
    settings._attn_implementation = "sdpa"
    return Engine(GemmaForCausalLM(settings).eval(), parts[1], small_policy.device())


def expected(engine: Engine, ids: Sequence[int], start: int, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of ids[start:] by one plain forward."""
    with torch.no_grad():
        logits = engine.model(torch.tensor([ids])).logits[0] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])].tolist()


class Counting:
    """A forward that notes how many tokens it was told, and how many rows it stepped."""

    def __init__(self, engine: Engine):
        self.whole, self.told, self.stepped = engine.forward, [], []

    def begun(self) -> Counting:
        self.inner = self.whole.begun()
        return self

    def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor:
        self.told += [len(feed.ids) for feed in feeds]
        return self.inner.prefill(slots, feeds)

    def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
        self.stepped.append(len(ids_B))
        return self.inner.step(slots, ids_B, positions_B, visible)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("which", ["engine", "other"])
def test_logprobs_are_the_models_over_two_turns(which: str, temperature: float, request: pytest.FixtureRequest):
    engine: Engine = request.getfixturevalue(which)
    session = engine.session(PROMPTS, SEEDS, temperature, max_context_tokens=160)
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
    with pytest.raises(UserError, match=r"its opening alone has \d+ tokens"):
        engine.session(PROMPTS, SEEDS, 1.0, 4)


def test_the_prompt_of_a_group_is_computed_once_even_when_its_rows_come_one_after_another(parts: tuple[Any, Chat]):
    engine = Engine(*parts, small_policy.device(), slots=2)
    engine.forward = counting = Counting(engine)
    session = engine.session([PROMPTS[0]] * 4, [(7, n) for n in range(4)], 1.0, 160)
    prompt = list(session.pending[0])
    turns = {}
    for row in range(4):
        session.begin(row, 6 + row)
    while session.speaking:
        for row in session.advance():
            turns[row] = session.take_turn(row)
            session.close(row)
    assert counting.told == [len(prompt)]
    for one in turns.values():
        assert one.logprobs == pytest.approx(expected(engine, [*prompt, *one.ids], len(prompt)), abs=1e-4)
    together = Engine(*parts, small_policy.device()).session([PROMPTS[0]] * 4, [(7, n) for n in range(4)], 1.0, 160)
    assert [turns[row].ids for row in range(4)] == [together.sample([row], 6 + row)[0].ids for row in range(4)]


LONG = "Answer in one word. " * 12
ASKED = [
    Opening(({"role": "system", "content": LONG}, {"role": "user", "content": f"value of k{n:04d}"})) for n in range(4)
]


def test_instructions_that_prompts_share_are_computed_once_and_what_is_said_is_the_models(parts: tuple[Any, Chat]):
    engine = Engine(*parts, small_policy.device())
    engine.forward = counting = Counting(engine)
    asked = [ASKED[n // 2] for n in range(8)]
    session = engine.session(asked, [(3, n) for n in range(8)], 1.0, 256)
    prompts = [tuple(ids) for ids in session.pending]
    sampled = session.sample(list(range(8)), 6)
    distinct = len({prompt[: n + 1] for prompt in prompts for n in range(len(prompt))})
    assert distinct <= sum(counting.told) <= distinct + 3 * WORTH
    for prompt, one in zip(prompts, sampled, strict=True):
        assert one.logprobs == pytest.approx(expected(engine, [*prompt, *one.ids], len(prompt)), abs=1e-4)


def test_the_next_session_goes_on_from_the_instructions_unless_the_weights_have_changed(parts: tuple[Any, Chat]):
    engine = Engine(copy.deepcopy(parts[0]), parts[1], small_policy.device())
    engine.forward = counting = Counting(engine)

    def tokens_of_a_session(opening: Opening) -> int:
        counting.told.clear()
        session = engine.session([opening], SEEDS[:1], 1.0, 256)
        prompt = list(session.pending[0])
        one = session.sample([0], 6)[0]
        assert one.logprobs == pytest.approx(expected(engine, [*prompt, *one.ids], len(prompt)), abs=1e-4)
        return sum(counting.told)

    whole, other = (len(parts[1].prompt_ids(list(opening.messages))) for opening in ASKED[:2])
    assert tokens_of_a_session(ASKED[0]) == whole
    assert tokens_of_a_session(ASKED[0]) == 1, "the last token, for its logits"
    assert tokens_of_a_session(ASKED[1]) < whole / 4
    for parameter in (engine.model.lm_head.weight, engine.model.model.layers[1].mlp.up_proj.weight):
        parameter.data[3, 5] += 0.5
        assert tokens_of_a_session(ASKED[1]) == other, "keys and values of other weights are none"


def test_a_prompt_whose_row_has_left_is_not_computed_again_for_the_next_of_its_group(parts: tuple[Any, Chat]):
    """With two slots, a group's first row leaves while another group's speaks."""
    engine = Engine(*parts, small_policy.device(), slots=2)
    engine.forward = counting = Counting(engine)
    group = [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[1]]
    session = engine.session(group, [(5, n) for n in range(4)], 1.0, 160)
    prompts = [tuple(ids) for ids in session.pending]
    turns: dict[int, Any] = {}
    session.begin(0, 4)
    session.begin(1, 9)
    while session.speaking:
        for row in session.advance():
            turns[row] = session.take_turn(row)
            session.close(row)
            if row + 2 < 4:
                session.begin(row + 2, 5)
    distinct = len({prompt[: n + 1] for prompt in prompts for n in range(len(prompt))})
    assert sum(counting.told) <= distinct + WORTH
    for row, one in turns.items():
        assert one.logprobs == pytest.approx(expected(engine, [*prompts[row], *one.ids], len(prompts[row])), abs=1e-4)


def test_a_window_of_all_layers_bounds_the_context(parts: tuple[Any, Chat]):
    size: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(parts[1].tokenizer)}
    for window, room in ((64, 64), (None, 256)):
        settings = MistralConfig(max_position_embeddings=256, sliding_window=window, **size)
        engine = Engine(MistralForCausalLM(settings).eval(), parts[1], small_policy.device())
        assert engine.limit(None) == room
        with pytest.raises(UserError, match=f"{room} positions"):
            engine.limit(room + 1)


def test_a_turn_reads_the_whole_dialogue_again_and_a_cache_spares_what_it_held_before(engine: Engine):
    """Rows of one prompt pay for it each, whichever of them it was computed for."""
    session = engine.session([PROMPTS[0], *PROMPTS[:2]], [(0, n) for n in range(3)], 1.0, 200)
    prompts = [len(ids) for ids in session.pending]
    first = session.sample([2, 1, 0], 8)[::-1]
    assert [one.usage for one in first] == [Usage(n, 0, len(one.ids)) for n, one in zip(prompts, first, strict=True)]
    added = [session.append(row, [CALL], ["seen"]) for row in range(3)]
    for row, second in enumerate(session.sample([0, 1, 2], 8)):
        held = prompts[row] + len(first[row].ids)
        # what was sampled last is read with what comes after it
        assert second.usage == Usage(held + len(added[row] or ()), held - 1, len(second.ids))


def test_turns_join_leave_and_wait_between_tokens(engine: Engine, parts: tuple[Any, Chat]):
    """At random: what each row says is what the model says, and what it would have said alone."""
    rng = random.Random(0)
    for slots in (2, 3, 5):
        busy = Engine(*parts, small_policy.device(), slots=slots)
        prompts = [Opening(({"role": "user", "content": "value of " + "k" * rng.randint(1, 30)},)) for _ in range(5)]
        session = busy.session(prompts, [(3, n) for n in range(5)], 1.0, 200)
        context = {row: list(ids) for row, ids in enumerate(session.pending)}
        ready, turns = dict.fromkeys(range(5), 0), dict.fromkeys(range(5), 0)
        ended: list[tuple[int, int, tuple[int, ...]]] = []
        now = 0
        while ready or session.speaking:
            now += 1
            for row in [row for row, when in ready.items() if when <= now]:
                session.begin(row, rng.randint(1, 9))
                del ready[row]
            if not session.speaking:
                continue
            for row in session.advance():
                one = session.take_turn(row)
                start = len(context[row])
                context[row] += one.ids
                ended.append((row, start, one.ids))
                assert one.logprobs == pytest.approx(expected(engine, context[row], start), abs=1e-4)
                turns[row] += 1
                if turns[row] == 3:
                    session.close(row)
                else:
                    context[row] += session.append(row, [CALL], ["9" * rng.randint(0, 9)]) or ()
                    ready[row] = now + rng.randint(0, 6)
        assert set(turns.values()) == {3}
        for row in range(5):
            alone = engine.session(prompts[row : row + 1], [(3, row)], 1.0, 200)
            for _, start, ids in [one for one in ended if one[0] == row]:
                alone.pending[0] += context[row][alone.lengths[0] + len(alone.pending[0]) : start]
                assert alone.sample([0], len(ids))[0].ids == ids


def test_who_has_ended_costs_no_step(parts: tuple[Any, Chat]):
    engine = Engine(*parts, small_policy.device())
    engine.forward = counting = Counting(engine)
    session = engine.session(PROMPTS, SEEDS, 1.0, 160)
    for row, tokens in enumerate((2, 9, 4)):
        session.begin(row, tokens)
    lengths = []
    while session.speaking:
        lengths += [len(session.take_turn(row).ids) for row in session.advance()]
    assert sum(counting.stepped) == sum(lengths) - 3  # the first of each comes with its prompt
    assert counting.stepped == sorted(counting.stepped, reverse=True)


def test_a_row_that_is_closed_while_it_speaks_leaves_the_others_as_they_were(engine: Engine):
    whole = [one.ids for one in engine.session(PROMPTS, SEEDS, 1.0, 160).sample([0, 1, 2], 12)]
    session = engine.session(PROMPTS, SEEDS, 1.0, 160)
    for row in range(3):
        session.begin(row, 12)
    assert session.advance() == []
    session.close(0)
    turns = {}
    while session.speaking:
        turns |= {row: session.take_turn(row).ids for row in session.advance()}
    assert turns == {1: whole[1], 2: whole[2]}


@pytest.mark.slow
def test_a_turns_time_is_the_rows_share_of_its_steps(parts: tuple[Any, Chat]):
    """Not the others' tokens, nor a prefill, nor the wait for a slot: with the rows beside it, a
    turn takes no longer than alone."""

    class Slow(Counting):
        def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor:
            time.sleep(0.5)
            return super().prefill(slots, feeds)

        def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
            time.sleep(0.04 * len(ids_B))
            return super().step(slots, ids_B, positions_B, visible)

    for slots in (None, 1):
        engine = Engine(*parts, small_policy.device(), slots=slots)
        engine.forward = Slow(engine)
        session = engine.session(PROMPTS, SEEDS, 1.0, 160)
        for row in range(3):
            session.begin(row, 6)
        began, turns = time.monotonic(), []
        while session.speaking:
            for row in session.advance():
                turns.append(session.take_turn(row))
                session.close(row)
        wall = time.monotonic() - began
        for one in turns:
            assert 5 * 0.04 <= one.seconds < 0.4
        assert sum(one.seconds for one in turns) < wall - 0.5


def test_a_turn_is_cut_at_its_deadline_between_two_tokens_and_the_others_speak_on(parts: tuple[Any, Chat]):
    class Slow(Counting):
        def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
            time.sleep(0.01 * len(ids_B))
            return super().step(slots, ids_B, positions_B, visible)

    whole = [
        one.ids for one in Engine(*parts, small_policy.device()).session(PROMPTS, SEEDS, 1.0, 160).sample([0, 1, 2], 30)
    ]
    engine = Engine(*parts, small_policy.device())
    engine.forward = Slow(engine)
    session = engine.session(PROMPTS, SEEDS, 1.0, 160)
    for row, deadline_s in enumerate((60.0, 0.1, 60.0)):
        session.begin(row, 30, deadline_s)
    turns = {}
    while session.speaking:
        turns |= {row: session.take_turn(row) for row in session.advance()}
    assert {row: turns[row].ids for row in (0, 2)} == {0: whole[0], 2: whole[2]}
    cut = turns[1]
    assert (cut.ended, 0 < len(cut.ids) <= 11, cut.ids) == (False, True, whole[1][: len(cut.ids)])
    assert 0.1 <= cut.seconds < 0.5
    session.append(1, [CALL], ["9153"])
    assert session.sample([1], 4)[0].ids, "the session goes on with a row that was cut"


@pytest.mark.parametrize("slots", [None, 2])
def test_in_the_free_mode_rows_say_what_they_say_behind_the_barrier(parts: tuple[Any, Chat], slots: int | None):
    async def talk(row: Row, delay_s: float) -> list[tuple[int, ...]]:
        turns = []
        for _ in range(2):
            one = await row.sample(10, 60.0)
            assert one.seconds > 0
            turns.append(one.ids)
            row.append([CALL], [ToolResult(CALL.call_id, "9153")])
            await asyncio.sleep(delay_s)
        row.close()
        return turns

    async def all_of_it(deterministic: bool) -> list[list[tuple[int, ...]]]:
        engine = Engine(*parts, small_policy.device(), deterministic, slots)
        rows = engine.open(PROMPTS, SEEDS, 1.0, 160)
        return await asyncio.gather(*(talk(row, delay) for row, delay in zip(rows, (0.02, 0.0, 0.005), strict=True)))

    assert asyncio.run(all_of_it(True)) == asyncio.run(all_of_it(False))


def test_what_the_forward_raises_reaches_all_who_wait(parts: tuple[Any, Chat]):
    class Broken(Counting):
        def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
            raise RuntimeError("broken")

    async def all_of_it(deterministic: bool) -> list[Any]:
        engine = Engine(*parts, small_policy.device(), deterministic)
        engine.forward = Broken(engine)
        rows = engine.open(PROMPTS, SEEDS, 1.0, 160)
        found = await asyncio.gather(*(row.sample(10, 60.0) for row in rows), return_exceptions=True)
        for row in rows:
            row.close()
        return found

    for deterministic in (True, False):
        assert [str(one) for one in asyncio.run(all_of_it(deterministic))] == ["broken"] * 3


def test_an_architecture_without_a_fast_path_is_said_once(
    other: Engine, parts: tuple[Any, Chat], capsys: pytest.CaptureFixture[str]
):
    Engine(other.model, parts[1], small_policy.device())
    sampler._printed.clear()
    Engine(other.model, parts[1], small_policy.device())
    Engine(other.model, parts[1], small_policy.device())
    assert (
        capsys.readouterr().out
        == "[sampler] uses the model's own forward, which is slower: no fast path for GemmaForCausalLM\n"
    )


# -- drawing ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("vocabulary", [2, 97, 1000])
def test_tokens_are_drawn_as_often_as_they_are_probable(vocabulary: int):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(vocabulary, generator=generator) * 3
    n = 100_000
    tokens, logprobs = sampler.draw(
        logits.expand(n // 10, -1), (torch.arange(n // 10) + torch.rand(n // 10, generator=generator)) / (n // 10)
    )
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1)[tokens])
    assert torch.equal(tokens, tokens.sort().values), "by inverse CDF: a larger number, a later token"
    random_tokens = torch.cat(
        [
            sampler.draw(logits.expand(10_000, -1), torch.rand(10_000, generator=generator))[0]
            for _ in range(n // 10_000)
        ]
    )
    expected_counts = torch.softmax(logits.double(), -1) * n
    often = expected_counts >= 10
    found = torch.bincount(random_tokens, minlength=vocabulary)
    observed, wanted = found[often].tolist(), expected_counts[often].tolist()
    if not often.all():
        observed, wanted = [*observed, found[~often].sum().item()], [*wanted, expected_counts[~often].sum().item()]
    assert chisquare(observed, wanted).pvalue > 1e-4


@pytest.mark.parametrize("uniform", [0.0, 1e-30, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("possible", [[0], [3493], [3480, 3493], [60, 61, 2000]])
def test_a_token_that_cannot_be_is_never_drawn(uniform: float, possible: list[int]):
    logits = torch.full((1, 3494), -torch.inf)
    logits[0, possible] = torch.arange(1.0, 1 + len(possible))
    tokens, logprobs = sampler.draw(logits, torch.tensor([uniform]))
    assert tokens.item() in possible
    assert torch.isfinite(logprobs).all()


def test_slots_are_used_again_by_the_next_session_only_once_theirs_is_gone_and_show_nothing_of_it(
    parts: tuple[Any, Chat],
):
    engine, fresh = Engine(*parts, small_policy.device()), Engine(*parts, small_policy.device())
    first = engine.session(PROMPTS, SEEDS, 1.0, 160)
    expected = [one.ids for one in fresh.session(PROMPTS, SEEDS, 1.0, 160).sample([0, 1, 2], 12)]
    assert [one.ids for one in first.sample([0, 1, 2], 12)] == expected
    slots = first._slots
    beside = engine.session(PROMPTS, SEEDS, 1.0, 160)
    beside.sample([0, 1, 2], 2)
    assert beside._slots is not slots
    slots = beside._slots
    del first, beside
    again = engine.session(PROMPTS, SEEDS, 1.0, 160)
    assert [one.ids for one in again.sample([0, 1, 2], 12)] == expected
    assert again._slots is slots


@pytest.mark.slow
def test_a_batchs_session_is_gone_with_its_dialogues_without_a_look_at_cycles(parts: tuple[Any, Chat]):
    """With it go its packed weights, which a learning step has no room for."""
    engine = Engine(*parts, small_policy.device(), deterministic=True)

    async def play() -> weakref.ref[Any]:
        rows = engine.open(PROMPTS, SEEDS, 1.0, 160)
        await asyncio.gather(*(row.sample(4, 60.0) for row in rows))
        for row in rows:
            row.close()
        return weakref.ref(rows[0]._batch.session)

    gc.collect()
    gc.disable()
    try:
        with LoopThread() as loop_thread:
            session = loop_thread.run(play())
            loop_thread.run(asyncio.sleep(0))
        assert session() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_slots_of_weights_that_gave_nan_are_not_used_again(parts: tuple[Any, Chat], temperature: float):
    """Rows that go on read slots as far as the longest of them."""
    model, chat = copy.deepcopy(parts[0]), parts[1]
    engine = Engine(model, chat, small_policy.device())

    def sampled_ids(temperature: float) -> list[tuple[int, ...]]:
        session = engine.session(PROMPTS, SEEDS, temperature, 160)
        first = session.sample([0, 1, 2], 12)
        for row, output in enumerate(("1", "some more words", "22")):
            session.append(row, [CALL], [output])
        return [one.ids for one in (*first, *session.sample([0, 1, 2], 12))]

    expected = sampled_ids(1.0)
    weight = model.model.layers[0].mlp.down_proj.weight
    before = weight.detach().clone()
    weight.data.fill_(float("nan"))
    with suppress(RuntimeError):  # no token can be drawn
        sampled_ids(temperature)
    weight.data.copy_(before)
    assert sampled_ids(1.0) == expected


# -- lower precision -------------------------------------------------------------------------------
@pytest.mark.skipif(not onednn.has_bfloat16(), reason="no bfloat16 here")
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_in_bfloat16_a_token_has_the_log_probability_that_it_was_drawn_with(
    parts: tuple[Any, Chat], temperature: float
):
    """Of both samplers, which share their weights, each says what it drew from."""
    exact = Engine(*parts, small_policy.device())
    low = exact.decoding_in("bfloat16")
    differences = []
    for engine in (low, exact):
        session = engine.session(PROMPTS, SEEDS, temperature, max_context_tokens=160)
        prompts = [list(ids) for ids in session.pending]
        for prompt, one in zip(prompts, session.sample([0, 1, 2], max_new=12), strict=True):
            ids = prompt + list(one.ids)
            policy = expected(exact, ids, len(prompt), temperature)
            differences.append(max(abs(a - b) for a, b in zip(one.logprobs, policy, strict=True)))
    low_ones, exact_ones = differences[:3], differences[3:]
    assert max(exact_ones) < 1e-4 < max(low_ones) < 0.2


@pytest.mark.skipif(not onednn.has_bfloat16(), reason="no bfloat16 here")
def test_two_samplers_of_one_model_do_not_share_what_they_keep(parts: tuple[Any, Chat]):
    exact = Engine(*parts, small_policy.device())
    low = exact.decoding_in("bfloat16")
    for engine in (exact, low, exact):
        engine.session(PROMPTS, SEEDS, 1.0, max_context_tokens=160).sample([0, 1, 2], max_new=4)
    assert low._held is not None
    assert exact._held is not None
    assert low._held[0] is not exact._held[0]


def test_a_model_without_a_fast_forward_is_not_sampled_in_bfloat16(other: Engine):
    with pytest.raises(UserError, match=r"train\.decoding = bfloat16 .* no fast forward\. Set it to float32"):
        other.decoding_in("bfloat16")
