"""Check that the grader is fit for training, in a burst and with answers that must score low.

    targets      reach the pass threshold in a burst. Rows without a target get an answer that needs
                 none. Targets that are reached by calls are played with the exploits
    answers      right, empty and random answers differ in score
    repeats      one body, sent three times, gets one score, and the empty answer does not pass
    exploits     are refused on the examples on which `train` plays them. A grader that declares
                 that it reports hacks flags one
    time         what the rate of the burst means for a run

An exploit that calls a tool with `probe: false` is not played.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rft import commands
from rft.chat import renderer as chat
from rft.config import graders
from rft.doctor import wire
from rft.doctor.capacity import num_rollouts
from rft.doctor.finding import Finding, fail, together, warn
from rft.doctor.setup import Setup
from rft.doctor.wire import Wire, one_line
from rft.errors import UserError
from rft.grading import judge, preflight, scripted
from rft.grading.grader import FORM_REMEDY
from rft.progress import duration
from rft.recipe import Exploit
from rft.scale import Scale
from rft.tools.client import ToolClient
from rft.types import Example, Grade, GradeStatus, StopReason, Turn


def grader(setup: Setup) -> Finding:
    async def check(opened: Wire) -> Finding:
        seen = await _burst(setup, opened)
        if seen.status == "fail":
            return seen
        return _too_slow(setup, seen, _announce_exploits(setup, opened.tools)) or seen

    seen = wire.visit(setup, check)
    if seen.status == "fail" or "seconds_of_exploits" in seen.facts:
        return seen
    played = preflight.preflight(wire.impatient(setup.params, setup.params.tools.retries), setup.recipe, spare=True)
    if not played.targets_pass:
        return fail(
            f"the target of an example itself scores {played.target_score:g}, {played.targets_expected}",
            "Fix the grader, or turns(options, example, target) in the recipe's examples.py.",
        )
    if played.accepted:
        names = "; ".join(exploit.description for exploit in played.accepted)
        remedy = f"{played.remedy} See all with: {commands.command('doctor exploits')}"
        return fail(f"accepts answers that do not do the task: {names}", remedy, **seen.facts)
    description = f"{seen.words}; {len(played.exploits)} exploits refused{_not_played(played)}"
    remarks = (warn(f"grader.json: {shown}", "") for shown in setup.recipe.grader.remarks)
    problems = [*_slow(setup, seen.facts), *_hacks(setup, played), *remarks]
    if not problems:
        return replace(seen, words=description)
    found = together(problems, description, **seen.facts)
    return replace(found, remedy=f"{seen.remedy} {found.remedy}".strip())


_LONG_S = 1200.0
"""The check warns of a run that grades for longer."""
_LONGEST_PLAY_S = 300.0
"""Half of the check's deadline, because the burst and the repeats come before."""


# -- exploits --------------------------------------------------------------------------------------
def _hacks(setup: Setup, played: preflight.Preflight) -> Iterator[Finding]:
    """Report a declaration that no flag confirms, flags that grader.json does not declare, or a
    gate that requires hacks that nobody reports.

    It is not a failure if exploits were not played, because the grader may flag just those.
    """
    source, needed = played.hack_source, setup.params.gate.require_hack_source
    undeclared = not source.declared and bool(source.flagged)
    if source.is_measured or not (source.declared or needed or undeclared):
        return
    if source.declared and played.spared:
        count = len(played.spared)
        description = (
            f"not known here: {count} exploit{'' if count == 1 else 's'} not played, and none of the others flagged"
        )
        remedy = f"To play them now, side effects included: {commands.command('doctor exploits')}"
        yield warn(f"hack rate: {description}; train and challenger play them", remedy)
        return
    if undeclared:
        found = "the grader flags hacks, but grader.json does not say so"
        remedy = 'Declare "reports_hacks": true in grader.json.'
    else:
        found = f"hack rate: would not be measured: {source.description}"
        remedy = f"See which exploits are flagged: {commands.command('doctor exploits')}"
    if needed:
        remedy = f"{remedy} Or set gate.require_hack_source: false."
        yield fail(f"{found}; gate.require_hack_source lets nothing pass without it", remedy)
    else:
        yield warn(found, remedy)


def _not_played(played: preflight.Preflight) -> str:
    description = f", {len(played.not_played)} not played for lack of a target" if played.not_played else ""
    if not played.spared:
        return description
    names = ", ".join(sorted(set(played.spared.values())))
    spared = f"{len(played.spared)} not played because they call {names} (probe: false)"
    return f"{description}, {spared}; train plays them before it starts"


def _announce_exploits(setup: Setup, client: ToolClient) -> int:
    """Announce what the exploits will send, counted on the examples on which they are played.
    Returns how many grades that takes at most."""
    recipe, retries = setup.recipe, setup.params.tools.retries
    rows = recipe.examples("train", preflight.num_examples_for(setup.params, recipe), setup.params.examples.seed)
    probes, hits = preflight.probes("", ""), any(exploit.starts_from == "hit" for exploit in recipe.exploits)
    grades = (len(recipe.exploits) + len(probes)) * len(rows) + (1 + hits) * sum(row.target is not None for row in rows)
    calls = sum(_num_calls(setup, client, exploit, row) for exploit in recipe.exploits for row in rows)
    if recipe.reaches_targets_by_calls:  # hits need no more calls than the whole targets
        known = [row for row in rows if row.target is not None]
        texts = [text for row in known for text in recipe.turns(row, row.target) or ()]
        calls += (1 + hits) * sum(len(chat.parse_calls(text)) for text in texts)
    again = f"; what fails is sent again, up to {retries} times" if retries else ""
    played = f"plays {len(recipe.exploits)} exploits and {len(probes)} probes on {len(rows)} examples"
    most = f"up to {grades} grades{_at_hosts(setup)} and up to {calls} tool calls"
    setup.announce(f"grader: {played}, and grades targets and hits alone: {most}{again}")
    return grades


# -- time ------------------------------------------------------------------------------------------
def _slow(setup: Setup, facts: dict[str, Any]) -> Iterator[Finding]:
    """Warn of a slow grader, because a run grades each rollout."""
    rollouts = num_rollouts(setup.params)
    seconds = rollouts / max(facts["grades_per_s"], 1e-3)
    if seconds > _LONG_S:
        remedy = "A grader at an endpoint can be given more machines."
        if isinstance(setup.recipe.grader, graders.Python):
            remedy = (
                "Each grade is a new process, which loads all that the source imports: import less at its top, or "
                "move slow work to a grader at an endpoint (docs/graders.md)."
            )
        description = f"at this rate a run of {rollouts:,} rollouts grades for {duration(seconds)}"
        yield warn(description, remedy, seconds_of_a_run=round(seconds))


def _too_slow(setup: Setup, seen: Finding, grades: int) -> Finding | None:
    """Warn instead of playing the exploits, if they would take longer than this check may."""
    seconds = grades / max(seen.facts["grades_per_s"], 1e-3)
    if seconds < _LONGEST_PLAY_S:
        return None
    description = f"exploits not played, because up to {grades} grades would take {duration(seconds)}"
    remedy = f"Play them alone: {commands.command('doctor exploits')}"
    problems = [warn(description, remedy, seconds_of_exploits=round(seconds)), *_slow(setup, seen.facts)]
    return together(problems, seen.words, **seen.facts)


def _num_calls(setup: Setup, client: ToolClient, exploit: Exploit, row: Example) -> int:
    """Count the tool calls that an exploit makes at most. A tool's answer is not known here, so
    calls in {result} are not counted."""
    values = scripted.values_of(setup.recipe, row)
    count = 0
    for number, template in enumerate(exploit.turns):
        try:
            text = scripted.fill(template, {**values, "result": ""} if number else values, "exploits.jsonl")
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


# -- scores ----------------------------------------------------------------------------------------
async def _burst(setup: Setup, opened: Wire) -> Finding:
    every, scale = setup.rows["train"], opened.grader.scale
    rows = [row for row in every if _target(setup, row) is not None] or every
    measured = _target(setup, rows[0]) is not None
    own = setup.recipe.grader
    size = wire.burst_size(setup.params.tools, own.rate_limit if isinstance(own, graders.Endpoint) else None)
    most = size + sum(3 * len(_repeated(setup, row)) + measured * len(_against(setup, row)) for row in rows[:4])
    setup.announce(f"grader: asks for up to {most} grades, {size} of them at once{_at_hosts(setup)}")

    async def timed(n: int, row: Example, text: str) -> tuple[Grade, float]:
        began = time.monotonic()
        return await _grade(setup, opened, row, text, n), time.monotonic() - began

    asked = [rows[n % len(rows)] for n in range(size)]
    answers = [(row, _answer(setup, row)) for row in asked]  # an error is raised before anything is sent
    began = time.monotonic()
    replies = await asyncio.gather(*(timed(n, row, text) for n, (row, text) in enumerate(answers)))
    facts = wire.speed("grades", [latency for _, latency in replies], time.monotonic() - began)
    grades = [grade for grade, _ in replies]
    problems = _no_score(setup, opened, grades, facts)
    if measured and any(problem.status == "fail" for problem in problems):
        problems = await _no_answer(setup, opened, rows[0], grades) or problems
    if measured and not problems:
        problems = await _one_score(setup, opened, rows[:4]) or _targets(asked, grades, scale)
    if not problems:
        problems = await _three_times(setup, opened, rows[:4])
    targets = f"targets score {scale.pass_threshold:g} or more" if measured else "targets: not measured"
    if setup.recipe.reaches_targets_by_calls:
        targets = "targets are reached by calls, and played with the exploits"
    if measured and (without := sum(_target(setup, row) is None for row in every)):
        targets += f" ({without} of {len(every)} examples have none)"
    description = f"{wire.describe_speed('grades', facts)}; {targets}; three times the same"
    return together(problems, description, **facts)


def _no_score(setup: Setup, opened: Wire, grades: Sequence[Grade], facts: dict[str, Any]) -> list[Finding]:
    """Report grades that failed. An outage is infrastructure. A reply without a score is a mistake
    of the grader's author, or comes from another server."""
    params = setup.params
    unscored = [grade for grade in grades if grade.score is None]
    if not unscored:
        return []
    share = (len(unscored) / len(grades)) ** (params.tools.retries + 1)
    outage = all(grade.status is GradeStatus.infra_error for grade in unscored)
    description = f"{len(unscored)} of {len(grades)} grades have no score: {one_line(unscored[0].explanation)}"
    statuses = [re.match(r"grader: (HTTP \d{3})\b", grade.explanation) for grade in unscored]
    if all(found and found[1] in wire.WRONG_PLACE for found in statuses):
        remedy = f"Check the address, the method (POST) and the key. grader.json: url = {_where(setup)}"
    elif outage:
        log = f"Look at the log of {_where(setup)}; the limit per grade is {wire.limit(params)}."
        remedy = wire.raised(setup, opened, "grade") or log
    elif isinstance(setup.recipe.grader, graders.Endpoint):
        remedy = 'It must answer {"score": number} to every body, and say 0 for a bad answer.'
    else:
        remedy = "Fix grader.json, or the rows that it reads: docs/graders.md says what has no score."
    if share <= params.rollout.max_unscored_share:
        return [warn(f"{description}; retries would hide it", remedy, **facts)]
    return [fail(description, remedy, infrastructure=outage, **facts)]


async def _no_answer(setup: Setup, opened: Wire, row: Example, grades: Sequence[Grade]) -> list[Finding]:
    """Report a target that has no score although a worthless answer has one: it is not an
    answer."""
    other = await _grade(setup, opened, row, "Done.", "worthless")
    first = next(grade for grade in grades if grade.score is None)
    if other.score is None:
        return []
    text = one_line(_answer(setup, row), 60)
    description = f"the target of example {row.id} as an answer, {text!r}, has no score: {one_line(first.explanation)}"
    return [fail(f"{description}; the answer 'Done.' has one", preflight.TARGET_REMEDY)]


async def _one_score(setup: Setup, opened: Wire, rows: Sequence[Example]) -> list[Finding]:
    """Report a grader that scores right and worthless answers alike for every example. It does not
    see the answer, or does not see the target."""
    answers = [(row, text) for row in rows for text in _against(setup, row)]
    grades = [await _grade(setup, opened, row, text, "differs") for row, text in answers]
    if len({grade.score for grade in grades}) != 1 or (score := grades[0].score) is None:
        return []
    row, text = answers[0]
    why = f": {one_line(grades[0].explanation)}" if grades[0].explanation else ""
    description = f"every answer scores the same, {score:g}: targets, empty, no-op and random ones"
    return [
        fail(
            f"{description}. First: example {row.id}, {one_line(text, 60)!r}{why}",
            "Fix the grader, or what it reads: the answer is sample.output_text, the row is item. See also "
            "examples.keys, and answer(target) in the recipe's examples.py.",
        )
    ]


def _targets(asked: Sequence[Example], grades: Sequence[Grade], scale: Scale) -> list[Finding]:
    for row, grade in zip(asked, grades, strict=True):
        if grade.score is not None and grade.score < scale.pass_threshold:
            wanted = f"expected at least {scale.pass_threshold:g}: {one_line(grade.explanation)}"
            return [
                fail(
                    f"the target of example {row.id} itself scores {grade.score:g}, {wanted}",
                    "Fix the grader, or answer(target) in the recipe's examples.py: no answer could be right. If less "
                    "than the highest score passes, declare pass_threshold in grader.json.",
                )
            ]
    return []


async def _three_times(setup: Setup, opened: Wire, rows: Sequence[Example]) -> list[Finding]:
    """Report a body that gets several scores when it is sent again, and an empty answer that
    passes."""
    for row in rows:
        for text in _repeated(setup, row):
            grades = [await _grade(setup, opened, row, text, "thrice") for _ in range(3)]
            if silent := _no_score(setup, opened, grades, {}):
                worthless, unscored = text != _target(setup, row), [one for one in grades if one.score is None]
                if not worthless or len(unscored) < len(grades) or _target(setup, row) is None:
                    return silent
                shown = one_line(unscored[0].explanation)  # the target had one just now: the grader is up
                description = f"the answer {text!r} to example {row.id} has no score, while its target has one: {shown}"
                return [fail(description, FORM_REMEDY)]
            scores = [grade.score or 0.0 for grade in grades]
            if len(set(scores)) > 1:
                shown = ", ".join(f"{score:g}" for score in scores)
                description = f"the body for example {row.id}, sent three times, scores {shown}"
                remedy = (
                    "Remove chance and clocks from the grader (for a judge: temperature 0, a fixed model): noise hides "
                    "what there is to learn."
                )
                return [fail(description, remedy, scores=scores)]
            if not text and scores[0] >= opened.grader.scale.pass_threshold:
                description = f"the empty answer to example {row.id} scores {scores[0]:g}, which passes"
                return [fail(description, "Fix the grader: an empty answer is not an answer.")]
    return []


# -- what is asked ---------------------------------------------------------------------------------
def _target(setup: Setup, row: Example) -> str | None:
    """Return the target as a final answer. None: the row has no target, or calls reach it, or it is
    not an answer."""
    if row.target is None or setup.recipe.reaches_targets_by_calls:
        return None
    return setup.recipe.answer(row.target)


def _answer(setup: Setup, row: Example) -> str:
    """Return the right answer, or one that needs no target."""
    target = _target(setup, row)
    return "Done." if target is None else target


def _against(setup: Setup, row: Example) -> list[str]:
    """Return the right answer and worthless answers."""
    return [_answer(setup, row), *preflight.probes("", row.id).values()]


def _repeated(setup: Setup, row: Example) -> list[str]:
    """Return the answers that must get the same score each time."""
    return list(dict.fromkeys((_answer(setup, row), "", "Done.")))


async def _grade(setup: Setup, opened: Wire, row: Example, text: str, word: object) -> Grade:
    context = wire.context(setup, "grade", word, row)
    return await opened.grader.grade(row, [Turn(text)], StopReason.completed, context)


def _addresses(setup: Setup, own: graders.Grader) -> list[str]:
    """List the URLs to which the grader, its judges and its parts send something. Queries are left
    out, because they may hold a key. {tool_server} stays if we start that server ourselves."""
    match own:
        case graders.Endpoint():
            ours = setup.params.tools.server_url or graders.TOOL_SERVER
            return [own.url.replace(graders.TOOL_SERVER, ours).partition("?")[0]]
        case graders.ModelGrader():
            return [judge.address(own.name).partition("?")[0]]
        case graders.Multi():
            inner = [address for part in own.graders.values() for address in _addresses(setup, part)]
            return list(dict.fromkeys(inner))
        case _:
            return []


def _at_hosts(setup: Setup) -> str:
    return "".join(dict.fromkeys(map(wire.at_host, _addresses(setup, setup.recipe.grader))))


def _where(setup: Setup) -> str:
    """Name the place whose log says more."""
    return ", ".join(_addresses(setup, setup.recipe.grader)) or "grader.json"
