"""Stage `examples`: writes the rows that the agent is measured on, and those it learns from.

Three splits come from the recipe: train, validation, test. When drift said `refresh`, the flow sets
`examples.source: window`, and train is made of graded production conversations instead. Validation
and test stay as they were, or two weeks could not be compared.

A score on rows that were trained on is worth nothing, so leakage between the splits is an error,
never a warning. Leakage is an id twice or the same input text in two splits. Unless
`examples.disjoint_targets` is false, it is also an element of a training target that is asked for
again. Inputs that nearly repeat an input of another split are counted and shown; above
`examples.max_near_duplicates` they are an error, too (rft/traffic/leakage.py).

The profile of the train inputs is kept with the weights that are trained on them, because the next
window is compared with it.

Where `train` imitates dialogues, they are chosen here (rft/traffic/imitated.py), because only here
all splits are open. A dialogue that shares something with validation or test is left out. Where
`train` imitates none, the file is empty, and a new window changes nothing for `train`. The warm
start of stage `policy` must not change with the examples, so nothing is left out of it. Instead,
demonstrations that repeat an input of validation or test are an error, before anything is measured.

The test set may join several blocks of examples (`examples.block`, `examples.blocks`), where the
recipe offers them. Two blocks must share nothing, because the agent would see it twice: that is an
error as well.

A line of a split's file is the user's row, byte for byte, and its hash is the hash of those bytes:
`sha256sum data/examples/test.jsonl`. rft/rows.py reads rows by their keys;
`stage_files.load_examples` reads the file. Within a split, a repeated line is taken once and
counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

from rft import config, progress, recipe, reports, rows, stage_files
from rft.config import Params
from rft.drift import profile
from rft.drift.features import plan_of_inputs
from rft.errors import UserError
from rft.formatting import counted
from rft.gate import pool
from rft.grading import margins
from rft.recipe import Recipe
from rft.reports import ExamplesReport, NearDuplicates
from rft.traffic import feedback, leakage, reading
from rft.traffic import imitated as imitated_from
from rft.traffic.texts import user_text
from rft.types import SPLITS, Example, Split

_ROOM = 1000
"""So many examples may be in memory beyond those that are kept, so that sorting is rare."""


def run(params: Params) -> None:
    section = params.examples
    loaded = recipe.load(params.recipe, section.keys)
    source = f"the training examples of recipe {loaded.name}"
    splits: dict[Split, list[Example]] = {}
    blocks: dict[int, list[Example]] = {}
    for n, split in enumerate(SPLITS):
        progress.print_line("examples", f"{n}/{len(SPLITS)} {split}")
        if split == "train" and section.source == "window":
            splits[split] = from_window(loaded, section, params.drift.min_feedback)
            source = f"the graded conversations of {stage_files.read(reports.TrafficReport).source}"
        elif split == "test":
            blocks = tested(loaded, section)
            splits[split] = [row for some in blocks.values() for row in some]
        else:
            splits[split] = from_recipe(loaded, split, getattr(section, split), section.seed)
        rows.check_named(splits[split], section.keys, split)
    given = {split: len(some) for split, some in splits.items()}
    splits = {split: once(some) for split, some in splits.items()}
    leaked = check_blocks(blocks, section.disjoint_targets) | check_leakage(splits, section.disjoint_targets)
    near = near_duplicates(splits, blocks, section)
    margins.check(params, num_test=len(splits["test"]))
    pool.check(params, Counter(row.slice for row in splits["test"]))
    report = ExamplesReport(
        source=section.source,
        counts={split: len(some) for split, some in splits.items()},
        repeated={split: given[split] - len(some) for split, some in splits.items()},
        without_target={split: sum(row.target is None for row in some) for split, some in splits.items()},
        sha256={split: rows.sha256(some) for split, some in splits.items()},
        leakage=leaked,
        slices={split: dict(sorted(Counter(row.slice for row in some).items())) for split, some in splits.items()},
        offers_blocks=loaded.offers_blocks,
        near_duplicates=near,
    )
    inputs = profile.of_examples(splits["train"], plan_of_inputs(params, loaded), source)
    closed = imitated_from.Closed([*splits["validation"], *splits["test"]], section, target_elements)
    _check_warm_start(params, loaded, closed)
    imitated, not_imitated = _imitated(params, loaded, closed)
    report = report.model_copy(update={"imitated": len(imitated), "not_imitated": not_imitated})
    stage_files.write_imitated({dialogue.id: dialogue.messages for dialogue in imitated}, not_imitated)
    for split, some in splits.items():
        reports.write_lines((row.line for row in some), stage_files.examples_file(split))
    reports.write_json(section.keys.model_dump(), stage_files.KEYS)
    reports.write(inputs, stage_files.INPUTS_PROFILE)
    stage_files.write(report)
    counts = ", ".join(f"{count} {split}" for split, count in report.counts.items())
    if any(report.repeated.values()):
        repeated = ", ".join(f"{count} in {split}" for split, count in report.repeated.items() if count)
        progress.print_line("examples", f"repeated lines, each taken once: {repeated}")
    if imitated or not_imitated:
        reasons = "".join(f"; {count} left out: {why}" for why, count in not_imitated.items())
        progress.print_line("examples", f"{counted(len(imitated), 'dialogue')} to imitate{reasons}")
    for found in near:
        if found.num_examples:
            progress.print_line("examples", f"near-duplicates: {leakage.describe(found)}")
    progress.print_line("examples", f"{len(SPLITS)}/{len(SPLITS)} {counts}, from the {section.source}; no leakage")


def from_window(loaded: Recipe, section: config.Examples, at_least: int) -> list[Example]:
    """Make train from the latest `examples.train` graded conversations that the recipe can use."""
    graded = reading.conversations(stage_files.CONVERSATIONS, graded=True)
    num_usable, latest = 0, list[tuple[str, str, Example]]()
    for conversation, example in feedback.usable(graded, loaded):
        num_usable += 1
        latest.append((conversation.time, conversation.conversation_id, example))
        if len(latest) > 2 * section.train + _ROOM:
            latest = _latest(latest, section.train)
    if num_usable < at_least:
        what = f"only {num_usable} graded conversations can become examples (drift.min_feedback = {at_least})"
        remedy = "Have more conversations graded, or set examples.source: recipe."
        raise UserError(f"params.yaml: examples.source = 'window', but {what}. {remedy}")
    return [example for *_, example in _latest(latest, section.train)]


def _check_warm_start(params: Params, loaded: Recipe, closed: imitated_from.Closed) -> None:
    """Raise UserError when the base model is warm-started on an input that is measured."""
    is_given = params.policy.model is not None and params.policy.warm_start.weights is None
    if is_given or params.policy.server is not None or not loaded.has_demonstrations:
        return
    given = imitated_from.demonstrations(loaded, params.policy.warm_start.demonstrations, params.policy.seed)
    _, shared = closed.without(given)
    if shared:
        found = "; ".join(f"{count} of {len(given)}: {why}" for why, count in shared.items())
        raise UserError(
            f"{loaded.folder}/demonstrations.py: the base model would be warm-started on what is measured: {found}. "
            "Make demonstrations from what the train split is made from."
        )


def _imitated(
    params: Params, loaded: Recipe, closed: imitated_from.Closed
) -> tuple[list[imitated_from.Dialogue], dict[str, int]]:
    """Choose the dialogues that `train` will imitate, and count those left out by reason."""
    section, left_out = params.examples, Counter[str]()
    if params.train.source == "traffic":
        graded = reading.conversations(stage_files.CONVERSATIONS, graded=True)
        given, left_out = imitated_from.accepted(graded, loaded)
    elif params.train.source == "demonstrations":
        given = imitated_from.demonstrations(loaded, params.train.supervised.demonstrations, section.seed)
    elif params.train.when_not_ready == "warm_start":
        given = imitated_from.demonstrations(loaded, params.train.warm_start.demonstrations, section.seed)
    else:
        return [], {}
    kept, shared = closed.without(given)
    left_out += shared
    if params.train.source == "traffic" and len(kept) > section.train:
        left_out["older than examples.train asks for"] = len(kept) - section.train
        kept = kept[-section.train :]
    return kept, dict(sorted(left_out.items()))


def _latest(found: list[tuple[str, str, Example]], count: int) -> list[tuple[str, str, Example]]:
    """Keep the last `count` by time, then id."""
    return sorted(found, key=lambda row: row[:2])[-count:]


def tested(loaded: Recipe, section: config.Examples) -> dict[int, list[Example]]:
    """Make the test examples, by block. Raises UserError where the recipe has too few."""
    blocks = asked(loaded, section)
    return {block: from_recipe(loaded, "test", section.test, section.seed, block) for block in blocks}


def asked(loaded: Recipe, section: config.Examples) -> range:
    """Return the blocks of the test set. Raises UserError for a recipe that does not offer
    blocks."""
    wanted = range(section.block, section.block + section.blocks)
    if not loaded.offers_blocks and wanted != range(1):
        raise UserError(
            f"params.yaml: examples.block = {section.block} and examples.blocks = {section.blocks}, but "
            f"{loaded.folder}/examples.py offers no blocks. Give `examples` a parameter `block: int = 0`, whose test "
            "examples differ with it, or remove both keys: then only new examples are fresh."
        )
    return wanted


def from_recipe(loaded: Recipe, split: Split, count: int, seed: int, block: int = 0) -> list[Example]:
    """Take a split from the recipe. Raises UserError where it has fewer than were asked for."""
    found = loaded.examples(split, count, seed, block)
    if len(found) != count:
        where = f" of block {block}" if block else ""
        what = f"gave {len(found)} {split} examples{where}, but examples.{split} = {count} in params.yaml"
        raise UserError(f"{loaded.folder}/examples.py: {what}. Ask for no more than it has.")
    return found


# -- leakage ---------------------------------------------------------------------------------------
def check_leakage(splits: dict[Split, list[Example]], disjoint_targets: bool) -> dict[str, int]:
    """Return the number of offending examples by check: all 0. Raises UserError with the counts
    otherwise."""
    ids = Counter(row.id for some in splits.values() for row in once(some))
    found = {"repeated ids": sum(count - 1 for count in ids.values())}
    for a, b in combinations(SPLITS, 2):
        known = {row.line for row in splits[a]}
        found[f"lines of {a} in {b}"] = sum(row.line in known for row in splits[b])
        seen = {_text(row) for row in splits[a]}
        found[f"texts of {a} in {b}"] = sum(_text(row) in seen for row in splits[b])
    if disjoint_targets:
        learned = {element for row in splits["train"] for element in target_elements(row.target)}
        for split in SPLITS[1:]:
            again = [row for row in splits[split] if not learned.isdisjoint(target_elements(row.target))]
            found[f"targets of train in {split}"] = len(again)
    if any(found.values()):
        named = ", ".join(f"{check}: {count} examples" for check, count in found.items() if count)
        remedy = "Split by a stable hash of what must not be known before, such as the target."
        if any(count and check.startswith("targets") for check, count in found.items()):
            remedy += " If targets are classes that are meant to come back, set examples.disjoint_targets: false."
        raise UserError(f"the splits leak into each other: {named}. {remedy}")
    return found


def check_blocks(blocks: Mapping[int, list[Example]], disjoint_targets: bool) -> dict[str, int]:
    """Return how much blocks of test examples share, by check: all 0. Raises UserError with the
    counts otherwise."""
    found: dict[str, int] = {}
    for a, b in combinations(blocks, 2):
        for what, of in _SHARED.items():
            if what != "targets" or disjoint_targets:
                known = {each for row in blocks[a] for each in of(row)}
                again = [row for row in blocks[b] if not known.isdisjoint(of(row))]
                found[f"{what} of block {a} in block {b}"] = len(again)
    if any(found.values()):
        named = ", ".join(f"{check}: {counted(count, 'example')}" for check, count in found.items() if count)
        remedy = "Choose a block by a stable hash of what must be generalized over, such as the target."
        if any(count and check.startswith("targets") for check, count in found.items()):
            remedy += " If targets are classes that are meant to come back, set examples.disjoint_targets: false."
        raise UserError(f"blocks of test examples share what should be fresh: {named}. {remedy}")
    return found


def near_duplicates(
    splits: Mapping[Split, list[Example]], blocks: Mapping[int, list[Example]], section: config.Examples
) -> list[NearDuplicates]:
    """Find near-duplicates between the splits, and between the blocks of the test set.

    Raises UserError where there are more than `examples.max_near_duplicates`.
    """
    if section.near_duplicate is None:
        return []
    groups = {split: _texts(some) for split, some in splits.items()}
    fresh = {f"block {block}": _texts(some) for block, some in blocks.items()}
    found = [
        *leakage.between(groups, section.near_duplicate, section.seed),
        *leakage.between(fresh, section.near_duplicate, section.seed),
    ]
    limit = section.max_near_duplicates
    over = [] if limit is None else [leakage.describe(one) for one in found if one.share > limit]
    if over:
        raise UserError(
            f"the splits leak into each other: near-duplicates (examples.near_duplicate = {section.near_duplicate:g}), "
            f"more than examples.max_near_duplicates = {limit:.1%}: {'; '.join(over)}. Keep what was made from one "
            "source in one split, or raise the limit if inputs that look alike are different questions."
        )
    return found


def _texts(some: Iterable[Example]) -> list[leakage.Text]:
    return [leakage.Text(row.id, user_text(row.messages)) for row in some]


def once(some: Iterable[Example]) -> list[Example]:
    """Keep each line once, in its first place."""
    return list({row.line: row for row in some}.values())


def target_elements(target: Any) -> set[str]:
    """List what the agent must not know before: a list's elements, an object's values, or the
    target."""
    if target is None:
        return set()
    parts = target if isinstance(target, list) else list(target.values()) if isinstance(target, dict) else [target]
    return {json.dumps(part, sort_keys=True, ensure_ascii=False) for part in parts}


def _text(row: Example) -> str:
    """Fold the input's case and spaces, so that they do not hide a repetition."""
    return " ".join(user_text(row.messages).casefold().split())


_SHARED: dict[str, Callable[[Example], set[str]]] = {
    "lines": lambda row: {row.line},
    "ids": lambda row: {row.id},
    "texts": lambda row: {_text(row)},
    "targets": lambda row: target_elements(row.target),
}
"""What two blocks must not have in common."""
