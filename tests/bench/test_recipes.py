"""The figures of the recipes: they read a ladder's own reports, see what does not hold, and measure
again what has changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
import sample_reports

from bench import figure, ladder, recipes
from bench.measure import Part
from rft.reports import Row


def ladder_of(root: Path, verdict: str = "refresh", minutes: float = 9) -> ladder.Ladder:
    """The stages' files of a sample run, as if its clone's cache held them."""
    files: dict[str, str] = {}
    for path in (root / "data").rglob("*"):
        if path.is_file():
            md5 = hashlib.md5(path.read_bytes()).hexdigest()
            kept = root / "clone/.dvc/cache/files/md5" / md5[:2] / md5[2:]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(path.read_bytes())
            files[path.relative_to(root).as_posix()] = md5
    return ladder.Ladder(root / "clone", {"train": 60 * minutes}, files, {"verdict": verdict})


def parts_of(name: str, monkeypatch: pytest.MonkeyPatch, ladder_run: ladder.Ladder) -> dict[str, Part]:
    monkeypatch.setattr(ladder, "run_ladder", lambda name: ladder_run)
    return {part.name: part for part in recipes.learn(name).parts}


@pytest.mark.slow
def test_what_a_ladder_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_reports.write_stage_files(tmp_path, num_test=144)
    parts = parts_of("code_research", monkeypatch, ladder_of(tmp_path))
    gain = parts["RFT's own gain, beside the new prompt alone"]
    assert gain.low is not None
    assert 0 < gain.low < (gain.value or 0)
    assert parts["its interval's low end"].holds is True
    before, prompt, after = (parts[f"reward {when}"].value or 0 for when in ("before", "after the prompt", "after RFT"))
    assert before < prompt < after
    assert after - prompt == pytest.approx(gain.value)
    assert parts["test examples"].value == 144
    assert parts["P95 calls, after over before"].bound == "<= 0.5"
    assert parts["drift between two windows is found"].holds is True
    assert parts["minutes of all stages"].value == 9


@pytest.mark.slow
def test_what_does_not_hold_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_reports.write_stage_files(tmp_path, "reject", num_test=40)
    parts = parts_of("code_research", monkeypatch, ladder_of(tmp_path, "continue", 91))
    failing = {name for name, part in parts.items() if part.holds is False}
    assert failing >= {
        "its interval's low end",
        "test examples",
        "P95 calls, after over before",
        "drift between two windows is found",
        "minutes of all stages",
    }


def test_abstentions_are_told_apart() -> None:
    def row(number: int, slice_: str, solved: bool, abstained: bool | None) -> Row:
        score = float(solved)
        return Row(
            example_id=f"e{number}",
            slice=slice_,
            rewards=[score],
            scores=[score],
            solved=[solved],
            tool_calls=[1],
            tokens=[1],
            stop_reasons=["completed"],
            abstained=[abstained],
        )

    rows = [row(0, "unanswerable", True, None), row(1, "unanswerable", False, None), row(2, "who", False, True)]
    rows += [row(n, "who", True, False) for n in range(3, 6)]
    rightly, wrongly = recipes._abstention("after RFT", type("Arm", (), {"rows": rows}))
    assert (rightly.value, rightly.n, wrongly.value, wrongly.n) == (0.5, 2, 0.25, 4)


def test_a_ladder_that_breaks_is_a_figure_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ladder.Ladder:
        raise ladder.Broken("rft run ended with 2: see wordle.log")

    monkeypatch.setattr(ladder, "run_ladder", broken)
    line = figure.figures()["recipes_learn_wordle"]([]).line("recipes_learn_wordle")
    assert (line["value"], line["holds"], line["reason"]) == (None, False, "rft run ended with 2: see wordle.log")


def test_what_broke_replaces_no_recorded_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ladder.Ladder:
        raise ladder.Broken("the disk is full")

    monkeypatch.setattr(ladder, "run_ladder", broken)
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    assert figure.figures()["recipes_learn"]([]).holds is False
    assert list(tmp_path.iterdir()) == []


def test_a_ladder_is_run_again_if_code_has_changed_and_not_for_prose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "ROOT", tmp_path)

    def commit(path: str, text: str) -> str:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        for args in (
            ("init", "-q"),
            ("add", "-A"),
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"),
        ):
            subprocess.run(["git", *args], cwd=tmp_path, check=True)
        return ladder._stamp("wordle")

    commit("rft/a.py", "1")
    first = commit("recipes/wordle/tools.py", "1")
    assert commit("recipes/wordle/README.md", "figures") == commit("recipes/filings/tools.py", "1") == first
    assert commit("recipes/wordle/params.yaml", "steps: 3") != first


@pytest.mark.slow
def test_a_shortcut_must_stay_well_below_the_trained_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    monkeypatch.setattr(recipes, "NUM_SCRIPTED", 16)

    def failing(low: float) -> set[str]:
        part = {
            "name": "reward after RFT",
            "value": low + 0.05,
            "low": low,
            "high": low + 0.1,
            "n": 9,
            "unit": "reward",
        }
        (tmp_path / "recipes_learn_wordle.json").write_text(json.dumps({"parts": [part]}))
        return {part.name for part in recipes.shortcuts("wordle").parts if not part.holds}

    assert failing(0.8) == set(), "the last clue alone is shown, and is not a shortcut"
    assert failing(0.4) == {"scripted: first_hit"}


@pytest.mark.slow
def test_the_exploits_and_the_honest_agent_of_a_recipe() -> None:
    parts = {part.name: part for part in recipes.exploits("wordle").parts}
    assert all(part.holds for part in parts.values()), parts
    assert parts["exploits accepted"].n > 50
    assert parts["scripted: honest"].at_least == recipes.HONEST
