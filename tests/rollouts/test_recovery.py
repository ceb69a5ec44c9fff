"""Outages: the breaker, the redo and the refill, with scripted policies and a tool server that
fails on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rft import config, recipe
from rft.errors import InfrastructureError, TooManyUnscored
from rft.grading import alarm
from rft.grading.endpoint import EndpointGrader
from rft.rollouts import recovery
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.recovery import Played, Resumed
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Example, GradeStatus, Scored, StopReason, Trajectory, Turn, Unscored
from rft.wire.client import ToolEndpoint
from tests import tiny_recipe
from tests.rollouts.test_loop import PROMPT
from tests.scripted_policy import CALL, Scripted, ScriptedTurn, scripted
from tests.scripted_server import scripted as serve


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FIRST_PAUSE_S", 0.01)


def play(
    ours: recipe.Recipe,
    down: Callable[[dict[str, Any], int], bool],
    n: int = 8,
    policy: Scripted | None = None,
    status: int = 500,
    **limits: Any,
) -> Any:
    """Eight rollouts against a server that answers 500 to a tool call when `down(body, number of
    the request)`. Returns Played and what was said."""
    lines: list[str] = []
    count = 0

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        if request.path == "/grade":
            return web.json_response({"score": 1.0})
        count += 1
        if down(body, count):
            return web.json_response({"error": "down"}, status=status)
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
                return await run_rollouts(
                    policy or scripted(CALL % " k0001", "0000"), client, grader, requests, conditions, {}
                )

            example = ours.examples("train", 1, 0)[0]
            return await recovery.play(once, [Request(example, sample) for sample in range(n)], rollout, lines.append)

    return asyncio.run(all_of_it()), lines


def test_without_trouble_nothing_is_set_aside(ours):
    played, lines = play(ours, lambda body, count: False)
    assert (len(played.trajectories), played.superseded, lines) == (8, [], [])
    assert all(one.reward == 1.0 for one in played.trajectories)


def test_few_failures_are_refilled_from_streams_of_their_own(ours):
    played, lines = play(ours, lambda body, count: count == 3, max_unscored_share=0.2)
    assert [one.reward for one in played.trajectories] == [1.0] * 8
    assert sorted(one.attempt for one in played.trajectories) == [0] * 7 + [1]
    assert [(one.trajectory.reward, one.why) for one in played.superseded] == [(None, "replaced: infra_error")]
    assert lines == []


def test_the_refill_has_a_budget(ours):
    key = {}

    def down(body: dict[str, Any], count: int) -> bool:  # the first two rollouts, and all that replace them
        key.setdefault(body["trace_id"], len(key))
        return key[body["trace_id"]] < 2 or key[body["trace_id"]] >= 8

    played, _ = play(ours, down, max_unscored_share=0.5, refill=0.5)
    assert sum(one.reward is None for one in played.trajectories) == 2
    assert len(played.superseded) == 4, "two a round, until the budget of four is spent"


def test_an_outage_pauses_and_the_whole_batch_is_redone_from_the_same_streams(ours):
    undisturbed, _ = play(ours, lambda body, count: False)
    played, lines = play(ours, lambda body, count: count <= 8 + 8)  # the batch and the first canaries fail
    assert [one.reward for one in played.trajectories] == [1.0] * 8
    assert [one.attempt for one in played.trajectories] == [0] * 8
    texts = [[turn.text for turn in one.turns] for one in undisturbed.trajectories]
    assert [[turn.text for turn in one.turns] for one in played.trajectories] == texts
    whys = [one.why for one in played.superseded]
    assert (whys.count("set aside by a pause"), whys.count("tried while paused")) == (8, 16)
    assert (
        len({one.trajectory.rollout_id for one in played.superseded} | {one.rollout_id for one in played.trajectories})
        == 32
    )
    assert lines[0].startswith("paused: 8 of 8 rollouts have no score")
    assert lines[0].endswith(
        "Trying again in 0 s, for 10 min more (rollout.pause_s); nothing is trained meanwhile. Ctrl-C loses nothing: "
        "the same command goes on."
    )
    assert "Is it running" not in lines[0], "it answers"
    assert lines[-1] == "goes on: tools and grader answer again"


def test_where_nothing_listens_it_is_asked_whether_it_runs(ours):
    lines: list[str] = []

    async def all_of_it() -> None:
        section, rollout = config.Tools(retries=0), config.Rollout(pause_s=0.05)
        nobody = ToolEndpoint("http://127.0.0.1:9")
        async with (
            ToolClient(nobody, section, schemas(ours)) as client,
            EndpointGrader(ours.grader, nobody, section) as grader,
        ):

            async def once(requests: Sequence[Request], word: str) -> list[Trajectory]:
                conditions = Conditions(PROMPT, 1.0, (0,), rollout, word)
                return await run_rollouts(scripted(CALL % " k0001", "0000"), client, grader, requests, conditions, {})

            await recovery.play(once, [Request(ours.examples("train", 1, 0)[0], 0)], rollout, lines.append)

    with pytest.raises(TooManyUnscored):
        asyncio.run(all_of_it())
    assert "Is it running, at that address? Trying again in " in lines[0]


def test_an_outage_that_outlasts_the_pause_ends_the_stage(ours):
    with pytest.raises(TooManyUnscored, match=r"Waited rollout\.pause_s"):
        play(ours, lambda body, count: True, pause_s=0.05)


@pytest.mark.parametrize("status", [403, 404, 405, 407, 410])
def test_a_wrong_address_is_an_outage_and_the_alarm_sees_it(ours, status: int):
    with pytest.raises(TooManyUnscored, match=rf"HTTP {status}"):
        play(ours, lambda body, count: True, status=status, pause_s=0.05)
    played, _ = play(ours, lambda body, count: count <= 2, status=status, max_unscored_share=0.5)
    lost = [one.trajectory for one in played.superseded]
    assert [(one.stop_reason, one.reward) for one in lost] == [(StopReason.tool_error, None)] * 2
    assert [record.failed for record in alarm.calls_of(lost)] == [True, True]


def test_a_policy_server_that_forks_ends_the_stage(ours):
    call = ScriptedTurn(CALL % " k0001", ids=(3, 4), logprobs=(-1.0, -1.0), context_ids=(1, 2))
    fork = ScriptedTurn("0000", ids=(9,), logprobs=(-1.0,), context_ids=(1, 2, 3, 7, 5))
    with pytest.raises(InfrastructureError, match=r"max_fork_share"):
        play(ours, lambda body, count: False, policy=scripted(call, fork))


# -- killed and started again ----------------------------------------------------------------------
class Killed(Exception):
    pass


class Worlds:
    """Rollouts that fail by what they are, not by when; and a kill after so many of them. `made`:
    all that were finished, in any life."""

    def __init__(self, fails: Callable[[Request, str], bool], forks: Callable[[str], bool] = lambda word: False):
        self.made: list[Resumed] = []
        self.lines: list[str] = []
        self.left = 10**6
        self._fails, self._forks = fails, forks

    async def once(self, requests: Sequence[Request], word: str) -> list[Trajectory]:
        done: list[Trajectory] = []
        for one in requests:
            if self.left == 0:
                raise Killed
            self.left -= 1
            score = None if self._fails(one, word) else 1.0
            grade = Unscored(GradeStatus.infra_error) if score is None else Scored(score)
            turns = (Turn("t", forked=self._forks(word)),)
            name = f"{word} {one.sample} {one.attempt}"
            done.append(
                Trajectory(name, one.example.id, turns, StopReason.completed, grade, score, attempt=one.attempt)
            )
            self.made.append(Resumed(word, one, done[-1]))
        return done

    def play(self, lives: Sequence[int], **limits: Any) -> Played:
        """Each life ends after so many rollouts, the last one by itself."""
        requests = [Request(Example("n", (), None), sample) for sample in range(10)]
        for number, self.left in enumerate([*lives, 10**6]):
            try:
                return asyncio.run(
                    recovery.play(self.once, requests, config.Rollout(**limits), self.lines.append, list(self.made))
                )
            except Killed:
                assert number < len(lives)
        raise AssertionError


def names(trajectories: Sequence[Trajectory]) -> list[str]:
    return [one.rollout_id for one in trajectories]


@given(
    lives=st.lists(st.integers(0, 30), max_size=5),
    broken=st.sets(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=6),
    outage=st.integers(0, 4),
)
def test_a_batch_that_was_killed_anywhere_rolls_out_only_what_is_missing(
    lives: list[int], broken: set[tuple[int, int]], outage: int
):
    """`broken`: (sample, attempt) that have no score; `outage`: so many canaries fail, and the
    batch before them."""

    def fails(one: Request, word: str) -> bool:
        down = outage and (
            (word == "" and one.attempt == 0) or (word.startswith("canary") and int(word.split()[1]) <= outage)
        )
        return bool(down) or (not word.startswith("canary") and (one.sample, one.attempt) in broken)

    worlds = Worlds(fails)
    limits: dict[str, Any] = {"max_unscored_share": 0.7, "refill": 3.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "FIRST_PAUSE_S", 0.0)
        played = worlds.play(lives, **limits)
        undisturbed = Worlds(fails).play([], **limits)
    made = names([one.trajectory for one in worlds.made])
    assert len(made) == len(set(made)), "nothing that was finished is rolled out a second time"
    assert sorted(names([*played.trajectories, *(one.trajectory for one in played.superseded)])) == sorted(made), (
        "sampled = answers + aside"
    )
    assert [one.reward for one in played.trajectories] == [one.reward for one in undisturbed.trajectories]
    assert [one.attempt for one in played.trajectories] == [one.attempt for one in undisturbed.trajectories]
    if not lives:
        assert names(played.trajectories) == names(undisturbed.trajectories)
    reasons = {"tried while paused", "set aside by a pause", "replaced: infra_error"}
    assert {one.why for one in played.superseded} <= reasons


def test_what_ended_the_stage_does_not_end_it_for_ever():
    """The rollouts that were found wanting lie in the store; the servers were mended since."""
    mended = False
    worlds = Worlds(lambda one, word: not mended)
    with pytest.raises(TooManyUnscored):
        worlds.play([], pause_s=0.05)
    tries, mended = (len(worlds.made) - 10) // 8, True
    worlds.lines.clear()
    played = worlds.play([], pause_s=5.0)
    assert tries > 1
    assert names(played.trajectories) == [f"again {tries + 1} {n} 0" for n in range(10)]
    assert [one.why for one in played.superseded].count("set aside by a pause") == 10
    assert len(worlds.lines) == 2, "one pause, and the word that it goes on: what failed then is not waited for again"
    worlds = Worlds(lambda one, word: False, forks=lambda word: word == "")
    with pytest.raises(InfrastructureError, match="max_fork_share"):
        worlds.play([])
    played = worlds.play([])
    assert names(played.trajectories) == [f"again 1 {n} 0" for n in range(10)]
    assert {one.why for one in played.superseded} == {"forked too often"}
