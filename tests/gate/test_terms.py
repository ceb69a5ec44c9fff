"""What a look may cost, and which terms are looser: alpha is spent, not divided anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.gate import terms
from tests import sample_reports

GATE = sample_reports.GATE.model_dump(mode="json")


def test_with_terms_that_stay_each_look_gets_its_share() -> None:
    spent = 0.0
    for look in range(1, 6):
        level = terms.level(0.05, 5, look, spent)
        assert level == pytest.approx(0.005)
        spent += terms.CANDIDATES * level
    assert spent == pytest.approx(0.05)
    assert terms.level(0.05, 5, 6, spent) == 0.0


@given(st.lists(st.tuples(st.floats(0.001, 0.2), st.integers(1, 40)), min_size=1, max_size=30))
def test_no_history_of_changed_terms_spends_more_than_the_largest_alpha(history: list[tuple[float, int]]) -> None:
    spent, look = 0.0, 1
    for alpha, looks in history:
        level = terms.level(alpha, looks, look, spent)
        if level > 0:
            spent, look = spent + terms.CANDIDATES * level, look + 1
    assert spent <= max(alpha for alpha, _ in history) + 1e-9


def test_raising_the_looks_when_all_is_spent_gives_nothing() -> None:
    assert terms.level(0.05, 6, 6, 0.05) == 0.0
    assert terms.level(0.05, 20, 3, 0.02) == pytest.approx(0.03 / 18 / 2)


@pytest.mark.parametrize(
    ("change", "is_looser"),
    [
        ({"alpha": 0.5}, True),
        ({"alpha": 0.01}, False),
        ({"min_gain": GATE["min_gain"] - 0.01}, True),
        ({"min_gain": GATE["min_gain"] + 0.01}, False),
        ({"max_tokens_increase": GATE["max_tokens_increase"] + 1}, True),
        ({"max_hack_rate": 0.0}, False),
        ({"require_hack_source": not GATE["require_hack_source"]}, GATE["require_hack_source"]),
        ({"require_drift": []}, False),
        ({"seed": 99}, True),
        ({"num_bootstrap": 500}, True),
        ({"looks": 50}, False),
        ({"looks": 1}, False),
        ({"max_abstention_increase": 0.1}, False),
        ({"a_key_of_a_later_version": 3}, False),
    ],
)
def test_a_term_is_looser_or_not(change: dict[str, object], is_looser: bool) -> None:
    assert terms.loosened_keys({**GATE, **change}, GATE) == ([next(iter(change))] if is_looser else [])


def test_a_limit_that_is_taken_away_is_looser() -> None:
    assert terms.loosened_keys({**GATE, "max_abstention_increase": None}, {**GATE, "max_abstention_increase": 0.1}) == [
        "max_abstention_increase"
    ]
    wider = {**GATE, "require_drift": ["continue", "refresh"]}
    assert terms.loosened_keys(wider, {**GATE, "require_drift": ["continue"]}) == ["require_drift"]


def test_every_term_has_a_direction() -> None:
    """A new key of the gate must say which way is looser; until then any change of it is."""
    known = {*terms._STRICTER_LOWER, *terms._STRICTER_HIGHER, *terms._NOT_COMPARED, "require_drift"}
    assert set(type(sample_reports.GATE).model_fields) - known == {"prices", "num_bootstrap", "seed"}
