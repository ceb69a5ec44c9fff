"""What the agent may call, and what its answer is worth. Served over HTTP by `rft.tools.server`.

grading.py says what an answer is worth, and hacks.py which acts no honest analyst does. The answer
"not in filings" never comes to this grader: grader.json declares what it pays.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rft.recipe import ToolError

from . import arithmetic, filings, grading, hacks
from .corpora import corpus_of

MAX_QUERY = 200
ROOM = 12
"""How many filings a search may show: enough for one company."""


def find_documents(
    query: Annotated[str, Field(description="words of a company's name, and perhaps a period")],
    k: Annotated[int, Field(ge=1, le=ROOM, description="number of documents")] = 3,
    item: dict[str, Any] | None = None,
) -> str:
    """Find filings, best first, one a line: company, period, document, and its pages."""
    if len(query) > MAX_QUERY:
        raise ToolError(f"the query is longer than {MAX_QUERY} characters")
    return filings.reply(*corpus_of(item or {}).search(query, k))


def read_page(
    doc: Annotated[str, Field(description="a document, such as 10K-482130")],
    page: Annotated[int, Field(ge=1, le=9999)],
    item: dict[str, Any] | None = None,
) -> str:
    """The text of a page of a filing."""
    filing = corpus_of(item or {}).filing(doc.strip())
    if filing is None:
        raise ToolError(f"no such document: {doc.strip()[:20]}")
    found = filing.page(page)
    if found is None:
        pages = ", ".join(str(each.number) for each in filing.pages)
        raise ToolError(f"no page {page}: {filing.doc} has pages {pages}")
    return found.text


def calculate(
    expression: Annotated[
        str, Field(description="numbers, + - * / and parentheses; words before a number are passed over")
    ],
) -> str:
    """The value of an arithmetic expression."""
    try:
        return f" {arithmetic.plain(arithmetic.evaluate(expression))}"
    except arithmetic.Refused as error:
        raise ToolError(str(error)) from None


TOOLS = [find_documents, read_page, calculate]


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Grade as the wire's endpoint grader. A broken row raises, so that nobody is scored by it."""
    found = grading.grade(sample, item, corpus_of(item))
    hack = hacks.found_in(sample)
    return {**found, "score": grading.LOW, "solved": False, "hack": hack} if hack else found
