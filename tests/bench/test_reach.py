"""The figure `test_reach`, on a repository of one module."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import reach as here

MODULE = """
def named(one, other):
    if one == other:
        return "equal"
    return "other"


def both(one, other):
    return one and other
"""
STRICT = """
from a import both, named

def test_named():
    assert (named(1, 1), named(2, 1)) == ("equal", "other")

def test_both():
    assert both(1, 0) == 0 and both(1, 2) == 2
"""
LAX = "def test_nothing(): ...\n"
RED = "def test_nothing(): assert False\n"


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Commit tests of the module; the first ones are those of before."""
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    monkeypatch.setattr(here, "ROOT", repository)
    monkeypatch.setattr(here, "PLACE", tmp_path / "place")
    monkeypatch.setattr(here, "TESTS", {"a.py": "test_a.py"})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load

    def commit(tests: str) -> str:
        files = {"a.py": MODULE, "test_a.py": tests, "pytest.ini": "[pytest]\nmarkers = gpu\n"}
        for name, text in files.items():
            (repository / name).write_text(text, encoding="utf-8")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", "m"], check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return commit


@pytest.mark.slow
@pytest.mark.parametrize(("tests", "lost"), [(STRICT + "\n", 0), (LAX, 2)], ids=["as before", "they look no more"])
def test_what_is_not_found_any_more_is_counted(
    commit: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tests: str, lost: int
) -> None:
    monkeypatch.setattr(here, "BEFORE", commit(STRICT))
    commit(tests)
    figure = here.test_reach([])
    assert [(part.name, part.value) for part in figure.parts] == [
        ("found before and not now", lost),
        ("found before", 2),
        ("found now", 2 - lost),
    ]
    assert figure.holds is (not lost)
    assert figure.notes is not None
    assert len(figure.notes["lost"]) == lost
    again = here.Side.at("now", "HEAD")
    [one, _] = here.faults("a.py", MODULE, MODULE)
    assert again.finds(one, ask=False) is (not lost), "what has been seen is kept"


def test_tests_that_fail_without_a_fault_find_nothing(
    commit: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "BEFORE", commit(RED))
    line = here.test_reach([]).line("test_reach")
    assert (line["value"], line["holds"]) == (None, False)
    assert "before: test_a.py fail without any fault" in line["reason"]


def test_a_seed_chooses_the_same_faults_wherever_the_rest_of_the_file_changed() -> None:
    moved = '"""Another text."""\n' + MODULE + "\n\ndef third(one):\n    return not one\n"
    chosen = here.faults("a.py", MODULE, moved)
    assert chosen == here.faults("a.py", MODULE, moved)
    assert len({fault.line for fault in chosen}) == here.FAULTS
    for fault in chosen:
        assert fault.plant(MODULE) != MODULE
        compile(fault.plant(moved), "a.py", "exec")
