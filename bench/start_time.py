"""The figure of starting: how long does somebody wait before anything happens?

Each verb is started as a user starts it: in a new process, in a clone with one finished run, with
the files in the page cache. `rft run` is timed up to its first stage. An empty flow of Prefect on
its own server is timed up to its body, in turns. The difference is our part.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.idle_run import RUN_EMPTY, Place, scripted
from bench.measure import Figure, Part
from tasks.runs import records

TURNS = 5
HELP_S, VERB_S, RUN_S = 0.3, 1.5, 2.0
RFT = ("-P", "-m", "flows.cli")
VERBS = (
    ("runs",),
    ("champion",),
    ("ledger",),
    ("runs", "report", "RUN"),
    ("ledger", "people", "list"),
    ("ledger", "policy", "show"),
)
BEGINS = """
from prefect import flow


@flow
def nothing():
    print("it begins", flush=True)
"""


def start_time(args: list[str]) -> Figure:
    """Seconds until `rft --help` (0.3) and verbs that only read (1.5) have answered, and until the
    first stage of `rft run`, beyond an empty flow of Prefect (2)."""
    with tempfile.TemporaryDirectory(prefix="rft-start-") as folder:
        place = scripted(Path(folder))
        (place.scratch / "nothing.py").write_text(BEGINS)
        _until(place, [*RFT, "run", "--until", "policy"], _first_stage)
        [run] = records.load_all(place.clone)
        parts = [_verb(place, verb, run.name) for verb in (("--help",), *VERBS)]
        beyond = list[float]()
        for turn in range(TURNS):
            empty = _until(place, ["-c", RUN_EMPTY], lambda line, at: at if "it begins" in line else None)
            ours = _until(place, [*RFT, "run", "--until", "policy", "--set", f"policy.seed={turn}"], _first_stage)
            beyond.append(ours - empty)
            print(
                f"[figure] an empty flow began after {empty:.2f} s, the first stage after {ours:.2f} s", file=sys.stderr
            )
    return Figure((_part("rft run to its first stage, beyond an empty flow", beyond, RUN_S), *parts))


def _verb(place: Place, verb: tuple[str, ...], run: str) -> Part:
    spent, typed = list[float](), [run if word == "RUN" else word for word in verb]
    for _ in range(1 + TURNS):  # the first fills the page cache
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *RFT, *typed],
            cwd=place.clone.root,
            env=place.environment(),
            capture_output=True,
            text=True,
        )
        spent.append(time.monotonic() - began)
        if done.returncode:
            raise RuntimeError(f"rft {' '.join(verb)} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return _part(f"rft {' '.join(verb)}", spent[1:], HELP_S if verb == ("--help",) else VERB_S)


def _until(place: Place, typed: Sequence[str], begins: Callable[[str, float], float | None]) -> float:
    """Start a program and let it end. Return the seconds until it began, which its output shows.
    Raises RuntimeError if it fails, or never began."""
    began, found = time.monotonic(), list[float]()
    environment = place.environment() | {"PREFECT_LOGGING_LEVEL": "CRITICAL"}
    with subprocess.Popen(
        [sys.executable, *typed], cwd=place.clone.root, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            at = begins(line, time.monotonic() - began)
            found += [] if at is None else [at]
    if process.returncode or not found:
        raise RuntimeError(
            f"{' '.join(typed)[:60]} ended with exit code {process.returncode}, and began {len(found)} times"
        )
    return found[0]


def _first_stage(line: str, at: float) -> float | None:
    """Return when the first stage began. Its line comes at its end, with its seconds."""
    ended = re.search(r"[✓·] traffic +([\d.]+) s", line)
    return at - float(ended[1]) if ended else None


def _part(name: str, seconds: list[float], at_most: float) -> Part:
    return Part(name, median(seconds), "s", at_most=at_most, low=min(seconds), high=max(seconds), n=len(seconds))


FIGURES = {"start_time": start_time}
