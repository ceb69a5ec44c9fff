"""The result of reading a foreign file, before a folder is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rft.rows import Line
from rft.types import Split

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Note(NamedTuple):
    """Something without a counterpart here: `Note("job.json: suffix", "is not used: ...")`."""

    place: str
    consequence: str


@dataclass(frozen=True)
class Imported:
    """An agent of another service, in our terms."""

    origin: str
    """What was read, in words: "OpenAI job ftjob-1"."""
    rows: dict[Split, list[Line]]
    """The unchanged lines of each split, with their places. A missing split is cut from the
    training rows (splits.py)."""
    grader: dict[str, Any] | None
    """grader.json. None: there is no grader, and the owner writes one."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sections of params.yaml: rollout, tools, train and so on."""
    epochs: float | None = None
    """How often the training rows are to be played. agent.py computes train.steps from it, once the
    splits are cut."""
    tools: str | None = None
    """Text of tools.py; None: no Python functions."""
    extra_files: dict[str, bytes] = field(default_factory=dict)
    """Further files of the folder, by name: the source of a grader that tools.py calls."""
    notes: tuple[Note, ...] = ()
    to_fill: tuple[str, ...] = ()
    """What a person must write before a run, one line each."""
    secrets: tuple[str, ...] = ()
    """Names of the environment variables that replace header values."""
    target: str | None = None
    """The key of a row that holds its target, as a dotted path; None: none is known."""
    traffic: tuple[str, ...] = ()
    """Logged conversations for `rft traffic ingest`, one JSON object per line."""
    same_test_key: str | None = None
    """A key of rows, for formats that ask one test in several ways. Rows with equal values of this
    key stay in one split."""
