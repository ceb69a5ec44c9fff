"""How fast a real pretrained model samples and learns here: SmolLM2-135M-Instruct, two threads.

Sampling: 32 rows, prompts of 200 tokens, 64 new tokens at temperature 1; no token ends a turn. The
prompts' tokens are drawn at random, so that no two prompts begin alike: that is the hardest case
for a sampler that computes common beginnings once. Then the same is measured in groups of 8, as in
RFT. transformers' `generate` decodes the same rows. The sides take turns, and a ratio compares
neighbors.

Two floors are measured in the same run (rft/doctor/machine.py): the arithmetic alone, and reading
the weights, keys and values alone. The prompts are read at the prefill rate of the same run.

A whole step: 16 rollouts (two groups of 8) of one turn on the template recipe; all weights learn.
Ours is stage `train` as in a run, with its grader over HTTP and in deterministic mode. TRL
(bench/trl_step.py, in its own environment) has its reward in its own process. Both learn from the
same openings. They take turns, three times. Times are from the end of one step to the end of the
next, without the first step of each turn, which warms up.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import peer
from bench.measure import Figure, Part, unmeasured
from bench.smollm import FOLDER
from bench.trl_step import Job

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".rft" / "bench" / "real_speed"
SCRIPT = ROOT / "bench" / "trl_step.py"
TEMPLATE = ROOT / "flows" / "template"
ROWS, PROMPT, NEW, GROUP = 32, 200, 64, 8
ROUNDS, THREADS = 3, 2
PAIRS, STEPS = 3, 4
PREFILL_SHARE, OVER_GENERATE, OVER_TRL = 0.6, 2.0, 2.5


def real_speed(args: list[str]) -> Figure:
    """SmolLM2: 32 rows at least 2 times generate's tokens/s or 60 % of the prefill rate, whichever
    is lower. A step of 16 rollouts at least 2.5 times TRL's. ARGS=sampling leaves TRL out."""
    if not FOLDER.exists():
        return unmeasured("tokens/s over generate's", f"{FOLDER.relative_to(ROOT)} is not there: `make model`")
    parts, notes = _sampling()
    if "sampling" in args:
        why = "left out by ARGS=sampling"
        return Figure((*parts, Part("steps an hour over TRL's", None, n=0, reason=why)), notes)
    try:
        peer.python("trl")
        with redirect_stdout(sys.stderr):
            more, facts = _steps()
    except peer.PeerFailed as problem:
        more, facts = [Part("steps an hour over TRL's", None, n=0, reason=str(problem), failed=True)], {}
    return Figure((*parts, *more), notes | facts)


FIGURES = {"real_speed": real_speed}


# -- sampling --------------------------------------------------------------------------------------
def smollm() -> tuple[Any, list[list[int]]]:
    """Return a sampler of SmolLM2 for which no token ends a turn, and prompts that all begin
    differently."""
    import numpy as np

    from rft import config
    from rft.doctor import speed
    from rft.models import weights
    from rft.sampling.engine import Engine

    policy = config.Policy(model=str(FOLDER), device="cpu", threads=THREADS)
    device = weights.prepare_process(policy)
    network, _ = weights.load(str(FOLDER), policy, device)
    prompts = np.random.default_rng(0).integers(0, network.config.vocab_size, (ROWS, PROMPT)).tolist()
    return Engine(network, speed.Endless(), device), prompts  # type: ignore[arg-type]


def _sampling() -> tuple[list[Part], dict[str, Any]]:
    import torch

    from rft import config
    from rft.doctor import machine, speed
    from rft.doctor.capacity import shape_of
    from rft.models import weights

    engine, distinct = smollm()
    device, shape = engine.device, shape_of(engine.model.config)
    theirs, _ = weights.load(str(FOLDER), config.Policy(model=str(FOLDER), device="cpu", threads=THREADS), device)
    groups = [one for one in distinct[: ROWS // GROUP] for _ in range(GROUP)]
    limits = machine.limits(device, torch.float32)
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "generate": lambda: _generate(theirs, distinct),
        "ours": lambda: ours(engine, distinct),
        "generate, groups of 8": lambda: _generate(theirs, groups),
        "ours, groups of 8": lambda: ours(engine, groups),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    ours(engine, distinct[:4])
    _generate(theirs, distinct[:4])
    for number in range(ROUNDS):
        for name, play in sides.items():
            spent[name].append(play())
            print(f"[real_speed] {number + 1}/{ROUNDS} {name}: {sum(spent[name][-1]):.1f} s", file=sys.stderr)
    whole = {name: [sum(one) for one in times] for name, times in spent.items()}
    prefill = statistics.median(ROWS * PROMPT / one for one, _ in spent["ours"])
    rate = {name: statistics.median(ROWS * NEW / one for one in times) for name, times in whole.items()}
    read, write = speed.work(shape, PROMPT, ROWS, NEW - 1, 4)
    reading_s, writing_s = (statistics.median(one[side] for one in spent["ours"]) for side in (0, 1))
    arithmetic_s = read.arithmetic_s(limits) + write.arithmetic_s(limits)
    memory_s = read.memory_s(limits) + write.memory_s(limits)
    ours_s = statistics.median(whole["ours"])
    wanted = min(OVER_GENERATE * rate["generate"], PREFILL_SHARE * prefill)
    parts = [
        Part("tokens/s over what is wanted of them", rate["ours"] / wanted, "times", at_least=1.0, n=ROUNDS),
        _ratio("tokens/s over generate's", whole["generate"], whole["ours"]),
        _ratio("tokens/s over generate's, groups of 8", whole["generate, groups of 8"], whole["ours, groups of 8"]),
        Part("tokens/s over the prefill rate", rate["ours"] / prefill, "share", n=ROUNDS),
        Part("prefill rate", prefill, "tokens/s", n=ROUNDS),
        *(Part(f"{name}", value, "tokens/s", n=ROUNDS) for name, value in rate.items()),
        Part("time over the arithmetic floor", ours_s / arithmetic_s, "times", n=ROUNDS),
        Part("time over the memory floor", ours_s / memory_s, "times", n=ROUNDS),
        Part("reading, time over the higher floor", reading_s / read.floor_s(limits), "times", n=ROUNDS),
        Part("saying, time over the higher floor", writing_s / write.floor_s(limits), "times", n=ROUNDS),
        Part("the machine's products", limits.flops / 1e9, "GFLOP/s"),
        Part("the machine's reading", limits.bytes_per_s / 1e9, "GB/s"),
    ]
    notes = {"rows": ROWS, "prompt_tokens": PROMPT, "new_tokens": NEW, "threads": THREADS}
    return parts, notes | {"seconds": {name: [round(one, 2) for one in times] for name, times in whole.items()}}


def ours(engine: Any, prompts: Sequence[list[int]]) -> tuple[float, float]:
    """Return the seconds until the first token, and those after it."""
    from rft.sampling.engine import Session

    session = Session(engine, [list(one) for one in prompts], [(0, n) for n in range(len(prompts))], 1.0, PROMPT + NEW)
    for row in range(len(prompts)):
        session.begin(row, NEW)
    began = time.perf_counter()
    session.advance()
    read = time.perf_counter()
    while session.speaking:
        session.advance()
    ended = time.perf_counter()
    assert all(len(session.take_turn(row).ids) == NEW for row in range(len(prompts)))
    return read - began, ended - read


def _generate(network: Any, prompts: Sequence[list[int]]) -> tuple[float, float]:
    import torch

    ids = torch.tensor(list(prompts))
    began = time.perf_counter()
    with torch.inference_mode():
        found = network.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            pad_token_id=0,
            disable_compile=True,
        )
    assert found.shape[1] == PROMPT + NEW
    return time.perf_counter() - began, 0.0


def _ratio(name: str, theirs: Sequence[float], ours: Sequence[float], at_least: float | None = None) -> Part:
    ratios = [one / other for one, other in zip(theirs, ours, strict=True)]
    middle = statistics.median(ratios)
    return Part(name, middle, "times", at_least=at_least, low=min(ratios), high=max(ratios), n=len(ratios))


# -- a whole step ----------------------------------------------------------------------------------
def _steps() -> tuple[list[Part], dict[str, Any]]:
    with _workspace() as place:
        pairs = [(_ours_trained(place, seed), _trl_trained(place, seed)) for seed in range(PAIRS)]
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    lengths = statistics.fmean(one["tokens"] for one in theirs) / statistics.fmean(one["tokens"] for one in ours)
    parts = [
        _ratio("steps an hour over TRL's", [_step_s(one) for one in theirs], [_step_s(one) for one in ours], OVER_TRL),
        Part("tokens a rollout, TRL's over ours", lengths, "", at_least=0.8, at_most=1.25, n=PAIRS),
        Part("seconds a step, ours", statistics.median(map(_step_s, ours)), "s", n=PAIRS),
        Part("seconds a step, TRL", statistics.median(map(_step_s, theirs)), "s", n=PAIRS),
    ]
    return parts, {"ours": ours, "TRL": theirs}


def _step_s(run: dict[str, Any]) -> float:
    return statistics.fmean(run["steps_s"][1:])


def _params(place: Path, seed: int) -> Any:
    from rft import config

    whole = config.load(TEMPLATE / "params.yaml").model_dump(mode="json", by_alias=True)
    sections: dict[str, Any] = {
        "recipe": {"path": str(place / "recipe")},
        "examples": {"train": 64, "validation": 16, "test": 192},
        "challenger": {"shown": 0},
        "policy": {
            "model": str(FOLDER),
            "chat_template": str(ROOT / "rft/chat/templates/chatml-hermes.jinja"),
            "threads": THREADS,
            "device": "cpu",
            "warm_start": {},
        },
        "rollout": {"batch": 16, "max_turns": 1, "max_turn_tokens": NEW, "max_tokens": 512},
        "baseline": {"examples": 8, "k": 2},
        "train": {
            "steps": STEPS,
            "examples_per_step": 2,
            "group_size": GROUP,
            "weights": "full",
            "lr": 1e-6,
            "packing": True,
            "microbatch_tokens": 8192,
            "validation_examples": 0,
            "checkpoint_every": 100_000,
            "seed": seed,
        },
    }
    for name, section in sections.items():
        whole[name] = whole[name] | section
    return config.parse(whole, "bench/real_speed.py", config.Params)


@contextmanager
def _workspace() -> Iterator[Path]:
    """Enter a new folder with the stages' files up to the prompt."""
    import os

    from rft import recipe, reports
    from rft.models import source
    from rft.stages import baseline, examples, policy

    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    shutil.copytree(TEMPLATE, WORK / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    _prepare(WORK / "recipe")
    before, state = Path.cwd(), os.environ.get("RFT_STATE")
    os.environ["RFT_STATE"] = str(WORK / "state")
    os.chdir(WORK)
    try:
        params = _params(WORK, 0)
        source.write(source.resolve(params.policy, ROOT, WORK / "state"), WORK)
        for stage in (examples, policy, baseline):
            stage.run(params)
        reports.write(recipe.load(params.recipe).prompts.seed, Path("data/prompt/prompt.json"))
        yield WORK
    finally:
        os.chdir(before)
        os.environ.pop("RFT_STATE")
        if state is not None:
            os.environ["RFT_STATE"] = state


def _prepare(folder: Path) -> None:
    """Let the copied recipe ask for one turn, and its grader score as the peer does."""
    path = folder / "tools.py"
    text = path.read_text(encoding="utf-8")
    old = '"score": float(right)'
    assert text.count(old) == 1, "the template's grader is another than this benchmark was written for"
    share = "len({one for one in answer.lower() if one.isalpha()})"
    path.write_text(text.replace(old, f'"score": 1.0 if right else 0.15 * {share} / 26'), encoding="utf-8")
    prompts = json.loads((folder / "prompts.json").read_text(encoding="utf-8"))
    prompts["seed"]["max_turns"], prompts["max_turns"] = 1, [1]
    (folder / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")


def _ours_trained(place: Path, seed: int) -> dict[str, Any]:
    from rft.stages import train

    shutil.rmtree(place / "data" / "train", ignore_errors=True)
    train.run(_params(place, seed))
    timing = json.loads(Path("data/train/timing.json").read_text())["steps"]
    metrics = [json.loads(line) for line in Path("data/train/metrics.jsonl").read_text().splitlines()]
    phases = [name for name in timing[0] if name.startswith("time/") and name != "time/step_s"]
    return {
        "steps_s": [row["time/step_s"] for row in timing],
        "tokens": statistics.fmean(row["tokens/mean"] for row in metrics),
        "phases": {name.removeprefix("time/"): sum(row.get(name, 0.0) for row in timing) for name in phases},
        "rewards": [row["reward/mean"] for row in metrics],
    }


def _trl_trained(place: Path, seed: int) -> dict[str, Any]:
    folder = place / f"trl-{seed}"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(asdict(_job(place, seed))))
    peer.run("trl", [SCRIPT, folder / "job.json"], folder / "log.txt", timeout_s=1800.0)
    found = json.loads((folder / "result.json").read_text())
    return found | {"tokens": statistics.fmean(found["tokens"])}


def _job(place: Path, seed: int) -> Job:
    from rft import recipe, stage_files
    from rft.chat import dialogue
    from rft.chat.renderer import Chat
    from rft.models import source, weights
    from rft.tools.signatures import schemas

    params = _params(place, seed)
    ours = recipe.load(params.recipe)
    chat = Chat(weights.tokenizer(source.given(params.policy)), schemas(ours), params.policy.tool_format)
    rows = []
    for example in stage_files.load_examples("train"):
        ids = chat.prompt_ids(dialogue.opening(example, ours.prompts.seed))
        rows.append({"prompt": chat.tokenizer.decode(ids), "prompt_ids": ids, "target": example.target})
    section = params.train
    return Job(
        model=str(FOLDER),
        rows=rows,
        group=section.group,
        episodes=section.group * section.examples_per_step,
        microbatch=section.group * section.examples_per_step,
        new_tokens=NEW,
        lr=section.peak_lr,
        clip_grad=section.clip_grad,
        temperature=section.temperature,
        seed=seed,
        steps=STEPS,
        threads=THREADS,
    )
