"""What a vocabulary costs in memory while a model learns.

Two models differ only in their vocabulary: 49,152 words (SmolLM2's) and 1,024. Each learns in its
own process from the same number of rollouts, whose completions fill most of a microbatch. The
process resets its high-water mark once the learner is made and its weights are in memory. Then it
learns twice, because AdamW's moments are there after the first step. What it takes above that is
activations, gradients, moments, and logits.

The head is tied to the embedding. With LoRA it is frozen, and its memory is below the mark. If all
weights learn, the head has a gradient and two moments. These are deducted, because they are not
logits. The rest of the difference should be about one chunk of logits (rft/kernels/chunked.py) if
the head learns, and a slab of them if it is frozen. Computed whole, the logits of a microbatch are
seven chunks, held three times: the same measurement then gives 20.8.

The bound is measured with buffers that are given back (rft/models/heap.py), as if memory were
short. With room, a step keeps its buffers, with holes that differ from run to run: identical
processes with 1,024 words took 975 to 1,260 MB. The difference of two such numbers says little
about logits, so it is shown without a bound. ARGS=short leaves it out.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import Figure, Part
from bench.real_memory import Case, learn, network_of, params_of

ROOT = Path(__file__).resolve().parents[1]
LARGE, SMALL = 49_152, 1_024
SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6}
MIB = 2**20
TIMES = 3


def train_memory(args: list[str]) -> Figure:
    """Peak of a training step above the weights, at a vocabulary of 49,152 minus that at 1,024: at
    most two chunks of logits."""
    from rft.kernels.chunked import CHUNK

    chunk = CHUNK * 4
    parts, notes = [], {}
    for weights in ("lora", "full"):
        more, notes[weights] = _more(weights)
        name = f"more at 49,152 words, {weights}, over a chunk"
        parts.append(Part(name, more / chunk, "chunks", at_most=2))
        if "short" not in args:
            found = [_more(weights, "keep") for _ in range(TIMES)]
            ratios = sorted(more / chunk for more, _ in found)
            notes[f"{weights}, buffers kept"] = [note for _, note in found]
            name = f"{name}, buffers kept"
            parts.append(Part(name, median(ratios), "chunks", low=ratios[0], high=ratios[-1], n=TIMES))
    parts.append(Part("the same with whole logits, lora", _more("lora", "whole")[0] / chunk, "chunks"))
    parts.append(Part("a chunk of logits", chunk / MIB, "MiB"))
    parts.append(Part("logits of a microbatch, whole", notes["lora"]["large"]["logits"] / chunk, "chunks"))
    return Figure(tuple(parts), notes)


FIGURES = {"train_memory": train_memory}


def _more(weights: str, how: str = "") -> tuple[int, dict[str, Any]]:
    """Return the bytes that the large vocabulary takes beyond the small one and its head, and what
    was measured."""
    large, small = (_in_a_process(weights, vocabulary, how) for vocabulary in (LARGE, SMALL))
    head = 0 if weights == "lora" else 3 * 4 * (LARGE - SMALL) * SHAPE["hidden_size"]
    more = large["above"] - small["above"] - head
    note = {"large": large, "small": small, "head's gradient and moments": head}
    print(f"[train_memory] {weights} {how}: {more / MIB:.0f} MiB, {note}", file=sys.stderr)
    return more, note


def _in_a_process(weights: str, vocabulary: int, how: str) -> dict[str, int]:
    shape = ("LlamaConfig", {**SHAPE, "vocab_size": vocabulary})
    case = Case(f"{weights}, {vocabulary}", weights, shape, prompt=16, longest=256, batch=8, microbatch=2560)
    command = [sys.executable, "-m", "bench.train_memory", json.dumps(asdict(case)), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -- in the process of a case ----------------------------------------------------------------------
def measure(case: Case, folder: Path) -> dict[str, int]:
    import torch

    from rft.models import weights
    from rft.trainer.learner import Learner

    params = params_of(case, folder)
    device = weights.prepare_process(params.policy)
    network = network_of(case, folder, device)
    learner = Learner(network, params.train, params.rollout.max_turn_tokens, device)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(SMALL, (case.batch, case.longest), generator=generator)  # words of both vocabularies
    prompts, answers = ids[:, : case.prompt].tolist(), ids[:, case.prompt :].tolist()
    for parameter in learner.model.parameters():
        parameter.detach().sum()  # reading loads what is mapped from a file into memory
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    for _ in range(2):
        learn(learner, prompts, answers, case)
    own = (case.longest - case.prompt) * (case.microbatch // case.longest)
    vocabulary = network.config.get_text_config().vocab_size
    return {"before": before, "above": _memory("VmHWM") - before, "logits": own * vocabulary * 4}


def _memory(name: str) -> int:
    """Return bytes by the kernel's name."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def main(asked: dict[str, Any], how: str) -> None:
    from rft.kernels import chunked
    from rft.models import heap

    if how != "keep":
        heap.ROOM = math.inf
    if how == "whole":
        chunked.CHUNK = 1 << 40
    with tempfile.TemporaryDirectory() as made:
        print(json.dumps(measure(Case(**asked), Path(made))))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
