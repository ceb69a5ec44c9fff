"""The peer's side of `real_speed`: TRL's GRPOTrainer makes steps on SmolLM2.

It runs in TRL's own environment.

    python bench/trl_step.py JOB.json      reads `Job`; writes result.json beside it

A step is 16 rollouts of one turn, so TRL's tools are not used. TRL gets the rendered openings as
text, and a reward in its own process. The openings' tokens are compared with ours before anything
is timed. The process is set up like ours (bench/trl_peer.py).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """What is trained. bench/real_speed.py writes it."""

    model: str
    rows: list[dict[str, Any]]
    """[{"prompt": the opening as text, "prompt_ids": its tokens, "target": the right answer}]"""
    group: int
    episodes: int
    microbatch: int
    new_tokens: int
    lr: float
    clip_grad: float
    temperature: float
    seed: int
    steps: int
    threads: int


@dataclass(frozen=True)
class Result:
    """One number per step, and the seconds of each phase over all steps."""

    steps_s: list[float]
    phases: dict[str, float]
    rewards: list[float]
    tokens: list[float]


def main(path: Path) -> None:
    job = Job(**json.loads(path.read_text(encoding="utf-8")))
    os.environ |= {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_DISABLED": "true",
    }
    from bench import trl_peer

    trl_peer._prepare_process(job)  # type: ignore[arg-type]  # of which it asks the threads
    clock = trl_peer._clock()
    trainer = _trainer(job, path.parent, clock)
    for row in job.rows:
        if (ids := trainer.processing_class(row["prompt"], add_special_tokens=False)["input_ids"]) != row["prompt_ids"]:
            raise SystemExit(f"TRL's opening is {ids}, ours {row['prompt_ids']}")
    trainer.train()
    found = Result(clock.steps_s, clock.phases, clock.seen["reward"], clock.seen["completions/mean_length"])
    part = path.parent / "result.part"
    part.write_text(json.dumps(asdict(found)), encoding="utf-8")
    part.rename(path.parent / "result.json")


def worth(answer: str, target: str) -> float:
    """Return a reward that differs from rollout to rollout, so that there is something to learn
    from."""
    return 1.0 if answer == target else 0.15 * len({letter for letter in answer.lower() if letter.isalpha()}) / 26


def _trainer(job: Job, folder: Path, clock: Any) -> Any:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    def reward(completions: list[str], target: list[str], **_: Any) -> list[float]:
        return [worth(answer.strip(), wanted) for answer, wanted in zip(completions, target, strict=True)]

    del clock.seen["tools/call_frequency"]  # there are no tools
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": job.microbatch,
        "gradient_accumulation_steps": job.episodes // job.microbatch,
        "num_generations": job.group,
        "max_completion_length": job.new_tokens,
        "temperature": job.temperature,
        "beta": 0.0,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "learning_rate": job.lr,
        "lr_scheduler_type": "constant",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": job.clip_grad,
        "max_steps": job.steps,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "seed": job.seed,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": job.steps,
        "disable_tqdm": True,
    }
    network = AutoModelForCausalLM.from_pretrained(job.model, dtype="float32", attn_implementation="sdpa")
    trainer = GRPOTrainer(
        model=network,
        args=GRPOConfig(**arguments),
        processing_class=AutoTokenizer.from_pretrained(job.model, padding_side="left"),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"], "target": row["target"]} for row in job.rows]),
        reward_funcs=reward,
        callbacks=[clock],
    )
    clock.watch(trainer)
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
