"""Section `train`: which algorithm, on what weights, how much, and when to stop.

Each algorithm reads only some settings (rft/algorithms). One that is written down and not read by
the chosen algorithm is an error here: a setting without effect is worse than none.
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
    """The shape of the adapter, where `weights` is lora."""

    r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    alpha: int = Field(default=32, ge=1)
    """Scale of the adapter: its update counts alpha / r."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """Which modules get an adapter: all linear layers, or those of these names."""


class Clip(Section):
    """How far the probability ratio may go before its gradient ends. null: as the algorithm's paper
    has it."""

    low: float | None = Field(default=None, gt=0)
    """How far the ratio may fall below 1."""
    high: float | None = Field(default=None, gt=0)
    """How far the ratio may rise above 1."""


class Kl(Section):
    """A penalty for leaving the reference policy: the policy that training started from."""

    beta: float = Field(default=0.0, ge=0)
    """Weight of the penalty. 0: off."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated from sampled tokens; k3 is unbiased and never negative."""


class Ppo(Section):
    """PPO's critic and its advantages."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """How far advantages look ahead: 0 one token, 1 to the end."""
    critic_lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the critic."""
    value_clip: float = Field(default=0.2, gt=0)
    """How far a value may move from the old one within a step."""
    value_weight: float = Field(default=0.5, gt=0)
    """Weight of the critic's loss."""


class Dpo(Section):
    """DPO on the best and the worst rollout of a group."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the pair is held to the reference policy."""


class Overlong(Section):
    """DAPO's soft punishment of length: linear over the last `buffer` tokens of rollout.max_tokens,
    `penalty` at the end."""

    buffer: int = Field(default=0, ge=0)
    """Tokens before rollout.max_tokens over which the punishment grows. 0: off."""
    penalty: float = Field(default=1.0, ge=0)
    """What the longest rollout loses, in points of the score, whatever the grader's range."""


class Curriculum(Section):
    """Which examples a step takes."""

    kind: Literal["epochs", "pass_rate"] = "epochs"
    """epochs: all examples, shuffled, again and again. pass_rate: more often those that the policy
    solves sometimes."""
    half_life: float = Field(default=4.0, gt=0)
    """How soon what an example did is forgotten, in visits of it."""
    solved_share: float = Field(default=0.1, gt=0, le=1)
    """How often an example is taken that was always solved, beside one that is solved sometimes."""
    failed_share: float = Field(default=0.3, gt=0, le=1)
    """How often an example is taken that was never solved, beside one that is solved sometimes."""


class Stop(Section):
    """When a run that goes on would only burn compute."""

    idle_steps: int = Field(default=20, ge=1)
    """Training ends after so many steps one after another in which no group had anything to learn
    from (a KL may go on pulling at the weights)."""
    min_entropy: float = Field(default=1e-4, ge=0)
    """Training ends when the mean entropy of the policy's tokens falls below this, in nats: it has
    collapsed. 0: never."""
    patience: int | None = Field(default=None, ge=1)
    """Training ends after so many validations one after another without a better one. null:
    never."""


class Train(Section):
    """Reinforcement fine-tuning: which algorithm, on what weights, how much, and when to stop."""

    from_: Literal["policy", "champion"] = Field(default="champion", alias="from")
    """What training starts from. `champion` is the base policy until something was promoted."""
    algorithm: Algorithm = "dr_grpo"
    """How rollouts become a loss; README and rft/algorithms say which is which."""
    weights: Literal["lora", "full"] = "lora"
    """What is trained: an adapter beside the weights, or all of them."""
    lora: Lora = Lora()
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of AdamW at its highest. The default suits the embedded policy; a large model
    wants far less."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from `lr` over `steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """The first steps, in which the learning rate rises to `lr`."""
    steps: int = Field(default=80, ge=1)
    """Optimizer steps, each on fresh rollouts."""
    examples_per_step: int = Field(default=8, ge=1)
    """Examples in a step; each is rolled out as a group."""
    group_size: int = Field(default=8, ge=2, le=LARGEST_GROUP)
    """Rollouts per example, whose rewards are compared with each other."""
    compute_multiplier: float = Field(default=1.0, gt=0.00001, le=10)
    """OpenAI's knob for rollouts per example. The group has round(group_size x compute_multiplier)
    rollouts, 2 to 64."""
    updates: int = Field(default=1, ge=1)
    """Optimizer updates on the rollouts of one step. 1: strictly on-policy."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the training rollouts."""
    clip: Clip = Clip()
    kl: Kl = Kl()
    importance_cap: float | None = Field(default=2.0, ge=1)
    """Truncated importance sampling between sampler and trainer. null: off; the mismatch is
    measured in either case."""
    overlong: Overlong = Overlong()
    ppo: Ppo = Ppo()
    dpo: Dpo = Dpo()
    variance: Literal["outcome", "reward"] = "outcome"
    """What must differ within a group for it to be learned from. A budget's penalty alone is no
    outcome."""
    refill_groups: float = Field(default=0.0, ge=0)
    """Dynamic sampling: groups without variance are replaced by groups of other examples, at most
    this share of examples_per_step."""
    curriculum: Curriculum = Curriculum()
    lag: int = Field(default=0, ge=0)
    """Asynchronous sampling: rollouts may come from weights this many steps old. Not in
    deterministic mode."""
    clip_grad: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient; a larger one is scaled down."""
    microbatch_tokens: int = Field(default=4096, ge=64)
    """Tokens in a microbatch, padding included. Gradients are accumulated over as many as a step
    needs: fewer tokens take less memory."""
    packing: bool = False
    """Samples share rows, each blind to the others, and what several begin with is computed once;
    else they stand padded side by side. A row is as wide as pays in this model, and at most
    microbatch_tokens; `packing/shared_share` among the metrics says how many rollouts shared their
    prompt.
    """
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    processes: int = Field(default=1, ge=1)
    """Learner processes, one per GPU."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints: what a kill can cost."""
    keep_checkpoints: int = Field(default=1, ge=1)
    """How many of the newest checkpoints stay on disk."""
    validate_every: int = Field(default=20, ge=1)
    """Steps between validations."""
    validation_examples: int = Field(default=32, ge=0)
    """Validation examples, one greedy rollout each. 0: no validation."""
    keep: Literal["last", "best"] = "last"
    """Which weights are the stage's output: those of the last step, or of the best validation."""
    stop: Stop = Stop()
    seed: int = 0
    """Seed of the sampling, the order of examples and new weights."""

    @property
    def group(self) -> int:
        """Rollouts an example."""
        return max(2, min(LARGEST_GROUP, round(self.group_size * self.compute_multiplier)))

    @model_validator(mode="after")
    def _read(self) -> Train:
        for key, algorithms in _READ_BY.items():
            written = getattr(self, key) != type(self).model_fields[key].default  # a file may write defaults out
            if written and self.algorithm not in algorithms:
                raise ValueError(
                    f"{key} is not read by algorithm {self.algorithm}. Take it out, or choose one of "
                    f"{', '.join(algorithms)}"
                )
        for key, is_off, remedy in (
            ("kl.estimator", self.kl.estimator != Kl().estimator and not self.kl.beta, "give kl.beta a value"),
            (
                "overlong.penalty",
                self.overlong.penalty != Overlong().penalty and not self.overlong.buffer,
                "give overlong.buffer a value",
            ),
            (
                "curriculum",
                self.curriculum.kind == "epochs" and self.curriculum != Curriculum(),
                "set curriculum.kind: pass_rate",
            ),
        ):
            if is_off:
                raise ValueError(f"{key} has no effect here. Take it out, or {remedy}")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} never ends: steps is {self.steps}. Lower it")
        if (self.keep == "best" or self.stop.patience) and not self.validation_examples:
            raise ValueError("keep: best and stop.patience need validation_examples above 0")
        return self
