"""`rft` in the process of a test, with one Prefect server for the whole session.

A verb in a process of its own pays for Python's imports, `rft run` and `rft approve` for a Prefect
server besides: ten seconds of work, of which most tests see nothing. Here its `main` is called in
the clone's folder, and PREFECT_API_URL names a server that stands, as it does in production. What
is printed, the exit code and what lies in the clone are the same.

Processes, signals, and a server of the run's own are for `Scripted.rft` and `Scripted.start`.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows import cli
from flows.server import Server
from tasks.runs.clone import Clone
from tests import kept

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Ended:
    """What is looked at of a `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class AtHand:
    api: str

    def __call__(self, root: Path, *arguments: str) -> Ended:
        from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_LEVEL, temporary_settings

        out, err, before = io.StringIO(), io.StringIO(), dict(os.environ)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        os.environ["PREFECT_API_URL"] = self.api
        settings = {PREFECT_API_URL: self.api, PREFECT_LOGGING_LEVEL: "CRITICAL"}
        with ExitStack() as stack:
            stack.callback(setattr, sys, "argv", sys.argv)
            sys.argv = [str(Path(cli.__file__).with_name("__main__.py"))]  # what is printed names the same program
            stack.callback(os.environ.update, before)
            stack.callback(os.environ.clear)
            stack.enter_context(temporary_settings(settings))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            stack.enter_context(chdir(root))
            code = cli.main(arguments)
        return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a Prefect server that keeps what it knows in PREFECT_HOME."""
    with _ready(folder) as one:
        yield f"{one.url}/api"


def history(home: Path) -> None:
    """Give a PREFECT_HOME that has none a database that is laid out, which takes Prefect 5 s."""

    def laid_out(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_HOME", str(folder / "home"))
            with _ready(folder):
                pass

    if not (home / "prefect.db").exists():
        empty = kept.folder("prefect", laid_out, [ROOT / "constraints.txt"])
        shutil.copytree(empty / "home", home, dirs_exist_ok=True)


@contextmanager
def _ready(folder: Path) -> Iterator[Server]:
    place = Clone(folder)
    place.state.mkdir(exist_ok=True)
    one = Server(place, full=False, port=0)
    try:
        one.ready()
        yield one
    finally:
        one.stop()
