"""What an answer is worth: the published reward, A * (0.6 + 0.4 * C) - 0.2 * H.

    A   1 if the value is within 0.5 % of the computed one and the unit is right, else 0
    C   F1 of the cited pages against the operands' pages
    H   share of the citations whose quote is nowhere in the cited document

An answer is one JSON object and nothing beside it:

    {"citations": [{"doc": "10K-482130", "page": 3, "quote": " revenue 482130 thousands"}],
     "value": 482130, "unit": "thousands"}

Keys come in any order, each once. The value is one JSON number in digits. Any other text earns 0,
like a wrong value, because a policy learns to write whatever passes.

A cited page counts as right if every quote from it is an exact piece of one of its lines, and shows
an operand there: its item and its number. So a bare number, a single letter and a whole page prove
nothing, and a page that is cited for something else is a wrong citation.

grader.json declares what "not in filings" earns. If the filings have no answer, it earns 1, and any
answer earns -0.5. If they have one, it earns 0, like a wrong answer. That is the published scale
unchanged, and our range is -0.5 to 1.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from .filings import Corpus
from .questions import ABSTENTION, shows

LOW = -0.5
TOLERANCE = Fraction(5, 1000)
MAX_ANSWER = 2000
MAX_QUOTE = 200
MAX_CITATIONS = 6
"""A question has at most two operands. An answer that cites more pages than this casts a net."""
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_PAGE = re.compile(r"[0-9]{1,4}")


class Raw(str):
    """A JSON number as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Citation:
    doc: str
    page: int
    quote: str


@dataclass(frozen=True, slots=True)
class Answer:
    value: Fraction
    unit: str
    citations: tuple[Citation, ...]


class NoAnswer(ValueError):
    """Why a text is not an answer."""


def grade(sample: dict[str, Any], item: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Return the verdict. Raises ValueError for a broken row."""
    answers, operands = _target(item)
    if item["target"] == ABSTENTION:
        return _verdict(LOW, 0.0, 0.0, 0.0, "answered, and the filings have no answer")
    try:
        answer = read_answer(sample)
    except NoAnswer as why:
        return _verdict(0.0, 0.0, 0.0, 0.0, str(why))
    right = any(_is_near(answer.value, value) and answer.unit == unit for value, unit in answers)
    cited, invented = _citations(answer, operands, corpus)
    score = right * (0.6 + 0.4 * cited) - 0.2 * invented
    reason = f"value and unit {'right' if right else 'wrong'}; citations {cited:.2f}; invented quotes {invented:.2f}"
    return _verdict(score, float(right), cited, invented, reason)


def read_answer(sample: dict[str, Any]) -> Answer:
    """Read the final text. Raises NoAnswer."""
    if any(choice["message"].get("tool_calls") for choice in sample.get("choices") or []):
        raise NoAnswer("ended on a tool call, without an answer")
    text = (sample.get("output_text") or "").strip()
    if not text:
        raise NoAnswer("no answer")
    if len(text) > MAX_ANSWER:
        raise NoAnswer(f"the answer is longer than {MAX_ANSWER} characters")
    try:
        found = json.loads(text, parse_int=Raw, parse_float=Raw, parse_constant=_refused, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"the answer is not JSON alone: {str(error)[:80]}") from None
    if not isinstance(found, dict) or set(found) != {"value", "unit", "citations"}:
        raise NoAnswer('the answer is not {"citations": [...], "value": ..., "unit": ...}')
    value, unit, citations = found["value"], found["unit"], found["citations"]
    if not isinstance(value, Raw) or not _NUMBER.fullmatch(value):
        raise NoAnswer("the value is not one number in plain digits")
    if not isinstance(unit, str) or isinstance(unit, Raw):
        raise NoAnswer("the unit is not a text")
    if not isinstance(citations, list) or len(citations) > MAX_CITATIONS:
        raise NoAnswer(f"the citations are not a list of at most {MAX_CITATIONS}")
    return Answer(Fraction(value), unit, tuple(map(_citation, citations)))


def _citation(given: Any) -> Citation:
    if not isinstance(given, dict) or set(given) != {"doc", "page", "quote"}:
        raise NoAnswer('a citation is not {"doc": ..., "page": ..., "quote": ...}')
    doc, page, quote = given["doc"], given["page"], given["quote"]
    if not isinstance(page, Raw) or not _PAGE.fullmatch(page):
        raise NoAnswer("the page of a citation is not a whole number")
    if not all(isinstance(text, str) and not isinstance(text, Raw) for text in (doc, quote)):
        raise NoAnswer("doc or quote of a citation is not a text")
    return Citation(doc, int(page), quote)


def _citations(answer: Answer, operands: list[list[dict[str, Any]]], corpus: Corpus) -> tuple[float, float]:
    """Return C and H."""
    if not answer.citations:
        return 0.0, 0.0
    invented = sum(not _is_in_document(each, corpus) for each in answer.citations) / len(answer.citations)
    pages: dict[tuple[str, int], list[set[int]]] = {}
    for citation in answer.citations:
        shown = {n for n, operand in enumerate(operands) if _is_shown(citation, operand, corpus)}
        pages.setdefault((citation.doc, citation.page), []).append(shown)
    right = {page for page, found in pages.items() if all(found)}
    places = [{(place["doc"], place["page"]) for place in operand} for operand in operands]
    precision = len(right) / len(pages)
    recall = sum(not right.isdisjoint(each) for each in places) / len(places)
    return (2 * precision * recall / (precision + recall) if right else 0.0), invented


def _is_shown(citation: Citation, operand: list[dict[str, Any]], corpus: Corpus) -> bool:
    """Whether the quote is an exact piece of a line of its page, and shows the operand there."""
    places = [place for place in operand if (place["doc"], place["page"]) == (citation.doc, citation.page)]
    return (
        bool(places)
        and _is_quoted(citation, corpus)
        and any(shows(citation.quote, place["item"], place["number"]) for place in places)
    )


def _is_quoted(citation: Citation, corpus: Corpus) -> bool:
    filing = corpus.filing(citation.doc)
    page = filing.page(citation.page) if filing else None
    if page is None or not citation.quote.strip():
        return False
    return "\n" not in citation.quote and len(citation.quote) <= MAX_QUOTE and citation.quote in page.text


def _is_in_document(citation: Citation, corpus: Corpus) -> bool:
    filing = corpus.filing(citation.doc)
    if filing is None or not citation.quote.strip():
        return False
    return any(citation.quote in page.text for page in filing.pages)


def _is_near(value: Fraction, right: Fraction) -> bool:
    return abs(value - right) <= TOLERANCE * abs(right)


def _target(item: dict[str, Any]) -> tuple[list[tuple[Fraction, str]], list[list[dict[str, Any]]]]:
    """Read a row's target. Raises ValueError."""
    target = item["target"]
    if target == ABSTENTION:
        return [], []
    try:
        answers = [(Fraction(str(each["value"])), each["unit"]) for each in target["answers"]]
        operands = target["operands"]
        is_whole = bool(answers and operands) and all(
            {"doc", "page", "item", "number"} <= set(place) for operand in operands for place in operand
        )
    except (TypeError, KeyError, ValueError):
        is_whole, answers, operands = False, [], []
    if not is_whole or not all(operands):
        raise ValueError(f"row {item.get('id')}: the target {target!r:.200} has no answers and operands")
    return answers, operands


def _verdict(score: float, right: float, cited: float, invented: float, reason: str) -> dict[str, Any]:
    parts = {"right": right, "citations": cited, "invented": invented}
    return {"score": score, "solved": score == 1.0, "reason": reason, "sub_scores": parts}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
