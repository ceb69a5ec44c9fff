"""Compares what the templates of a grader read with the rows that it will grade.

A template that finds nothing treats every answer alike. If no row has the key, no answer gets a
score; if a rollout has no such place, every answer gets the lowest. Both are refused. A key that
only some rows lack becomes a note.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rft.bridges.imported import Note
from rft.config import graders
from rft.config.templates import Template
from rft.errors import UserError, did_you_mean
from rft.rows import Line
from rft.types import StopReason
from rft.wire import contract

SAMPLE = frozenset(contract.sample([], StopReason.completed))
"""What a template can read from a rollout: output_text, output_tools and so on."""


def check(grader: graders.Grader, lines: Sequence[Line], has_format: bool, where: str) -> list[Note]:
    """Return notes on what a template finds in only some rows. Raises UserError for a template that
    finds nothing in any row or rollout.

    `has_format`: whether the settings ask for JSON answers; rows may ask too.
    """
    found = [(line, row) for line in lines if isinstance(row := _parsed(line), dict)]
    has_format = has_format or any("response_format" in row for _, row in found)
    notes: list[Note] = []
    for place in dict.fromkeys(place for text in grader.texts for place in Template.read(text).places):
        at = f"{where}: {{{{{place.text}}}}}"
        if place.namespace == "item" and not place.path:
            notes.append(Note(at, "is the whole row, which has the messages beside the item's keys"))
        elif place.namespace == "item" and found:
            lacking = [line for line, row in found if not place.is_in({"item": row})]
            if len(lacking) == len(found):
                near = did_you_mean(str(place.path[0]), found[0][1])
                raise UserError(f"{at} is in no row, so no rollout could be graded. {near}")
            if lacking:
                such = Path(lacking[0].where).name
                notes.append(
                    Note(at, f"is not in {len(lacking)} of {len(found)} rows, such as {such}: they are unscored")
                )
        elif place.namespace == "sample" and place.path and place.path[0] not in SAMPLE:
            raise UserError(f"{at} is not in a sample. {did_you_mean(str(place.path[0]), SAMPLE)}")
        elif "arguments" in place.path[:-1]:
            raise UserError(
                f"{at} reads inside the arguments of a call, which are JSON text: every answer would have the lowest "
                "score. Read all of the arguments, or write a python grader."
            )
        elif place.path[:1] == ("output_json",) and not has_format:
            problem = (
                "nothing asks for JSON: an answer that is not JSON has the lowest score. See rollout.response_format"
            )
            notes.append(Note(at, problem))
    return notes


def _parsed(line: Line) -> Any:
    try:
        return json.loads(line.text)
    except ValueError:
        return None  # rows.read names it
