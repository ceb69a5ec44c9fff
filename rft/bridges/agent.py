"""Writes an imported agent as a folder like any other.

Only README.md and bridge.json say where it came from:

    rows/SPLIT.jsonl    the rows, byte for byte
    examples.py         reads them
    tools.py            Python functions, if the format has any
    grader.json         the grader as data
    exploits.jsonl      empty and generic answers, which no grader may accept
    params.yaml         settings; the margins of the gate are comments there, for the owner to fill
    bridge.json         what was read, with hashes, and what has no counterpart
    README.md           the same for people, and what is left to do
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rft import rows
from rft.bridges import packages, scales, splits
from rft.bridges.imported import SPLITS, Imported, Note
from rft.config import Keys, Train, graders
from rft.rows import Line
from rft.types import Split

EXAMPLES = '''\
"""The rows that were imported, byte for byte: rows/train.jsonl, validation.jsonl and test.jsonl."""

from __future__ import annotations

import random
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rft import rows


class Options(BaseModel):
    """There are none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def examples(options: Options, split: str, count: int, seed: int) -> list[rows.Line]:
    """Return so many rows of a split, in an order that the seed decides."""
    found = rows.lines(Path(__file__).parent / "rows" / f"{split}.jsonl")
    random.Random(f"{split} {seed}").shuffle(found)
    return found[:count]
'''
NO_TOOLS = (
    '"""No functions of its own. Tools may also be endpoints or MCP servers: params.yaml, tools."""\n\nTOOLS = []\n'
)
GENERIC = {
    "empty": "",
    "blank": " ",
    "I do not know": "I don't know.",
    "yes": "Yes",
    "zero": "0",
    "one": "1",
    "an empty object": "{}",
    "an empty list": "[]",
    "not available": "N/A",
    "done": "The task is done.",
}
"""Name -> an answer that is worth nothing."""
GATE = """\
# gate:                          # TO FILL before `rft run`, because no margin has a default: what would convince you?
#   alpha: 0.05                  # noise is promoted in at most 5 % of histories of ...
#   looks: 5                     # ... so many runs on one test set
#   min_gain:                    # share of the grader's range that a challenger must gain, such as 0.05
#   max_greedy_loss:             # such as 0.02
#   max_calls_p95_increase:      # tool calls, such as 1
#   max_tokens_increase:         # share, such as 0.25
#   max_turns_p95_increase:      # such as 1
#   max_unreadable_increase:     # share of rollouts, such as 0.02
#   max_unscored_increase:       # such as 0.01
#   max_hack_rate:               # such as 0.03
#   require_hack_source: false
#   max_slice_loss:              # such as 0.05
#   min_slice: 20
#   max_unscored_share:          # such as 0.02
#   max_latency_increase:        # share, such as 0.25
#   latency_decides: false
#   require_drift: [continue, refresh]
#   prompt_only_margin: 0.0
#   seed: 0
"""


def write_agent(imported: Imported, folder: Path, relative_path: str, name: str, declared: dict[str, Any]) -> list[str]:
    """Write the folder, and return lines that say what was imported and what remains to do.

    `relative_path`: its place in the clone. `declared`: range, chance and pass_threshold that the
    user gave.

    Raises UserError and ConfigError for what cannot be imported; the folder is then incomplete.
    """
    for line in (line for lines in imported.rows.values() for line in lines):
        rows.read(line, Keys(), "Fix the row, or leave it out.")
    found, remarks = splits.cut(imported.rows, imported.same_test_key)
    splits.overlap(found)
    grader, to_fill = _graded(imported, found, declared)
    every = [line for split in SPLITS for line in found[split]]
    key = imported.target or (scales.target(grader, every) if grader else None)
    files = {f"rows/{split}.jsonl": _bytes(found[split]) for split in SPLITS} | imported.extra_files
    files["examples.py"] = EXAMPLES.encode()
    files["tools.py"] = (imported.tools or NO_TOOLS).encode()
    if grader is not None:
        files["grader.json"] = _json(grader)
    files["exploits.jsonl"] = b"".join(_line(name, text) for name, text in GENERIC.items())
    files["params.yaml"] = _params(imported, found, relative_path, name, key).encode()
    notes = [*imported.notes, *([] if key else [Note("rows", _NO_TARGET)])]
    if key:
        remarks.append(f"examples.keys.target: {key}, which is given as an answer to see that the grader takes it")
    told = [
        *remarks,
        *(f"{split}: {len(found[split])} rows" for split in SPLITS if imported.rows.get(split) and not remarks),
    ]
    to_fill = [
        *to_fill,
        *imported.to_fill,
        *(f"export {each}=... (a header that held a secret)" for each in imported.secrets),
    ]
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name.startswith("rows/")}
    files["bridge.json"] = _json({"from": imported.origin, "rows": hashes, "notes": [note._asdict() for note in notes]})
    files["README.md"] = _readme(imported, notes, told, to_fill, name).encode()
    for place, content in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)
    return [
        imported.origin,
        *told,
        *(f"Not taken over: {note.place}: {note.consequence}" for note in notes),
        *(f"To fill: {one}" for one in to_fill),
    ]


_PER_STEP: int = Train.model_fields["examples_per_step"].default
_VALIDATED: int = Train.model_fields["validation_examples"].default
_NO_TARGET = "no key is known that holds the target. Named in examples.keys.target, it lets the preflight check targets"
_ASK = "grader.json: 'range': the lowest and the highest score are not known. {} Add --range LOW HIGH, or edit the file"


def _graded(
    imported: Imported, found: dict[Split, list[Line]], declared: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the grader, and what a person must fill. The grader has range and chance where they
    follow from it, and what the user declared."""
    if imported.grader is None:
        return None, ["grader.json: what an answer is worth (docs/graders.md)"]
    raw: dict[str, Any] = dict(imported.grader) | declared
    grader = graders.read(raw, "the grader")
    every = [line for lines in found.values() for line in lines]
    to_fill = [f"grader.json: {remark}" for remark in grader.remarks]
    if judges := ", ".join(_judges(grader)):
        to_fill.append(f"export OPENAI_BASE_URL=... and OPENAI_API_KEY=...: where the judge {judges} answers")
    if (ends := scales.follows(grader)) is None:
        to_fill.append(_ASK.format("Left as it is, 0 and 1 count, and another score stops the stage."))
    elif not grader.declares_range and ends != (0.0, 1.0):
        raw["range"] = list(ends)
    if "chance" not in raw and (luck := scales.chance(grader, every)):
        if luck < grader.scale.pass_threshold:
            raw["chance"] = luck
            to_fill.append(f"grader.json: 'chance' is {luck:g}, the share of the most frequent target: look at it")
        else:
            to_fill.append(f"rows: {luck:.0%} of them have one target, so always giving that answer passes. Add others")
    for part in _parts(grader):
        if isinstance(part, graders.Python):
            to_fill += packages.missing(part.source, f"the source of {part.name} in grader.json")
    graders.read(raw, "the grader")
    return raw, to_fill


def _judges(grader: graders.Grader) -> list[str]:
    """Return the names of the models that grade."""
    return [*dict.fromkeys(part.model for part in _parts(grader) if isinstance(part, graders.ModelGrader))]


def _parts(grader: graders.Grader) -> list[graders.Grader]:
    return [*grader.graders.values()] if isinstance(grader, graders.Multi) else [grader]


def _bytes(lines: Sequence[Line]) -> bytes:
    return "".join(f"{line.text}\n" for line in lines).encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def _line(name: str, text: str) -> bytes:
    return (json.dumps({"name": name, "kind": "generic", "turns": [text]}) + "\n").encode()


def _params(
    imported: Imported, found: dict[Split, list[Line]], relative_path: str, name: str, target: str | None
) -> str:
    """Write params.yaml: our sections first, then those of the format."""
    sections: dict[str, Any] = {
        "recipe": {"path": relative_path},
        "traffic": {"file": f"data/inbox/{name}/*.jsonl"},
        "examples": {split: len(found[split]) for split in SPLITS}
        | {"disjoint_targets": False}
        | ({"keys": {"target": target}} if target else {}),
        "rollout": {"max_turn_tokens": 1024},
        "baseline": {"examples": min(len(found["validation"]), 96)},
    }
    if len(found["validation"]) < _VALIDATED:
        sections["train"] = {"validation_examples": len(found["validation"])}
    for section, values in imported.settings.items():
        sections[section] = sections.get(section, {}) | values
    if imported.epochs is not None:
        train = sections.setdefault("train", {})
        train["steps"] = math.ceil(imported.epochs * len(found["train"]) / train.get("examples_per_step", _PER_STEP))
    dumped = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=100)
    head = f"# {imported.origin}. docs/params.md explains every key.\n"
    return head + POLICY + dumped + GATE


POLICY = """\
# policy:                        # TO FILL: the model to train, a hub id or a folder (docs/models.md)
#   model: Qwen/Qwen3-4B
"""


def _readme(imported: Imported, notes: Sequence[Note], told: Sequence[str], to_fill: Sequence[str], name: str) -> str:
    parts = [f"# {name}\n\n{imported.origin}, imported.\n\n", *(f"- {one}\n" for one in told)]
    if notes:
        parts.append("\n## What has no counterpart\n\n| where | what follows |\n|---|---|\n")
        parts += [f"| {_cell(note.place)} | {_cell(note.consequence)} |\n" for note in notes]
    parts.append("\n## What is left to do\n\n- params.yaml: `policy` and the margins of `gate`\n")
    parts += [f"- {one}\n" for one in to_fill]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


__all__ = ["write_agent"]
