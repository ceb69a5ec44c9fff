"""The peer's side of `parity_trl`: losses and gradients by TRL's own trainers.

It runs in TRL's environment.

    python bench/parity_peer.py FOLDER      reads jobs.json (bench/parity.py writes it); writes
                                            NAME.safetensors for each job

A trainer is made as a user makes it (model, tokenizer, configuration, dataset). Its own
`compute_loss` is called on the batch of the job, or on rollouts that its own generation and reward
code made. Nothing of TRL is patched. Three attributes are set that `train()` would set: the number
of gradient accumulation steps, training mode, and, if a job has importance weights, that they come
from another engine.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    import torch

    torch.use_deterministic_algorithms(True)
    made: dict[str, Any] = {}
    for job in json.loads((folder / "jobs.json").read_text(encoding="utf-8")):
        key = json.dumps([job["trainer"], job["args"], job.get("importance") is not None])
        if key not in made:
            made[key] = trainer(folder, job)
        run(folder, job, made[key])


def trainer(folder: Path, job: dict[str, Any]) -> Any:
    """Make a trainer with the reference's weights, of which TRL keeps a frozen copy. Then give it
    the policy's weights."""
    import torch
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trl = importlib.import_module("trl")
    name = job["trainer"]
    model = AutoModelForCausalLM.from_pretrained(folder / "reference", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "reference")
    common = {
        "output_dir": str(folder / "trl"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "gradient_checkpointing": False,
    }
    settings = getattr(trl, f"{name}Config")(**common, **job["args"])
    if name == "DPO":
        reference = AutoModelForCausalLM.from_pretrained(folder / "reference", dtype=torch.float32)
        rows = Dataset.from_dict({"prompt": ["t5 t6"], "chosen": ["t7"], "rejected": ["t8"]})
        one = trl.DPOTrainer(model, ref_model=reference, args=settings, train_dataset=rows, processing_class=tokenizer)
    else:
        rows = Dataset.from_dict({"prompt": ["t5 t6"] * 12})
        make: Callable[..., Any] = getattr(trl, f"{name}Trainer")
        one = make(model, reward_funcs=_rewards, args=settings, train_dataset=rows, processing_class=tokenizer)
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
    one.model.load_state_dict(policy.state_dict())
    one.model.train()
    one.current_gradient_accumulation_steps = 1
    if job.get("importance") is not None:
        one.use_vllm = one.vllm_importance_sampling_correction = True
    return one


def _rewards(prompts: list[str], reward: list[float | None], **_: Any) -> list[float | None]:
    """Return the rewards from the dataset's own column."""
    return reward


def run(folder: Path, job: dict[str, Any], one: Any) -> None:
    import torch
    from safetensors.torch import save_file

    inputs = generated(job, one) if "prompts" in job else pairs(job) if job["trainer"] == "DPO" else batch(job)
    one.model.zero_grad()
    loss = one.compute_loss(one.model, inputs)
    loss.backward()
    found = {f"grad.{name}": parameter.grad for name, parameter in one.model.named_parameters()} | {
        "loss": loss.detach().reshape(1)
    }
    found |= (
        {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)} if "prompts" in job else {}
    )
    save_file(
        {name: value.clone().contiguous() for name, value in found.items()}, folder / f"{job['name']}.safetensors"
    )


def generated(job: dict[str, Any], one: Any) -> dict[str, Any]:
    """Return TRL's own rollouts, rewards and advantages."""
    import torch

    torch.manual_seed(0)
    rows = [{"prompt": prompt, "reward": reward} for prompt, reward in zip(job["prompts"], job["rewards"], strict=True)]
    return one._generate_and_score_completions(rows)


def batch(job: dict[str, Any]) -> dict[str, Any]:
    """Make a batch as `_generate_and_score_completions` lays it out: prompts padded on the left,
    completions on the right."""
    import torch

    own = _padded(job["own"])
    inputs = {
        "prompt_ids": _padded([row[::-1] for row in job["prompt"]]).flip(1),
        "prompt_mask": _padded([[1] * len(row) for row in job["prompt"]]).flip(1),
        "completion_ids": _padded(job["completion"]),
        "completion_mask": _padded([[1] * len(row) for row in job["completion"]]),
        "tool_mask": own,
        "advantages": torch.tensor(job["advantages"], dtype=torch.float32),
        "old_per_token_logps": _padded(job["old"], torch.float32),
        "ref_per_token_logps": _padded(job["reference"], torch.float32),
        "num_items_in_batch": own.sum(),
    }
    if job["trainer"] == "RLOO":
        inputs["old_logps"] = inputs["old_per_token_logps"].sum(1)
    if job.get("importance") is not None:
        inputs["importance_sampling_ratio"] = _padded(job["importance"], torch.float32)
    return inputs


def pairs(job: dict[str, Any]) -> dict[str, Any]:
    """Lay out pairs as DPO's collator does: all chosen ones, then all rejected ones."""
    order = [*range(0, len(job["prompt"]), 2), *range(1, len(job["prompt"]), 2)]
    rows = [job["prompt"][n] + job["completion"][n] for n in order]
    return {
        "input_ids": _padded(rows),
        "attention_mask": _padded([[1] * len(row) for row in rows]),
        "completion_mask": _padded([[0] * len(job["prompt"][n]) + job["own"][n] for n in order]),
    }


def _padded(rows: list[list[Any]], dtype: Any = None) -> Any:
    import torch

    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=dtype)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
