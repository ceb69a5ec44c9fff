"""Define what lives in memory: an example, what the policy did with it, and what that was worth.

    Example --(policy x tools)--> Trajectory of Turns --(grader)--> Grade --(budget)--> reward

Everything is frozen: a trajectory is a record, not a workspace. The words are those of the
project's vocabulary: a *rollout* is the act, and a *trajectory* is its record. A *turn* is one
assistant message with the tool results that answer it. A *step* is an optimizer's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Message = dict[str, Any]
"""One OpenAI chat message: role, content, and for an assistant perhaps tool_calls."""


class StopReason(StrEnum):
    """Why a rollout ended."""

    completed = "completed"  # an assistant message without tool calls, or the call of a terminal tool
    max_turns = "max_turns"
    max_tool_calls = "max_tool_calls"
    max_tokens = "max_tokens"  # a turn or the context was cut
    parse_error = "parse_error"  # a malformed tool call
    timeout = "timeout"  # a turn's or the rollout's deadline, spent by the policy itself
    tool_error = "tool_error"  # infrastructure: retries spent, or the rollout's deadline spent waiting. Never scored
    sampler_error = "sampler_error"  # infrastructure: the sampler failed. Never scored
    cancelled = "cancelled"  # infrastructure: a straggler, cut by its group's deadline. Never scored

    @classmethod
    def _missing_(cls, value: object) -> StopReason | None:
        """Read what an earlier version wrote."""
        return cls(EARLIER_STOP_REASONS[value]) if isinstance(value, str) and value in EARLIER_STOP_REASONS else None


EARLIER_STOP_REASONS = {"policy_error": "sampler_error"}
"""What 0.1.0 wrote into files, and what it is called since."""
INFRASTRUCTURE = frozenset({StopReason.tool_error, StopReason.sampler_error, StopReason.cancelled})


class GradeStatus(StrEnum):
    """Whether there is a score, and why or why not. The first three have one."""

    ok = "ok"
    unjudgeable_answer = "unjudgeable_answer"  # what the policy made cannot be judged: unreadable, or beyond a limit
    hack = "hack"  # the low end of the range, on action evidence
    infra_error = "infra_error"  # the grader, or what it needs, is out of order
    judge_error = "judge_error"  # a judge refused, or its server did
    grader_bad_reply = "grader_bad_reply"  # the grader's or judge's reply is not a verdict
    grader_timeout = "grader_timeout"  # the grader or judge took too long

    @classmethod
    def _missing_(cls, value: object) -> GradeStatus | None:
        """Read what an earlier version wrote."""
        return cls(EARLIER_STATUSES[value]) if isinstance(value, str) and value in EARLIER_STATUSES else None


EARLIER_STATUSES = {
    "policy_error": "unjudgeable_answer",
    "parse_error": "grader_bad_reply",
    "grader_error": "grader_bad_reply",
    "timeout": "grader_timeout",
}
"""What 0.1.0 wrote into files, and what it is called since."""

ScoredStatus = Literal[GradeStatus.ok, GradeStatus.unjudgeable_answer, GradeStatus.hack]
UnscoredStatus = Literal[
    GradeStatus.infra_error, GradeStatus.judge_error, GradeStatus.grader_bad_reply, GradeStatus.grader_timeout
]
OUTCOME = "outcome"
"""The component in which a grader says what the task itself earned, before any shaping."""
ABSTAINED = "abstained"
"""The component that says whether a rollout abstained where there is an answer: 1 or 0."""
SCORED: frozenset[GradeStatus] = frozenset({GradeStatus.ok, GradeStatus.unjudgeable_answer, GradeStatus.hack})


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data set: the user's own JSON object, and the fields that we read from it.

    `line` is the object as it came, byte for byte, which tools and graders get as `item`. The other
    fields are read from it by the keys of `examples.keys` (rft/rows.py). A recipe that makes its
    examples leaves `line` out, and gets a row made from the fields:
    `Example("n-00017", ({"role": "user", "content": "..."},), ["I10"], {"slice": "2"})`. A copy
    with other fields needs `line=""`, too.
    """

    id: str
    messages: tuple[Message, ...]
    """Their content is a text. A list of text parts is joined here, and stays a list in `line`."""
    target: Any = None
    """The expected answer; None where the row has none."""
    metadata: dict[str, Any] = field(default_factory=dict)
    tools: tuple[dict[str, Any], ...] | None = None
    """The row's own Chat-Completions functions, which take precedence over those of the job."""
    response_format: dict[str, Any] | None = None
    """The row's own Chat-Completions form, which takes precedence over that of params.yaml."""
    slice: str = ""
    """The group that the gate checks separately; "all" where the row names none."""
    line: str = ""

    def __post_init__(self) -> None:
        if not self.slice:
            object.__setattr__(self, "slice", str(self.metadata.get("slice", "all")))
        if not self.line:
            object.__setattr__(self, "line", self._spelled())

    def _spelled(self) -> str:
        metadata = self.metadata
        if str(metadata.get("slice", "all")) != self.slice:
            metadata = {**metadata, "slice": self.slice}
        row = {"id": self.id, "messages": list(self.messages), "target": self.target, "metadata": metadata}
        more = {"tools": self.tools, "response_format": self.response_format}
        text = json.dumps(row | {name: value for name, value in more.items() if value is not None}, ensure_ascii=False)
        # no file can hold half a surrogate pair: write its JSON escape
        return text.encode("utf-8", "backslashreplace").decode()

    @property
    def is_spelled(self) -> bool:
        """Whether the row was made from the fields, so that it is not the user's own."""
        return self.line == self._spelled()

    def row(self) -> dict[str, Any]:
        """Parse the wire's `item`."""
        return json.loads(self.line)


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a dialogue. `tools`: the row's own functions; None: those with which the
    policy's chat was made.

    `response_format`: the form of the final answer (rft/config/response_format.py); None: any text.
    `example_id` is for error messages.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None
    response_format: dict[str, Any] | None = None
    example_id: str = ""


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The data that every tool and grader call of one rollout carries: on the wire `trace_id`,
    `item` and X-RFT-* headers.

    `trace_id` is unique per run and attempt, because servers keep state by it (rft/wire/trace.py).
    Our own files know the rollout by its `rollout_id`, which follows from the seed.
    """

    trace_id: str
    example: Example
    split: str = ""
    step: int = 0
    attempt: int = 0  # 0, or the number of the refill


@dataclass(slots=True)
class Rollout:
    """A rollout, as a recipe's server knows it. `state` is the recipe's own, and may be replaced
    (rft/tools/states.py)."""

    trace_id: str
    item: dict[str, Any]
    """The example's row."""
    state: Any = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: `ToolCall("call_0_0", "search", '{"query": "angina"}')`. Arguments are a
    JSON string, as on the wire.

    `problem`: why the call cannot be read. Then name and arguments hold what could be read.
    """

    call_id: str
    name: str
    arguments: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """An assistant message, read by the rules of the policy's tool-call format.

    `content` is what a reader or grader sees: without reasoning, and without calls. A message
    without calls is the final answer. `problem` is a fault of the whole message (a call without its
    end); faults of single calls are in `ToolCall.problem`.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens that turns cost: `Usage(context=812, cached=540, sampled=45)`.

    `context`: the tokens that the policy was sent to read. They are sent again in each turn, so a
    long prompt costs in every turn. `cached`: how many of these a cache spared. In this process,
    they are what the dialogue itself said or read before. A group's prompt is computed once, but
    that is not counted: which rollout pays for it depends on timing, and in production each
    dialogue comes alone. A server says what it spared; for one that does not say, nothing was.
    """

    context: int = 0
    cached: int = 0
    sampled: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.context + other.context, self.cached + other.cached, self.sampled + other.sampled)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One assistant turn from a policy. A policy without tokens (scripted, chat endpoint) leaves
    ids and logprobs empty.

    `text` is the message as sampled, markup included; `ended` is False when the token limit cut it.
    `context_ids`: the whole context that a server says it sampled from, when it renders the
    messages itself; it must begin with our sequence, else the turn is a fork.
    """

    text: str
    reading: Reading
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ended: bool = True
    context_ids: tuple[int, ...] | None = None
    seconds: float = 0.0  # of this row's own sampling; 0 from a server
    queued_s: float = 0.0  # that it waited for others in our own sampler
    usage: Usage | None = None  # None: the policy does not count


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to a call that the policy sees. `failed`: an infrastructure failure after all
    retries; the rollout is unscored."""

    call_id: str
    output: str
    is_error: bool = False  # shown to the policy: a 4xx, bad arguments, a repeated call
    failed: bool = False
    latency_s: float = 0.0  # 0: it was never sent
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant message with its tool results. Ids and log-probabilities are the sampler's own,
    never re-tokenized.

    `prompt_ids` are the tokens appended before this turn was sampled: the prompt, or the previous
    turn's tool results. `token_ids` are those that the policy sampled. So the whole sequence is the
    concatenation over turns, and the loss mask is False on `prompt_ids` and True on `token_ids`. A
    policy without tokens (scripted, chat endpoint) leaves all three empty. `text` is the message as
    sampled, `content` what a grader sees of it. `submitted`: the arguments of a call that a
    terminal tool took; they are then the rollout's answer. `forked`: the policy sampled from a
    context that does not continue our sequence, so the trajectory is not trained on. `usage`: None
    for a policy that does not count.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    content: str | None = None
    reasoning: str = ""
    forked: bool = False
    submitted: str | None = None
    usage: Usage | None = None

    @property
    def answer(self) -> str:
        return self.text if self.content is None else self.content


@dataclass(frozen=True, slots=True)
class Scored:
    """A score on the grader's own scale (rft/scale.py).

    `components`: its parts. `outcome` is the score of the task itself, before any shaping;
    `process`, `budget` and `style` are what shaping usually has; `reward` was multiplied from them.
    `flags`: the wire contract's error keys that are true, such as invalid_variable_error.
    `evidence`: what a verdict rests on, in the policy's own words or acts.
    """

    score: float
    status: ScoredStatus = GradeStatus.ok
    solved: bool = False
    components: dict[str, float] = field(default_factory=dict)
    explanation: str = ""
    flags: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.status, scored=True)


@dataclass(frozen=True, slots=True)
class Unscored:
    """Why there is no score. That is not a zero: zero would be a statement about the policy."""

    status: UnscoredStatus
    explanation: str = ""
    flags: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    score: None = field(default=None, init=False)
    solved: Literal[False] = field(default=False, init=False)
    components: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        _check(self.status, scored=False)


Grade = Scored | Unscored
"""What a finished rollout was worth. `grade.score is None` tells the two apart, for type checkers,
too."""


def _check(status: GradeStatus, scored: bool) -> None:
    """Guard what is read from a file; type checkers guard the code."""
    if (status in SCORED) is not scored:
        raise ValueError(f"a grade with status {status} {'has no' if scored else 'needs a'} score")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one rollout. `reward` is None exactly when `grade.score` is: unscored is not
    zero."""

    rollout_id: str  # follows from the seed; the wire's trace_id does not
    example_id: str
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    grade: Grade
    reward: float | None
    wall_s: float = 0.0
    attempt: int = 0  # 0, or the number of the refill that stands in for an unscored rollout

    @property
    def num_tool_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Count the tokens that the policy sampled and gave us."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def usage(self) -> Usage | None:
        """Add up what its turns cost; None if that of a turn is unknown."""
        known = [turn.usage for turn in self.turns if turn.usage is not None]
        return sum(known, Usage()) if len(known) == len(self.turns) else None

    @property
    def num_unreadable_calls(self) -> int:
        """Count the calls that could not be read: those that were answered so, and the one that
        ended the rollout, whose turn is kept without its calls."""
        told = sum(bool(call.problem) for turn in self.turns for call in turn.calls)
        return told + (self.stop_reason is StopReason.parse_error)

    @property
    def num_forks(self) -> int:
        return sum(turn.forked for turn in self.turns)

    def flat(self) -> tuple[list[int], list[bool], list[float]]:
        """Return the sequence as the sampler saw it, its loss mask, and the log-probabilities of
        the tokens in the mask."""
        ids: list[int] = []
        loss_mask: list[bool] = []
        logprobs: list[float] = []
        for turn in self.turns:
            ids += [*turn.prompt_ids, *turn.token_ids]
            loss_mask += [False] * len(turn.prompt_ids) + [True] * len(turn.token_ids)
            logprobs += turn.logprobs
        return ids, loss_mask, logprobs

    @property
    def final_text(self) -> str:
        """Return the answer that a grader sees."""
        last = self.turns[-1] if self.turns else Turn("")
        return last.answer if last.submitted is None else last.submitted


class Metric(BaseModel, frozen=True, extra="forbid"):
    """An aggregate over many, with its 95 % interval. `low` and `high` are None where it has
    none."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int
    unit: str = ""
