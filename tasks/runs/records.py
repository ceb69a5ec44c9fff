"""What this clone remembers of each run: a JSON file, and a lock.

The file is rewritten atomically as the run goes on. It serves people, and adoption after a kill;
what an auditor needs is in the run's revision. The driver holds the lock (flock) while it lives, so
`running` with a free lock means that the driver was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import ValidationError

from rft import commands, reports
from rft.errors import UserError
from tasks.runs import workspace
from tasks.runs.clone import Clone

State = Literal["preparing", "running", "paused", "finished", "stopped", "failed", "interrupted", "killed", "cancelled"]
"""`paused`: stopped at run.max_hours, and goes on when that is raised. `stopped`: drift ended the
run, or it reached the stage that `--until` names."""


class RunRecord(reports.Report):
    name: str
    agent: str = ""
    """The agent's name. Empty: the run is from a version that knew one agent per clone."""
    folder: str = ""
    """The agent's folder when the run began, from the top of the repository; empty: the top."""
    key: str
    """Hash of commit, edits, settings and champion: what makes two runs the same."""
    commit: str
    edits_sha256: str | None
    """None: the tree was clean."""
    edited: list[str] = []
    champion_version: int
    window: str
    inputs: list[str]
    """What was brought into the worktree and kept out of Git: the window, a model folder."""
    settings: list[str] = []
    """`--params` and `--set` as given, to be pasted after another verb (rft/commands.py)."""
    clean_only: bool = False
    """`--clean-only` was given."""
    until: str | None = None
    """`--until` as given: the last stage of a run that takes no look at the test set."""
    extends: str | None = None
    """The earlier run whose candidates this one looks at again, on more blocks: `rft runs
    extend`."""
    more_blocks: int = 0
    """How many blocks more than the earlier run."""
    asked_window: str | None = None
    """`--window` as given, with a pattern resolved; None: traffic.file of the settings."""
    started: str
    started_by: str
    ended: str | None = None
    resumed: str | None = None
    """When the present start began; None between two starts."""
    spent_s: float = 0.0
    """Seconds of work in all earlier starts."""
    max_hours: float | None = None
    """run.max_hours of the last start."""
    state: State = "preparing"
    message: str = ""
    revision: str | None = None
    """The commit under refs/exps that holds the run."""
    mlflow_run_id: str | None = None
    flow_run_id: str | None = None
    stages: dict[str, str] = {}
    """stage -> ran, unchanged, restored."""
    seconds: dict[str, float] = {}
    """stage -> this run's wall time in it, over all attempts that ended."""
    verdict: str | None = None
    decision: str | None = None
    by_policy: bool | None = None
    """Whether its look was registered under the policy's thresholds; None: it took no look."""
    candidate: str | None = None
    gain: dict[str, float | None] | None = None
    """The paired gain over the champion, with the ends of its interval."""
    start: dict[str, Any] | None = None
    """The signed statement that says who started it, where four eyes are the rule."""
    ledger: str | None = None
    """Number and SHA-256 of the ledger's last entry when the run began."""
    environment_sha256: str | None = None
    """The hash of data/environment.json in its revision. None: from a version that wrote no such
    file."""
    bytes_removed: str | None = None
    """When `rft runs gc` removed what only this run refers to; its revision stays."""

    def inside(self, path: str) -> str:
        """Name a file of the agent's folder as Git does, from the top."""
        return (PurePosixPath(self.folder) / path).as_posix()

    @property
    def dirty(self) -> bool:
        return self.edits_sha256 is not None

    @property
    def over(self) -> bool:
        """Whether it is recorded as a revision, and will never go on."""
        return self.revision is not None

    @property
    def begun(self) -> bool:
        """Whether it did any work, even if its worktree is gone."""
        return bool(self.stages) or self.spent_s > 0

    @property
    def approve(self) -> str:
        """The command that approves the run."""
        override = ["--override-dirty"] if self.dirty else []
        return commands.command("approve", self.name, *commands.WHY, *override)

    @property
    def again(self) -> str:
        """The command that starts the run again or goes on with it. It gives more hours where they
        are spent, and goes beyond the stage of `--until` where the run has stopped there."""
        if self.extends:
            return commands.command("runs extend", self.extends, "--blocks", str(self.more_blocks))
        window = ["--window", self.asked_window] if self.asked_window else []
        clean = ["--clean-only"] if self.clean_only else []
        clean += ["--until", self.until] if self.until and self.state != "stopped" else []
        spent = self.max_hours is not None and self.spent_s >= 3600 * self.max_hours
        settings = self._with_more_hours() if self.state == "paused" or spent else [*self.settings]
        return commands.command("run", *self._named(), *window, *clean, settings=settings)

    def _named(self) -> list[str]:
        """Name the agent where the command could otherwise mean another one."""
        program = os.environ.get(commands.PROGRAM, "")
        named = f" --agent {shlex.quote(self.agent or '')}"
        return ["--agent", self.agent] if self.folder and self.agent and not program.endswith(named) else []

    def _with_more_hours(self) -> list[str]:
        pairs = zip(self.settings[::2], self.settings[1::2], strict=True)
        kept = [word for name, value in pairs if not value.startswith("run.max_hours=") for word in (name, value)]
        hours = 2 * max(self.max_hours or 0.0, self.spent_s / 3600)
        return [*kept, "--set", f"run.max_hours={hours:.3g}"]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def path(clone: Clone, name: str) -> Path:
    return clone.runs / f"{name}.json"


def save(clone: Clone, record: RunRecord) -> None:
    reports.write(record, path(clone, record.name))


def load_all(clone: Clone) -> list[RunRecord]:
    """Return all records, oldest first. Raises UserError naming a record that cannot be read.

    A name does not say which run is older: two runs of one minute differ in random letters.
    """
    found: list[RunRecord] = []
    for file in sorted(clone.runs.glob("*.json")):
        try:
            found.append(reports.parse(RunRecord, file.read_bytes(), str(file)))
        except ValidationError as error:
            raise UserError(
                f"{file}: not a whole record of a run ({error.errors()[0]['msg']}). Delete the file: if the run was "
                "over, its revision is safe in Git; if not, a new one finds its finished stages in DVC's cache."
            ) from None
    return sorted(found, key=lambda record: (record.started, record.name))


def of_agent(clone: Clone) -> list[RunRecord]:
    """Return the runs of this agent, oldest first, including those from before its folder moved. If
    no agent is chosen, return all runs."""
    every, folder = load_all(clone), clone.agent_folder
    if folder is None:
        return every
    name = workspace.name(clone.root, folder) if folder else None
    return [record for record in every if record.folder == folder or (name and record.agent == name)]


def find(clone: Clone, name: str) -> RunRecord:
    """Find a run by its name, or by any part of it that only one run has."""
    every = {record.name: record for record in load_all(clone)}
    return every[pick([*every], name)]


def pick(every: list[str], name: str) -> str:
    """Find a name, or the only one that contains this part. Raises UserError for none, and for
    several."""
    hits = [one for one in every if one == name] or [one for one in every if name in one]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise UserError(f"{name!r} could be any of {', '.join(hits)}. Write more of the name.")
    known = ", ".join(every[-5:]) or f"none yet: start one: {commands.command('run')}"
    raise UserError(f"no run named {name!r}. The latest: {known}. All: {commands.command('runs')}")


@contextlib.contextmanager
def held(file: Path, wait: bool = False) -> Iterator[bool]:
    """Hold an exclusive lock during the block. It ends with the process too. Yields whether it was
    obtained."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


def lock(clone: Clone, name: str) -> Path:
    return clone.runs / f"{name}.lock"


def alive(clone: Clone, name: str) -> bool:
    """Say whether a driver holds the run."""
    try:
        handle = os.open(lock(clone, name), os.O_RDONLY | os.O_CLOEXEC)  # the file system may be read-only
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # on NFS an exclusive lock needs write access
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
