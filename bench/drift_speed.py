"""How fast a window is profiled and compared: 1,000,000 conversations x 15 features.

The window is a snapshot on disk. It has ten numbers of different kinds (normal, heavy-tailed,
years, counts, with nulls) and five categories of 3 to 2,000 values. Its conversations belong to
100,000 users. Three programs do the same on one thread each:

    DuckDB     the floor: reads the columns, histograms on edges that are given, groups by value
    ours       profiles the snapshot with counts per group of users, and compares it with a
               reference profile, with p-values, noise and false-discovery control
    Evidently  its default preset over two data frames in memory, in its own environment

Text is measured separately: `vocabulary` and `phrasing` look at one conversation of each of 2,000
users. Memory is the peak of a process that does nothing else. Ten times the rows must take ten
times as long, in the same memory.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import peer
from bench.measure import Figure, Part, unmeasured

ROOT = Path(__file__).resolve().parents[1]
FOLDER = peer.WORK / "drift_speed"
PART_ROWS = 62_500
ROWS, LARGE, REFERENCE_ROWS = 1_000_000, 10_000_000, 1_000_000
USERS, DAYS = 100_000, 28
ROUNDS = 3
TEXTS = 5_000
"""Distinct texts: writing a million of them would measure the writing."""
NUMBERS = ("age", "amount", "days", "gap", "items", "price", "ratio", "score", "year")
"""The numbers beside `input_words`, which is the tenth."""
CATEGORIES = {"country": 50, "device": 3, "plan": 10, "product": 2000, "topic": 200}
COLUMNS = ("input_words", *(f"own_{name}" for name in (*NUMBERS, *CATEGORIES)))


def drift_speed(args: list[str]) -> Figure:
    """Profile and comparison of 1,000,000 x 15 over a bare DuckDB scan (<= 10), Evidently's time
    over ours (>= 10), peak memory (< 1 GB), and growth to 10,000,000. --small: 100,000 and
    200,000 rows."""
    small = "--small" in args
    rows, large = (100_000, 200_000) if small else (ROWS, LARGE)
    if shutil.disk_usage(ROOT).free < 4e9:
        return unmeasured("time over a bare DuckDB scan", "not measured on this device: it takes 4 GB of disk")
    reference, window, longer = (
        _made(name, count, seed)
        for name, count, seed in (("reference", rows, 1), ("window", rows, 2), ("longer", large, 3))
    )
    profile_file = FOLDER / "reference.json"
    _job("profile", reference, profile_file)
    floor = min((_job("floor", window, profile_file) for _ in range(ROUNDS)), key=_seconds)
    ours = min((_job("ours", window, profile_file) for _ in range(ROUNDS)), key=_seconds)
    grown = _job("ours", longer, profile_file)
    text = _job("text", window, profile_file)
    over = _seconds(ours) / _seconds(floor)
    exponent = math.log(_seconds(grown) / _seconds(ours)) / math.log(large / rows)
    bound = None if small else 1e9
    parts = [
        Part("time over a bare DuckDB scan and histogram, one thread each", over, "", at_most=10, n=ROUNDS),
        Part(f"seconds, ours: profile and comparison of {rows:,} x 15", _seconds(ours), "s", n=ROUNDS),
        Part("seconds, ours: the profile alone", ours["profile_s"], "s", n=ROUNDS),
        Part("seconds, DuckDB", _seconds(floor), "s", n=ROUNDS),
        Part(f"peak memory, {rows:,} rows", ours["peak_bytes"], "B", at_most=bound),
        Part(f"peak memory, {large:,} rows", grown["peak_bytes"], "B", at_most=bound),
        Part(f"growth of the time from {rows:,} to {large:,} rows, as a power", exponent, "", at_most=1.1),
        Part(f"seconds, {large:,} rows", _seconds(grown), "s"),
        Part(f"seconds, text apart: words of {text['num_texts']:,} users", _seconds(text), "s"),
        Part("size of a profile's file", ours["profile_bytes"], "B"),
        *_against_evidently(reference, window, _seconds(ours), small),
    ]
    compared = "with p-values" if ours["num_compared"] else "the comparison is not in this tree"
    return Figure(tuple(parts), {"features": list(COLUMNS), "compared": compared, "floor": floor, "ours": ours})


FIGURES = {"drift_speed": drift_speed}


def _seconds(found: dict[str, Any]) -> float:
    return float(found["seconds"])


def _against_evidently(reference: Path, window: Path, seconds: float, small: bool) -> list[Part]:
    name = "time of Evidently's default preset over ours"
    out = FOLDER / "evidently.json"
    script = ROOT / "bench" / "drift_speed_peer.py"
    command = [script, reference, window, ",".join(COLUMNS), out]
    try:
        peer.run("evidently", command, FOLDER / "evidently.log", 1800)
    except peer.PeerFailed as problem:
        return [Part(name, None, n=0, at_least=10, reason=str(problem))]
    found = json.loads(out.read_text())
    statistics = ", ".join(f"{method} x {count}" for method, count in sorted(found["statistics"].items()))
    return [
        Part(name, found["seconds"] / seconds, "", at_least=None if small else 10),
        Part(f"seconds, Evidently ({statistics})", found["seconds"], "s"),
        Part("peak memory, Evidently", found["peak_bytes"], "B"),
    ]


# -- rows ------------------------------------------------------------------------------------------
def _made(name: str, rows: int, seed: int) -> Path:
    """Return a folder of parts. It is made only once."""
    folder = FOLDER / f"{name}-{rows}"
    ready = folder / "ready-2"  # ready-1 had no times
    if not ready.exists():
        print(f"[drift_speed] making {rows:,} conversations", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, first in enumerate(range(0, rows, PART_ROWS)):
            _write(folder / f"part-{number:05d}.parquet", first, min(PART_ROWS, rows - first), seed)
        ready.touch()
    return folder


def _write(path: Path, first: int, count: int, seed: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rft.traffic.schema import GROUPS

    rng = np.random.default_rng([seed, first])
    texts = np.random.default_rng(0)
    words = [f"word{number}" for number in range(800)]
    messages = [
        json.dumps([{"role": "user", "content": " ".join(texts.choice(words, texts.integers(5, 40)))}])
        for _ in range(TEXTS)
    ]
    draws = np.random.default_rng(seed + 100).integers(0, 2**64, USERS, dtype=np.uint64)
    draw = draws[rng.integers(0, USERS, count)]
    normal, uniform = rng.normal(size=count), rng.random(count)
    numbers = {
        "age": np.clip(np.round(45 + 15 * normal), 0, 100),
        "amount": np.round(np.exp(3 + 2 * rng.normal(size=count)), 2),
        "days": np.floor(rng.exponential(30, count)),
        "gap": np.where(uniform < 0.4, 0.0, rng.exponential(3600, count)),
        "items": rng.poisson(3, count).astype(float),
        "price": np.round(1000 + 50 * rng.normal(size=count), 2),
        "ratio": np.where(uniform > 0.95, np.nan, rng.beta(2, 5, count)),
        "score": rng.normal(size=count),
        "year": 2026.0 - rng.integers(0, 40, count),
    }
    table: dict[str, Any] = {
        "draw": draw,
        "pick": rng.integers(0, 2**64, count, dtype=np.uint64),
        "group": (draw % np.uint64(GROUPS)).astype(np.uint8),
        "time": pa.array(rng.integers(0, DAYS * 86_400_000_000, count), pa.timestamp("us", "UTC")),
        "messages": pa.array(messages).take(pa.array(rng.integers(0, TEXTS, count))),
        "input_words": rng.integers(5, 40, count).astype(np.int32),
    }
    table |= {f"own_{name}": values for name, values in numbers.items()}
    for name, distinct in CATEGORIES.items():
        codes = np.floor(distinct * rng.random(count) ** 2).astype(np.int64)
        table[f"own_{name}"] = pa.array([f"{name} {number}" for number in range(distinct)]).take(pa.array(codes))
    pq.write_table(pa.table(table), path, compression="zstd")


# -- jobs, each in a process of its own ------------------------------------------------------------
def _job(name: str, folder: Path, profile_file: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.drift_speed", name, str(folder), str(profile_file)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **one_thread}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _plan() -> Any:
    from rft.drift.features import Plan

    own = {**dict.fromkeys(NUMBERS, "number"), **dict.fromkeys(CATEGORIES, "category")}
    return Plan(own=tuple(sorted(own.items())), groups=("input",))


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _profile(folder: Path, profile_file: Path) -> dict[str, Any]:
    from rft import reports
    from rft.drift import profile

    reports.write(profile.of_parts(_parts(folder), _plan(), "the reference"), profile_file)
    return {}


def _columns_profiled(folder: Path) -> Any:
    """Profile only the numbers and categories, without the sample's text."""
    from rft.drift import counting
    from rft.drift.parts import count_parts, tasks_of
    from rft.reports import Profile

    plan = _plan()
    total = counting.merged(map(partial(count_parts, plan), tasks_of(_parts(folder), 100_000)), plan)
    return Profile(
        source="the window", num_conversations=total.num_conversations, features=counting.features(total, plan, {})
    )


def _ours(folder: Path, profile_file: Path) -> dict[str, Any]:
    from rft import reports
    from rft.reports import Profile

    reference = reports.read(Profile, profile_file)
    compared = _comparison()
    start = time.perf_counter()
    current = _columns_profiled(folder)
    profiled = time.perf_counter()
    kept = {name: reference.features[name] for name in current.features}
    rows = compared(reference.model_copy(update={"features": kept}), current)
    seconds = time.perf_counter() - start
    out = profile_file.with_name("window.json")
    reports.write(current, out)
    found = {"seconds": seconds, "profile_s": profiled - start, "num_compared": len(rows)}
    return found | {"profile_bytes": out.stat().st_size}


def _comparison() -> Callable[[Any, Any], list[Any]]:
    """Return a function that compares two profiles with the settings of a run."""
    from rft.config import Drift

    try:
        from rft.drift import comparison  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:  # the comparison is built on another branch
        return lambda reference, current: []
    settings = Drift(thresholds={})
    return lambda reference, current: comparison.control(
        comparison.compare(reference, current, settings, "window"), settings
    )


def _text(folder: Path, profile_file: Path) -> dict[str, Any]:
    from rft import reports
    from rft.drift import profile
    from rft.reports import Profile

    reference = reports.read(Profile, profile_file)
    compared = _comparison()
    start = time.perf_counter()
    plan = _plan()
    found = profile.of_sample(_parts(folder), plan)
    kept = {name: reference.features[name] for name in found}
    current = Profile(source="the window", num_conversations=found["vocabulary"].n, features=found)
    compared(reference.model_copy(update={"features": kept}), current)
    return {"seconds": time.perf_counter() - start, "num_texts": found["vocabulary"].n}


def _floor(folder: Path, profile_file: Path) -> dict[str, Any]:
    """Read the columns and count them on given edges, and nothing else."""
    import duckdb

    from rft import reports
    from rft.reports import Profile

    reference = reports.read(Profile, profile_file)
    edges = {name: reference.features[name].edges for name in COLUMNS if reference.features[name].edges}
    files = f"read_parquet('{folder}/*.parquet')"
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("select 1").fetchall()
    start = time.perf_counter()
    histograms = ", ".join(f"histogram({name}, {edges[name]})" for name in edges)
    connection.execute(f"select {histograms} from {files}").fetchall()
    for name in COLUMNS:
        if name not in edges:
            connection.execute(f"select {name}, count(*) from {files} group by all").fetchall()
    return {"seconds": time.perf_counter() - start}


_JOBS = {"profile": _profile, "ours": _ours, "text": _text, "floor": _floor}


if __name__ == "__main__":
    job, rows_folder, reference_file = sys.argv[1:]
    result = _JOBS[job](Path(rows_folder), Path(reference_file))
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))
