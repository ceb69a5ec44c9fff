"""The figures of drift: their worlds are what they say, and the rates would tell a looser rule."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import drift_false_alarms, drift_power
from bench.drift_worlds import CHANGES, Change, World, pair
from rft.drift import distance, effects, noise, owners

USERS = World("users of 10, ICC 0.5", per_user=10, icc=0.5)


def test_a_window_holds_what_it_says() -> None:
    reference, current = pair(World("long against short", reference=2000, current=300), (0,))
    assert (reference.profile.num_conversations, current.profile.num_conversations) == (2000, 300)
    for name, feature in reference.profile.features.items():
        if feature.kind != "text":
            assert owners.matrix(feature.cells, len(feature.counts)).sum(axis=0).tolist() == feature.counts, name
    assert {feature.statistic for feature in reference.profile.features.values()} == {
        "wasserstein_sd", "psi", "total_variation", "classifier_auc",
    }  # fmt: skip


def test_the_same_seed_is_the_same_pair() -> None:
    once, again = (pair(USERS, (1, 2)) for _ in range(2))
    assert once[0].profile == again[0].profile
    assert once[0].profile != once[1].profile != pair(USERS, (1, 3))[1].profile


@pytest.mark.parametrize("name", ["channel", "intent", "refused"])
def test_conversations_of_a_user_depend_on_each_other_only_where_users_have_some(name: str) -> None:
    found: dict[int, float] = {}
    for per_user in (1, 10):
        feature = pair(World("", 4000, 100, per_user, icc=0.5), (3,))[0].profile.features[name]
        side = noise.side(feature)
        found[per_user] = noise.design_effect(side, effects.shares(side.counts_B))
    assert found[1] == pytest.approx(1, abs=0.25)
    assert found[10] > 2.5


@pytest.mark.slow
def test_a_change_moves_its_feature_and_leaves_the_others() -> None:
    world = World("", 4000, 4000)
    for kind, (moved, _, large) in CHANGES.items():
        if moved == "phrasing":
            continue
        reference, current = pair(world, (4,), Change(kind, large))
        for name in ("input_words", "channel", "product", "latency_s", "refused", moved):
            sides = [window.profile.features[name] for window in (reference, current)]
            found = distance.compared(sides[0], sides[1], str, 0).effect
            assert (found > 0.14) == (name == moved), (kind, name, found)


def test_rows_are_those_that_were_counted() -> None:
    window, _ = pair(USERS, (5,), rows=True)
    feature = window.profile.features["num_tool_calls"]
    bins = np.searchsorted(feature.edges, window.rows["num_tool_calls"])
    assert np.bincount(bins, minlength=len(feature.counts)).tolist() == feature.counts
    assert {len(values) for values in window.rows.values()} == {1000}


@pytest.mark.slow
def test_the_small_figure_of_false_alarms_holds_and_would_tell_users_that_are_forgotten() -> None:
    figure = drift_false_alarms.drift_false_alarms(["--small"])
    assert figure.holds is True
    rates = {part.name: part.value for part in figure.parts}
    assert rates["users of 30, ICC 0.5: called drifted"] == 0
    assert rates["users of 30, ICC 0.5: called drifted if every count were independent"] == 1


@pytest.mark.slow
def test_the_small_figure_of_power_sees_what_is_large() -> None:
    figure = drift_power.drift_power(["--small"])
    assert figure.holds is True
    assert figure.notes is not None
    cells = {(row["kind"], row["large"]): row for row in figure.notes["cells"]}
    assert cells["a new intent", True]["true_effect"] == pytest.approx(0.35, abs=0.02)
    assert cells["a new intent", False]["seen"] < 2


def test_a_peer_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_power, "PEER", drift_power.ROOT / ".rft" / "bench" / "no" / "bin" / "python")
    (part,) = drift_power._peer_parts([], 5)
    assert (part.value, part.holds) == (None, None)
    assert "Evidently is not installed" in part.reason
    assert "evidently==0.7.23" in part.reason


def test_a_peer_gets_rows_and_tells_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for its environment, that reads what it is given and calls every column."""
    peer = tmp_path / "python"
    script = (
        "import json, pathlib, sys; folder = pathlib.Path(sys.argv[2]); "
        "held = {p.name: json.loads(p.read_text()) for p in folder.glob('pair-*.json')}; "
        "called = {n: {c: len(v) == 1000 for c, v in h['current'].items()} for n, h in held.items()}; "
        "(folder / 'verdicts.json').write_text(json.dumps(called))"
    )
    peer.write_text(f"#!{sys.executable}\n{script}\n")
    peer.chmod(0o755)
    monkeypatch.setattr(drift_power, "PEER", peer)
    cell = drift_power.Cell("a new intent", 0.35, True, 0.35, 0.15, 1, 1, 0)
    called, others = drift_power._peer_parts([cell], 1)
    assert (called.value, others.value) == (1.0, 11.0)
    assert json.dumps(called.row())
