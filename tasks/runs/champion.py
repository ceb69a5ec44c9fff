"""The champion as files in a run's worktree: champion.json, its profile, its weights.

    data/champion/champion.json   in Git: version, prompt, hashes
    data/champion/profile.json    in Git: the distribution of the examples that it was trained on
    data/champion/weights/        by DVC, from the cache, by the hash that the promoted run recorded

Versions are the registry's. Version 1 is the beginning, the base policy with the recipe's seed
prompt: it is served until something is promoted, and the first promotion registers it. A promoted
champion is read from the revision of the run that made it, so its shelf in a later run is a pure
function of that revision.
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
    """The revision of the promoted run; None for the beginning."""
    weights: Out | None = None

    def refuse_other_base(self, params: config.Params) -> None:
        """Raise UserError, before any warm start, when the champion's weights do not belong to the
        base model of these settings. Given models of different names may hold the same bytes: there
        the stages compare hashes.
        """
        if self.revision is None or self.weights is None:
            return
        raw = yaml.safe_load(self.revision.file("params.yaml") or b"") or {}
        try:
            where = f"params.yaml of run {self.champion.run}"
            then: config.Policy = config.parse(raw.get("policy") or {}, where, config.Policy)
        except ConfigError:  # written by a version that had other keys: the stages compare hashes
            return
        changed = [name for name in _MAKES_THE_BASE if getattr(then, name) != getattr(params.policy, name)]
        if changed and (then.model is None or params.policy.model is None):
            named = ", ".join(f"policy.{name}" for name in changed)
            back = commands.rollback(params.recipe.path)
            raise UserError(
                f"{named}: changed since run {self.champion.run}, whose {self.champion.weights} weights are the "
                "champion's and fit only the base model of that time. Restore the policy's settings, or go back to a "
                f"champion without weights of its own: {back}"
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
    """Name a champion, in the same words on every page and in every message."""
    return f"version {version}" + (", the beginning" if int(version) == BEGINNING.champion.version else "")


def of(revision: Revision, run: str, version: int) -> Served:
    """The champion that the run's promotion request describes. Raises UserError without one."""
    request = revision.report(PromotionRequest) if revision.json(shelves.path(PromotionRequest)) else None
    if request is None:
        raise UserError(f"run {run} left no promotion request.")
    return _served(revision, run, version, request.candidate, request.prompt)


def judged(revision: Revision, run: str, decision: Decision) -> Served:
    """What the run's gate judged, whatever it decided. Its version is that of the champion which it
    was judged against."""
    prompt = revision.report(PromptSettings)
    before = _before(revision)
    if prompt is None or decision.candidate == "none":
        raise UserError(f"run {run} judged nothing new: {decision.reason}. To name what is served: champion.")
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
            missing = "the report of its policy or of its training"
            raise UserError(f"run {run}: its revision {revision.commit[:10]} lacks {missing}. Start a new run.")
        weights, sha256, base = trained.weights, trained.sha256, policy.sha256
        out = revision.outs.get(trained.path or "")
    else:  # the prompt alone: the weights stay
        weights, sha256, base = before.weights, before.weights_sha256, before.base_sha256
        out = revision.outs.get(WEIGHTS)
    if (out is None) != (weights == "none"):
        raise UserError(
            f"run {run}: its reports name {weights} weights, and its dvc.lock does not agree. Start a new run."
        )
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
