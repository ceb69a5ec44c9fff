"""Reads a config of Promptfoo: its prompts and tests become rows, its assertions a grader.

    promptfooconfig.yaml   prompts x tests -> rows, a slice for each prompt; cases.py, expected.py
    assert                 in the rows, ready to be played (assertions.py, regex.py, schemas.py) by
                           one python grader, whose source is grader.py
    llm-rubric and similar a score_model or label_model beside it, in a multi with their weights
                           (judges.py)
    providers and so on    notes: the policy answers here

The score is Promptfoo's own, compared with recorded results of version 0.123.1. What would score
differently is refused with its line. Two cases differ on purpose: an assertion that raises is
unscored, where Promptfoo gives 0, and so is a test without assertions, where it gives 1.

    located_yaml.py  values that know their file and line
    nunjucks.py    templates in their plain form
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rft.bridges import foreign
from rft.bridges.imported import Imported, Note
from rft.bridges.promptfoo import grader, located_yaml
from rft.bridges.promptfoo.assertions import Reader
from rft.bridges.promptfoo.cases import Case, Test, multiplied, prompts, tests
from rft.bridges.promptfoo.judges import Judged, judged, to_fill
from rft.bridges.promptfoo.located_yaml import LocatedObject, place
from rft.errors import UserError
from rft.rows import Line
from rft.scale import MAX_EXPLOITED

_SOURCE = Path(grader.__file__)
_KNOWN = {"prompts", "tests", "defaultTest", "description"}
_REFUSED = {
    "scenarios": "scenarios are not multiplied here. Write them as tests",
    "redteam": "red teaming makes its tests with models. Generate them, and import the config that it writes",
    "extensions": "extensions are code that changes tests and results. Remove them",
    "assertionTemplates": "assertionTemplates are not read here. Write the assertions out where they are used",
}
_UNUSED = {
    "providers": "are the models that were compared. Name the model to train in policy of params.yaml",
    "targets": "are the models that were compared. Name the model to train in policy of params.yaml",
    "derivedMetrics": "are not computed: they are beside the score",
    "env": "is not set: templates of the environment are refused",
    "nunjucksFilters": "are not loaded: templates with filters are refused",
}
_OTHER = "has no effect here"
_THRESHOLDS = (
    "the tests pass at different scores. The highest of them marks here what has passed; the score that is trained is "
    "Promptfoo's"
)


def read(path: Path, files: Path | None) -> Imported:
    """Read a config. Raises UserError and ConfigError naming file, line, key and remedy."""
    if files is not None:
        raise UserError(f"{path}: a config of Promptfoo names its files itself. Leave out --files.")
    config, base = _config(path), path.parent
    known, found = prompts(config, base), tests(config, base)
    notes = [Note(f"{place(config, key)}: {key}", _UNUSED.get(key, _OTHER)) for key in config if key not in _KNOWN]
    rows, asked = list[Line](), list[Judged]()
    for test in found:
        notes += [Note(f"{where}: {key}", _OTHER) for where, key in test.unused]
        for case in multiplied(test, known, base):
            row, judge, remarks = _row(case, base, has_slices=len(known) > 1)
            rows.append(Line(json.dumps(row, ensure_ascii=False), test.where))
            asked.append(judge)
            notes += remarks
    made = _grader(asked, [json.loads(line.text) for line in rows])
    made["pass_threshold"], remarks = _threshold(found)
    if made["pass_threshold"] is None:
        del made["pass_threshold"]
    return Imported(
        origin=f"Promptfoo config {config.get('description') or path.name}",
        rows={"train": rows},
        same_test_key="vars",
        grader=made,
        notes=tuple(dict.fromkeys(_inside(base, note) for note in [*notes, *remarks])),
        to_fill=to_fill(asked[0]),
    )


def _inside(base: Path, note: Note) -> Note:
    """Write the note's place relative to the config's folder: the notes move to the agent's."""
    return note._replace(place=note.place.removeprefix(f"{base}/"))


def _config(path: Path) -> LocatedObject:
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise UserError(f"{path}: is neither YAML nor JSON. Name promptfooconfig.yaml; one in JavaScript is code.")
    config = located_yaml.load(path)
    if not isinstance(config, LocatedObject):
        raise UserError(f"{path}:1: holds {type(config).__name__}, expected prompts and tests. Name the config.")
    if "results" in config and "tests" not in config:
        raise UserError(f"{place(config, 'results')}: results of an evaluation, not a config. Name the config's file.")
    for key, why in _REFUSED.items():
        if config.get(key):
            raise UserError(f"{place(config, key)}: {why}.")
    _no_references(config)
    return config


def _no_references(value: Any) -> None:
    for key in value if isinstance(value, LocatedObject) else ():
        if key == "$ref":
            raise UserError(f"{place(value, key)}: $ref is not followed. Write out what it names.")
    for each in value.values() if isinstance(value, LocatedObject) else value if isinstance(value, list) else ():
        _no_references(each)


def _row(case: Case, base: Path, has_slices: bool) -> tuple[dict[str, Any], Judged, list[Note]]:
    """Return the row, what the judge is asked about it, and notes."""
    reader = Reader(base, case.variables)
    converted = [one for given in case.test.assertions for one in reader.read(given)]
    judge = judged(converted, reader.judged, case.test)
    row: dict[str, Any] = {"messages": case.messages, "vars": case.variables, "assert": converted}
    if case.test.threshold is not None:
        row["threshold"] = case.test.threshold
    if judge.asked:
        row["judged"] = [{key: judge.asked[key] for key in ("type", "value")}]
    if _has_python(converted):
        row["prompt"] = case.text
    equal = [one["value"] for one in converted if one["type"] == "equals" and isinstance(one["value"], str)]
    if len(equal) == 1:
        row["reference_answer"] = equal[0]
    metadata = case.test.metadata | ({"slice": case.prompt.label} if has_slices else {})
    return row | ({"metadata": metadata} if metadata else {}), judge, reader.notes


def _has_python(assertions: Sequence[Any]) -> bool:
    return any("source" in one or _has_python(one.get("assert", ())) for one in assertions)


def _grader(asked: Sequence[Judged], rows: Sequence[Any]) -> dict[str, Any]:
    """Make grader.json. Raises UserError naming a test whose judge differs from the first one's."""
    first = asked[0]
    for one in asked:
        if one.shape != first.shape:
            raise UserError(
                f"{one.where}: {one.description}, and {first.where} {first.description}. A grader is one for all rows: "
                "give every test the same judged assertion with the same weights, or import them apart."
            )
    ends = {} if any(_has_python(row["assert"]) for row in rows) else {"range": [0, 1]}
    checks = {"type": "python", "name": "assertions", "source": foreign.text(_SOURCE)} | ends
    return first.grader(checks) if first.asked else checks


def _threshold(found: Sequence[Test]) -> tuple[float | None, list[Note]]:
    """Return the score from which an answer passes, None for the default, and notes on it."""
    given = [1.0 if test.threshold is None else float(test.threshold) for test in found]
    highest = max(given)
    remarks = [Note(f"{found[given.index(highest)].where}: threshold", _THRESHOLDS)] if len(set(given)) > 1 else []
    if MAX_EXPLOITED < highest < 1:
        return highest, remarks
    if highest != 1:
        remarks.append(
            Note(f"{found[0].where}: threshold", f"{highest:g} marks nothing: here the highest score passes")
        )
    return None, remarks


__all__ = ["read"]
