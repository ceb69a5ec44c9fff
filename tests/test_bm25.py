"""Search finds what the formula says, in one order everywhere."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rft import bm25

WORDS = st.sampled_from("abcdefg")
DOCUMENTS = st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=25)


def reference(documents: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """The formula of the paper, written out."""
    mean = sum(map(len, documents)) / len(documents)
    scores = [0.0] * len(documents)
    for word in set(query):
        having = sum(word in document for document in documents)
        rarity = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        for n, document in enumerate(documents):
            if count := document.count(word):
                scores[n] += rarity * count * (k1 + 1) / (count + k1 * (1 - b + b * len(document) / mean))
    return scores


@given(DOCUMENTS, st.lists(WORDS, max_size=4), st.integers(1, 30), st.sampled_from([(0.9, 0.7), (1.2, 0.0)]))
def test_the_best_are_those_of_the_formula(
    documents: list[list[str]], query: list[str], k: int, settings: tuple[float, float]
) -> None:
    found = bm25.build(documents, *settings).best(query, k)
    scores = reference(documents, query, *settings) if any(documents) else [0.0]
    assert len(found) == len(set(found)) == min(k, sum(score > 0 for score in scores))
    told = [scores[n] for n in found]
    wanted = sorted((score for score in scores if score > 0), reverse=True)[:k]
    assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(told, wanted, strict=True))


def test_ties_go_to_the_lower_number_and_a_word_counts_once_in_a_query() -> None:
    index = bm25.build([["b"], ["a", "b"], ["a", "c"], ["a", "d"]])
    assert index.best(["a"], 3) == [1, 2, 3] == index.best(["a", "a"], 3)


def test_of_equal_keys_the_best_counts_and_none_is_passed_over() -> None:
    index = bm25.build([["a", "x"], ["a"], ["a", "x", "y"], ["a", "y"]])
    keys = ["one", "one", None, "two"]
    assert index.best(["a"], 4) == [1, 0, 3, 2]
    assert index.best(["a"], 4, keys.__getitem__) == [1, 3]


def test_what_is_not_there_finds_nothing() -> None:
    index = bm25.build([["a"], []])
    assert (index.best(["z"], 3), index.best([], 3)) == ([], [])
    assert bm25.build([]).best(["a"], 3) == bm25.build([[]]).best(["a"], 3) == []


def test_a_saved_index_answers_alike(tmp_path: Path) -> None:
    index = bm25.build([["a", "b"], ["b", "é"]])
    index.save(tmp_path / "index")
    loaded = bm25.load(tmp_path / "index")
    assert [loaded.best([word], 2) for word in "abéz"] == [index.best([word], 2) for word in "abéz"]
