"""The prompt of a rollout, and the number of turns that it allows.

A prompt may only lower `rollout.max_turns`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rft import commands, config, stage_files
from rft.errors import ConfigError
from rft.recipe import Recipe
from rft.reports import Champion, PromptSettings


def champion_prompt(recipe: Recipe) -> PromptSettings:
    """Find the prompt that is served now; before any promotion it is the recipe's seed prompt."""
    return stage_files.champion().prompt or recipe.prompts.seed


def num_turns(prompt: PromptSettings, limits: config.Rollout, where: str = "") -> int:
    """Return how many turns a rollout may have. Raises ConfigError for a prompt (in file `where`)
    that asks for more than the limit."""
    if prompt.max_turns is not None and prompt.max_turns > limits.max_turns:
        asked = f"{where or 'the prompt'}: max_turns of {prompt.name!r} is {prompt.max_turns}"
        limit = f"rollout.max_turns = {limits.max_turns} in params.yaml, which a prompt may only lower"
        remedy = f"Set rollout.max_turns to at least {prompt.max_turns}, or run the stage that chose this prompt again."
        raise ConfigError(f"{asked}, and {limit}. {remedy}")
    return prompt.max_turns or limits.max_turns


def too_many_turns(params: config.Params, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (what, remedy) for each prompt that asks for more turns than rollout.max_turns."""
    prompts, file, limit = recipe.prompts, recipe.folder / "prompts.json", params.rollout.max_turns
    most = max([0, *prompts.max_turns])
    served = stage_files.champion().prompt
    back = f"go back to a champion that keeps to it: {commands.rollback(params.agent_name)}"
    for where, asked, lower in (
        (f"{file}: seed.max_turns", prompts.seed.max_turns, "lower it or take it out"),
        (f"{file}: max_turns", most, "take it out"),
        (f"{stage_files.path(Champion)}: prompt.max_turns", served and served.max_turns, back),
    ):
        if asked is not None and asked > limit:
            allowed = f"rollout.max_turns = {limit} in params.yaml, which a prompt may only lower"
            remedy = f"Set rollout.max_turns to at least {asked}, or {lower}."
            yield f"{where} asks for {asked} turns, and {allowed}", remedy
