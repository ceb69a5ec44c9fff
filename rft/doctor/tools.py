"""Two checks of the tools: do they answer at the declared burst, and do they keep rollouts apart?

    tools        every tool at the declared burst: calls per second, P50, P95, failures by kind. No
                 tool may tell the target to every caller (rft/grading/target_leak.py)
    isolation    calls A under one trace id, mixed with calls B under another, must get the same
                 answers as A alone

Neither check calls a tool that declares `probe: false`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rft import config, stats
from rft.doctor import wire
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.doctor.wire import Wire, one_line
from rft.errors import InfrastructureError
from rft.grading import scripted, target_leak
from rft.tools.client import ToolClient
from rft.types import Example, RolloutContext, StopReason, ToolCall, ToolResult
from rft.wire.client import UNREACHED
from rft.wire.contract import REPLY_TOO_LARGE

LONGEST_SEQUENCE = 6
LETTERS = 6
"""Most letters of a token, on average over a text."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def tools(setup: Setup) -> Finding:
    return wire.visit(setup, lambda opened: _burst(setup, opened))


def isolation(setup: Setup) -> Finding:
    return wire.visit(setup, lambda opened: _check_isolation(setup, opened.tools))


# -- burst -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Burst:
    """One call, made many times."""

    call: ToolCall
    is_own: bool
    """Whether its arguments are the recipe's, not made from the schema."""
    demonstrated: bool
    """Whether a demonstration makes this call, so that it must work."""
    address: str
    example_id: str
    results: Sequence[ToolResult]
    raised: str = ""
    """The remedy if the tool is the recipe's own and raised an exception."""

    def first(self, result: ToolResult) -> str:
        """Say where all calls went, and what the first one got."""
        called = f"{self.call.name} is at {self.address}; the first call, for example {self.example_id}"
        return f"{called}: {one_line(result.output)}"


async def _burst(setup: Setup, opened: Wire) -> Finding:
    client, section = opened.tools, setup.params.tools
    # raises ConfigError: no address, or no schema
    client.check_rows(row for rows in setup.rows.values() for row in rows)
    offered = _offered(setup, client)
    own_rates = {endpoint.name: endpoint.rate_limit for endpoint in section.endpoints}
    skipped = [name for name in offered if not client.traits(name).probe]
    sizes = {name: wire.burst_size(section, own_rates.get(name)) for name in offered if name not in skipped}
    wire.announce_calls(setup, client, "tools", sizes, sum(sizes.values()))
    seed = setup.params.policy.seed
    own = scripted.own_calls(setup.recipe, setup.rows["train"][0], seed)
    demonstrated = {call for some in scripted.demonstrated(setup.recipe, seed) for call in some}
    problems = [*_unwritable(offered)]
    facts: dict[str, Any] = {}
    for name, size in sizes.items():
        parameters, row = offered[name]
        call, is_own = scripted.one_call(name, parameters, own)
        contexts = [wire.context(setup, f"burst {name}", n, row) for n in range(size)]
        began = time.monotonic()
        answers = await asyncio.gather(*(wire.one_by_one(client, [call], context) for context in contexts))
        seconds = time.monotonic() - began
        results = [result for (result,) in answers]
        facts[name] = wire.speed("calls", [result.latency_s for result in results], seconds) | {
            "refused": sum(result.is_error for result in results),
            "failed": dict(Counter(_kind(result) for result in results if result.failed)),
            "arguments": call.arguments,
            "from": "the recipe" if is_own else "the schema",
        }
        raised = wire.raised(setup, opened, name)
        made = _Burst(call, is_own, call in demonstrated, client.address(name), row.id, results, raised)
        problems += _judge(setup.params, made)
    if not any(problem.status == "fail" for problem in problems):
        problems += await _target_leaks(setup, client)
    parts = [f"{name} {wire.describe_speed('calls', numbers)}" for name, numbers in facts.items()]
    parts += [f"not called (probe: false): {', '.join(skipped)}"] if skipped else []
    return together(problems, "; ".join(parts) or "no tool is declared", tools=facts)


def _offered(setup: Setup, client: ToolClient) -> dict[str, tuple[dict[str, Any], Example]]:
    """Return the parameters of every tool that a policy sees, and an example that offers it."""
    found: dict[str, tuple[dict[str, Any], Example]] = {}
    for row in setup.rows["train"]:
        for tool in client.schemas if row.tools is None else row.tools:
            found.setdefault(tool["function"]["name"], (tool["function"].get("parameters") or {}, row))
    return found


async def _target_leaks(setup: Setup, client: ToolClient) -> list[Finding]:
    """Find tools that tell the target to every caller. Returns nothing if a tool fails now, because
    a run's preflight asks again."""
    rows = setup.rows["train"][: target_leak.NUM_ROWS]
    sizes = dict.fromkeys(target_leak.offered(client, rows), len(rows))
    wire.announce_calls(setup, client, "tools, do they tell the target", sizes, sum(sizes.values()))
    try:
        found = await target_leak.find(setup.recipe, rows, client, setup.params.policy.seed)
    except InfrastructureError:
        return []
    return [fail(one.description, target_leak.remedy(found)) for one in found]


def _unwritable(names: Iterable[str]) -> Iterator[Finding]:
    """Find tools with names that chat endpoints refuse and models misspell."""
    if odd := [one_line(name) for name in names if not _NAME.fullmatch(name)]:
        remedy = "Rename it at its server, or leave it out: tools.mcp[].tools lists those to use."
        yield warn(f"models write names of letters, digits, _, - and ., at most 64: not {', '.join(odd)}", remedy)


def _judge(params: config.Params, burst: _Burst) -> list[Finding]:
    name, results, rollout = burst.call.name, burst.results, params.rollout
    failed = [result for result in results if result.failed]
    problems: list[Finding] = []
    if failed:
        lost = _unscored_share(len(failed) / len(results), params)
        kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(map(_kind, failed)).most_common(3))
        description = f"{name}: {len(failed)} of {len(results)} calls failed ({kinds})"
        more = f", which would leave up to {lost:.0%} of the rollouts unscored"
        remedy = burst.raised or _remedy(params, failed, burst.address)
        if len(failed) == len(results):
            problems.append(fail(f"{description}{more}; {burst.first(failed[0])}", remedy, infrastructure=True))
        elif lost > rollout.max_unscored_share:
            problems.append(fail(description + more, remedy, infrastructure=True))
        else:
            problems.append(warn(f"{description}; retries would hide it", remedy))
    problems += _refusals(burst)
    longest, room = max(len(result.output) for result in results), _room(params)
    if room is not None and longest > LETTERS * room:
        description = f"{name}: a reply of {longest} characters does not fit into a context of {room} tokens"
        remedy = "Let the tool return less, or raise rollout.max_tokens: the policy is told so, and never sees it."
        problems.append(warn(description, remedy))
    slow = stats.percentile([result.latency_s for result in results], 0.95) * rollout.max_tool_calls
    if slow > rollout.deadline_s and not failed:
        description = f"{name}: {rollout.max_tool_calls} calls at its P95 take {slow:.0f} s"
        remedy = "Raise rollout.deadline_s, lower rollout.max_tool_calls, or make the tool faster."
        problems.append(warn(f"{description}, longer than rollout.deadline_s = {rollout.deadline_s:g} s", remedy))
    return problems


def _refusals(burst: _Burst) -> Iterator[Finding]:
    """Find replies that the policy would see as its own mistake."""
    name, num = burst.call.name, len(burst.results)
    errors = [result for result in burst.results if result.is_error]
    cut = [result for result in errors if result.output.startswith(REPLY_TOO_LARGE)]
    refused = [result for result in errors if result not in cut]
    if cut:
        why = cut[0].output.partition(". ")[0]
        description = (
            f"{name} is alive, but {len(cut)} of {num} replies are too large, so the policy sees none of them: {why}"
        )
        remedy = "Let the tool return less, such as the first entries or a summary."
        yield (fail if burst.demonstrated and len(cut) == num else warn)(description, remedy)
    if refused and burst.demonstrated and len(refused) == num:
        description = f"{name} refuses a demonstration's call, {num} of {num} times"
        remedy = "Fix the tool, its address or the demonstration: no policy could learn from it."
        yield fail(f"{description}; {burst.first(refused[0])}", remedy)
    elif refused:
        whose, remedy = "arguments made from its schema", f"Add a demonstration that calls {name} with real arguments."
        if burst.is_own:
            whose, remedy = "the recipe's own arguments", "Fix the tool or the recipe's call."
        yield warn(f"{name} is alive, but refuses {whose}: {one_line(refused[0].output)}", remedy)


def _room(params: config.Params) -> int | None:
    """Return the tokens of a context, if the settings tell."""
    is_embedded = params.policy.model is None and params.policy.server is None
    own = params.policy.architecture.max_positions if is_embedded else None
    return params.rollout.max_tokens or own


def _remedy(params: config.Params, failed: Sequence[ToolResult], address: str) -> str:
    """Say what to do. Fewer calls at once help only against load, not against a wrong address or a
    reply of another form."""
    kinds = [_kind(result) for result in failed]
    if all(kind.startswith("the reply ") for kind in kinds):
        there = f"Check that this is the tool itself, not a web page or a gateway: {address}."
        return f'It must answer a call with {{"output": ...}}. {there}'
    if all(kind in wire.WRONG_PLACE for kind in kinds):
        mistake = "If the status reports a mistake of the policy, add an 'output' to the reply."
        return f"Check the address, the method and the key: {address}. {mistake}"
    if all(UNREACHED.search(kind) for kind in kinds):
        return f"Is it running, at that address? {address}"
    gently = "Lower tools.rate_limit or tools.concurrency to send it less at once."
    return f"Look at the tool's own log; the limit per call is {wire.limit(params)}. {gently}"


def _unscored_share(failing: float, params: config.Params) -> float:
    """Return the share of unscored rollouts, if each makes all the calls it may, and each call is
    retried and fails independently."""
    return 1 - (1 - failing ** (params.tools.retries + 1)) ** params.rollout.max_tool_calls


def _kind(result: ToolResult) -> str:
    """Name a failure in a few words, so that equal ones can be counted."""
    if found := re.search(r"HTTP \d{3}", result.output):
        return found[0]
    if "no reply within" in result.output:
        return "no reply in time"
    return one_line(result.output.partition(" failed: ")[2] or result.output, 60)


# -- isolation -------------------------------------------------------------------------------------
async def _check_isolation(setup: Setup, client: ToolClient) -> Finding:
    """Make calls A mixed with B, and then A alone, both twice. A must get the same answers each
    time."""
    first, second = _sequences(setup, client)
    if not first:
        return together([], "no tool is there that may be called")
    rounds = 2 * [*first, *second, *first]
    wire.announce_calls(setup, client, "isolation", Counter(call.name for call in rounds), rollouts=2 * 3)
    replies: list[list[ToolResult]] = []
    for n in range(2):
        mixed = [wire.context(setup, name, n) for name in ("A beside B", "B beside A")]
        replies.append((await _mixed(client, (first, second), mixed))[0])
        replies.append(await wire.one_by_one(client, first, wire.context(setup, "A alone", n)))
    if broken := [result for results in replies for result in results if result.failed]:
        raise InfrastructureError(f"a tool failed in this check: {one_line(broken[0].output)}. Fix the tools first.")
    for position, call in enumerate(first):
        told = [results[position].output for results in replies]
        if len(set(told)) > 1:
            other = next(text for text in told if text != told[0])
            answers = f"{one_line(told[0], 60)!r} under one trace id, {one_line(other, 60)!r} under another"
            return fail(
                f"{call.name} {one_line(call.arguments, 60)} returns {answers}",
                "Keep a tool's state per trace_id, and no state beside that. If it answers from a clock or from "
                "chance, remove that: a rollout's reward must not depend on it.",
                call={"name": call.name, "arguments": call.arguments},
                answers=told,
            )
    description = f"{len(first)} calls under four trace ids, beside {len(second)} of another rollout: the same answers"
    return together([], description, calls=len(first))


def _sequences(setup: Setup, client: ToolClient) -> tuple[list[ToolCall], list[ToolCall]]:
    """Return the calls of two rollouts. Each calls every tool, and makes every call twice. The
    second has other arguments, if the recipe has any.

    The first dialogue's calls are left out. The burst has made them, so a server that remembers too
    much already knows them.
    """
    row = setup.rows["train"][0]
    own = scripted.own_calls(setup.recipe, row, setup.params.policy.seed)
    seen = [tool["function"] for tool in (client.schemas if row.tools is None else row.tools)]
    functions = {
        function["name"]: function.get("parameters") or {} for function in seen if client.traits(function["name"]).probe
    }
    known = ([call for call in calls if call.name in functions][:LONGEST_SEQUENCE] for calls in own[1:] or own)
    dialogues = [calls for calls in known if calls]
    first = dialogues[0] if dialogues else []
    second = next((calls for calls in reversed(dialogues) if calls != first), first)

    def whole(calls: list[ToolCall]) -> list[ToolCall]:
        missing = functions.keys() - {call.name for call in calls}
        every = [*calls, *(scripted.one_call(name, functions[name], own)[0] for name in sorted(missing))]
        return [replace(call, call_id=f"call_{n}_0") for n, call in enumerate([*every, *every])]

    return whole(first), whole(second)


async def _mixed(
    client: ToolClient, sequences: Sequence[Sequence[ToolCall]], contexts: Sequence[RolloutContext]
) -> tuple[list[ToolResult], list[ToolResult]]:
    """Make one call of each sequence in turn."""
    results: tuple[list[ToolResult], list[ToolResult]] = ([], [])
    await wire.start(client, contexts)
    for position in range(max(map(len, sequences))):
        for calls, context, answers in zip(sequences, contexts, results, strict=True):
            if position < len(calls):
                answers += await client.call_all([calls[position]], context)
    for context in contexts:
        await client.end(context, StopReason.completed)
    return results
