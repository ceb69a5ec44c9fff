"""The loop: a policy, its tools over HTTP, its grader; one trajectory a request.

    prompt -> [ assistant turn -> tool calls -> tool results ]* -> answer -> grade -> reward

A batch of rollouts moves turn by turn behind one barrier: all live rows sample their turn, all their tool calls run side by side, the
results go back, again. With a fixed order of rows and a seed a rollout that makes equal inputs give equal bytes.

Limits are looked at in this order, and the first that holds names the stop reason:
  1. the turn was cut by the token limit        max_tokens        graded: the policy caused it
  2. a call that cannot be read                 parse_error       graded
  3. no calls                                   completed         graded
  4. more calls than allowed                    max_tool_calls    graded; the excess is not sent
  5. a tool failed after its retries            tool_error        never scored
  6. the last turn's results are in             max_turns         graded
  7. the results do not fit into the context    max_tokens        graded
  8. the rollout's deadline                     timeout           graded, when the time went into the policy's own sampling

A bad rollout is data: nothing here raises for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rft import budget, config
from rft.chat import ParseError, parse_calls
from rft.graders import EndpointGrader
from rft.reports import PromptSettings
from rft.tools import ToolClient
from rft.types import Example, Grade, GradeStatus, Message, StopReason, ToolCall, ToolResult, Trajectory, Turn


class Sampled(Protocol):
    """One assistant turn; a policy without tokens leaves ids and logprobs empty."""

    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def logprobs(self) -> tuple[float, ...]: ...
    @property
    def ended(self) -> bool: ...


class Session(Protocol):
    pending: list[list[int]]

    def sample(self, rows: list[int], max_new: int) -> Sequence[Sampled]: ...
    def append(self, row: int, outputs: list[str]) -> tuple[int, ...] | None: ...


class Policy(Protocol):
    def open(self, prompts: Sequence[Sequence[Message]], seeds: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Session: ...


@dataclass(frozen=True, slots=True)
class Request:
    """Roll this example out once more: its `sample`-th time."""

    example: Example
    sample: int


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for all rollouts of a batch.

    The random stream of a rollout comes from the seed alone, so that arms are paired; its trace id from `name` too, so that no two rollouts of a
    run share what a tool server may keep for one.
    """

    prompt: PromptSettings
    temperature: float
    seed: tuple[int, ...]
    limits: config.Rollout
    name: str = ""


@dataclass(slots=True)
class _Live:
    """A rollout under way."""

    request: Request
    trace_id: str
    prompt_ids: tuple[int, ...]
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason | None = None
    ended_s: float = 0.0

    @property
    def num_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)


async def run_rollouts(
    policy: Policy, client: ToolClient, grader: EndpointGrader, requests: Sequence[Request], conditions: Conditions, times: dict[str, float]
) -> list[Trajectory]:
    """One trajectory a request, in order. Adds seconds to `times`: sampling, tools, grading."""
    start = time.monotonic()
    limits, prompt = conditions.limits, conditions.prompt
    seeds = [(*conditions.seed, *_words(request.example.id), request.sample) for request in requests]
    session = policy.open([opening(request.example, prompt) for request in requests], seeds, conditions.temperature, limits.max_tokens)
    lives = [_Live(r, trace_id(conditions.name, seed), tuple(session.pending[n])) for n, (r, seed) in enumerate(zip(requests, seeds, strict=True))]
    max_turns = min(prompt.max_turns, limits.max_turns)
    for number in range(max_turns):
        rows = [n for n, live in enumerate(lives) if live.stop is None]
        if not rows:
            break
        began = time.monotonic()
        sampled = session.sample(rows, limits.max_turn_tokens)
        times["sampling"] = times.get("sampling", 0.0) + time.monotonic() - began
        calls = [_read(lives[row], one, number, limits) for row, one in zip(rows, sampled, strict=True)]
        began = time.monotonic()
        results = await asyncio.gather(*(_call_tools(client, lives[row], mine, prompt) for row, mine in zip(rows, calls, strict=True)))
        times["tools"] = times.get("tools", 0.0) + time.monotonic() - began
        for row, one, mine, answers in zip(rows, sampled, calls, results, strict=True):
            live = lives[row]
            live.turns.append(Turn(one.text, tuple(mine), tuple(answers), live.prompt_ids, one.ids, one.logprobs))
            _continue(live, session, row, answers, last=number + 1 == max_turns)
            if live.stop is None and time.monotonic() - start > limits.deadline_s:
                live.stop = StopReason.timeout
            if live.stop is not None:
                live.ended_s = time.monotonic() - start
    began = time.monotonic()
    grades = await asyncio.gather(*(_grade(grader, live) for live in lives))
    times["grading"] = times.get("grading", 0.0) + time.monotonic() - began
    return [_record(live, grade, limits.budget) for live, grade in zip(lives, grades, strict=True)]


def opening(example: Example, prompt: PromptSettings) -> list[Message]:
    """The row's messages under the prompt's instruction, which replaces the row's own system message."""
    rest = [message for message in example.messages if not (prompt.system and message["role"] in ("system", "developer"))]
    return [{"role": "system", "content": prompt.system}, *rest] if prompt.system else rest


def trace_id(name: str, seed: Sequence[int]) -> str:
    """The wire's id of a rollout, a function of its name and seed, so that a repeated run makes the same records."""
    return f"trace_{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join([name, *map(str, seed)]))}"


def messages_of(trajectory: Trajectory, example: Example, prompt: PromptSettings) -> list[Message]:
    """The whole dialogue in OpenAI's form, for logs and people."""
    from rft.chat import assistant_message

    messages = opening(example, prompt)
    for turn in trajectory.turns:
        messages.append(assistant_message(turn.text, turn.calls))
        messages += [{"role": "tool", "tool_call_id": result.call_id, "content": result.output} for result in turn.results]
    return messages


def _read(live: _Live, sampled: Sampled, number: int, limits: config.Rollout) -> list[ToolCall]:
    """The calls to make; sets the stop reason when there are none to make (limits 1 to 4)."""
    if not sampled.ended:
        live.stop = StopReason.max_tokens
        return []
    try:
        calls = parse_calls(sampled.text, number)
    except ParseError:
        live.stop = StopReason.parse_error
        return []
    if not calls:
        live.stop = StopReason.completed
    elif live.num_calls + len(calls) > limits.max_tool_calls:
        live.stop = StopReason.max_tool_calls
    return calls


async def _call_tools(client: ToolClient, live: _Live, calls: list[ToolCall], prompt: PromptSettings) -> list[ToolResult]:
    """Results in the order of calls. A repeated call is answered without being sent, when the prompt's settings say so."""
    if not calls or live.stop is not None:
        return []
    seen = {(call.name, call.arguments) for turn in live.turns for call in turn.calls} if prompt.block_repeated_calls else set()
    fresh = [call for call in calls if (call.name, call.arguments) not in seen]
    answered = await client.call_all(fresh, live.trace_id, live.request.example.row(), prompt.tool_defaults)
    by_id = {result.call_id: result for result in answered}
    repeated = " this call was made before; its result stands above"
    return [by_id.get(call.call_id) or ToolResult(call.call_id, repeated, is_error=True) for call in calls]


def _continue(live: _Live, session: Session, row: int, results: list[ToolResult], last: bool) -> None:
    """Limits 5 to 7; else the results become the next turn's prompt."""
    if live.stop is not None:
        return
    if any(result.failed for result in results):
        live.stop = StopReason.tool_error
    elif last:
        live.stop = StopReason.max_turns
    elif (ids := session.append(row, [result.output for result in results])) is None:
        live.stop = StopReason.max_tokens
    else:
        live.prompt_ids = ids


async def _grade(grader: EndpointGrader, live: _Live) -> Grade:
    if live.stop in (StopReason.tool_error, StopReason.policy_error):
        failed = next((r.output for turn in live.turns for r in turn.results if r.failed), "the policy failed")
        return Grade(None, GradeStatus.infra_error, explanation=failed)
    assert live.stop is not None
    return await grader.grade(live.request.example, live.turns, live.stop, live.trace_id)


def _record(live: _Live, grade: Grade, section: config.Budget) -> Trajectory:
    assert live.stop is not None
    reward = budget.reward(grade, live.num_calls, section)
    return Trajectory(live.trace_id, live.request.example.id, tuple(live.turns), live.stop, grade, reward, live.ended_s)


def _words(text: str) -> tuple[int, ...]:
    """A string as seed words, the same on every machine (hash() is not)."""
    value = uuid.uuid5(uuid.NAMESPACE_OID, text).int
    return tuple(value >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))


__all__ = ["Conditions", "Policy", "Request", "Session", "messages_of", "opening", "run_rollouts", "trace_id"]
