"""`rft traffic invent` writes a window of traffic that the ladder reads, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import ladder_clone
import pytest

from flows import cli


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ladder_clone.Scripted:
    made = ladder_clone.make(tmp_path)
    monkeypatch.chdir(made.clone.root)
    return made


@pytest.mark.slow
def test_the_window_of_the_settings(
    scripted: ladder_clone.Scripted, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wordle = repository / "recipes/wordle/recipe"
    settings = ("--set", f"recipe.path={wordle}", "--set", "traffic.file=data/inbox/own/a.jsonl")
    assert cli.main(["traffic", "invent", "--conversations", "30", *settings]) == 0
    made = scripted.clone.root / "data/inbox/own/a.jsonl"
    assert f"{made}: 30 invented conversations from 2026-03-02, 7 days" in capsys.readouterr().out
    assert len(made.read_text().splitlines()) == 30
    before = made.read_bytes()

    assert cli.main(["traffic", "invent", "--conversations", "30", *settings]) == 2
    assert "exists already. Name a FILE that does not, or delete it." in capsys.readouterr().err
    assert made.read_bytes() == before

    for name, more in (("same", ()), ("other", ("--drifted",)), ("later", ("--start", "2026-03-09"))):
        assert (
            cli.main(["traffic", "invent", f"data/inbox/own/{name}.jsonl", "--conversations", "30", *more, *settings])
            == 0
        )
    same, other, later = (made.with_stem(name).read_bytes() for name in ("same", "other", "later"))
    assert same == before
    assert len({same, other, later}) == 3


@pytest.mark.parametrize("file", ["data/inbox/*.jsonl", "s3://bucket/logs", "data"])
def test_settings_that_name_no_single_file(
    scripted: ladder_clone.Scripted, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert cli.main(["traffic", "invent", "--set", f"traffic.file={file}"]) == 2
    assert f"traffic.file = '{file}' names no single file. Give the FILE to write." in capsys.readouterr().err


def test_a_recipe_without_a_simulator(
    scripted: ladder_clone.Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tiny_recipe

    own = tiny_recipe.make(tmp_path / "own")
    assert cli.main(["traffic", "invent", "data/inbox/a.jsonl", "--set", f"recipe.path={own}"]) == 2
    assert "no simulator.py, so no traffic can be invented" in capsys.readouterr().err
    assert not (scripted.clone.root / "data/inbox/a.jsonl").exists()


def test_a_day_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["traffic", "invent", "--start", "monday"]) == 2
    assert "'monday' is not a day: write it as 2026-03-02" in capsys.readouterr().err
