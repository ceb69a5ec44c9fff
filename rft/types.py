"""What lives in memory: an example, what the policy did with it, and what that was worth.

    Example --(policy x tools)--> Trajectory of Turns --(grader)--> Grade --(budget)--> reward

Everything is frozen: a trajectory is a record, not a workspace. Words as in the project's vocabulary: a *rollout* is the act,
a *trajectory* the record; a *turn* is one assistant message with the tool results that answer it; a *step* is an optimizer's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = dict[str, Any]
"""One OpenAI chat message: role, content, and for an assistant perhaps tool_calls."""


class StopReason(StrEnum):
    """Why a rollout ended."""

    completed = "completed"  # an assistant message without tool calls
    max_turns = "max_turns"
    max_tool_calls = "max_tool_calls"
    max_tokens = "max_tokens"  # a turn or the context was cut
    parse_error = "parse_error"  # a malformed tool call
    timeout = "timeout"  # the rollout's deadline, spent by the policy itself
    tool_error = "tool_error"  # infrastructure: retries spent. Never scored
    policy_error = "policy_error"  # infrastructure: the sampler failed. Never scored


INFRASTRUCTURE = frozenset({StopReason.tool_error, StopReason.policy_error})


class GradeStatus(StrEnum):
    """Whether a score can be trusted."""

    ok = "ok"
    hack = "hack"  # scored 0 on action evidence
    infra_error = "infra_error"  # unscored
    grader_error = "grader_error"  # unscored


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a dataset. `Example("n-00017", ({"role": "user", "content": "..."},), ["I10"], {"slice": "2"})`."""

    id: str
    messages: tuple[Message, ...]
    target: Any
    metadata: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The wire's `item`: the entire row of the JSONL file."""
        return {"id": self.id, "messages": list(self.messages), "target": self.target, "metadata": self.metadata}

    @property
    def slice(self) -> str:
        """The group that the gate watches apart, named by the recipe."""
        return str(self.metadata.get("slice", "all"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`ToolCall("call_0_0", "search", '{"query": "angina"}')`: arguments are a JSON string, as on the wire."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the policy sees as answer. `failed` marks infrastructure: retries spent, the rollout goes unscored."""

    call_id: str
    output: str
    is_error: bool = False  # shown to the policy: a 4xx, bad arguments, a repeated call
    failed: bool = False
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant message with its tool results. Ids and log-probabilities are the sampler's own, never re-tokenized.

    `prompt_ids` are the tokens appended before this turn was sampled (the prompt, or the previous turn's tool results),
    `token_ids` those that the policy sampled, so the whole sequence is the concatenation over turns, and the loss mask is
    False on `prompt_ids`, True on `token_ids`. A policy without tokens (scripted, chat endpoint) leaves all three empty.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """A score in [0, 1], or none. `outcome` is the grader's word on what the task itself earned, before any shaping."""

    score: float | None
    status: GradeStatus = GradeStatus.ok
    solved: bool = False
    components: dict[str, float] = field(default_factory=dict)
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one rollout. `reward` is None exactly when `grade.score` is: unscored is not zero."""

    trace_id: str
    example_id: str
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    grade: Grade
    reward: float | None
    wall_s: float = 0.0

    @property
    def num_tool_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def final_text(self) -> str:
        return self.turns[-1].text if self.turns else ""
