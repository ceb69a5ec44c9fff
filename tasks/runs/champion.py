"""The champion as files in a run's worktree: champion.json, its profile, its weights.

    data/champion/champion.json   In Git: version, prompt, hashes.
    data/champion/weights/        In DVC's cache, by the hash that the promoted run recorded.
    data/champion/profile.json    In DVC: the distribution of the examples that made the weights.
    data/champion/window.json     In DVC: the distribution of the traffic that the promoted run saw.

New windows are compared with the profile, so it moves with the weights. A promotion of a prompt
alone keeps both. The base model has no profile, because no examples of ours made it. Examples do
not hold what the agent did, so that is compared with the champion's window. Profiles are counts
over what people wrote, so Git keeps only their hashes.

A version is the number of a promotion's entry in the ledger. The beginning is the base policy with
the recipe's seed prompt. It is served until something is promoted, and the first promotion
registers it. A promoted champion is read from the revision of the run that made it, so its folder
in a later run is a pure function of that revision.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from rft import commands, config, files, reports, stage_files
from rft.errors import ConfigError, UserError
from rft.reports import (
    ChallengerReport,
    Champion,
    Decision,
    PolicyReport,
    PromotionRequest,
    PromptSettings,
    TrainReport,
)
from tasks.runs import artifacts, repro
from tasks.runs.artifacts import PROFILE, WEIGHTS, WINDOW, Out, Revision

_MAKES_THE_BASE = ("model", "architecture", "warm_start", "seed")


@dataclass(frozen=True)
class Served:
    champion: Champion
    revision: Revision | None = None
    """The revision of the promoted run; None for the beginning."""
    weights: Out | None = None
    profile: bytes | None = field(default=None, repr=False)
    window: bytes | None = field(default=None, repr=False)

    def refuse_other_base(self, params: config.Params) -> None:
        """Raise UserError, before any warm start, if the champion's weights do not fit the base
        model of these settings. Given models with different names may hold the same bytes; for
        these the stages compare hashes.
        """
        if self.revision is None or self.weights is None:
            return
        raw = self.revision.settings
        try:
            where = f"params.yaml of run {self.champion.run}"
            then: config.Policy = config.parse(raw.get("policy") or {}, where, config.Policy)
        except ConfigError:  # from a version with other keys: the stages compare hashes
            return
        changed = [name for name in _MAKES_THE_BASE if getattr(then, name) != getattr(params.policy, name)]
        makes = [policy.model is None or policy.is_warm_started for policy in (then, params.policy)]
        if changed and any(makes):
            named = ", ".join(f"policy.{name}" for name in changed)
            back = commands.rollback(params.agent_name)
            raise UserError(
                f"{named}: changed since run {self.champion.run}, whose {self.champion.weights} weights are the "
                "champion's and fit only the base model of that time. Restore the policy's settings, or go back to a "
                f"champion without weights of its own: {back}"
            )

    def place(self, tree: Path, weights: bool = True) -> None:
        """Write the folder anew: a commit may hold an earlier champion's. With `weights`, also
        write the weights, and DVC's pointers to them and to the profiles."""
        files.delete(tree / stage_files.folder("champion"))
        reports.write(self.champion, tree / stage_files.path(Champion))
        profiles = {PROFILE: self.profile, WINDOW: self.window}
        for path, profile in profiles.items():
            if profile is not None:
                (tree / path).write_bytes(profile)
                if weights and self.revision is not None:
                    artifacts.link_out(artifacts.keep(self.revision.clone, profile), tree / path)
        if not weights:
            return
        if self.weights is not None:
            artifacts.link_out(self.weights, tree / WEIGHTS)
            repro.dvc(tree, "checkout", f"{WEIGHTS}.dvc")


BEGINNING = Served(Champion())


def describe(number: int) -> str:
    """Name a champion, in the same words on every page and in every message."""
    return f"champion {number}" if number else "the beginning"


def number(recorded: int) -> int:
    """Return the number of a champion that a run's record names. The beginning was once called 1,
    which is the ledger's genesis and never a promotion."""
    return 0 if recorded <= 1 else recorded


def from_revision(revision: Revision, run: str, version: int) -> Served:
    """Return the champion that the run's promotion request describes. Raises UserError without
    one."""
    request = revision.report(PromotionRequest) if revision.json(stage_files.path(PromotionRequest)) else None
    if request is None:
        raise UserError(f"run {run} left no promotion request.")
    return _served(revision, run, version, request.candidate, request.prompt, request.serve)


def judged(revision: Revision, run: str, decision: Decision) -> Served:
    """Return what the run's gate judged, with any decision. Its version is that of the champion
    against which it was judged."""
    prompt = revision.report(PromptSettings)
    before = began_with(revision)
    if prompt is None or decision.candidate == "none":
        raise UserError(f"run {run} judged nothing new: {decision.reason}. To name what is served: champion.")
    serve = config.Serve()
    if "serve" in decision.hashes and (report := revision.report(ChallengerReport)) is not None:
        serve = next(arm.serve for arm in report.arms if arm.name == decision.candidate)
    return _served(revision, run, before.version, decision.candidate, prompt, serve)


def began_with(revision: Revision) -> Champion:
    """Return the champion with which the run began."""
    path = str(stage_files.path(Champion))
    return reports.parse(Champion, revision.file(path) or b"{}", f"{path} of revision {revision.commit[:10]}")


def _served(
    revision: Revision, run: str, version: int, candidate: str, prompt: PromptSettings, serve: config.Serve
) -> Served:
    before = began_with(revision)
    if candidate == "challenger":
        trained = revision.report(TrainReport)
        policy = revision.report(PolicyReport)
        profile = revision.read(stage_files.INPUTS_PROFILE)
        if trained is None or policy is None or profile is None:
            missing = "the report of its policy or of its training, or the profile of its examples"
            raise UserError(f"run {run}: its revision {revision.commit[:10]} lacks {missing}. Start a new run.")
        weights, sha256, base = trained.weights, trained.sha256, policy.sha256
        out = revision.outs.get(trained.path or "")
    else:  # only the prompt is new: the weights stay, and what made them
        weights, sha256, base = before.weights, before.weights_sha256, before.base_sha256
        out = revision.outs.get(WEIGHTS)
        profile = _kept_profile(revision, run, before)
    if (out is None) != (weights == "none"):
        raise UserError(
            f"run {run}: its reports name {weights} weights, and its dvc.lock does not agree. Start a new run."
        )
    window = revision.read(stage_files.CURRENT_PROFILE)
    champion = Champion(
        version=version,
        run=run,
        prompt=prompt,
        weights=weights,
        weights_path="weights" if out else None,
        weights_sha256=sha256,
        base_sha256=base,
        profile_path=None if profile is None else Path(PROFILE).name,
        profile_sha256=None if profile is None else hashlib.sha256(profile).hexdigest(),
        window_path=None if window is None else Path(WINDOW).name,
        window_sha256=None if window is None else hashlib.sha256(window).hexdigest(),
        serve=serve,
    )
    return Served(champion, revision, out, profile, window)


def _kept_profile(revision: Revision, run: str, before: Champion) -> bytes | None:
    """Return the profile of the champion with which the run began. Version 0.1.0 kept it in Git.
    When a prompt had been promoted, it also gave the base model a profile, of a window that it
    never saw."""
    if before.weights == "none":
        return None
    profile = revision.read(PROFILE) or revision.file(PROFILE)
    if profile is None:
        raise UserError(f"run {run}: its revision {revision.commit[:10]} lacks {PROFILE}. Start a new run.")
    found = hashlib.sha256(profile).hexdigest()
    if before.profile_sha256 not in (None, found):
        named = f"its {stage_files.path(Champion)} names {before.profile_sha256}"
        raise UserError(f"run {run}: {PROFILE} has hash {found}, but {named}. Start a new run.")
    return profile
