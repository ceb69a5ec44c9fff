"""Find an agent by name, and lay all of it out in one folder, to be exported or talked to.

    find(clone, "champion" | "previous" | "2" | RUN, model) -> Agent
    with laid_out(agent) as tree:           # recipe, settings, data/policy, data/champion: what a
                                            stage reads, for this agent alone

A version of the registry is what was promoted; a run is what its gate judged, approved or not. No
run made the beginning. Before the first promotion it is the base policy that the newest run
measured; after it, for good, the base policy that the first promoted run was judged against. The
folder holds the code and settings of the agent's own revision, not the clone's, and every byte
comes by its hash: from Git, or from DVC's cache, where it is hashed again. A lock is held while an
agent is laid out, so that `rft gc` leaves its folder alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rft import commands, reports, shelves
from rft.errors import UserError, did_you_mean
from rft.reports import Decision, PolicyReport
from tasks.promotion import ledger, registry
from tasks.promotion.ledger import Act
from tasks.promotion.registry import CHAMPION, PREVIOUS, Version
from tasks.runs import champion, records
from tasks.runs.artifacts import Revision
from tasks.runs.champion import BEGINNING, Served
from tasks.runs.clone import Clone
from tasks.runs.git import GitError
from tasks.runs.records import RunRecord

POLICY = str(shelves.folder("policy"))
MEASURED = str(shelves.path(reports.BaselineReport))
LAID_OUT = "agent-"
"""How the scratch folders of `laid_out` begin; whoever uses one holds the `lock` in it."""


@dataclass(frozen=True)
class Agent:
    model: str
    version: int | None
    """None for what was never promoted."""
    served: Served
    at: Revision
    """Where its recipe, settings and base policy are."""
    run: str
    """The run of that revision. For the beginning: the one that measured it."""
    arm: str
    """Which of the challenger's arms it is."""
    standing: str
    """Who approved it, or why nobody did, or who took it back."""
    withdrawn: bool = False
    """It was rolled back, and not promoted again."""

    @property
    def words(self) -> str:
        return f"run {self.run}" if self.version is None else f"{self.model} {champion.in_words(self.version)}"


def find(clone: Clone, which: str, model: str | None = None) -> Agent:
    """Find an agent. `model` as in the registry; None: the clone's only one. Raises UserError when
    there is none."""
    if is_a_run(which):
        return _of_run(clone, records.find(clone, which))
    name = model_named(clone, model)
    version = registry.find(clone, name, which)
    if version is None:
        known = registry.find(clone, name, CHAMPION)
        if known is None and which in (CHAMPION, str(BEGINNING.champion.version)):
            return _beginning(clone, name)
        there = "nothing of it was promoted, so there is only the beginning, version 1"
        if known is not None:
            there = f"its champion is {champion.in_words(known.number)}"
        runs = commands.command("runs")
        raise UserError(f"{name} has no version {which}: {there}. A run's name is more than digits: see {runs}")
    return _of_version(clone, name, version)


def is_a_run(which: str) -> bool:
    return not which.isdigit() and which not in (CHAMPION, PREVIOUS)


def model_named(clone: Clone, model: str | None) -> str:
    """The registry's only model, or else the clone's only recipe that ever ran."""
    start = f"Start one: {commands.command('run')}"
    known = registry.models(clone)
    is_enough = model in known if model else bool(known)
    ran = set() if is_enough else _that_ran(clone)
    every = sorted({*known, *ran})
    if model is not None:
        if model not in every:
            remedy = did_you_mean(model, every) if every else start
            raise UserError(f"no run of this clone made a model {model!r}. {remedy}")
        return model
    if len(every) != 1:
        several = f"several models: {', '.join(every)}. Name one: --model NAME"
        raise UserError(f"this clone has {several if every else f'no run yet. {start}'}")
    return every[0]


@contextmanager
def laid_out(agent: Agent, *more: str) -> Iterator[Path]:
    """Lay the agent out for the block. `more`: other outputs of the revision, if it has them."""
    clone, at = agent.at.clone, agent.at
    with (
        tempfile.TemporaryDirectory(prefix=LAID_OUT, dir=clone.state) as scratch,
        records.held(scratch_lock(Path(scratch)), wait=True),
    ):
        tree = Path(scratch) / "tree"
        at.lay_tree(tree)
        # the engine is the one that runs here, for the recipe's server too
        shutil.rmtree(tree / "rft", ignore_errors=True)
        for path in (POLICY, *(one for one in more if one in at.outs)):
            at.lay(path, tree / path)
        served = agent.served
        served.place(tree, weights=False)
        if served.weights is not None:
            assert served.champion.weights_path
            assert served.revision
            target = tree / shelves.folder("champion") / served.champion.weights_path
            served.revision.lay(served.weights.path, target)
        _link_model(clone, tree)
        yield tree


def scratch_lock(scratch: Path) -> Path:
    return scratch / "lock"


def _link_model(clone: Clone, tree: Path) -> None:
    """A given base model lies in the clone, where Git need not know it."""
    pointer = reports.read(PolicyReport, tree / POLICY / "report.json")
    given, place = clone.root / pointer.model, tree / pointer.model
    if pointer.kind == "given" and given.is_dir() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(given, place)


# -- which -----------------------------------------------------------------------------------------
def _of_version(clone: Clone, model: str, version: Version) -> Agent:
    if version.is_beginning:
        return _beginning(clone, model)
    if not version.run.strip():
        raise UserError(f"{model} version {version.number} was registered by other hands: it names no run of rft.")
    at = Revision(clone, version.tags.get("revision", ""))
    served = champion.of(at, version.run, version.number)
    _assert_registered(served, at, version)
    promotions = (act for act in reversed(ledger.acts(clone)) if act.action == "promote" and act.run == version.run)
    act = next(promotions, None)
    approval = _approval(act) if act else "its approval is not in this clone's ledger"
    back = _taken_back(clone, model, version)
    if back is None:
        standing = f"{version.aliases[0] if version.aliases else 'was champion'}; {approval}"
    else:
        standing = f"rolled back by {back.who} on {back.when}: {back.why}; before that {approval}"
    return Agent(model, version.number, served, at, version.run, _arm(at), standing, withdrawn=back is not None)


def _taken_back(clone: Clone, model: str, version: Version) -> Act | None:
    """The rollback away from this version, if nothing has returned to it since."""
    number = str(version.number)
    moves = (
        act
        for act in reversed(ledger.acts(clone))
        if act.model == model and act.action != "reject" and number in (act.before, act.after)
    )
    last = next(moves, None)
    return last if last is not None and last.action == "rollback" and last.before == number else None


def _assert_registered(served: Served, at: Revision, version: Version) -> None:
    """Compare the revision with the hashes that the registry recorded at the promotion."""
    made, tags = served.champion, version.tags
    found = {"prompt_sha256": made.prompt.digest() if made.prompt else "", "dvc.lock_sha256": at.lock_sha256 or ""}
    if served.weights is not None:
        found |= {"weights_sha256": made.weights_sha256 or "", "dvc.md5": served.weights.md5}
    for name, value in found.items():
        if tags.get(name) != value:
            raise UserError(
                f"version {version.number}: the registry says {name} = {tags.get(name)}, revision {at.commit[:10]} of "
                f"run {version.run} has {value}. One of the two was changed after the approval."
            )


def _of_run(clone: Clone, record: RunRecord) -> Agent:
    if record.revision is None:
        state = f"run {record.name} is not over: it is {record.state}"
        raise UserError(f"{state}. Wait for it, or start it again: {record.again}")
    at = Revision(clone, record.revision)
    decision = at.report(Decision)
    if decision is None:
        why = f"{record.state}{': ' + record.message if record.message else ''}"
        none = f"run {record.name} came to no decision ({why}), so it has no agent"
        raise UserError(f"{none}. To name what is served: champion.")
    model = at.model
    if version := registry.find(clone, model, record.name):
        return _of_version(clone, model, version)
    last = ledger.decided(clone, record.name)
    if decision.decision != "promote":
        standing = f"the gate decided {decision.decision}: {decision.reason}"
    elif last is not None and last.action == "reject":
        standing = f"rejected by {last.who} on {last.when}: {last.why}"
    else:
        standing = "it waits for approval"
    return Agent(model, None, champion.judged(at, record.name, decision), at, record.name, _arm(at), standing)


def _beginning(clone: Clone, model: str) -> Agent:
    number = BEGINNING.champion.version
    first = registry.first_promoted(clone, model)
    if first is not None:
        at, run = Revision(clone, first.tags.get("revision", "")), first.run
        _assert_registered(champion.of(at, run, first.number), at, first)
    elif (measured := _measured(clone).get(model)) is not None:
        at, run = Revision(clone, measured.revision or ""), measured.name
    else:
        raise UserError(
            f"{model} {champion.in_words(number)}: no run of this clone that still has its bytes measured its base "
            f"policy. Start one: {commands.command('run')}"
        )
    standing = f"nobody had to approve it: the base policy with the seed prompt, as run {run} measured them"
    return Agent(model, number, BEGINNING, at, run, "champion", standing)


def beginnings(clone: Clone) -> dict[str, str]:
    """Model -> the revision that holds its beginning, for models without a promotion; the registry
    knows the others. Takes no lock."""
    found = {model: record.revision or "" for model, record in _measured(clone).items()}
    return {model: revision for model, revision in found.items() if registry.first_promoted(clone, model) is None}


def _measured(clone: Clone) -> dict[str, RunRecord]:
    """Model -> the newest run with a baseline of its base policy, whose bytes are here."""
    found: dict[str, RunRecord] = {}
    for record in sorted(records.load_all(clone), key=lambda one: one.started, reverse=True):
        if record.revision is None or record.bytes_removed or record.champion_version > BEGINNING.champion.version:
            continue
        at = Revision(clone, record.revision)
        with contextlib.suppress(GitError):  # a revision that somebody deleted, and left its record
            if MEASURED.encode() not in (at.file("dvc.lock") or b"") or at.model in found:
                continue
            if {MEASURED, POLICY} <= at.outs.keys():
                found[at.model] = record
    return found


def _that_ran(clone: Clone) -> set[str]:
    """The models of all runs that finished a stage; other revisions may hold other settings."""
    every = (Revision(clone, record.revision) for record in records.load_all(clone) if record.revision)
    return {at.model for at in every if at.lock_sha256}


def _arm(at: Revision) -> str:
    decision = at.report(Decision)
    return decision.candidate if decision else "champion"


def _approval(act: Act) -> str:
    overridden = f", overriding: {', '.join(act.overrides)}" if act.overrides else ""
    return f"approved by {act.who} on {act.when}{overridden}: {act.why}"
