"""Similarity metrics: shares of texts that are known, and what is missing is named."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.config.graders import METRICS, TextSimilarity
from rft.errors import UserError
from rft.grading import text_similarity
from rft.grading.text_similarity import TextComparer, metric

OFFLINE = [name for name in METRICS if name != "meteor"]
_WORDS = st.lists(st.sampled_from(["the", "cat", "Sat", "on", "mat,", "7"]), min_size=5, max_size=12).map(" ".join)


@pytest.mark.parametrize("name", OFFLINE)
def test_a_metric_is_a_share(name: str):
    measure = metric(name)

    @given(_WORDS, _WORDS)
    def check(said: str, reference: str) -> None:
        value = measure(said, reference)
        assert 0 <= value <= 1 + 1e-12
        assert measure(reference, reference) == pytest.approx(1)

    check()


@given(_WORDS, _WORDS)
def test_rouge_l_is_rouge_score_s_own(said: str, reference: str):
    from rouge_score.rouge_scorer import RougeScorer

    own: Any = RougeScorer(["rougeL"]).score(reference, said)["rougeL"].fmeasure
    assert metric("rouge_l")(said, reference) == pytest.approx(own)


def test_meteor_is_there_or_says_what_is_missing():
    try:
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
    except LookupError:
        with pytest.raises(UserError, match=r"needs the corpus wordnet .* python -m nltk\.downloader wordnet"):
            metric("meteor")
        return
    assert metric("meteor")("the cat sat", "the cat sat") > 0.98


@pytest.mark.parametrize(
    ("name", "package"),
    [("fuzzy_match", "rapidfuzz"), ("bleu", "nltk"), ("gleu", "nltk"), ("meteor", "nltk"), ("rouge_2", "rouge_score"),
     ("rouge_l", "rapidfuzz"), ("rouge_l", "rouge_score")],
)  # fmt: skip
def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, name: str, package: str):
    real = builtins.__import__

    def without(wanted: str, *rest: Any) -> Any:
        if wanted.partition(".")[0] == package:
            raise ImportError(f"No module named '{package}'")
        return real(wanted, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    settings = TextSimilarity(type="text_similarity", name="x", input="", reference="", evaluation_metric=name)
    remedy = f"pip install '{text_similarity.PACKAGES[package]}'"
    with pytest.raises(UserError, match=rf"'{name}' needs a package that is not installed\. {remedy}"):
        TextComparer(settings)
