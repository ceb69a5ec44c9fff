"""Effects against scipy and by hand; p-values against chance itself: how often does it cry wolf,
with and without dependent words?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse, stats

from rft.windows import distances

COUNTS = arrays.arrays(np.int64, 8, elements=st.integers(0, 50)).filter(lambda counts: counts.sum() > 0)


@given(COUNTS, COUNTS)
def test_effects_are_no_less_than_nothing_and_nothing_between_equals(a: Any, b: Any) -> None:
    places = np.arange(8)
    for effect in (distances.total_variation, distances.psi, lambda x, y: distances.wasserstein(x, y, places)):
        assert effect(a, b) >= 0
        assert effect(a, a) == 0
        assert effect(a, b) == pytest.approx(effect(b, a))
    assert distances.total_variation(a, b) <= 1


@given(COUNTS, COUNTS, st.lists(st.floats(-100, 100), min_size=8, max_size=8, unique=True).map(sorted))
def test_wasserstein_is_scipys(a: Any, b: Any, places: list[float]) -> None:
    assert distances.wasserstein(a, b, places) == pytest.approx(
        stats.wasserstein_distance(places, places, a, b), abs=1e-9
    )


def test_total_variation_is_the_part_that_moved() -> None:
    assert distances.total_variation([50, 50, 0], [50, 20, 30]) == pytest.approx(0.3)


def test_psi_of_the_textbook() -> None:
    # Half and half against 0.7 and 0.3: (0.2) ln(0.7/0.5) + (-0.2) ln(0.3/0.5)
    assert distances.psi([50_000, 50_000], [70_000, 30_000]) == pytest.approx(
        0.2 * np.log(1.4) - 0.2 * np.log(0.6), rel=1e-3
    )


@given(arrays.arrays(np.int64, (3, 8), elements=st.integers(0, 50)), st.integers(1, 12))
def test_quantile_groups_lose_no_count_and_keep_the_order(counts: Any, num_groups: int) -> None:
    group = distances.equal_groups(counts[0], num_groups)
    assert distances.regroup(counts, group).sum(axis=-1) == pytest.approx(counts.sum(axis=-1))
    assert list(group) == sorted(group)
    assert group.max() < num_groups


def test_quantile_groups_hold_equal_counts() -> None:
    group = distances.equal_groups(np.full(100, 7), 10)
    assert list(distances.regroup(np.full(100, 7), group)) == [70.0] * 10


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    above = [score for score, current in rows if current]
    below = [score for score, current in rows if not current]
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in above for b in below]
    won, num_pairs = distances.pairs_won(
        [score for score, _ in rows], np.array([float(current) for _, current in rows])
    )
    assert (won / num_pairs, num_pairs) == (pytest.approx(np.mean(pairs)), len(pairs))


def test_a_p_value_is_never_nothing() -> None:
    assert distances.p_value(2.0, np.zeros(99)) == pytest.approx(0.01)
    assert distances.p_value(0.0, np.zeros(99)) == 1.0


# -- does chance alone stay within what the p-value says? ------------------------------------------
def clustered(rng: np.random.Generator, num_rows: int, repeats: int) -> sparse.csr_matrix:
    """Conversations of about six words, each word said `repeats` times over: dependent units."""
    shares = 1 / np.arange(1, 41)
    return sparse.csr_matrix(rng.multinomial(6, shares / shares.sum(), size=num_rows) * repeats)


def p_of(reference: sparse.csr_matrix, current: sparse.csr_matrix, effect: float) -> float:
    sides = [np.asarray(side.sum(axis=0)).ravel() for side in (reference, current)]
    null = distances.null_draws(distances.total_variation, *sides, effect, 200, 0)
    return distances.p_value(float(distances.total_variation(*sides)), null)


@pytest.mark.parametrize("repeats", [1, 3])
def test_chance_alone_is_called_at_the_rate_that_p_says(repeats: int) -> None:
    rng = np.random.default_rng(1)
    p_values = []
    for _ in range(150):
        reference, current = clustered(rng, 400, repeats), clustered(rng, 100, repeats)
        p_values.append(p_of(reference, current, distances.design_effect(current)))
    assert 0.01 <= np.mean(np.array(p_values) < 0.1) <= 0.17
    assert 0.38 <= np.mean(p_values) <= 0.62


def test_without_the_design_effect_repeated_words_cry_wolf() -> None:
    rng = np.random.default_rng(1)
    p_values = [p_of(clustered(rng, 400, 3), clustered(rng, 100, 3), 1.0) for _ in range(50)]
    assert np.mean(np.array(p_values) < 0.1) > 0.9


def test_the_design_effect_of_repeats_is_their_number() -> None:
    rng = np.random.default_rng(2)
    assert distances.design_effect(clustered(rng, 3000, 1)) == pytest.approx(1, abs=0.1)
    assert distances.design_effect(clustered(rng, 3000, 4)) == pytest.approx(4, abs=0.3)


def test_one_value_a_conversation_has_no_design_effect() -> None:
    assert distances.design_effect(sparse.csr_matrix(np.eye(5))) == 1.0


def test_a_real_shift_is_seen() -> None:
    rng = np.random.default_rng(3)
    reference, current = clustered(rng, 400, 2), clustered(rng, 100, 2)
    moved = sparse.csr_matrix(np.roll(current.toarray(), 1, axis=1))
    assert p_of(reference, moved, distances.design_effect(moved)) < 0.01


# -- the classifier --------------------------------------------------------------------------------
def bags(rng: np.random.Generator, num_rows: int, words: range) -> sparse.csr_matrix:
    rows = np.zeros((num_rows, 60))
    for row in rows:
        row[rng.choice(list(words), 6, replace=False)] = 1
    return sparse.csr_matrix(rows)


def apart(reference: Any, current: Any, num_permutations: int = 200) -> tuple[float, Any]:
    labels = np.repeat([0.0, 1.0], [reference.shape[0], current.shape[0]])
    return distances.domain_classifier(
        sparse.csr_matrix(sparse.vstack([reference, current])), labels, num_permutations, 0
    )


def test_the_classifier_finds_other_words() -> None:
    rng = np.random.default_rng(0)
    auc, null = apart(bags(rng, 120, range(40)), bags(rng, 60, range(10, 50)))
    assert auc > 0.8
    assert distances.p_value(auc, null) < 0.01


def test_the_classifier_is_not_surprised_by_chance() -> None:
    p_values = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        auc, null = apart(bags(rng, 80, range(40)), bags(rng, 40, range(40)), 100)
        p_values.append(distances.p_value(auc, null))
    assert np.mean(np.array(p_values) < 0.1) <= 0.2
    assert 0.35 <= np.mean(p_values) <= 0.65


def test_equal_rows_tell_nothing_apart() -> None:
    same = sparse.csr_matrix(np.ones((30, 5)))
    auc, null = apart(same, same)
    assert auc == 0.5
    assert set(null) == {0.5}


def test_rows_without_words_do_no_harm() -> None:
    auc, null = apart(sparse.csr_matrix((20, 5)), sparse.csr_matrix((20, 5)))
    assert auc == 0.5
    assert set(null) == {0.5}
