"""The figure `setup_time`, on a repository whose set-up takes no time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import setup_time as here


def commit(repository: Path, makefile: str) -> str:
    """Commit this Makefile, and return the commit."""
    repository.mkdir(exist_ok=True)
    (repository / "Makefile").write_text(makefile, encoding="utf-8")
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    subprocess.run([*git, "add", "Makefile"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "m"], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_both_ways_are_walked_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    before = commit(tmp_path / "repository", f"setup:\n\t@echo before >> {told}\n")
    commit(tmp_path / "repository", f"setup:\n\t@echo ours >> {told}\n")
    monkeypatch.setattr(here, "ROOT", tmp_path / "repository")
    monkeypatch.setattr(here, "WITHOUT_A_LOCK", before)
    figure = here.setup_time(["2"])
    assert told.read_text().split() == ["ours", "ours", "before", "ours", "before"], "the first one fills the cache"
    assert [(part.name, part.n) for part in figure.parts] == [
        ("share of the time without a lock", 2),
        ("make setup", 2),
        ("without a lock", 2),
    ]


@pytest.mark.parametrize(("commits", "holds"), [(True, False), (False, None)], ids=["it fails", "no history"])
def test_what_is_no_set_up_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool, holds: bool | None
) -> None:
    made = commit(tmp_path / "repository", "setup:\n\t@echo 'the disk is full'; exit 2\n")
    monkeypatch.setattr(here, "ROOT", tmp_path / "repository")
    monkeypatch.setattr(here, "WITHOUT_A_LOCK", made if commits else "0" * 40)
    line = here.setup_time([]).line("setup_time")
    assert (line["value"], line["holds"]) == (None, holds)
    assert ("the disk is full" in line["reason"]) is commits
