"""The figures of seeds: what counts as promoted, what is run again, and what is not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import collapse, figure, seeds
from bench.seeds import Agent, Outcome

PROMOTED = Outcome(
    decision="promote",
    reason="the challenger is better",
    rewards={"champion": 0.4, "champion_new_prompt": 0.6, "challenger": 0.9},
    gain=(0.5, 0.4, 0.6),
    own=(0.3, 0.2, 0.4),
    num=192,
    falls=0,
    collapsed="",
    minutes=2.0,
)
STOPPED = Outcome("stopped", "training collapsed", {}, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 0, 1, "it fell", 1.0)


@pytest.fixture
def ladders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ladders that end at once; the keys of those that were run. Seed 3 collapses."""
    keys: list[str] = []

    def run_ladder(agent: Agent, stamp: str) -> Outcome:
        keys.append(agent.key)
        return STOPPED if agent.seed == 3 else PROMOTED

    monkeypatch.setattr(seeds, "_run_ladder", run_ladder)
    monkeypatch.setattr(seeds, "KEPT", tmp_path)
    monkeypatch.setattr(figure, "record", lambda line, args, notes=None: None)
    return keys


def part(found: Any, name: str) -> Any:
    return next(each for each in found.parts if each.name == name)


def test_a_ladder_that_did_not_promote_is_counted_and_named(ladders: list[str]):
    found = seeds.first_agent(["first"])
    promoted = part(found, "first: promoted")
    assert (promoted.value, promoted.n, promoted.holds) == (9, 10, True)
    assert promoted.reason == "first-3-disturbed: training collapsed"
    assert part(found, "first: collapsed").holds is False
    assert part(found, "first: median gain").value == 0.5


def test_what_is_on_record_is_not_run_again(ladders: list[str]):
    seeds.first_agent(["first"])
    assert ladders == [f"first-{n}{'-disturbed' if n % 2 else ''}" for n in range(10)]
    again = seeds.first_agent(["first-0"])
    assert len(ladders) == 10
    assert part(again, "first: promoted").value == 9
    small = part(again, "small: promoted")
    assert (small.value, small.holds) == (None, None)
    assert small.reason == "small-0 is not on record for this code, and ARGS names others"


def test_a_record_of_other_code_does_not_count(ladders: list[str], tmp_path: Path):
    agent = seeds.first()[0]
    seeds.ran(agent, [])
    kept = tmp_path / f"{agent.key}.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"stamp": "other"}))
    assert isinstance(seeds.ran(agent, ["small"]), str)
    assert seeds.ran(agent, []) == PROMOTED
    assert ladders == [agent.key, agent.key]


def test_rft_alone_must_gain_on_every_seed(ladders: list[str]):
    found = seeds.recipes_seeds(["wordle"])
    assert part(found, "wordle: seed 0: RFT's own gain, low end").holds is True
    assert part(found, "wordle: seed 2, disturbed: RFT's own gain").value == 0.3
    assert part(found, "wordle: spread of the reward after RFT between seeds").value == 0
    assert part(found, "filings: seed 0: RFT's own gain, low end").holds is None


def test_the_stamp_follows_what_a_ladder_depends_on():
    first, small = seeds.first()[0], seeds.small()[0]
    stamps = {seeds._stamp(each) for each in (first, seeds.first()[2], small, seeds.demo()[0])}
    assert len(stamps) == 4
    assert seeds._stamp(first) == seeds._stamp(first)


def test_collapses_are_counted_by_what_is_true():
    rows = [
        {"times": 1, "before": 0.6, "after": 0.9, "falls": 0, "twin": 0.9},
        {"times": 30, "before": 0.6, "after": None, "falls": 1, "twin": 0.0},
        {"times": 30, "before": 0.6, "after": 0.1, "falls": 0, "twin": 0.1},
        {"times": 30, "before": 0.6, "after": None, "falls": 1, "twin": 0.7},
    ]
    found = collapse.figure_of(rows)
    assert part(found, "collapses that reach the look").value == 1
    assert part(found, "honest trainings that were stopped").value == 1
    assert part(found, "at 30 times the default: unwatched, collapsed").value == 2
    assert found.holds is False
