"""Scripted agents that learn nothing: an honest one, and five shortcuts, graded by the real rule.

A trained policy must do better than each shortcut:

    honest             look up each subject in the words of the question, claim what fits it
    first_hit          search the whole question once, claim the first hit
    random             search each subject, claim one of ten hits by lot
    most_frequent      search each subject for its place, claim the values that are most frequent
    longest_document   list the longest file with all fifteen calls, claim what fits, or else its
                       first facts
    closed_book        claim what the installed package says, without a call

Three are told more than an agent could know. `closed_book` is told which fact of the installed
package is meant, `most_frequent` which values its workspace has most often, and `longest_document`
which file is the longest. The others only read the question and the tools' replies.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rft.recipe import Example

from . import facts, questions, tools, workspace
from .options import Options
from .workspace import Workspace

Claim = dict[str, str]
NUM_HITS, NUM_LISTED = 10, 40
"""The most lines that search and symbols show."""
HEADER = 6
"""How many lines are read for the bases of a class."""


class Hit(NamedTuple):
    """A line of a reply: `Kavel.besin | mudok.py | default 26 | line 52`."""

    symbol: str
    path: str
    kind: str
    value: str
    line: str

    @property
    def claim(self) -> Claim:
        return {"symbol": self.symbol, "path": self.path, "value": self.value}


@dataclass
class Desk:
    """A scripted agent's question, and the tools. Their replies are kept."""

    example: Example
    rng: random.Random
    replies: list[str] = field(default_factory=list)

    @property
    def question(self) -> str:
        return str(self.example.messages[-1]["content"])

    @functools.cached_property
    def phrases(self) -> list[str]:
        return questions.phrases_in(self.question)

    def search(self, query: str, k: int = NUM_HITS) -> list[Hit]:
        return self._hits(tools.search(f" {query}", k=k, item=self.example.row()))

    def list_file(self, path: str, after: int) -> list[Hit]:
        return self._hits(tools.symbols(path, k=NUM_LISTED, after=after, item=self.example.row()))

    def read(self, hit: Hit, lines: int) -> str:
        """Return the text from a hit's line on, as one line."""
        first = int(hit.line)
        self.replies.append(tools.retrieve(hit.path, f"{first}-{first + lines - 1}", item=self.example.row()))
        return " ".join(line.partition(": ")[2] for line in self.replies[-1].splitlines())

    def _hits(self, reply: str) -> list[Hit]:
        self.replies.append(reply)
        return [_hit(line) for line in reply.splitlines() if line.count(" | ") >= 3]


def honest(desk: Desk) -> list[Claim]:
    return [claim for phrase in desk.phrases for claim in _looked_up(phrase, desk)]


def first_hit(desk: Desk) -> list[Claim]:
    return [hit.claim for hit in desk.search(desk.question, k=1)]


def at_random(desk: Desk) -> list[Claim]:
    found = [desk.search(phrase) for phrase in desk.phrases]
    return [desk.rng.choice(hits).claim for hits in found if hits]


def most_frequent(desk: Desk) -> list[Claim]:
    """Claim three values for a class or a function, because so many guesses are free."""
    frequent = _frequent(workspace.of_item(desk.example.row()))
    claims: list[Claim] = []
    for phrase in desk.phrases:
        kind, _, symbol = phrase.partition(" ")
        values = frequent.get(kind, [])[: 1 if kind in questions.ONE_VALUE else tools.CLAIMS_PER_FACT]
        for hit in desk.search(phrase, k=1):
            claims += [{"symbol": symbol, "path": hit.path, "value": value} for value in values]
    return claims


def longest_document(desk: Desk) -> list[Claim]:
    texts = workspace.of_item(desk.example.row()).texts
    path, after = max(texts, key=lambda path: len(texts[path])), 0
    listed: list[Hit] = []
    while len(desk.replies) < tools.MAX_CALLS and (more := desk.list_file(path, after)):
        listed += more
        after = int(more[-1].line)
    fitting = [hit for phrase in desk.phrases for hit in listed if _fits(hit, phrase)]
    return [hit.claim for hit in fitting or listed[: tools.CLAIMS_PER_FACT * len(desk.phrases)]]


def closed_book(desk: Desk) -> list[Claim]:
    rows = {(row.symbol, row.path, row.value): row for row in workspace.of_item(desk.example.row()).rows}
    true = [rows[fact["symbol"], fact["path"], fact["value"]] for fact in desk.example.target]
    return [{"symbol": row.symbol, "path": row.true_path, "value": row.true_value} for row in true]


WAYS: dict[str, Callable[[Desk], list[Claim]]] = {
    "honest": honest,
    "first_hit": first_hit,
    "random": at_random,
    "most_frequent": most_frequent,
    "longest_document": longest_document,
    "closed_book": closed_book,
}


def score(name: str, options: Options, example: Example) -> float:
    """Return what the grade gives to a way of working, before any budget."""
    del options  # the settings that matter travel with the example
    desk = Desk(example, random.Random(f"{name} {example.id}"))
    claims = WAYS[name](desk)
    return tools.grade(sample_of(claims, desk.replies), example.row())["score"]


def sample_of(claims: list[Claim], replies: list[str]) -> dict[str, Any]:
    """Return what the grader would be sent of a rollout with one call for each reply."""
    once = [claim for n, claim in enumerate(claims) if claim not in claims[:n]]
    text = facts.write(once) if once else ""
    told = [{"role": "tool", "content": reply} for reply in replies]
    return {
        "output_text": text,
        "num_tool_calls": len(replies),
        "trajectory": [*told, {"role": "assistant", "content": text}],
    }


# -- looking up ------------------------------------------------------------------------------------
def _looked_up(phrase: str, desk: Desk) -> list[Claim]:
    """Return the claims that answer a phrase. If no hit fits a name, claim the first hit."""
    description = questions.description_in(phrase)
    if not description:
        hits = desk.search(phrase)
        fitting = [hit for hit in hits if _fits(hit, phrase)] or hits[:1]
    else:
        owner = next((hit.symbol for hit in desk.search(description) if hit.kind == "doc"), "")
        hits = desk.search(f"default {owner}")
        fitting = [hit for hit in hits if hit.kind == "default" and hit.symbol.rpartition(".")[0] == owner]
    if desk.example.metadata.get("snippets", True):
        return [hit.claim for hit in fitting]
    called = phrase.partition(" ")[2] if phrase.startswith("calls ") else ""
    places = dict.fromkeys(fitting)  # two bases of a class are one place
    return [hit._replace(value=value).claim for hit in places for value in _values(hit, called, desk)]


def _fits(hit: Hit, phrase: str) -> bool:
    return phrase == f"{hit.kind} {hit.value if hit.kind == 'calls' else hit.symbol}"


def _values(hit: Hit, called: str, desk: Desk) -> list[str]:
    """Read a hit's values in the file, because the hit does not show them."""
    if called:
        return [called]
    name = re.escape(hit.symbol.rpartition(".")[2])
    if hit.kind == "base":
        header = re.search(rf"class {name}\((.*?)\):", re.sub(r"\[.*?\]", "", desk.read(hit, HEADER)))
        bases = header[1].split(",") if header else []
        return [base.strip().rpartition(".")[2] for base in bases if base.strip() and "=" not in base]
    value = r"raise [\w.]*\b(\w+)" if hit.kind == "raises" else rf"\b{name}\b[^=]*=\s*('[^']*'|\"[^\"]*\"|[\w.]+)"
    return [found[1]] if (found := re.search(value, desk.read(hit, 1))) else []


def _hit(line: str) -> Hit:
    symbol, path, rest = line.split(" | ", 2)
    shown, _, number = rest.rpartition(" | line ")
    kind, _, value = shown.partition(" ")
    return Hit(symbol, path, kind, value, number)


@functools.cache
def _frequent(known: Workspace) -> dict[str, list[str]]:
    """Return the values of each kind of fact, the most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for row in known.rows:
        if row.is_fact:
            counts.setdefault(row.kind, Counter())[row.value] += 1
    return {kind: [value for value, _ in found.most_common()] for kind, found in counts.items()}
