"""Two runs side by side: what differed, and the results.

Everything is read from the revisions of the runs, so runs of other clones can be compared once
their revisions are fetched. A run that is not over has no revision, so the files in its worktree
are read. `Told.missing` names what cannot be read, such as bytes past their retention; the rest is
shown.

Numbers of two runs can be compared directly only if they were measured alike: on the same test
examples, by the same grader, under the same limits. `reservations` says where they were not. Even
then each run has luck of its own: a difference within both intervals does not count as one.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from rft import config, reports, secrets, stage_files
from rft.errors import ConfigError, RftError, UserError
from rft.reports import Arm, Metric, wording
from tasks.runs import champion, origin, records
from tasks.runs.artifacts import IN_GIT, Revision, read_yaml
from tasks.runs.clone import Clone
from tasks.runs.git import GitError
from tasks.runs.records import RunRecord

R = TypeVar("R", bound=reports.Report)
Flat = dict[str, Any]

NO_RESULT = "run."
"""The section of settings that change no result, such as run.max_hours."""
_GRADER = "grader.json"
_OURS = re.compile(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/(\S+) (\w+)")
_MEASURES = ("challenger.", "rollout.", "tools.", "recipe.")
"""Sections of settings that change the reward of one and the same policy."""
_METRICS = {
    "reward": ("sampled", "reward/mean"),
    "score": ("sampled", "score/mean"),
    "greedy score": ("greedy", "score/mean"),
    "solved": ("sampled", "solved/share"),
    "tokens sampled": ("sampled", "tokens/mean"),
    "tokens read": ("sampled", "context_tokens/mean"),
    "tool calls, P95": ("sampled", "tool_calls/p95"),
}


@dataclass(frozen=True)
class Told:
    """One of the two runs."""

    run: str
    state: str
    started: str
    code: str
    """The commit, and whether the run had uncommitted edits."""
    champion: str
    """The champion with which it was compared."""
    decision: str
    reason: str
    judged: str
    """The arm that the gate judged; otherwise the last one that was measured."""
    settings: Flat = field(repr=False)
    """Key -> value, with every default written out, without section `run`."""
    data: dict[str, str]
    """What it learned from and was measured on: name -> hash; empty: not known."""
    counts: dict[str, int]
    test_sha256: str | None
    metrics: dict[str, Metric | None]
    missing: list[str]


@dataclass(frozen=True)
class Comparison:
    a: Told
    b: Told

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that differ. For a run that lacks a key, for example because its version is
        older, the value is `(not there)`."""
        keys = sorted({*self.a.settings, *self.b.settings})
        pairs = {key: tuple(told.settings.get(key, "(not there)") for told in (self.a, self.b)) for key in keys}
        return {key: (one, other) for key, (one, other) in pairs.items() if one != other}

    @property
    def data(self) -> dict[str, str]:
        """Name -> same, differs, or unknown."""
        names = dict.fromkeys([*self.a.data, *self.b.data])
        found = {name: (self.a.data.get(name, ""), self.b.data.get(name, "")) for name in names}
        return {name: "unknown" if not all(pair) else _same(*pair) for name, pair in found.items()}

    @property
    def same_test(self) -> bool | None:
        """Whether both used the same test set; None where one of them has not opened any."""
        if self.a.test_sha256 is None or self.b.test_sha256 is None:
            return None
        return self.a.test_sha256 == self.b.test_sha256

    @property
    def reservations(self) -> list[str]:
        """Why the numbers cannot be compared directly; empty where they can."""
        if self.same_test is None:
            blind = [told.run for told in (self.a, self.b) if told.test_sha256 is None]
            return [f"there are no numbers on a test set for {' and for '.join(blind)}"]
        found = [] if self.same_test else ["they were measured on different test examples"]
        if self.data.get(_GRADER) == "differs":
            found.append("their graders differ")
        elif self.data.get("recipe") != "same":
            what = "differ" if self.data.get("recipe") == "differs" else "may differ"
            found.append(f"their recipes {what}, and with them perhaps the tools and the grader's code")
        changed = [key for key in self.settings if key.startswith(_MEASURES)]
        if changed:
            found.append(f"settings of the measurement differ: {', '.join(changed)}")
        return found

    def json(self) -> dict[str, Any]:
        """Return the same content for programs."""
        return {
            "runs": [_json(told) for told in (self.a, self.b)],
            "settings": {key: list(pair) for key, pair in self.settings.items()},
            "data": self.data,
            "same_test": self.same_test,
            "comparable": not self.reservations,
            "reservations": self.reservations,
        }


def _json(told: Told) -> dict[str, Any]:
    fields = {key: value for key, value in asdict(told).items() if key not in ("settings", "metrics")}
    return fields | {"metrics": {name: metric and metric.model_dump() for name, metric in told.metrics.items()}}


def _same(one: str, other: str) -> str:
    return "same" if one == other else "differs"


# -- finding them ----------------------------------------------------------------------------------
def compare(clone: Clone, a: str, b: str) -> Comparison:
    """Compare two runs, named as `rft runs` lists them, or by any unique part of the name. Raises
    UserError for an unknown run, and for the same run twice."""
    known = {record.name: record for record in records.load_all(clone)}
    others = _revisions(clone)
    names = sorted({*known, *others})
    one, other = (records.pick(names, name) for name in (a, b))
    if one == other:
        raise UserError(f"{a} and {b} are the same run, {one}. Name two.")
    told = [_told(clone, name, known.get(name), others.get(name)) for name in (one, other)]
    return Comparison(*told)


def _revisions(clone: Clone) -> dict[str, str]:
    """Return run -> commit for all runs that Git holds, including those of other clones."""
    listed = clone.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/exps").splitlines()
    return {found[1]: found[2] for line in listed if (found := _OURS.fullmatch(line))}


def _told(clone: Clone, name: str, record: RunRecord | None, commit: str | None) -> Told:
    commit = commit or (record.revision if record is not None else None)
    at = Revision(clone, commit) if commit is not None else None
    if record is None:
        assert at is not None
        record = origin.recorded(at, name)
    source = _Source(clone, record, at)
    return source.told()


# -- reading one -----------------------------------------------------------------------------------
@dataclass
class _Source:
    clone: Clone
    record: RunRecord
    at: Revision | None
    missing: list[str] = field(default_factory=list)

    def told(self) -> Told:
        challenger, decision = self.report(reports.ChallengerReport), self.report(reports.Decision)
        settings = self.settings()
        judged = _judged(challenger, decision)
        return Told(
            run=self.record.name,
            state=self.record.state,
            started=self.record.started,
            code=self.record.commit[:10] + (" + edits" if self.record.dirty else ""),
            champion=champion.describe(champion.number(self.record.champion_version)),
            decision=decision.decision if decision is not None else "none",
            reason=decision.reason if decision is not None else self.record.message,
            judged=judged.name if judged is not None else "",
            settings=settings,
            data=self.data(settings),
            counts=self.counts(),
            test_sha256=challenger.test_sha256 if challenger is not None else None,
            metrics=self.metrics(challenger, decision, judged),
            missing=self.missing,
        )

    def read(self, path: str) -> bytes | None:
        """Read a file of the run, from its revision or its worktree. Notes one that cannot be
        read."""
        if self.at is None:
            file = self.clone.worktrees / self.record.name / self.record.folder / path
            return file.read_bytes() if file.is_file() else None
        try:
            in_git = path == "params.yaml" or path in {str(stage_files.path(kind)) for kind in IN_GIT}
            return self.at.file(path) if in_git else self.at.read(path)
        except RftError as error:
            self.missing.append(str(error))
            return None

    def report(self, kind: type[R]) -> R | None:
        path = str(stage_files.path(kind))
        content = self.read(path)
        if content is None:
            return None
        try:
            return reports.parse(kind, content, f"{path} of run {self.record.name}")
        except ValidationError as error:
            self.missing.append(f"{path} is not a whole {kind.__name__}: {error.errors()[0]['msg']}")
            return None

    def settings(self) -> Flat:
        """Return the run's settings. Its secrets become known, so that no text shows them."""
        try:
            found = read_yaml(self.read("params.yaml") or b"")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self.missing.append(f"params.yaml is not as a run records it: {' '.join(str(error).split())}")
            return {}
        for name in secrets.variables(found):
            with contextlib.suppress(ConfigError):  # a secret that is not set here cannot be in our texts
                config.secret(f"env:{name}")
        with contextlib.suppress(ConfigError):  # a version with other keys: shown as they are
            found = config.parse(config.of_then(found)).model_dump(mode="json", by_alias=True)
        return {key: value for key, value in _flat(found) if not key.startswith(NO_RESULT)}

    def data(self, settings: Flat) -> dict[str, str]:
        traffic, examples = self.report(reports.TrafficReport), self.report(reports.ExamplesReport)
        policy = self.report(reports.PolicyReport)
        splits = examples.sha256 if examples is not None else dict.fromkeys(("train", "validation", "test"), "")
        recipe = str(settings.get("recipe.path", ""))
        return {
            "window": traffic.sha256 if traffic is not None else "",
            **{f"{split} examples": sha256 for split, sha256 in splits.items()},
            "recipe": self.tree(recipe),
            _GRADER: self.tree(recipe, _GRADER),
            "base model": policy.sha256 if policy is not None else "",
        }

    def tree(self, folder: str, name: str = "") -> str:
        """Hash what Git holds of a folder, or of one file in it; empty: not known. An unfinished
        run's edits are in no commit yet, so nothing is known of them."""
        if not folder or (self.at is None and self.record.dirty):
            return ""
        try:
            commit = self.at.commit if self.at is not None else self.record.commit
            where = f"{PurePosixPath(self.record.folder, folder)}/{name}"
            listed = self.clone.git("ls-tree", "-r", commit, "--", where).splitlines()
        except GitError as error:
            self.missing.append(str(error))
            return ""
        return hashlib.sha256("\n".join(listed).encode()).hexdigest() if listed else ""

    def counts(self) -> dict[str, int]:
        traffic, examples = self.report(reports.TrafficReport), self.report(reports.ExamplesReport)
        found = {"conversations": traffic.num_conversations} if traffic is not None else {}
        return found | (
            {f"{split} examples": n for split, n in examples.counts.items()} if examples is not None else {}
        )

    def metrics(
        self, challenger: reports.ChallengerReport | None, decision: reports.Decision | None, judged: Arm | None
    ) -> dict[str, Metric | None]:
        """Return the metrics of the judged arm and of the champion, under the same names."""
        found: dict[str, Metric | None] = {}
        if decision is not None and decision.candidate != "none":
            checks = {check.name: check for check in decision.checks}
            found["gain in reward"] = _of_check(checks.get("mean reward"))
            found["hack rate"] = _of_check(checks.get(wording.HACK_RATE))
        if challenger is not None:
            arms = {arm.name: arm for arm in challenger.arms}
            seconds = self.seconds()
            for arm, prefix in ((judged, ""), (arms.get("champion"), "champion's ")):
                if arm is not None:
                    found |= {f"{prefix}{name}": metric for name, metric in _of_arm(arm, seconds)}
        return found

    def seconds(self) -> dict[str, Any]:
        content = self.read(str(stage_files.timing("challenger")))
        return (yaml.safe_load(content) or {}).get("rollout_s", {}) if content else {}


def _judged(challenger: reports.ChallengerReport | None, decision: reports.Decision | None) -> Arm | None:
    if challenger is None or not challenger.arms:
        return None
    named = decision.candidate if decision is not None else ""
    return next((arm for arm in challenger.arms if arm.name == named), challenger.arms[-1])


def _of_check(check: reports.Check | None) -> Metric | None:
    if check is None or check.value is None:
        return None
    return Metric(value=check.value, low=check.low, high=check.high, n=check.n, unit=check.unit)


def _of_arm(arm: Arm, seconds: dict[str, Any]) -> Iterator[tuple[str, Metric | None]]:
    for name, (how, key) in _METRICS.items():
        yield name, getattr(arm, how).metrics.get(key)
    p95 = seconds.get(f"challenger/{arm.name}/sampled", {}).get("p95")
    yield "seconds, P95", None if p95 is None else Metric(value=p95, n=len(arm.sampled.rows))


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value by its dotted key. A list is one value, and so is a table without keys."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
