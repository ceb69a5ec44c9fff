"""Makes a grader from testing_criteria.

The types are the same as ours, so a single criterion is the grader as it is.

In Evals each criterion passes or fails by itself, and an item passes if all of them pass. Here
several criteria become a `multi`. Its score is their mean, each on its own scale from 0 to 1, so a
policy also learns from a part that it meets.

Where all parts are 0 or 1, the mean passes at 1, which means that all of them pass. Otherwise it
passes at the mean of their thresholds. Then one part can make up for another, and a note says so.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rft.bridges import headers
from rft.bridges.imported import Note
from rft.config import graders
from rft.config.formula import FUNCTIONS
from rft.errors import UserError


def grader_of(given: Any, where: str, secrets: list[str]) -> tuple[dict[str, Any] | None, list[Note], list[str]]:
    """Return grader.json, notes, and what a person must fill. Adds to `secrets` the variables that
    replace header values. Raises ConfigError naming the place of an unusable criterion."""
    if not isinstance(given, list):
        raise UserError(f"{where} is {type(given).__name__}, expected a list of graders.")
    if not given:
        return None, [Note(where, "is empty: nothing says what an answer is worth")], []
    raws = [headers.of_grader(_plain(one), f"{where}[{n}]", secrets) for n, one in enumerate(given)]
    parts = [graders.read(raw, f"{where}[{n}]") for n, raw in enumerate(raws)]
    judges = {part.model: part.name for part in parts if isinstance(part, graders.ModelGrader)}
    notes = [
        Note(f"{where}: {name}", f"the judge {model!r} is that of the service. Name one that your server has, and see "
             "that it judges alike")
        for model, name in judges.items()
    ]  # fmt: skip
    to_fill = [
        f"grader.json: model: a judge in the place of {model!r}; OPENAI_BASE_URL says where it is (docs/graders.md)"
        for model in judges
    ]
    if len(parts) == 1:
        return raws[0], notes, to_fill
    raw, note = _mean(raws, parts)
    graders.read(raw, where)
    return raw, [Note(where, note), *notes], to_fill


def _plain(criterion: Any) -> Any:
    """Leave out the id that the service gave, and null values."""
    if not isinstance(criterion, dict):
        return criterion
    return {key: value for key, value in criterion.items() if key != "id" and value is not None}


def _mean(raws: Sequence[Any], parts: Sequence[graders.Grader]) -> tuple[dict[str, Any], str]:
    keyed = dict(zip(_keys(parts), zip(raws, parts, strict=True), strict=True))
    terms = [_term(key, part) for key, (_, part) in keyed.items()]
    scales = [part.scale for part in parts]
    shares = [(scale.pass_threshold - scale.low) / (scale.high - scale.low) for scale in scales]
    threshold = math.floor(sum(shares) / len(shares) * 1e6) / 1e6  # never above what the parts reach
    raw: dict[str, Any] = {
        "type": "multi",
        "name": "testing_criteria",
        "graders": {key: raw for key, (raw, _) in keyed.items()},
        "calculate_output": f"({' + '.join(terms)}) / {len(terms)}",
        "pass_threshold": threshold,
    }
    text = f"the score is the mean of the {len(parts)} criteria, and it passes at {threshold:g}"
    if all(isinstance(part, graders.StringCheck | graders.LabelModel) for part in parts):
        return raw | {"range": [0, 1]}, f"{text}, which is when all of them pass"
    if all(part.declares_range or not isinstance(part, graders.Python | graders.Endpoint) for part in parts):
        raw["range"] = [0, 1]
    return raw, f"{text}. In Evals each must pass by itself; here a high one can make up for a low one"


def _term(key: str, part: graders.Grader) -> str:
    """Write one part's term of the formula, on a scale from 0 to 1."""
    low, high = part.range
    if (low, high) == (0.0, 1.0):
        return key
    moved = key if low == 0 else f"({key} {'-' if low > 0 else '+'} {_plain_number(abs(low))})"
    return f"{moved} / {_plain_number(high - low)}"


def _plain_number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _keys(parts: Sequence[graders.Grader]) -> Iterator[str]:
    """Yield a key for each part: its name, or a number where a formula cannot use the name or it is
    taken."""
    used: set[str] = set()
    for number, part in enumerate(parts, 1):
        key = graders.slug(part.name)
        if not key.isidentifier() or keyword.iskeyword(key) or key in FUNCTIONS or key in used:
            key = f"criterion_{number}"
        used.add(key)
        yield key
