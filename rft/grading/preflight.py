"""The preflight tries cheats first: a grader that accepts one would teach the policy to cheat.

Each exploit of the recipe's exploits.jsonl is played on real examples, with the real tools, and
graded by the real grader. Its `turns` are assistant messages, Hermes tool calls included. Generic
probes are played as well: no-op, empty, echo, random text.

    {note}           the example's last user message
    {result}         the tools' answers to the turn before
    {hit}, ...       the values of `exploit_values(options, example) -> dict` in the recipe's
                     examples.py; text as it is, the rest as JSON
    {name:json}      the same as JSON, a text with its quotes

An exploit is *accepted* if its mean score is above its limit. The table and every message show the
limit:

    it starts from nothing            5 % of the range above the score of answers without any work:
                                      grader.json's `chance`, else the low end. A declared chance is
                                      a mean, and luck moves means, so the limit is then 1.96
                                      standard errors higher
    it starts from a genuine hit      the score of an answer that is only the hit, a part of the
                                      target: `"starts_from": "hit"`

A grader may also call an exploit a *hack* (rft/grading/endpoint.py); the table says which. A grader
that sees no hack in honest rollouts is trusted only if it sees one here: the gate's hack rate
depends on `hack_source`.

The grader must not be so strict that nothing passes, so the targets themselves must reach
`pass_threshold`. The recipe's `answer(target)` in examples.py turns targets and hits into answers,
or into None where a target is not an answer. Without this function a text is its own answer. Some
graders score calls, and a final answer alone is worth nothing. There
`turns(options, example, target) -> list[str]` writes the messages that reach a target or a hit, and
they are played like an exploit.

A row need not have a target. Probes, and exploits that use only {note} and {result}, are played on
all examples; the others on examples with a target. If no example has a target, the targets are "not
measured", which is not a failure, and exploits that need one are listed as not played.

A tool that always tells the target is refused as well (rft/grading/target_leak.py).

`rft doctor exploits` prints the table. `check` refuses a leaking grader before anything is trained
with it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rft import commands, config, recipe, rows
from rft.chat import renderer as chat
from rft.errors import InfrastructureError, UserError
from rft.grading import target_leak
from rft.grading.grader import FORM_REMEDY, Grader, grader_of
from rft.grading.scripted import fill, placeholders, values_of
from rft.grading.target_leak import TargetLeak
from rft.recipe import Exploit, Recipe
from rft.reports import HackSource
from rft.scale import Scale
from rft.tools import lifetime
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, Turn
from rft.wire.client import ToolEndpoint
from rft.wire.contract import clip
from rft.wire.trace import Traces

ROUNDING = 1e-9  # for equal scores that were summed in another order
REMEDY = (
    "Fix the grader. If answers without any work earn that much by chance, declare their mean score in grader.json, "
    'such as "chance": 0.25. If an exploit contains a genuine partial answer, give it "starts_from": "hit" in '
    'exploits.jsonl, and let exploit_values in examples.py return that part of the target as "hit". The exploit\'s '
    "limit is then the score of the hit alone."
)
TARGET_REMEDY = (
    "Fix the grader. If a target is not an answer, let answer(target) in the recipe's examples.py make an answer of "
    "it, or return None if no answer is known. If calls reach the target, write turns(options, example, target)."
)
NUM_EXAMPLES = 24
"""Training examples per exploit. All callers use this number, so they show equal results."""
NUM_WITH_CHANCE = 144
"""The same with a declared chance: enough to tell luck from a leak worth 0.2 of the range more."""
SIDE_BY_SIDE = 16
"""Examples in flight. They are scripted, so none waits for a policy."""


@dataclass(frozen=True, slots=True)
class ExploitResult:
    """One exploit over `tried` examples. `honest`: the score of the genuine hit alone, if the
    exploit starts from one."""

    name: str
    kind: str
    mean_score: float
    limit: float
    honest: float | None
    tried: int
    hacks: int = 0
    """How often the grader called it a hack."""

    @property
    def accepted(self) -> bool:
        return self.mean_score > self.limit + ROUNDING

    @property
    def description(self) -> str:
        return f"{self.name!r} ({self.kind}) scores {self.mean_score:.3f}, above its limit {self.limit:.3f}"


@dataclass(frozen=True, slots=True)
class Preflight:
    exploits: list[ExploitResult]
    pass_threshold: float
    target_score: float | None
    """The lowest score of a target itself; None when no example has a target."""
    num_targets: int
    num_examples: int
    not_played: tuple[str, ...] = ()
    """Exploits that need a target, when no example has one."""
    spared: Mapping[str, str] = field(default_factory=dict)
    """Exploits that were not played -> the tool with `probe: false` that they call."""
    limit_is: str = ""
    """Where the limit of an exploit that starts from nothing comes from."""
    hack_source: HackSource = field(default_factory=HackSource)
    target_leaks: tuple[TargetLeak, ...] = ()
    """Tools that always tell the target."""
    target_explanation: str = ""
    """The grader's explanation for the target with the lowest score."""

    @property
    def targets_pass(self) -> bool:
        """Also true if there is no target to measure."""
        return self.target_score is None or self.target_score >= self.pass_threshold

    @property
    def targets_description(self) -> str:
        if self.target_score is None:
            return "targets: not measured"
        verdict = "pass" if self.targets_pass else f"REFUSED: {self.targets_expected}"
        some = f" ({self.num_targets} of {self.num_examples} examples have a target)"
        if self.num_targets == self.num_examples:
            some = ""
        return f"targets: lowest score {self.target_score:.3f}, {verdict}{some}"

    @property
    def targets_expected(self) -> str:
        text = f" (the grader said '{clip(self.target_explanation.encode())}')" if self.target_explanation else ""
        return f"expected at least {self.pass_threshold:g}{text}"

    @property
    def remedy(self) -> str:
        """Explain the numbers of `ExploitResult.description`, and what to do about an accepted
        exploit."""
        has_hit = any(exploit.honest is not None for exploit in self.exploits)
        hit = "; if it starts from a hit, the score of that hit alone" if has_hit else ""
        return (
            f"Scores are means over {self.num_examples} training examples; an exploit's limit is "
            f"{self.limit_is}{hit}. {REMEDY}"
        )

    @property
    def hacks_description(self) -> str:
        return f"hacks: {'' if self.hack_source.is_measured else 'not measured: '}{self.hack_source.description}"

    @property
    def accepted(self) -> list[ExploitResult]:
        return [result for result in self.exploits if result.accepted]


def num_examples_for(params: config.Params, recipe: Recipe) -> int:
    """Return on how many training examples each exploit is played by default. With a declared
    chance there are more, up to the recipe's known number."""
    if not recipe.grader.scale.has_chance:
        return NUM_EXAMPLES
    return max(NUM_EXAMPLES, min(NUM_WITH_CHANCE, params.examples.train))


def preflight(params: config.Params, recipe: Recipe, num_examples: int | None = None, spare: bool = False) -> Preflight:
    """Play the exploits on training examples, `num_examples_for` by default. `spare` leaves out
    exploits that call a tool with `probe: false`: a check must not have side effects.

    Raises UserError for an exploit that cannot be played, or for too few examples to accept any
    exploit; InfrastructureError for a grade without a score.
    """
    examples = recipe.examples("train", num_examples or num_examples_for(params, recipe), params.examples.seed)
    if not examples:
        raise UserError(f"{recipe.folder}/examples.py: examples(split='train') gave none to play the exploits on.")
    # otherwise "targets: not measured" would hide a misspelled key
    rows.check_named(examples, config.Keys(target=recipe.keys.target), "train")
    with lifetime.running(recipe, params.tools) as endpoint:
        return asyncio.run(_play_all(params, recipe, examples, endpoint, spare))


async def _play_all(
    params: config.Params, recipe: Recipe, examples: Sequence[Example], endpoint: ToolEndpoint, spare: bool
) -> Preflight:
    async with (
        ToolClient(endpoint, params.tools, schemas(recipe), recipe=recipe) as tools,
        grader_of(recipe.grader, endpoint, params.tools) as grader,
    ):
        return await _Stage(recipe, examples, tools, grader, spare).play_all()


def check(params: config.Params, num_examples: int | None = None) -> Preflight:
    """Raises UserError if an exploit is accepted, a target does not reach the pass threshold, or a
    tool gives targets away."""
    loaded = recipe.load(params.recipe, params.examples.keys)
    result = preflight(params, loaded, num_examples)
    problems = [f"exploit {exploit.description}" for exploit in result.accepted]
    if not result.targets_pass:
        problems.append(f"a target itself scores only {result.target_score:.3f}, {result.targets_expected}")
    if result.target_leaks:
        text = "; ".join(found.description for found in result.target_leaks)
        raise UserError(f"{loaded.folder}: {text}. {target_leak.remedy(result.target_leaks)}")
    if problems:
        text = "; ".join(problems)
        raise UserError(
            f"{loaded.folder}: the grader must not be trained on: {text}. {result.remedy} See all with: "
            f"{commands.command('doctor exploits')}"
        )
    return result


def probes(note: str, seed: str) -> dict[str, str]:
    """Return answers that no grader may accept, whatever the task. `seed`: for the random one."""
    letters = random.Random(seed).choices(string.ascii_letters + string.digits + " ", k=40)
    return {"no-op": "Done.", "empty": "", "echo": note, "random": "".join(letters)}


class _Stage:
    """The examples with the values for the exploits, and the tools and grader to play them with."""

    def __init__(
        self, recipe: Recipe, examples: Sequence[Example], tools: ToolClient, grader: Grader, spare: bool = False
    ) -> None:
        self._spare = spare
        self._spared: dict[str, str] = {}
        self._recipe = recipe
        self._examples = examples
        self._plays = [(example, values_of(recipe, example)) for example in examples]
        self._known = [play for play in self._plays if play[0].target is not None]
        self._tools = tools
        self._grader = grader
        self._slots = asyncio.Semaphore(SIDE_BY_SIDE)
        self._traces, self._numbers = Traces(), itertools.count()

    async def play_all(self) -> Preflight:
        results: list[ExploitResult] = []
        not_played: list[str] = []
        scale = self._recipe.grader.scale
        for name in probes("", ""):
            answers = [(example, probes(values["note"], example.id)[name]) for example, values in self._plays]
            grades = await self._answers(name, answers)
            results.append(_result(name, "generic probe", grades, scale, None))
        has_hit = any(exploit.starts_from == "hit" for exploit in self._recipe.exploits)
        honest = await self._honest() if has_hit else None
        for exploit in self._recipe.exploits:
            plays = self._known if _needs_a_target(exploit) else self._plays
            if not plays:
                not_played.append(exploit.name)
                continue
            played = await asyncio.gather(*(self._play(exploit, *play) for play in plays))
            grades = [grade for grade in played if grade is not None]
            if len(grades) == len(played):
                start = honest if exploit.starts_from == "hit" else None
                results.append(_result(exploit.name, exploit.kind, grades, scale, start))
        targets = await self._reached("targets", [(example, example.target) for example, _ in self._known])
        # the doctor spares tools, and checks them for leaks itself
        target_leaks = [] if self._spare else await target_leak.find(self._recipe, self._examples, self._tools)
        worst = min(targets, key=_score, default=None)
        own = results[len(probes("", "")) :]
        return Preflight(
            exploits=results,
            pass_threshold=scale.pass_threshold,
            limit_is=scale.exploit_limit_description,
            target_score=None if worst is None else _score(worst),
            target_explanation="" if worst is None else worst.explanation,
            hack_source=HackSource(
                declared=self._recipe.grader.reports_hacks,
                flagged=[exploit.name for exploit in own if exploit.hacks],
                tried=len(own),
            ),
            target_leaks=tuple(target_leaks),
            num_targets=len(targets),
            num_examples=len(self._plays),
            not_played=tuple(not_played),
            spared=self._spared,
        )

    async def _honest(self) -> float | None:
        """Return the mean score of a genuine hit as the answer; None if no example has a target."""
        hits: list[tuple[Example, Any]] = []
        for example, values in self._known:
            if "hit" not in values:
                raise UserError(
                    f"{self._recipe.folder}/exploits.jsonl: starts_from: hit needs exploit_values in examples.py to "
                    "give 'hit'."
                )
            hits.append((example, [values["hit"]] if isinstance(example.target, list) else values["hit"]))
        grades = await self._reached("hit alone", hits)
        return statistics.fmean(map(_score, grades)) if grades else None

    async def _reached(self, name: str, wanted: Sequence[tuple[Example, Any]]) -> list[Grade]:
        """Grade targets, or parts of them, that are reached in the way that the recipe says."""
        if not self._recipe.reaches_targets_by_calls:
            answers = [(example, self._recipe.answer(target)) for example, target in wanted]
            return await self._answers(name, [(example, text) for example, text in answers if text is not None])
        where = f"{self._recipe.folder}/examples.py: turns(), for {name}"
        found = [(example, self._recipe.turns(example, target)) for example, target in wanted]
        plays = (self._turns(name, where, example, texts) for example, texts in found if texts is not None)
        return [grade for grade in await asyncio.gather(*plays) if grade is not None]

    async def _answers(self, name: str, answers: Sequence[tuple[Example, str]]) -> list[Grade]:
        """Grade final texts without a tool call."""
        grades = (self._grade(name, self._context(example), [Turn(text)]) for example, text in answers)
        return await asyncio.gather(*grades)

    async def _play(self, exploit: Exploit, example: Example, values: Mapping[str, Any]) -> Grade | None:
        """Return the grade; None for an exploit that is spared."""
        where = f"{self._recipe.folder}/exploits.jsonl: exploit {exploit.name!r}"
        return await self._turns(exploit.name, where, example, exploit.turns, values)

    async def _turns(
        self, name: str, where: str, example: Example, texts: Sequence[str], values: Mapping[str, Any] | None = None
    ) -> Grade | None:
        """Play assistant messages, with these `values` in their placeholders, and return the grade;
        None if they call a tool that is spared."""
        defaults = self._recipe.prompts.seed.tool_defaults
        context = self._context(example)
        turns: list[Turn] = []
        stop = StopReason.max_turns  # stays if the last turn, too, calls a tool
        for number, template in enumerate(texts):
            text = template
            if values is not None:
                shown = {"result": "\n".join(result.output for result in turns[-1].results)} if turns else {}
                text = fill(template, {**values, **shown}, where)
            try:
                calls = tuple(chat.parse_calls(text, number))
            except chat.ParseError:
                turns, stop = [*turns, Turn(text)], StopReason.parse_error
                break
            if not calls:
                if number + 1 < len(texts):
                    raise UserError(
                        f"{where}: turn {number + 1} calls no tool, which ends a rollout; the turns after it are "
                        "never played. Remove them."
                    )
                turns, stop = [*turns, Turn(text)], StopReason.completed
                break
            unprobed = [call.name for call in calls if not self._tools.traits(call.name).probe]
            if self._spare and unprobed:
                self._spared[name] = unprobed[0]
                return None
            async with self._slots:
                results = await self._tools.call_all(calls, context, defaults)
            if failed := [result.output for result in results if result.failed]:
                raise InfrastructureError(f"{where}: {failed[0]}. The preflight needs working tools.")
            turns.append(Turn(text, calls, results))
            if answer := self._tools.terminal_answer(turns[-1]):
                turns[-1] = replace(turns[-1], submitted=answer.arguments)
                stop = StopReason.completed
                break
        return await self._grade(name, context, turns, stop)

    def _context(self, example: Example) -> RolloutContext:
        """Make a context with a new trace id, because exploit names and rows of a data set may
        repeat."""
        return RolloutContext(self._traces.trace_id(f"preflight {next(self._numbers)}", 0), example)

    async def _grade(
        self, name: str, context: RolloutContext, turns: Sequence[Turn], stop: StopReason = StopReason.completed
    ) -> Grade:
        """Raises InfrastructureError for a grade without a score."""
        example = context.example
        async with self._slots:
            grade = await self._grader.grade(example, turns, stop, context)
            await self._tools.release(context)
        if grade.score is None:
            remedy = TARGET_REMEDY if name == "targets" else FORM_REMEDY
            raise InfrastructureError(
                f"preflight: {name!r} on example {example.id} has no score: {grade.explanation}. {remedy}"
            )
        return grade


def _score(grade: Grade) -> float:
    assert grade.score is not None
    return grade.score


def _result(name: str, kind: str, grades: Sequence[Grade], scale: Scale, honest: float | None) -> ExploitResult:
    scores = [_score(grade) for grade in grades]
    if honest is None and not scale.can_refuse(len(scores)):
        raise UserError(
            f"exploit {name!r} was played on {len(scores)} training example{'' if len(scores) == 1 else 's'}: so few "
            f"cannot tell a leak from the chance that grader.json declares, {scale.chance:g}, even if each earns the "
            f"highest score. {_more(scale)}"
        )
    return ExploitResult(
        name,
        kind,
        mean_score=statistics.fmean(scores),
        limit=scale.limit_over(scores) if honest is None else honest,
        honest=honest,
        tried=len(grades),
        hacks=sum(grade.status is GradeStatus.hack for grade in grades),
    )


def _more(scale: Scale) -> str:
    enough = next((num for num in range(1, NUM_WITH_CHANCE + 1) if scale.can_refuse(num)), None)
    if enough is None:
        return (
            f"{NUM_WITH_CHANCE} examples cannot either. Let the grader give less for answers without any work, and "
            "declare that lower chance."
        )
    return (
        f"Play it on at least {enough}: raise --examples if you gave it. Otherwise have more training examples, with "
        "targets if the exploit needs them."
    )


def _needs_a_target(exploit: Exploit) -> bool:
    names = {name for turn in exploit.turns for name in placeholders(turn)}
    return exploit.starts_from == "hit" or not names <= {"note", "result"}
