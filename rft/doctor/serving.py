"""The policy's server, where one samples for us: it serves that model, every example's opening fits
into its context, and one short turn on the first example comes back in the form that a run needs.
"""

from __future__ import annotations

import asyncio
import time

from rft.chat.dialogue import opening_of
from rft.doctor.finding import Finding, ok
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError
from rft.rollouts.policy import PolicyFailed

PATIENCE_S = 60.0
MAX_NEW = 8


def look(setup: Setup) -> Finding:
    if setup.params.policy.server is None:
        return ok("no server: the policy is sampled in the stage's own process")
    try:
        return asyncio.run(_one_turn(setup))
    except PolicyFailed as failure:
        raise InfrastructureError(
            f"{failure}. Is that server up, and fast enough for a turn of {MAX_NEW} tokens in {PATIENCE_S:g} s?"
        ) from None


async def _one_turn(setup: Setup) -> Finding:
    from rft.sampling.remote import TokenPolicy, policy_for

    params, section = setup.params, setup.params.policy.server
    assert section is not None
    row = setup.rows["train"][0]
    patient = section.model_copy(update={"retries": 0, "timeout_s": min(section.timeout_s, PATIENCE_S)})
    async with policy_for(patient, setup.schemas, setup.chat) as policy:
        if isinstance(policy, TokenPolicy):
            await policy.check(params.rollout.max_tokens, params.train.temperature)
        else:
            await policy.ask_limit(params.rollout.max_tokens)
        openings = [
            opening_of(each, setup.recipe.prompts.seed, params.rollout) for rows in setup.rows.values() for each in rows
        ]
        await policy.check_openings(openings, params.rollout.max_tokens)
        first = opening_of(row, setup.recipe.prompts.seed, params.rollout)
        (dialogue,) = policy.open([first], [(params.train.seed,)], params.train.temperature, params.rollout.max_tokens)
        began = time.monotonic()
        sampled = await dialogue.sample(MAX_NEW, PATIENCE_S)
        seconds = time.monotonic() - began
    tokens = f"{len(sampled.ids)} tokens with log-probabilities" if sampled.ids else "text"
    return ok(
        f"{section.kind} {section.model}: a turn of {tokens} in {seconds:.1f} s",
        turn_s=round(seconds, 3),
        tokens=len(sampled.ids),
    )
