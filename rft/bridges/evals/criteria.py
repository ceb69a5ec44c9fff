"""Makes a grader of testing_criteria. The types are ours, so one criterion is the grader as it is.

In Evals each criterion passes or fails by itself, and an item passes if all do. Several become a
`multi` whose score is their mean, each on its own scale from 0 to 1: a policy learns from a part
that it meets. Where all parts are 0 or 1, the mean passes at 1, which is the same as all of them.
Otherwise it passes at the mean of their thresholds, and then one part can make up for another;
a note says so.

What no rollout has is refused, because a template that finds nothing scores every answer alike: a
key that no row has, or a place in `sample` that is not published.
"""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rft.bridges.imported import Note
from rft.config import graders
from rft.config.formula import FUNCTIONS
from rft.config.templates import Missing, Place, Template
from rft.errors import UserError, did_you_mean
from rft.rows import Line
from rft.types import StopReason
from rft.wire import contract

SAMPLE = frozenset(contract.sample([], StopReason.completed))
"""What is known of a rollout: output_text, output_tools and so on."""


def grader_of(given: Any, where: str) -> tuple[dict[str, Any] | None, list[Note], list[str]]:
    """Return grader.json, notes, and what a person must fill. Raises ConfigError naming the place
    of a criterion that cannot be used."""
    if not isinstance(given, list):
        raise UserError(f"{where} is {type(given).__name__}, expected a list of graders.")
    if not given:
        return None, [Note(where, "is empty: nothing says what an answer is worth")], []
    raws = [_plain(one) for one in given]
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
    """Leave out the id that the service gave, and what is null."""
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
    said = f"the score is the mean of the {len(parts)} criteria, and it passes at {threshold:g}"
    if all(isinstance(part, graders.StringCheck | graders.LabelModel) for part in parts):
        return raw | {"range": [0, 1]}, f"{said}, which is when all of them pass"
    if all(part.declares_range or not isinstance(part, graders.Python | graders.Endpoint) for part in parts):
        raw["range"] = [0, 1]
    return raw, f"{said}. In Evals each must pass by itself; here a high one can make up for a low one"


def _term(key: str, part: graders.Grader) -> str:
    """Write a part of the formula, on a scale from 0 to 1."""
    low, high = part.range
    if (low, high) == (0.0, 1.0):
        return key
    moved = key if low == 0 else f"({key} {'-' if low > 0 else '+'} {_plain_number(abs(low))})"
    return f"{moved} / {_plain_number(high - low)}"


def _plain_number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _keys(parts: Sequence[graders.Grader]) -> Iterator[str]:
    """Name each part by its name, so that a formula can have it and no two are alike."""
    used: set[str] = set()
    for number, part in enumerate(parts, 1):
        key = graders.slug(part.name)
        if not key.isidentifier() or keyword.iskeyword(key) or key in FUNCTIONS or key in used:
            key = f"criterion_{number}"
        used.add(key)
        yield key


# -- what templates read ---------------------------------------------------------------------------
def check(raw: dict[str, Any], lines: Sequence[Line], has_format: bool, where: str) -> list[Note]:
    """Raises UserError for a template that finds nothing in any row or rollout. Returns notes of
    what it finds in some only."""
    parsed = [json.loads(line.text) for line in lines]
    notes: list[Note] = []
    for place in dict.fromkeys(_places(raw)):
        if place.namespace == "item" and not place.path:
            notes.append(
                Note(f"{where}: {{{{item}}}}", "is the whole row, which has the messages beside the item's keys")
            )
        elif place.namespace == "item":
            lacking = [line for line, row in zip(lines, parsed, strict=True) if not _is_in(place, row)]
            if len(lacking) == len(lines):
                raise UserError(
                    f"{where}: {{{{{place.text}}}}} is in no row, so no rollout could be graded. "
                    f"{did_you_mean(str(place.path[0] if place.path else ''), parsed[0])}"
                )
            if lacking:
                such = Path(lacking[0].where).name
                said = f"is not in {len(lacking)} of {len(lines)} rows, such as {such}: they are unscored"
                notes.append(Note(f"{where}: {{{{{place.text}}}}}", said))
        elif place.path and place.path[0] not in SAMPLE:
            raise UserError(
                f"{where}: {{{{{place.text}}}}} is not in a sample. {did_you_mean(str(place.path[0]), SAMPLE)}"
            )
        elif "arguments" in place.path[:-1]:
            raise UserError(
                f"{where}: {{{{{place.text}}}}} reads inside the arguments of a call, which are JSON text: every "
                "answer would have the lowest score. Read all of the arguments, or write a python grader."
            )
        elif place.path[:1] == ("output_json",) and not has_format:
            said = "no run asks for JSON: an answer that is not JSON has the lowest score. See rollout.response_format"
            notes.append(Note(f"{where}: {{{{{place.text}}}}}", said))
    return notes


def _is_in(place: Place, row: dict[str, Any]) -> bool:
    try:
        place.find({"item": row, "sample": {}})
    except Missing:
        return False
    return True


def _places(grader: dict[str, Any]) -> Iterator[Place]:
    """Yield the places of all templates of a grader; the source of a python grader has none."""
    for part in graders.by_key(grader["graders"]).values() if grader["type"] == "multi" else [grader]:
        for key in ("input", "reference"):
            for text in _texts(part.get(key)):
                yield from Template.read(text).places


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of an input: a text, or messages with texts and parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
        yield from _texts(value.get("text"))
