"""The figure of ingest: how fast a log becomes a snapshot, in how much memory, and always the same.

A gigabyte of simulated traffic (bench/traffic_log.py) is ingested by two processes, and read by the
loop that did this before (bench/ingest_loop.py). Both start as processes of their own, so each pays
for its imports. The same log is ingested again by one and by four processes, and once more with a
kill -9 after a part of it is staged. The bytes of all snapshots are compared.

Memory is that of the whole process tree, added up many times a second. What processes share, such
as the code of libraries, counts once (Linux: proportional set size). The sum of their resident
sizes, where it counts for each process, is shown beside it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench import traffic_log
from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
FULL, LARGE, SMALL = 10**9, 4 * 10**9, 16 * 10**6
_INGEST = """
import sys
from pathlib import Path
from rft import config
from rft.traffic.ingest import ingest
if __name__ == "__main__":
    section = config.Traffic(min_conversations=1, unit="user_id", processes=int(sys.argv[3]))
    print(ingest(sys.argv[1], section, Path.cwd(), Path(sys.argv[2])))
"""


@dataclass(frozen=True, slots=True)
class Ran:
    seconds: float
    peak_mb: float
    resident_mb: float


def ingest_speed(args: list[str]) -> Figure:
    """Ingest 1 GB: times as fast as the line loop (5), memory, the same bytes after a kill."""
    with tempfile.TemporaryDirectory(prefix="rft-ingest-", dir=os.environ.get("RFT_BENCH_DISK")) as place:
        return _measure(Path(place), "--small" in args, "--large" in args)


def _measure(place: Path, is_small: bool, is_large: bool) -> Figure:
    log = place / "log.jsonl"
    num_rows = traffic_log.write(log, SMALL if is_small else FULL)
    _print_line(f"{num_rows} rows, {log.stat().st_size / 1e6:.0f} MB")
    os.sync()  # else the first reader would pay for the writing
    two = _ingest(log, place / "two", 2)
    loop = _run(["-m", "bench.ingest_loop", str(log), str(place / "loop.jsonl")])
    bare = _run(["-m", "bench.ingest_loop", str(log)])
    (place / "loop.jsonl").unlink()
    expected = _bytes(place / "two")
    four = _ingest(log, place / "four", 4)
    one = _ingest(log, place / "one", 1)
    same = [_bytes(place / "four") == expected, _bytes(place / "one") == expected]
    staged = _killed(log, place / "killed", len(expected) // 2)
    _ingest(log, place / "killed", 2)
    same.append(_bytes(place / "killed") == expected)
    parts = [
        Part("times as fast as the line loop", loop.seconds / two.seconds, "x", at_least=None if is_small else 5),
        Part("peak memory of 2 processes", two.peak_mb, "MB", at_most=1000),
        Part("peak memory of 4 processes", four.peak_mb, "MB", at_most=1000),
        Part("snapshots of other bytes: 4 processes, 1 process, killed", same.count(False), at_most=0, n=3),
        Part("blocks staged before the kill", staged, "blocks", at_least=1),
        Part("resident sizes of 2 processes and their parent, added up", two.resident_mb, "MB"),
        Part("resident sizes of 4 processes and their parent, added up", four.resident_mb, "MB"),
        Part("ingest with 2 processes", two.seconds, "s"),
        Part("ingest with 1 process", one.seconds, "s"),
        Part("line loop that writes what it normalized", loop.seconds, "s"),
        Part("line loop that writes nothing", bare.seconds, "s"),
        Part("times as fast as the loop that writes nothing", bare.seconds / two.seconds, "x"),
    ]
    if is_large:
        for name in ("two", "four", "one", "killed"):
            shutil.rmtree(place / name)
        traffic_log.write(log, LARGE)
        large = _ingest(log, place / "large", 2)
        parts.append(Part("peak memory of 2 processes, 4 GB", large.peak_mb, "MB", at_most=1000))
        parts.append(Part("ingest of 4 GB with 2 processes", large.seconds, "s"))
    return Figure(tuple(parts))


def _ingest(log: Path, into: Path, processes: int) -> Ran:
    found = _run(["-P", "-c", _INGEST, log.name, str(into), str(processes)], log.parent)
    _print_line(
        f"{processes} processes: {found.seconds:.1f} s, {found.peak_mb:.0f} MB ({found.resident_mb:.0f} MB resident)"
    )
    return found


def _killed(log: Path, into: Path, at: int) -> int:
    """Start an ingest, and kill it when enough blocks are staged, unless it is done before. Returns
    how many there are."""
    command = [sys.executable, "-P", "-c", _INGEST, log.name, str(into), "2"]
    with subprocess.Popen(command, cwd=log.parent, env=_environment(), stdout=subprocess.DEVNULL) as popen:
        while popen.poll() is None and len(_staged(into)) < max(1, at):
            time.sleep(0.01)
        popen.send_signal(signal.SIGKILL)
    return len(_staged(into))


def _staged(into: Path) -> list[Path]:
    return list(into.glob(".work-*/staged/*.json"))


def _bytes(into: Path) -> dict[str, str]:
    (folder,) = (path for path in into.iterdir() if not path.name.startswith("."))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


# -- processes -------------------------------------------------------------------------------------
def _run(arguments: list[str], place: Path = ROOT) -> Ran:
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=place, env=_environment(), stdout=subprocess.DEVNULL
    ) as popen:
        memory = _Memory(popen.pid)
        memory.start()
        popen.wait()
        seconds = time.monotonic() - began
        memory.over.set()
        memory.join()
    if popen.returncode:
        raise RuntimeError(f"{arguments[:3]} ended with code {popen.returncode}")
    return Ran(seconds, memory.peak / 1e6, memory.resident / 1e6)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class _Memory(threading.Thread):
    """Watches the memory of a process and of all its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.resident, self.over = pid, 0, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            proportional, resident = _memory(self.pid)
            self.peak, self.resident = max(self.peak, proportional), max(self.resident, resident)


def _memory(pid: int) -> tuple[int, int]:
    """Return the proportional and the resident size of a process tree, in bytes."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it ended
        return 0, 0
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (row.partition(":") for row in rows)}
    inner = [_memory(int(child)) for child in below]
    return sizes["Pss"] + sum(each[0] for each in inner), sizes["Rss"] + sum(each[1] for each in inner)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


FIGURES = {"ingest_speed": ingest_speed}
