"""Graders that are source, in real sandboxes: what bench/grader_cases.py cannot show, because it
needs other limits, several grades, or a machine that lacks something."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import boxes
import psutil
import pytest
import tiny_recipe

from bench.grader_cases import PARIS, Case, multi, play, python, rollout
from rft import config
from rft.config import graders
from rft.errors import ConfigError, InfrastructureError
from rft.grading import grader, python_grader
from rft.grading.python_grader import LIMITS, PythonGrader
from rft.sandbox import probe, workspace
from rft.sandbox.probe import Guarantee, Info, Machine
from rft.types import Grade, GradeStatus, Scored, Unscored

MARK = "rft-grader-left-behind"


def grades(
    *cases: tuple[dict[str, Any], str], limits: Any = LIMITS, section: config.Tools | None = None
) -> list[Grade]:
    """Grade answers with one open grader, all at the same time."""

    async def graded() -> list[Grade]:
        raw = cases[0][0]
        settings = graders.read(raw, "grader.json")
        assert isinstance(settings, graders.Python)
        async with PythonGrader(settings, section or config.Tools(), limits) as opened:
            rows = [rollout(Case("", raw, answer, None, PARIS)) for _, answer in cases]
            return list(await asyncio.gather(*(opened.grade(*row) for row in rows)))

    return asyncio.run(graded())


@boxes.needs_sandbox
class TestInASandbox:
    @pytest.mark.slow
    def test_a_loop_ends_at_the_deadline_and_leaves_nothing(self):
        source = python(
            "import subprocess", f"subprocess.Popen(['sh', '-c', 'sleep 60; : {MARK}'])", "while True:", "    pass"
        )
        started = time.monotonic()
        (grade,) = grades((source, "x"), limits=replace(LIMITS, wall_s=1.0))
        assert grade == Unscored(
            GradeStatus.grader_timeout, "grader: python: no verdict within 1 s", ("python_grader_runtime_error",)
        )
        assert time.monotonic() - started < 10
        assert not any(MARK in word for each in psutil.process_iter(["cmdline"]) for word in each.info["cmdline"] or [])

    @pytest.mark.slow
    def test_processor_time_has_a_limit_of_its_own(self):
        source = python("while True:", "    pass")
        (grade,) = grades((source, "x"), limits=replace(LIMITS, wall_s=20.0, cpu_s=1))
        assert isinstance(grade, Unscored)
        assert grade.status is GradeStatus.infra_error
        assert "ended with exit code 15" in grade.explanation  # 152: SIGXCPU; 137 only where it is ignored

    def test_grades_share_nothing(self):
        """A file, a module and a hash seed of one grade are not those of another."""
        source = python(
            "import json, os, sys",
            "places = os.environ['HOME'] + '/was-here', '/ws/json.py'",
            "seen = any(map(os.path.exists, places)) or hasattr(json, 'was_here')",
            "[open(place, 'w') for place in places]",
            "json.was_here = True",
            "print(list({'a', 'b', 'c', 'd', 'e'}))",
            "return 0.0 if seen else 1.0",
        )
        found = grades(*[(source, "x")] * 6)
        assert [grade.score for grade in found] == [1.0] * 6
        assert len({grade.explanation for grade in found}) == 1  # the order of a set is the same each time

    @pytest.mark.parametrize(
        "written",
        ["[1]", '{"score": NaN}', '{"score": 1e999}', '{"score": "1"}', '{"score": true}', "{}", "3", "[" * 9999],
    )
    def test_a_verdict_that_the_source_writes_itself_is_read_as_strictly(self, written: str):
        source = python("import os", f"os.write(3, {written.encode()!r})", "os._exit(0)")
        (grade,) = grades((source, "x"))
        assert isinstance(grade, Unscored)
        assert grade.flags == ("python_grader_runtime_error",)
        assert "not a verdict" in grade.explanation or "ended with exit code" in grade.explanation

    def test_the_error_names_the_line_of_the_source_and_what_was_printed(self):
        (grade,) = grades((python("print('so far')", "return item['price']"), "x"))
        assert grade.explanation == "grader: python: KeyError: 'price' (line 3). It printed: so far"

    def test_a_secret_in_the_environment_is_not_there(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("RFT_TEST_SECRET", "s3cret")
        (grade,) = grades((python("import os", "return float('RFT_TEST_SECRET' in os.environ)"), "x"))
        assert grade.score == 0.0

    def test_one_in_a_formula(self):
        whole = multi("0.5 * exact + 0.5 * near")
        whole["graders"]["near"] = python("return 0.5")
        grade, _ = asyncio.run(play(Case("", whole, "Paris", 0.75, PARIS)))
        assert grade == Scored(0.75, GradeStatus.ok, False, {"exact": 1.0, "near": 0.5}, grade.explanation)

    @pytest.mark.parametrize(
        "source",
        [
            "from __future__ import annotations\nfrom dataclasses import dataclass, field\n@dataclass\nclass Turn:\n"
            "    text: str\n    seen: list[str] = field(default_factory=list)\n"
            "def grade(sample, item): return float(Turn(sample['output_text']).text == 'Paris')",
            "from __future__ import annotations\nfrom pydantic import BaseModel\nclass Inner(BaseModel):\n    n: int\n"
            "class Outer(BaseModel):\n    inner: Inner\ndef grade(sample, item): return Outer(inner={'n': 1}).inner.n",
            "import pickle\nclass Kept: pass\ndef grade(sample, item): return 1.0 if pickle.dumps(Kept()) else 0.0",
            "import inspect\ndef grade(sample, item): return float('inspect.getsource' in inspect.getsource(grade))",
            "from rapidfuzz import fuzz\ndef grade(sample, _): return fuzz.ratio('Paris', sample['output_text']) / 100",
        ],
        ids=["dataclass", "pydantic", "pickle", "inspect", "rapidfuzz"],
    )
    def test_a_source_is_a_module_as_it_is_elsewhere(self, source: str):
        (grade,) = grades(({"type": "python", "source": source}, "Paris"))
        assert grade.score == 1.0, grade.explanation

    def test_a_score_beyond_an_undeclared_range_stops_the_stage(self):
        with pytest.raises(ConfigError, match="gave the score 5"):
            grades((python("return 5"), "x"))


def test_an_image_that_is_not_ours_is_a_remark():
    assert graders.read(python("return 1.0"), "grader.json").remarks == []
    (remark,) = graders.read(python("return 1.0", image_tag="2025-05-08"), "grader.json").remarks
    assert remark.startswith("image_tag = 2025-05-08: the source gets this installation's packages")


# -- machines that lack something ------------------------------------------------------------------
@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out about this machine is forgotten, before and after."""
    monkeypatch.setattr(probe, "_found", {})


def _refused(check: Any) -> str:
    with pytest.raises(InfrastructureError) as caught:
        check()
    return str(caught.value)


def test_no_bubblewrap(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (grade,) = grades((python("return 1.0"), "x"))
    assert isinstance(grade, Unscored)
    assert (grade.status, grade.flags) == (GradeStatus.infra_error, ("python_grader_server_error",))
    assert "Install bubblewrap" in grade.explanation


def test_a_run_is_refused_at_once_without_bubblewrap(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text('{"type": "python", "source": "def grade(sample, item): return 1.0"}')
    params = tiny_recipe.params(made)
    monkeypatch.setenv("PATH", str(tmp_path))
    message = _refused(lambda: grader.check(params))
    assert message.startswith("grader.json: a python grader runs in a sandbox. ")
    assert "Install bubblewrap" in message
    assert "weaker_sandbox" not in message  # it would not help


@boxes.needs_sandbox
def test_a_weaker_sandbox_is_refused_unless_the_file_says_so_and_then_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    weaker = Guarantee("system calls", False, "there is no filter for this machine")

    async def machine() -> Machine:
        return replace(real, info=Info("bubblewrap", (*real.info.guarantees, weaker)))

    real = asyncio.run(probe.machine())
    monkeypatch.setattr(probe, "machine", machine)
    (grade,) = grades((python("return 1.0"), "x"))
    assert (grade.score, grade.flags) == (None, ("python_grader_server_error",))
    assert "set tools.weaker_sandbox: true" in _refused(lambda: asyncio.run(python_grader.check(config.Tools())))
    allowed = config.Tools(weaker_sandbox=True)
    asyncio.run(python_grader.check(allowed))
    capsys.readouterr()
    found = grades(*[(python("return 1.0"), "x")] * 2, section=allowed)
    assert [grade.score for grade in found] == [1.0, 1.0]
    message = (
        "[grader] WARNING: python runs in a weaker sandbox, as tools.weaker_sandbox says. system calls: there is no"
    )
    assert capsys.readouterr().out.count(message) == 1


@boxes.needs_sandbox
def test_a_sandbox_that_cannot_be_made_later(monkeypatch: pytest.MonkeyPatch):
    """The process that mounts is gone, and cannot be started again."""
    asyncio.run(probe.machine())
    monkeypatch.setattr(workspace.keeper, "__file__", "/nowhere/keeper.py")
    dead = workspace._Keeper()
    monkeypatch.setattr(workspace, "_keeper", dead)
    (grade,) = grades((python("return 1.0"), "x"))
    dead.close()
    assert (grade.status, grade.flags) == (GradeStatus.infra_error, ("python_grader_server_error",))
