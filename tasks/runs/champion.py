"""What is served now, as files in a run's worktree: champion.json, its profile, its weights.

    data/champion/champion.json   in Git: version, prompt, hashes
    data/champion/profile.json    in Git: how the examples were distributed that it was trained on
    data/champion/weights/        by DVC, from the cache, by the hash that the promoted run recorded

Versions are the registry's. Version 1 is the beginning, the base policy with the recipe's seed
prompt: it is served before anything was promoted, and the first promotion registers it, as the
first version of its model. A promoted champion is read from the revision of the run that made it,
so its shelf in a later run is a pure function of that revision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from rft import commands, config, reports, shelves
from rft.errors import ConfigError, UserError
from rft.reports import Champion, Decision, PolicyReport, PromotionRequest, PromptSettings, TrainReport
from tasks.runs import repro
from tasks.runs.artifacts import WEIGHTS, Out, Revision, link_out

_MAKES_THE_BASE = ("model", "architecture", "warm_start", "seed")


@dataclass(frozen=True)
class Served:
    champion: Champion
    revision: Revision | None = None
    """Of the run that was promoted; None for the beginning."""
    weights: Out | None = None

    def refuse_other_base(self, params: config.Params) -> None:
        """Raises UserError when the champion's weights belong on another base model than these
        settings make: before a warm start.

        Two given models of different names may hold the same bytes; there the stages compare
        hashes.
        """
        if self.revision is None or self.weights is None:
            return
        raw = yaml.safe_load(self.revision.file("params.yaml") or b"") or {}
        try:
            then: config.Policy = config.parse(
                raw.get("policy") or {}, f"params.yaml of run {self.champion.run}", config.Policy
            )
        except ConfigError:  # of a version that had other keys: the stages compare hashes
            return
        changed = [name for name in _MAKES_THE_BASE if getattr(then, name) != getattr(params.policy, name)]
        if changed and (then.model is None or params.policy.model is None):
            named = ", ".join(f"policy.{name}" for name in changed)
            back = commands.rollback(params.recipe.path)
            raise UserError(
                f"{named}: changed since run {self.champion.run}, whose {self.champion.weights} weights are the "
                "champion's, and fit the base model "
                "of then alone. Restore the policy's settings, or go back to a champion without weights of its "
                f"own: {back}"
            )

    def place(self, tree: Path, weights: bool = True) -> None:
        reports.write(self.champion, tree / shelves.path(Champion))
        if self.revision is not None and self.champion.profile_path:
            profile = self.revision.read(shelves.INPUTS_PROFILE)
            (tree / shelves.folder("champion") / self.champion.profile_path).write_bytes(profile or b"")
        if weights and self.weights is not None:
            link_out(self.weights, tree)
            repro.dvc(tree, "checkout", f"{WEIGHTS}.dvc")


BEGINNING = Served(Champion())


def in_words(version: int | str) -> str:
    """How every page and message names a champion."""
    return f"version {version}" + (", the beginning" if int(version) == BEGINNING.champion.version else "")


def of(revision: Revision, run: str, version: int) -> Served:
    """The champion that this run's promotion request describes. Raises UserError when the run has
    none."""
    request = revision.report(PromotionRequest) if revision.json(shelves.path(PromotionRequest)) else None
    if request is None:
        raise UserError(f"run {run} left no promotion request.")
    return _served(revision, run, version, request.candidate, request.prompt)


def judged(revision: Revision, run: str, decision: Decision) -> Served:
    """What the run's gate decided on, whatever it decided. The version is the one that it was
    judged against: it has none of its own."""
    prompt = revision.report(PromptSettings)
    before = _before(revision)
    if prompt is None or decision.candidate == "none":
        raise UserError(
            f"run {run} judged nothing new: {decision.reason}. What is served stays what it was, and has a name of "
            "its own: champion."
        )
    return _served(revision, run, before.version, decision.candidate, prompt)


def _before(revision: Revision) -> Champion:
    """The champion that the run began with."""
    path = str(shelves.path(Champion))
    return reports.parse(Champion, revision.file(path) or b"{}", f"{path} of revision {revision.commit[:10]}")


def _served(revision: Revision, run: str, version: int, candidate: str, prompt: PromptSettings) -> Served:
    before = _before(revision)
    if candidate == "challenger":
        trained = revision.report(TrainReport)
        policy = revision.report(PolicyReport)
        if trained is None or policy is None:
            raise UserError(
                f"run {run}: its revision {revision.commit[:10]} lacks the report of its policy or of its training."
            )
        weights, sha256, base = trained.weights, trained.sha256, policy.sha256
        out = revision.outs.get(trained.path or "")
    else:  # the prompt alone: the weights stay
        weights, sha256, base = before.weights, before.weights_sha256, before.base_sha256
        out = revision.outs.get(WEIGHTS)
    if (out is None) != (weights == "none"):
        raise UserError(f"run {run}: its reports speak of {weights} weights, which its dvc.lock does not know.")
    champion = Champion(
        version=version,
        run=run,
        prompt=prompt,
        weights=weights,
        weights_path="weights" if out else None,
        weights_sha256=sha256,
        base_sha256=base,
        profile_path="profile.json",
    )
    return Served(champion, revision, out)
