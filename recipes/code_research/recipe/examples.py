"""Examples: questions about a package's code, and the facts that answer them.

An example names the package, the world and the key of its workspace. If another version of the
package is installed later, the key differs, and the tools refuse to answer from other code.
"""

from __future__ import annotations

import functools
import random
from typing import Any

from rft.errors import UserError
from rft.recipe import Conversation, Example, Message
from rft.types import Split

from . import facts, packages, questions, workspace
from .options import Options
from .questions import Question, Subject
from .workspace import Row, Workspace

Key = tuple[str, str, str]
"""Symbol, path and value of a fact."""


def examples(options: Options, split: Split, count: int, seed: int, block: int = 0) -> list[Example]:
    """Return examples, equal for equal arguments and equal installed packages. No module of the
    test split is in two blocks."""
    if block >= packages.BLOCKS:
        what = f"there is no block {block} of test examples: the modules make blocks 0 to {packages.BLOCKS - 1}"
        raise UserError(f"{what}. Lower examples.block or examples.blocks in params.yaml.")
    name = f"{split}-{block}" if block else split
    asked = questions.write(options, questions.pools(options, split, block), random.Random(f"{name} {seed}"))
    return [example(f"{name}-{n:05d}", next(asked), options) for n in range(count)]


def example(example_id: str, question: Question, options: Options) -> Example:
    return Example(
        example_id,
        ({"role": "user", "content": question.text},),
        target(question.facts),
        _metadata(question.workspace, list(question.subjects), options),
    )


def target(rows: list[Row]) -> list[dict[str, str]]:
    return [{"symbol": row.symbol, "path": row.path, "value": row.value} for row in sorted(rows, key=_place)]


def answer(found: list[dict[str, str]]) -> str:
    """Write facts as the final answer."""
    return facts.write(found)


def from_traffic(options: Options, conversation: Conversation) -> Example | None:
    """Make an example of a graded conversation. Its feedback must hold facts of one training
    workspace and of training modules: others could leak what is tested."""
    feedback, question = conversation.feedback, _question(conversation.messages)
    if not isinstance(feedback, list) or not feedback or not question.strip():
        return None
    training = _training_facts(options)
    known = [training.get(_key(fact)) for fact in feedback]
    workspaces = {id(found[0]): found[0] for found in known if found is not None}
    if None in known or len(workspaces) != 1:
        return None
    about = next(iter(workspaces.values()))
    rows = list(dict.fromkeys(found[1] for found in known if found is not None))
    named = [Subject(row.kind, questions.phrase(row), (row,)) for row in rows]
    return Example(
        f"traffic-{conversation.conversation_id}",
        ({"role": "user", "content": question},),
        target(rows),
        _metadata(about, named, options),
    )


def features(messages: list[Message]) -> dict[str, str | list[str]]:
    """Return what drift compares beside lengths and words: which kinds are asked for, and how a
    question begins. Both come from the question alone."""
    question = _question(messages)
    kinds = [phrase.partition(" ")[0] for phrase in questions.phrases_in(question)]
    return {"kind": kinds, "opening": (question.split() or [""])[0]}


def exploit_values(options: Options, example: Example) -> dict[str, Any]:
    """Return values for the placeholders of exploits.jsonl. `hit` is a fact of the target."""
    del options
    known = workspace.of_item(example.row())
    hit = example.target[0]
    row = next(row for row in known.rows if row.is_fact and target([row])[0] == hit)
    package = [fact for fact in target([other for other in known.rows if other.is_fact]) if fact not in example.target]
    beside = [fact for fact in package if fact["path"] == row.path]
    asked = {"symbol": row.symbol, "path": row.path}
    return {
        "phrase": questions.phrase(row),
        "hit": hit,
        **hit,
        "hit_and_every": [hit, *beside],
        "hit_and_many": [hit, *package[: 3 * len(example.target)]],
        "whole_package": package[:100],
        "superset": f"{hit['value']} or 1 or 2",
        "commented": f"{hit['value']} # or 1 or 2",
        "sentence": f"the value is {hit['value']}",
        "hedged": [hit, asked | {"value": "None"}, asked | {"value": "True"}],
        "frequent": [asked | {"path": "__init__.py", "value": value} for value in ("None", "True", "0", "1", "''")],
        "truth": [{"symbol": row.true_symbol, "path": row.true_path, "value": row.true_value}],
        "true_value": [asked | {"value": row.true_value}],
        "installed": f"/usr/lib/python3/dist-packages/{known.package}/{row.true_path}",
        "line": str(row.line),
    }


def _metadata(known: Workspace, subjects: list[Subject], options: Options) -> dict[str, Any]:
    one_value = {fact.symbol for subject in subjects for fact in subject.facts if fact.kind in questions.ONE_VALUE}
    metadata: dict[str, Any] = {
        "slice": str(len(subjects)),
        "package": known.package,
        "world": known.world,
        "workspace": known.key,
        "phrases": [subject.phrase for subject in subjects],
        "one_value": sorted(one_value),
    }
    return metadata if options.snippets else {**metadata, "snippets": False}


@functools.lru_cache(maxsize=2)
def _training_facts(options: Options) -> dict[Key, tuple[Workspace, Row]]:
    found: dict[Key, tuple[Workspace, Row]] = {}
    for known, asked in questions.pools(options, "train"):
        for subject in asked:
            for row in subject.facts:
                found[row.symbol, row.path, row.value] = known, row
    return found


def _key(fact: Any) -> Key:
    """Return the key of a fact. Anything else gets a key that finds none."""
    if not isinstance(fact, dict) or not all(isinstance(fact.get(key), str) for key in facts.KEYS):
        return "", "", ""
    return fact["symbol"], fact["path"], fact["value"]


def _question(messages: list[Message]) -> str:
    found = next((message.get("content") for message in messages if message["role"] == "user"), "")
    return found if isinstance(found, str) else ""


def _place(row: Row) -> tuple[str, int, str, str]:
    return row.path, row.line, row.symbol, row.value
