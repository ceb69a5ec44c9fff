"""Choose the dialogues that training may imitate.

They are the recipe's demonstrations, or what production did and a person confirmed.

    demonstrations    as many as asked for
    accepted          graded conversations whose last answer equals the feedback; a corrected answer
                      is not imitated
    Closed            what must not be imitated: validation and test

A dialogue is left out, and counted, when it shares with `Closed` what two splits may not share
(rft/stages/examples.py). That is an id, an input text, or, unless `examples.disjoint_targets` is
false, an element of the target. Where `examples.max_near_duplicates` is set, it is also left out if
its input nearly repeats one of theirs. Stage `examples` has all splits open and does this, so that
`train` never reads the test set.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rft import config
from rft.chat.renderer import parse_calls
from rft.recipe import Recipe
from rft.reports import Conversation
from rft.traffic import feedback, leakage
from rft.traffic.texts import input_messages, user_text
from rft.types import Example, Message, ToolCall


@dataclass(frozen=True, slots=True)
class Dialogue:
    id: str
    messages: list[Message]
    target: Any = None


def demonstrations(loaded: Recipe, count: int, seed: int) -> list[Dialogue]:
    """Ask the recipe for dialogues."""
    given = islice(loaded.demonstrations(count, seed), count)
    return [Dialogue(f"demonstration-{n}", messages) for n, messages in enumerate(given)]


def accepted(conversations: Iterable[Conversation], loaded: Recipe) -> tuple[list[Dialogue], Counter[str]]:
    """Return the conversations whose answer was confirmed, the latest last, and count the others by
    reason. Raises UserError if the recipe has no from_traffic."""
    found: list[tuple[str, str, Dialogue]] = []
    left_out: Counter[str] = Counter()
    num_graded = num_usable = 0

    def counted() -> Iterable[Conversation]:
        nonlocal num_graded
        for conversation in conversations:
            num_graded += conversation.feedback is not None
            yield conversation

    for conversation, example in feedback.usable(counted(), loaded):
        num_usable += 1
        right = _right(loaded, example)
        if why := _unfit(conversation.messages, *right) if right else "its target is not an answer":
            left_out[why] += 1
            continue
        dialogue = Dialogue(conversation.conversation_id, list(conversation.messages), example.target)
        found.append((conversation.time, conversation.conversation_id, dialogue))
    if num_graded > num_usable:
        left_out["the recipe makes no example of it"] = num_graded - num_usable
    return [dialogue for *_, dialogue in sorted(found, key=lambda row: row[:2])], left_out


def _right(loaded: Recipe, example: Example) -> tuple[str, list[ToolCall]] | None:
    """Return the right answer as a text, and its calls: none, or the call of a terminal tool.
    Return None if no answer is known."""
    texts = loaded.turns(example, example.target)
    if not texts:
        return None
    text = texts[-1]
    return text, parse_calls(text) if loaded.reaches_targets_by_calls else []


def _unfit(messages: Sequence[Message], right: str, calls: Sequence[ToolCall]) -> str:
    """Say why a graded conversation cannot be imitated; empty if it can. A conversation that ends
    with the call of a terminal tool has no result of that call."""
    last = messages[-1]
    functions = [call["function"] for call in last.get("tool_calls") or []]
    if last["role"] != "assistant" or [call["name"] for call in functions] != [call.name for call in calls]:
        return "it does not end with an answer"
    told = [(call["arguments"], wanted.arguments) for call, wanted in zip(functions, calls, strict=True)]
    if not all(_same(*pair) for pair in told or [(str(last.get("content") or ""), right)]):
        return "its answer was corrected"
    messages = messages[:-1] if calls else messages
    asked = [call.get("id") for message in messages for call in message.get("tool_calls") or []]
    given = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    return "" if asked == given else "a tool call has no result of its own"


def _same(answer: str, right: str) -> bool:
    """Compare answers as texts without the space around them, or as JSON, ignoring its spaces."""
    if answer.strip() == right.strip():
        return True
    try:
        return json.loads(answer) == json.loads(right)
    except ValueError:
        return False


class Closed:
    """Validation and test: what no training may see."""

    def __init__(
        self, examples: Iterable[Example], section: config.Examples, elements: Callable[[Any], set[str]]
    ) -> None:
        """`elements` gives the parts of a target that must not be known before."""
        self._examples, self._section, self._elements = list(examples), section, elements

    def without(self, given: Sequence[Dialogue]) -> tuple[list[Dialogue], Counter[str]]:
        """Return the dialogues that share nothing with these examples, and count the others by
        reason."""
        ids = {row.id for row in self._examples}
        texts = {_folded(row.messages) for row in self._examples}
        targets = {element for row in self._examples for element in self._elements(row.target)}
        near = self._near(given)
        kept: list[Dialogue] = []
        left_out: Counter[str] = Counter()
        for dialogue in given:
            shares = {
                "its id is in validation or test": dialogue.id in ids,
                "its input is in validation or test": _folded(dialogue.messages) in texts,
                "its target is in validation or test": self._section.disjoint_targets
                and not targets.isdisjoint(self._elements(dialogue.target)),
                "its input is nearly one of validation or test": dialogue.id in near,
            }
            if why := next((what for what, is_so in shares.items() if is_so), ""):
                left_out[why] += 1
            else:
                kept.append(dialogue)
        return kept, left_out

    def _near(self, given: Sequence[Dialogue]) -> set[str]:
        section = self._section
        if section.near_duplicate is None or section.max_near_duplicates is None:
            return set()
        known = [leakage.Text(row.id, user_text(row.messages)) for row in self._examples]
        asked = [leakage.Text(dialogue.id, _input(dialogue.messages)) for dialogue in given]
        return leakage.repeating(known, asked, section.near_duplicate, section.seed)


def _input(messages: Sequence[Message]) -> str:
    return user_text(input_messages(messages))


def _folded(messages: Sequence[Message]) -> str:
    """Fold the input's case and spaces, so that they do not hide a repetition."""
    return " ".join(_input(messages).casefold().split())


__all__ = ["Closed", "Dialogue", "accepted", "demonstrations"]
