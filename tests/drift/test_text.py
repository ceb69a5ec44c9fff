"""The classifier of texts: what it finds, what it does not, and how sure it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from rft.drift import noise, text


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    above = [score for score, current in rows if current]
    below = [score for score, current in rows if not current]
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in above for b in below]
    won, num_pairs = text.pairs_won([score for score, _ in rows], np.array([float(current) for _, current in rows]))
    assert (won / num_pairs, num_pairs) == (pytest.approx(np.mean(pairs)), len(pairs))


def bags(rng: np.random.Generator, num_rows: int, words: range) -> sparse.csr_matrix:
    rows = np.zeros((num_rows, 60))
    for row in rows:
        row[rng.choice(list(words), 6, replace=False)] = 1
    return sparse.csr_matrix(rows)


def distance(reference: Any, current: Any) -> text.Told:
    labels = np.repeat([0.0, 1.0], [reference.shape[0], current.shape[0]])
    return text.tell_apart(sparse.csr_matrix(sparse.vstack([reference, current])), labels, 0)


def test_the_classifier_finds_other_words() -> None:
    rng = np.random.default_rng(0)
    told = distance(bags(rng, 120, range(40)), bags(rng, 60, range(10, 50)))
    assert 0.5 < told.low < told.auc < told.high <= 1
    assert told.auc > 0.8
    assert noise.p_value(told.auc, told.shuffled(200)) < 0.01


def test_the_classifier_finds_another_order() -> None:
    forth, back = ["1 2 3 4 5 6"] * 60, ["6 5 4 3 2 1"] * 60
    labels = np.repeat([0.0, 1.0], 60)
    assert text.tell_apart(text.matrix_NB([*forth, *back]), labels, 0).auc == 1.0


def test_the_classifier_is_not_surprised_by_chance() -> None:
    p_values: list[float] = []
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        told = distance(bags(rng, 80, range(40)), bags(rng, 40, range(40)))
        p_values.append(noise.p_value(told.auc, told.shuffled(100)))
        covered += told.low <= 0.5 <= told.high
    assert np.mean(np.array(p_values) < 0.1) <= 0.2
    assert 0.35 <= np.mean(p_values) <= 0.65
    assert covered >= 50


def test_equal_rows_tell_nothing_apart() -> None:
    same = sparse.csr_matrix(np.ones((30, 5)))
    told = distance(same, same)
    assert (told.low, told.auc, told.high) == (0.5, 0.5, 0.5)
    assert set(told.shuffled(50)) == {0.5}


def test_rows_without_words_do_no_harm() -> None:
    told = distance(sparse.csr_matrix((20, 5)), sparse.csr_matrix((20, 5)))
    assert told.auc == 0.5
    assert set(told.shuffled(50)) == {0.5}


def test_a_row_marks_its_words_and_pairs_once() -> None:
    rows = text.matrix_NB(["3 4 3 4", ""])
    assert rows.sum(axis=1).ravel().tolist() == [[4, 0]]  # 3, 4, (3 4), (4 3)


def test_rows_are_chosen_from_all_over_the_sample() -> None:
    sample = [str(n) for n in range(1000)]
    found = text.chosen(sample, 0, 100)
    assert len(found) == 100
    assert found == sorted(found, key=int)
    assert int(found[0]) < 100
    assert int(found[-1]) >= 900
    assert text.chosen(sample[:50], 0, 100) == sample[:50]
