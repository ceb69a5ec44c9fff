"""The figure of the circuit breaker: an outage in a training must change only the time.

The tests' tiny ladder is run up to `train`. The tools are then an external server that fails on
demand (bench/faulty_server.py). Three trainings start from the same files, each as `python -m rft
train` in its own process:

    calm       no fault
    paused     from step OUTAGE_FROM on the server fails for 91.6 % of the rollouts; it is fixed
               after the stage has reported twice that it waits
    restarted  the same, but the server stays broken until rollout.pause_s is over: exit code 3.
               Once it is fixed, the stage is started again

Nothing may change while a stage waits. Its checkpoint and metrics are hashed when it first reports
a pause, and again when the server is fixed or the stage has given up. Both trainings must publish
the calm one's adapter, byte for byte.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench import faulty_server
from bench.faulty_server import Faults
from bench.measure import Figure, Part, failed

ROOT = Path(__file__).resolve().parents[1]
STEPS = 6
OUTAGE_FROM = 4  # after the checkpoint of step 2: the restarted training repeats step 3
SHARE = 0.916
PAUSE_S = {"calm": 600.0, "paused": 600.0, "restarted": 2.0}
TRAIN: dict[str, Any] = {
    "steps": STEPS,
    "examples_per_step": 8,
    "group_size": 8,
    "weights": "lora",
    "lora": {"r": 4, "alpha": 8},
    "lr": 2e-3,  # slow enough that every step has something to learn
    "validate_every": 3,
}
LEARNED = ("reward/mean", "loss", "grad_norm", "weights/change", "validation/reward")
"""Metrics that an outage must not change. The number of rollouts set aside may change."""


def rollout_outage(args: list[str]) -> Figure:
    """91.6 % of rollouts fail from a step on: does training wait, keep its adapter, and end with
    the fault-free weights, bit for bit?"""
    from tests import tiny_recipe

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ours = tiny_recipe.make(folder)
        print("running the stages up to the training", file=sys.stderr)
        _run_ladder(folder / "stages", ours)
        with faulty_server.serving(ours) as url:
            calm = _training(folder, ours, url, "calm")
            calm.run()
            if calm.code:
                return failed("outage", f"the fault-free training ended with exit code {calm.code}: {calm.tail}")
            broken = Faults(outage=SHARE, outage_from_step=OUTAGE_FROM)
            paused, restarted = _training(folder, ours, url, "paused"), _training(folder, ours, url, "restarted")
            faulty_server.tell(url, broken)
            paused.run(lambda: faulty_server.tell(url, Faults()))
            faulty_server.tell(url, broken)
            restarted.run()
            left = restarted.code, restarted.published
            faulty_server.tell(url, Faults())
            restarted.run()
        return _figure(calm, paused, restarted, left)


def _figure(calm: Training, paused: Training, restarted: Training, left: tuple[int, bool]) -> Figure:
    code, published = left
    parts = [
        Part(
            "adapter files that differ from the fault-free run's",
            differing(calm, paused),
            "files",
            at_most=0,
            n=len(calm.adapter),
        ),
        Part("the same, after exit and restart", differing(calm, restarted), "files", at_most=0, n=len(calm.adapter)),
        Part(
            "rollouts without a score in the step that was struck",
            paused.struck,
            "share",
            at_least=0.85,
            n=paused.rollouts,
        ),
        Part("pauses that the stage announced", paused.pauses, "pauses", at_least=2),
        Part(
            "checkpoints and metrics that moved during a pause", paused.moved + restarted.moved, "files", at_most=0, n=4
        ),
        Part("exit code when the outage outlasts rollout.pause_s", code, "", at_least=3, at_most=3),
        Part("adapters published by that exit", int(published), "adapters", at_most=0),
        Part("exit code after the outage", max(paused.code, restarted.code), "", at_most=0, n=2),
        Part(
            "steps whose metrics of learning differ",
            unlike(calm, paused) + unlike(calm, restarted),
            "steps",
            at_most=0,
            n=2 * STEPS,
        ),
        Part(
            "rollouts trained on in the step that was struck",
            calm.metrics[OUTAGE_FROM - 1]["samples/trained"],
            "rollouts",
            at_least=1,
            n=64,
        ),
    ]
    return Figure(tuple(parts), {"outage_from_step": OUTAGE_FROM, "steps": STEPS})


def differing(calm: Training, other: Training) -> int:
    names = calm.adapter.keys() | other.adapter.keys()
    return sum(calm.adapter.get(name) != other.adapter.get(name) for name in names) or int(not names)


def unlike(calm: Training, other: Training) -> int:
    pairs = zip(calm.metrics, other.metrics, strict=False)
    same = sum({key: a.get(key) for key in LEARNED} == {key: b.get(key) for key in LEARNED} for a, b in pairs)
    return max(STEPS, len(other.metrics)) - same


# -- one training ----------------------------------------------------------------------------------
@dataclass
class Training:
    """A folder with the stages' files, in which `python -m rft train` is run, perhaps twice."""

    folder: Path
    code: int = 0
    pauses: int = 0
    struck: float = 0.0
    rollouts: int = 0
    moved: int = 0
    lines: list[str] = field(default_factory=list)

    def run(self, fix: Callable[[], object] | None = None) -> None:
        """Run until it ends. `fix` is called when it has reported twice that it waits."""
        environment = {name: value for name, value in os.environ.items() if name != "RFT_STATE"}
        process = subprocess.Popen(
            [sys.executable, "-m", "rft", "train"],
            cwd=self.folder,
            env=environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        still: list[str] = []
        with process:
            for line in process.stdout:
                self.lines.append(line.rstrip())
                print(f"{self.folder.name}: {line.rstrip()[:150]}", file=sys.stderr)
                if found := re.search(r"paused: (\d+) of (\d+) rollouts", line):
                    self.pauses += 1
                    if self.pauses == 1:
                        self.rollouts = int(found[2])
                        self.struck = int(found[1]) / self.rollouts
                        still = self._state()
                    elif self.pauses == 2 and fix is not None:
                        self.moved += self._moved(still)
                        still = []
                        fix()
        self.code = process.returncode
        if still and self.code:
            self.moved += self._moved(still)

    def _state(self) -> list[str]:
        """Hash what the stage keeps between its steps."""
        from rft import files

        (work,) = (self.folder / ".rft" / "progress").glob("train-*")
        return [files.tree_sha256(work / name) for name in ("checkpoints", "metrics.jsonl")]

    def _moved(self, before: list[str]) -> int:
        return sum(a != b for a, b in zip(before, self._state(), strict=True))

    @property
    def published(self) -> bool:
        return (self.folder / "data/train/weights").exists()

    @property
    def adapter(self) -> dict[str, bytes]:
        found = sorted((self.folder / "data/train/weights").rglob("*"))
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.is_file()}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "data/train/metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def tail(self) -> str:
        return " / ".join(self.lines[-3:])


def _training(folder: Path, ours: Path, url: str, name: str) -> Training:
    from rft import config
    from tasks.runs import engine
    from tests import ladder

    shutil.copytree(folder / "stages" / "data", folder / name / "data")
    settings = ladder.params(ours, train=TRAIN, rollout={"batch": 64, "pause_s": PAUSE_S[name], "deterministic": True})
    raw = settings.model_dump(mode="json", by_alias=True)
    raw["tools"] |= {"server_url": url, "version": "1"}
    (folder / name / "params.yaml").write_text(yaml.safe_dump(raw))
    engine.write(folder / name, config.Recipe(path=str(ours)), folder / "state")
    return Training(folder / name)


def _run_ladder(folder: Path, ours: Path) -> None:
    """Run the stages before the training, in this process."""
    from tests import ladder

    folder.mkdir()
    with ladder.inside(folder), redirect_stdout(sys.stderr):
        for stage in ladder.STAGES[: ladder.STAGES.index("train")]:
            ladder.run(stage, ladder.params(ours))


FIGURES = {"rollout_outage": rollout_outage}
