"""What a foreign file comes to, before a folder is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rft.rows import Line
from rft.types import Split

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Note(NamedTuple):
    """What has no counterpart here. `Note("job.json: suffix", "is not used: ...")`."""

    place: str
    consequence: str


@dataclass(frozen=True)
class Imported:
    """An agent of another service, in our terms."""

    origin: str
    """What was read, in words: "OpenAI job ftjob-1"."""
    rows: dict[Split, list[Line]]
    """The lines of each split as they came, with their places. A split that is missing is cut from
    the training rows (splits.py)."""
    grader: dict[str, Any] | None
    """grader.json. None: the folder has none, and its owner writes it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sections of params.yaml: rollout, tools, train and so on."""
    epochs: float | None = None
    """How often the training rows are to be played; agent.py makes train.steps of it, once the
    splits are cut."""
    tools: str | None = None
    """Text of tools.py; None: no functions of its own."""
    extra_files: dict[str, bytes] = field(default_factory=dict)
    """Further files of the folder, by name: the source of a grader that tools.py calls."""
    notes: tuple[Note, ...] = ()
    to_fill: tuple[str, ...] = ()
    """What a person must write before a run, a line each."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables that took the place of header values."""
    target: str | None = None
    """The key of a row that holds its target, as a dotted path; None: none is known."""
    traffic: tuple[str, ...] = ()
    """Logged conversations for `rft traffic ingest`, one JSON object a line."""
    same_test_key: str | None = None
    """The key in which rows of one test are equal, where it is asked in several ways: they stay in
    one split."""
