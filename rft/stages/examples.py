"""Stage `examples`: the rows that the agent is measured on, and those it learns from.

Three splits come from the recipe: train, validation, test. When drift said `refresh`, the flow sets
`examples.source: window`, and train is made of graded production conversations instead; what
measures stays where it was, or two weeks could not be compared.

A score on rows that were trained on is worth nothing, so leakage between the splits is an error,
never a warning: one id twice, the same input text in two splits, or (unless
`examples.disjoint_targets` is false) an element of a training target that is asked for again. The
profile of the train inputs goes along with whatever is trained on them: it is what the next window
is compared with.

A line of the shelf is the user's row, byte for byte, and its hash is the hash of those bytes:
`sha256sum data/examples/test.jsonl`. What we read of it, and by which keys, is rft/rows.py; the
reader of the shelf is `shelves.load_examples`. Within a split, a line that comes twice is taken
once and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import Any

from rft import config, progress, recipe, reports, rows, shelves
from rft.config import Params
from rft.errors import UserError
from rft.grading import margins
from rft.recipe import Recipe
from rft.reports import ExamplesReport
from rft.types import SPLITS, Example, Split
from rft.windows import profile
from rft.windows.conversations import load_conversations, usable_feedback
from rft.windows.profile import user_text


def run(params: Params) -> None:
    section = params.examples
    loaded = recipe.load(params.recipe, section.keys)
    source = f"the training examples of recipe {loaded.name}"
    splits: dict[Split, list[Example]] = {}
    for n, split in enumerate(SPLITS):
        progress.say("examples", f"{n}/{len(SPLITS)} {split}")
        if split == "train" and section.source == "window":
            splits[split] = from_window(loaded, section, params.drift.min_feedback)
            source = f"the graded conversations of {shelves.read(reports.TrafficReport).source}"
        else:
            splits[split] = _from_recipe(loaded, split, getattr(section, split), section.seed)
        rows.check_named(splits[split], section.keys, split)
    given = {split: len(some) for split, some in splits.items()}
    splits = {split: once(some) for split, some in splits.items()}
    leakage = check_leakage(splits, section.disjoint_targets)
    margins.check(params, num_test=len(splits["test"]))
    report = ExamplesReport(
        source=section.source,
        counts={split: len(some) for split, some in splits.items()},
        repeated={split: given[split] - len(some) for split, some in splits.items()},
        without_target={split: sum(row.target is None for row in some) for split, some in splits.items()},
        sha256={split: rows.sha256(some) for split, some in splits.items()},
        leakage=leakage,
        slices={split: dict(sorted(Counter(row.slice for row in some).items())) for split, some in splits.items()},
    )
    inputs = profile.of_examples(splits["train"], loaded, source)
    for split, some in splits.items():
        reports.write_lines((row.line for row in some), shelves.examples_file(split))
    reports.write_json(section.keys.model_dump(), shelves.KEYS)
    reports.write(inputs, shelves.INPUTS_PROFILE)
    shelves.write(report)
    counts = ", ".join(f"{count} {split}" for split, count in report.counts.items())
    if any(report.repeated.values()):
        repeated = ", ".join(f"{count} in {split}" for split, count in report.repeated.items() if count)
        progress.say("examples", f"lines that came twice, each taken once: {repeated}")
    progress.say("examples", f"{len(SPLITS)}/{len(SPLITS)} {counts}, from the {section.source}; no leakage")


def from_window(loaded: Recipe, section: config.Examples, at_least: int) -> list[Example]:
    """Train, from the graded traffic on the shelf: the latest `examples.train` conversations that
    the recipe can use."""
    usable = usable_feedback(load_conversations(), loaded)
    if len(usable) < at_least:
        raise UserError(
            f"examples.source = 'window', but only {len(usable)} graded conversations can become examples "
            f"(drift.min_feedback = {at_least}). "
            "Have more conversations graded, or set examples.source: recipe."
        )
    return usable[-section.train :]


def _from_recipe(loaded: Recipe, split: Split, count: int, seed: int) -> list[Example]:
    found = loaded.examples(split, count, seed)
    if len(found) != count:
        raise UserError(
            f"{loaded.folder}/examples.py: gave {len(found)} {split} examples, examples.{split} = {count}. Ask for no "
            "more than it has."
        )
    return found


# -- leakage ---------------------------------------------------------------------------------------
def check_leakage(splits: dict[Split, list[Example]], disjoint_targets: bool) -> dict[str, int]:
    """Check -> offending examples, all 0. Raises UserError with the counts otherwise."""
    ids = Counter(row.id for some in splits.values() for row in once(some))
    found = {"repeated ids": sum(count - 1 for count in ids.values())}
    for a, b in combinations(SPLITS, 2):
        known = {row.line for row in splits[a]}
        found[f"lines of {a} in {b}"] = sum(row.line in known for row in splits[b])
        seen = {_text(row) for row in splits[a]}
        found[f"texts of {a} in {b}"] = sum(_text(row) in seen for row in splits[b])
    if disjoint_targets:
        # of rows that have one
        learnt = {element for row in splits["train"] for element in target_elements(row.target)}
        for split in SPLITS[1:]:
            found[f"targets of train in {split}"] = sum(
                not learnt.isdisjoint(target_elements(row.target)) for row in splits[split]
            )
    if any(found.values()):
        named = ", ".join(f"{check}: {count} examples" for check, count in found.items() if count)
        remedy = "Split by what must not be known before (a stable hash of it), so that no split can meet another's."
        if any(count and check.startswith("targets") for check, count in found.items()):
            remedy += " If targets are classes that are meant to come back, set examples.disjoint_targets: false."
        raise UserError(f"the splits leak into each other: {named}. {remedy}")
    return found


def once(some: Iterable[Example]) -> list[Example]:
    """Each line once, where it first stands."""
    return list({row.line: row for row in some}.values())


def target_elements(target: Any) -> set[str]:
    """What must not be known before: each element of a list, each value of an object, or the target
    itself."""
    if target is None:
        return set()
    parts = target if isinstance(target, list) else list(target.values()) if isinstance(target, dict) else [target]
    return {json.dumps(part, sort_keys=True, ensure_ascii=False) for part in parts}


def _text(row: Example) -> str:
    """The input, folded so that case and spaces hide nothing."""
    return " ".join(user_text(row.messages).casefold().split())
