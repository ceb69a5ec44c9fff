"""Section `train`: which algorithm, on what weights, how much, and when to stop.

Each algorithm reads only some settings (rft/algorithms). One that is written down and not read by the chosen algorithm is an error here: a
setting without effect is worse than none.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from rft.config.section import Section

Algorithm = Literal["dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "dpo", "best_of_n"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
LARGEST_GROUP = 64

_GROUPED = tuple(name for name in ALGORITHMS if name not in ("reinforce_pp", "ppo"))
"""The others learn from groups that are all the same, too."""
_READ_BY: dict[str, tuple[str, ...]] = {
    "clip": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "kl": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "importance_cap": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "overlong": ("dapo",),
    "ppo": ("ppo",),
    "dpo": ("dpo",),
    "refill_groups": _GROUPED,
    "variance": _GROUPED,
}


class Lora(Section):
    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    targets: Literal["all-linear"] | list[str] = "all-linear"


class Clip(Section):
    """How far the probability ratio may go before its gradient ends. None: as the algorithm's paper has it."""

    low: float | None = Field(default=None, gt=0)
    high: float | None = Field(default=None, gt=0)


class Kl(Section):
    """A penalty for leaving the reference policy: the policy that training started from."""

    beta: float = Field(default=0.0, ge=0)
    estimator: Literal["k1", "k2", "k3"] = "k3"


class Ppo(Section):
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    critic_lr: float = Field(default=1e-3, gt=0)
    value_clip: float = Field(default=0.2, gt=0)
    value_weight: float = Field(default=0.5, gt=0)


class Dpo(Section):
    beta: float = Field(default=0.1, gt=0)


class Overlong(Section):
    """DAPO's soft punishment of length: linear over the last `buffer` tokens of rollout.max_tokens, `penalty` at the end."""

    buffer: int = Field(default=0, ge=0)
    penalty: float = Field(default=1.0, ge=0)
    """In points of the score, whatever the grader's range."""


class Curriculum(Section):
    """Which examples a step takes. `epochs`: all, shuffled, again and again. `pass_rate`: more often those that the policy solves sometimes."""

    kind: Literal["epochs", "pass_rate"] = "epochs"
    half_life: float = Field(default=4.0, gt=0)
    """In visits of an example: how soon what it did is forgotten."""
    solved_share: float = Field(default=0.1, gt=0, le=1)
    """How often an example is taken that was always solved, beside one that is solved sometimes."""
    failed_share: float = Field(default=0.3, gt=0, le=1)
    """The same for one that was never solved."""


class Stop(Section):
    """When a run that goes on would only burn compute."""

    idle_steps: int = Field(default=20, ge=1)
    """So many steps one after another that changed no weight."""
    min_entropy: float = Field(default=1e-4, ge=0)
    """Mean entropy of the policy's tokens, in nats, below which it has collapsed. 0: never."""
    patience: int | None = Field(default=None, ge=1)
    """Early stopping: so many validations one after another without a better one."""


class Train(Section):
    from_: Literal["policy", "champion"] = Field(default="champion", alias="from")
    """'champion' is the base policy until something was promoted."""
    algorithm: Algorithm = "dr_grpo"
    weights: Literal["lora", "full"] = "lora"
    lora: Lora = Lora()
    lr: float = Field(default=3e-3, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from `lr` over `steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """The first steps, in which it rises."""
    steps: int = Field(default=80, ge=1)
    examples_per_step: int = Field(default=8, ge=1)
    group_size: int = Field(default=8, ge=2, le=LARGEST_GROUP)
    compute_multiplier: float = Field(default=1.0, gt=0.00001, le=10)
    """OpenAI's knob: rollouts an example. The group has round(group_size x compute_multiplier) rollouts, 2 to 64."""
    updates: int = Field(default=1, ge=1)
    """Optimizer updates on the rollouts of one step. 1: strictly on-policy."""
    temperature: float = Field(default=1.0, gt=0)
    clip: Clip = Clip()
    kl: Kl = Kl()
    importance_cap: float | None = Field(default=2.0, ge=1)
    """Truncated importance sampling between sampler and trainer. None: off; the mismatch is measured in either case."""
    overlong: Overlong = Overlong()
    ppo: Ppo = Ppo()
    dpo: Dpo = Dpo()
    variance: Literal["outcome", "reward"] = "outcome"
    """What must differ within a group for it to be learned from. A budget's penalty alone is no outcome."""
    refill_groups: float = Field(default=0.0, ge=0)
    """Dynamic sampling: groups without variance are replaced by groups of other examples, at most this share of examples_per_step."""
    curriculum: Curriculum = Curriculum()
    lag: int = Field(default=0, ge=0)
    """Asynchronous sampling: rollouts may come from weights this many steps old. Not in deterministic mode."""
    clip_grad: float = Field(default=1.0, gt=0)
    microbatch_tokens: int = Field(default=4096, ge=64)
    """With padding; gradients are accumulated over as many microbatches as a step needs."""
    packing: bool = False
    """Samples share rows, each blind to the others, and what several begin with is computed once; else they stand padded side by side."""
    gradient_checkpointing: bool = False
    processes: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    keep_checkpoints: int = Field(default=1, ge=1)
    validate_every: int = Field(default=20, ge=1)
    validation_examples: int = Field(default=32, ge=0)
    keep: Literal["last", "best"] = "last"
    """Which weights are the stage's output: those of the last step, or of the best validation."""
    stop: Stop = Stop()
    seed: int = 0

    @property
    def group(self) -> int:
        """Rollouts an example."""
        return max(2, min(LARGEST_GROUP, round(self.group_size * self.compute_multiplier)))

    @model_validator(mode="after")
    def _read(self) -> Train:
        for key, algorithms in _READ_BY.items():
            written = getattr(self, key) != type(self).model_fields[key].default  # a file may write defaults out
            if written and self.algorithm not in algorithms:
                raise ValueError(f"{key} is not read by algorithm {self.algorithm}. Take it out, or choose one of {', '.join(algorithms)}")
        for key, is_off, remedy in (
            ("kl.estimator", self.kl.estimator != Kl().estimator and not self.kl.beta, "give kl.beta a value"),
            ("overlong.penalty", self.overlong.penalty != Overlong().penalty and not self.overlong.buffer, "give overlong.buffer a value"),
            ("curriculum", self.curriculum.kind == "epochs" and self.curriculum != Curriculum(), "set curriculum.kind: pass_rate"),
        ):
            if is_off:
                raise ValueError(f"{key} has no effect here. Take it out, or {remedy}")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} never ends: steps is {self.steps}. Lower it")
        if (self.keep == "best" or self.stop.patience) and not self.validation_examples:
            raise ValueError("keep: best and stop.patience need validation_examples above 0")
        return self
