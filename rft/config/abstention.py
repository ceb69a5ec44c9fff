"""What an abstention is and what it scores: key `abstention` of grader.json, for every type.

An agent that may say "I don't know" is wrong less often, if this scores more than a wrong answer
and less than a right one. But if it always scores, the agent learns to say nothing else. So a row
may declare that it has no answer, and the gate's max_abstention_increase guards against abstaining
where there is one. rft/grading/abstaining.py grades with this key.
"""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rft.config.section import Section
from rft.config.templates import Template
from rft.normal_form import normal

_LETTER = re.compile(r"\w")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u00b4": "'", "`": "'"})


class Abstention(Section):
    """Answers that say "I don't know", and what they are worth."""

    says: list[str] = Field(min_length=1)
    """Answers that abstain. The whole answer is compared, without blanks and punctuation around it.
    Upper and lower case are the same."""
    pays: float
    """The score of an abstention where there is an answer. It is at least the lowest score and
    below pass_threshold. Where there is no answer, an abstention gets the highest score, and
    anything else the lowest."""
    answer: str = "{{sample.output_text}}"
    """What is compared with `says`."""
    unanswerable: str | None = None
    """Template whose value is true for a row that has no answer, and false for another. None: every
    row has an answer."""

    @field_validator("says")
    @classmethod
    def _says_something(cls, value: list[str]) -> list[str]:
        for text in value:
            if not plain(text):
                raise ValueError(f"{text!r} is empty without its punctuation. Write what the agent says")
        return value

    @field_validator("answer", "unanswerable")
    @classmethod
    def _templates(cls, value: str | None) -> str | None:
        if value is not None and not Template.read(value).places:
            raise ValueError(f"{value!r} names no place. Write a template such as {{{{item.unanswerable}}}}")
        return value


def plain(text: str) -> str:
    """Reduce a text to its compared form: `plain("I don\u2019t know. ")` is "i don't know"."""
    text = " ".join(normal("NFKC", text).translate(_APOSTROPHES).casefold().split())
    first, last = _LETTER.search(text), _LETTER.search(text[::-1])
    return text[first.start() : len(text) - last.start()] if first and last else ""


__all__ = ["Abstention", "plain"]
