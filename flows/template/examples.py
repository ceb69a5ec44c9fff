"""What the agent is asked, and the right answer. One `Example` per case: an id, the opening
messages, the target, and a slice that the gate checks separately.

Splits must not share what the agent has to generalize over. Here a stable hash of the parcel's
number chooses the split; yours might be of customers, codes or repositories. The engine refuses a
text in two splits, and such a target, too, unless `examples.disjoint_targets` is false.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

from pydantic import BaseModel, ConfigDict

from rft.recipe import Conversation, Example, Message

from .tools import city_of

TENTHS = {"train": range(7), "validation": range(7, 8), "test": range(8, 10)}


class Options(BaseModel):
    """`recipe.options` in params.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    polite_share: float = 0.3


def examples(options: Options, split: str, count: int, seed: int, block: int = 0) -> list[Example]:
    """Return the examples of a split. A block is a further test set of the same size, for when the
    looks at the first one are spent."""
    rng = random.Random(f"{split} {seed}")
    numbers = [number for number in range(1000, 10_000) if tenth(str(number)) in TENTHS[split]]
    rng.shuffle(numbers)
    return [example(options, number, rng) for number in numbers[block * count :][:count]]


def example(options: Options, number: int, rng: random.Random) -> Example:
    polite = rng.random() < options.polite_share
    question = f" please tell me where parcel {number} is ." if polite else f" where is parcel {number} ?"
    slice_ = "polite" if polite else "plain"
    return Example(
        f"parcel-{number}", ({"role": "user", "content": question},), city_of(str(number)), {"slice": slice_}
    )


def from_traffic(options: Options, conversation: Conversation) -> Example | None:
    """Make a training example of a graded production conversation; None if it cannot be one."""
    question = [message for message in conversation.messages if message["role"] == "user"][:1]
    if not question or not isinstance(conversation.feedback, str) or tenth(parcel(question)) not in TENTHS["train"]:
        return None
    return Example(
        conversation.conversation_id, tuple(question), conversation.feedback, {"slice": features(question)["manners"]}
    )


def features(messages: list[Message]) -> dict[str, Any]:
    """Return categories that the drift stage compares."""
    return {"manners": "polite" if any("please" in str(message.get("content")) for message in messages) else "plain"}


def parcel(messages: list[Message]) -> str:
    return next((word for word in str(messages[0]["content"]).split() if word.isdigit()), "")


def tenth(number: str) -> int:
    return zlib.crc32(f"split {number}".encode()) % 10


def exploit_values(options: Options, example: Example) -> dict[str, Any]:
    """Return values for the placeholders of exploits.jsonl, other than {note} and {result}."""
    return {"parcel": parcel(list(example.messages)), "other": "1000"}
