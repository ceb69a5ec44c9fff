"""Section `train`: which algorithm, on what weights, how much, and when to stop.

Each algorithm reads only some settings (rft/algorithms). A setting that the chosen algorithm does
not read is an error here, because it would silently have no effect.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from rft.config.section import Section
from rft.config.warm_start import Lora, WarmStart

Algorithm = Literal[
    "dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "dpo", "best_of_n", "supervised"
]  # fmt: skip
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
LARGEST_GROUP = 64

_GROUPED = tuple(name for name in ALGORITHMS if name not in ("reinforce_pp", "ppo", "supervised"))
"""Algorithms that learn only from groups in which rollouts differ."""
_READ_BY: dict[str, tuple[str, ...]] = {
    "clip": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "kl": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "importance_cap": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "decoding": ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"),
    "overlong": ("dapo",),
    "ppo": ("ppo",),
    "dpo": ("dpo",),
    "refill_groups": _GROUPED,
    "variance": _GROUPED,
    "lag": tuple(name for name in ALGORITHMS if name != "supervised"),
    "supervised": ("supervised",),
}
_BEST_OF_N = ("best_of_n", "rollouts")
_SAMPLED = ("group_size", "compute_multiplier", "temperature", "curriculum")
"""Settings of rollouts. Nothing reads them where existing dialogues are imitated."""


class Clip(Section):
    """Clipping of the probability ratio. Beyond these limits a token has no gradient. With cispo
    its weight stays at the limit."""

    low: float | None = Field(default=None, gt=0)
    """How far the ratio may fall below 1. null: the value of the algorithm's paper."""
    high: float | None = Field(default=None, gt=0)
    """How far the ratio may rise above 1. null: the value of the algorithm's paper."""


class Kl(Section):
    """A penalty for moving away from the reference policy, from which training started."""

    beta: float = Field(default=0.0, ge=0)
    """Weight of the penalty. 0: off."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated from sampled tokens. k3 is unbiased and never negative."""


class Ppo(Section):
    """PPO's critic and its advantages."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """How far advantages look ahead, from 0 (one token) to 1 (the whole rollout)."""
    critic_lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the critic."""
    value_clip: float = Field(default=0.2, gt=0)
    """How far the critic's value may move from its old value within a step."""
    value_weight: float = Field(default=0.5, gt=0)
    """Weight of the critic's loss."""


class Dpo(Section):
    """DPO on the best and the worst rollout of a group."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is kept near the reference policy."""


class Supervised(Section):
    """What `algorithm: supervised` imitates."""

    demonstrations: int = Field(default=2000, ge=1)
    """With source demonstrations: number of dialogues from the recipe's demonstrations.py."""
    rounds: int = Field(default=1, ge=1)
    """With source rollouts: how often new rollouts are sampled. `steps` is divided among the
    rounds."""
    examples: int | None = Field(default=None, ge=1)
    """With source rollouts: number of training examples that each round rolls out. null: all."""
    other_weight: float = Field(default=0.0, ge=0, le=1)
    """Loss weight of tokens that the policy never writes: prompts and tool results."""


class Overlong(Section):
    """DAPO's soft penalty on length. It grows linearly over the last `buffer` tokens before
    rollout.max_tokens, up to `penalty`."""

    buffer: int = Field(default=0, ge=0)
    """Tokens before rollout.max_tokens over which the penalty grows. 0: off."""
    penalty: float = Field(default=1.0, ge=0)
    """Penalty of the longest rollout, in points of the score. It does not depend on the grader's
    range."""


class Curriculum(Section):
    """How a step chooses its examples."""

    kind: Literal["epochs", "pass_rate"] = "epochs"
    """epochs: all examples in shuffled order, again and again. pass_rate: preferably examples that
    the policy solves sometimes."""
    half_life: float = Field(default=4.0, gt=0)
    """Visits to an example after which its earlier results count half."""
    solved_share: float = Field(default=0.1, gt=0, le=1)
    """How often to take an example that was always solved, relative to one that was solved
    sometimes."""
    failed_share: float = Field(default=0.3, gt=0, le=1)
    """How often to take an example that was never solved, relative to one that was solved
    sometimes."""


class Stop(Section):
    """When to end training early."""

    idle_steps: int = Field(default=20, ge=1)
    """End after this many steps in a row in which no group teaches anything. A KL penalty may still
    move the weights in such a step."""
    min_entropy: float = Field(default=1e-4, ge=0)
    """End when the mean entropy of the policy's tokens, in nats, falls below this: the policy has
    collapsed. 0: never."""
    patience: int | None = Field(default=None, ge=1)
    """End after this many validations in a row without a new best. null: never."""


class Train(Section):
    """Reinforcement fine-tuning: which algorithm, which weights, how much, and when to stop."""

    from_: Literal["policy", "champion"] = Field(default="champion", alias="from")
    """Where training starts. Before the first promotion, `champion` is the base policy."""
    algorithm: Algorithm = "dr_grpo"
    """How rollouts become a loss. docs/training.md and rft/algorithms explain each. `supervised`
    imitates what `source` names."""
    source: Literal["demonstrations", "traffic", "rollouts"] | None = None
    """What `supervised` imitates. demonstrations: the recipe's. traffic: production's answers that
    a person confirmed. rollouts: the policy's own best rollouts on the training examples, if they
    passed (rejection sampling). A dialogue that shares its input with a validation or test example
    is left out and counted. best_of_n always imitates rollouts, so it accepts only `rollouts`."""
    weights: Literal["lora", "full"] = "lora"
    """Which weights are trained: a LoRA adapter, or all weights."""
    lora: Lora = Lora()
    lr: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra={"outside": "Without a learning rate no weight changes. Leave it out for the default."},
    )
    """Peak learning rate of AdamW. null: computed from the width of the policy, as
    2e-3 x (128 / width)^1.5 for LoRA and 4e-4 x (128 / width)^2 for all weights. The embedded
    policy is 128 wide."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from `lr` over `steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps at the start over which the learning rate rises to `lr`."""
    steps: int = Field(default=80, ge=1)
    """Optimizer steps. Each one learns from new rollouts."""
    examples_per_step: int = Field(default=8, ge=1)
    """Examples in a step. Each is rolled out as a group."""
    group_size: int = Field(
        default=8,
        ge=2,
        le=LARGEST_GROUP,
        json_schema_extra={
            "outside": "A rollout is compared with the others of its group: a group of one can never differ, so "
            "nothing would be learned."
        },
    )
    """Rollouts per example. Their rewards are compared with each other."""
    compute_multiplier: float = Field(default=1.0, gt=0.00001, le=10)
    """OpenAI's setting for rollouts per example. A group has round(group_size x compute_multiplier)
    rollouts, from 2 to 64."""
    updates: int = Field(default=1, ge=1)
    """Optimizer updates on the rollouts of one step. 1: strictly on-policy."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the training rollouts."""
    clip: Clip = Clip()
    kl: Kl = Kl()
    importance_cap: float | None = Field(default=2.0, ge=1)
    """Truncated importance sampling: the cap of the weights that correct for differences between
    sampler and trainer. null: no correction. The mismatch is measured in both cases."""
    decoding: Literal["float32", "bfloat16"] = "float32"
    """Number format in which a CPU multiplies while it samples training rollouts from float32
    weights. With bfloat16, sampling is faster where the processor has it, but the policy is
    slightly different. Importance weights correct for that, so importance_cap must be set.
    Validations and all other stages use float32."""
    overlong: Overlong = Overlong()
    ppo: Ppo = Ppo()
    dpo: Dpo = Dpo()
    supervised: Supervised = Supervised()
    when_not_ready: Literal["stop", "warm_start"] = "stop"
    """What to do when the baseline says "not yet". stop: train nothing. warm_start: imitate the
    recipe's demonstrations first, as `warm_start` says, and then train with `algorithm`. The stage
    then leaves whole weights, not an adapter."""
    warm_start: WarmStart = WarmStart()
    variance: Literal["outcome", "reward"] = "outcome"
    """What must differ within a group so that the group is used. `outcome` ignores a budget's
    penalty, and `reward` includes it."""
    refill_groups: float = Field(default=0.0, ge=0)
    """Dynamic sampling: groups without variance are replaced by groups of other examples, at most
    this share of examples_per_step."""
    curriculum: Curriculum = Curriculum()
    lag: int = Field(default=0, ge=0)
    """Asynchronous sampling: how many steps old the weights that sampled a rollout may be. Not in
    deterministic mode."""
    clip_grad: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient. A larger one is scaled down."""
    microbatch_tokens: int = Field(default=4096, ge=64)
    """Tokens in a microbatch, padding included. A step accumulates gradients over as many
    microbatches as it needs. A smaller microbatch takes less memory."""
    packing: bool = False
    """Whether several samples share a row. They do not see each other, and a common beginning is
    computed once. false: each sample has a padded row. A packed row may be as wide as
    microbatch_tokens, or as wide as pays for models of other families than Qwen, Llama and Mistral.
    A group whose samples fit into a row computes its prompt once. The metric `packing/shared_share`
    is the share of rollouts that shared their prompt.
    """
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Whether activations are computed again in the backward pass. This takes less memory and more
    time, and gives the same bytes on a CPU. With `auto` it begins at the first microbatch whose
    estimated memory is more than what is free. With several processes `auto` never begins."""
    processes: int = Field(default=1, ge=1)
    """Learner processes, one per GPU."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints. A kill costs at most this many steps."""
    keep_checkpoints: int = Field(default=1, ge=1)
    """How many of the newest checkpoints stay on disk. The checkpoint that earned the highest
    reward stays as well: training goes back to it if the policy collapses."""
    validate_every: int = Field(default=20, ge=1)
    """Steps between validations."""
    validation_examples: int = Field(default=32, ge=0)
    """Validation examples, each with one greedy rollout. 0: no validation."""
    keep: Literal["last", "best"] = "last"
    """Which weights the stage leaves: those of the last step, or of the best validation."""
    stop: Stop = Stop()
    seed: int = 0
    """Seed of the sampling, of the order of examples and of new weights."""

    @property
    def peak_lr(self) -> float:
        """The learning rate, which the file sets or rft/trainer/rates.py fills in."""
        assert self.lr is not None, "the policy's width is known"
        return self.lr

    @property
    def group(self) -> int:
        """Rollouts per example."""
        return max(2, min(LARGEST_GROUP, round(self.group_size * self.compute_multiplier)))

    @model_validator(mode="after")
    def _read(self) -> Train:
        for key, algorithms in _READ_BY.items():
            changed = getattr(self, key) != type(self).model_fields[key].default  # a file may write defaults out
            if changed and self.algorithm not in algorithms:
                others = ", ".join(algorithms)
                raise ValueError(
                    f"{key} is not read by algorithm {self.algorithm}. Remove it, or choose one of {others}"
                )
        self._check_imitated()
        kl, overlong, curriculum = self.kl, self.overlong, self.curriculum
        if kl.estimator != Kl().estimator and not kl.beta:
            raise ValueError("kl.estimator has no effect without kl.beta. Remove it, or set kl.beta")
        if overlong.penalty != Overlong().penalty and not overlong.buffer:
            raise ValueError(
                "overlong.penalty has no effect without overlong.buffer. Remove it, or set overlong.buffer"
            )
        if curriculum.kind == "epochs" and curriculum != Curriculum():
            raise ValueError("curriculum has no effect here. Remove it, or set curriculum.kind: pass_rate")
        if self.decoding == "bfloat16" and self.importance_cap is None:
            raise ValueError("decoding: bfloat16 needs importance_cap, which corrects for it. Set it: 2.0 is usual")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} must be below steps = {self.steps}. Lower it")
        if (self.keep == "best" or self.stop.patience) and not self.validation_examples:
            raise ValueError("keep: best and stop.patience need validation_examples above 0")
        return self

    def _check_imitated(self) -> None:
        """Refuse keys that have no effect on imitation, and name those that it needs."""
        source, supervised = self.source, self.supervised
        if self.algorithm == "supervised" and source is None:
            raise ValueError("algorithm supervised needs source. Set it to demonstrations, traffic or rollouts")
        if source is not None and self.algorithm != "supervised" and (self.algorithm, source) != _BEST_OF_N:
            raise ValueError(
                f"source = {source} is not read by algorithm {self.algorithm}. Remove it, or set algorithm: supervised"
            )
        if self.algorithm == "supervised":
            read_by = {"demonstrations": "demonstrations", "rounds": "rollouts", "examples": "rollouts"}
            for key, wanted in read_by.items():
                if source != wanted and getattr(supervised, key) != getattr(Supervised(), key):
                    raise ValueError(f"supervised.{key} is read with source {wanted} only. Remove it")
            if supervised.rounds > self.steps:
                raise ValueError(f"supervised.rounds = {supervised.rounds} is more than steps = {self.steps}. Lower it")
            fields = type(self).model_fields
            changed = [key for key in _SAMPLED if getattr(self, key) != fields[key].default]
            if source != "rollouts" and changed:
                raise ValueError(f"{changed[0]} is not read with source {source}, which samples nothing. Remove it")
        goes_on = self.when_not_ready == "warm_start"
        if goes_on and self.algorithm == "supervised":
            raise ValueError("when_not_ready: warm_start comes before other algorithms. Remove it: supervised is one")
        if goes_on and (missing := self.warm_start.unwritten()):
            keys = " and ".join(f"warm_start.{key}" for key in missing)
            raise ValueError(f"when_not_ready: warm_start needs {keys}, which have no default that suits every model")
        if not goes_on and self.warm_start != WarmStart():
            raise ValueError("warm_start has no effect here. Remove it, or set when_not_ready: warm_start")
