"""Grades an answer by the assertions of a Promptfoo test, as Promptfoo 0.123 does.

The row holds them with their templates filled: `assert`, and `threshold` where the test has one.

    score     the mean of the assertions' scores by their weights; an assert-set counts as one
    passed    the score reaches the threshold; without one, every assertion has passed. One of
              weight 0 always has

An assertion that raises, and a row without assertions, give no score. Promptfoo gives 0 and 1.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

BLANKS = re.compile("[\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]+")
NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?))", re.ASCII)


def grade(sample: Any, item: Any) -> float:
    """Return the score of the answer, and print those of its assertions."""
    score, _ = verdict(sample["output_text"], item)
    return score


def verdict(output: str, item: Any) -> tuple[float, bool]:
    """Return the score, and whether the test has passed."""
    results = [one(each, output, item) for each in item["assert"]]
    print(", ".join(f"{each['type']} {result[0]:g}" for each, result in zip(item["assert"], results, strict=True)))
    return joined(results, item.get("threshold"))


def joined(results: Any, threshold: Any) -> tuple[float, bool]:
    """Join (score, passed, weight) of several assertions."""
    total = sum(weight for _, _, weight in results)
    if total <= 0:
        raise ValueError("the row has no assertion with a weight above 0, so nothing is graded")
    score = sum(score * weight for score, _, weight in results) / total
    return score, all(passed for _, passed, _ in results) if threshold is None else score >= threshold


def one(assertion: Any, output: str, item: Any) -> tuple[float, bool, float]:
    """Return score, passed and weight of one assertion or assert-set."""
    kind, weight = assertion["type"], assertion.get("weight", 1)
    if kind == "assert-set":
        inner = [one(each, output, item) for each in assertion["assert"]]
        return *joined(inner, assertion.get("threshold")), weight
    base = kind.removeprefix("not-")
    if base == "python":
        score, passed = scored(assertion, output, item, kind != base)
    else:
        passed = CHECKS[base](assertion, output, kind != base)
        score = float(passed)
    return score, passed or weight == 0, weight


# -- texts -----------------------------------------------------------------------------------------
def units(text: str) -> str:
    """Write a text as JavaScript sees it, a letter for each 16 bits."""
    halves = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(halves[n] | halves[n + 1] << 8) for n in range(0, len(halves), 2))


def equals(assertion: Any, output: str, inverse: bool) -> bool:
    value = assertion["value"]
    if isinstance(value, str):
        return (value == output) != inverse
    try:
        return same(value, parsed(output)) != inverse
    except ValueError:
        return inverse


def same(left: Any, right: Any) -> bool:
    """Compare two values of JSON: numbers by value, keys in any order, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return float(left) == float(right) and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return isinstance(left, str) and isinstance(right, str) and left == right


def contains(choose: Any, fold: Any) -> Any:
    def check(assertion: Any, output: str, inverse: bool) -> bool:
        value = assertion["value"]
        values = [fold(each) for each in (value if isinstance(value, list) else [value])]
        return choose(each in fold(output) for each in values) != inverse

    return check


def starts_with(assertion: Any, output: str, inverse: bool) -> bool:
    return output.startswith(assertion["value"]) != inverse


def regex(assertion: Any, output: str, inverse: bool) -> bool:
    return (re.search(assertion["pattern"], units(output), re.ASCII) is not None) != inverse


def levenshtein(assertion: Any, output: str, inverse: bool) -> bool:
    from rapidfuzz.distance import Levenshtein

    away = Levenshtein.distance(units(output), units(assertion["value"]))
    return (away <= assertion.get("threshold", 5)) != inverse


def word_count(assertion: Any, output: str, inverse: bool) -> bool:
    count = sum(1 for word in BLANKS.split(output) if word)
    value = assertion["value"]
    if isinstance(value, dict):
        return (value.get("min", 0) <= count <= value.get("max", math.inf)) != inverse
    return (count == value) != inverse


# -- JSON ------------------------------------------------------------------------------------------
def parsed(text: str) -> Any:
    """Read JSON as JavaScript does: every number is a float, and NaN is not JSON."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    try:
        return json.loads(text, parse_int=float, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_json(assertion: Any, output: str, inverse: bool) -> bool:
    try:
        value = parsed(output)
    except ValueError:
        return inverse
    return conforms(value, assertion["schema"]) != inverse if "schema" in assertion else not inverse


def conforms(value: Any, schema: Any) -> bool:
    import jsonschema_rs

    return jsonschema_rs.Draft7Validator(schema).is_valid(value)


# -- Python ----------------------------------------------------------------------------------------
def scored(assertion: Any, output: str, item: Any, inverse: bool) -> tuple[float, bool]:
    """Run the assertion's own source, and read what it returns."""
    context = {
        "prompt": item.get("prompt"),
        "vars": item["vars"],
        "test": {"vars": item["vars"], "assert": item["assert"]},
        "providerResponse": {"output": output},
        **({"config": assertion["config"]} if "config" in assertion else {}),
    }
    space: dict[str, Any] = {"__name__": "assertion"}
    exec(compile(assertion["source"], "<assertion>", "exec", dont_inherit=True), space)
    value: Any = json.loads(json.dumps(space[assertion["function"]](output, context)), parse_constant=float)
    threshold = assertion.get("threshold")
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if isinstance(value, bool):
        passed = value != inverse
        return float(passed), passed
    if isinstance(value, dict):
        passed, score = value.get("pass", value.get("pass_")), value.get("score")
        has_reason = isinstance(value.get("reason"), str)
        if (
            not isinstance(passed, bool)
            or not isinstance(score, (int, float))
            or isinstance(score, bool)
            or not has_reason
        ):
            raise TypeError(f"a python assertion returned {value!r:.200}, expected pass, score and reason")
        reached = threshold is None or score >= threshold
        return float(score), (passed and reached) != inverse
    if isinstance(value, str) and (number := NUMBER.match(value)):
        value = float(number[1])
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"a python assertion returned {value!r:.200}, expected true, false or a number")
    return float(value), (value > 0 if threshold is None else value >= threshold) != inverse


CHECKS = {
    "equals": equals,
    "contains": contains(any, str),
    "icontains": contains(any, str.lower),
    "contains-any": contains(any, str),
    "contains-all": contains(all, str),
    "icontains-any": contains(any, str.lower),
    "icontains-all": contains(all, str.lower),
    "starts-with": starts_with,
    "regex": regex,
    "levenshtein": levenshtein,
    "word-count": word_count,
    "is-json": is_json,
}
