"""The figure of a pretrained model on the template recipe: what does each rung of the ladder add?

It also shows how long each takes. SmolLM2-135M-Instruct (`make model`) goes through the product's
own stages, with this project's chat template for ChatML and Hermes tools:

    zero-shot   the model as it is, with the recipe's seed prompt
    warm start  48 steps of LoRA on the recipe's demonstrations, made by a colleague who often
                guesses. This is the champion
    prompt      the same weights with the prompt that the search found on validation examples
    RFT         16 steps of LoRA with the real tools and the real grader, with that prompt

All four answer the same unseen test examples, the last three as the arms of stage `challenger`.
Gains are paired by example. Every stage is kept in .rft/bench/real_parcels/, and is not run again
with the same code and settings: `make figure NAME=real_parcels` goes on where it was cut off, and
`ARGS=fresh` begins anew. Minutes are those of all attempts that ended by themselves or by Ctrl-C.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from bench.measure import Figure, Part, unmeasured
from bench.smollm import FOLDER

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".rft" / "bench" / "real_parcels"
RECIPE = ROOT / "flows" / "template"
STAGES = ("examples", "policy", "baseline", "prompt", "train", "challenger")
TESTED, MINUTES = 128, 60
SECTIONS: dict[str, Any] = {
    "examples": {"test": TESTED},
    "rollout": {"batch": 64, "max_tokens": 768},
    "baseline": {"examples": 48, "k": 4},
    "prompt": {"rounds": 2, "first_examples": 8, "k": 1},
    "train": {
        "steps": 16,
        "examples_per_step": 8,
        "group_size": 8,
        "weights": "lora",
        "lr": 2e-4,
        "packing": True,
        "validation_examples": 0,
        "checkpoint_every": 2,
    },
    "challenger": {"k": 2, "shown": 0},
}
WARM_START = {
    "weights": "lora",
    "demonstrations": 800,
    "steps": 48,
    "batch": 16,
    "lr": 5e-4,
    "other_weight": 0.0,
    "packing": True,
    "checkpoint_every": 8,
}


def real_parcels(args: list[str]) -> Figure:
    """SmolLM2 on the template recipe: reward and minutes of zero-shot, warm start, prompt and RFT.
    Prompt and RFT together gain at least 0.12 over the warm start, RFT by itself more than 0."""
    from rft import reports, stats
    from rft.gate import evidence

    if not FOLDER.exists():
        return unmeasured("reward after RFT", f"{FOLDER.relative_to(ROOT)} is not there: `make model`")
    if "fresh" in args:
        shutil.rmtree(WORK, ignore_errors=True)
    with _workspace(_params()) as place:
        for stage in STAGES:
            _once(stage, lambda stage=stage: _stage(stage))
        _once("zero-shot", _zero_shot)
        minutes = {path.stem: json.loads(path.read_text()) / 60 for path in sorted(place.glob("seconds/*.json"))}
        arms = {
            arm.name: arm for arm in reports.read(reports.ChallengerReport, Path("data/challenger/report.json")).arms
        }
        zero = json.loads(Path("zero-shot.json").read_text())
        found = reports.read(reports.PromptReport, Path("data/prompt/report.json")).found
    warm, prompted, trained = (evidence.rewards(arms[n]) for n in ("champion", "champion_new_prompt", "challenger"))
    both, alone = stats.paired_gain(trained, warm), stats.paired_gain(trained, prompted)
    gains = {
        "prompt and RFT over the warm start": (both, 0.12),
        "RFT over the same prompt": (alone, None),
        "prompt over the warm start": (stats.paired_gain(prompted, warm), None),
        "warm start over zero-shot": (stats.paired_gain(warm, zero), None),
    }
    rungs = {"zero-shot": zero, "after the warm start": warm, "after the prompt": prompted, "after RFT": trained}
    means = {name: stats.mean_interval(rows.values()) for name, rows in rungs.items()}
    return Figure(
        (
            *(
                Part(f"gain of {name}", gain.value, "reward", at_least=least, low=gain.low, high=gain.high, n=gain.n)
                for name, (gain, least) in gains.items()
            ),
            Part("low end of prompt and RFT together", both.low, "reward", at_least=1e-9, n=both.n),
            Part("low end of RFT by itself", alone.low, "reward", at_least=1e-9, n=alone.n),
            *(
                Part(f"reward {name}", mean.value, "reward", low=mean.low, high=mean.high, n=mean.n)
                for name, mean in means.items()
            ),
            Part("test examples", both.n, "examples", at_least=96),
            Part("minutes in all", sum(minutes.values()), "min", at_most=MINUTES),
            *(Part(f"minutes of {name}", spent, "min") for name, spent in minutes.items()),
        ),
        {"prompt_found": found, "model": FOLDER.name},
    )


def _params() -> Any:
    from rft import config

    whole = config.load(RECIPE / "params.yaml").model_dump(mode="json", by_alias=True)
    whole["recipe"]["path"] = str(RECIPE)
    policy = {"model": str(FOLDER), "chat_template": str(ROOT / "rft/chat/templates/chatml-hermes.jinja"), "threads": 2}
    for name, section in (SECTIONS | {"policy": policy | {"warm_start": WARM_START}}).items():
        whole[name] = whole[name] | section
    return config.parse(whole, "bench/real_parcels.py", config.Params)


@contextmanager
def _workspace(params: Any) -> Iterator[Path]:
    """Enter the folder of these settings and this code."""
    from rft import progress
    from rft.models import source

    before, state = Path.cwd(), os.environ.get("RFT_STATE")
    os.environ["RFT_STATE"] = str(WORK / "state")
    place = WORK / progress.folder("figure", [params], [RECIPE]).name
    for other in WORK.glob("figure-*"):
        if other != place:
            shutil.rmtree(other)
    (place / "seconds").mkdir(parents=True, exist_ok=True)
    os.chdir(place)
    try:
        with redirect_stdout(sys.stderr):
            if not Path("data/model").exists():
                source.write(source.resolve(params.policy, ROOT, WORK / "state"), place)
            yield place
    finally:
        os.chdir(before)
        os.environ.pop("RFT_STATE")
        if state is not None:
            os.environ["RFT_STATE"] = state


def _once(name: str, run: Any) -> None:
    """Do the work unless it is done, and add up its seconds."""
    done, spent = Path(f"{name}.done"), Path("seconds") / f"{name}.json"
    if done.exists():
        return
    before = json.loads(spent.read_text()) if spent.exists() else 0.0
    began = time.monotonic()
    try:
        run()
    finally:
        spent.write_text(json.dumps(before + time.monotonic() - began))
    done.touch()


def _stage(name: str) -> None:
    importlib.import_module(f"rft.stages.{name}").run(_params())


def _zero_shot() -> None:
    """Let the given model answer the test examples, as the arms do."""
    from rft import recipe, stage_files
    from rft.chat.renderer import Chat
    from rft.models import source, weights
    from rft.rollouts.prompting import champion_prompt
    from rft.rollouts.runner import Plan, rollout_runner
    from rft.rollouts.store import RolloutStore
    from rft.sampling.engine import Engine

    params = _params()
    ours, device = recipe.load(params.recipe), weights.prepare_process(params.policy)
    folder = Path("zero-shot-rollouts")
    folder.mkdir(exist_ok=True)
    with rollout_runner(params, ours) as runner, RolloutStore(folder) as store:
        network, tokenizer = weights.load(source.given(params.policy), params.policy, device)
        engine = Engine(network, Chat(tokenizer, runner.schemas, params.policy.tool_format), device)
        plan = Plan("figure", "zero-shot", champion_prompt(ours), 1.0, params.challenger.k, 0)
        rows = stage_files.load_examples("test")
        log = runner.measure(engine, rows, plan, store, lambda done, message: print(f"zero-shot: {done} {message}"))
    found: dict[str, list[float | None]] = {}
    for row in log:
        found.setdefault(row.example_id, []).append(row.reward)
    Path("zero-shot.json").write_text(json.dumps(found))


FIGURES = {"real_parcels": real_parcels}
