"""What a vocabulary costs in memory while a model learns.

Two models differ in their vocabulary alone: 49,152 words (SmolLM2's) and 1,024. Each learns from
the same number of rollouts, whose completions fill most of a microbatch, in a process of its own.
The process sets its high-water mark back once the learner is made, and learns twice (AdamW's
moments are there from the first step on). What it takes above that is activations, gradients,
moments, and logits.

The head is tied to the embedding. With LoRA it is frozen and lies below the mark. With all weights
learning it has a gradient and two moments, which are deducted: they are the head's, not the
logits'. What is left of the difference should be one chunk of logits (rft/kernels/chunked.py).
Whole, the logits of a microbatch would be seven, and held three times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.measure import Figure, Part
from bench.real_memory import Case, learn, network_of, params_of

ROOT = Path(__file__).resolve().parents[1]
LARGE, SMALL = 49_152, 1_024
SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6}
MIB = 2**20


def train_memory(args: list[str]) -> Figure:
    """Peak of a training step above the weights, at a vocabulary of 49,152 less that at 1,024: at
    most two chunks of logits."""
    from rft.kernels.chunked import CHUNK

    chunk = CHUNK * 4
    parts, notes = [], {}
    for weights in ("lora", "full"):
        large, small = (_in_a_process(weights, vocabulary) for vocabulary in (LARGE, SMALL))
        head = 0 if weights == "lora" else 3 * 4 * (LARGE - SMALL) * SHAPE["hidden_size"]
        more = large["above"] - small["above"] - head
        notes[weights] = {"large": large, "small": small, "head's gradient and moments": head}
        print(f"[train_memory] {weights}: {more / MIB:.0f} MiB, {notes[weights]}", file=sys.stderr)
        parts.append(Part(f"more at 49,152 words, {weights}, over a chunk", more / chunk, "chunks", at_most=2))
    parts.append(Part("a chunk of logits", chunk / MIB, "MiB"))
    parts.append(Part("logits of a microbatch, whole", notes["lora"]["large"]["logits"] / chunk, "chunks"))
    return Figure(tuple(parts), notes)


FIGURES = {"train_memory": train_memory}


def _in_a_process(weights: str, vocabulary: int) -> dict[str, int]:
    shape = ("LlamaConfig", {**SHAPE, "vocab_size": vocabulary})
    case = Case(f"{weights}, {vocabulary}", weights, shape, prompt=16, longest=256, batch=8, microbatch=2560)
    command = [sys.executable, "-m", "bench.train_memory", json.dumps(asdict(case))]
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
    ids = torch.randint(SMALL, (case.batch, case.longest), generator=generator)  # words that both know
    prompts, said = ids[:, : case.prompt].tolist(), ids[:, case.prompt :].tolist()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    for _ in range(2):
        learn(learner, prompts, said, case)
    own = (case.longest - case.prompt) * (case.microbatch // case.longest)
    vocabulary = network.config.get_text_config().vocab_size
    return {"before": before, "above": _memory("VmHWM") - before, "logits": own * vocabulary * 4}


def _memory(name: str) -> int:
    """Return bytes by the kernel's name."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def main(asked: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as made:
        print(json.dumps(measure(Case(**asked), Path(made))))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
