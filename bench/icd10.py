"""The figures of learning: how much better does RFT make the ICD-10 agent on codes it never saw?

There is one warm-started policy, one search for a prompt on validation, and then three trainings
(seeds 0, 1, 2). Each is compared with the warm-started policy under the seed prompt on the same
test notes: F1 at temperature 1 and greedy, with a two-level bootstrap over seed and note. Two more
numbers show what the gain is worth. One is what the new prompt alone gives. The other is what a
scripted coder reaches that is told where the phrases are and takes each search's first hit: it is
the ceiling of this index.

`icd10_budget` measures the two forms of the budget on the same policy: multiplied, as in the
recipe, and added. The work is kept in .rft/bench/icd10, and continues when a figure is measured
again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".rft" / "bench" / "icd10"
SEEDS = (0, 1, 2)
LEARNING: dict[str, dict[str, Any]] = {"full": {"weights": "full", "lr": 6e-4}, "lora": {"weights": "lora", "lr": 3e-3}}


@dataclass(frozen=True)
class Measured:
    """One policy with one prompt on the test notes: scores and calls by note at temperature 1,
    greedy scores, seconds per rollout."""

    sampled: dict[str, list[float | None]]
    greedy: dict[str, list[float | None]]
    calls: list[int]
    seconds: list[float]


def icd10_rft(args: list[str]) -> Figure:
    """F1 that RFT of all weights adds on 288 unseen notes, 3 seeds: at temperature 1 (>= 0.25),
    greedy (>= 0.15), and P95 tool calls."""
    return _gains("full", at_one=0.25, greedy=0.15)


def icd10_lora(args: list[str]) -> Figure:
    """The same with LoRA: at temperature 1 (>= 0.20), greedy (>= 0.12), and P95 tool calls."""
    return _gains("lora", at_one=0.20, greedy=0.12)


def icd10_budget(args: list[str]) -> Figure:
    """The call budget multiplied or added, on the same policy and seeds: what each does to F1 and
    to tool calls."""
    from rft import stats

    parts = []
    with workspace():
        warm = warmed()
        for form in ("multiplied", "added"):
            runs = [trained("full", seed, form) for seed in SEEDS]
            gain = stats.gain_over_seeds([(one.sampled, warm.sampled) for one in runs])
            calls = stats.percentile([value for one in runs for value in one.calls], 0.95)
            parts.append(
                Part(
                    f"F1 gain at temperature 1, budget {form}", gain.value, "F1", low=gain.low, high=gain.high, n=gain.n
                )
            )
            parts.append(Part(f"P95 tool calls, budget {form}", calls, "calls", n=sum(len(one.calls) for one in runs)))
    return Figure(tuple(parts))


FIGURES = {"icd10_rft": icd10_rft, "icd10_lora": icd10_lora, "icd10_budget": icd10_budget}


def _gains(weights: Literal["full", "lora"], at_one: float, greedy: float) -> Figure:
    from rft import stats

    with workspace():
        warm, prompted, scripted = warmed(), _prompted(), _scripted()
        runs = [trained(weights, seed) for seed in SEEDS]
    sampled = stats.gain_over_seeds([(one.sampled, warm.sampled) for one in runs])
    argmax = stats.gain_over_seeds([(one.greedy, warm.greedy) for one in runs])
    share = stats.paired_gain(prompted.sampled, warm.sampled)
    before = stats.percentile(warm.calls, 0.95)
    after = stats.percentile([value for one in runs for value in one.calls], 0.95)
    seconds = [value for one in runs for value in one.seconds]
    rollouts = sum(len(one.calls) for one in runs)
    return Figure(
        (
            Part(
                "F1 gain at temperature 1",
                sampled.value,
                "F1",
                at_least=at_one,
                low=sampled.low,
                high=sampled.high,
                n=sampled.n,
            ),
            Part("its interval's low end", sampled.low, "F1", at_least=at_one / 2, n=sampled.n),
            Part("greedy F1 gain", argmax.value, "F1", at_least=greedy, low=argmax.low, high=argmax.high, n=argmax.n),
            Part("its interval's low end, greedy", argmax.low, "F1", at_least=greedy / 2, n=argmax.n),
            Part("P95 tool calls after", after, "calls", at_most=4, n=rollouts),
            Part("P95 tool calls, after over before", after / before, "", at_most=0.5, n=rollouts),
            Part("P95 tool calls before", before, "calls", n=len(warm.calls)),
            Part("F1 before, temperature 1", mean(warm.sampled), "F1", n=len(warm.sampled)),
            Part("F1 before, greedy", mean(warm.greedy), "F1", n=len(warm.greedy)),
            *(
                Part(f"F1 after, temperature 1, seed {n}", mean(one.sampled), "F1", n=len(one.sampled))
                for n, one in zip(SEEDS, runs, strict=True)
            ),
            *(
                Part(f"F1 after, greedy, seed {n}", mean(one.greedy), "F1", n=len(one.greedy))
                for n, one in zip(SEEDS, runs, strict=True)
            ),
            Part(
                "the new prompt's own share, temperature 1",
                share.value,
                "F1",
                low=share.low,
                high=share.high,
                n=share.n,
            ),
            Part(
                "a scripted coder that is told the phrases and takes each first hit",
                scripted,
                "F1",
                n=len(warm.sampled),
            ),
            Part("seconds a rollout, P50, 64 side by side", stats.percentile(seconds, 0.5), "s", n=len(seconds)),
            Part("seconds a rollout, P95, 64 side by side", stats.percentile(seconds, 0.95), "s", n=len(seconds)),
        )
    )


def settings(**train: Any) -> Any:
    from rft import config

    params = config.load(ROOT / "params.yaml")
    recipe = params.recipe.model_copy(update={"path": str(ROOT / params.recipe.path)})
    budget = params.rollout.budget.model_copy(update={"form": train.pop("form", "multiplied")})
    rollout = params.rollout.model_copy(update={"budget": budget})
    return params.model_copy(
        update={"recipe": recipe, "rollout": rollout, "train": params.train.model_copy(update=train)}
    )


@contextmanager
def workspace(seed: int = 0, search: bool = True) -> Iterator[None]:
    """Work in a folder with the files of the stages up to the prompt. Stages that ran with exactly
    these settings and this code are not repeated.

    `seed` is that of the policy's warm start. Without `search` the recipe's seed prompt is used.
    """
    from rft import progress, recipe, reports
    from rft.stages import baseline, examples, policy, prompt

    folder = WORK if search and not seed else WORK.with_name(f"icd10-{seed}{'' if search else '-seed-prompt'}")
    folder.mkdir(parents=True, exist_ok=True)
    before, state = Path.cwd(), os.environ.get("RFT_STATE")
    os.chdir(folder)
    os.environ["RFT_STATE"] = str(folder / "state")
    try:
        with redirect_stdout(sys.stderr):
            params = settings()
            params = params.model_copy(update={"policy": params.policy.model_copy(update={"seed": seed})})
            stamp = progress.folder("figure", [params], [ROOT / "recipes" / "icd10"]).name
            if not Path(stamp).exists():
                for old in [*Path().glob("figure-*"), Path("data"), Path("runs")]:
                    shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
                for stage in (examples, policy, baseline, *([prompt] if search else [])):
                    stage.run(params)
                if not search:
                    reports.write(recipe.load(params.recipe).prompts.seed, Path("data/prompt/prompt.json"))
                Path(stamp).touch()
            yield
    finally:
        os.chdir(before)
        os.environ.pop("RFT_STATE")
        if state is not None:
            os.environ["RFT_STATE"] = state


def warmed() -> Measured:
    from rft import recipe

    return measured("warm", None, recipe.load(settings().recipe).prompts.seed)


def _prompted() -> Measured:
    return measured("prompted", None, winner())


def trained(
    weights: Literal["full", "lora"], seed: int, form: str = "multiplied", decoding: str = "float32"
) -> Measured:
    from rft.stages import train

    kept = Path("runs") / f"{weights}-{form}-{seed}{'' if decoding == 'float32' else f'-{decoding}'}"
    if not kept.exists():
        train.run(settings(**LEARNING[weights], seed=seed, form=form, decoding=decoding, validation_examples=0))
        kept.parent.mkdir(exist_ok=True)
        shutil.copytree("data/train", kept)
    return measured(kept.name, (weights, kept / "weights"), winner())


def measured(name: str, weights: tuple[Any, Path] | None, prompt: Any) -> Measured:
    """Measure on all test notes. The result is kept on disk for the next measurement."""
    from rft import recipe, stage_files
    from rft.models import weights as model
    from rft.rollouts.runner import Plan, rollout_runner
    from rft.rollouts.store import RolloutStore
    from rft.sampling.engine import Engine
    from rft.sampling.policies import base_model

    kept = Path("runs") / f"{name}.json"
    if not kept.exists():
        params = settings()
        device = model.prepare_process(params.policy)
        network, chat = base_model(params, "policy", device)
        if weights:
            network = model.with_weights(network, *weights, device)
        rows, engine = stage_files.load_examples("test"), Engine(network, chat, device)
        folder = Path("runs") / f"{name}-rollouts"
        folder.mkdir(parents=True, exist_ok=True)
        with rollout_runner(params, recipe.load(params.recipe)) as runner, RolloutStore(folder) as store:
            log = {}
            for temperature in (1.0, 0.0):
                plan = Plan("figure", name, prompt, temperature, 1, 0)
                log[temperature] = runner.measure(
                    engine, rows, plan, store, lambda done, message: print(f"{name}: {done} {message}")
                )
            seconds = runner.times.rollout_s[f"figure/{name}/sampled"]
        found = {
            "sampled": {row.example_id: [row.score] for row in log[1.0]},
            "greedy": {row.example_id: [row.score] for row in log[0.0]},
            "calls": [row.num_tool_calls for row in log[1.0] if row.score is not None],
            "seconds": seconds,
        }
        kept.write_text(json.dumps(found))
        shutil.rmtree(folder)
    return Measured(**json.loads(kept.read_text()))


def winner() -> Any:
    from rft import reports

    return reports.read(reports.PromptSettings, Path("data/prompt/prompt.json"))


def _scripted() -> float:
    """Measure a coder that searches each phrase and takes the first hit."""
    import importlib

    from rft import recipe, stage_files

    ours = recipe.load(settings().recipe)
    coder = importlib.import_module("recipe_icd10.baseline")
    scores = []
    for example in stage_files.load_examples("test"):
        codes, _ = coder.scripted_answer(ours.options, example)
        right = len(set(codes) & set(example.target))
        scores.append(2 * right / (len(set(codes)) + len(example.target)))
    return sum(scores) / len(scores)


def mean(rows: dict[str, list[float | None]]) -> float:
    scored = [value for row in rows.values() for value in row if value is not None]
    return sum(scored) / len(scored)
