"""Decides whether an answer is right, by its form. The same words always get the same verdict.

    number    929273, also written #929273
    date      2019-05-28, 28 May 2019, May 28, 2019
    text      a name or version; case, spaces and, in plain ASCII, accents do not count

No model is asked. There must be one answer, and nothing beside it. A number, date or version must
be in plain ASCII, and a name must have the letters of the name itself. A name or version may have
its own marks, and those that stand around a word or a sentence. So no list, no `>= 1.8.2`, no
`jane doe ?`, no remark for the judge and no invisible letter passes beside the right word.

An *abstention* says that the mailbox does not hold the answer. It is null, or one of `SAYS` as the
whole answer, in upper or lower case, with any punctuation around it. "I don't know, but perhaps
929273" is an answer.
"""

from __future__ import annotations

import datetime
import re
from typing import Literal

from rft.config.abstention import plain
from rft.normal_form import normal

from .mails import fold

Form = Literal["number", "date", "text"]
LONGEST = 120
"""The most characters of an answer, unless the right one is longer."""
SAYS = frozenset(
    plain(text)
    for text in (
        "I don't know",
        "I do not know",
        "don't know",
        "unknown",
        "not found",
        "no answer",
        "none",
        "n/a",
        "the mailbox does not say",
        "not in the mailbox",
    )
)
_DAYS = ("%Y-%m-%d", "%d %B %Y", "%d %b %Y", "%B %d, %Y", "%b %d, %Y", "%B %d %Y", "%b %d %Y")
_MARKS = frozenset(" .,'\"()")


def abstains(answer: str | None) -> bool:
    return answer is None or plain(answer) in SAYS


def is_right(answer: str, target: str, form: Form) -> bool:
    given = answer.strip(" \n")
    if len(given) > max(LONGEST, len(target)) or not given.isprintable():
        return False
    if form == "text":
        return _same_text(given, target)
    if not given.isascii():
        return False
    if form == "number":
        return re.fullmatch(r"#?\d+", given) is not None and given.lstrip("#") == target.lstrip("#")
    return _day(given) is not None and _day(given) == _day(target)


def form_of(target: str) -> Form:
    """Return the form of an answer that a person wrote down."""
    if re.fullmatch(r"#?\d+", target.strip()):
        return "number"
    return "date" if _day(target.strip()) else "text"


def _same_text(given: str, target: str) -> bool:
    if _letters(given) == _letters(target):
        return True
    marks = {letter for letter in given if not letter.isalnum()}
    return given.isascii() and marks <= _MARKS | set(target) and fold(given) == fold(target) != ""


def _letters(text: str) -> str:
    """Fold a text without NFKC and casefold, which unite two letters that only look alike."""
    return " ".join(normal("NFC", text).lower().split())


def _day(text: str) -> datetime.date | None:
    for form in _DAYS:
        try:
            return datetime.datetime.strptime(text, form).date()
        except ValueError:
            continue
    return None
