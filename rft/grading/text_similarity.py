"""The grader that measures how similar a text is to a reference, from 0 to 1.

    fuzzy_match           1 - insertions and deletions / letters of both (rapidfuzz's `ratio`)
    bleu                  shared runs of 1 to 4 words, times a penalty for brevity (nltk). A short
                          text is judged by the lengths of runs that it can have. A length without a
                          shared run counts as half, a quarter, ... of one (smoothing of NIST)
    gleu                  shared runs of 1 to 4 words, the lower of precision and recall (nltk)
    meteor                aligned words, their stems and synonyms, times a penalty for disorder
                          (nltk, with the corpus wordnet)
    rouge_1 ... rouge_5   shared runs of 1 ... 5 words, as F1 (rouge-score)
    rouge_l               the longest common sequence of words, as F1 (rouge-score's words)

bleu, gleu and meteor split a text into words and punctuation, and keep its case. rouge turns it
into lower case, and knows only a-z and 0-9. A reference without any of these gives no score. An
empty reference, which an empty answer would match, gives no score either.

All but meteor take time that hardly grows with the text, so a long answer cannot hold up a run. A
text longer than MAX_CHARS gets the lowest score if the policy wrote it, and no score if it is in
the row. The grader loads what its metric needs when it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rft.config.graders import TextSimilarity
from rft.config.templates import Missing, Template
from rft.errors import UserError
from rft.grading.seen import passed, scope_of, without
from rft.scale import Scale
from rft.types import Example, Grade, GradeStatus, RolloutContext, Scored, StopReason, Turn, Unscored

MAX_CHARS = 100_000
MAX_CHARS_METEOR = 10_000  # it compares each word with each, in Python: 0.3 s
Metric = Callable[[str, str], float]
"""(text, reference) -> 0 to 1."""


class TextComparer:
    """The grader of a `text_similarity`."""

    def __init__(self, settings: TextSimilarity) -> None:
        """Raises UserError where meteor's corpus is not installed."""
        self._settings = settings
        self.scale: Scale = settings.scale
        self._input, self._reference = Template.read(settings.input), Template.read(settings.reference)
        self._limit = MAX_CHARS_METEOR if settings.evaluation_metric == "meteor" else MAX_CHARS
        self._metric = metric(settings.evaluation_metric)

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        settings, scope = self._settings, scope_of(turns, stop_reason, context)
        try:
            text, reference = self._input.render(scope), self._reference.render(scope)
        except Missing as missing:
            return without(settings, missing)
        if len(reference) > self._limit:
            return self._unscored(f"the reference has {len(reference):,} characters, more than {self._limit:,}")
        if len(text) > self._limit:
            why = f"{settings.name}: the text has {len(text):,} characters, more than {self._limit:,}"
            return Scored(
                self.scale.low, GradeStatus.unjudgeable_answer, explanation=why, flags=("sample_parse_error",)
            )
        if not reference.strip():
            return self._unscored("the reference is empty")
        try:
            score = await asyncio.to_thread(self._metric, text, reference)
        except _NoWords as error:
            return self._unscored(str(error))
        return passed(settings, score, f"{settings.evaluation_metric} {score:.4g}")

    def _unscored(self, why: str) -> Unscored:
        return Unscored(GradeStatus.grader_bad_reply, f"grader: {self._settings.name}: {why}", flags=("other_error",))


class _NoWords(ValueError):
    """The reference has no words that the metric knows."""


def metric(name: str) -> Metric:
    """Load a metric. Raises UserError where meteor's corpus is not installed."""
    if name == "fuzzy_match":
        return _fuzzy_match()
    if name == "rouge_l":
        return _rouge_l()
    if name.startswith("rouge_"):
        return _rouge(int(name.removeprefix("rouge_")))
    return {"bleu": _bleu, "gleu": _gleu, "meteor": _meteor}[name]()


def _fuzzy_match() -> Metric:
    from rapidfuzz import fuzz

    return lambda text, reference: fuzz.ratio(text, reference) / 100


def _bleu() -> Metric:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    words, smooth = _words(), SmoothingFunction().method3

    def bleu(text: str, reference: str) -> float:
        value: Any = sentence_bleu([words(reference)], words(text), smoothing_function=smooth, auto_reweigh=True)
        return float(value)

    return bleu


def _gleu() -> Metric:
    from nltk.translate.gleu_score import sentence_gleu

    words = _words()
    return lambda text, reference: float(sentence_gleu([words(reference)], words(text)))


def _meteor() -> Metric:
    from nltk.corpus import wordnet
    from nltk.translate.meteor_score import meteor_score

    try:
        wordnet.ensure_loaded()
    except LookupError:
        raise UserError(
            "grader.json: evaluation_metric = 'meteor' needs the corpus wordnet of nltk, which is not installed. "
            "python -m nltk.downloader wordnet"
        ) from None
    words = _words()
    return lambda text, reference: float(meteor_score([words(reference)], words(text)))


def _words() -> Callable[[str], list[str]]:
    from nltk.tokenize import wordpunct_tokenize

    return wordpunct_tokenize


def _rouge(size: int) -> Metric:
    from rouge_score.rouge_scorer import RougeScorer

    tokens, scorer = _rouge_words(), RougeScorer([f"rouge{size}"], use_stemmer=False)

    def rouge(text: str, reference: str) -> float:
        if not _has_runs(tokens(reference), size):
            raise _NoWords(f"the reference has fewer than {size} words of a-z and 0-9, which are all that rouge knows")
        return float(scorer.score(reference, text)[f"rouge{size}"].fmeasure)

    return rouge


def _rouge_l() -> Metric:
    """Compute rouge_l. rouge-score's own function takes 3.4 s for two texts of 19,000 characters,
    this one 2 ms; the scores are equal."""
    from rapidfuzz.distance import LCSseq
    from rouge_score.scoring import fmeasure

    tokens = _rouge_words()

    def rouge(text: str, reference: str) -> float:
        spoken, wanted = tokens(text), tokens(reference)
        if not _has_runs(wanted, 1):
            raise _NoWords("the reference has no words of a-z and 0-9, which are all that rouge knows")
        if not spoken:
            return 0.0
        shared = LCSseq.similarity(spoken, wanted)
        return float(fmeasure(shared / len(spoken), shared / len(wanted)))

    return rouge


def _rouge_words() -> Callable[[str], list[str]]:
    from rouge_score.tokenize import tokenize

    return lambda text: tokenize(text, None)


def _has_runs(words: Sequence[str], size: int) -> bool:
    return len(words) >= size
