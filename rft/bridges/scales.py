"""Finds range and chance of a grader, where they follow from it.

    range     given by the type (string_check, text_similarity, label_model), or declared
              (score_model). For a formula that names each part once: the lowest and highest value
              at the ends of the parts' ranges
    chance    for a comparison with a key of the row: the share of the most frequent value, because
              an answer may guess it without any work

A python grader or an endpoint can give any number. Then range and chance are left out, and agent.py
asks for them.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rft import rows
from rft.config import graders
from rft.config.formula import FUNCTIONS, Undefined
from rft.rows import Line

_WHOLE = re.compile(r"\{\{\s*item\.([\w.]+)\s*\}\}")
_MONOTONE = (ast.Add, ast.Sub, ast.Mult)


def follows(grader: graders.Grader) -> tuple[float, float] | None:
    """Return the range of a grader's scores, or None where it cannot be known."""
    if grader.declares_range:
        return grader.range
    if isinstance(grader, graders.Multi):
        return _of_formula(grader)
    if isinstance(grader, graders.Python | graders.Endpoint):
        return None
    return grader.scores or grader.range


def _of_formula(grader: graders.Multi) -> tuple[float, float] | None:
    """Try every combination of the parts' ends. That is exact if each name occurs once and only
    + - * min max join them; otherwise return None."""
    parts = {key: follows(one) for key, one in grader.graders.items() if key in grader.formula.names}
    tree = ast.parse(grader.calculate_output.strip().replace("^", "**"), mode="eval")
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in FUNCTIONS]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    plain = all(isinstance(node.op, _MONOTONE) for node in ast.walk(tree) if isinstance(node, ast.BinOp))
    if len(names) != len(set(names)) or not plain or not called <= {"min", "max"} or None in parts.values():
        return None
    ranges = [(key, ends) for key, ends in parts.items() if ends is not None]
    try:
        values = [
            grader.formula.value(dict(zip((key for key, _ in ranges), corner, strict=True)))
            for corner in itertools.product(*(ends for _, ends in ranges))
        ]
    except Undefined:
        return None
    return (min(values), max(values)) if len(ranges) <= 12 and min(values) < max(values) else None


def chance(grader: graders.Grader, lines: Sequence[Line]) -> float | None:
    """Return what always giving the most frequent reference earns on all rows, or None."""
    if not isinstance(grader, graders.StringCheck) or grader.operation != "eq" or not lines:
        return None
    found = _WHOLE.fullmatch(grader.reference.strip())
    parsed = [json.loads(line.text) for line in lines]
    if found is None or not all(rows.has(row, found[1]) for row in parsed):
        return None
    values = Counter(json.dumps(rows.find(row, found[1])) for row in parsed)
    return round(values.most_common(1)[0][1] / len(lines), 4)


def _compared(raw: Any) -> list[tuple[str, str]]:
    """List (input, reference) of all parts that compare: string_check and text_similarity. A judge
    is left out, because its templates may read anything."""
    if not isinstance(raw, dict):
        return []
    parts = graders.by_key(raw["graders"]).values() if raw.get("type") == "multi" else []
    own = [(str(raw.get("input")), raw["reference"])] if isinstance(raw.get("reference"), str) else []
    return own + [pair for part in parts for pair in _compared(part)]


def target(raw: Any, lines: Sequence[Line]) -> str | None:
    """Return the key that holds the target, if all rows have it: the only key that the grader
    compares an answer with, or else `reference_answer`.

    None where a part of an answer is compared: then the value alone is not an answer.
    """
    compared = _compared(raw)
    if any("output_json" in text for text, _ in compared):
        return None
    named = dict.fromkeys(key for _, reference in compared for key in _WHOLE.findall(reference))
    parsed = [json.loads(line.text) for line in lines]
    for key in [*(named if len(named) == 1 else ()), "reference_answer"]:
        if parsed and all(rows.has(row, key) for row in parsed):
            return key
    return None
