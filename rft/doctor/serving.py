"""Check the policy's server, if one samples for us.

It serves the right model, and every example's opening fits into its context. One short turn on the
first example comes back in the form that a run needs. A server with token routes gets two more
tests:

    a burst     turns at once, each with its own seed, as a batch of rollouts sends them. Some
                builds answer a single turn but die of a burst (vLLM's CPU build with chunked
                prefill)
    an adapter  if the run sends adapters: a LoRA of the run's rank that changes nothing. A server
                without LoRA, or for a lower rank, would refuse the adapter of the first step
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft import files
from rft.chat.dialogue import opening_of
from rft.doctor.finding import Finding, ok
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError
from rft.rollouts.policy import PolicyFailed
from rft.types import Opening

if TYPE_CHECKING:
    from rft import config
    from rft.sampling.remote import TokenPolicy

PATIENCE_S = 60.0
MAX_NEW = 8
LARGEST_BURST = 32
ADAPTER = "agent-rft-doctor"


def check(setup: Setup) -> Finding:
    if setup.params.policy.server is None:
        return ok("no server: the policy is sampled in the stage's own process")
    try:
        return asyncio.run(_check(setup))
    except PolicyFailed as failure:
        raise InfrastructureError(
            f"{failure}. Is that server up, and fast enough for a turn of {MAX_NEW} tokens in {PATIENCE_S:g} s?"
        ) from None


async def _check(setup: Setup) -> Finding:
    from rft.sampling.remote import TokenPolicy, policy_for

    params, section = setup.params, setup.params.policy.server
    assert section is not None
    patient = section.model_copy(update={"retries": 0, "timeout_s": min(section.timeout_s, PATIENCE_S)})
    async with policy_for(patient, setup.schemas, setup.chat) as policy:
        if isinstance(policy, TokenPolicy):
            await policy.check(params.rollout.max_tokens, params.train.temperature)
        else:
            await policy.fetch_context_limit(params.rollout.max_tokens)
        openings = [
            opening_of(each, setup.recipe.prompts.seed, params.rollout) for rows in setup.rows.values() for each in rows
        ]
        await policy.check_openings(openings, params.rollout.max_tokens)
        began = time.monotonic()
        sampled = (await _turns(policy, params, openings[:1]))[0]
        seconds = time.monotonic() - began
        description, facts = "", {}
        if isinstance(policy, TokenPolicy):
            burst = await _burst(policy, params, openings)
            description, facts = f", {burst} at once", {"burst": burst}
            if params.train.weights == "lora":
                await _adapter(policy, setup)
                description += f", an adapter of rank {params.train.lora.r}"
    tokens = f"{len(sampled.ids)} tokens with log-probabilities" if sampled.ids else "text"
    return ok(
        f"{section.kind} {section.model}: a turn of {tokens} in {seconds:.1f} s{description}",
        turn_s=round(seconds, 3),
        tokens=len(sampled.ids),
        **facts,
    )


async def _turns(policy: Any, params: config.Params, openings: list[Opening]) -> list[Any]:
    """Sample one short turn per opening, all at once, each with its own seed. Raises PolicyFailed
    if one fails."""
    seeds = [(params.train.seed, number) for number in range(len(openings))]
    dialogues = policy.open(openings, seeds, params.train.temperature, params.rollout.max_tokens)
    turns = await asyncio.gather(
        *(dialogue.sample(MAX_NEW, PATIENCE_S) for dialogue in dialogues), return_exceptions=True
    )
    for turn in turns:
        if isinstance(turn, BaseException):
            raise turn
    return list(turns)


async def _burst(policy: TokenPolicy, params: config.Params, openings: list[Opening]) -> int:
    """Sample many turns at once, and return their number. Raises InfrastructureError if the server
    died of them."""
    assert params.policy.server is not None
    size = min(LARGEST_BURST, params.rollout.batch, params.policy.server.concurrency)
    several = [openings[number % len(openings)] for number in range(size)]
    try:
        await _turns(policy, params, several)
    except PolicyFailed as failure:
        if await policy.is_up():
            raise
        raise InfrastructureError(
            f"the server took one turn, and died of {size} at once, each with its own seed: {failure}. Start it again "
            "with other settings and see its log. vLLM's CPU build needs --no-enable-chunked-prefill: a seed per "
            "request and chunked prefill kill its engine."
        ) from None
    return size


async def _adapter(policy: TokenPolicy, setup: Setup) -> None:
    """Load an adapter that changes nothing into the server, and unload it. Raises
    InfrastructureError naming the flags that the server lacks."""
    place = files.state()  # training writes its adapters here, so the server must see this path
    is_new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="doctor-adapter-", dir=place))
    try:
        _write_adapter(setup, folder / "adapter")
        await policy.update(folder / "adapter", 0, ADAPTER)
        await policy.unload_adapter()
    finally:
        shutil.rmtree(folder)
        if is_new:
            place.rmdir()


def _write_adapter(setup: Setup, folder: Path) -> None:
    """Write an adapter of the shape that training begins with, from the model's shape alone. All
    its matrices are zero."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from rft.models import weights

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(setup.model_config())
        learner = weights.trainable(network, setup.params.train)
    folder.mkdir()
    learner.peft_config["default"].save_pretrained(str(folder))
    state = get_peft_model_state_dict(learner)
    zeros = {name: torch.zeros(tensor.shape, dtype=torch.float32) for name, tensor in state.items()}
    save_file(zeros, folder / "adapter_model.safetensors", metadata={"format": "pt"})
