"""A Prefect server of our own, for the duration of a command.

Prefect would start one by itself, but that one outlives a `kill -9` of the command, keeps no log,
and starts only when the flow begins. Ours dies with us (the kernel sees to it), listens on a socket
that we bound, so that nothing can take the port in between, and boots while we import and prepare.
Its data is in `.rft/prefect`, so it knows earlier runs. If PREFECT_API_URL is set, that server is
used and none is started: this is how production and the flow runs of `rft up` work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

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
    if os.environ.get("PREFECT_API_URL"):
        yield None
        return
    server = Server(clone, full, port)
    os.environ["PREFECT_API_URL"] = f"{server.url}/api"
    try:
        yield server
    finally:
        del os.environ["PREFECT_API_URL"]
        server.stop()


class Server:
    def __init__(self, clone: Clone, full: bool, port: int):
        self.log = clone.state / "logs" / "prefect.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        listening = _bound(port)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        environment = os.environ | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT__SERVER_FINAL": "1"}
        if full:
            environment |= {"PREFECT_UI_API_URL": f"{self.url}/api"}
        else:
            environment |= {
                "PREFECT__SERVER_EPHEMERAL": "1",
                "PREFECT_SERVER_UI_ENABLED": "false",
                "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
            }
        with listening, self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _SERVER, str(os.getpid()), str(listening.fileno())],
                cwd=Path(clone.state),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # Ctrl-C is ours to handle: the flow ends first, then its server
            )

    def ready(self) -> None:
        """Wait until it answers. Raises InfrastructureError if it does not."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(urllib.error.URLError, OSError), direct.open(f"{self.url}/api/health", timeout=2):
                return
            time.sleep(0.05)
        raise InfrastructureError(
            f"Prefect's server did not start. Its log: {self.log}. "
            "If its history is damaged, remove it and start again: rm -r .rft/prefect"
        )

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


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
