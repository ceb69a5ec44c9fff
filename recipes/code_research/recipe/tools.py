"""What the agent may call, and what its answer is worth. Served over HTTP by `rft.tools.server`.

The tools see only the texts and rows of one workspace, which the row names (workspace.py).

The rule is recall * min(1, 3 * |gold| / |claimed|) - 0.03 * max(0, calls - 8), and 0 beyond 15
calls. The first part and the limit of 15 calls are this grade. The price of calls is the engine's
budget, which scales what was earned. 0.03 for each call beyond 8 is `rollout.budget: {tool_calls:
8, weight: 0.24}`, because the weight is the price of twice the free calls. So the score stays
within 0 to 1, and a rollout that found nothing does not gain by having tried less.

We are stricter than the rule in two points. An answer that gives a fact twice is not an answer. And
if a symbol has one value, two claims about it contradict each other, and neither counts. Otherwise
three guesses for each fact would be free.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

from pydantic import Field

from rft.recipe import ToolError

from . import facts, hacks, workspace
from .workspace import Workspace

MAX_CALLS = 15
CLAIMS_PER_FACT = 3
"""Claims that are free for each fact of the target."""
NET = 24
"""Claims beyond the free ones. A rollout that makes more has looked for nothing."""
MAX_QUERY, MAX_LINES, MAX_COLUMNS = 300, 40, 120
_LINES = re.compile(r"\s*(\d{1,7})(?:\s*-\s*(\d{1,7}))?\s*")


def search(
    query: Annotated[str, Field(description="a kind (default, constant, base, raises, calls) and words of a symbol")],
    k: Annotated[int, Field(ge=1, le=10, description="number of hits")] = 2,
    item: dict[str, Any] | None = None,
) -> str:
    """Find symbols of the package by words: SYMBOL | PATH | KIND VALUE | line LINE, best first."""
    if len(query) > MAX_QUERY:
        raise ToolError(f"the query is longer than {MAX_QUERY} characters")
    known, shows_values = _seen(item)
    rows = [known.rows[n] for n in known.index.search(query, k)]
    return "\n".join(row.shown(shows_values) for row in rows) or "no hits"


def retrieve(
    path: Annotated[str, Field(description="a file, as search names it")],
    lines: Annotated[str, Field(description="a line, such as 12, or lines, such as 12-30")],
    item: dict[str, Any] | None = None,
) -> str:
    """Lines of a file's source."""
    known, _ = _seen(item)
    text = known.texts[_known(known, path)].split("\n")
    found = _LINES.fullmatch(lines)
    if found is None:
        raise ToolError("lines: expected a number such as 12, or two such as 12-30")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last:
        raise ToolError("lines: expected a first line of at least 1, and a last one not before it")
    if last - first >= MAX_LINES:
        raise ToolError(f"lines: at most {MAX_LINES} at once")
    if first > len(text):
        raise ToolError(f"the file has {len(text)} lines")
    return "\n".join(f"{n}: {line[:MAX_COLUMNS]}" for n, line in enumerate(text[first - 1 : last], first))


def symbols(
    path: Annotated[str, Field(description="a file, as search names it")],
    k: Annotated[int, Field(ge=1, le=40, description="number of symbols")] = 6,
    after: Annotated[int, Field(ge=0, description="only those after this line")] = 0,
    item: dict[str, Any] | None = None,
) -> str:
    """The symbols of a file in the order of their lines, in the form of search."""
    known, shows_values = _seen(item)
    rows = [row for row in known.outlines[_known(known, path)] if row.line > after]
    shown = sorted((row for row in rows if row.kind not in ("calls", "doc")), key=lambda row: row.line)
    return "\n".join(row.shown(shows_values) for row in shown[:k]) or "no symbols"


TOOLS = [search, retrieve, symbols]


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Grade as the wire's endpoint grader. A broken row raises, so that nobody is scored by it."""
    target = set(facts.folded(item["target"]))
    if not target:
        raise ValueError(f"row {item.get('id')}: the target has no facts")
    claims, reason = read_answer(sample)
    claimed = facts.folded(claims or [])
    if hack := hacks.found_in(sample, claims or [], CLAIMS_PER_FACT * len(target) + NET):
        return {"score": 0.0, "solved": False, "hack": hack, "reason": reason}
    if len(set(claimed)) < len(claimed):
        claims, reason = None, "a fact given twice"
    if claims is None:
        return {"score": 0.0, "solved": False, "reason": reason, "sub_scores": {"recall": 0.0, "precision": 0.0}}
    void = contradicted(claimed, set(item["metadata"].get("one_value", ())))
    right = len((set(claimed) - void) & target)
    recall = right / len(target)
    score = recall * min(1.0, CLAIMS_PER_FACT * len(target) / len(claimed))
    reason = f"{right} of {len(target)} facts, {len(claimed)} claimed"
    return {
        "score": score,
        "solved": score == 1.0,
        "reason": reason + (f", {len(void)} of them contradict each other" if void else ""),
        "sub_scores": {"recall": recall, "precision": right / len(claimed)},
    }


def read_answer(sample: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the claims, or None and the reason why it is not an answer."""
    calls = max(sample.get("num_tool_calls") or 0, len(sample.get("output_tools") or []))
    if calls > MAX_CALLS:
        return None, f"{calls} tool calls, more than {MAX_CALLS}"
    if any(choice["message"].get("tool_calls") for choice in sample.get("choices") or []):
        return None, "ended on a tool call, without an answer"
    return facts.read((sample.get("output_text") or "").strip())


def contradicted(claimed: list[facts.Fact], one_value: set[str]) -> set[facts.Fact]:
    """Return the claims about each one-valued symbol for which several values were claimed."""
    counts = Counter(fact.symbol for fact in claimed)
    return {fact for fact in claimed if fact.symbol in one_value and counts[fact.symbol] > 1}


def _seen(item: dict[str, Any] | None) -> tuple[Workspace, bool]:
    if item is None:
        raise ToolError("there is no row, which names the workspace")
    return workspace.of_item(item), item["metadata"].get("snippets", True)


def _known(known: Workspace, path: str) -> str:
    """Return a path of the workspace. Every other path is refused in the same words, so a refusal
    says nothing about the machine."""
    stripped = path.strip().removeprefix("./")
    if stripped not in known.texts:
        raise ToolError("no such file in the package; search names its files")
    return stripped
