"""The doctor's estimate of memory, compared with the peak of a training step.

Each case is a process of its own, so that its high-water mark starts anew (resident memory; on a
GPU what PyTorch allocated). It makes the learner and its sampler as stage `train` does, and samples
rollouts that fill `rollout.max_tokens`. It learns twice from as many as fill two microbatches,
because AdamW's moments are there after the first step. Then it prints the mark beside the estimate
(rft/doctor/capacity.py) for the same settings. Tools and graders are left out: they need next to
nothing here. Memory is given back as if it were short (rft/models/heap.py): with room, a step takes
more and is faster.

The cases are SmolLM2-135M from `make model`, and random models of two architectures with
vocabularies of 150,000. Each is trained as LoRA and with all weights. ARGS=random leaves SmolLM2
out.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.measure import Figure, Part

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = ".rft/models/smollm2-135m-instruct"
WITHIN = 0.15


@dataclass(frozen=True, slots=True)
class Case:
    """`shape` is transformers' class and arguments of a random model. Empty: SmolLM2."""

    name: str
    weights: str
    shape: tuple[str, dict[str, int]] | None = None
    prompt: int = 192
    longest: int = 256
    batch: int = 4
    microbatch: int = 1024
    checkpointing: bool = False


LLAMA = ("LlamaConfig", {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 12, "vocab_size": 150_000})
QWEN3 = ("Qwen3Config", {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 12, "vocab_size": 151_936})
CASES = (
    Case("SmolLM2, LoRA", "lora"),
    Case("SmolLM2, full", "full"),
    Case("Llama, 150 k, LoRA", "lora", LLAMA, microbatch=4096),
    Case("Llama, 150 k, full", "full", LLAMA, microbatch=4096),
    Case("Qwen3, 152 k, LoRA", "lora", QWEN3, microbatch=4096),
    Case("Qwen3, 152 k, full", "full", QWEN3, microbatch=4096),
    Case("Llama, 150 k, full, checkpointing", "full", LLAMA, microbatch=4096, checkpointing=True),
)
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096}


def real_memory(args: list[str]) -> Figure:
    """The doctor's estimate of a training step's memory over its measured peak: within 15 %."""
    parts: list[Part] = []
    notes: dict[str, Any] = {}
    for case in CASES:
        if case.shape is None and ("random" in args or not (ROOT / SMOLLM2).is_dir()):
            parts.append(Part(case.name, None, n=0, reason=f"{case.name}: no model in {SMOLLM2}: make model"))
            continue
        found = _in_a_process(case)
        ratio = found["estimate"] / found["peak"]
        print(f"[real_memory] {case.name}: {ratio:.3f} {found}", file=sys.stderr)
        notes[case.name] = found
        parts.append(Part(case.name, ratio, "estimate over peak", at_least=1 - WITHIN, at_most=1 + WITHIN))
    measured = [part.value for part in parts if part.value is not None]
    worst = max(measured, key=lambda ratio: abs(ratio - 1), default=None)
    return Figure(
        (
            Part("worst case", worst, "estimate over peak", n=len(measured), at_least=1 - WITHIN, at_most=1 + WITHIN),
            *parts,
        ),
        notes,
    )


def real_memory_gpu(args: list[str]) -> Figure:
    """The same with Qwen3's shapes of 0.6 and 4 B, on a GPU."""
    return Figure((Part("Qwen3 of 0.6 and 4 B", None, n=0, reason="not measured on this device: no GPU"),))


FIGURES = {"real_memory": real_memory, "real_memory_gpu": real_memory_gpu}


def _in_a_process(case: Case) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.real_memory", json.dumps(asdict(case))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -- in the process of a case ----------------------------------------------------------------------
class _NoEnd:
    """A chat whose dialogues never end: each fills its limit."""

    end_ids: frozenset[int] = frozenset()


def measure(case: Case, folder: Path) -> dict[str, Any]:
    import torch

    from rft.models import heap, weights
    from rft.sampling.engine import Engine
    from rft.trainer.learner import Learner

    heap.ROOM = math.inf  # as if memory were short
    params = params_of(case, folder)
    device = weights.prepare_process(params.policy)
    network = network_of(case, folder, device)
    marks = {"loaded": _peak(device)}
    learner = Learner(network, params.train, params.rollout.max_turn_tokens, device)
    sampler: Any = Engine(weights.sampler_copy(learner.model), _NoEnd(), device)  # type: ignore[arg-type]
    marks["learner"] = _peak(device)
    vocabulary = network.config.get_text_config().vocab_size
    prompts = torch.randint(vocabulary, (case.batch, case.prompt), generator=torch.Generator().manual_seed(0)).tolist()
    for step in range(2):
        rows = _sampled(sampler, prompts, case)
        marks[f"sampled {step + 1}"] = _peak(device)
        learn(learner, prompts, rows, case)
        weights.sync(learner.model, sampler.model)
        sampler.model.eval()
        marks[f"learned {step + 1}"] = _peak(device)
    peak = _peak(device)
    need = _estimate(network, params, device)
    return {"peak": peak, "estimate": sum(need.values()), "need": need, "marks": marks}


def _peak(device: Any) -> int:
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def params_of(case: Case, folder: Path) -> Any:
    import yaml

    from rft import config

    found = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    own = case.longest - case.prompt
    found["rollout"] = {"max_turns": 1, "max_turn_tokens": own, "max_tokens": case.longest, "batch": case.batch}
    found["policy"] = {"model": str(folder), "device": "cpu"}
    found["train"] = {
        "weights": case.weights,
        "lr": 1e-5,
        "microbatch_tokens": case.microbatch,
        "gradient_checkpointing": case.checkpointing,
    }
    return config.parse(found, "params.yaml")


def network_of(case: Case, folder: Path, device: Any) -> Any:
    """Load the model from its folder. Another process writes a random model there first, because
    this one's memory is measured."""
    from transformers import AutoModelForCausalLM

    if case.shape is not None:
        command = [sys.executable, "-m", "bench.real_memory", "write", json.dumps(case.shape), str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="sdpa").to(device).eval()


def write(shape: tuple[str, dict[str, int]], folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    description = getattr(transformers, shape[0])(**HEADS, **shape[1], tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(description).save_pretrained(folder)


def _sampled(sampler: Any, prompts: list[list[int]], case: Case) -> list[list[int]]:
    from rft.sampling.engine import Session

    rows = list(range(len(prompts)))
    session = Session(sampler, prompts, [(0, row) for row in rows], 1.0, case.longest)
    for row in rows:
        session.begin(row, case.longest - case.prompt)
    while session.speaking:
        session.advance()
    return [list(session._turn[row].ids) for row in rows]


def learn(learner: Any, prompts: list[list[int]], answers: list[list[int]], case: Case) -> None:
    """Learn from two microbatches, which repeat what was sampled."""
    from rft.trainer.packing import Counted, TrainingSample

    count = 2 * max(1, case.microbatch // case.longest)
    samples = [
        TrainingSample(
            ids=[*prompts[number % len(answers)], *answers[number % len(answers)]],
            loss_mask=[False] * case.prompt + [True] * len(answers[number % len(answers)]),
            logprobs=[-5.0] * len(answers[number % len(answers)]),
            advantage=1.0 if number % 2 else -1.0,
        )
        for number in range(count)
    ]
    learner.update(samples, Counted(count, sum(sample.num_own for sample in samples)))
    learner.free_gradients()


def _estimate(network: Any, params: Any, device: Any) -> dict[str, int]:
    from rft.doctor import capacity

    need = capacity.memory_need(capacity.shape_of(network.config), params, network.config)
    return {name: size for name, size in need.items() if device.type == "cpu" or name != "libraries"}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        asked = json.loads(sys.argv[1])
        with tempfile.TemporaryDirectory() as made:
            print(json.dumps(measure(Case(**asked), Path(made) if asked["shape"] else ROOT / SMOLLM2)))
