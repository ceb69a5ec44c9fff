"""Outages: the breaker, the redo and the refill, with scripted policies and a tool server that fails on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from rft import config, recipe, recovery
from rft.errors import InfrastructureError, TooManyUnscored
from rft.graders import EndpointGrader
from rft.recovery import Played
from rft.rollout import Conditions, Request, run_rollouts
from rft.tools import ToolClient, schemas
from rft.types import Trajectory
from tests import tiny_recipe
from tests.scripted_policy import CALL, Said, Scripted, scripted
from tests.scripted_server import scripted as serve
from tests.test_rollout import PROMPT


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FIRST_PAUSE_S", 0.01)


def play(ours: recipe.Recipe, down: Callable[[dict[str, Any], int], bool], n: int = 8, policy: Scripted | None = None, **limits: Any) -> Any:
    """Eight rollouts against a server that answers 500 to a tool call when `down(body, number of the request)`. Returns Played and what was said."""
    said: list[str] = []
    count = 0

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        if request.path == "/grade":
            return web.json_response({"score": 1.0})
        count += 1
        if down(body, count):
            return web.json_response({"error": "down"}, status=500)
        return web.json_response({"output": "4711"})

    async def all_of_it() -> Played:
        section = config.Tools(retries=0)
        async with (
            serve(answer) as server,
            ToolClient(server.endpoint, section, schemas(ours)) as client,
            EndpointGrader(ours.grader, server.endpoint, section) as grader,
        ):
            rollout = config.Rollout(**limits)

            async def once(requests: Sequence[Request], word: str) -> list[Trajectory]:
                conditions = Conditions(PROMPT, 1.0, (0,), rollout, word)
                return await run_rollouts(policy or scripted(CALL % " k0001", "0000"), client, grader, requests, conditions, {})

            example = ours.examples("train", 1, 0)[0]
            return await recovery.play(once, [Request(example, sample) for sample in range(n)], rollout, said.append)

    return asyncio.run(all_of_it()), said


def test_without_trouble_nothing_is_set_aside(ours):
    played, said = play(ours, lambda body, count: False)
    assert (len(played.trajectories), played.aside, said) == (8, [], [])
    assert all(one.reward == 1.0 for one in played.trajectories)


def test_few_failures_are_refilled_from_streams_of_their_own(ours):
    played, said = play(ours, lambda body, count: count == 3, max_unscored_share=0.2)
    assert [one.reward for one in played.trajectories] == [1.0] * 8
    assert sorted(one.attempt for one in played.trajectories) == [0] * 7 + [1]
    assert [(one.trajectory.reward, one.why) for one in played.aside] == [(None, "replaced: infra_error")]
    assert said == []


def test_the_refill_has_a_budget(ours):
    key = {}

    def down(body: dict[str, Any], count: int) -> bool:  # the first two rollouts, and all that replace them
        key.setdefault(body["trace_id"], len(key))
        return key[body["trace_id"]] < 2 or key[body["trace_id"]] >= 8

    played, _ = play(ours, down, max_unscored_share=0.5, refill=0.5)
    assert sum(one.reward is None for one in played.trajectories) == 2
    assert len(played.aside) == 4, "two a round, until the budget of four is spent"


def test_an_outage_pauses_and_the_whole_batch_is_redone_from_the_same_streams(ours):
    undisturbed, _ = play(ours, lambda body, count: False)
    played, said = play(ours, lambda body, count: count <= 8 + 8)  # the batch and the first canaries fail
    assert [one.reward for one in played.trajectories] == [1.0] * 8
    assert [one.attempt for one in played.trajectories] == [0] * 8
    texts = [[turn.text for turn in one.turns] for one in undisturbed.trajectories]
    assert [[turn.text for turn in one.turns] for one in played.trajectories] == texts
    whys = [one.why for one in played.aside]
    assert (whys.count("set aside by a pause"), whys.count("tried while paused")) == (8, 16)
    assert len({one.trajectory.trace_id for one in played.aside} | {one.trace_id for one in played.trajectories}) == 32
    assert said[0].startswith("paused: 8 of 8 rollouts have no score")
    assert said[-1] == "goes on: tools and grader answer again"


def test_an_outage_that_outlasts_the_pause_ends_the_stage(ours):
    with pytest.raises(TooManyUnscored, match=r"Waited rollout\.pause_s"):
        play(ours, lambda body, count: True, pause_s=0.05)


def test_a_policy_server_that_forks_ends_the_stage(ours):
    call = Said(CALL % " k0001", ids=(3, 4), logprobs=(-1.0, -1.0), context_ids=(1, 2))
    fork = Said("0000", ids=(9,), logprobs=(-1.0,), context_ids=(1, 2, 3, 7, 5))
    with pytest.raises(InfrastructureError, match=r"max_fork_share"):
        play(ours, lambda body, count: False, policy=scripted(call, fork))
