"""A grader that raises on what the policy wrote ends the stage at once; one that is down is waited
for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from rft import config, recipe
from rft.errors import TooManyUnscored, UserError
from rft.grading.endpoint import EndpointGrader
from rft.rollouts import blame, recovery
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.recovery import Played
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import GradeStatus, StopReason, Trajectory, Unscored
from rft.wire.trace import Traces
from tests import tiny_recipe
from tests.rollouts.test_loop import PROMPT
from tests.scripted_policy import scripted
from tests.scripted_server import scripted as serve


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path_factory.mktemp("recipe")))))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FIRST_PAUSE_S", 0.01)


def play(ours: recipe.Recipe, answer: str, grade: Callable[[str, int], web.Response]) -> tuple[Played, list[str]]:
    """Eight rollouts that answer this. `grade(text, number of the request)`."""
    lines: list[str] = []
    count = 0

    async def served(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        count += 1
        return grade(body["sample"]["output_text"], count)

    async def all_of_it() -> Played:
        section, traces = config.Tools(retries=0), Traces()
        async with (
            serve(served) as server,
            ToolClient(server.endpoint, section, schemas(ours)) as client,
            EndpointGrader(ours.grader, server.endpoint, section) as grader,
        ):
            rollout = config.Rollout(pause_s=0.1)

            async def once(requests: Sequence[Request], word: str) -> list[Trajectory]:
                return await run_rollouts(
                    scripted(answer), client, grader, requests, Conditions(PROMPT, 1.0, (0,), rollout, word), {}
                )

            async def blamed(played: Sequence[tuple[Request, Trajectory]]) -> str:
                found = [(request.example, one) for request, one in played]
                return await blame.unjudgeable(ours, grader, client, traces, found, rollout.max_unscored_share)

            requests = [Request(ours.examples("train", 1, 0)[0], sample) for sample in range(8)]
            return await recovery.play(once, requests, rollout, lines.append, blame=blamed)

    return asyncio.run(all_of_it()), lines


def error(text: str = "cannot parse") -> web.Response:
    return web.json_response({"error": text}, status=500)


def score(value: float) -> web.Response:
    return web.json_response({"score": value})


@pytest.mark.parametrize("judges", ["all else", "the target alone", "worthless answers alone"])
def test_an_answer_that_no_grader_can_read_ends_the_stage_and_names_it(ours: recipe.Recipe, judges: str):
    target = ours.examples("train", 1, 0)[0].target

    def grade(text: str, count: int) -> web.Response:
        is_judged = {"all else": text != "{", "the target alone": text == target}.get(judges, text == "Done.")
        return score(0.0) if is_judged else error()

    with pytest.raises(UserError) as caught:
        play(ours, "{", grade)
    told = str(caught.value)
    assert "8 of 8 rollouts have no score" in told
    assert "The grader answers, and has no score for what the policy wrote, such as '{'" in told
    assert "gets its lowest score" in told


def test_a_grader_that_is_down_is_waited_for(ours: recipe.Recipe):
    with pytest.raises(TooManyUnscored, match=r"Waited rollout\.pause_s"):
        play(ours, "{", lambda text, count: error())


def test_a_grader_that_takes_too_long_is_waited_for_and_not_asked_more(ours: recipe.Recipe):
    late = Trajectory("r", "e", (), StopReason.completed, Unscored(GradeStatus.grader_timeout, "late"), None)

    class Never:
        async def grade(self, *_: Any) -> Any:
            raise AssertionError("asked again")

    example = ours.examples("train", 1, 0)[0]
    asked = blame.unjudgeable(ours, Never(), Never(), Traces(), [(example, late)] * 8, 0.02)  # type: ignore[arg-type]
    assert asyncio.run(asked) == ""


def test_a_grader_that_comes_back_meanwhile_is_not_blamed(ours: recipe.Recipe):
    played, lines = play(ours, "{", lambda text, count: error() if count <= 8 else score(0.0))
    assert [one.reward for one in played.trajectories] == [0.0] * 8
    assert lines[-1] == "goes on: tools and grader answer again"
