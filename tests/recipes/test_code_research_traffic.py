"""recipes/code_research: simulated traffic, examples from graded traffic, and drift."""

from __future__ import annotations

import datetime
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rft import config, recipe
from rft.drift import comparison, profile
from rft.drift.features import plan_of, plan_of_inputs
from rft.recipe import Recipe
from rft.reports import Conversation
from rft.stages import drift
from rft.traffic import feedback, ingest, reading
from rft.types import Message


@pytest.fixture(scope="module")
def code() -> Recipe:
    return recipe.load(
        config.Recipe(path="recipes/code_research/recipe", options={"packages": ["fsspec"], "worlds": 2})
    )


MONDAY = datetime.date(2026, 1, 5)


def window(code: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    code.simulate(path, start=MONDAY, days=7, conversations=300, drifted=drifted, seed=seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(code: Recipe, tmp_path: Path) -> None:
    rows = window(code, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 300
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert conversations[0].time.startswith("2026-01-05T")
    assert conversations[-1].time.startswith("2026-01-11T")
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 300 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


def test_equal_arguments_give_equal_bytes(code: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(code, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_graded_traffic_becomes_examples_that_can_be_played(code: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded = [row for row in window(code, tmp_path / "w", drifted) if row["feedback"]]
    found = [code.from_traffic(Conversation.model_validate(row)) for row in graded]
    assert all(example is not None for example in found)
    for row, example in zip(graded, found, strict=True):
        assert example is not None
        assert example.target == row["feedback"]
        assert example.messages[0] == row["messages"][1]
        assert code._module("baseline").score("honest", code.options, example) == 1.0


def test_traffic_that_could_leak_or_is_no_grade(code: Recipe) -> None:
    ours, held_out, validation = (
        code.examples(split, 1, 0)[0]
        for split in ("train", "test", "validation")  # type: ignore[arg-type]
    )
    other = next(e for e in code.examples("train", 50, 0) if e.metadata["workspace"] != ours.metadata["workspace"])

    def conversation(feedback: Any, question: str = " find base X") -> Conversation:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "[]"}]
        return Conversation(
            conversation_id="c", time="2026-01-05T08:00:00Z", messages=messages, latency_s=1.0, tool_errors=0,
            feedback=feedback,
        )  # fmt: skip

    assert code.from_traffic(conversation(ours.target)) is not None
    for claims in (
        None, [], "x", [1], [{}], [{"symbol": 1, "path": 2, "value": 3}], held_out.target, validation.target,
        [*ours.target, *held_out.target], [*ours.target, *other.target], [ours.target[0] | {"value": "1"}],
    ):  # fmt: skip
        assert code.from_traffic(conversation(claims)) is None, claims
    assert code.from_traffic(conversation(ours.target, question=" ")) is None


def kinds_in(code: Recipe, openings: list[list[Message]]) -> Counter[str]:
    found = Counter(kind for messages in openings for kind in code.features(messages)["kind"])
    return Counter({kind: count / found.total() for kind, count in found.items()})


def distance(one: Counter[str], other: Counter[str]) -> float:
    return sum(abs(one[kind] - other[kind]) for kind in one | other) / 2


def test_a_drifted_window_differs_where_it_says(code: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(code, tmp_path / str(flag), flag) for flag in (False, True))
    trained_on = kinds_in(code, [list(example.messages) for example in code.examples("train", 600, 0)])
    assert distance(trained_on, kinds_in(code, [row["messages"] for row in like])) < 0.1
    assert distance(trained_on, kinds_in(code, [row["messages"] for row in drifted])) > 0.2
    for measure, factor in (
        (lambda row: len(row["messages"][1]["content"].split()), 1.2),
        (lambda row: row["latency_s"], 1.4),
        (lambda row: row["tool_errors"], 1.4),
    ):
        assert statistics.fmean(map(measure, drifted)) > factor * statistics.fmean(map(measure, like))


@pytest.mark.slow
def test_drift_between_two_windows_is_found(code: Recipe, tmp_path: Path) -> None:
    """By the stage itself: a like window goes on, a drifted one asks for a refresh."""
    params = config.load("recipes/code_research/params.yaml")
    plan = plan_of(params, code)
    trained_on = profile.of_examples(code.examples("train", 800, 0), plan_of_inputs(params, code), "examples")

    def compared(drifted: bool) -> tuple[str, set[str]]:
        log = tmp_path / f"{drifted}.jsonl"
        code.simulate(log, start=MONDAY, days=7, conversations=400, drifted=drifted, seed=2)
        snapshot = ingest.ingest(str(log), config.Traffic(), tmp_path, tmp_path / "snapshots")
        now = profile.of_parts(reading.parts(snapshot), plan, "window")
        rows = comparison.control(comparison.compare(trained_on, now, params.drift), params.drift)
        usable = sum(1 for _ in feedback.usable(reading.conversations(snapshot), code))
        seen = drift.Facts(rows, [], 800, 400, drift.tool_error_share(reading.parts(snapshot)), usable)
        return drift.decide(params.drift, seen).verdict, {row.feature for row in rows if row.drifted}

    assert compared(False) == ("continue", set())
    verdict, features = compared(True)
    assert verdict == "refresh"
    assert features >= {"input_words", "kind", "opening"}


def test_features_come_from_the_question(code: Recipe) -> None:
    question = {"role": "user", "content": " find default Kavel.besin.ronak , base Mudok"}
    found = {"kind": ["default", "base"], "opening": "find"}
    assert code.features([question]) == found
    assert code.features([question, {"role": "assistant", "content": "raises X"}]) == found
    assert code.features([]) == {"kind": [], "opening": ""}
