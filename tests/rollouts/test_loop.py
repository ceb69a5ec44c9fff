"""The loop, with scripted policies against a real tool server: every way to end, and what each is
worth."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web

from rft import config, recipe
from rft.chat.dialogue import messages_of, opening
from rft.errors import ConfigError
from rft.grading.endpoint import EndpointGrader
from rft.reports import PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts import replay
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.policy import PolicyFailed
from rft.sampling.engine import Engine
from rft.sampling.kv_cache import Feed, Forward, Slots
from rft.sampling.remote.chat import ChatPolicy
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import Example, GradeStatus, Reading, StopReason, ToolCall, Trajectory
from rft.wire import contract as wire
from tests import small_policy, tiny_recipe
from tests.scripted_policy import CALL, Scripted, ScriptedTurn, scripted
from tests.scripted_server import scripted as serve

pytestmark = pytest.mark.usefixtures("ready_server")

PROMPT = PromptSettings(name="seed", system=" look it up", max_turns=4)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(scope="module")
def endpoint(ours: recipe.Recipe):
    with running(ours, config.Tools()) as endpoint:
        yield endpoint


def play(
    ours,
    endpoint,
    policy: Scripted,
    prompt: PromptSettings = PROMPT,
    examples: Sequence[Example] | None = None,
    **limits,
) -> list[Trajectory]:
    rows = examples or ours.examples("train", 2, 0)

    async def all_of_it() -> list[Trajectory]:
        conditions = Conditions(prompt, 1.0, (0,), config.Rollout(**limits))
        async with (
            ToolClient(endpoint, config.Tools(), schemas(ours)) as client,
            EndpointGrader(ours.grader, endpoint, config.Tools()) as grader,
        ):
            return await run_rollouts(policy, client, grader, [Request(row, 0) for row in rows], conditions, {})

    return asyncio.run(all_of_it())


def test_looks_up_answers_and_is_graded(ours, endpoint):
    one = ours.examples("train", 1, 0)
    (done,) = play(ours, endpoint, scripted(CALL % " {key}", one[0].target), examples=one)
    assert (done.stop_reason, done.reward, done.grade.solved) == (StopReason.completed, 1.0, True)
    assert done.turns[0].results[0].output == one[0].target
    roles = [message["role"] for message in messages_of(done, one[0], PROMPT)]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high", "paid"), [(0, 5, 2.5), (1, 5, 3.0), (-2, 2, 0.0)])
def test_a_budget_takes_from_what_was_earned_on_the_graders_own_scale(
    tmp_path: Path, low: float, high: float, paid: float
):
    scaled = recipe.load(config.Recipe(path=str(tiny_recipe.rescale(tiny_recipe.make(tmp_path), low, high))))
    one = scaled.examples("train", 1, 0)
    budget = config.Budget(tool_calls=1, weight=0.5)
    with running(scaled, config.Tools()) as endpoint:
        for answer, rewards in ((one[0].target, [high, high, paid]), ("none", [low] * 3)):
            for calls, expected in enumerate(rewards):
                (done,) = play(
                    scaled, endpoint, scripted(*[CALL % " k0001"] * calls, answer), examples=one, budget=budget
                )
                assert (done.reward, done.grade.solved) == (expected, answer == one[0].target)


@pytest.mark.parametrize(
    ("policy", "limits", "reason"),
    [
        (scripted(ScriptedTurn("cut", ended=False)), {}, StopReason.max_tokens),
        (scripted("<tool_call>\n{oops"), {}, StopReason.parse_error),
        (scripted("0000"), {}, StopReason.completed),
        (scripted(f"{CALL % ' k0001'}\n{CALL % ' k0002'}"), {"max_tool_calls": 1}, StopReason.max_tool_calls),
        (scripted(CALL % " k0001"), {}, StopReason.max_turns),
        (scripted(CALL % " k0001", room=0), {}, StopReason.max_tokens),
    ],
)
def test_what_the_policy_caused_is_graded(ours, endpoint, policy, limits, reason):
    for done in play(ours, endpoint, policy, **limits):
        assert done.stop_reason == reason
        assert done.reward == 0.0


@pytest.mark.parametrize(("asked", "allowed", "turns"), [(None, 10, 10), (None, 2, 2), (3, 10, 3), (10, 10, 10)])
def test_a_prompt_may_lower_the_number_of_turns(ours, endpoint, asked: int | None, allowed: int, turns: int):
    prompt = PROMPT.model_copy(update={"max_turns": asked})
    done = play(ours, endpoint, scripted(CALL % " k0001"), prompt, max_turns=allowed)[0]
    assert (done.stop_reason, len(done.turns)) == (StopReason.max_turns, turns)


def test_a_prompt_that_asks_for_more_turns_is_refused_before_anything_is_sampled(ours, endpoint):
    policy = scripted("0000")
    with pytest.raises(ConfigError, match=r"max_turns of 'seed' is 4, and rollout\.max_turns = 3 in params\.yaml"):
        play(ours, endpoint, policy, max_turns=3)
    assert policy.opened == 0


@pytest.mark.slow
def test_a_dead_tool_is_never_a_zero(ours):
    with running(ours, config.Tools()) as endpoint:
        broken = replace(endpoint, url=endpoint.url + "/nowhere")
        done = play(ours, endpoint, scripted(CALL % " k0001", "0000"))
        assert all(one.reward is not None for one in done)

        async def with_broken_tools() -> list[Trajectory]:
            tools = config.Tools(server_url="http://127.0.0.1:9", version="1", retries=0, timeout_s=2)
            dead = replace(broken, url="http://127.0.0.1:9", raise_if_dead=lambda: None)
            conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout())
            async with (
                ToolClient(dead, tools, schemas(ours)) as client,
                EndpointGrader(ours.grader, endpoint, tools) as grader,
            ):
                rows = [Request(row, 0) for row in ours.examples("train", 2, 0)]
                return await run_rollouts(scripted(CALL % " k0001", "0000"), client, grader, rows, conditions, {})

        for one in asyncio.run(with_broken_tools()):
            assert (one.stop_reason, one.reward, one.grade.score) == (StopReason.tool_error, None, None)


def test_a_repeated_call_can_be_answered_without_being_sent(ours, endpoint):
    policy = scripted(CALL % " k0001", CALL % " k0001", "0000")
    done = play(ours, endpoint, policy, PROMPT.model_copy(update={"block_repeated_calls": True}))
    assert not done[0].turns[0].results[0].is_error
    assert done[0].turns[1].results[0].is_error
    assert "made before" in done[0].turns[1].results[0].output


def test_the_prompt_replaces_the_rows_own_system_message():
    example = Example("n", ({"role": "system", "content": "old"}, {"role": "user", "content": "q"}), "t")
    assert opening(example, PROMPT)[0]["content"] == " look it up"
    assert opening(example, PROMPT.model_copy(update={"system": ""}))[0]["content"] == "old"


def test_rollout_ids_are_a_function_of_the_seed(ours, endpoint):
    first, again = (play(ours, endpoint, scripted("0000")) for _ in range(2))
    assert [one.rollout_id for one in first] == [one.rollout_id for one in again]
    assert len({one.rollout_id for one in first}) == len(first)


def test_defaults_of_the_prompt_reach_the_tool(ours, endpoint):
    prompt = PROMPT.model_copy(update={"tool_defaults": {"lookup": {"spaces": 3}}})
    assert (
        play(ours, endpoint, scripted(CALL % " k0001", "0000"), prompt)[0].turns[0].results[0].output.startswith("   ")
    )


def test_good_calls_beside_a_broken_one_are_made_and_the_policy_hears_of_the_error(ours, endpoint):
    key, target = (
        ours.examples("train", 1, 0)[0].messages[-1]["content"].split()[-1].rstrip("?"),
        ours.examples("train", 1, 0)[0].target,
    )
    good, bad = (
        ToolCall("call_0_0", "lookup", f'{{"key": "{key}"}}'),
        ToolCall("call_0_1", "lookup", "{oops", problem="the arguments are not JSON"),
    )
    turn = ScriptedTurn("two calls", reading=Reading("", (good, bad)))
    told = play(ours, endpoint, scripted(turn, target))[0]
    assert (told.stop_reason, told.reward) == (StopReason.completed, 1.0)
    assert [result.is_error for result in told.turns[0].results] == [False, True]
    assert "not JSON" in told.turns[0].results[1].output


@pytest.mark.parametrize(("allowed", "told"), [(0, 0), (1, 1), (3, 3)])
def test_one_unreadable_call_more_than_allowed_ends_the_rollout(ours, endpoint, allowed: int, told: int):
    def broken(n: int) -> ScriptedTurn:
        return ScriptedTurn(
            "a call",
            reading=Reading("", (ToolCall(f"call_{n}_0", "lookup", "{oops", problem=f"call {n} is not JSON"),)),
        )

    policy = scripted(*map(broken, range(9)))
    done = play(
        ours, endpoint, policy, PROMPT.model_copy(update={"max_turns": 9}), max_turns=9, max_unreadable_calls=allowed
    )[0]
    assert (done.stop_reason, done.reward) == (StopReason.parse_error, 0.0)
    assert [[result.output for result in turn.results] for turn in done.turns] == [
        [f"Error: call {n} is not JSON"] for n in range(told)
    ] + [[]]
    assert done.turns[-1].calls == (), "the turn that ends a rollout so has no calls on record"


def test_unreadable_calls_of_one_turn_count_together(ours, endpoint):
    calls = tuple(ToolCall(f"call_0_{n}", "lookup", "{oops", problem=f"call {n} is not JSON") for n in range(3))
    turn = ScriptedTurn("three calls", reading=Reading("", calls))
    assert play(ours, endpoint, scripted(turn, "0000"), max_unreadable_calls=3)[0].stop_reason is StopReason.completed
    assert play(ours, endpoint, scripted(turn, "0000"), max_unreadable_calls=2)[0].stop_reason is StopReason.parse_error


def test_a_broken_message_ends_the_rollout_however_many_unreadable_calls_are_allowed(ours, endpoint):
    for done in play(ours, endpoint, scripted("<tool_call>\n{oops", "0000"), max_unreadable_calls=9):
        assert done.stop_reason is StopReason.parse_error


def test_a_turn_that_the_policy_spent_sampling_is_graded(ours, endpoint):
    for done in play(ours, endpoint, scripted(ScriptedTurn("0000", takes_s=0.05)), turn_deadline_s=0.01):
        assert (done.stop_reason, done.reward) == (StopReason.timeout, 0.0)


def test_the_rollouts_deadline_spent_in_its_own_sampling_is_graded(ours, endpoint):
    slow = scripted(ScriptedTurn(CALL % " k0001", takes_s=0.15), ScriptedTurn("0000", takes_s=30))
    for done in play(ours, endpoint, slow, deadline_s=0.25):
        assert (done.stop_reason, done.reward) == (StopReason.timeout, 0.0)


def test_an_endless_turn_is_graded_and_what_was_said_of_it_is_kept(ours, endpoint):
    for limits in ({"turn_deadline_s": 0.1}, {"deadline_s": 0.1}):
        for done in play(
            ours,
            endpoint,
            scripted(ScriptedTurn("and so on and so", takes_s=30, ids=(1, 2), logprobs=(-1.0, -2.0))),
            **limits,
        ):
            assert (done.stop_reason, done.reward) == (StopReason.timeout, 0.0)
            assert (done.final_text, done.turns[0].token_ids, done.turns[0].logprobs) == (
                "and so on and so",
                (1, 2),
                (-1.0, -2.0),
            )
            assert done.wall_s < 5


@pytest.mark.parametrize(("tool_s", "reason"), [(0.05, StopReason.timeout), (0.5, StopReason.tool_error)])
def test_who_spent_at_least_half_of_the_deadline_is_to_blame(ours, tool_s: float, reason: StopReason):
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0 if request.path == "/grade" else tool_s)
        return web.json_response({"score": 0.0, "output": "4711"})

    async def all_of_it() -> Trajectory:
        conditions, section = Conditions(PROMPT, 1.0, (0,), config.Rollout(deadline_s=0.7)), config.Tools()
        async with (
            serve(slow) as server,
            ToolClient(server.endpoint, section, schemas(ours)) as client,
            EndpointGrader(ours.grader, server.endpoint, section) as grader,
        ):
            policy = scripted(CALL % " k0001", ScriptedTurn("and so on", takes_s=30))
            return (
                await run_rollouts(
                    policy, client, grader, [Request(ours.examples("train", 1, 0)[0], 0)], conditions, {}
                )
            )[0]

    done = asyncio.run(all_of_it())
    assert (done.stop_reason, done.reward) == (reason, 0.0 if reason is StopReason.timeout else None)
    assert done.final_text == "and so on"


# -- whose time it is, with a model sampled here ---------------------------------------------------
class Slow:
    """A forward that takes so long for each row of a step and of a prefill."""

    def __init__(self, inner: Forward, row_s: float):
        self.inner, self.row_s = inner, row_s

    def begun(self) -> Slow:
        return self

    def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor:
        time.sleep(self.row_s * len(feeds))
        return self.inner.prefill(slots, feeds)

    def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
        time.sleep(self.row_s * len(ids_B))
        return self.inner.step(slots, ids_B, positions_B, visible)


@pytest.fixture(scope="module")
def parts(ours: recipe.Recipe) -> tuple[Any, Any]:
    return small_policy.build(ours.folder, structured=False)


def sampled_here(
    ours,
    endpoint,
    parts,
    deterministic: bool,
    slots: int | None,
    row_s: float,
    count: int,
    times: dict[str, float] | None = None,
    **limits: Any,
) -> list[Trajectory]:
    """A policy that was never trained: it babbles until something stops it."""
    engine = Engine(*parts, small_policy.device(), deterministic, slots)
    engine.forward = Slow(engine.forward, row_s)

    async def all_of_it() -> list[Trajectory]:
        conditions = Conditions(
            PROMPT.model_copy(update={"system": ""}), 1.0, (0,), config.Rollout(max_tokens=200, **limits)
        )
        async with (
            ToolClient(endpoint, config.Tools(), schemas(ours)) as client,
            EndpointGrader(ours.grader, endpoint, config.Tools()) as grader,
        ):
            requests = [Request(row, 0) for row in ours.examples("train", count, 0)]
            return await run_rollouts(engine, client, grader, requests, conditions, {} if times is None else times)

    return asyncio.run(all_of_it())


MODES = [(True, None), (True, 2), (False, None), (False, 2)]


@pytest.mark.parametrize(("deterministic", "slots"), MODES)
@pytest.mark.parametrize("deadline", ["turn_deadline_s", "deadline_s"])
def test_an_endless_turn_is_cut_at_its_deadline_and_keeps_its_tokens(
    ours, endpoint, parts, deterministic: bool, slots: int | None, deadline: str
):
    whole = sampled_here(ours, endpoint, parts, True, None, 0.0, 3, max_turn_tokens=100)
    limits: dict[str, Any] = {"max_turn_tokens": 100, deadline: 0.1}
    for one, uncut in zip(
        sampled_here(ours, endpoint, parts, deterministic, slots, 0.01, 3, **limits), whole, strict=True
    ):
        assert (one.stop_reason, one.reward) == (StopReason.timeout, 0.0)
        (turn,) = one.turns
        assert 0 < len(turn.token_ids) <= 11 < len(uncut.turns[0].token_ids)
        assert turn.token_ids == uncut.turns[0].token_ids[: len(turn.token_ids)]
        assert turn.logprobs == pytest.approx(uncut.turns[0].logprobs[: len(turn.token_ids)], abs=1e-5)
        assert turn.text
        assert turn.prompt_ids == uncut.turns[0].prompt_ids


@pytest.mark.slow
@pytest.mark.parametrize(("deterministic", "slots"), MODES)
def test_a_crowded_sampler_is_not_charged_to_the_policy(ours, endpoint, parts, deterministic: bool, slots: int | None):
    """Each row needs a fifth of its deadlines, all of them together twice as much."""
    times: dict[str, float] = {}
    done = sampled_here(
        ours,
        endpoint,
        parts,
        deterministic,
        slots,
        0.02,
        10,
        times,
        max_turn_tokens=8,
        turn_deadline_s=0.7,
        deadline_s=0.7,
    )
    assert times["sampling"] > 1.4 > 4 * times["tools"]
    assert {one.stop_reason for one in done} == {StopReason.max_tokens}
    assert {len(one.turns[0].token_ids) for one in done} == {8}
    assert all(one.reward == 0.0 for one in done)


def test_the_rollouts_deadline_spent_waiting_for_a_server_is_infrastructure(ours, endpoint):
    async def hangs(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.json_response({})

    async def all_of_it() -> Trajectory:
        conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout(deadline_s=0.3, max_tokens=100))
        async with serve(hangs) as server:
            section = config.PolicyServer(kind="chat", url=server.endpoint.url, model="m")
            async with (
                ChatPolicy(section, schemas(ours)) as policy,
                ToolClient(endpoint, config.Tools(), schemas(ours)) as client,
                EndpointGrader(ours.grader, endpoint, config.Tools()) as grader,
            ):
                return (
                    await run_rollouts(
                        policy, client, grader, [Request(ours.examples("train", 1, 0)[0], 0)], conditions, {}
                    )
                )[0]

    done = asyncio.run(all_of_it())
    assert (done.stop_reason, done.reward) == (StopReason.sampler_error, None)
    assert "rollout.deadline_s = 0.3 s passed" in done.grade.explanation
    assert done.wall_s < 5


def test_the_rollouts_deadline_spent_waiting_for_tools_is_infrastructure(ours):
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0 if request.path == "/grade" else 30)
        return web.json_response({"score": 0.0})

    async def all_of_it() -> list[Trajectory]:
        conditions, section = Conditions(PROMPT, 1.0, (0,), config.Rollout(deadline_s=0.3)), config.Tools()
        async with (
            serve(slow) as server,
            ToolClient(server.endpoint, section, schemas(ours)) as client,
            EndpointGrader(ours.grader, server.endpoint, section) as grader,
        ):
            requests = [Request(row, 0) for row in ours.examples("train", 2, 0)]
            return await run_rollouts(scripted(CALL % " k0001", "0000"), client, grader, requests, conditions, {})

    for done in asyncio.run(all_of_it()):
        assert (done.stop_reason, done.reward, done.grade.status) == (
            StopReason.tool_error,
            None,
            GradeStatus.infra_error,
        )
        assert "rollout.deadline_s" in done.grade.explanation
        assert [(turn.calls[0].name, turn.results[0].failed) for turn in done.turns] == [("lookup", True)], (
            "the call that hung is on record"
        )


def test_a_straggler_is_cut_by_the_batchs_deadline_and_never_scored(ours, endpoint):
    policy = scripted("0000")
    policy.choose = lambda n: ("0000",) if n else (ScriptedTurn("0000", takes_s=30),)
    cut, done = play(ours, endpoint, policy, group_deadline_s=0.3)
    assert (cut.stop_reason, cut.reward) == (StopReason.cancelled, None)
    assert done.stop_reason is StopReason.completed
    assert done.reward is not None


@pytest.mark.parametrize(("blocks", "order"), [(False, ["quick", "slow"]), (True, ["slow", "quick"])])
def test_a_rollout_is_told_of_when_it_has_its_grade(ours, endpoint, blocks: bool, order: list[str]):
    """Behind the barrier that is the end of the batch, for all in one go and in order."""
    rows = [replace(row, id=name) for name, row in zip(("slow", "quick"), ours.examples("train", 2, 0), strict=True)]
    told: list[tuple[str, int]] = []
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def all_of_it() -> list[Trajectory]:
        conditions, policy = Conditions(PROMPT, 1.0, (0,), config.Rollout()), Scripted(("0000",), blocks=blocks)
        policy.choose = lambda n: ("0000",) if n else (ScriptedTurn("0000", takes_s=0.2),)
        ticking = asyncio.create_task(tick())
        async with (
            ToolClient(endpoint, config.Tools(), schemas(ours)) as client,
            EndpointGrader(ours.grader, endpoint, config.Tools()) as grader,
        ):
            requests = [Request(row, 0) for row in rows]
            done = await run_rollouts(
                policy,
                client,
                grader,
                requests,
                conditions,
                {},
                lambda one, record: told.append((record.example_id, ticks)),
            )
        ticking.cancel()
        return done

    done = asyncio.run(all_of_it())
    assert [name for name, _ in told] == order
    assert (told[0][1] == told[1][1]) == blocks
    assert all(one.reward == 0.0 for one in done)


def test_a_rollout_cut_while_its_end_is_announced_keeps_its_grade_and_its_time(ours):
    async def hangs(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30 if request.path == "/end" else 0)
        return web.json_response({"score": 1.0, "output": "4711"})

    async def all_of_it() -> list[Trajectory]:
        async with serve(hangs) as server:
            section = config.Tools(lifecycle=config.Lifecycle(end_url=f"{server.endpoint.url}/end"))
            async with (
                ToolClient(server.endpoint, section, schemas(ours)) as client,
                EndpointGrader(ours.grader, server.endpoint, section) as grader,
            ):
                conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout(group_deadline_s=0.4))
                requests = [Request(row, 0) for row in ours.examples("train", 1, 0)]
                return await run_rollouts(
                    scripted(ScriptedTurn("0000", takes_s=0.1)), client, grader, requests, conditions, {}
                )

    (done,) = asyncio.run(all_of_it())
    assert (done.stop_reason, done.reward) == (StopReason.completed, 1.0)
    assert 0.1 <= done.wall_s < 0.4


def test_a_policy_that_fails_is_never_a_zero(ours, endpoint):
    for done in play(ours, endpoint, scripted(ScriptedTurn("", fails=PolicyFailed("the server said 500")))):
        assert (done.stop_reason, done.reward) == (StopReason.sampler_error, None)
        assert "500" in done.grade.explanation


def test_a_context_that_does_not_continue_ours_is_a_fork(ours, endpoint):
    call = ScriptedTurn(CALL % " k0001", ids=(3, 4), logprobs=(-1.0, -1.0), context_ids=(1, 2))
    good = ScriptedTurn("0000", ids=(9,), logprobs=(-1.0,), context_ids=(1, 2, 3, 4, 5))
    whole = play(ours, endpoint, scripted(call, good))[0]
    assert (whole.num_forks, whole.turns[1].prompt_ids) == (0, (5,))
    fork = ScriptedTurn("0000", ids=(9,), logprobs=(-1.0,), context_ids=(1, 2, 3, 7, 5))
    assert play(ours, endpoint, scripted(call, fork))[0].num_forks == 1


def test_reasoning_is_kept_and_not_graded(ours, endpoint):
    target = ours.examples("train", 1, 0)[0].target
    turn = ScriptedTurn(f"<think>hm</think>{target}", reading=Reading(target, reasoning="hm"))
    done = play(ours, endpoint, scripted(turn))[0]
    assert done.reward == 1.0
    assert messages_of(done, ours.examples("train", 1, 0)[0], PROMPT)[-1] == {
        "role": "assistant",
        "content": target,
        "reasoning_content": "hm",
    }


# -- terminal tools --------------------------------------------------------------------------------
SUBMIT = config.Traits(terminal=True)
ANSWER = '{"key": "k0001"}'


def lookups(*keys: str, number: int = 0) -> ScriptedTurn:
    calls = tuple(ToolCall(f"call_{number}_{n}", "lookup", json.dumps({"key": key})) for n, key in enumerate(keys))
    return ScriptedTurn("<calls>", reading=Reading("I am done.", calls))


async def _tool(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Grades 0.5; of the keys it refuses `bad` and fails for `ill`, and it hangs for `slow`."""
    if request.path == "/grade":
        return web.json_response({"score": 0.5})
    key = json.loads(body["arguments"])["key"]
    if key == "slow":
        await asyncio.sleep(30)
    status = {"bad": 422, "ill": 500}.get(key, 200)
    return web.json_response({"output": f"{key}: no such key" if key == "bad" else "taken"}, status=status)


def submit(
    ours, *turns: str | ScriptedTurn, section: Callable[[str], dict[str, Any]] | None = None, **limits: Any
) -> tuple[Trajectory, list[dict[str, Any]], Example]:
    """With the tool lookup as a terminal one: the rollout, what the grader was sent, and the
    example."""
    (row,) = ours.examples("train", 1, 0)
    policy = scripted(*turns)

    async def all_of_it() -> tuple[Trajectory, list[dict[str, Any]], Example]:
        async with serve(_tool) as server:
            tools = config.Tools.model_validate(
                {"retries": 0, **({"traits": {"lookup": SUBMIT}} if section is None else section(server.endpoint.url))}
            )
            async with (
                ToolClient(server.endpoint, tools, schemas(ours)) as client,
                EndpointGrader(ours.grader, server.endpoint, tools) as grader,
            ):
                conditions = Conditions(
                    PROMPT.model_copy(update={"max_turns": None}), 1.0, (0,), config.Rollout(**limits)
                )
                (done,) = await run_rollouts(policy, client, grader, [Request(row, 0)], conditions, {})
            return done, [body for body, path in zip(server.bodies, server.paths, strict=True) if path == "/grade"], row

    return asyncio.run(all_of_it())


def own_entry(url: str) -> dict[str, Any]:
    return {"endpoints": [{"name": "lookup", "server_url": f"{url}/tools/lookup", "terminal": True}]}


@pytest.mark.parametrize("section", [None, own_entry])
@pytest.mark.parametrize("max_turns", [1, 8])
def test_a_terminal_tool_ends_the_rollout_and_its_arguments_are_the_answer(ours, section, max_turns: int):
    done, (graded,), _ = submit(ours, lookups("k0001"), "0000", section=section, max_turns=max_turns)
    assert (done.stop_reason, done.reward, len(done.turns), done.final_text) == (StopReason.completed, 0.5, 1, ANSWER)
    assert done.turns[0].results[0].output == "taken"
    sample = graded["sample"]
    assert (sample["output_text"], sample["stop_reason"], sample["num_tool_calls"]) == (ANSWER, "completed", 1)
    assert (sample["choices"][0]["message"]["content"], sample["choices"][0]["finish_reason"]) == (ANSWER, "stop")
    assert sample["output_tools"] == [
        {"id": "call_0_0", "type": "function", "function": {"name": "lookup", "arguments": ANSWER}}
    ]


def test_without_the_trait_the_rollout_goes_on(ours):
    done, (graded,), _ = submit(ours, lookups("k0001"), "0000", section=lambda url: {})
    assert (len(done.turns), graded["sample"]["output_text"]) == (2, "0000")


def test_what_a_terminal_tool_refuses_goes_to_the_policy(ours):
    wrong = ScriptedTurn("<calls>", reading=Reading("", (ToolCall("call_0_0", "lookup", '{"kee": 1}'),)))
    done, (graded,), _ = submit(ours, wrong, lookups("bad", number=1), lookups("k0001", number=2))
    assert [turn.results[0].is_error for turn in done.turns] == [True, True, False]
    assert done.turns[1].results[0].output == "bad: no such key"
    assert (done.stop_reason, graded["sample"]["output_text"]) == (StopReason.completed, ANSWER)


@pytest.mark.parametrize("turn", [lookups("ill"), lookups("ill", "k0001"), lookups("bad", "ill")])
def test_a_terminal_tool_that_fails_leaves_the_rollout_unscored(ours, turn: ScriptedTurn):
    done, graded, _ = submit(ours, turn)
    assert (done.stop_reason, done.reward, graded) == (StopReason.tool_error, None, [])
    assert done.grade.explanation.startswith("the terminal tool lookup failed: HTTP 500")


def test_a_terminal_tool_that_hangs_leaves_the_rollout_unscored(ours):
    done, graded, _ = submit(ours, lookups("slow"), deadline_s=0.3)
    assert (done.stop_reason, done.reward, graded) == (StopReason.tool_error, None, [])
    assert done.grade.explanation == "the terminal tool lookup failed: no reply: rollout.deadline_s = 0.3 s passed"


@pytest.mark.parametrize(
    ("others", "failed"), [(("k0002",), [False, False]), (("bad",), [False, False]), (("ill",), [False, True])]
)
def test_the_first_terminal_call_is_the_answer_and_the_others_are_made(
    ours, others: tuple[str, ...], failed: list[bool]
):
    done, (graded,), _ = submit(ours, lookups("k0001", *others))
    assert (done.stop_reason, graded["sample"]["output_text"], graded["sample"]["num_tool_calls"]) == (
        StopReason.completed,
        ANSWER,
        2,
    )
    assert [result.failed for result in done.turns[0].results] == failed


def test_an_answer_that_was_taken_stands_whatever_hangs_beside_it(ours):
    """Else calling something slow beside the answer would be a way out of being graded."""
    done, (graded,), _ = submit(ours, lookups("k0001", "slow"), deadline_s=0.5)
    assert (done.stop_reason, done.reward, graded["sample"]["output_text"]) == (StopReason.completed, 0.5, ANSWER)
    assert [(result.output, result.failed) for result in done.turns[0].results] == [
        ("taken", False),
        ("no reply: rollout.deadline_s = 0.5 s passed", True),
    ]


def test_what_was_said_beside_the_answer_is_kept(ours):
    done, (graded,), example = submit(ours, lookups("k0001"))
    assert graded["sample"]["trajectory"][0]["content"] == "I am done."
    message = messages_of(done, example, PROMPT)[-2]
    assert (message["content"], message["submitted"]) == ("I am done.", ANSWER)


def test_a_stored_rollout_gives_a_grader_the_terminal_answer_again(ours):
    done, (graded,), example = submit(ours, lookups("bad", "k0001"))
    row = rollout_log.row(done, example, 0, PROMPT, "train", "challenger")
    for message in graded["sample"]["trajectory"]:
        message |= {"latency_s": None} if message["role"] == "tool" else {}  # wall times are in no log
    assert wire.sample(replay.turns(row), StopReason(row.stop_reason)) == graded["sample"]
    _, restored = rollout_log.restored(row, rollout_log.turns_json(done), done.wall_s)
    assert restored == done
