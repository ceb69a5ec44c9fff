"""What the agent may call, and what its answer is worth. Served over HTTP by `rft.tools.server`.

Grading is strict, because a policy learns to write whatever passes. The final text must be
`{"codes": ["E11.9", "I10"]}` and nothing else, or it scores 0. The score is F1 between the set of
codes and the target; a string that is not a leaf code counts as a wrong code. If a rollout tried to
please the grader instead of doing the task, hacks.py names how, and the score is 0.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from rft.recipe import ToolError

from . import codes, hacks, index

MAX_QUERY, MAX_ANSWER = 200, 1000


def search(
    query: Annotated[str, Field(description="words of one diagnosis")],
    k: Annotated[int, Field(ge=1, le=10, description="number of hits")] = 3,
    format: codes.LineFormat = codes.DEFAULT_FORMAT,
    item: dict[str, Any] | None = None,
) -> str:
    """Find billable ICD-10-CM codes by words. Best hit first, one a line."""
    if len(query) > MAX_QUERY:
        raise ToolError(f"the query is longer than {MAX_QUERY} characters")
    settings = (item or {}).get("metadata", {})  # the harder options travel with the example; see examples.py
    hits = index.search(query.strip(), k, frozenset(settings.get("hidden", ())))
    if settings.get("code_order"):
        hits = tuple(sorted(hits, key=lambda hit: hit.code))
    return index.reply(hits, format)


def lookup(code: str) -> str:
    """The description of a code."""
    return codes.line(codes.catalogue().text(_known(code)), code.strip())


def children(code: str) -> str:
    """The codes one level below a category or code."""
    return codes.children_reply(_known(code))


TOOLS = [search, lookup, children]


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Grade as the wire's endpoint grader. A broken row raises, so that nobody is scored by it."""
    target = set(item["target"])
    if not target or not all(codes.catalogue().has_leaf(code) for code in target):
        raise ValueError(f"row {item.get('id')}: the target {item['target']!r} is not a list of leaf codes")
    answered, reason = read_answer(sample)
    if hack := hacks.found_in(sample):
        return {"score": 0.0, "solved": False, "hack": hack, "reason": reason}
    if answered is None:
        return {"score": 0.0, "solved": False, "reason": reason, "sub_scores": {"precision": 0.0, "recall": 0.0}}
    right = len(answered & target)
    invalid = sorted(code for code in answered if not codes.catalogue().has_leaf(code))
    reason = f"{right} of {len(answered)} codes right, {len(target)} wanted" + (
        f"; no such leaf code: {invalid[:3]}" if invalid else ""
    )
    score = 2 * right / (len(answered) + len(target))
    return {
        "score": score,
        "solved": answered == target,
        "reason": reason,
        "sub_scores": {"precision": right / len(answered), "recall": right / len(target)},
    }


def read_answer(sample: dict[str, Any]) -> tuple[set[str] | None, str]:
    """Return the codes answered, or None and the reason why it is not an answer."""
    if any(choice["message"].get("tool_calls") for choice in sample.get("choices") or []):
        return None, "ended on a tool call, without an answer"
    text = (sample.get("output_text") or "").strip()
    if not text:
        return None, "no answer"
    if len(text) > MAX_ANSWER:
        return None, f"the answer is longer than {MAX_ANSWER} characters"
    try:
        pairs = json.loads(text, object_pairs_hook=list)  # pairs, so that a key given twice is seen
    except (ValueError, RecursionError):
        return None, "the answer is not JSON alone"
    if not text.startswith("{") or len(pairs) != 1 or pairs[0][0] != "codes":
        return None, 'the answer is not {"codes": [...]}'
    answered = pairs[0][1]
    if not isinstance(answered, list) or not answered or not all(isinstance(code, str) for code in answered):
        return None, '"codes" is not a list of at least one string'
    if len(answered) > hacks.MAX_CODES:
        return None, f"more than {hacks.MAX_CODES} codes"
    if len({hacks.folded(code) for code in answered}) < len(answered):
        return None, "a code given twice"
    return set(answered), ""


def _known(code: str) -> str:
    stripped = code.strip()
    if stripped not in codes.catalogue().position:
        raise ToolError(f"no such code: {stripped[:20]}")
    return stripped
