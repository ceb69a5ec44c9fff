"""The figure of changing owners: nothing beyond alpha is spent, and the rule of before is seen."""

from __future__ import annotations

import pytest

from bench import looks_history as here

GATE = here._gate()


@pytest.mark.slow
def test_no_owner_spends_more_than_alpha_or_looks_under_looser_terms() -> None:
    for owner in here.HISTORIES:
        for seed in range(8):
            told = here._history(GATE, owner, seed)
            assert told.looks >= 1
            assert told.spent <= GATE["alpha"] + 1e-9
            assert told.loosened == 0


def test_an_owner_who_changes_nothing_has_the_levels_of_before() -> None:
    assert here._power(GATE) < 1e-9


@pytest.mark.slow
def test_the_rule_of_before_lets_looser_terms_stand() -> None:
    before = [here._history(GATE, "everything", seed, anew=True) for seed in range(8)]
    assert sum(told.loosened for told in before) > 0
    assert sum(told.promoted for told in before) > sum(
        here._history(GATE, "everything", seed).promoted for seed in range(8)
    )
