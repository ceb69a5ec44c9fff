"""The figure of the sandbox's speed: a call, and making, keeping and restoring a workspace.

The base holds 50 MB in 2,500 files. Between a snapshot and the restore, five files change. The
times with a bound are measured as root, one after another, in memory. Times as a plain user, with
the base on disk, and with 200 sandboxes at once are only printed. `python -m bench.sandbox_latency`
prints the measurements of the user who runs it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from bench.measure import Figure, Part, failed, unmeasured
from bench.sandbox_scene import ROOT, as_plain_user
from rft.sandbox import probe
from rft.sandbox.limits import Limits
from rft.sandbox.sandbox import Sandbox, Spec, create
from rft.sandbox.workspace import Base

NUM_FILES, NUM_BYTES = 2500, 50_000_000
NUM_TIMES = 100
AT_ONCE = 200
MAX_MS = 10.0
ACTS = ("call", "create", "snapshot", "restore")


def sandbox_latency(args: list[str]) -> Figure:
    """Median milliseconds of a call, a workspace, a snapshot and a restore, as root on tmpfs."""
    if os.geteuid() != 0:
        return unmeasured("call", "this is not root")
    ways = {"root": ([sys.executable, "-m", "bench.sandbox_latency"], {**os.environ})}
    if plain := as_plain_user("-m", "bench.sandbox_latency"):
        ways["a plain user"] = plain
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for user, (argv, environment) in ways.items():
        done = subprocess.run(argv, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return failed("call", f"the measurement as {user} ended with {done.returncode}")
        measured[user] = json.loads(done.stdout)
        for act, times in measured[user].items():
            print(
                f"{user:13} {act:28} " + "  ".join(f"{key} {value:.4g}" for key, value in times.items()),
                file=sys.stderr,
            )
    parts = tuple(
        Part(
            f"{act}, median",
            measured["root"][act]["p50"],
            "ms",
            at_most=MAX_MS,
            low=measured["root"][act]["p5"],
            high=measured["root"][act]["p95"],
            n=NUM_TIMES,
        )
        for act in ACTS
    )
    return Figure(parts, {"measured in ms": measured, "low and high": "the 5th and 95th percentile"})


async def measure() -> dict[str, dict[str, float]]:
    """Measure as the present user."""
    with tempfile.TemporaryDirectory() as name:
        _fill(Path(name))
        started = time.perf_counter()
        base = await Base.of_folder(Path(name))
        copied = time.perf_counter() - started
        with tempfile.TemporaryDirectory() as disk, closing(await Base.of_folder(Path(name), disk=Path(disk))) as lying:
            on_disk = await _acts(lying)
    with closing(base):
        found = {"base": {"p50": copied * 1000}, **await _acts(base)}
        found |= {f"{act}, base on disk": times for act, times in on_disk.items() if act in ACTS}
        return found | await _at_once(_spec(base))


def _spec(base: Base) -> Spec:
    return Spec(base, Limits(disk_bytes=64 * 2**20), allow_weaker=True)


async def _acts(base: Base) -> dict[str, dict[str, float]]:
    """Measure one after another."""
    found: dict[str, dict[str, float]] = {}
    spec = _spec(base)
    await probe.machine()

    async def made() -> None:
        async with create(spec):
            pass

    async with create(spec) as sandbox:
        found["call"] = await _times(lambda: sandbox.exec(["true"]))
        found["call of a shell"] = await _times(lambda: sandbox.exec(["sh", "-c", "echo"]))
        found["call of Python"] = await _times(lambda: sandbox.exec(["/usr/bin/python3", "-I", "-S", "-c", ""]))
        found["create"] = await _times(made)
        await _change(sandbox)
        found["snapshot"] = await _times(sandbox.snapshot)
        snapshot_id = await sandbox.snapshot()
        found["restore"] = await _times(lambda: sandbox.restore(snapshot_id), lambda: _change(sandbox))
        found["changes"] = await _times(sandbox.diff)
    return found


async def _at_once(spec: Spec) -> dict[str, dict[str, float]]:
    """Make many sandboxes and call them, all at the same time."""

    async def one(ready: asyncio.Barrier) -> None:
        async with create(spec) as sandbox:
            await ready.wait()
            outcome = await sandbox.exec(["true"])
            assert outcome.returncode == 0, outcome
            await ready.wait()

    ready = asyncio.Barrier(AT_ONCE + 1)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one(ready))
        await ready.wait()
        created = time.perf_counter()
        await ready.wait()
        called = time.perf_counter()
    return {
        f"create {AT_ONCE} at once, all": {"p50": (created - started) * 1000},
        f"call {AT_ONCE} at once, all": {"p50": (called - created) * 1000},
        f"close {AT_ONCE}, all": {"p50": (time.perf_counter() - called) * 1000},
    }


async def _times(
    act: Callable[[], Awaitable[object]], before: Callable[[], Awaitable[object]] | None = None
) -> dict[str, float]:
    times: list[float] = []
    for _ in range(NUM_TIMES):
        if before is not None:
            await before()
        started = time.perf_counter()
        await act()
        times.append((time.perf_counter() - started) * 1000)
    cuts = statistics.quantiles(times, n=20)
    return {"p5": cuts[0], "p50": statistics.median(times), "p95": cuts[-1]}


async def _change(sandbox: Sandbox) -> None:
    for number in range(5):
        await sandbox.write_file(f"{number}/{number}.py", b"x" * 20_000)


def _fill(folder: Path) -> None:
    for number in range(NUM_FILES):
        place = folder / str(number % 50)
        place.mkdir(exist_ok=True)
        (place / f"{number}.py").write_bytes(os.urandom(NUM_BYTES // NUM_FILES))


FIGURES = {"sandbox_latency": sandbox_latency}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
