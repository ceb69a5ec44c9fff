"""Stage `examples`: the rows that the agent is measured on, and those it learns from.

Three splits come from the recipe: train, validation, test. When drift said `refresh`, the flow sets `examples.source: window`, and train is made
of graded production conversations instead; what measures stays where it was, or two weeks could not be compared.

A score on rows that were trained on is worth nothing, so leakage between the splits is an error, never a warning: one id twice,
the same input text in two splits, or (unless `examples.disjoint_targets` is false) an element of a training target that is asked for again.
The profile of the train inputs goes along with whatever is trained on them: it is what the next window is compared with.

One row a line, `{"id", "messages", "target", "metadata"}`; the last message is the user's. `load` is the only reader.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rft import config, profile, progress, recipe, reports, traffic
from rft.config import Params
from rft.errors import UserError
from rft.profile import user_text
from rft.recipe import Recipe, Split
from rft.reports import ExamplesReport
from rft.types import Example

SHELF = Path("data/examples")
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_FIELDS = ("id", "messages", "target", "metadata")
_REMEDY = "Run the stage that writes it again: rft stage examples"


def run(params: Params) -> None:
    loaded = recipe.load(params.recipe)
    section = params.examples
    source = f"the training examples of recipe {loaded.name}"
    splits: dict[Split, list[Example]] = {}
    for n, split in enumerate(SPLITS):
        progress.say("examples", f"{n}/{len(SPLITS)} {split}")
        if split == "train" and section.source == "window":
            splits[split] = from_window(loaded, section, params.drift.min_feedback)
            source = f"the graded conversations of {reports.read(reports.TrafficReport, traffic.SHELF / 'report.json').source}"
        else:
            splits[split] = _from_recipe(loaded, split, getattr(section, split), section.seed)
    leakage = check_leakage(splits, section.disjoint_targets)
    report = ExamplesReport(
        source=section.source,
        counts={split: len(rows) for split, rows in splits.items()},
        sha256={split: sha256(rows) for split, rows in splits.items()},
        leakage=leakage,
        slices={split: dict(sorted(Counter(row.slice for row in rows).items())) for split, rows in splits.items()},
    )
    inputs = profile.of_examples(splits["train"], loaded, source)
    for split, rows in splits.items():
        reports.write_jsonl((row.row() for row in rows), SHELF / f"{split}.jsonl")
    reports.write(inputs, SHELF / "profile.json")
    reports.write(report, SHELF / "report.json")
    counts = ", ".join(f"{count} {split}" for split, count in report.counts.items())
    progress.say("examples", f"{len(SPLITS)}/{len(SPLITS)} {counts}, from the {section.source}; no leakage")


def from_window(loaded: Recipe, section: config.Examples, at_least: int) -> list[Example]:
    """Train, from the graded traffic on the shelf: the latest `examples.train` conversations that the recipe can use."""
    usable = traffic.usable_feedback(traffic.load(), loaded)
    if len(usable) < at_least:
        raise UserError(
            f"examples.source = 'window', but only {len(usable)} graded conversations can become examples (drift.min_feedback = {at_least}). "
            "Have more conversations graded, or set examples.source: recipe."
        )
    return usable[-section.train :]


def _from_recipe(loaded: Recipe, split: Split, count: int, seed: int) -> list[Example]:
    rows = loaded.examples(split, count, seed)
    if len(rows) != count:
        raise UserError(f"{loaded.folder}/examples.py: gave {len(rows)} {split} examples, examples.{split} = {count}. Ask for no more than it has.")
    for row in rows:
        _check(row.row(), f"{loaded.folder}/examples.py: {split} example {row.id!r}", "Mend examples().")
    return rows


# -- leakage ---------------------------------------------------------------------------------------------------------------
def check_leakage(splits: dict[Split, list[Example]], disjoint_targets: bool) -> dict[str, int]:
    """Check -> offending examples, all 0. Raises UserError with the counts otherwise."""
    ids = Counter(row.id for rows in splits.values() for row in rows)
    found = {"repeated ids": sum(count - 1 for count in ids.values())}
    for a, b in combinations(SPLITS, 2):
        seen = {_text(row) for row in splits[a]}
        found[f"texts of {a} in {b}"] = sum(_text(row) in seen for row in splits[b])
    if disjoint_targets:
        learnt = {element for row in splits["train"] for element in target_elements(row.target)}
        for split in SPLITS[1:]:
            found[f"targets of train in {split}"] = sum(not learnt.isdisjoint(target_elements(row.target)) for row in splits[split])
    if any(found.values()):
        named = ", ".join(f"{check}: {count} examples" for check, count in found.items() if count)
        remedy = "Split by what must not be known before (a stable hash of it), so that no split can meet another's."
        if any(count and check.startswith("targets") for check, count in found.items()):
            remedy += " If targets are classes that are meant to come back, set examples.disjoint_targets: false."
        raise UserError(f"the splits leak into each other: {named}. {remedy}")
    return found


def target_elements(target: Any) -> set[str]:
    """What must not be known before: each element of a list, each value of an object, or the target itself."""
    parts = target if isinstance(target, list) else list(target.values()) if isinstance(target, dict) else [target]
    return {json.dumps(part, sort_keys=True, ensure_ascii=False) for part in parts}


def _text(row: Example) -> str:
    """The input, folded so that case and spaces hide nothing."""
    return " ".join(user_text(row.messages).casefold().split())


# -- files -----------------------------------------------------------------------------------------------------------------
def sha256(rows: Iterable[Example]) -> str:
    """Of the canonical JSON of the rows, in order."""
    return hashlib.sha256(json.dumps([row.row() for row in rows], sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def load(split: Split, path: Path | None = None) -> list[Example]:
    """Raises UserError naming file and line for a row that is cut off, has no messages, does not end with the user, or repeats an id."""
    path = path or SHELF / f"{split}.jsonl"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). {_REMEDY}") from None
    rows: list[Example] = []
    first: dict[str, str] = {}
    for where, row in reports.read_jsonl(path, content, _REMEDY):
        _check(row, where, _REMEDY)
        if (known := first.setdefault(row["id"], where)) != where:
            raise UserError(f"{where}: id {row['id']!r} was met before, at {known}. {_REMEDY}")
        tools = tuple(row["tools"]) if "tools" in row else None
        rows.append(Example(row["id"], tuple(row["messages"]), row["target"], row["metadata"], tools))
    if not rows:
        raise UserError(f"{path}: holds no examples. {_REMEDY}")
    return rows


def _check(row: dict[str, Any], where: str, remedy: str) -> None:
    wrong = sorted(set(_FIELDS).symmetric_difference(set(row) - {"tools"}))
    if wrong:
        what = "is missing" if wrong[0] in _FIELDS else "is no field of an example; other data goes into metadata"
        raise UserError(f"{where}: '{wrong[0]}' {what}. {remedy}")
    if not isinstance(row["id"], str) or not row["id"]:
        raise UserError(f"{where}: id is {row['id']!r}, expected a text that is not empty. {remedy}")
    if not isinstance(row["metadata"], dict):
        raise UserError(f"{where}: metadata is {row['metadata']!r}, expected an object. {remedy}")
    if not isinstance(tools := row.get("tools", []), list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"{where}: tools is {json.dumps(tools)[:60]}, expected a list of Chat-Completions functions. {remedy}")
    _check_messages(row["messages"], where, remedy)


def _check_messages(messages: Sequence[Any], where: str, remedy: str) -> None:
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where}: has no messages: {json.dumps(messages, ensure_ascii=False)[:60]}. {remedy}")
    for n, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in traffic.ROLES or not isinstance(message.get("content"), str | None):
            shown = json.dumps(message, ensure_ascii=False)[:60]
            raise UserError(f"{where}: messages[{n}] is {shown}, expected a chat message with role and content. {remedy}")
    if messages[-1]["role"] != "user":
        raise UserError(f"{where}: the last message is the {messages[-1]['role']}'s, expected the user's: it is what the policy answers. {remedy}")
