"""A recipe whose own grade checks code that the policy wrote: over HTTP, as a stage asks it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import boxes
import pytest
import tiny_recipe

from bench.grader_cases import Case, rollout
from rft import config, recipe
from rft.grading.endpoint import EndpointGrader
from rft.tools.lifetime import running
from rft.types import Grade, GradeStatus

pytestmark = pytest.mark.usefixtures("ready_server")

GRADE = """

from rft.grading.code_under_test.function import Candidate, check_function, fresh_cases


def double(number):
    return 2 * number


async def grade(sample, item):
    cases = fresh_cases(double, lambda rng: [rng.randrange(10**9)], 5, seed=7)
    code = sample["output_text"].encode()
    verdict = await check_function(Candidate({"solution.py": code}, "solution", "double"), cases)
    explanation = f"{verdict.passed} of {verdict.of} checks passed {verdict.why}"
    return {"score": float(verdict.solved), "reason": explanation, "evidence": list(verdict.failures)}
"""
HONEST = "def double(number):\n    return number + number\n"
CARELESS = "def double(number):\n    return 4\n"
CHEAT = "import os\nos._exit(0)\n"


def grades(folder: Path, *answers: str) -> list[Grade]:
    made = tiny_recipe.make(folder)
    tools = made / "tools.py"
    tools.write_text(tools.read_text() + GRADE)
    ours = recipe.load(config.Recipe(path=str(made)))

    async def play(grader: EndpointGrader) -> list[Grade]:
        async with grader:
            return [await grader.grade(*rollout(Case("", {}, answer, None))) for answer in answers]

    with running(ours, config.Tools()) as endpoint:
        return asyncio.run(play(EndpointGrader(ours.grader, endpoint, config.Tools(retries=0))))


@pytest.mark.slow
@boxes.needs_sandbox
def test_code_of_the_policy_is_checked_over_http(tmp_path: Path):
    honest, careless, cheat = grades(tmp_path, HONEST, CARELESS, CHEAT)
    assert (honest.score, honest.solved, honest.explanation) == (1.0, True, "5 of 5 checks passed ")
    assert (careless.score, len(careless.evidence)) == (0.0, 5)
    assert careless.evidence[0].startswith("double(")
    assert (cheat.score, cheat.explanation) == (0.0, "0 of 5 checks passed ended while its module was loaded")


@pytest.mark.slow
def test_without_a_sandbox_there_is_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (grade,) = grades(tmp_path, HONEST)
    assert grade.score is None
    assert grade.status in (GradeStatus.grader_bad_reply, GradeStatus.infra_error)
    assert "bubblewrap" in grade.explanation
