"""Runs the whole ladder of an agent in recipes/, as its user runs it: `rft --agent X run`.

It runs with invented traffic, in a clone of HEAD below .rft/bench. A ladder that was cut off goes
on where it was. A ladder that ended is not run again as long as the engine, the flows and the
recipe are the same. The seconds that each stage's process lived are added up over all starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.demo import DRIVER, published
from bench.watch import watch

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "recipes"
LIMIT_S = 2 * 3600.0
DRIFTED = ("--drifted", "--start", "2026-03-09")


@dataclass(frozen=True, slots=True)
class Ladder:
    """A ladder that ended. `files`: path -> hash of what its stages published."""

    clone: Path
    seconds: dict[str, float]
    files: dict[str, str]
    drift: dict[str, Any]

    def file(self, path: str) -> Path:
        md5 = self.files[path]
        return self.clone / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


class Broken(Exception):
    """A command of the ladder failed. The text says which one, and where its output is."""


def run_ladder(name: str) -> Ladder:
    """Run the ladder of recipes/NAME to its end, or go on with the one that is there."""
    clone, kept = PLACE / name, PLACE / f"{name}.json"
    stamp = _stamp(name)
    state: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if state.get("stamp") != stamp:
        shutil.rmtree(clone, ignore_errors=True)
        PLACE.mkdir(parents=True, exist_ok=True)
        clone.with_suffix(".log").unlink(missing_ok=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        state = {"stamp": stamp, "seconds": {}, "ended": False}
        kept.write_text(json.dumps(state))
    folder, agent = f"recipes/{name}", ("--agent", name)
    window, drifted = (f"{folder}/data/inbox/{file}.jsonl" for file in ("0000-invented", "0001-drifted"))
    if not state["ended"]:
        for path, how in ((window, ()), (drifted, DRIFTED)):
            if not (clone / path).exists():
                _run(clone, "traffic", "invent", path, *how, *agent)
        print_line(f"{name}: rft run; what it prints is in {clone.with_suffix('.log').relative_to(ROOT)}")
        seen = watch(
            [sys.executable, "-c", DRIVER, "run", *agent],
            clone,
            clone.with_suffix(".log"),
            env={"PYTHONPATH": str(clone)},
            limit_s=LIMIT_S,
        )
        for stage, spent in seen.stages.items():
            state["seconds"][stage] = state["seconds"].get(stage, 0.0) + spent
        state["ended"] = not seen.rc
        kept.write_text(json.dumps(state))
        if seen.rc:
            raise Broken(f"rft run of recipes/{name} ended with {seen.rc}: see {clone.with_suffix('.log')}")
    found = _run(clone, "traffic", "drift", drifted, "--against", window, *agent, "--json")
    return Ladder(clone, state["seconds"], published(clone, folder=folder), json.loads(found))


def print_line(message: str) -> None:
    print(f"[figure] {message}", file=sys.stderr, flush=True)


def _stamp(name: str) -> str:
    """Hash what a ladder depends on, as it is at HEAD. Markdown files are left out."""
    listed = _git("ls-tree", "-r", "HEAD", "rft", "flows", "tasks", f"recipes/{name}").splitlines()
    return hashlib.sha256("\n".join(line for line in listed if not line.endswith(".md")).encode()).hexdigest()


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(clone: Path, *args: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    command = [sys.executable, "-c", DRIVER, *args]
    done = subprocess.run(command, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Broken(f"rft {' '.join(args)} ended with {done.returncode} in {clone}")
    return done.stdout
