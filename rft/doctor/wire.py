"""Tools and grader, asked as a run would ask them: over the same client, all at once.

    tools        every tool, at the declared burst: calls a second, P50, P95, failures by kind
    grader       targets at the same burst reach the pass threshold; answers differ in score; one
                 body three times is one score; the exploits are refused, on the examples on which
                 `train` plays them; a grader that reports hacks flags one. Rows without a target
                 are asked with answers that need none
    isolation    the calls A under one trace id, mixed with the calls B under another, get the
                 answers that A gets alone

No call is retried here and none is waited for longer than PATIENCE_S, so that a server that needs
retries is seen to need them. How much that matters is computed from what the run would do: the
share of rollouts that would stay unscored after tools.retries.

A tool that declares `probe: false` is never called from here: not in the burst, not for isolation,
and no exploit that calls it is played. What is sent is announced first (`Setup.announce`): at most
how many calls and grades, to which tool, and to whose host; and how many rollouts tools.lifecycle
is told of.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rft import commands, config, stats
from rft.chat import renderer as chat
from rft.doctor import arguments
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError, UserError
from rft.grading import preflight
from rft.grading.endpoint import TOOL_SERVER
from rft.grading.grader import Grader, grader_of
from rft.recipe import Exploit
from rft.scale import Scale
from rft.tools import lifetime
from rft.tools.client import ToolClient, schemas
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, ToolCall, ToolResult, Turn
from rft.wire.contract import SERVERS_OWN

T = TypeVar("T")

BURST = 50
PATIENCE_S = 30.0
"""For one call. A whole check has the rest of its own deadline (rft/doctor/__init__.py)."""
LONGEST_SEQUENCE = 6


@dataclass(frozen=True, slots=True)
class Wire:
    """Open tools and an open grader."""

    tools: ToolClient
    grader: Grader
    last_words: Callable[[], str]
    """Of the recipe's own server; nothing of others."""


def tools(setup: Setup) -> Finding:
    return _visit(setup, lambda wire: _burst_at_tools(setup, wire))


def grader(setup: Setup) -> Finding:
    async def look(wire: Wire) -> Finding:
        seen = await _burst_at_grader(setup, wire)
        if seen.status != "fail":
            _announce_exploits(setup, wire.tools)
        return seen

    seen = _visit(setup, look)
    if seen.status == "fail":
        return seen
    played = preflight.preflight(_impatient(setup.params, setup.params.tools.retries), setup.recipe, spare=True)
    if played.accepted:
        names = "; ".join(one.in_words for one in played.accepted)
        return fail(
            f"accepts what does not do the task: {names}",
            f"{played.remedy} See all with: {commands.command('exploits')}",
            **seen.facts,
        )
    words = f"{seen.words}; {len(played.exploits)} exploits refused{_not_played(played)}"
    if not (problems := list(_hacks(setup, played))):
        return replace(seen, words=words)
    found = together(problems, words, **seen.facts)
    return replace(found, remedy=f"{seen.remedy} {found.remedy}".strip())


def _hacks(setup: Setup, played: preflight.Preflight) -> Iterator[Finding]:
    """A declaration that nothing bears out, a verdict that nobody hears, or a gate that asks for
    more than there is.

    What was spared may be just what the grader flags: then nothing is known here, which is no
    failure.
    """
    source, needed = played.hack_source, setup.params.gate.require_hack_source
    unheard = not source.declared and bool(source.flagged)
    if source.is_measured or not (source.declared or needed or unheard):
        return
    if source.declared and played.spared:
        count = len(played.spared)
        words = (
            f"hack rate: not known here: {count} exploit{'' if count == 1 else 's'} not played, and none of the "
            "others flagged"
        )
        yield warn(
            f"{words}; train and challenger play them",
            f"To play them now, side effects and all: {commands.command('exploits')}",
        )
        return
    found = (
        "the grader flags hacks, but grader.json does not say so"
        if unheard
        else f"hack rate: would not be measured: {source.words}"
    )
    remedy = (
        'Declare "reports_hacks": true in grader.json.'
        if unheard
        else f"See which exploits are flagged: {commands.command('exploits')}"
    )
    if needed:
        yield fail(
            f"{found}; gate.require_hack_source lets nothing pass without",
            f"{remedy} Or set gate.require_hack_source: false.",
        )
    else:
        yield warn(found, remedy)


def _not_played(played: preflight.Preflight) -> str:
    words = f", {len(played.not_played)} not played for want of a target" if played.not_played else ""
    if not played.spared:
        return words
    tools = ", ".join(sorted(set(played.spared.values())))
    return (
        f"{words}, {len(played.spared)} not played because they call {tools} (probe: false); train plays them "
        "before it starts"
    )


def isolation(setup: Setup) -> Finding:
    return _visit(setup, lambda wire: _two_strangers(setup, wire))


# -- tools -----------------------------------------------------------------------------------------
async def _burst_at_tools(setup: Setup, wire: Wire) -> Finding:
    # raises ConfigError: no address, or no schema
    wire.tools.check_rows(row for rows in setup.rows.values() for row in rows)
    offered = _offered(setup, wire.tools)
    spared = [name for name in offered if not wire.tools.traits(name).probe]
    sizes = {name: burst_size(setup.params.tools, _own_rate(setup, name)) for name in offered if name not in spared}
    _announce_calls(setup, wire.tools, "tools", sizes, sum(sizes.values()))
    own, demonstrated = arguments.own_calls(setup), {call for calls in arguments.demonstrated(setup) for call in calls}
    problems: list[Finding] = []
    facts: dict[str, Any] = {}
    for name, size in sizes.items():
        parameters, row = offered[name]
        call, is_own = arguments.one_call(name, parameters, own)
        contexts = [_context(setup, f"burst {name}", n, row) for n in range(size)]
        began = time.monotonic()
        results = [
            result for (result,) in await asyncio.gather(*(_alone(wire.tools, [call], context) for context in contexts))
        ]
        numbers = _numbers(results, time.monotonic() - began)
        facts[name] = numbers | {"arguments": call.arguments, "from": "the recipe" if is_own else "the schema"}
        asked = _Burst(
            call, is_own, call in demonstrated, wire.tools.address(name), row.id, results, _raised(setup, wire, name)
        )
        problems += _judge(setup.params, asked)
    said = [
        f"{name} {one['calls_per_s']:.0f} calls/s, P50 {_ms(one['p50_s'])}, P95 {_ms(one['p95_s'])}"
        for name, one in facts.items()
    ]
    said += [f"not called (probe: false): {', '.join(spared)}"] if spared else []
    return together(problems, "; ".join(said) or "no tool is declared", tools=facts)


def _announce_calls(setup: Setup, client: ToolClient, check: str, sizes: Mapping[str, int], rollouts: int) -> None:
    """Before anything is sent: how many calls to which tool, the host if somebody else runs it, and
    what tools.lifecycle is told."""
    if sizes:
        parts = [f"{size} to {name}{_at(client.address(name))}" for name, size in sizes.items()]
        life = setup.params.tools.lifecycle
        told = [
            f"{rollouts} to {key}{_at(url)}"
            for key, url in (("start_url", life.start_url), ("end_url", life.end_url))
            if url
        ]
        setup.announce(f"{check}: calls the tools, {', '.join(parts)}{'; ' if told else ''}{', '.join(told)}")


def _at(address: str) -> str:
    host = urlsplit(address).netloc.rpartition("@")[2] if "://" in address else ""
    return f" at {host}" if host else ""


def _own_rate(setup: Setup, name: str) -> float | None:
    return next((one.rate_limit for one in setup.params.tools.endpoints if one.name == name), None)


def _offered(setup: Setup, client: ToolClient) -> dict[str, tuple[dict[str, Any], Example]]:
    """Every tool that some policy sees: its parameters, and an example in which it may be
    called."""
    found: dict[str, tuple[dict[str, Any], Example]] = {}
    for row in setup.rows["train"]:
        for tool in client.schemas if row.tools is None else row.tools:
            found.setdefault(tool["function"]["name"], (tool["function"].get("parameters") or {}, row))
    return found


def burst_size(section: config.Tools, own_rate: float | None = None) -> int:
    """What a second of the declared rate holds; without a rate, as many as would be under way at
    once."""
    rate = own_rate or section.rate_limit
    return max(1, min(math.ceil(rate), 4 * BURST)) if rate else min(section.concurrency, BURST)


@dataclass(frozen=True, slots=True)
class _Burst:
    """One call, made many times. `is_own`: by the recipe, not by the schema; `demonstrated`: by a
    demonstration, so that it must work."""

    call: ToolCall
    is_own: bool
    demonstrated: bool
    address: str
    example_id: str
    results: Sequence[ToolResult]
    raised: str = ""
    """What to do when the tool is the recipe's own, and raised."""

    def first(self, result: ToolResult) -> str:
        """Where a call went that all others fared like, and what came back."""
        return (
            f"{self.call.name} is at {self.address}; the first call, for example {self.example_id}: "
            f"{_line(result.output)}"
        )


def _judge(params: config.Params, burst: _Burst) -> list[Finding]:
    call, results = burst.call, burst.results
    failed = [result for result in results if result.failed]
    refused = [result for result in results if result.is_error]
    problems: list[Finding] = []
    if failed:
        lost = _unscored_share(len(failed) / len(results), params)
        kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(map(_kind, failed)).most_common(3))
        words, remedy = (
            f"{call.name}: {len(failed)} of {len(results)} calls failed ({kinds})",
            burst.raised or _remedy(params, failed, burst.address),
        )
        more = f", which would leave up to {lost:.0%} of the rollouts unscored"
        if len(failed) == len(results):
            problems.append(fail(f"{words}{more}; {burst.first(failed[0])}", remedy, infrastructure=True))
        elif lost > params.rollout.max_unscored_share:
            problems.append(fail(words + more, remedy, infrastructure=True))
        else:
            problems.append(warn(f"{words}; retries would hide it", remedy))
    if refused and burst.demonstrated and len(refused) == len(results):
        words = (
            f"{call.name} refuses what a demonstration asks, {len(refused)} of {len(results)} times; "
            f"{burst.first(refused[0])}"
        )
        problems.append(fail(words, "Fix the tool, its address or the demonstration: nobody could learn to use it."))
    elif refused:
        whose = "the recipe's own arguments" if burst.is_own else "arguments made from its schema"
        remedy = (
            "Fix the tool or the recipe's call."
            if burst.is_own
            else f"A demonstration that calls {call.name} would show real arguments."
        )
        problems.append(warn(f"{call.name} is alive, but refuses {whose}: {_line(refused[0].output)}", remedy))
    slow = stats.percentile([result.latency_s for result in results], 0.95) * params.rollout.max_tool_calls
    if slow > params.rollout.deadline_s and not failed:
        problems.append(
            warn(
                f"{call.name}: {params.rollout.max_tool_calls} calls at its P95 take {slow:.0f} s, longer than a "
                "rollout may",
                "Raise rollout.deadline_s, lower rollout.max_tool_calls, or make the tool quicker.",
            )
        )
    return problems


def _remedy(params: config.Params, failed: Sequence[ToolResult], address: str) -> str:
    """Asking more gently helps against load only; neither a wrong address nor a reply of another
    form comes from load."""
    kinds = [_kind(result) for result in failed]
    if all(kind.startswith("the reply ") for kind in kinds):
        return (
            f'It must answer a call with {{"output": ...}}. Check that the tool itself is there, and not a page or '
            f"a gateway: {address}."
        )
    if all(kind in _WRONG_PLACE for kind in kinds):
        return (
            f"Check the address, the method and the key: {address}. If such a status is the policy's mistake, give "
            "it an 'output'."
        )
    return (
        f"Look at the tool's own log; {_limit(params)} bounds a call. tools.rate_limit or tools.concurrency ask it "
        "more gently."
    )


_WRONG_PLACE = frozenset(f"HTTP {status}" for status in (*SERVERS_OWN, 301, 302, 303, 307, 308))


def _unscored_share(failing: float, params: config.Params) -> float:
    """Of rollouts that make all the calls they may, when each call fails on its own and is
    retried."""
    return 1 - (1 - failing ** (params.tools.retries + 1)) ** params.rollout.max_tool_calls


def _numbers(results: Sequence[ToolResult], seconds: float) -> dict[str, Any]:
    latencies = [result.latency_s for result in results]
    return {
        "calls": len(results),
        "calls_per_s": round(len(results) / max(seconds, 1e-9), 1),
        "p50_s": round(stats.percentile(latencies, 0.5), 4),
        "p95_s": round(stats.percentile(latencies, 0.95), 4),
        "refused": sum(result.is_error for result in results),
        "failed": dict(Counter(_kind(result) for result in results if result.failed)),
    }


def _kind(result: ToolResult) -> str:
    """A failure in a word or two, so that equal ones can be counted."""
    if found := re.search(r"HTTP \d{3}", result.output):
        return found[0]
    if "no reply within" in result.output:
        return "no reply in time"
    return _line(result.output.partition(" failed: ")[2] or result.output, 60)


# -- grader ----------------------------------------------------------------------------------------
async def _burst_at_grader(setup: Setup, wire: Wire) -> Finding:
    rows = [row for row in setup.rows["train"] if row.target is not None] or setup.rows["train"]
    measured = rows[0].target is not None
    spec = setup.recipe.grader
    size = burst_size(setup.params.tools, spec.rate_limit)
    most = size + sum(3 * len(_repeated(setup, row)) + measured * len(_against(setup, row)) for row in rows[:4])
    setup.announce(f"grader: asks for up to {most} grades, {size} of them at once{_at(_grader_address(setup))}")
    answers = [(row, _answer(setup, row)) for row in (rows[n % len(rows)] for n in range(size))]
    began = time.monotonic()
    timed = await asyncio.gather(*(_timed(_grade(setup, wire, row, text, n)) for n, (row, text) in enumerate(answers)))
    seconds = time.monotonic() - began
    grades = [grade for grade, _ in timed]
    latencies = [each for _, each in timed]
    facts = {
        "grades": size,
        "grades_per_s": round(size / max(seconds, 1e-9), 1),
        "p50_s": round(stats.percentile(latencies, 0.5), 4),
        "p95_s": round(stats.percentile(latencies, 0.95), 4),
    }
    problems = _no_score(setup, wire, grades, facts)
    if measured and not problems:
        problems = await _one_score(setup, wire, rows[:4]) or _targets(answers, grades, wire.grader.scale)
    if not problems:
        problems = await _three_times(setup, wire, rows[:4])
    targets = f"targets score {wire.grader.scale.pass_threshold:g} or more" if measured else "targets: not measured"
    if measured and (without := sum(row.target is None for row in setup.rows["train"])):
        targets += f" ({without} of {len(setup.rows['train'])} examples have none)"
    said = (
        f"{facts['grades_per_s']:.0f} grades/s, P50 {_ms(facts['p50_s'])}, P95 {_ms(facts['p95_s'])}; {targets}; "
        "three times the same"
    )
    return together(problems, said, **facts)


def _raised(setup: Setup, wire: Wire, what: str) -> str:
    """What to do when the recipe's own code raised: where it did, and where all of it stands. Empty
    when it did not."""
    words = wire.last_words()
    if lifetime.RAISED not in words:
        return ""
    last = words[words.rindex(lifetime.RAISED) :]
    return (
        f"{what} raised: fix it in {setup.recipe.folder / 'tools.py'}. Its server's log: "
        f"{lifetime.log_of(setup.recipe)}\n{last}"
    )


def _grader_address(setup: Setup) -> str:
    """The URL, without its query, which may hold a key; {tool_server} stays where that server is
    our own."""
    return setup.recipe.grader.url.replace(TOOL_SERVER, setup.params.tools.server_url or TOOL_SERVER).partition("?")[0]


def _no_score(setup: Setup, wire: Wire, grades: Sequence[Grade], facts: dict[str, Any]) -> list[Finding]:
    """The grader failed. An outage is the world's; a reply that is no verdict is its author's, or
    comes from another place."""
    params = setup.params
    unscored = [grade for grade in grades if grade.score is None]
    if not unscored:
        return []
    share = (len(unscored) / len(grades)) ** (params.tools.retries + 1)
    outage = all(grade.status is GradeStatus.infra_error for grade in unscored)
    words = f"{len(unscored)} of {len(grades)} grades have no score: {_line(unscored[0].explanation)}"
    statuses = [re.match(r"grader: (HTTP \d{3})\b", grade.explanation) for grade in unscored]
    if all(found and found[1] in _WRONG_PLACE for found in statuses):
        remedy = f"Check the address, the method (POST) and the key. grader.json: url = {_grader_address(setup)}"
    elif outage:
        remedy = (
            _raised(setup, wire, "grade")
            or f"Look at the log of {_grader_address(setup)}; {_limit(params)} bounds a grade."
        )
    else:
        remedy = 'It must answer {"score": number} to every body, and say 0 for a bad answer.'
    if share <= params.rollout.max_unscored_share:
        return [warn(f"{words}; retries would hide it", remedy, **facts)]
    return [fail(words, remedy, infrastructure=outage, **facts)]


def _answer(setup: Setup, row: Example) -> str:
    """The right answer; for a row without a target, one that needs none."""
    return "Done." if row.target is None else setup.recipe.answer(row.target)


def _against(setup: Setup, row: Example) -> list[str]:
    """The right answer, and worthless ones."""
    return [_answer(setup, row), *preflight.probes("", row.id).values()]


def _repeated(setup: Setup, row: Example) -> list[str]:
    """The answers that must get one score however often they are given."""
    return list(dict.fromkeys((_answer(setup, row), "", "Done.")))


async def _one_score(setup: Setup, wire: Wire, rows: Sequence[Example]) -> list[Finding]:
    """Right answers and worthless ones must differ for some example: else the grader does not see
    the answer, or not the target."""
    answers = [(row, text) for row in rows for text in _against(setup, row)]
    grades = [await _grade(setup, wire, row, text, "differs") for row, text in answers]
    scores = {grade.score for grade in grades}
    if len(scores) != 1 or (score := grades[0].score) is None:
        return []
    row, text = answers[0]
    why = f": {_line(grades[0].explanation)}" if grades[0].explanation else ""
    return [
        fail(
            f"every answer scores the same, {score:g}: targets, empty, no-op and random ones. First: example "
            f"{row.id}, {_line(text, 60)!r}{why}",
            "Fix the grader, or what it reads: the answer is sample.output_text, the row is item. See also "
            "examples.keys, and answer(target) in "
            "the recipe's examples.py.",
        )
    ]


def _targets(answers: Sequence[tuple[Example, str]], grades: Sequence[Grade], scale: Scale) -> list[Finding]:
    low = [
        (row, grade)
        for (row, _), grade in zip(answers, grades, strict=True)
        if grade.score is not None and grade.score < scale.pass_threshold
    ]
    if not low:
        return []
    row, grade = low[0]
    return [
        fail(
            f"the target of example {row.id} itself scores {grade.score:g}, expected at least "
            f"{scale.pass_threshold:g}: {_line(grade.explanation)}",
            "Fix the grader, or answer(target) in the recipe's examples.py: nothing could ever be right. Where less "
            "than the highest score passes, "
            "declare pass_threshold in grader.json.",
        )
    ]


async def _three_times(setup: Setup, wire: Wire, rows: Sequence[Example]) -> list[Finding]:
    """The same body, byte for byte, must get the same score; and an empty answer must not pass."""
    threshold = wire.grader.scale.pass_threshold
    for row in rows:
        for text in _repeated(setup, row):
            grades = [await _grade(setup, wire, row, text, "thrice") for _ in range(3)]
            if silent := _no_score(setup, wire, grades, {}):
                return silent
            scores = [grade.score for grade in grades]
            if len(set(scores)) > 1:
                return [_wavers(row, scores)]
            if not text and scores[0] is not None and scores[0] >= threshold:
                return [
                    fail(
                        f"the empty answer to example {row.id} scores {scores[0]:g}, which passes",
                        "Fix the grader: an empty answer is no answer.",
                    )
                ]
    return []


def _wavers(row: Example, scores: Sequence[float | None]) -> Finding:
    return fail(
        f"one body, three times, for example {row.id}: {', '.join(f'{score:g}' for score in scores)}",
        "Take chance and clocks out of the grader (a judge: temperature 0, a fixed model): noise drowns what there is "
        "to learn.",
        scores=list(scores),
    )


async def _grade(setup: Setup, wire: Wire, row: Example, text: str, word: object) -> Grade:
    return await wire.grader.grade(row, [Turn(text)], StopReason.completed, _context(setup, "grade", word, row))


def _announce_exploits(setup: Setup, client: ToolClient) -> None:
    """Before they are played, on the examples that they are played on."""
    recipe, retries = setup.recipe, setup.params.tools.retries
    rows = recipe.examples("train", preflight.num_examples_for(setup.params, recipe), setup.params.examples.seed)
    probes, hits = preflight.probes("", ""), any(exploit.starts_from == "hit" for exploit in recipe.exploits)
    grades = (len(recipe.exploits) + len(probes)) * len(rows) + (1 + hits) * sum(row.target is not None for row in rows)
    calls = sum(_num_calls(setup, client, exploit, row) for exploit in recipe.exploits for row in rows)
    again = f"; one that fails is sent up to {retries} times more" if retries else ""
    setup.announce(
        f"grader: plays {len(recipe.exploits)} exploits and {len(probes)} probes on {len(rows)} examples, and asks "
        "for targets and hits alone: "
        f"up to {grades} grades{_at(_grader_address(setup))} and up to {calls} tool calls{again}"
    )


def _num_calls(setup: Setup, client: ToolClient, exploit: Exploit, row: Example) -> int:
    """How many tool calls an exploit makes at most. What a tool will answer is not known, nor the
    calls that it might write into {result}."""
    notes = [str(message["content"]) for message in row.messages if message["role"] == "user"]
    values = {"note": notes[-1] if notes else "", **({} if row.target is None else setup.recipe.exploit_values(row))}
    count = 0
    for number, template in enumerate(exploit.turns):
        try:
            text = preflight.fill(template, {**values, "result": ""} if number else values, "exploits.jsonl")
        except UserError:
            break
        try:
            names = [call.name for call in chat.parse_calls(text)]
        except chat.ParseError:  # the result itself may be what is missing
            names = text.count("<tool_call>") * [""]
        if not all(client.traits(name).probe for name in names):
            break
        count += len(names)
    return count


# -- isolation -------------------------------------------------------------------------------------
async def _two_strangers(setup: Setup, wire: Wire) -> Finding:
    """A mixed with B, then A alone, twice over. Everything that A is told must be the same each
    time."""
    first, second = _sequences(setup, wire.tools)
    if not first:
        return together([], "no tool is there that may be called")
    rounds = 2 * [*first, *second, *first]
    _announce_calls(setup, wire.tools, "isolation", Counter(call.name for call in rounds), rollouts=2 * 3)
    heard: list[list[ToolResult]] = []
    for n in range(2):
        mixed = [_context(setup, name, n) for name in ("A beside B", "B beside A")]
        heard.append((await _mixed(wire.tools, (first, second), mixed))[0])
        heard.append(await _alone(wire.tools, first, _context(setup, "A alone", n)))
    if broken := [result for results in heard for result in results if result.failed]:
        raise InfrastructureError(
            f"a tool failed while it was asked twice: {_line(broken[0].output)}. Mend the tools first."
        )
    for position, call in enumerate(first):
        told = [results[position].output for results in heard]
        if len(set(told)) > 1:
            other = next(text for text in told if text != told[0])
            return fail(
                f"{call.name} {_line(call.arguments, 60)} is answered {_line(told[0], 60)!r} under one trace id, "
                f"{_line(other, 60)!r} under another",
                "Keep what a tool remembers by trace_id, and nothing beside it. If it answers from a clock or from "
                "chance, take that out: "
                "a rollout's reward must not hang on it.",
                call={"name": call.name, "arguments": call.arguments},
                answers=told,
            )
    return together(
        [],
        f"{len(first)} calls under four trace ids, beside {len(second)} of a stranger: the same answers",
        calls=len(first),
    )


def _sequences(setup: Setup, client: ToolClient) -> tuple[list[ToolCall], list[ToolCall]]:
    """Two rollouts' calls, the second with other arguments where the recipe has any; every tool is
    among them, every call comes twice.

    Not those of the first dialogue: what the burst at the tools has asked, a server that remembers
    too much knows already.
    """
    own = arguments.own_calls(setup)
    row = setup.rows["train"][0]
    seen = [tool["function"] for tool in (client.schemas if row.tools is None else row.tools)]
    functions = {
        function["name"]: function.get("parameters") or {} for function in seen if client.traits(function["name"]).probe
    }
    dialogues = [
        known
        for calls in own[1:] or own
        if (known := [call for call in calls if call.name in functions][:LONGEST_SEQUENCE])
    ]
    first = dialogues[0] if dialogues else []
    second = next((calls for calls in reversed(dialogues) if calls != first), first)

    def whole(calls: list[ToolCall]) -> list[ToolCall]:
        missing = functions.keys() - {call.name for call in calls}
        every = [*calls, *(arguments.one_call(name, functions[name], own)[0] for name in sorted(missing))]
        return [replace(call, call_id=f"call_{n}_0") for n, call in enumerate([*every, *every])]

    return whole(first), whole(second)


async def _mixed(
    client: ToolClient, sequences: Sequence[Sequence[ToolCall]], contexts: Sequence[RolloutContext]
) -> tuple[list[ToolResult], list[ToolResult]]:
    """One call of each in turn."""
    results: tuple[list[ToolResult], list[ToolResult]] = ([], [])
    await _started(client, contexts)
    for position in range(max(map(len, sequences))):
        for calls, context, answers in zip(sequences, contexts, results, strict=True):
            if position < len(calls):
                answers += await client.call_all([calls[position]], context)
    for context in contexts:
        await client.end(context, StopReason.completed)
    return results


# -- shared ----------------------------------------------------------------------------------------
def _visit(setup: Setup, work: Callable[[Wire], Awaitable[Finding]]) -> Finding:
    params, recipe = _impatient(setup.params), setup.recipe

    async def inside(endpoint: Any) -> Finding:
        async with (
            ToolClient(endpoint, params.tools, schemas(recipe), recipe=recipe) as client,
            grader_of(recipe.grader, endpoint, params.tools) as graded,
        ):
            setup.offered = client.schemas
            return await work(Wire(client, graded, endpoint.last_words))

    if not setup.rows["train"]:
        raise UserError("the recipe gave no training example to ask with.")
    with lifetime.running(recipe, params.tools) as endpoint:
        return asyncio.run(inside(endpoint))


def _impatient(params: config.Params, retries: int = 0) -> config.Params:
    """With no call longer than PATIENCE_S."""
    endpoints = [
        one.model_copy(update={"timeout_s": one.timeout_s and min(one.timeout_s, PATIENCE_S)})
        for one in params.tools.endpoints
    ]
    changes = {"retries": retries, "timeout_s": min(params.tools.timeout_s, PATIENCE_S), "endpoints": endpoints}
    section = params.tools.model_copy(update=changes)
    return params.model_copy(update={"tools": section})


def _limit(params: config.Params) -> str:
    timeout_s = params.tools.timeout_s
    return (
        f"tools.timeout_s = {timeout_s:g} s"
        if timeout_s <= PATIENCE_S
        else f"the doctor's patience of {PATIENCE_S:g} s"
    )


async def _alone(client: ToolClient, calls: Sequence[ToolCall], context: RolloutContext) -> list[ToolResult]:
    """One call after the other, within the life of one rollout."""
    await _started(client, [context])
    results = [result for call in calls for result in await client.call_all([call], context)]
    await client.end(context, StopReason.completed)
    return results


async def _started(client: ToolClient, contexts: Sequence[RolloutContext]) -> None:
    for context in contexts:
        if (failure := await client.start(context)) is not None:
            raise InfrastructureError(f"tools.lifecycle.start_url: {failure}. Mend that server, or remove the key.")


async def _timed(work: Awaitable[T]) -> tuple[T, float]:
    began = time.monotonic()
    return await work, time.monotonic() - began


def _context(setup: Setup, name: str, word: object, row: Example | None = None) -> RolloutContext:
    row = row or setup.rows["train"][0]
    return RolloutContext(setup.traces.of(f"doctor {name} {word} {row.id}", 0), row, "train")


def _line(text: str, limit: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + "..."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
