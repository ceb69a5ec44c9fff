"""Compute Unicode's normal forms in time proportional to the length of a text.

Python's own functions take time that grows with the square of the accents on one letter: 80 kB of
accents took six seconds. No language writes more than a few, so a letter keeps at most
MOST_ACCENTS.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

MOST_ACCENTS = 30
"""Most accents on one letter. Unicode's Stream-Safe Text Format (UAX 15) allows as many."""


def normal(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Return the normal form of a text, without the accents that `few_accents` leaves out."""
    return unicodedata.normalize(form, few_accents(text))


def few_accents(text: str) -> str:
    """Keep at most MOST_ACCENTS accents on a letter."""
    if text.isascii():
        return text
    accents = "".join(sorted(letter for letter in set(text) if unicodedata.combining(letter)))
    return re.sub(f"([{accents}]{{{MOST_ACCENTS}}})[{accents}]+", lambda run: run[1], text) if accents else text


__all__ = ["few_accents", "normal"]
