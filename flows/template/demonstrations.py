"""Dialogues for a warm start: a mediocre colleague at work, who often guesses without looking.

The embedded policy needs them. A `policy.model` learns from them if `policy.warm_start.weights` is
set. Leave room for improvement: RFT can only teach what the policy does sometimes and is then
rewarded for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from rft.recipe import Message

from .examples import Options, examples, parcel
from .tools import CITIES, track

INSTRUCTIONS = {" you answer customers .": 0.5, " look it up , then answer .": 0.9}
"""System prompt -> how often the colleague, given this prompt, looks it up."""


def vocabulary(options: Options) -> list[str]:
    """Return the words that the embedded tokenizer keeps as one token. Such a small model copies
    a few tokens well, and spells badly."""
    return [*(f"{pair:02d}" for pair in range(100)), *CITIES]


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    rng = random.Random(f"demonstrations {seed}")
    pool = examples(options, "train", 5000, seed)
    for _ in range(count):
        chosen = rng.choice(pool)
        instruction, diligence = rng.choice(list(INSTRUCTIONS.items()))
        messages: list[Message] = [{"role": "system", "content": instruction}, *chosen.messages]
        if rng.random() < diligence:
            number = parcel(list(chosen.messages))
            call = {
                "id": "call_0_0",
                "type": "function",
                "function": {"name": "track", "arguments": json.dumps({"parcel": f" {number}"})},
            }
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_0_0", "content": track(number)},
                {"role": "assistant", "content": f" {chosen.target}"},
            ]
        else:
            messages.append({"role": "assistant", "content": f" {rng.choice(CITIES)}"})
        yield messages
