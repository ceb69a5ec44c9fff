"""One stage of a run: `dvc repro --single-item STAGE`, watched line by line, and never left behind.

Only DVC decides whether a stage must run. It says `didn't change` when this worktree holds the
result already, or takes the result from the run cache when an earlier run had the same inputs.
People are told which of the three happened. dvc_process.py has the process of DVC, and how it ends.
Its process group is noted, so that a later command can kill what is left.

A stage's result is not safe before DVC has hashed and cached it. Until DVC returns 0, its work
folder stays (rft/progress.py). So a kill in between, or a full disk, costs seconds and not the
training. Then only this folder is deleted, whether the stage ran or DVC found its result. Another
run at the same time, or an older try with other settings, keeps its own folder.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from rft import commands, config, engine, files, progress, secrets, stopping
from rft.__main__ import STAGES
from rft.errors import InfrastructureError, RftError, Stopped, UserError
from tasks.runs import dvc_process
from tasks.runs import engine as engines
from tasks.runs.console import Lines

How = Literal["ran", "unchanged", "restored"]
listener: ContextVar[Lines] = ContextVar("listener", default=Lines())  # noqa: B039 - one voice a process is meant

_UNCHANGED = re.compile(r"^Stage '[^']+' didn't change, skipping")
_RESTORED = re.compile(r"^Stage '[^']+' is cached - skipping run")
_DISTURBED = re.compile(
    r"No such file or directory: '[^']*/runs/[0-9a-f]{2}/[0-9a-f]+/\.[^']*\.tmp'"
    r"|unable to remove '[^']*' without a confirmation"
)
"""Errors of DVC (3.67.1) when two runs finish equal stages at once, as two new agents do. First,
DVC deletes the newest file of an entry in its run cache as damaged while another process still
writes it. Second, it asks for a confirmation to remove a file while another process still adds its
bytes to the cache. The stage is complete in its work folder, so a second try takes seconds."""
_EXITED = re.compile(r"exited with (-?\d+)")
DVC_SAYS = re.compile(
    r"^(Running stage '|> |Generating lock file|Updating lock file|To (track|enable)|Use `dvc|Data and "
    r"pipelines|\tgit |\tdvc |Stage '|ERROR: "
    r"|WARNING: '.*' is empty|WARNING: Process '.*had been killed|$)"
)
"""DVC's own lines, which are not for people."""


class StageFailed(RftError):
    """The stage ended with an error. Message and exit code are the stage's own."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class StageKilled(StageFailed):
    """The stage or its DVC was killed with -9: by `rft runs cancel --now`, by a person, or by the
    kernel when memory ran out."""


@dataclass(frozen=True)
class Outcome:
    stage: str
    how: How


def repro(
    tree: Path,
    stage: str,
    state: Path,
    run: str | None = None,
    *,
    log: Path | None = None,
    note_group: Callable[[int], None] | None = None,
    on_line: Callable[[str], bool] | None = None,
    deadline: float | None = None,
    loaded: dvc_process.Loaded | None = None,
) -> Outcome:
    """Bring one stage's files up to date. Lines for which `on_line` is true are not shown.

    Raises StageFailed with the stage's own message, and InfrastructureError when DVC cannot run the
    stage. Raises Stopped when the stage ended in order: at its `deadline` (seconds since 1970), or
    because of `rft runs cancel` (rft/stopping.py).
    """
    for tries_left in (2, 1, 0):
        try:
            return _repro(tree, stage, state, run, log, note_group, on_line, deadline, loaded)
        except InfrastructureError as error:
            if not tries_left or not _DISTURBED.search(str(error)):
                raise
    raise AssertionError


def _repro(
    tree: Path,
    stage: str,
    state: Path,
    run: str | None,
    log: Path | None,
    note_group: Callable[[int], None] | None,
    on_line: Callable[[str], bool] | None,
    deadline: float | None,
    loaded: dvc_process.Loaded | None,
) -> Outcome:
    lines = listener.get()
    lines.begin(stage)
    environment = _of_stages(tree, state, run, deadline)
    how: How = "ran"
    last: deque[str] = deque(maxlen=400)
    error: list[str] = []  # the stage's last error: printed once, by the code that catches it
    with contextlib.ExitStack() as stack:
        file: TextIO | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("a", encoding="utf-8"))
        process = stack.enter_context(dvc_process.started(tree, ["repro", "--single-item", stage], environment, loaded))
        if note_group:
            note_group(process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            line = secrets.redact(line.rstrip("\n"))
            last.append(line)
            if file:
                print(line, file=file, flush=True)
            how = "unchanged" if _UNCHANGED.match(line) else "restored" if _RESTORED.match(line) else how
            if DVC_SAYS.match(line) or (on_line and on_line(line)):
                continue
            if line.startswith("error: "):
                _show(lines, error)
                error = [line]
            elif error:
                error.append(line)
            else:
                lines.on_line(line)
        code = process.wait()
    if code != 0:
        failure = _failure(stage, list(last), log, killed=code == -signal.SIGKILL)
        _show(lines, [] if isinstance(failure, StageFailed | Stopped) else error)
        raise failure
    with contextlib.suppress(OSError, RftError):  # `rft runs gc` removes what stays
        progress.forget(stage, config.load(tree / "params.yaml"), tree, state)
    _show(lines, error)
    lines.end(how)
    return Outcome(stage, how)


def load(loaded: dvc_process.Loaded, tree: Path, state: Path, run: str, deadline: float | None) -> None:
    """Start loading DVC for the stages of a run."""
    loaded.start(tree, _of_stages(tree, state, run, deadline))


def _of_stages(tree: Path, state: Path, run: str | None, deadline: float | None) -> dict[str, str]:
    """Return the variables that a stage finds in its environment."""
    return {
        engine.FOLDER: str(engines.folder(tree)),
        files.STATE: str(state),
        stopping.RUN: run or "",
        stopping.DEADLINE: f"{deadline or ''}",
        "PYTHONUNBUFFERED": "1",
    }


def _show(lines: Lines, several: list[str]) -> None:
    for line in several:
        lines.on_line(line)


def dvc(tree: Path, *arguments: str) -> str:
    """Run a DVC command and return its output. Raises InfrastructureError with DVC's own words."""
    with dvc_process.started(tree, list(arguments), {}) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        code = process.wait()
    if code != 0:
        errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
        printed = secrets.redact(" ".join(errors) or output.strip())
        raise InfrastructureError(f"dvc {' '.join(arguments)} failed in {tree}: {printed}")
    return output


def _failure(stage: str, lines: list[str], log: Path | None, killed: bool = False) -> RftError:
    where = f" Its whole output: {log}" if log else ""
    exited = next((found[1] for line in reversed(lines) if (found := _EXITED.search(line))), None)
    begun = max((n for n, line in enumerate(lines) if line.startswith("error: ")), default=None)
    if exited is not None and begun is not None:
        message = [lines[begun].removeprefix("error: ")]
        for line in lines[begun + 1 :]:
            if DVC_SAYS.match(line):
                break
            message.append(line)
        text, code = f"stage {stage}: " + "\n".join(message), int(exited)
        return Stopped(text) if code == Stopped.exit_code else StageFailed(text, code)
    if exited is not None:
        own = [line for line in lines if not DVC_SAYS.match(line)]
        kind = StageKilled if int(exited) == -signal.SIGKILL else StageFailed
        return kind(f"stage {stage} crashed. The end of what it printed:\n" + "\n".join(own[-8:]) + where, 1)
    if killed:
        text = f"stage {stage}: its processes were killed with -9, by somebody or because memory ran out.{where}"
        return StageKilled(text, InfrastructureError.exit_code)
    errors = " ".join(line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: "))
    printed = (errors or "\n".join(lines[-8:])).rstrip(".")
    if "are missing from 'params.yaml'" in printed:
        shown = commands.command("doctor", "--show-resolved")
        remedy = f"a section may be empty, such as `{stage}: {{}}`; the value of a single key is shown by {shown}"
        return UserError(f"stage {stage}: {printed}. DVC asks for all that a stage depends on. Write it: {remedy}")
    lost = re.search(r"data/(\w+)", printed) if re.search("No such file|does not exist|missing data", printed) else None
    remedy = f" Run the stage that writes it: {commands.stage(lost[1])}." if lost and lost[1] in STAGES else ""
    return InfrastructureError(f"stage {stage}: DVC could not run it: {printed}.{remedy}{where}")
