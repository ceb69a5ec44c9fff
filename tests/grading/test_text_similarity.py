"""Similarity metrics: shares of texts that are known, and what is missing is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.config.graders import METRICS
from rft.errors import UserError
from rft.grading.text_similarity import metric

OFFLINE = [name for name in METRICS if name != "meteor"]
_WORDS = st.lists(st.sampled_from(["the", "cat", "Sat", "on", "mat,", "7"]), min_size=5, max_size=12).map(" ".join)


@pytest.mark.parametrize("name", OFFLINE)
def test_a_metric_is_a_share(name: str):
    measure = metric(name)

    @given(_WORDS, _WORDS)
    def check(text: str, reference: str) -> None:
        value = measure(text, reference)
        assert 0 <= value <= 1 + 1e-12
        assert measure(reference, reference) == pytest.approx(1)

    check()


@given(_WORDS, _WORDS)
def test_rouge_l_is_rouge_score_s_own(text: str, reference: str):
    from rouge_score.rouge_scorer import RougeScorer

    own: Any = RougeScorer(["rougeL"]).score(reference, text)["rougeL"].fmeasure
    assert metric("rouge_l")(text, reference) == pytest.approx(own)


def test_meteor_is_there_or_says_what_is_missing():
    try:
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
    except LookupError:
        with pytest.raises(UserError, match=r"needs the corpus wordnet .* python -m nltk\.downloader wordnet"):
            metric("meteor")
        return
    assert metric("meteor")("the cat sat", "the cat sat") > 0.98
