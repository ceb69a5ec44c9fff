"""A scripted analyst with habits: the source of demonstrations and of simulated traffic.

It is mediocre on purpose, so that a policy that is warm-started on it is like an unpolished agent
in production. Most episodes follow *old habits*. They search without the period, take the first
filing, or open the wrong page. They give a figure without a quote or with an invented one, and a
number where the filings have none. A minority works *with care*. It searches company and period,
opens the statement that shows the item, copies its line, and computes with `calculate`. If there is
no answer, it says "not in filings". Reinforcement learning can choose between the two.

The analyst reads what the tools reply, as a policy does, and never the cells behind it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rft.chat import dialogue
from rft.errors import ToolError
from rft.recipe import Message

from . import tools
from .arithmetic import LABEL, MAX_LENGTH, plain
from .examples import written
from .filings import NOTHING, Figure
from .questions import ABSTENTION, SCALES, Question, number, scale
from .statements import STATEMENTS


@dataclass(frozen=True)
class Habits:
    """Chances of a lapse. Such episodes earn 0.10 on average; episodes done with care earn 1."""

    without_period: float = 0.75  # so that greedy decoding has the habit too
    one_word: float = 0.12
    search_again: float = 0.3
    guess: float = 0.08
    wrong_page: float = 0.3
    wander: float = 0.3
    wrong_line: float = 0.08
    wrong_unit: float = 0.12
    no_quote: float = 0.25
    invented_quote: float = 0.25
    insist: float = 0.6  # where there is no answer, give one
    in_the_head: float = 0.5  # compute without `calculate`, and wrongly


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of a search's reply."""

    head: str  # company, period and perhaps "amended"
    doc: str
    pages: tuple[tuple[str, int], ...]  # title, number

    def page_of(self, title: str) -> int | None:
        return next((number for name, number in self.pages if name == title), None)


@dataclass(frozen=True, slots=True)
class Line:
    """A figure as a page shows it."""

    head: str  # the item, after a period if it is not the filing's own period
    number: str
    unit: str
    text: str
    doc: str
    page: int

    @property
    def value(self) -> Fraction:
        digits = Fraction(re.sub(r"[(),-]", "", self.number))
        return -digits if self.number[0] in "(-" else digits


@dataclass
class Episode:
    """The messages of one dialogue while it is played against the tools in process. `row` is the
    example's row, which tells the tools which filings there are."""

    messages: list[Message]
    row: dict[str, Any] = field(default_factory=dict)
    k: int = 3
    turn: int = 0
    calls: int = 0
    seen: dict[tuple[str, int], list[Line]] = field(default_factory=dict)

    def find(self, query: str) -> list[Listed]:
        """Search, and return the filings that have all words."""
        return listed(self._call("find_documents", {"query": query}, item=self.row, k=self.k))

    def nearest(self, query: str) -> list[Listed]:
        """Search, and return all that is shown."""
        return listed(self._call("find_documents", {"query": query}, item=self.row, k=self.k), nearest=True)

    def read(self, filing: Listed, page: int) -> list[Line]:
        return lines(self._call("read_page", {"doc": filing.doc, "page": page}, item=self.row), filing.doc, page)

    def recall(self, filing: Listed, page: int) -> list[Line]:
        """Return a page's lines, reading it only if that was not done before."""
        if (filing.doc, page) not in self.seen:
            self.seen[filing.doc, page] = self.read(filing, page)
        return self.seen[filing.doc, page]

    def calculate(self, expression: str) -> Fraction | None:
        """Return the result. None: there is none, for example for a division by zero."""
        reply = self._call("calculate", {"expression": expression})
        return None if reply.startswith("Error") else Fraction(reply.strip())

    def fail(self, query: str) -> None:
        """Add a search that the tool server did not answer."""
        self._add_turn("find_documents", {"query": query}, "Error: find_documents is not available")

    def answer(self, text: str) -> str:
        self.messages.append({"role": "assistant", "content": text})
        return text

    def _call(self, name: str, arguments: dict[str, Any], **more: Any) -> str:
        try:
            reply = getattr(tools, name)(**arguments, **more)
        except ToolError as error:
            reply = f"Error: {error}"
        self._add_turn(name, arguments, reply)
        return reply

    def _add_turn(self, name: str, arguments: dict[str, Any], reply: str) -> None:
        self.messages += dialogue.scripted_turn(self.turn, [(name, arguments)], [reply])
        self.turn += 1
        self.calls += 1


# -- with care -------------------------------------------------------------------------------------
def work_with_care(question: Question, episode: Episode) -> str:
    """Answer as well as the tools allow."""
    found: list[Line] = []
    filings: dict[str, list[Listed]] = {}
    for figure in question.figures:
        query = f" {question.company} {figure.period}"
        if query not in filings:
            filings[query] = episode.find(query)
        filing = next((each for each in filings[query] if _is_meant(each, question.company, figure)), None)
        line = look_up(figure, filing, episode) if filing else None
        if line is None:
            return episode.answer(ABSTENTION)
        found.append(line)
    return conclude(question, found, episode)


def look_up(figure: Figure, filing: Listed, episode: Episode) -> Line | None:
    """Find the line of an item in a filing, on the page of the statement that shows it."""
    titles = [title for title, items in STATEMENTS.items() if figure.item in items]
    pages = [page for title in titles if (page := filing.page_of(title))][:1] or [page for _, page in filing.pages]
    shown = (line for page in pages for line in episode.recall(filing, page))
    return next((line for line in shown if line.head == figure.item), None)


def conclude(question: Question, found: list[Line], episode: Episode) -> str:
    """Answer with what these lines say, one for each figure."""
    value = found[0].value if question.program == "lookup" else episode.calculate(expression(question, found))
    if value is None:
        return episode.answer(ABSTENTION)
    return episode.answer(written(number(value), unit_of(question, found), [_cited(line) for line in found]))


def expression(question: Question, found: list[Line]) -> str:
    """Write the program of a question as arithmetic."""
    one, other = found
    first, last = plain(one.value), plain(other.value)
    if question.program == "difference":
        labelled = f" {_labelled(one)} - {_labelled(other)}"
        return labelled if len(labelled) <= MAX_LENGTH else f" {first} - {last}"
    if one.unit != other.unit and {one.unit, other.unit} <= set(SCALES):
        first, last = f"{first}*{scale(one.unit)}", f"{last}*{scale(other.unit)}"
    if question.program == "ratio":
        return f"{first}/({last})" if "*" in last or other.value < 0 else f"{first}/{last}"
    return f"({last}-{first})/({first})*100"


def _labelled(line: Line) -> str:
    return f"{line.head} {plain(line.value)}" if LABEL.fullmatch(line.head) else plain(line.value)


def unit_of(question: Question, found: list[Line]) -> str:
    return {"ratio": "ratio", "growth": "percent"}.get(question.program, found[0].unit)


def _is_meant(filing: Listed, company: str, figure: Figure) -> bool:
    """Whether it is the filing of this very company and period, and of the version asked for."""
    amended = " amended" if figure.restated else ""
    return filing.head == f"{company} {figure.period}{amended}"


def _cited(line: Line) -> dict[str, Any]:
    return {"doc": line.doc, "page": line.page, "quote": line.text}


# -- by old habits ---------------------------------------------------------------------------------
def follow_old_habits(question: Question, episode: Episode, habits: Habits, rng: random.Random) -> str:
    figure = question.figures[0]
    query = _query(question, habits, rng)
    found = episode.nearest(query)
    if rng.random() < habits.search_again:
        found = episode.nearest(query)
    is_there = not str(episode.messages[-1]["content"]).startswith(NOTHING)
    if not found or (not is_there and rng.random() >= habits.insist):
        return episode.answer(ABSTENTION)
    filing = found[0]
    if rng.random() < habits.guess:
        return episode.answer(written(rng.randint(10, 999), rng.choice(("thousands", "millions")), []))
    right = [page for title, page in filing.pages if figure.item in STATEMENTS.get(title, (figure.item,))]
    pages = [page for _, page in filing.pages]
    if rng.random() < habits.wander:
        episode.read(filing, rng.choice(pages))
    page = rng.choice(pages) if rng.random() < habits.wrong_page or not right else right[0]
    shown = episode.read(filing, page)
    lines = [_line(each, shown) for each in question.figures]
    if None in lines and rng.random() >= habits.insist:
        return episode.answer(ABSTENTION)
    if lines[0] is None or rng.random() < habits.wrong_line:
        lines[0] = rng.choice(shown) if shown else None
    if lines[0] is None:
        return episode.answer(ABSTENTION)
    read = [line for line in lines if line]
    value, unit = read[0].value, unit_of(question, read)
    if len(read) == 2 and rng.random() >= habits.in_the_head:
        computed = episode.calculate(expression(question, read))
        value = value if computed is None else computed
    if rng.random() < habits.wrong_unit:
        unit = "millions" if unit == "thousands" else "thousands"
    return episode.answer(written(number(value), unit, _quotes(read[0], habits, rng)))


def _query(question: Question, habits: Habits, rng: random.Random) -> str:
    chance = rng.random()
    if chance < habits.without_period:
        return f" {question.company}"
    if chance < habits.without_period + habits.one_word:
        return f" {rng.choice(question.company.split())} {question.figures[0].period}"
    return f" {question.company} {question.figures[0].period}"


def _line(figure: Figure, shown: list[Line]) -> Line | None:
    return next((line for line in shown if line.head == figure.item), None)


def _quotes(line: Line, habits: Habits, rng: random.Random) -> list[dict[str, Any]]:
    chance = rng.random()
    if chance < habits.no_quote:
        return []
    cited = _cited(line)
    if chance < habits.no_quote + habits.invented_quote:
        cited["quote"] = f"{line.text} of US dollars"
    return [cited]


# -- reading replies -------------------------------------------------------------------------------
def listed(reply: str, nearest: bool = False) -> list[Listed]:
    """Read a search's reply. Filings that lack a word of the query are read only with `nearest`."""
    if reply.startswith(NOTHING) and not nearest:
        return []
    found: list[Listed] = []
    for line in reply.split("\n"):
        head, colon, rest = line.partition(" : ")
        if colon and line != NOTHING:
            name, _, doc = head.strip().rpartition(" ")
            pages = tuple((title, int(page)) for title, page in re.findall(r"(?:^| , )(.+?) page (\d+)", rest))
            found.append(Listed(name, doc, pages))
    return found


def lines(text: str, doc: str, page: int) -> list[Line]:
    """Read a page in either layout. What is not a figure is passed over."""
    found: list[Line] = []
    periods: list[str] = []
    unit = ""
    for text_line in text.split("\n")[1:]:
        cells = [cell.strip() for cell in text_line.strip("|").split("|")]
        if text_line.startswith(" in "):
            unit = text_line.removeprefix(" in ").removesuffix(" of US dollars")
        elif text_line.startswith("| item |"):
            periods = cells[1:]
        elif text_line.startswith("|") and periods and not text_line.startswith("| ---"):
            for period, shown in zip(periods, cells[1:], strict=True):
                head = cells[0] if period == periods[0] else f"{period} {cells[0]}"
                found.append(Line(head, shown, unit, text_line, doc, page))
        elif match := _LINE.fullmatch(text_line):
            found.append(Line(match["head"], match["number"], match["unit"], text_line, doc, page))
    return found


_LINE = re.compile(r" (?P<head>\S.*) (?P<number>-?[0-9][0-9.]*) (?P<unit>\S.*)")
