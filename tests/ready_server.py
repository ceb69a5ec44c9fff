"""Tool servers that start at once, for tests that are about something else.

A stage, `rft doctor` and a preflight each start the recipe's own server. Of its 0.7 s of processor
time all but 0.05 s are imports, and a run of all tests starts hundreds. With the fixture
`ready_server` (tests/conftest.py) the interpreter is not started but forked, from a process that
has imported `rft.tools.server` and nothing else (the standard library's forkserver). Everything
after that is the same: a process of its own for each, its group, its output, its key and its
environment, asked over a socket, and dead when whoever started it is.

Tests of that start and that death (tests/tools) have the real thing.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import reduction
from typing import IO, Any

from rft.process import module_command
from rft.tools import server

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])
STARTS = module_command("rft.tools.server")

DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired


class Popen:
    """What rft/tools/lifetime.py knows of subprocess.Popen, for the one command that it gives."""

    def __init__(
        self, command: list[str], *, env: dict[str, str], stdin: int, stdout: IO[bytes], stderr: Any, process_group: int
    ) -> None:
        assert command[: len(STARTS)] == STARTS
        assert (stdin, stderr, process_group) == (DEVNULL, stdout, 0)
        given = command[len(STARTS) :], env, os.getcwd(), _Output(stdout.fileno())
        self._process = _forks.Process(target=_serve, args=given, daemon=True)
        self._process.start()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired("rft.tools.server", timeout or 0.0)
        return self._process.exitcode


class _Output:
    """A file's number, which another process reads as its own number of the same file."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self._number),)


def _received(sent: Any) -> int:
    return sent.detach()


def _serve(arguments: list[str], environment: dict[str, str], folder: str, output: int) -> None:
    os.setpgid(0, 0)
    for number in (1, 2):
        os.dup2(output, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # one of them keeps the process alive that forks
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    *rest, told, _ = arguments
    assert told == "--parent"
    sys.exit(server.main([*rest, told, str(os.getppid())]))  # the parent ends when the test process does
