"""One conversation of a person with an agent and its tools.

    with rollout_runner(params, recipe) as runner:
        table = Table(runner, policy, prompt, temperature, seed)
        table.begin(example)                        -> Exchange, graded
        table.send("what is the code of angina?")   -> Exchange

Each exchange is a rollout as in a stage: same loop, same limits, same tools. The loop knows only
one opening, so each exchange opens with all messages so far. The chat template renders the earlier
turns again, without reasoning. That is good enough for a conversation, but a rollout of a stage
only appends tokens. An exchange without an answer is shown, but the conversation goes on without
it. Nothing is recorded. Only an example's first answer is graded, because no grader knows what a
person asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rft.chat.renderer import tool_message
from rft.errors import InfrastructureError, UserError
from rft.reports import PromptSettings
from rft.rollouts.loop import Conditions, Request
from rft.rollouts.policy import Policy
from rft.rollouts.runner import RolloutRunner
from rft.types import INFRASTRUCTURE, Example, Message, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Exchange:
    """A person's message and its reply. `is_kept`: the conversation goes on with it."""

    trajectory: Trajectory
    is_graded: bool
    is_kept: bool


class Table:
    """Holds the conversation. `messages`: all messages so far."""

    def __init__(
        self, runner: RolloutRunner, policy: Policy, prompt: PromptSettings, temperature: float, seed: int
    ) -> None:
        self._runner, self._policy, self._prompt = runner, policy, prompt
        self._temperature, self._seed = temperature, seed
        self._asked = 0
        self._example: Example | None = None
        self.messages: list[Message] = []

    def begin(self, example: Example) -> Exchange:
        """Begin with an example's messages, tools and answer format. The answer is graded."""
        self._example, self.messages = example, list(example.messages)
        return self._exchange(example, graded=True)

    def send(self, text: str) -> Exchange:
        """Send a text. Raises UserError when the context is full, InfrastructureError when a tool
        or the policy's server failed."""
        before = self.messages
        self.messages = [*before, {"role": "user", "content": text}]
        own = self._example
        asked = Example(
            "play", tuple(self.messages), metadata=own.metadata if own else {}, tools=own.tools if own else None,
            response_format=own.response_format if own else None,
        )  # fmt: skip
        try:
            exchange = self._exchange(asked, graded=False)
        except BaseException:
            self.messages = before
            raise
        if not exchange.is_kept:
            self.messages = before
        return exchange

    def _exchange(self, example: Example, graded: bool) -> Exchange:
        self._runner.check_rows([example])
        self._runner.check_openings(self._policy, [example], self._prompt)
        seed, limits = (self._seed, self._asked), self._runner.params.rollout
        conditions = Conditions(self._prompt, self._temperature, seed, limits, f"play/{self._asked}")
        self._asked += 1
        trajectory = self._runner.converse(self._policy, Request(example, 0), conditions, graded)
        if trajectory.stop_reason in INFRASTRUCTURE:
            what = f"{trajectory.stop_reason}: {trajectory.grade.explanation}"
            raise InfrastructureError(f"{what} It is not part of the conversation.")
        is_kept = trajectory.stop_reason == StopReason.completed
        if is_kept:
            self.messages += _told(trajectory.turns, self._asked)
        return Exchange(trajectory, graded, is_kept)


def _told(turns: Iterable[Turn], number: int) -> Iterable[Message]:
    """Yield turns as messages of a later opening. They get new call ids, because each rollout
    counts from 0."""
    for turn in turns:
        names = {call.call_id: f"said_{number}_{call.call_id}" for call in turn.calls}
        message: Message = {"role": "assistant", "content": turn.answer}
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": names[call.call_id],
                    "type": "function",
                    "function": {"name": call.name or "unknown", "arguments": call.arguments or "{}"},
                }
                for call in turn.calls
            ]
        yield message
        for call, result in zip(turn.calls, turn.results, strict=False):
            yield tool_message(call, result.output) | {"tool_call_id": names[call.call_id]}


def example_named(name: str, validation: Iterable[Example], others: Mapping[str, Iterable[Example]]) -> Example:
    """Find a validation example by its id. Raises UserError for other splits, above all for test,
    which only the challenger stage may open."""
    known = {example.id: example for example in validation}
    if name in known:
        return known[name]
    for split, examples in others.items():
        if any(example.id == name for example in examples):
            why = "what was trained on says nothing about the agent"
            if split == "test":
                why = "a look at it would be a look at the frozen test set"
            remedy = f"Name one of validation, such as {next(iter(known))}."
            raise UserError(f"--example {name} is a {split} example: {why}. {remedy}")
    remedy = f"Name one of validation, such as {', '.join(list(known)[:3])}."
    raise UserError(f"--example {name}: there is no such example. {remedy}")


__all__ = ["Exchange", "Table", "example_named"]
