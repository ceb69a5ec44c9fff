"""The figure of company: how much slower is the arithmetic beside one and two busy programs?

There are four units of work: 20 steps of the demo's warm start, 24 rows of its sampling, two of its
training steps, and one training step of SmolLM2 on four rollouts. Each kind has two processes that
make a unit when they are asked to. One runs the code of today. The other one runs as the code was
before: its helper threads spin as long as libgomp likes. Both are started once and take turns, and
one sleeps while the other is measured. Beside them run no, one or two programs that loop forever.

A ratio compares neighbors: a unit beside others with the last quiet unit of the same process, and a
quiet unit with that of the code before. With fair shares of two cores, the times are 1.5 and 2.0.
All units of one kind must leave the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from bench import smollm
from bench.measure import Figure, Part, unmeasured

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("warm start", "sampling", "training", "SmolLM2's step")
COMPANY = (0, 1, 2)
AT_MOST = {1: 2.0, 2: 2.6}
QUIET = 1.03
ROUNDS = 5
WARM_STEPS, SFT_SAMPLES, TRAIN_STEPS = 20, 400, 2
ROWS, PROMPT, NEW = 24, 200, 96
BEFORE = {"GOMP_SPINCOUNT": "300000"}
"""What libgomp does by default."""
BUSY = "while True: pass"


def beside_others(args: list[str]) -> Figure:
    """Warm start, sampling and training beside one and two busy programs: at most 2.0 and 2.6 times
    the quiet time; quiet at most 1.03 times the code before; same bytes. ARGS may name kinds."""
    if (cores := len(os.sched_getaffinity(0))) != 2:
        return unmeasured("warm start beside one", f"the bounds are those of two cores, and here are {cores}")
    parts: list[Part] = []
    for kind in args or KINDS:
        if kind == KINDS[-1] and not smollm.FOLDER.exists():
            parts.append(Part(f"{kind} beside one", None, reason="SmolLM2 is not there: make model"))
            continue
        with _worker(kind) as now, _worker(kind, before=True) as before:
            parts += _compared(kind, now, before)
    return Figure(tuple(parts))


FIGURES = {"beside_others": beside_others}


def _compared(kind: str, now: Worker, before: Worker) -> Iterator[Part]:
    spent: dict[tuple[str, int], list[float]] = {}
    left: set[str] = set()
    for number in range(ROUNDS):
        for company in COMPANY:
            for name, worker in (("now", now), ("before", before)):
                with _busy(company):
                    seconds, sha256 = worker.unit()
                spent.setdefault((name, company), []).append(seconds)
                left.add(sha256)
        told = {f"{name} beside {company}": round(times[-1], 2) for (name, company), times in spent.items()}
        print(f"[beside_others] {kind} {number + 1}/{ROUNDS}: {told}", file=sys.stderr)
    for company, spelled in ((1, "one"), (2, "two")):
        for name in ("now", "before"):
            ratios = sorted(a / b for a, b in zip(spent[name, company], spent[name, 0], strict=True))
            shown = f"{kind} beside {spelled}" + (", the code before" if name == "before" else "")
            most = AT_MOST[company] if name == "now" else None
            yield Part(shown, median(ratios), "times", most, low=ratios[0], high=ratios[-1], n=ROUNDS)
    ratios = sorted(a / b for a, b in zip(spent["now", 0], spent["before", 0], strict=True))
    yield Part(f"{kind}, quiet, over the code before", median(ratios), "times", QUIET, low=ratios[0], high=ratios[-1])
    yield Part(f"{kind}: different bytes", len(left) - 1, "units", at_most=0, n=len(COMPANY) * 2 * ROUNDS)


# -- processes -------------------------------------------------------------------------------------
class Worker:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def unit(self) -> tuple[float, str]:
        """Let it make a unit. Returns its seconds, and the hash of what it left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, sha256 = self._process.stdout.readline().split()
        return float(seconds), sha256


@contextmanager
def _worker(kind: str, before: bool = False) -> Iterator[Worker]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= {"PYTHONPATH": str(ROOT)} | (BEFORE if before else {})
    command = [sys.executable, "-m", "bench.beside_others", kind]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        worker = Worker(process)
        worker.unit()  # which warms up
        yield worker
        process.kill()


@contextmanager
def _busy(count: int) -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    time.sleep(0.3)  # until they have started
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


# -- units -----------------------------------------------------------------------------------------
def _serve(kind: str) -> None:
    """Make a unit for each line of stdin, and print its seconds and hash."""
    out, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as quiet:
        unit = UNITS[kind](Path(scratch))
        for _ in sys.stdin:
            began = time.perf_counter()
            with redirect_stdout(quiet):
                left = unit()
            print(time.perf_counter() - began, left, file=out, flush=True)


def _embedded() -> tuple[Any, Any, list[Any]]:
    """Return the demo's settings, its policy before any training, and its SFT samples."""
    from rft import config, recipe, threads
    from rft.chat.renderer import Chat
    from rft.models import embedded, weights
    from rft.stages.policy import texts
    from rft.tools.signatures import schemas
    from rft.trainer.sft_samples import sft_samples

    params = config.parse(yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8")), "params.yaml")
    section, ours = params.policy, recipe.load(params.recipe)
    weights.prepare_process(section)
    shown = list(islice(ours.demonstrations(SFT_SAMPLES, section.seed), SFT_SAMPLES))
    tools = schemas(ours)
    tokenizer = embedded.build_tokenizer(texts(shown), tools, ours.vocabulary(), section.architecture.merges)
    network = embedded.build_model(section.architecture, tokenizer, section.seed)
    threads.use(network, section.threads)
    return params, network, sft_samples(Chat(tokenizer, tools), shown, section.warm_start.longest)[0]


def _warm_start(scratch: Path) -> Callable[[], str]:
    import torch

    from rft.stages import policy

    params, network, given = _embedded()
    warm = params.policy.warm_start.model_copy(update={"steps": WARM_STEPS})
    section = params.policy.model_copy(update={"warm_start": warm})

    def unit() -> str:
        work = scratch / "warm"
        shutil.rmtree(work, ignore_errors=True)
        training = policy.warm_start(copy.deepcopy(network), given, section, work, torch.device("cpu"))
        return _hash_of(training.learner.model)

    return unit


def _sampling(scratch: Path) -> Callable[[], str]:
    import torch

    from rft.doctor.speed import Endless
    from rft.sampling.engine import Engine, Session

    _, network, _ = _embedded()
    engine = Engine(network, Endless(), torch.device("cpu"), deterministic=True)  # type: ignore[arg-type]
    prompts = np.random.default_rng(0).integers(0, network.config.vocab_size, (ROWS, PROMPT)).tolist()

    def unit() -> str:
        session = Session(engine, prompts, [(0, row) for row in range(ROWS)], 1.0, engine.max_positions)
        turns = session.sample(list(range(ROWS)), NEW)
        return hashlib.sha256(repr([one.ids for one in turns]).encode()).hexdigest()

    return unit


def _training(scratch: Path) -> Callable[[], str]:
    params, network, _ = _embedded()
    return _steps(network, params.train, TRAIN_STEPS, 2 * params.train.group, PROMPT, NEW)


def _smollm(scratch: Path) -> Callable[[], str]:
    from rft import config
    from rft.models import weights

    section = config.Policy(model=str(smollm.FOLDER), device="cpu")
    network, _ = weights.load(str(smollm.FOLDER), section, weights.prepare_process(section))
    return _steps(network, config.Train(), 1, rows=4, prompt=60, new=24)


def _steps(network: Any, section: Any, count: int, rows: int, prompt: int, new: int) -> Callable[[], str]:
    """Make so many training steps on so many rollouts, from the same weights each time."""
    import torch

    from rft.doctor import speed
    from rft.doctor.hours import Typical
    from rft.models import heap
    from rft.trainer.learner import Learner

    learner = Learner(network, section, new, torch.device("cpu"))
    first = copy.deepcopy(learner.state())
    steps, size = heap.Steps(learner.model), network.config.vocab_size
    rollouts = speed.rollouts(section, prompt, Typical(new, prompt + 2 * new), rows, size)

    def unit() -> str:
        learner.load(copy.deepcopy(first))
        for _ in range(count):
            speed.learned_s(learner, steps, rollouts)
        return _hash_of(learner.model)

    return unit


def _hash_of(network: Any) -> str:
    found = hashlib.sha256()
    for name, one in sorted(network.named_parameters()):
        if one.requires_grad:
            found.update(name.encode() + one.detach().numpy().tobytes())
    return found.hexdigest()


UNITS: dict[str, Callable[[Path], Callable[[], str]]] = dict(
    zip(KINDS, (_warm_start, _sampling, _training, _smollm), strict=True)
)

if __name__ == "__main__":
    _serve(sys.argv[1])
