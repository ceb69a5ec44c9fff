"""Choose the graded conversations that become training examples, and count the others.

A recipe makes training examples from graded conversations where it can (`from_traffic`). The others
are counted and shown. Feedback whose type differs from the recipe's targets is a mistake in the log
or in the recipe, which nobody would see otherwise. Conversations are read one by one, so a window
may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rft.config import Params
from rft.recipe import Recipe
from rft.reports import Conversation
from rft.types import Example

NUM_EXAMPLES = 50
"""Examples of the recipe whose targets show the expected type of feedback."""


def usable(conversations: Iterable[Conversation], loaded: Recipe) -> Iterator[tuple[Conversation, Example]]:
    """Make training examples from the graded conversations that the recipe can use. Raises
    UserError if the recipe has no from_traffic."""
    for conversation in conversations:
        if conversation.feedback is not None and (example := loaded.from_traffic(conversation)) is not None:
            yield conversation, example


@dataclass(frozen=True, slots=True)
class Survey:
    """How many graded conversations of a window can become examples.

    `first` is the first conversation that cannot be used. If the feedback of some has another type
    than the recipe's targets, it is the first of these.
    """

    num_graded: int = 0
    num_usable: int = 0
    num_of_other_kind: int = 0
    first: Conversation | None = None
    kinds: tuple[str, ...] = ()
    """Types of the targets, in words."""

    @property
    def num_refused(self) -> int:
        return self.num_graded - self.num_usable

    @property
    def is_strange(self) -> bool:
        """Whether feedback has another type, or no conversation can be used: a mistake, not a
        choice."""
        return bool(self.num_of_other_kind) or 0 < self.num_refused == self.num_graded

    def describe(self, where: Callable[[Conversation], str]) -> str:
        """Say how many cannot be used, which is the first, and why; empty when there are none."""
        if self.first is None:
            return ""
        if self.num_of_other_kind:
            count = self.num_of_other_kind
            kinds = " or ".join(self.kinds)
            why = f"the feedback is {_kind(self.first.feedback)}, and the recipe's targets are {kinds}"
        else:
            count, why = self.num_refused, "from_traffic in the recipe's examples.py made nothing of it"
        what = f"{count} of {self.num_graded} graded conversations cannot become examples"
        return f"{what}; the first: {where(self.first)}: {why}"


def survey(conversations: Iterable[Conversation], loaded: Recipe, params: Params) -> Survey:
    """Look at every graded conversation. Raises UserError if the recipe has no from_traffic."""
    num_graded = num_usable = num_other = 0
    kinds: set[str] | None = None
    first: dict[bool, Conversation] = {}  # whether its type is another -> the first one
    for conversation in conversations:
        if conversation.feedback is None:
            continue
        num_graded += 1
        if loaded.from_traffic(conversation) is not None:
            num_usable += 1
            continue
        kinds = _target_kinds(loaded, params) if kinds is None else kinds
        is_other = bool(kinds) and _kind(conversation.feedback) not in kinds
        num_other += is_other
        first.setdefault(is_other, conversation)
    shown = first.get(True) or first.get(False)
    return Survey(num_graded, num_usable, num_other, shown, tuple(sorted(kinds or ())))


def _target_kinds(loaded: Recipe, params: Params) -> set[str]:
    some = loaded.examples("train", min(NUM_EXAMPLES, params.examples.train), params.examples.seed)
    return {_kind(example.target) for example in some if example.target is not None}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    names = {int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
