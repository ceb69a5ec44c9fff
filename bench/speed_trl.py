"""The figure against TRL: optimizer steps per hour, and what each has learned after two minutes.

Both train the same warm-started policy on the same ICD-10 notes, on two cores with two threads.
They have the same tools, grader, budget, prompt, limits, group sizes, temperature, Dr. GRPO,
learning rate, schedule and optimizer. Ours runs as in the stage, with its tools over HTTP and in
deterministic mode. TRL runs in its own environment (bench/peer.py, bench/trl_peer.py), with the
tools called in its process. They take turns in one run, each from the warm start, so that a busy
minute affects both. Times are of training alone: from the end of one step to the end of the next,
without set-up.

Then both get equal time. Each trains for as many steps as fit into 30 s and into 120 s, and its
learning rate falls over exactly these steps. The time that it took is shown beside each result. Our
evaluation measures both sets of weights on the same test notes.

The floor of our step is arithmetic at GFLOPS. Every token goes through the model once to be sampled
(a group's prompt once for all). Every token that is learned from goes through it once more and
back.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import icd10, peer
from bench.measure import Figure, Part, failed, unmeasured
from bench.trl_peer import DIFFERENCES, Job

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench" / "trl_peer.py"
RUNS = Path("runs/speed_trl")
"""A folder in the workspace. It is removed when the policy, the settings or the engine change."""
THREADS = 2
ROUNDS, STEPS = 3, 12
SEEDS, BOUND_AT_S = (0, 1), 120.0
EQUAL_S = (30.0, BOUND_AT_S)
"""Learning flattens, and so does the difference. The bound is for the longer time, and the shorter
one is shown beside it."""
GFLOPS = 250e9


@dataclass(frozen=True)
class Run:
    """One training, with a number per step. `tokens`: sampled by the policy, per episode."""

    folder: Path
    steps_s: list[float]
    tokens: list[float]
    calls: list[float]
    rewards: list[float]
    phases: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.steps_s)


def speed_trl(args: list[str]) -> Figure:
    """Optimizer steps per hour over TRL's on 2 cores (>= 7), and F1 above TRL's after 120 s of RFT
    each (>= 0.08). --small: only the speed, 4 steps."""
    small = "--small" in args
    if len(os.sched_getaffinity(0)) < THREADS:
        return unmeasured(
            "optimizer steps an hour, ours over TRL's", f"not measured on this device: it takes {THREADS} cores"
        )
    try:
        peer.python("trl")
        with _cores(THREADS), icd10.workspace(search=False), redirect_stdout(sys.stderr):
            pairs = [_pair(number, 4 if small else STEPS) for number in range(1 if small else ROUNDS)]
            parts = _speed(pairs)
            for seconds in () if small else EQUAL_S:
                parts += _learning(seconds, [_learned(seed, seconds, pairs) for seed in SEEDS])
            return Figure(tuple(parts), _notes(pairs))
    except peer.PeerFailed as problem:
        return failed("optimizer steps an hour, ours over TRL's", str(problem))


FIGURES = {"speed_trl": speed_trl}


@contextmanager
def _cores(number: int) -> Iterator[None]:
    """Limit this process, and what it starts, to so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# -- speed -----------------------------------------------------------------------------------------
def _pair(seed: int, steps: int) -> tuple[Run, Run]:
    return _ours(seed, steps), _theirs(seed, steps)


def _speed(pairs: Sequence[tuple[Run, Run]]) -> list[Part]:
    """Measure the speed. The headline is all steps over all seconds, with the range of the
    rounds."""
    from rft import stats

    ours, theirs = (
        [value for run, _ in pairs for value in run.steps_s],
        [value for _, run in pairs for value in run.steps_s],
    )
    ratios = [fmean(them.steps_s) / fmean(us.steps_s) for us, them in pairs]
    floor = fmean(_floor_s(run) for run, _ in pairs)
    length = fmean(value for _, run in pairs for value in run.tokens) / fmean(
        value for run, _ in pairs for value in run.tokens
    )
    parts = [
        Part(
            "optimizer steps an hour, ours over TRL's",
            fmean(theirs) / fmean(ours),
            "",
            at_least=7,
            low=min(ratios),
            high=max(ratios),
            n=len(ours),
        ),
        Part(
            "tokens that the policy sampled an episode, TRL's over ours",
            length,
            "",
            at_least=0.8,
            at_most=1.25,
            n=len(ours),
        ),
    ]
    for name, values in (("ours, deterministic mode", ours), ("TRL", theirs)):
        low, high = stats.percentile(values, 0.1), stats.percentile(values, 0.9)
        parts.append(
            Part(
                f"seconds a step, {name}: median, P10 to P90",
                stats.percentile(values, 0.5),
                "s",
                low=low,
                high=high,
                n=len(values),
            )
        )
    parts.append(Part("arithmetic floor of our step at 250 GFLOP/s", floor, "s", n=len(ours)))
    parts.append(Part("our step over that floor", fmean(ours) / floor, "", n=len(ours)))
    return parts


def _notes(pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    sides = {name: _side(runs) for name, runs in zip(("ours", "TRL"), zip(*pairs, strict=True), strict=True)}
    return {"mode": "deterministic", "threads": THREADS, **sides, "what TRL has no setting for": DIFFERENCES}


def _side(runs: Sequence[Run]) -> dict[str, Any]:
    steps = sum(len(run.steps_s) for run in runs)
    return {
        "seconds a step by phase": {
            name: round(sum(run.phases[name] for run in runs) / steps, 3) for name in runs[0].phases
        },
        "calls an episode": round(fmean(value for run in runs for value in run.calls), 2),
        "mean reward": round(fmean(value for run in runs for value in run.rewards), 3),
    }


def _floor_s(run: Run) -> float:
    """Return the seconds per step that the arithmetic alone would take."""
    import pyarrow.parquet

    shape = json.loads(Path("data/policy/model/config.json").read_text())
    head = shape["vocab_size"] * shape["hidden_size"]  # tied to the embedding, which costs nothing
    body = json.loads(Path("data/policy/report.json").read_text())["num_parameters"] - head
    attention = shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"]
    columns = ["step", "example_id", "ids", "loss_mask", "trained"]
    rows = pyarrow.parquet.read_table(run.folder / "rollouts.parquet", columns=columns).to_pylist()
    return flop(rows, body, head, attention) / len(run.steps_s) / GFLOPS


def flop(rows: Sequence[dict[str, Any]], body: int, head: int, attention: int) -> float:
    """Count two operations per parameter and token forward, and four backward. Attention looks back
    on half of the sequence on average, twice.

    Each row is a rollout of `step` and `example_id`. It has `ids`, whether each id is the policy's
    own (`loss_mask`), and whether it was `trained` on.
    """
    total = 0.0
    groups = set()
    for row in rows:
        length, own = len(row["ids"]), sum(row["loss_mask"])
        prompt = row["loss_mask"].index(True) if own else length
        group = (row["step"], row["example_id"])
        new = length if group not in groups else length - prompt
        groups.add(group)
        total += 2 * (body * new + head * own) + 2 * attention * (length**2 - (length - new) ** 2)
        if row["trained"]:
            total += 6 * (body * length + head * own) + 6 * attention * length**2
    return total


# -- what was learned in equal time ----------------------------------------------------------------
def _learned(seed: int, seconds: float, pairs: Sequence[tuple[Run, Run]]) -> tuple[Run, Run]:
    """Train both for equal time. If ours took longer than `seconds`, TRL gets that time, too."""
    ours = _in_time(_ours, seed, seconds, [run for run, _ in pairs])
    return ours, _in_time(_theirs, seed, max(seconds, ours.seconds), [run for _, run in pairs])


def _in_time(side: Callable[[int, int], Run], seed: int, seconds: float, before: Sequence[Run]) -> Run:
    """Train for as many steps as take `seconds`, rounded up. The first guess comes from the earlier
    rounds, the second from the first."""
    one_s = fmean(value for run in before for value in run.steps_s[STEPS // 2 :])
    for _ in range(2):
        found = side(seed, max(1, math.ceil(seconds / one_s)))
        one_s = found.seconds / len(found.steps_s)
        if -0.02 * seconds <= found.seconds - seconds <= 0.05 * seconds + one_s:
            break
    return found


def _learning(seconds: float, learned: Sequence[tuple[Run, Run]]) -> list[Part]:
    from rft import stats

    scores = [(_scores(ours), _scores(theirs)) for ours, theirs in learned]
    gain = stats.gain_over_seeds(scores)
    bound = 0.08 if seconds == BOUND_AT_S else None
    parts = [
        Part(
            f"F1 above TRL's after {seconds:g} s of RFT each",
            gain.value,
            "F1",
            at_least=bound,
            low=gain.low,
            high=gain.high,
            n=gain.n,
        )
    ]
    for seed, pair, found in zip(SEEDS, learned, scores, strict=True):
        for name, run, rows in zip(("ours", "TRL"), pair, found, strict=True):
            parts.append(
                Part(f"F1 after {run.seconds:.0f} s, {name}, seed {seed}", icd10.mean(rows), "F1", n=len(rows))
            )
            parts.append(Part(f"steps in {run.seconds:.0f} s, {name}, seed {seed}", len(run.steps_s), "steps"))
    return parts


def _scores(run: Run) -> dict[str, list[float | None]]:
    return icd10.measured(f"speed_trl-{run.folder.name}", ("full", run.folder / "weights"), icd10.winner()).sampled


# -- the two sides ---------------------------------------------------------------------------------
def _params(seed: int, steps: int) -> Any:
    """Return the stage's settings without what TRL does not do either: no validation, and no
    checkpoint before the end."""
    params = icd10.settings(
        **icd10.LEARNING["full"], seed=seed, steps=steps, validation_examples=0, checkpoint_every=100_000
    )
    return params.model_copy(update={"policy": params.policy.model_copy(update={"threads": THREADS})})


def _ours(seed: int, steps: int) -> Run:
    from rft.stages import train

    kept = RUNS / f"ours-{seed}-{steps}"
    if not kept.exists():
        train.run(_params(seed, steps))
        _keep(Path("data/train"), kept)
    timing = json.loads((kept / "timing.json").read_text())["steps"]
    metrics = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    names = [name for name in timing[0] if name.startswith("time/") and name != "time/step_s"]
    return Run(
        kept,
        [row["time/step_s"] for row in timing],
        [row["tokens/mean"] for row in metrics],
        [row["tool_calls/mean"] for row in metrics],
        [row["reward/mean"] for row in metrics],
        {name.removeprefix("time/").removesuffix("_s"): sum(row.get(name, 0.0) for row in timing) for name in names},
    )


def _theirs(seed: int, steps: int) -> Run:
    job = _job(seed, steps)
    text = json.dumps(asdict(job), indent=1)
    digest = hashlib.sha256(text.encode() + SCRIPT.read_bytes()).hexdigest()[:12]
    kept = RUNS / f"trl-{seed}-{digest}"
    if not kept.exists():
        part = RUNS.resolve() / "part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        (part / "job.json").write_text(text)
        print(f"[peer] TRL, seed {seed}: {steps} steps", flush=True)
        peer.run("trl", [SCRIPT, part / "job.json"], part / "log.txt", timeout_s=3600.0)
        part.rename(kept)
    found = json.loads((kept / "result.json").read_text())
    phases = found["phases"]
    by_name = {
        "generation": phases["_generate_single_turn"],
        "tools, template and parsing": phases["_generate"] - phases["_generate_single_turn"],
        "grading": phases["_calculate_rewards"],
        "forward and loss": phases["compute_loss"],
        "backward": phases["backward"],
    }
    by_name["rest"] = sum(found["steps_s"]) - sum(by_name.values())
    return Run(kept, found["steps_s"], found["tokens"], found["tool_calls"], found["rewards"], by_name)


def _job(seed: int, steps: int) -> Job:
    from rft import recipe, stage_files
    from rft.chat import dialogue
    from rft.chat.renderer import Chat
    from rft.models import weights
    from rft.tools.signatures import schemas
    from rft.types import ToolCall

    params = _params(seed, steps)
    prompt, section = icd10.winner(), params.train
    tools = schemas(recipe.load(params.recipe))
    chat = Chat(weights.tokenizer("data/policy/model"), tools)
    openings = [(example, dialogue.opening(example, prompt)) for example in stage_files.load_examples("train")]
    rows = [
        {"prompt": opening, "item": example.row(), "prompt_ids": chat.prompt_ids(opening)}
        for example, opening in openings
    ]
    file = (RUNS / "rows.json").resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows))
    calls = [ToolCall(f"call_0_{n}", "search", '{"query": "angina"}') for n in range(2)]
    contents = [" angina pectoris | I20.9", " no hits"]
    return Job(
        model=str(Path("data/policy/model").resolve()),
        recipe=params.recipe.model_dump(by_alias=True),
        prompt=prompt.model_dump(),
        rollout=params.rollout.model_dump(by_alias=True),
        rows=str(file),
        reply={"contents": contents, "ids": chat.tool_result_ids(calls, contents)},
        tools=tools,
        group_size=section.group,
        examples_per_step=section.examples_per_step,
        lr=section.peak_lr,
        schedule=section.schedule,
        warmup_steps=section.warmup_steps,
        clip_grad=section.clip_grad,
        temperature=section.temperature,
        seed=seed,
        steps=steps,
        threads=THREADS,
    )


def _keep(source: Path, kept: Path) -> None:
    part = kept.with_name("part-ours")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part)
    part.rename(kept)
