"""Name the files of each stage, and read those that several stages need.

A stage leaves its files in its folder, `data/STAGE`, and the stages after it read them there. Most
of these files are reports, and a run has one of each kind: `read(reports.TrainReport)` needs no
path. rft/needs.py lists the files that a stage depends on.

    data/champion/champion.json    the champion: prompt, weights, version. Written by a promotion
                                   (tasks/promotion/champions.py), read by every stage
    data/registration/             says which look at the test set this is. Written by
                                   tasks/promotion/registration.py
    data/model/model.json          the bytes of a given base model, written by the flow
                                   (rft/models/source.py)
    data/policy/report.json        the base model of this run. Like champion.json it only points to
                                   weights, which rft/sampling/policies.py loads
    data/examples/SPLIT.jsonl      the user's rows, byte for byte; `keys.json` says how to read
                                   them. `load_examples` is the only reader
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from rft import commands, config, needs, reports, rows
from rft.errors import UserError
from rft.types import Example, Message, Split

R = TypeVar("R", bound=reports.Report)

DATA = Path(needs.DATA)
REPORTS: dict[type[reports.Report], Path] = {
    reports.Champion: DATA / "champion/champion.json",
    reports.Model: DATA / "model/model.json",
    reports.TrafficReport: DATA / "traffic/report.json",
    reports.DriftReport: DATA / "drift/report.json",
    reports.ExamplesReport: DATA / "examples/report.json",
    reports.PolicyReport: DATA / "policy/report.json",
    reports.BaselineReport: DATA / "baseline/report.json",
    reports.PromptReport: DATA / "prompt/report.json",
    reports.PromptSettings: DATA / "prompt/prompt.json",
    reports.TrainReport: DATA / "train/report.json",
    reports.ChallengerReport: DATA / "challenger/report.json",
    reports.Shown: DATA / "challenger/shown.json",
    reports.Opening: DATA / "registration/opening.json",
    reports.Registration: DATA / "registration/registration.json",
    reports.Decision: DATA / "gate/decision.json",
    reports.PromotionRequest: DATA / "gate/request.json",
}
"""The kinds of report of which a run has one each, with their files."""
SNAPSHOT = DATA / "window"
"""The window's snapshot (rft/traffic/schema.py), made by the flow when a run begins."""
CONVERSATIONS = DATA / "traffic/conversations"
"""The same snapshot, kept with what was made from it."""
REFERENCES = DATA / "traffic/references"
"""Profiles that the window is compared with, besides the reference."""
REFERENCE_PROFILE = DATA / "traffic/reference_profile.json"
CURRENT_PROFILE = DATA / "traffic/current_profile.json"
REFERENCE_ORDER: tuple[reports.Against, ...] = ("train", "validation", "test", "window")
ENVIRONMENT = DATA / "environment.json"
"""The packages that a run worked with, written by the flow."""
KEYS = DATA / "examples/keys.json"
IMITATED = DATA / "examples/imitated.json"
"""Dialogues that supervised training may imitate. Empty where `train` asks for none."""
INPUTS_PROFILE = DATA / "examples/profile.json"
MODEL = DATA / "policy/model"
WEIGHTS = DATA / "train/weights"
METRICS = DATA / "train/metrics.jsonl"
SHOWN_ROLLOUTS = DATA / "challenger/shown.parquet"
"""Rollouts on validation examples, which people may read; those of the test set stay closed."""


# -- places ----------------------------------------------------------------------------------------
def folder(stage: str) -> Path:
    return DATA / stage


def timing(stage: str) -> Path:
    """Name the file of the stage's wall times. They are not in the report, so that equal runs have
    equal reports."""
    return DATA / stage / "timing.json"


def rollouts(stage: str) -> Path:
    """Name the stage's rollout log."""
    return DATA / stage / "rollouts.parquet"


def examples_file(split: Split) -> Path:
    return DATA / "examples" / f"{split}.jsonl"


def reference_file(against: reports.Against) -> Path:
    """Name the file of a profile that the window is compared with."""
    return REFERENCE_PROFILE if against == "train" else REFERENCES / f"{against}.json"


# -- reports ---------------------------------------------------------------------------------------
def path(kind: type[reports.Report]) -> Path:
    return REPORTS[kind]


def read(kind: type[R]) -> R:
    """Read the run's report of this kind. Raises UserError like `reports.read`."""
    return reports.read(kind, REPORTS[kind])


def write(report: reports.Report) -> None:
    reports.write(report, REPORTS[type(report)])


def champion() -> reports.Champion:
    """Read what is served now. Before any promotion it is version 1: the base policy and the seed
    prompt."""
    return read(reports.Champion) if path(reports.Champion).exists() else reports.Champion()


def model() -> reports.Model:
    """Read what the flow found about the given base model. The report is empty for a run of an
    earlier version, which did not pin the model's bytes."""
    return read(reports.Model) if path(reports.Model).exists() else reports.Model()


# -- rows ------------------------------------------------------------------------------------------
_TWICE = "Remove one, or give each row an id of its own: under `id`, or under the key that examples.keys.id names."


def load_examples(
    split: Split, file: Path | None = None, keys: config.Keys | None = None, remedy: str | None = None
) -> list[Example]:
    """Read a split, from its file unless `file` says otherwise. `remedy`: what to do about a file
    that no stage writes.

    Raises UserError naming file and line for a row that is cut off, has no messages, does not end
    with the user, or repeats an id.
    """
    twice = _TWICE if remedy else _remedy()
    remedy = remedy or _remedy()
    if file is None:
        file, keys = examples_file(split), _keys()
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}). {remedy}") from None
    found: dict[str, Example] = {}
    places: dict[str, str] = {}
    is_whole = content.endswith(b"\n")
    lines = rows.split(file, content, remedy)
    for n, line in enumerate(lines, 1):
        row = rows.read(line, keys or config.Keys(), remedy, is_cut=not is_whole and n == len(lines))
        if row.id in found:
            raise UserError(f"{line.where}: id {row.id!r} was met before, at {places[row.id]}. {twice}")
        found[row.id], places[row.id] = row, line.where
    if not found:
        raise UserError(f"{file}: holds no examples. {remedy}")
    return list(found.values())


def write_imitated(dialogues: dict[str, list[Message]], left_out: dict[str, int]) -> None:
    """Write the dialogues that supervised training may imitate, by id, and how many others were
    left out, by reason."""
    reports.write_json({"left_out": left_out, "dialogues": dialogues}, IMITATED)


def load_imitated() -> tuple[list[list[Message]], dict[str, int]]:
    """Read the same. Raises UserError for a damaged file."""
    try:
        found = json.loads(IMITATED.read_text(encoding="utf-8"))
        return list(found["dialogues"].values()), found["left_out"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{IMITATED}: cannot be read ({type(error).__name__}). {_remedy()}") from None


def _keys() -> config.Keys:
    try:
        return config.Keys.model_validate_json(KEYS.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"{KEYS}: missing, or not the keys of the rows beside it. {_remedy()}") from None


def _remedy() -> str:
    return f"Run the stage that writes it again: {commands.stage('examples')}"
