"""Other projects to compare with, each in its own virtual environment without our code.

    interpreter = peer.python("trl")        .rft/bench/trl/bin/python, built if it is missing or was
                                            made from other requirements
    peer.run("trl", [script, ...], log)     a script in it, with a time limit

A comparison is fair only under equal conditions. So the environment gets the same build of torch
that runs here, and the versions of constraints.txt for all else that both need. What differs is
then the project that is measured. Three are exceptions: Evidently and reasoning-gym need no torch,
and vLLM brings its own exact list (bench/vllm.txt).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".rft" / "bench"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

PEERS: dict[str, tuple[str, ...]] = {
    # TRL, what its response parsing asks for beside its own list, and what the recipes' tools
    # import of ours
    "trl": (
        *("trl==1.16.0", "jmespath", "peft", "pydantic", "aiohttp", "jsonschema-rs", "rfc8785"),
        "simple-icd-10-cm",
    ),
    "evidently": ("evidently==0.7.23", "pandas==2.3.3", "pyarrow"),
    "reasoning-gym": ("reasoning-gym==0.1.25",),
    "vllm": tuple((ROOT / "bench" / "vllm.txt").read_text(encoding="utf-8").splitlines()),
}
ALONE = frozenset({"evidently", "reasoning-gym"})
"""Peers that need no torch, but other versions than ours: Evidently's pandas is older."""
EXACT = frozenset({"vllm"})
"""Peers whose list is complete: beside torch nothing else is installed, even if they require it."""


class PeerFailed(Exception):
    """The environment cannot be built, or its script failed. A figure says so with
    bench.measure.failed."""


def python(name: str) -> Path:
    """Return the interpreter of that environment. Raises PeerFailed with pip's last lines if it
    cannot be built."""
    folder = WORK / name
    interpreter = folder / "bin" / "python"
    ready = folder / f"ready-{_stamp(name)}"
    if not ready.exists():
        _build(name, folder, interpreter)
        ready.touch()
    return interpreter


def run(
    name: str, command: Sequence[str | Path], log: Path, timeout_s: float, environment: Mapping[str, str] | None = None
) -> None:
    """Run a script in that environment, in the clone's root. Its output goes to `log`. Raises
    PeerFailed with the log's end."""
    interpreter = python(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                [interpreter, *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{name}: no end within {timeout_s:g} s; see {log}") from None
    if done.returncode:
        raise PeerFailed(f"{name}: exit code {done.returncode}; see {log}: {_end(log)}")


def _stamp(name: str) -> str:
    """Hash everything that the environment is made from."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = "" if name in ALONE else _torch()
    pins = "" if name in ALONE | EXACT else constraints
    made_from = "\n".join([*PEERS[name], torch, platform.python_version(), pins, str(ROOT)])
    return hashlib.sha256(made_from.encode()).hexdigest()[:12]


def _torch() -> str:
    return f"torch=={importlib.metadata.version('torch')}"


def _build(name: str, folder: Path, interpreter: Path) -> None:
    _print_line(f"{name}: 1/3 virtual environment {folder}")
    log = WORK / f"{name}-setup.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    if _logged([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], log):
        raise PeerFailed(f"{name}: no virtual environment; see {log}: {_end(log)}")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(interpreter),
        "--disable-pip-version-check",
        "--no-input",
        "install",
    ]
    pip += ["--progress-bar", "off"]
    if name in ALONE:
        _print_line(f"{name}: 2/2 {PEERS[name][0]} and what it needs")
        if _logged([*pip, *PEERS[name]], log):
            raise PeerFailed(f"{name}: {PEERS[name][0]} cannot be installed; see {log}: {_end(log)}")
        return
    if name not in EXACT:
        pip += ["-c", str(ROOT / "constraints.txt")]
    _print_line(f"{name}: 2/3 {_torch()}")
    if _logged([*pip, _torch()], log) and _logged([*pip, "--extra-index-url", TORCH_INDEX, _torch()], log):
        raise PeerFailed(f"{name}: {_torch()} cannot be installed; see {log}: {_end(log)}")
    _print_line(f"{name}: 3/3 {'its list' if name in EXACT else f'{PEERS[name][0]} and what it needs'}")
    listed = ["--no-deps", "-r", str(ROOT / "bench" / f"{name}.txt")] if name in EXACT else [_torch(), *PEERS[name]]
    if _logged([*pip, *listed], log):
        raise PeerFailed(f"{name}: it cannot be installed; see {log}: {_end(log)}")


def _logged(command: Sequence[str], log: Path) -> int:
    with log.open("a", encoding="utf-8") as output:
        return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode


def _end(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])


def _print_line(text: str) -> None:
    print(f"[peer] {text}", file=sys.stderr, flush=True)
