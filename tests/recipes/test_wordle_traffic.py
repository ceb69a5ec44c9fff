"""recipes/wordle: simulated traffic, and examples made of it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rft import config, recipe, reports
from rft.drift import comparison, profile
from rft.drift.features import plan_of, plan_of_inputs
from rft.recipe import Recipe, Rollout
from rft.reports import Conversation
from rft.stages import drift
from rft.traffic import ingest, reading
from rft.types import Example


@pytest.fixture(scope="module")
def wordle() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/wordle/recipe"))


@pytest.fixture(scope="module")
def words(wordle: Recipe) -> ModuleType:
    return wordle._module("words")


def begun(wordle: Recipe, example: Example | dict[str, Any]) -> Any:
    rollout = Rollout("trace", example if isinstance(example, dict) else example.row())
    assert wordle.setup is not None
    wordle.setup(rollout)
    return rollout.state


MONDAY = datetime.date(2026, 1, 5)


def window(wordle: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    wordle._module("simulator").write_window(wordle.options, path, MONDAY, 7, 300, drifted, seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_window(wordle: Recipe, tmp_path: Path) -> None:
    rows = window(wordle, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 300
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 300 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes(wordle: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(wordle, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_every_graded_conversation_becomes_a_training_example(wordle: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded_rows = [row for row in window(wordle, tmp_path / "w", drifted) if row["feedback"]]
    found = [wordle.from_traffic(Conversation.model_validate(row)) for row in graded_rows]
    assert [example.target for example in found if example] == [row["feedback"] for row in graded_rows]
    assert all(begun(wordle, example).num_left == 5 - drifted for example in found if example)


def test_traffic_that_could_leak_or_is_no_game(wordle: Recipe, words: ModuleType) -> None:
    train, test = (words.dictionary().of_split[split] for split in ("train", "test"))

    def made(secret: Any, text: str) -> Example | None:
        row = Conversation(
            conversation_id="c", time="2026-01-05T08:00:00Z", messages=[{"role": "user", "content": text}],
            latency_s=1.0, tool_errors=0, feedback=secret,
        )  # fmt: skip
        return wordle.from_traffic(row)

    secret, given = train[:2]
    fits = f" so far {given} {words.marks(given, secret)} , 5 left"
    assert made(secret, fits) is not None
    for feedback, text in (
        (test[0], f" so far {given} {words.marks(given, test[0])} , 5 left"),
        (secret, f" so far {test[0]} {words.marks(test[0], secret)} , 5 left"),
        (secret, f" so far {given} ggggg , 5 left"),
        (secret, " hello"),
        (secret, f" so far {secret} ggggg , 5 left"),
        (None, fits),
        ([secret], fits),
        ("nonsense", fits),
    ):
        assert made(feedback, text) is None


def snapshot(wordle: Recipe, folder: Path, drifted: bool, seed: int) -> Path:
    log = folder / f"{drifted}-{seed}.jsonl"
    wordle.simulate(log, start=MONDAY, days=7, conversations=400, drifted=drifted, seed=seed)
    return ingest.ingest(str(log), config.Traffic(), folder, folder / "snapshots")


@pytest.mark.slow
def test_drift_says_continue_and_refresh(wordle: Recipe, tmp_path: Path) -> None:
    """By the real comparison, with the window of another week as what the champion's run saw."""
    params = config.load("recipes/wordle/params.yaml")
    trained = profile.of_examples(wordle.examples("train", 2000, 0), plan_of_inputs(params, wordle), "wordle")
    before, like, new = (
        profile.of_parts(reading.parts(snapshot(wordle, tmp_path, drifted, seed)), plan_of(params, wordle), "window")
        for drifted, seed in ((False, 0), (False, 1), (True, 2))
    )

    def judged(window: reports.Profile) -> tuple[str, set[str]]:
        rows = comparison.compare_all({"train": trained, "window": before}, window, params.drift)
        statistics = comparison.control(rows, params.drift)
        verdict = drift.decide(params.drift, drift.Facts(statistics, [], 2000, 400, num_usable=150)).verdict
        return verdict, {row.feature for row in statistics if row.drifted}

    assert judged(like) == ("continue", set())
    verdict, moved = judged(new)
    assert verdict == "refresh"
    assert moved >= {"opening", "guesses", "initial", "phrasing", "vocabulary", "input_words"}
    assert moved >= {"latency_s", "tool_errors"}


def test_template_is_a_whole_configuration() -> None:
    assert config.load("recipes/wordle/params.yaml").recipe.path == "recipe"
