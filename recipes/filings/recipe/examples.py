"""Examples: a question about one company, and what the right answer rests on.

The target of a question is computed from the same cells that its filings print:

    {"answers":  [{"value": 482130, "unit": "thousands"}],
     "operands": [[{"doc": "10K-482130", "page": 3, "item": "revenue", "number": "482130",
                    "quote": " revenue 482130 thousands"}]]}

An operand is a list, because a figure may be printed on several pages. If the filings have no
answer, the target is "not in filings".

A stable hash of its name puts each company into one split, so what is tested was never trained on.
The names of companies that have filed nothing are split in the same way. The test split has BLOCKS
blocks, each with a third of its companies.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from rft.errors import UserError
from rft.recipe import Conversation, Example, Message
from rft.types import Split

from .asking import Asked, Writer, check_programs, take
from .corpora import corpus
from .filings import BLOCKS, Corpus
from .options import Options as Options
from .questions import ABSTENTION, parse, place_row, shows, target
from .statements import ITEMS, statement_of


def examples(options: Options, split: Split, count: int, seed: int, block: int = 0) -> list[Example]:
    """Return examples, equal for equal arguments. Raises UserError where there are not enough."""
    known = corpus(options)
    companies = known.companies(split)
    name = split
    if split == "test":
        if block >= BLOCKS:
            what = f"there is no block {block} of test examples: the companies are in blocks 0 to {BLOCKS - 1}"
            raise UserError(f"{what}. Lower examples.block or examples.blocks in params.yaml.")
        companies = [each for each in companies if known.part_of(each) == (split, block)]
        name = f"{split}-{block}" if block else split
    if not companies:
        total = len(known.families)
        raise UserError(
            f"filings: none of {total} companies is in the {name} split, which a hash of their names "
            "chooses. Add companies: 30 or more are in all splits."
        )
    check_programs(options, known)
    writer = Writer(options, known, companies, random.Random(f"{name} {seed}"))
    asked = take(writer.write(), count, f"the {len(companies)} companies of the {name} split")
    return [example(f"{name}-{n:05d}", each, known, options) for n, each in enumerate(asked)]


def example(example_id: str, asked: Asked, known: Corpus, options: Options) -> Example:
    question = asked.question
    return Example(
        example_id,
        ({"role": "user", "content": asked.text},),
        ABSTENTION if asked.lacks else target(question, known),
        _metadata(known, options, "unanswerable" if asked.lacks else question.program)
        | {"company": question.company, "lacks": asked.lacks or ""},
    )


def _metadata(known: Corpus, options: Options, slice_: str) -> dict[str, Any]:
    found: dict[str, Any] = {"slice": slice_, "unanswerable": slice_ == "unanswerable"}
    if about := options.of_filings():
        found["options"] = about
    if known.sha256:
        found["sha256"] = known.sha256
    return found


def answer(given: Any) -> str:
    """Write a target as a final answer: with its first unit, and each operand cited once. An answer
    that is already an object is only written down."""
    if isinstance(given, str):
        return given
    if "answers" not in given:
        return written(given["value"], given["unit"], given["citations"])
    places = [operand[0] for operand in given["operands"]]
    return written(**given["answers"][0], citations=[cited(place) for place in places])


def written(value: Any, unit: str, citations: list[dict[str, Any]]) -> str:
    """Write an answer, citations first: what was quoted is then copied."""
    return json.dumps({"citations": citations, "value": value, "unit": unit}, ensure_ascii=False)


def cited(place: dict[str, Any]) -> dict[str, Any]:
    return {"doc": place["doc"], "page": place["page"], "quote": place["quote"]}


# -- from traffic ----------------------------------------------------------------------------------
def from_traffic(options: Options, conversation: Conversation) -> Example | None:
    """Make an example of a conversation about training companies whose feedback is a confirmed
    answer with citations, or "not in filings". Others could leak what is tested, or cannot be
    checked."""
    text = next((message["content"] for message in conversation.messages if message["role"] == "user"), None)
    if not isinstance(text, str) or not text.strip():
        return None
    known, feedback = corpus(options), conversation.feedback
    if not _is_for_training(text, known):
        return None
    if feedback == ABSTENTION:
        found, slice_ = ABSTENTION, "unanswerable"
    else:
        found = _confirmed(feedback, known)
        question = parse(text, known)
        slice_ = question.program if question else "lookup"
    if found is None:
        return None
    metadata = _metadata(known, options, slice_) | {"company": "", "lacks": ""}
    return Example(f"traffic-{conversation.conversation_id}", ({"role": "user", "content": text},), found, metadata)


def _is_for_training(text: str, known: Corpus) -> bool:
    """Whether every company that the question names, known or not, is in the training split."""
    question = parse(text, known)
    named = [name for name in known.families if name in text] + ([question.company] if question else [])
    return bool(named) and all(known.split_of(name) == "train" for name in named)


def _confirmed(feedback: Any, known: Corpus) -> dict[str, Any] | None:
    """Read a person's answer as a target. None: a citation does not show a cell."""
    if not isinstance(feedback, dict) or set(feedback) != {"value", "unit", "citations"}:
        return None
    value, unit, citations = feedback["value"], feedback["unit"], feedback["citations"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(unit, str):
        return None
    operands = [_operand(citation, known) for citation in citations] if isinstance(citations, list) else []
    if not operands or not all(operands):
        return None
    return {"answers": [{"value": value, "unit": unit}], "operands": operands}


def _operand(citation: Any, known: Corpus) -> list[dict[str, Any]]:
    """Return all places of the figure that a citation quotes."""
    if not isinstance(citation, dict) or not isinstance(quote := citation.get("quote"), str):
        return []
    filing = known.filing(str(citation.get("doc")))
    if filing is None or known.split_of(filing.company) != "train":
        return []
    page = filing.page(citation["page"]) if isinstance(citation.get("page"), int) else None
    if page is None or quote not in page.text:
        return []
    for cell in page.cells:
        if shows(quote, cell.item, cell.number):
            figures = known.places(filing.company).items()
            return next([place_row(known, place) for place in places] for _, places in figures if _is_in(cell, places))
    return []


def _is_in(cell: Any, places: list[Any]) -> bool:
    return any(place.cell is cell for place in places)


# -- drift -----------------------------------------------------------------------------------------
def features(messages: list[Message]) -> dict[str, str | list[str]]:
    """Return what drift compares beside lengths and words: which statements a question is about,
    what it computes, and how it begins. All this comes from the question alone."""
    text = next((str(message["content"]) for message in messages if message["role"] == "user"), "")
    items = [found[0] for found in _ITEMS.finditer(text)]
    program = next((name for word, name in _PROGRAMS.items() if f" {word} " in text), "lookup")
    return {
        "statement": [statement_of(item) for item in items] or ["none"],
        "program": program,
        "opening": (text.split() or [""])[0],
    }


_ITEMS = re.compile("|".join(rf"\b{re.escape(item)}\b" for item in sorted(ITEMS, key=len, reverse=True)))
_PROGRAMS = {"less": "difference", "over": "ratio", "the growth of": "growth"}


# -- exploits --------------------------------------------------------------------------------------
def exploit_values(options: Options, example: Example) -> dict[str, Any]:
    """Return values for the placeholders of exploits.jsonl. `hit` is the right answer without a
    citation. For a question without an answer it is the answer to another question."""
    known = corpus(options)
    found = example.target
    if found == ABSTENTION:
        found = _stand_in(known, example.metadata["company"])
    place, right = found["operands"][0][0], found["answers"][0]
    filing = known.filing(place["doc"])
    assert filing is not None
    others = [name for name in known.families if name != filing.company]
    other = known.filings(others[0])[0]
    page = next(page for page in filing.pages if page.number == place["page"])
    other_page = next(page for page in other.pages if page.cells)
    pages = [(each.doc, page) for each in known.filings(filing.company) for page in each.pages]
    return {
        "query": f" {filing.company} {filing.period}",
        "doc": place["doc"],
        "page": place["page"],
        "quote": place["quote"],
        "value": right["value"],
        "unit": right["unit"],
        "other_unit": "millions" if right["unit"] == "thousands" else "thousands",
        "number": place["number"],
        "item": place["item"],
        "other_doc": other.doc,
        "other_page": other_page.number,
        "other_quote": other_page.text.split("\n")[-1],
        "page_text": page.text,
        "numbers": [int(n) for n in re.findall(r"\b[0-9]{2,15}\b", page.text)],
        "every_page": [{"doc": doc, "page": each.number, "quote": each.text.split("\n")[0]} for doc, each in pages],
        "every_line": [cited(place | {"quote": line}) for line in page.text.split("\n")],
        "hit": {"value": right["value"], "unit": right["unit"], "citations": []},
        "cited": [cited(place)],
    }


def _stand_in(known: Corpus, company: str) -> dict[str, Any]:
    name = company if company in known.families else known.companies("train")[0]
    places = next(places for places in known.places(name).values())
    rows = [place_row(known, place) for place in places]
    return {"answers": [{"value": int(places[0].cell.value), "unit": places[0].cell.unit}], "operands": [rows]}
