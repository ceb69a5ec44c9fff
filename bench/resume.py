"""The figure of exact resume: kill -9 in a training, start it again, and compare the weights.

The tests' tiny ladder is run up to `train`. Then `python -m rft train` runs once undisturbed, in
deterministic mode. Twenty more trainings start from the same files. Each is killed at a random
moment between its first sampled rollout and its end, checkpoint writes included, and started again
until it has published. Weights, metrics, rollouts and the report must equal those of the
undisturbed run, byte for byte.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Figure, Part, failed
from rft.lines import METRICS

ROOT = Path(__file__).resolve().parents[1]
KILLS = 20
TRAIN: dict[str, Any] = {
    "steps": 24,
    "examples_per_step": 4,
    "group_size": 4,
    "weights": "lora",
    "lora": {"r": 4, "alpha": 8},
    "lr": 2e-3,
    "checkpoint_every": 2,
    "keep_checkpoints": 2,
    "validate_every": 6,
    "validation_examples": 4,
    "keep": "best",
    "refill_groups": 0.5,
    "curriculum": {"kind": "pass_rate"},
}
COMPARED = ("weights", "metrics.jsonl", "rollouts.parquet", "report.json")


def resume_exact(args: list[str]) -> Figure:
    """kill -9 at 20 random moments of a training, then a restart: trainings whose weights differ
    from the undisturbed one's."""
    from tests import tiny_recipe

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ours = tiny_recipe.teachable(tiny_recipe.make(folder))
        _run_ladder(folder / "stages", ours)
        whole = _prepared(folder, ours, "whole")
        code, lasted, began = _train(whole, None)
        if code:
            return failed("resume", f"the undisturbed training ended with exit code {code}")
        draw, longest = random.Random(0), lasted - began
        other: list[str] = []
        late, resumed, number = 0, 0, 0
        while number < KILLS and late < KILLS:
            one = _prepared(folder, ours, f"killed-{number}")
            moment = draw.uniform(0, longest)
            code, _, _ = _train(one, moment)
            # it was done before the kill: another moment is drawn, an earlier one, since the
            # machine is faster now
            if code == 0:
                late, longest = late + 1, moment
            else:
                number += 1
                resumed += any((one / ".rft/progress").glob("train-*/checkpoints/0*"))
                again, _, _ = _train(one, None)
                other += _differing(whole, one) if not again else ["did not end"]
                print(f"kill {number}/{KILLS}: {len(other)} differences so far", file=sys.stderr)
            shutil.rmtree(one)
        parts = (
            Part(
                "trainings with other weights",
                other.count("weights") + other.count("did not end"),
                "trainings",
                at_most=0,
                n=number,
            ),
            Part("kills", number, "kills", at_least=KILLS),
            Part(
                "other files that differ",
                sum(name != "weights" for name in other),
                "files",
                at_most=0,
                n=number * (len(COMPARED) - 1),
            ),
            Part("moments that were after the end, drawn anew", late, "moments", n=number + late),
            Part("restarts that had a checkpoint to go on from", resumed, "restarts", at_least=1, n=number),
            Part("undisturbed training", lasted, "s"),
        )
        return Figure(parts, {"mode": "deterministic", "train": TRAIN})


def _train(folder: Path, kill_after_s: float | None) -> tuple[int, float, float]:
    """Return the exit code, the seconds it lasted, and the seconds until its training began. A
    kill's time counts from there."""
    environment = {name: value for name, value in os.environ.items() if name != "RFT_STATE"} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    start, began = time.monotonic(), 0.0
    command = [sys.executable, "-m", "rft", "train"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    with process:
        for line in process.stdout:
            lines.append(line)
            if not began and METRICS.match(line):
                began = time.monotonic() - start
                if kill_after_s is not None:
                    time.sleep(kill_after_s)
                    process.send_signal(signal.SIGKILL)
    if process.returncode not in (0, -signal.SIGKILL):
        print("".join(lines[-5:]), file=sys.stderr)
    return process.returncode, time.monotonic() - start, began


def _differing(whole: Path, other: Path) -> list[str]:
    from rft import files

    return [
        name
        for name in COMPARED
        if files.tree_sha256(whole / "data/train" / name) != files.tree_sha256(other / "data/train" / name)
    ]


def _prepared(folder: Path, ours: Path, name: str) -> Path:
    from rft import config
    from tasks.runs import engine
    from tests import ladder

    shutil.copytree(folder / "stages" / "data", folder / name / "data")
    settings = ladder.params(ours, train=TRAIN, rollout={"deterministic": True})
    (folder / name / "params.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json", by_alias=True)))
    engine.write(folder / name, config.Recipe(path=str(ours)), folder / "state")
    return folder / name


def _run_ladder(folder: Path, ours: Path) -> None:
    """Run the stages before the training, in this process."""
    from tests import ladder

    folder.mkdir()
    with ladder.inside(folder), redirect_stdout(sys.stderr):
        for stage in ladder.STAGES[: ladder.STAGES.index("train")]:
            ladder.run(stage, ladder.params(ours))


FIGURES = {"resume_exact": resume_exact}
