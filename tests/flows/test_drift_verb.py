"""`rft traffic drift FILE` in a clone in which nothing ran yet, for both recipes that we ship."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import ladder_clone
import pytest

from rft import config, recipe


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> ladder_clone.Scripted:
    """With recipe icd10, a new one, and a small window for each."""
    made = ladder_clone.make(tmp_path_factory.mktemp("fresh"))
    for arguments in (("init",), ("new", "agents/mine")):
        done = made.rft(*arguments)
        assert done.returncode == 0, done.stderr
    shutil.copytree(
        ladder_clone.ROOT / "recipes/icd10", made.root / "recipes/icd10", ignore=shutil.ignore_patterns("__pycache__")
    )
    window = made.root / "data/inbox/icd10.jsonl"
    recipe.load(config.Recipe(path=str(made.root / "recipes/icd10"))).simulate(
        window, start=datetime.date(2026, 3, 2), days=7, conversations=150, drifted=False, seed=0
    )
    return made


@pytest.mark.story
@pytest.mark.parametrize(
    "arguments",
    [
        ("--agent", "mine", "data/inbox/0000-invented.jsonl"),
        ("data/inbox/icd10.jsonl", "--params", "recipes/icd10/params.yaml"),
    ],
)
def test_r5_n2_a_window_is_judged_before_the_first_run(fresh: ladder_clone.Scripted, arguments: list[str]) -> None:
    """What the agent did has nothing to be compared with yet: the table says so, and the verdict
    rests on the input."""
    done = fresh.rft("traffic", "drift", *arguments)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "tool_calls" in shown
    assert "no reference yet" in shown
    assert "continue: Nothing to do" in shown
    assert "0 of " in shown
    assert not Path(fresh.root / "data/drift").exists(), "no stage's files were written"
