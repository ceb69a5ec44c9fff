"""What is served now, and what a run starts from: two small files that point to prompts and weights, and load none.

    data/champion/champion.json    the champion: prompt, weights, version. Written by a promotion (tasks/registry.py), read by every stage
    data/policy/report.json        the policy pointer: the base model of this run. Written by the stage `policy`

Who samples with them is in rft/policies.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rft import commands, config, reports
from rft.recipe import Recipe
from rft.reports import PromptSettings

CHAMPION = Path("data/champion/champion.json")


def champion() -> reports.Champion:
    """What is served now; before anything was promoted, version 1, the beginning: the base policy with the seed prompt."""
    return reports.read(reports.Champion, CHAMPION) if CHAMPION.exists() else reports.Champion()


def champion_prompt(recipe: Recipe) -> PromptSettings:
    return champion().prompt or recipe.prompts.seed


def too_many_turns(params: config.Params, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(what, remedy) of each prompt that asks for more turns than a rollout has: a prompt may only lower rollout.max_turns."""
    prompts, file, limit = recipe.prompts, recipe.folder / "prompts.json", params.rollout.max_turns
    most = max([0, *prompts.max_turns])
    served = champion().prompt
    for where, asked, lower in (
        (f"{file}: seed.max_turns", prompts.seed.max_turns, "lower it or take it out"),
        (f"{file}: max_turns", most, "take it out"),
        (f"{CHAMPION}: prompt.max_turns", served and served.max_turns, f"go back to a champion that keeps to it: {rollback(params)}"),
    ):
        if asked is not None and asked > limit:
            yield (
                f"{where} asks for {asked} turns, and rollout.max_turns = {limit} in params.yaml, which a prompt may only lower",
                f"Set rollout.max_turns to at least {asked}, or {lower}.",
            )


def rollback(params: config.Params) -> str:
    """The command by which a person goes back to another champion."""
    return commands.command("rollback", "--model", Path(params.recipe.path).name, *commands.WHO_AND_WHY)


def policy_pointer() -> reports.PolicyReport:
    return reports.read(reports.PolicyReport, Path("data/policy/report.json"))
