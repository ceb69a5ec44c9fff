"""The figure of the gate under its null: it holds for our rule, and would not for a looser one."""

from __future__ import annotations

import pytest

from bench import gate_cases, gate_null
from bench.gate_rule import Habit, Rule
from rft import stats
from rft.gate import levels

NUM = 400


def _limit(count: int) -> float:
    """The figure's own: the exact lower 95 % limit of a share."""
    found = stats.exact_interval(count, NUM, confidence=0.9).low
    assert found is not None
    return found


@pytest.mark.slow
def test_the_small_figure_holds() -> None:
    figure = gate_null.gate_null(["--small"])
    line = figure.line("gate_null")
    assert line["holds"] is True
    assert line["value"] <= 0.05
    names = "; ".join(part["name"] for part in line["parts"])
    for phrase in ("without counting looks", "min_gain + 0.1", "greedy score regressed", "decide alike", ": missed"):
        assert phrase in names


@pytest.mark.slow
def test_it_tells_looks_that_are_not_counted() -> None:
    """The null holds with the price of a look, and breaks where each look spends the whole
    alpha."""
    setting = next(gate_null.shipped())
    null, looks = Habit(gain=setting.gate.min_gain), setting.gate.looks
    ours, loose = (gate_null.promoted(setting, null, NUM, rule, looks) for rule in (Rule(), Rule(count_looks=False)))
    assert _limit(ours) <= setting.gate.alpha < _limit(loose)


@pytest.mark.slow
def test_it_tells_vetoes_that_are_not_counted_together() -> None:
    setting = next(gate_null.shipped())
    edge = Habit(gain=-setting.gate.max_slice_loss)
    ours, loose = (
        gate_null.vetoed(setting.gate, gate_null.WIDE, setting.k, edge, NUM, rule)[1]
        for rule in (Rule(), Rule(holm=False))
    )
    assert _limit(ours) <= 0.025 < _limit(loose)


@pytest.mark.slow
def test_it_tells_a_gate_that_decides_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's own decide is measured too: where it no longer counts looks, the two part."""
    gate = next(gate_null.shipped()).gate
    near = [case for case in gate_cases.cases(gate, 10) if case.gate.looks > 1]
    assert all(gate_cases.agree(case) for case in near)
    monkeypatch.setattr(levels, "question", lambda gate, registered=None: 0.2)
    assert not all(gate_cases.agree(case) for case in near)
