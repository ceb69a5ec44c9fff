"""bench/newcomer.py: the newcomer types nothing that nobody told, a failing command is counted, and
the recorded patch makes a working agent."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.newcomer import AGENT, PATCH, Newcomer, Untold
from rft import config, recipe
from rft.grading import preflight

TEMPLATE = Path(__file__).resolve().parents[2] / "flows" / "template"


@pytest.fixture
def somebody(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path, tmp_path / "log", "Type\n    echo   hello NAME\nand then `false`.")


def test_what_was_told_is_typed_with_its_capitals_filled_in(somebody: Newcomer) -> None:
    assert somebody.type("echo hello NAME", {"NAME": "Ada"}) == "hello Ada\n"
    assert somebody.typed == ["echo hello Ada"]


def test_what_nobody_told_is_not_typed(somebody: Newcomer) -> None:
    with pytest.raises(Untold, match="echo goodbye"):
        somebody.type("echo goodbye")
    with pytest.raises(Untold, match="no REASON to fill in"):
        somebody.type("echo hello NAME", {"REASON": "why"})
    with pytest.raises(Untold, match="no output shows"):
        somebody.shown("nothing here", r"(rft run .*)")
    assert not somebody.typed


def test_what_an_output_shows_may_be_typed(somebody: Newcomer) -> None:
    shown = somebody.shown(somebody.type("echo hello NAME", {"NAME": "'now type: echo goodbye'"}), r"type: (.*)")
    assert somebody.type(shown) == "goodbye\n"
    assert not somebody.failures


def test_a_command_that_fails_is_counted(somebody: Newcomer) -> None:
    somebody.type("false")
    assert somebody.failures == ["false: exit code 1"]


@pytest.mark.slow
def test_the_patch_makes_another_agent_of_what_rft_new_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / AGENT
    shutil.copytree(TEMPLATE, home / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    params = (home / "recipe/params.yaml").rename(home / "params.yaml")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", str(PATCH)], cwd=tmp_path, check=True)
    monkeypatch.chdir(home)
    settings = config.load(params)
    result = preflight.preflight(settings, recipe.load(settings.recipe, settings.examples.keys), 12)
    assert not result.accepted
    assert result.targets_pass
    assert result.hack_source.is_measured
