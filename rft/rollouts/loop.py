"""The loop of a policy with its tools and its grader; it makes one trajectory per request.

    prompt -> [ assistant turn -> tool calls -> tool results ]* -> answer -> grade -> reward

`_play` is that loop for one rollout. The rollouts of a batch run side by side. An in-process policy
holds them at a barrier in each turn (rft/sampling/batching.py). With a fixed order of rows and a
seed per rollout, equal inputs give equal bytes.

Limits are checked in this order, and the first that applies is the stop reason:
  1. the policy's server gave no turn           sampler_error   never scored
  2. the turn's own sampling passed a deadline  timeout         graded: the policy caused it
  3. the turn was cut by the token limit        max_tokens      graded
  4. the message cannot be read                 parse_error     graded
  5. no calls                                   completed       graded
  6. more calls than allowed                    max_tool_calls  graded; no call is sent
  7. a terminal tool took a call                completed       graded; its arguments answer
  8. a tool failed after its retries            tool_error      never scored
  9. the last turn's results are in             max_turns       graded
 10. the results do not fit into the context,   max_tokens      graded
     nor does a message that says so
An unreadable call alone does not end a rollout. Its result tells the policy what is wrong with it,
up to rollout.max_unreadable_calls times. One more such call is a parse_error.

Two deadlines may end a rollout at any point. The rollout's own deadline gives timeout (graded) if
at least half of the time was the policy's own sampling, else tool_error (never scored). The
deadline of its batch gives cancelled (never scored).

A rollout's clock runs while the policy samples, and while it waits for tools and servers. The clock
stands still while our own sampler serves others (Sampled.queued_s: the barrier, a slot, other rows'
tokens). Only the batch's deadline limits that time, so a busy sampler ends nobody's rollout. An
endless turn is cut when the policy's own time is up, also behind the barrier, and its text so far
is kept: the dialogue holds that deadline (rft/sampling/engine.py). We do not know how a server
spends its time. So none of it counts as sampling, and a server that misses its deadline is a
sampler_error.

A terminal tool (tools.traits, tools.endpoints) is called like any other, beside the turn's other
calls. If it refuses the call, the policy is told so and the rollout goes on. The turn's first
terminal call that was not refused is the answer; if its tool failed, there is no answer. The answer
was written before any result was known, so a failure of the turn's other calls does not change it.

A bad rollout is data: nothing here raises for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rft import config
from rft.chat.dialogue import opening_of
from rft.grading import budget
from rft.grading.grader import Grader
from rft.reports import PromptSettings
from rft.rollouts.garbage import seldom_collected
from rft.rollouts.policy import Dialogue, Policy, PolicyFailed, ReadsAhead
from rft.rollouts.prompting import num_turns
from rft.tools.client import ToolClient
from rft.types import (
    INFRASTRUCTURE,
    Example,
    Grade,
    GradeStatus,
    RolloutContext,
    Sampled,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Unscored,
)
from rft.wire.trace import Traces, rollout_id

NO_ROOM = "Error: the reply is longer than what is left of the context. Ask for less."


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for the `sample`-th rollout of an example. `attempt` >= 1 replaces an unscored one."""

    example: Example
    sample: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that all rollouts of a batch share.

    A rollout's random stream comes from the seed alone, so that arms are paired. Its rollout id
    comes from `name` too, so that it is unique within a run.
    """

    prompt: PromptSettings
    temperature: float
    seed: tuple[int, ...]
    limits: config.Rollout
    name: str = ""
    split: str = ""
    step: int = 0
    traces: Traces = field(default_factory=Traces)
    """Names the rollouts on the wire."""


@dataclass(slots=True)
class _Live:
    """A rollout under way."""

    request: Request
    rollout_id: str
    context: RolloutContext
    dialogue: Dialogue
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason | None = None
    why: str = ""
    unanswered: tuple[Sampled, tuple[int, ...], float] | None = None
    """The turn whose tool calls are under way, the tokens before it, and the start of its calls."""
    arrived: dict[str, ToolResult] = field(default_factory=dict)
    """The results of that turn so far, by call id."""
    grade: Grade | None = None
    began: float = 0.0
    sampling_s: float = 0.0
    queued_s: float = 0.0
    ended_s: float = 0.0
    record: Trajectory | None = None
    """Made when the rollout has its grade."""

    @property
    def num_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def spent_s(self) -> float:
        """Seconds of the rollout's deadline that are used up."""
        return time.monotonic() - self.began - self.queued_s

    def end(self, reason: StopReason, why: str = "") -> None:
        self.stop, self.why = reason, why

    def end_overdue(self, deadline_s: float) -> None:
        own = self.sampling_s >= self.spent_s / 2
        self.end(StopReason.timeout if own else StopReason.tool_error, f"rollout.deadline_s = {deadline_s:g} s passed")


Ended = Callable[[Request, Trajectory], None]
"""Called once per rollout, when it has its grade."""
OnProgress = Callable[[int, bool], None]
"""Called with the number of tokens of each turn, and with True when a rollout was played."""


@seldom_collected()
async def run_rollouts(
    policy: Policy,
    client: ToolClient,
    grader: Grader,
    requests: Sequence[Request],
    conditions: Conditions,
    times: dict[str, float],
    ended: Ended = lambda request, trajectory: None,
    on_progress: OnProgress = lambda tokens, played: None,
) -> list[Trajectory]:
    """Return one trajectory per request, in order. Adds sampling, tools and grading to `times`.

    Behind the barrier, `ended` is called for all rollouts at the end of the batch.
    """
    num_turns(conditions.prompt, conditions.limits)
    start = time.monotonic()
    lives = _open(policy, requests, conditions)

    def close(live: _Live) -> Trajectory:
        if live.record is None:
            live.record = _record(live, conditions.limits.budget, grader.scale.low)
            ended(live.request, live.record)
        return live.record

    async def play_and_grade(live: _Live) -> None:
        await _play_in_time(live, client, conditions, start, on_progress)
        on_progress(0, True)
        await _grade(grader, client, live, conditions.limits)
        if not policy.blocks:
            close(live)

    await _within(conditions.limits.group_deadline_s, [play_and_grade(live) for live in lives])
    played = time.monotonic() - start
    stragglers = [live for live in lives if live.stop is None]
    for live in stragglers:
        live.dialogue.close()
        live.end(StopReason.cancelled, f"cut by rollout.group_deadline_s = {conditions.limits.group_deadline_s:g} s")
        _keep_unanswered(live, client)
        live.ended_s = played
    await asyncio.gather(*(client.end(live.context, StopReason.cancelled) for live in stragglers))
    ungraded = [live for live in lives if live.grade is None]
    await asyncio.gather(*(_grade(grader, client, live, conditions.limits) for live in ungraded))
    trajectories = [close(live) for live in lives]
    # time spent waiting for tools, or for the policy's server
    waited = max((live.ended_s - live.sampling_s - live.queued_s for live in lives), default=0.0)
    sampling = max((live.ended_s for live in lives), default=0.0) - waited
    spent = {"sampling": sampling, "tools": played - sampling, "grading": time.monotonic() - start - played}
    for name, seconds in spent.items():
        times[name] = times.get(name, 0.0) + seconds
    return trajectories


async def _play_in_time(
    live: _Live, client: ToolClient, conditions: Conditions, start: float, on_progress: OnProgress
) -> None:
    """Run `_play` within the rollout's deadline, with optional start and end lifecycle calls."""
    limits = conditions.limits
    live.began = time.monotonic()
    try:
        async with asyncio.timeout(limits.deadline_s):
            failure = await client.start(live.context)
        if failure is not None:
            live.end(StopReason.tool_error, failure)
        else:
            await _play(live, client, conditions, on_progress)
    except TimeoutError:
        live.end_overdue(limits.deadline_s)
        _keep_unanswered(live, client)
    except PolicyFailed as failure:
        passed = f"; rollout.deadline_s = {limits.deadline_s:g} s passed" if live.spent_s >= limits.deadline_s else ""
        live.end(StopReason.sampler_error, f"{failure}{passed}")
    assert live.stop is not None
    live.dialogue.close()  # first, because the end call must not delay the other rows' next turn
    live.ended_s = time.monotonic() - start
    await client.end(live.context, live.stop)


async def _play(live: _Live, client: ToolClient, conditions: Conditions, on_progress: OnProgress) -> None:
    limits, prompt = conditions.limits, conditions.prompt
    last = num_turns(prompt, limits) - 1
    added = live.dialogue.prompt_ids
    for number in range(last + 1):
        if (left_s := limits.deadline_s - live.spent_s) <= 0:
            raise TimeoutError
        sampled = await live.dialogue.sample(limits.max_turn_tokens, min(limits.turn_deadline_s, left_s))
        live.sampling_s += sampled.seconds
        live.queued_s += sampled.queued_s
        on_progress(len(sampled.ids), False)
        _stop_before_calls(live, sampled, limits, left_s)
        calls = sampled.reading.calls
        live.unanswered, live.arrived = (sampled, added, time.monotonic()), {}
        results: tuple[ToolResult, ...] = ()
        if live.stop is None:
            results = await _call_tools(client, live, calls, prompt, limits.deadline_s - live.spent_s)
        live.unanswered = None
        live.turns.append(_turn(sampled, results, added, live))
        if live.stop is None:
            _end_by_terminal_tool(live, client)
        if live.stop is None and isinstance(live.dialogue, ReadsAhead):
            await live.dialogue.read_ahead(calls, results)
        if live.stop is None:
            added = _continue(live, calls, results, last=number == last)
        if live.stop is not None:
            return


def _end_by_terminal_tool(live: _Live, client: ToolClient) -> None:
    """Check limit 7. The call's arguments are then the answer that the grader sees."""
    turn = live.turns[-1]
    call = client.terminal_answer(turn)
    if call is None:
        return
    result = next(result for result in turn.results if result.call_id == call.call_id)
    if result.failed:
        why = result.output.removeprefix(f"tool {call.name} failed: ")
        live.end(StopReason.tool_error, f"the terminal tool {call.name} failed: {why}")
    else:
        live.turns[-1] = replace(turn, submitted=call.arguments)
        live.end(StopReason.completed)


def _continue(live: _Live, calls: Sequence[ToolCall], results: Sequence[ToolResult], last: bool) -> tuple[int, ...]:
    """Check limits 8 to 10; return the tokens that the results become."""
    if failed := [result.output for result in results if result.failed]:
        live.end(StopReason.tool_error, failed[0])
    elif last:
        live.end(StopReason.max_turns)
    elif (added := _append(live, calls, results)) is None:
        live.end(StopReason.max_tokens)
    else:
        return added
    return ()


def _append(live: _Live, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
    """Append the results. If they do not fit into the rest of the context, a message that says so
    replaces the longest. The rollout goes on, because the policy did not choose a reply's size."""
    told = list(results)
    while (added := live.dialogue.append(calls, [*told])) is None:
        longest = max(range(len(told)), key=lambda n: len(told[n].output), default=None)
        if longest is None or len(told[longest].output) <= len(NO_ROOM):
            return None
        told[longest] = replace(told[longest], output=NO_ROOM, is_error=True)
    live.turns[-1] = replace(live.turns[-1], results=tuple(told))
    return added


def _stop_before_calls(live: _Live, sampled: Sampled, limits: config.Rollout, left_s: float) -> None:
    """Check limits 2 to 6. `left_s`: the time that the rollout's deadline left before the turn."""
    reading = sampled.reading
    if sampled.seconds >= limits.turn_deadline_s:
        why = f"a turn took {sampled.seconds:.1f} s; rollout.turn_deadline_s is {limits.turn_deadline_s:g}"
        live.end(StopReason.timeout, why)
    elif sampled.seconds >= left_s or live.spent_s >= limits.deadline_s:
        live.end_overdue(limits.deadline_s)
    elif not sampled.ended:
        live.end(StopReason.max_tokens)
    elif broken := reading.problem or _one_too_many(live, reading.calls, limits.max_unreadable_calls):
        live.end(StopReason.parse_error, broken)
    elif not reading.calls:
        live.end(StopReason.completed)
    elif live.num_calls + len(reading.calls) > limits.max_tool_calls:
        live.end(StopReason.max_tool_calls)


def _one_too_many(live: _Live, calls: Sequence[ToolCall], allowed: int) -> str:
    """Say what is wrong with the first unreadable call beyond the allowed ones; empty if there is
    none."""
    before = sum(bool(call.problem) for turn in live.turns for call in turn.calls)
    problems = [call.problem for call in calls if call.problem]
    return problems[allowed - before] if before + len(problems) > allowed else ""


def _turn(sampled: Sampled, results: Sequence[ToolResult], added: tuple[int, ...], live: _Live) -> Turn:
    """Make the record of a turn. A context that does not continue our sequence exactly is a fork:
    its tokens replace the prompt tokens that we would have given."""
    reading, before = sampled.reading, live.turns
    calls = () if live.stop is StopReason.parse_error else reading.calls
    forked = False
    if sampled.context_ids is not None:
        ours = tuple(token for turn in before for token in (*turn.prompt_ids, *turn.token_ids))
        expected = (*ours, *added)
        forked = sampled.context_ids[: len(expected)] != expected
        added = sampled.context_ids if forked else sampled.context_ids[len(ours) :]
    return Turn(
        text=sampled.text,
        calls=calls,
        results=tuple(results),
        prompt_ids=added,
        token_ids=sampled.ids,
        logprobs=sampled.logprobs,
        content=reading.content,
        reasoning=reading.reasoning,
        forked=forked,
        usage=sampled.usage,
    )


def _keep_unanswered(live: _Live, client: ToolClient) -> None:
    """Record the turn whose tools were cut off by a deadline: the log and the alarm must see which
    calls hung. An answer that a terminal tool accepted stays, whatever other calls hung."""
    if live.unanswered is None:
        return
    sampled, added, since = live.unanswered
    waited = time.monotonic() - since
    hung = {
        call.call_id: ToolResult(call.call_id, f"no reply: {live.why}", failed=True, latency_s=waited)
        for call in sampled.reading.calls
    }
    results = [live.arrived.get(call.call_id, hung[call.call_id]) for call in sampled.reading.calls]
    live.turns.append(_turn(sampled, results, added, live))
    call = client.terminal_answer(live.turns[-1])
    if call is not None and (call.call_id in live.arrived or live.stop in INFRASTRUCTURE):
        _end_by_terminal_tool(live, client)


async def _call_tools(
    client: ToolClient, live: _Live, calls: Sequence[ToolCall], prompt: PromptSettings, deadline_s: float
) -> tuple[ToolResult, ...]:
    """Return results in the order of calls; raises TimeoutError after `deadline_s`.

    Two kinds of calls are answered here and not sent: calls that cannot be read and, if the
    prompt's settings say so, calls that were made before.
    """
    seen: set[tuple[str, str]] = set()
    if prompt.block_repeated_calls:
        seen = {(call.name, call.arguments) for turn in live.turns for call in turn.calls}
    answers: dict[str, ToolResult] = {}
    for call in calls:
        if call.problem:
            answers[call.call_id] = ToolResult(call.call_id, f"Error: {call.problem}", is_error=True)
        elif (call.name, call.arguments) in seen:
            repeated = " this call was made before; its result stands above"
            answers[call.call_id] = ToolResult(call.call_id, repeated, is_error=True)
    fresh = [call for call in calls if call.call_id not in answers]
    live.arrived = answers

    def arrived(result: ToolResult) -> None:
        answers[result.call_id] = result

    async with asyncio.timeout(deadline_s):
        await client.call_all(fresh, live.context, prompt.tool_defaults, arrived)
    return tuple(answers[call.call_id] for call in calls)


async def _grade(grader: Grader, client: ToolClient, live: _Live, limits: config.Rollout) -> None:
    """Grade, and release what the tools' server keeps for the rollout."""
    assert live.stop is not None
    if live.stop in INFRASTRUCTURE:
        live.grade = Unscored(GradeStatus.infra_error, live.why or "the policy failed")
    else:
        try:
            async with asyncio.timeout(limits.grader_deadline_s):
                live.grade = await grader.grade(live.request.example, live.turns, live.stop, live.context)
        except TimeoutError:
            why = f"grader: no grade within rollout.grader_deadline_s = {limits.grader_deadline_s:g} s"
            live.grade = Unscored(GradeStatus.grader_timeout, why)
    await client.release(live.context)


async def _within(deadline_s: float, rollouts: Sequence[object]) -> None:
    """Run all rollouts until the deadline, then cancel the rest. An exception in one of them stops
    the batch."""
    tasks = [asyncio.ensure_future(rollout) for rollout in rollouts]  # type: ignore[arg-type]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _open(policy: Policy, requests: Sequence[Request], conditions: Conditions) -> list[_Live]:
    seeds = [
        (*conditions.seed, *_words(asked.example.id), asked.sample, *([asked.attempt] if asked.attempt else []))
        for asked in requests
    ]
    openings = [opening_of(request.example, conditions.prompt, conditions.limits) for request in requests]
    dialogues = policy.open(openings, seeds, conditions.temperature, conditions.limits.max_tokens)
    lives: list[_Live] = []
    for request, seed, dialogue in zip(requests, seeds, dialogues, strict=True):
        name = rollout_id(conditions.name, seed)
        trace = conditions.traces.trace_id(name, request.attempt)
        context = RolloutContext(trace, request.example, conditions.split, conditions.step, request.attempt)
        lives.append(_Live(request, name, context, dialogue))
    return lives


def _record(live: _Live, section: config.Budget, lowest: float) -> Trajectory:
    assert live.stop is not None
    assert live.grade is not None
    reward = budget.reward(live.grade, budget.Use.from_turns(live.turns, live.ended_s - live.queued_s), section, lowest)
    return Trajectory(
        rollout_id=live.rollout_id,
        example_id=live.request.example.id,
        turns=tuple(live.turns),
        stop_reason=live.stop,
        grade=live.grade,
        reward=reward,
        wall_s=live.ended_s,
        attempt=live.request.attempt,
    )


def _words(text: str) -> tuple[int, ...]:
    """Turn a string into seed words, the same on every machine (hash() is not)."""
    value = uuid.uuid5(uuid.NAMESPACE_OID, text).int
    return tuple(value >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))


__all__ = ["Conditions", "Ended", "Request", "run_rollouts"]
