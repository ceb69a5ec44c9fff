"""Stage `prompt`: looks for a better instruction or setting, before any weight is changed.

A first candidate is the seed prompt with one knob turned: an instruction that the recipe names, a
tool's default argument, a guard against repeated calls, or a turn limit. Later candidates combine
the survivors' knobs. They race by successive halving on one part of validation. Each round keeps
the better third, adds combinations of it, and doubles the examples; the seed prompt is always in.
All comparisons are paired by example and random stream.

The winner of a race is lucky as well as good, so it must show its gain again on the held-back part
of validation. It counts as found only when the lower end of that interval is above zero. 'No gain
found' is a result, too: the champion's prompt stays. When the baseline says that nothing is left to
gain, or that its own numbers are suspect, no rollout is spent on a search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rft import config, progress, recipe, reports, stage_files, stats
from rft.formatting import counted
from rft.models import weights
from rft.reports import Candidate, Metric, PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts.policy import Policy
from rft.rollouts.prompting import champion_prompt
from rft.rollouts.runner import Plan, RolloutRunner, Times, rollout_runner
from rft.rollouts.store import RolloutStore
from rft.sampling import policies
from rft.scale import of_range
from rft.types import Example

Knobs = tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class Racer:
    """A candidate with its rewards so far, by example."""

    settings: PromptSettings
    knobs: Knobs
    parent: str | None
    rewards: dict[str, list[float | None]] = field(default_factory=dict)
    round: int = 0
    eliminated: bool = False

    def mean(self) -> float:
        scored = [value for row in self.rewards.values() for value in row if value is not None]
        return sum(scored) / len(scored) if scored else -math.inf


def run(params: config.Params) -> None:
    baseline = stage_files.read(reports.BaselineReport)
    if baseline.readiness in ("not worth it", "suspect"):
        reason = f"no search: the baseline says '{baseline.readiness}': {baseline.reason}"
        _skip(champion_prompt(recipe.load(params.recipe)), reason)
        return
    progress.once("prompt", params, partial(_search, params))


def _search(params: config.Params, work: Path, stage_folder: Path) -> None:
    section = params.prompt
    device = weights.prepare_process(params.policy)
    ours = recipe.load(params.recipe)
    rows = stage_files.load_examples("validation")
    cut = max(1, round(len(rows) * section.search_share))
    seed = champion_prompt(ours)
    with rollout_runner(params, ours, work) as runner, RolloutStore(work / "rollouts") as store:
        race = Race(runner, policies.load_policy(runner, "champion", device).policy, section, store)
        racers = race.run(seed, ours.prompts, rows[:cut], rows[cut:])
        best = max(racers, key=lambda one: (not one.eliminated, one.mean(), one.settings.name == seed.name))
        confirmation = race.confirm(best.settings, seed, rows[cut:]) if best.knobs else None
        runner.times.write(stage_folder / "timing.json", runner.traces)
        rollout_log.write(store, stage_folder / "rollouts.parquet")
        num_rollouts = len(store)
    found = confirmation is not None and confirmation.low is not None and confirmation.low > 0
    report = reports.PromptReport(
        winner=best.settings if found else seed,
        found=found,
        reason=_reason(best, confirmation, found, len(rows) - cut, of_range(ours.grader.scale.ends)),
        candidates=[_candidate(one, racers[0], section.seed) for one in racers],
        confirmation=confirmation,
        num_rollouts=num_rollouts,
    )
    _publish(report, stage_folder)


def _skip(seed: PromptSettings, reason: str) -> None:
    Times().write(stage_files.timing("prompt"))
    rollout_log.write([], stage_files.rollouts("prompt"))
    report = reports.PromptReport(winner=seed, found=False, reason=reason, candidates=[], num_rollouts=0)
    _publish(report, stage_files.folder("prompt"))


def _publish(report: reports.PromptReport, stage_folder: Path) -> None:
    reports.write(report.winner, stage_folder / "prompt.json")
    reports.write(report, stage_folder / "report.json")
    progress.print_line("prompt", report.reason)


class Race:
    """Rounds of measuring, halving and combining."""

    def __init__(self, runner: RolloutRunner, policy: Policy, section: config.Prompt, store: RolloutStore):
        self.runner, self.policy, self.section, self.store = runner, policy, section, store

    def run(
        self, seed: PromptSettings, prompts: recipe.Prompts, rows: Sequence[Example], held_back: Sequence[Example] = ()
    ) -> list[Racer]:
        """Return all candidates that took part, the seed prompt first. `held_back`: for the
        confirmation."""
        racers = [Racer(seed, (), None)]
        for knob in knobs(seed, prompts, self.runner.params.rollout.max_turns):
            racers.append(Racer(apply(seed, prompts, (knob,)), (knob,), seed.name))
        count = min(self.section.first_examples, len(rows))
        for racer in {racer.settings.system: racer for racer in racers}.values():
            self.runner.check_openings(self.policy, [*rows, *held_back], racer.settings)
        for number in range(1, self.section.rounds + 1):
            last = number == self.section.rounds
            count = len(rows) if last else count
            alive = [racer for racer in racers if not racer.eliminated]
            for n, racer in enumerate(alive, 1):
                racer.round = number
                what = f"round {number} of {self.section.rounds}, candidate {n} of {len(alive)}"
                self._measure(racer, rows[:count], what)
            if not last:
                survivors = sorted(alive[1:], key=lambda racer: -racer.mean())[: max(2, len(alive) // 3)]
                for racer in alive[1:]:
                    racer.eliminated = racer not in survivors
                known = {racer.knobs for racer in racers}
                for pair in itertools.combinations(survivors, 2):
                    if (merged := _merge(*pair)) and merged not in known:
                        racers.append(Racer(apply(seed, prompts, merged), merged, pair[0].settings.name))
                        known.add(merged)
            count = min(2 * count, len(rows))
        return racers

    def confirm(self, best: PromptSettings, seed: PromptSettings, rows: Sequence[Example]) -> Metric:
        """Measure the paired gain on examples that the search never saw."""
        arms = [Racer(best, (), None), Racer(seed, (), None)]
        for arm in arms:
            self._measure(arm, rows, f"confirmation of {arm.settings.name}", k=self.section.confirm_k)
        return stats.paired_gain(arms[0].rewards, arms[1].rewards, seed=self.section.seed)

    def _measure(self, racer: Racer, rows: Sequence[Example], what: str, k: int | None = None) -> None:
        fresh = [example for example in rows if example.id not in racer.rewards]
        if not fresh:
            return
        name, section = racer.settings.name, self.section
        plan = Plan("prompt", name, racer.settings, section.temperature, k or section.k, section.seed)
        for row in self.runner.measure(self.policy, fresh, plan, self.store, lambda done, message: None):
            racer.rewards.setdefault(row.example_id, []).append(row.reward)
        examples = counted(len(racer.rewards), "example")
        progress.print_line("prompt", f"{what}: {name}, mean reward {racer.mean():z.3f} on {examples}")


def knobs(seed: PromptSettings, prompts: recipe.Prompts, max_turns: int) -> Iterator[tuple[str, Any]]:
    """Yield every single change that the recipe offers, in a fixed order. `max_turns`: the limit of
    a seed prompt that sets none (rollout.max_turns)."""
    for name, text in prompts.instructions.items():
        if text != seed.system:
            yield "instruction", name
    for tool, arguments in prompts.tool_defaults.items():
        for argument, values in arguments.items():
            for value in values:
                if value != seed.tool_defaults.get(tool, {}).get(argument):
                    yield f"{tool}.{argument}", value
    for value in prompts.block_repeated_calls:
        if value != seed.block_repeated_calls:
            yield "block_repeated_calls", value
    for value in prompts.max_turns:
        if value != (seed.max_turns or max_turns):
            yield "max_turns", value


def apply(seed: PromptSettings, prompts: recipe.Prompts, changes: Knobs) -> PromptSettings:
    settings = seed.model_dump()
    for knob, value in changes:
        if knob == "instruction":
            settings["system"] = prompts.instructions[value]
        elif "." in knob:
            tool, argument = knob.split(".", 1)
            settings["tool_defaults"] = {
                **settings["tool_defaults"],
                tool: {**settings["tool_defaults"].get(tool, {}), argument: value},
            }
        else:
            settings[knob] = value
    settings["name"] = ", ".join(value if knob == "instruction" else f"{knob}={value}" for knob, value in changes)
    return PromptSettings(**settings)


def _merge(a: Racer, b: Racer) -> Knobs | None:
    """Combine both changes, if they turn different knobs."""
    if {knob for knob, _ in a.knobs} & {knob for knob, _ in b.knobs}:
        return None
    return tuple(sorted([*a.knobs, *b.knobs], key=lambda change: change[0]))


def _candidate(racer: Racer, seed: Racer, number: int) -> Candidate:
    shared = {key: seed.rewards[key] for key in racer.rewards}
    return Candidate(
        settings=racer.settings,
        parent=racer.parent,
        search=stats.mean_interval(racer.rewards.values(), seed=number),
        gain=stats.paired_gain(racer.rewards, shared, seed=number) if racer is not seed and racer.rewards else None,
        round=racer.round,
        eliminated=racer.eliminated,
    )


def _reason(best: Racer, confirmation: Metric | None, found: bool, held_back: int, of_scale: str = "") -> str:
    if confirmation is None:
        return "no gain found: no candidate beat the seed prompt in the search"
    interval = f"{confirmation.low:+z.3f} to {confirmation.high:+z.3f}"
    where = f"on {held_back} held-back examples: gain {confirmation.value:+z.3f} ({interval}){of_scale}"
    if found:
        return f"found '{best.settings.name}', confirmed {where}"
    return f"no gain found: '{best.settings.name}' was not confirmed {where}"
