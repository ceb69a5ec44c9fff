"""A normal form takes time in proportion to the text, and keeps what languages write."""

from __future__ import annotations

import unicodedata

from bench.slow_text import took
from rft.normal_form import MOST_ACCENTS, few_accents, normal


def test_time_grows_as_the_text():
    def read(text: str) -> object:
        return normal("NFKC", text)

    for accents in ("\u0301", "\u0316\u0301"):
        short, long = (took(read, "a" + accents * size) for size in (2_000, 16_000))
        assert long < max(0.02, 30 * short)


def test_letters_keep_their_accents():
    for text in ("Tie\u0302\u0301ng Vie\u0323\u0302t", "plain", "a" + "\u0301" * MOST_ACCENTS, "\u0301"):
        assert normal("NFKD", text) == unicodedata.normalize("NFKD", text)
    assert few_accents("a" + "\u0301" * 31 + "b\u0316\u0301") == "a" + "\u0301" * 30 + "b\u0316\u0301"
