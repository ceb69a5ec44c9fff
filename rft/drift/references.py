"""Find what a window is compared with: profiles of all that should look like production.

    train         the champion's profile; before the first promotion the recipe's training examples
    validation    the recipe's validation examples
    test          the recipe's test examples: only their inputs, no rollout is played on them here
    window        the traffic that the champion's run saw, because examples do not say what an agent
                  did

A reference that is not available is left out.
"""

from __future__ import annotations

from rft import files, reports, stage_files
from rft.config import Params
from rft.drift import profile
from rft.drift.features import Plan
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Against, Profile
from rft.types import Split


def from_params(params: Params, loaded: Recipe, plan: Plan) -> dict[Against, Profile]:
    """Profile all that a window is compared with."""
    found: dict[Against, Profile] = {"train": profile.reference(params, loaded, plan)}
    measured_on: list[tuple[Split, int, int]] = [
        ("validation", params.examples.validation, 0),
        ("test", params.examples.test, params.examples.block),
    ]
    for split, count, block in measured_on:
        examples = loaded.examples(split, count, params.examples.seed, block)
        found[split] = profile.of_examples(examples, plan, f"the {split} examples of recipe {loaded.name}")
    if (window := champions_window()) is not None:
        found["window"] = window
    return found


def champions_window() -> Profile | None:
    """Read the profile of the traffic that the champion's run saw, if the run left one."""
    champion = stage_files.champion()
    if champion.window_path is None:
        return None
    path = stage_files.folder("champion") / champion.window_path
    found = reports.read(Profile, path)
    if champion.window_sha256 not in (None, files.sha256(path)):
        named = f"{stage_files.path(reports.Champion)} names {champion.window_sha256}"
        raise UserError(f"{path}: not the champion's window: {named}. Restore it: dvc checkout {path}.dvc")
    return found
