"""The figure of the commit: kill -9 between a stage's end and dvc.lock. No long work is repeated.

A stage that has ended is not safe yet. DVC hashes its outputs, moves them into its cache and writes
dvc.lock. If it is killed in between, the next start begins by emptying the stage's folder. The
tests' tiny ladder is run twice under real DVC, stage by stage. One run is left alone. In the other,
DVC kills itself three times at each stage: before it hashes, before it caches, and before it writes
dvc.lock. Then the stage is started as in a run.

The evidence does not come from the stage's own reports. The recipe's tools and grader write a line
for each call that reaches them, and each optimizer step leaves a line. Both runs must have the same
lines, stage by stage, and the same bytes in every stage's files (except wall times).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

import yaml

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("policy", "baseline", "prompt", "train", "challenger")
"""The stages that take minutes."""
MOMENTS = {"ended": "save", "hashed": "commit", "cached": "dump"}
"""What DVC had done when it was killed -> what it was about to begin."""

DVC = """
import os, signal, sys
from dvc.cli import main
from dvc.stage import PipelineStage

def dies(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(PipelineStage, sys.argv.pop(1), dies)
sys.exit(main(sys.argv[1:]))
"""
COUNTING = '''

def _count(what):
    """Of the figure: beside the recipe, in the tree that the stage runs in."""
    import os
    from pathlib import Path

    handle = os.open(Path(__file__).resolve().parents[2] / "counted", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{what}\\n".encode())
    os.close(handle)
'''
STEPS = """

def _count_steps():
    import sys

    if "torch" in sys.modules:  # the stage, not the tool server
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: _count("optimizer steps"))


_count_steps()
"""
PROMPTS = {
    "seed": {"name": "seed", "system": ""},
    "tool_defaults": {"lookup": {"spaces": [0, 3]}},
    "block_repeated_calls": [False, True],
}
CONFIG = "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"


def commit_kill(args: list[str]) -> Figure:
    """kill -9 between a stage's end and dvc.lock, in each stage that takes minutes: rollouts,
    optimizer steps and gradings done a second time (0)."""
    with tempfile.TemporaryDirectory() as place, redirect_stdout(sys.stderr):
        calm, killed = (_prepared(Path(place) / name) for name in ("calm", "killed"))
        done: dict[str, Counter[str]] = {}
        twice: dict[str, dict[str, int]] = {}
        kills, other = 0, list[str]()
        lasted, again = list[float](), list[float]()
        for stage in STAGES:
            lasted.append(_stage(calm, stage))
            done[stage] = _counted(calm)
            for number, moment in enumerate(MOMENTS.values()):
                code, seconds = _killed(killed, stage, moment)
                kills += code == -signal.SIGKILL
                again += [seconds] if number else []
            again.append(_stage(killed, stage))
            twice[stage] = dict(_counted(killed) - done[stage])
            other += _differing(calm, killed, stage)
            print(
                f"{stage}: {dict(done[stage])}, done again: {twice[stage] or 'nothing'}, other bytes: "
                f"{other or 'none'}",
                file=sys.stderr,
            )
        left = sorted(path.name for path in (killed / ".rft/progress").iterdir())
        total = sum(done.values(), Counter())
        parts = (
            Part(
                "done a second time",
                sum(sum(found.values()) for found in twice.values()),
                "things",
                at_most=0,
                n=sum(total.values()),
            ),
            Part("kills", kills, "kills", at_least=len(STAGES) * len(MOMENTS)),
            Part(
                "files of stages that differ from those of a run without kills",
                len(other),
                "files",
                at_most=0,
                n=kills,
            ),
            Part("work folders that are left when DVC is done", len(left), "folders", at_most=0, n=len(STAGES)),
            Part(
                "stages that did something", sum(bool(found) for found in done.values()), "stages", at_least=len(STAGES)
            ),
            *(Part(f"{what} of a run without kills", count, "") for what, count in sorted(total.items())),
            Part("a stage without kills, median", median(lasted), "s", n=len(lasted)),
            Part("a start after a kill, DVC included, median", median(again), "s", n=len(again)),
        )
        return Figure(
            parts,
            {"done": {stage: dict(found) for stage, found in done.items()}, "done again": twice, "other bytes": other},
        )


def _prepared(folder: Path) -> Path:
    """Make a tree as a run has it, up to the examples. From here on its stages count their work."""
    from rft import config, files, reports, stage_files
    from tasks.runs import engine
    from tests import ladder, tiny_recipe

    folder.mkdir()
    for name in ("agent_rft.py", "dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "rft", folder / "rft", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config").write_text(CONFIG)
    ours = tiny_recipe.teachable(tiny_recipe.make(folder / "recipes"))
    tools = (ours / "tools.py").read_text()
    for function, what in (("lookup", "tool calls"), ("grade", "gradings")):
        head, body = tools.split(f"def {function}(", 1)
        line, rest = body.split(":\n", 1) if function == "grade" else body.split('"""\n', 1)
        tools = (
            f'{head}def {function}({line}{":" if function == "grade" else chr(34) * 3}\n    _count("{what}")\n{rest}'
        )
    (ours / "tools.py").write_text(tools + COUNTING)
    (ours / "examples.py").write_text((ours / "examples.py").read_text() + COUNTING + STEPS)
    (ours / "prompts.json").write_text(json.dumps(PROMPTS))
    settings = ladder.params(
        Path("recipes/tiny"),
        train={"weights": "lora", "lora": {"r": 4, "alpha": 8}, "keep": "best", "checkpoint_every": 3},
    )
    (folder / "params.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json", by_alias=True)))
    with ladder.inside(folder):
        reports.write(reports.Champion(), Path("data/champion/champion.json"))
        ladder.run("examples", settings)
        test = files.sha256(stage_files.examples_file("test"))
        stage_files.write(reports.Opening(look="a" * 64, test_sha256=test))
    engine.write(folder, config.Recipe(path=str(folder / "recipes/tiny")), folder / ".rft")
    return folder


def _stage(tree: Path, stage: str) -> float:
    """Run a stage as a run does. Returns its seconds."""
    from tasks.runs import repro

    began = time.monotonic()
    os.environ["DVC_SITE_CACHE_DIR"] = str(tree / ".rft/dvc")
    repro.repro(tree, stage, tree / ".rft")
    return time.monotonic() - began


def _killed(tree: Path, stage: str, moment: str) -> tuple[int, float]:
    """Run a stage that is killed at `moment`. Returns its exit code and seconds."""
    environment = os.environ | {
        "RFT_STATE": str(tree / ".rft"),
        "DVC_SITE_CACHE_DIR": str(tree / ".rft/dvc"),
        "RFT_ENGINE": str(tree),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SHELL": "/bin/sh",
    }
    began = time.monotonic()
    command = [sys.executable, "-c", DVC, moment, "repro", "--single-item", stage]
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=sys.stderr, stderr=sys.stderr, stdin=subprocess.DEVNULL, check=False
    )
    return done.returncode, time.monotonic() - began


def _counted(tree: Path) -> Counter[str]:
    """Return what was counted since the last call."""
    path = tree / "counted"
    found = Counter(path.read_text().splitlines()) if path.exists() else Counter[str]()
    path.unlink(missing_ok=True)
    return found


def _differing(calm: Path, killed: Path, stage: str) -> list[str]:
    from rft import files
    from tasks.dependencies import STAGES as OUTPUTS

    names = [f"data/{stage}/{name}".rstrip("/") for name in OUTPUTS[stage].leaves if name != "timing.json"]
    return [name for name in names if files.tree_sha256(calm / name) != files.tree_sha256(killed / name)]


FIGURES = {"commit_kill": commit_kill}
