"""The loop, with scripted policies against a real tool server: every way to end, and what each is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rft import config, recipe
from rft.graders import EndpointGrader
from rft.reports import PromptSettings
from rft.rollout import Conditions, PolicyFailed, Request, messages_of, opening, run_rollouts
from rft.server import running
from rft.tools import ToolClient, schemas
from rft.types import Example, GradeStatus, Reading, StopReason, ToolCall, Trajectory
from tests import tiny_recipe
from tests.scripted_policy import CALL, Said, Scripted, scripted
from tests.scripted_server import scripted as serve

PROMPT = PromptSettings(name="seed", system=" look it up", max_turns=4)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(scope="module")
def endpoint(ours: recipe.Recipe):
    with running(ours, config.Tools()) as endpoint:
        yield endpoint


def play(ours, endpoint, policy: Scripted, prompt: PromptSettings = PROMPT, examples: Sequence[Example] | None = None, **limits) -> list[Trajectory]:
    rows = examples or ours.examples("train", 2, 0)

    async def all_of_it() -> list[Trajectory]:
        conditions = Conditions(prompt, 1.0, (0,), config.Rollout(**limits))
        async with ToolClient(endpoint, config.Tools(), schemas(ours)) as client, EndpointGrader(ours.grader, endpoint, config.Tools()) as grader:
            return await run_rollouts(policy, client, grader, [Request(row, 0) for row in rows], conditions, {})

    return asyncio.run(all_of_it())


def test_looks_up_answers_and_is_graded(ours, endpoint):
    one = ours.examples("train", 1, 0)
    (done,) = play(ours, endpoint, scripted(CALL % " {key}", one[0].target), examples=one)
    assert (done.stop_reason, done.reward, done.grade.solved) == (StopReason.completed, 1.0, True)
    assert done.turns[0].results[0].output == one[0].target
    roles = [message["role"] for message in messages_of(done, one[0], PROMPT)]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(("low", "high", "paid"), [(0, 5, 2.5), (1, 5, 3.0), (-2, 2, 0.0)])
def test_a_budget_takes_from_what_was_earned_on_the_graders_own_scale(tmp_path: Path, low: float, high: float, paid: float):
    scaled = recipe.load(config.Recipe(path=str(tiny_recipe.rescale(tiny_recipe.make(tmp_path), low, high))))
    one = scaled.examples("train", 1, 0)
    budget = config.Budget(tool_calls=1, weight=0.5)
    with running(scaled, config.Tools()) as endpoint:
        for answer, rewards in ((one[0].target, [high, high, paid]), ("none", [low] * 3)):
            for calls, expected in enumerate(rewards):
                (done,) = play(scaled, endpoint, scripted(*[CALL % " k0001"] * calls, answer), examples=one, budget=budget)
                assert (done.reward, done.grade.solved) == (expected, answer == one[0].target)


@pytest.mark.parametrize(
    ("policy", "limits", "reason"),
    [
        (scripted(Said("cut", ended=False)), {}, StopReason.max_tokens),
        (scripted("<tool_call>\n{oops"), {}, StopReason.parse_error),
        (scripted("0000"), {}, StopReason.completed),
        (scripted(f"{CALL % ' k0001'}\n{CALL % ' k0002'}"), {"max_tool_calls": 1}, StopReason.max_tool_calls),
        (scripted(CALL % " k0001"), {}, StopReason.max_turns),
        (scripted(CALL % " k0001"), {"max_turns": 2}, StopReason.max_turns),
        (scripted(CALL % " k0001", room=0), {}, StopReason.max_tokens),
    ],
)
def test_what_the_policy_caused_is_graded(ours, endpoint, policy, limits, reason):
    for done in play(ours, endpoint, policy, **limits):
        assert done.stop_reason == reason
        assert done.reward == 0.0


def test_a_dead_tool_is_never_a_zero(ours):
    with running(ours, config.Tools()) as endpoint:
        broken = replace(endpoint, url=endpoint.url + "/nowhere")
        done = play(ours, endpoint, scripted(CALL % " k0001", "0000"))
        assert all(one.reward is not None for one in done)

        async def with_broken_tools() -> list[Trajectory]:
            tools = config.Tools(server_url="http://127.0.0.1:9", version="1", retries=0, timeout_s=2)
            dead = replace(broken, url="http://127.0.0.1:9", raise_if_dead=lambda: None)
            conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout())
            async with ToolClient(dead, tools, schemas(ours)) as client, EndpointGrader(ours.grader, endpoint, tools) as grader:
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


def test_trace_ids_are_a_function_of_the_seed(ours, endpoint):
    first, again = (play(ours, endpoint, scripted("0000")) for _ in range(2))
    assert [one.trace_id for one in first] == [one.trace_id for one in again]
    assert len({one.trace_id for one in first}) == len(first)


def test_defaults_of_the_prompt_reach_the_tool(ours, endpoint):
    prompt = PROMPT.model_copy(update={"tool_defaults": {"lookup": {"spaces": 3}}})
    assert play(ours, endpoint, scripted(CALL % " k0001", "0000"), prompt)[0].turns[0].results[0].output.startswith("   ")


def test_good_calls_beside_a_broken_one_are_made_and_the_policy_hears_of_the_error(ours, endpoint):
    key, target = ours.examples("train", 1, 0)[0].messages[-1]["content"].split()[-1].rstrip("?"), ours.examples("train", 1, 0)[0].target
    good, bad = ToolCall("call_0_0", "lookup", f'{{"key": "{key}"}}'), ToolCall("call_0_1", "lookup", "{oops", problem="the arguments are not JSON")
    turn = Said("two calls", reading=Reading("", (good, bad)))
    told = play(ours, endpoint, scripted(turn, target), on_parse_error="tell")[0]
    assert (told.stop_reason, told.reward) == (StopReason.completed, 1.0)
    assert [result.is_error for result in told.turns[0].results] == [False, True]
    assert "not JSON" in told.turns[0].results[1].output
    assert play(ours, endpoint, scripted(turn, target))[0].stop_reason is StopReason.parse_error


def test_a_turn_that_the_policy_spent_sampling_is_graded(ours, endpoint):
    for done in play(ours, endpoint, scripted(Said("0000", takes_s=0.05)), turn_deadline_s=0.01):
        assert (done.stop_reason, done.reward) == (StopReason.timeout, 0.0)


def test_the_rollouts_deadline_spent_in_its_own_sampling_is_graded(ours, endpoint):
    slow = scripted(Said(CALL % " k0001", takes_s=0.15), Said("0000", takes_s=30))
    for done in play(ours, endpoint, slow, deadline_s=0.25):
        assert (done.stop_reason, done.reward) == (StopReason.timeout, 0.0)


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
        assert (done.stop_reason, done.reward, done.grade.status) == (StopReason.tool_error, None, GradeStatus.infra_error)
        assert "rollout.deadline_s" in done.grade.explanation
        assert [(turn.calls[0].name, turn.results[0].failed) for turn in done.turns] == [("lookup", True)], "the call that hung is on record"


def test_a_straggler_is_cut_by_the_batchs_deadline_and_never_scored(ours, endpoint):
    policy = scripted("0000")
    policy.choose = lambda n: ("0000",) if n else (Said("0000", takes_s=30),)
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
        policy.choose = lambda n: ("0000",) if n else (Said("0000", takes_s=0.2),)
        ticking = asyncio.create_task(tick())
        async with ToolClient(endpoint, config.Tools(), schemas(ours)) as client, EndpointGrader(ours.grader, endpoint, config.Tools()) as grader:
            requests = [Request(row, 0) for row in rows]
            done = await run_rollouts(policy, client, grader, requests, conditions, {}, lambda one, record: told.append((record.example_id, ticks)))
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
            async with ToolClient(server.endpoint, section, schemas(ours)) as client, EndpointGrader(ours.grader, server.endpoint, section) as grader:
                conditions = Conditions(PROMPT, 1.0, (0,), config.Rollout(group_deadline_s=0.4))
                requests = [Request(row, 0) for row in ours.examples("train", 1, 0)]
                return await run_rollouts(scripted(Said("0000", takes_s=0.1)), client, grader, requests, conditions, {})

    (done,) = asyncio.run(all_of_it())
    assert (done.stop_reason, done.reward) == (StopReason.completed, 1.0)
    assert 0.1 <= done.wall_s < 0.4


def test_a_policy_that_fails_is_never_a_zero(ours, endpoint):
    for done in play(ours, endpoint, scripted(Said("", fails=PolicyFailed("the server said 500")))):
        assert (done.stop_reason, done.reward) == (StopReason.policy_error, None)
        assert "500" in done.grade.explanation


def test_a_context_that_does_not_continue_ours_is_a_fork(ours, endpoint):
    call = Said(CALL % " k0001", ids=(3, 4), logprobs=(-1.0, -1.0), context_ids=(1, 2))
    good = Said("0000", ids=(9,), logprobs=(-1.0,), context_ids=(1, 2, 3, 4, 5))
    whole = play(ours, endpoint, scripted(call, good))[0]
    assert (whole.num_forks, whole.turns[1].prompt_ids) == (0, (5,))
    fork = Said("0000", ids=(9,), logprobs=(-1.0,), context_ids=(1, 2, 3, 7, 5))
    assert play(ours, endpoint, scripted(call, fork))[0].num_forks == 1


def test_reasoning_is_kept_and_not_graded(ours, endpoint):
    target = ours.examples("train", 1, 0)[0].target
    said = Said(f"<think>hm</think>{target}", reading=Reading(target, reasoning="hm"))
    done = play(ours, endpoint, scripted(said))[0]
    assert done.reward == 1.0
    assert messages_of(done, ours.examples("train", 1, 0)[0], PROMPT)[-1] == {"role": "assistant", "content": target, "reasoning_content": "hm"}
