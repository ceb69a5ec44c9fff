"""The smoke test before a promotion's entry.

The agent, laid out from its revision, plays a few examples with its real tools and its real grader
(rft/smoke.py).

    check(agent, on_line) -> Smoke   raises InfrastructureError or UserError when it does not pass

It plays in a process of its own, with the engine that runs here. So this process need not load
torch, and a crash or a hang there becomes an error here. Nothing is recorded, and an error stops
the promotion.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rft import files, reports, secrets, stage_files
from rft.errors import InfrastructureError, RftError, UserError
from rft.process import last_output, module_command
from rft.smoke import Smoke
from tasks.promotion import agents
from tasks.promotion.agents import Agent
from tasks.runs.clone import Clone

START_S = 900.0
"""The limit for loading weights and starting the tool server. Then each rollout has its
deadlines."""
EXAMPLES = (str(stage_files.examples_file("validation")), str(stage_files.KEYS))
_ERROR = "error: "
_END = "Nothing was promoted."


def check(agent: Agent, on_line: Callable[[str], None] = lambda line: None, start_s: float = START_S) -> Smoke:
    """Play the smoke test of an agent. `on_line` gets its lines at once, in the form of
    rft/lines.py."""
    with agents.laid_out(agent, *EXAMPLES) as tree:
        return play(agent, tree, on_line, start_s)


def play(agent: Agent, tree: Path, on_line: Callable[[str], None], start_s: float = START_S) -> Smoke:
    """Do the same in a folder where the agent is laid out already, with `EXAMPLES`. The recipe's
    code runs in this folder, so sign what is to be signed before."""
    what, result = f"smoke test of {agent.description}", tree.parent / "smoke.json"
    code, last = _played(agent.at.clone, tree, [str(result), "--start-s", f"{start_s:g}"], on_line)
    if code == 0:
        return reports.read(Smoke, result)
    if code == -signal.SIGALRM:
        deadlines = "rollout.deadline_s, rollout.turn_deadline_s and rollout.grader_deadline_s for each example"
        late = f"hung: it took longer than {start_s:g} s to start, or than {deadlines}"
        raise InfrastructureError(f"{what}: {late}. {_END} {last_output(_text(last))}")
    raise _failure(what, code, last)


def _played(clone: Clone, tree: Path, arguments: list[str], on_line: Callable[[str], None]) -> tuple[int, list[str]]:
    """Return the exit code and the last lines."""
    last: deque[str] = deque(maxlen=200)
    process = subprocess.Popen(
        module_command("rft.smoke", *arguments),
        cwd=tree,
        env=os.environ | {files.STATE: str(clone.state), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    # a process that the recipe left behind would keep the pipe open, and we would wait for it
    threading.Thread(target=lambda: (process.wait(), _kill_group(process.pid)), daemon=True).start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            line = secrets.redact(line.rstrip("\n").replace(f"{tree.resolve()}/", ""))  # gone when it is read
            last.append(line)
            if line.startswith("[smoke] "):
                on_line(line)
        return process.wait(), list(last)
    finally:
        _kill_group(process.pid)
        process.wait()
        if process.stdout:
            process.stdout.close()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _failure(what: str, code: int, lines: list[str]) -> RftError:
    begun = max((n for n, line in enumerate(lines) if line.startswith(_ERROR)), default=None)
    if begun is not None and code in (UserError.exit_code, InfrastructureError.exit_code):
        kind = UserError if code == UserError.exit_code else InfrastructureError
        message = "\n".join([lines[begun].removeprefix(_ERROR), *lines[begun + 1 :]])
        return kind(f"{what}: {message} {_END}")
    killed = "was killed with -9, by somebody or because memory ran out" if code == -signal.SIGKILL else "crashed"
    return InfrastructureError(f"{what}: {killed}. {_END} {last_output(_text(lines))}")


def _text(lines: list[str]) -> str:
    return "\n".join(lines[-8:])
