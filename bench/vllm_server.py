"""A real vLLM on the CPU, in an environment of its own (bench/peer.py), for bench/vllm_real.py.

    with serving(FLAGS, model, log) as server:
        ... server.url
        server.kill()     as if its machine died: all connections end without a goodbye
        server.start()    again, without anything that it was told before

These are the flags that the token routes and the pushing of adapters need (README, section on
policies at servers). `--no-enable-chunked-prefill` is only for the CPU build: a seed per request
together with chunked prefill kills its engine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench import peer

NAME = "smollm2"
FLAGS = (
    "--enable-scale-out",
    "--enable-lora",
    *("--max-lora-rank", "16"),
    *("--logprobs-mode", "processed_logprobs"),
    "--no-enable-chunked-prefill",
)
STARTS_IN_S = 600.0
ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}


class NotServing(Exception):
    """The server did not start. The figure says so with bench.measure.failed."""


@dataclass
class Server:
    command: Sequence[str]
    port: int
    log: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it is healthy. Raises NotServing with the log's end."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=environment | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its engine is a process of its own, and ends with it
            )
        ends = time.monotonic() + STARTS_IN_S
        while not self._is_well():
            if self.process.poll() is not None or time.monotonic() > ends:
                self.kill()
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise NotServing(f"vLLM did not start; see {self.log}: {' / '.join(lines[-3:])}")
            time.sleep(1.0)

    def kill(self) -> None:
        """Send SIGKILL to all of its processes."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def _is_well(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def serving(model: Path, flags: Sequence[str], max_tokens: int, log: Path) -> Iterator[Server]:
    """Serve a model folder as NAME, in float32. Raises peer.PeerFailed or NotServing."""
    port = free_port()
    command = [str(peer.python("vllm")), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", str(max_tokens), "--enforce-eager", *flags]
    with running(Server(command, port, log, log.parent)) as server:
        yield server


@contextmanager
def running(server: Server) -> Iterator[Server]:
    server.log.unlink(missing_ok=True)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
