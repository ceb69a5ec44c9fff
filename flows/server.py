"""A Prefect server of our own, for the duration of a command.

Prefect would start a server by itself, but that one outlives a `kill -9` of the command, keeps no
log, and starts only when the flow begins. The kernel ends our server together with the command. It
listens on a socket that we bound, so that no other program can take the port in between. It boots
while we import and prepare. Its data is in `.rft/prefect`, so it knows earlier runs. If
PREFECT_API_URL is set, that server is used and none is started: this is how production and the flow
runs of `rft up` work.

Prefect only shows a run: no run waits for it, and none fails with it. If its database is locked,
damaged, read-only or full, the server starts again with a temporary folder. This run is then
missing in Prefect's history, and nowhere else. The server of PREFECT_API_URL does not show this run
either, if it does not answer. `rft up` needs the history for its schedules, so there it is an
error.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from flows.screen import warn
from rft.errors import InfrastructureError
from rft.process import DIES_WITH_PARENT
from tasks.runs.clone import Clone

_SERVER = f"""{DIES_WITH_PARENT}
import uvicorn
uvicorn.run("prefect.server.api.server:create_app", factory=True, fd=int(sys.argv[1]), log_level="error", lifespan="on")
"""
_PATIENCE_S = 120.0


@contextlib.contextmanager
def prefect_server(clone: Clone, full: bool = False, port: int = 0) -> Iterator[Server | None]:
    """Yield a server that still boots; call `ready` before the first flow. `full` adds the UI and
    the services that schedules need."""
    named = os.environ.get("PREFECT_API_URL")
    if named and (full or _answers(named)):
        yield None
        return
    if named:
        shown = re.sub(r"//[^/@]*@", "//...@", named)
        warn(
            f"Prefect's server at {shown} does not answer, so it will not show this run. Start it, or unset "
            "PREFECT_API_URL"
        )
    # a server of ours that went down stays down: more retries would hold up each stage for a minute
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")
    server = Server(clone, full, port)
    os.environ["PREFECT_API_URL"] = f"{server.url}/api"
    try:
        yield server
    finally:
        del os.environ["PREFECT_API_URL"]
        if named:
            os.environ["PREFECT_API_URL"] = named
        server.stop()


class Server:
    def __init__(self, clone: Clone, full: bool, port: int):
        self.log = clone.state / "logs" / "prefect.log"
        self._state, self._full = clone.state, full
        self._home: tempfile.TemporaryDirectory[str] | None = None
        """The folder of a server that runs without the history of this clone."""
        listening = _bound(port)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process = self._begun(listening, os.environ)

    def _begun(self, listening: socket.socket, given: Mapping[str, str]) -> subprocess.Popen[bytes]:
        environment = {**given, "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT__SERVER_FINAL": "1"}
        if self._full:
            environment |= {"PREFECT_UI_API_URL": f"{self.url}/api"}
        else:
            environment |= {
                "PREFECT__SERVER_EPHEMERAL": "1",
                "PREFECT_SERVER_UI_ENABLED": "false",
                "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
            }
        with listening, self._output() as out:
            return subprocess.Popen(
                [sys.executable, "-I", "-c", _SERVER, str(os.getpid()), str(listening.fileno())],
                cwd=Path(self._state),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # Ctrl-C is ours to handle: the flow ends first, then its server
            )

    def _output(self) -> IO[bytes]:
        """Open its log. If the disk is full or read-only, drop the output: the run will say so."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            return self.log.open("ab")
        except OSError:
            return open(os.devnull, "ab")

    def ready(self) -> None:
        """Wait until it answers. If it cannot start, start it again without its history. Raises
        InfrastructureError if it does not answer then either. For `rft up` it raises at once."""
        if self._boots():
            return
        if self._full or not self.has_history:
            raise InfrastructureError(f"Prefect's server did not start. {self._again}")
        self.begin_anew("its server did not start")

    @property
    def _again(self) -> str:
        return f"Its log: {self.log}. If its history is damaged, remove it and start again: rm -r .rft/prefect"

    @property
    def has_history(self) -> bool:
        return self._home is None

    def begin_anew(self, why: str) -> None:
        """Start again without the history, at the same address, and say why. Raises
        InfrastructureError if it does not answer then either."""
        self._end()
        warn(f"Prefect's history will not show this run: {why}. {self._again}")
        self._home = tempfile.TemporaryDirectory(prefix="rft-prefect-", ignore_cleanup_errors=True)
        self._process = self._begun(_bound(self.port), os.environ | {"PREFECT_HOME": self._home.name})
        self.ready()

    def _boots(self) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if _answers(f"{self.url}/api", 2):
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        self._end()
        if self._home is not None:
            self._home.cleanup()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


def _answers(api: str, timeout_s: float = 5) -> bool:
    """Whether a server is there. It may say anything but that it is broken (5xx)."""
    direct = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if "//127.0.0.1:" in api else []))
    try:
        with direct.open(f"{api.rstrip('/')}/health", timeout=timeout_s):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise InfrastructureError(
            f"port {port} is taken ({error.strerror}). Stop what listens there, or choose another: rft up --port N"
        ) from None
    listening.listen(128)
    return listening
