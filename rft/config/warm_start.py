"""A warm start: how a model learns from demonstrations before any reward.

`policy.warm_start` and `train.warm_start` set it. The shape of an adapter is here too, because
`train` has it as well.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rft.config.section import Section

_WARM_UP = 20


class Lora(Section):
    """Shape of the adapter, with `weights: lora`."""

    r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    alpha: int = Field(default=32, ge=1)
    """Scale of the adapter: its update is multiplied by alpha / r."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """Modules that get an adapter: all linear layers, or those with these names."""


class WarmStart(Section):
    """How a model learns to act from the recipe's demonstrations, before any reward."""

    weights: Literal["full", "lora"] | None = None
    """Which weights are trained: all weights, or a LoRA adapter that is merged afterwards. null:
    all weights of the embedded policy, and none of a given `policy.model`. For a given model `lora`
    is the safe choice: it needs less memory and keeps more of what the model knows."""
    lora: Lora = Lora()
    demonstrations: int = Field(default=6000, ge=16)
    """Number of dialogues from the recipe's demonstrations.py."""
    steps: int = Field(
        default=900,
        ge=1,
        json_schema_extra={
            "outside": "The embedded policy that learned nothing writes noise, and every score would be 0. Leave it "
            "out for the default; a given policy.model is warm-started only with warm_start.weights."
        },
    )
    """Optimizer steps. The default suits the embedded policy. A given model needs far fewer."""
    batch: int = Field(default=16, ge=1)
    """Dialogues per step."""
    longest: int = Field(default=512, ge=16)
    """Tokens of the longest dialogue. Longer ones are left out and counted."""
    lr: float = Field(
        default=2e-3,
        gt=0,
        json_schema_extra={"outside": "Without a learning rate no weight changes. Leave it out for the default."},
    )
    """Peak learning rate. The default suits the embedded policy. For a given model try 5e-4 with
    LoRA, and 2e-5 with all weights."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from `lr` over `steps`."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps at the start over which the learning rate rises to `lr`. null: a quarter of `steps`, at
    most 20."""
    other_weight: float = Field(default=0.1, ge=0, le=1)
    """Loss weight of tokens that the policy never writes: prompts and tool results."""
    microbatch_tokens: int = Field(default=4096, ge=64)
    """Tokens in a microbatch, padding included. A smaller one takes less memory."""
    packing: bool = False
    """Whether several dialogues share a row, so that a common beginning is computed once. This pays
    where all have a long prompt in common."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Whether activations are computed again in the backward pass. train.gradient_checkpointing
    explains it."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints. A kill costs at most this many steps."""

    @property
    def num_warmup(self) -> int:
        """Steps over which the learning rate rises."""
        return min(_WARM_UP, self.steps // 4) if self.warmup_steps is None else self.warmup_steps

    @model_validator(mode="after")
    def _read(self) -> WarmStart:
        if self.lora != Lora() and self.weights != "lora":
            raise ValueError("lora has no effect here. Remove it, or set weights: lora")
        if self.num_warmup >= self.steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} must be below steps = {self.steps}. Lower it")
        return self

    def unwritten(self) -> list[str]:
        """Name the keys that no default suits for every model, and that the file does not set."""
        return [key for key in ("lr", "steps") if key not in self.model_fields_set]


SINCE_0_2 = ("lora", "schedule", "warmup_steps", "microbatch_tokens", "packing", "gradient_checkpointing")
"""Keys that version 0.1.0 did not have. For a given model it ignored the other keys."""


__all__ = ["SINCE_0_2", "Lora", "WarmStart"]
