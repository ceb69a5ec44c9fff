"""Find an agent by name, and lay all of it out in one folder, to be exported or talked to.

    find(clone, "champion" | "previous" | "12" | RUN, model) -> Agent
    with laid_out(agent) as tree:           # recipe, settings, data/policy, data/champion: what a
                                            stage reads, for this agent alone

A champion is named by the entry of its promotion in the ledger. A run stands for what its gate
judged, approved or not. No run made the beginning, 0. Before the first promotion it is the base
policy that the newest run measured. After it, for good, it is the base policy against which the
first promoted run was judged. The folder holds the code and settings of the agent's own revision,
not the clone's. Every byte is found by its hash, in Git or in DVC's cache, where it is hashed
again. A lock is held while an agent is laid out, so that `rft runs gc` leaves its folder alone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rft import commands, reports, stage_files
from rft.errors import UserError, did_you_mean
from rft.reports import Decision, PolicyReport
from tasks.ledger import book, request_status
from tasks.ledger.facts import BEGINNING, Champion, RequestState
from tasks.ledger.state import State
from tasks.ledger.statement import now
from tasks.promotion import champions, content
from tasks.promotion.mlflow_registry import CHAMPION, PREVIOUS
from tasks.runs import champion, records, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.champion import Served
from tasks.runs.clone import Clone
from tasks.runs.git import GitError
from tasks.runs.records import RunRecord

POLICY = str(stage_files.folder("policy"))
MEASURED = str(stage_files.path(reports.BaselineReport))
LAID_OUT = "agent-"
"""The beginning of the names of `laid_out`'s folders. The process that uses one holds its
`lock`."""


@dataclass(frozen=True)
class Agent:
    model: str
    version: int | None
    """The entry of its promotion; 0: the beginning; None: it was never promoted."""
    served: Served
    at: Revision
    """The revision with its recipe, settings and base policy."""
    run: str
    """The run of that revision; for the beginning, the run that measured it."""
    arm: str
    """Its arm in the challenger's report."""
    standing: str
    """Who approved it, or why nobody did, or who took it back."""
    withdrawn: bool = False
    """It was rolled back, and has not been promoted again."""

    @property
    def description(self) -> str:
        return f"run {self.run}" if self.version is None else f"{self.model} {champion.describe(self.version)}"


def find(clone: Clone, which: str, model: str | None = None) -> Agent:
    """Find an agent. `model` is a name from the ledger; None: the clone's only model. Raises
    UserError when there is no such agent."""
    state = book.latest(clone).state
    if is_a_run(which):
        return _of_run(clone, state, which)
    name = model_named(clone, state, model)
    now = state.champion(name)
    number = {CHAMPION: now, PREVIOUS: state.previous(name)}.get(which, int(which) if which.isdigit() else None)
    if number is None:
        raise UserError(f"{name} is at the beginning, so there is no champion before it.")
    if number == BEGINNING:
        return _beginning(clone, state, name)
    found = state.promotions.get(number)
    if found is None or found.model != name:
        runs = commands.command("runs")
        raise UserError(
            f"{name} has no champion {which}: its champion is {champion.describe(now)}. A run's name is more than "
            f"digits: see {runs}"
        )
    return _of_promotion(clone, state, found)


def is_a_run(which: str) -> bool:
    return not which.isdigit() and which not in (CHAMPION, PREVIOUS)


def model_named(clone: Clone, state: State, model: str | None) -> str:
    """Return the model of the chosen agent, or the ledger's only model, or the clone's only recipe
    that ever ran."""
    start = f"Start one: {commands.command('run')}"
    model = model or clone.model(state.moves)
    is_enough = model in state.moves if model else bool(state.moves)
    ran = set() if is_enough else _that_ran(clone)
    every = sorted({*state.moves, *ran})
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
    """Lay the agent out during the block. `more` names further outputs, if the revision has
    them."""
    clone, at = agent.at.clone, agent.at
    with (
        tempfile.TemporaryDirectory(prefix=LAID_OUT, dir=clone.state) as scratch,
        records.held(scratch_lock(Path(scratch)), wait=True),
    ):
        at.lay_tree(Path(scratch) / "tree")
        tree = Path(scratch) / "tree" / at.folder
        for path in (POLICY, *(one for one in more if one in at.outs)):
            at.lay(path, tree / path)
        served = agent.served
        served.place(tree, weights=False)
        if served.weights is not None:
            assert served.champion.weights_path
            assert served.revision
            target = tree / stage_files.folder("champion") / served.champion.weights_path
            served.revision.lay(served.weights.path, target)
        _link_model(clone, at.folder, tree)
        yield tree


def scratch_lock(scratch: Path) -> Path:
    return scratch / "lock"


def _link_model(clone: Clone, folder: str, tree: Path) -> None:
    """Link to a given base model. It lies in the agent's folder of the clone, perhaps outside of
    Git."""
    pointer = reports.read(PolicyReport, tree / POLICY / "report.json")
    given, place = clone.root / folder / pointer.model, tree / pointer.model
    if pointer.kind == "given" and given.exists() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(given, place)


# -- which -----------------------------------------------------------------------------------------
def _of_promotion(clone: Clone, state: State, made: Champion) -> Agent:
    at = Revision(clone, made.revision)
    transfer.fetch(clone, at)
    served = champions.at(clone, state, made.number)
    assert_same(at, state.requests[made.request])
    back = state.withdrawn(made.number)
    if back is None:
        is_now = state.champion(made.model) == made.number
        standing = f"{CHAMPION if is_now else 'was champion'}; {approval(made)}"
    else:
        standing = f"rolled back by {back.who} on {back.time}: {back.why}; before that {approval(made)}"
    return Agent(made.model, made.number, served, at, made.run, _arm(at), standing, withdrawn=back is not None)


def assert_same(at: Revision, request: RequestState) -> None:
    """Raise UserError when the revision's bytes are not those of the request in the ledger."""
    _, found = content.from_revision(at, request.act.run)
    names = [name for name, value in found if value != getattr(request.act.content, name)]
    if names:
        raise UserError(
            f"run {request.act.run}: {', '.join(names)} of its revision {at.commit[:10]} are not those that the ledger "
            f"has for its request (entry {request.number}): one of the two was changed. Start a new run."
        )


def _of_run(clone: Clone, state: State, which: str) -> Agent:
    asked = [request for request in state.requests.values() if which in request.act.run]
    exact = [request for request in asked if request.act.run == which]
    if not exact and all(record.name != which for record in records.load_all(clone)):
        exact = asked  # otherwise it is this clone's own run, without a request
    if len({request.act.run for request in exact}) == 1:
        request = exact[-1]
        if request.promoted:
            return _of_promotion(clone, state, state.promotions[request.promoted[-1]])
        at, run = Revision(clone, request.act.revision), request.act.run
        transfer.fetch(clone, at)
    else:
        record = records.find(clone, which)
        if record.revision is None:
            what = f"run {record.name} is not over: it is {record.state}"
            raise UserError(f"{what}. Wait for it, or start it again: {record.again}")
        at, run = Revision(clone, record.revision), record.name
    decision = at.report(Decision)
    if decision is None:
        none = f"run {run} came to no decision ({_why(clone, run)}), so it has no agent"
        raise UserError(f"{none}. To name what is served: champion.")
    standing = _standing(state, run, decision)
    return Agent(at.model, None, champion.judged(at, run, decision), at, run, _arm(at), standing)


def _why(clone: Clone, run: str) -> str:
    mine = [record for record in records.load_all(clone) if record.name == run]
    if not mine:
        return "it ran in another clone"
    record = mine[0]
    return f"{record.state}{': ' + record.message if record.message else ''}"


def _standing(state: State, run: str, decision: Decision) -> str:
    if decision.decision != "promote":
        return f"the gate decided {decision.decision}: {decision.reason}"
    request = state.request(run)
    if request and (no := state.rejection_of(request.act)):
        return f"rejected by {no.person} on {no.time}: {no.reason}"
    found = request_status.status(state, request, max(now(), state.time)) if request else None
    return "it waits for approval" if found is None or found.kind == "waits" else found.description


def _beginning(clone: Clone, state: State, model: str) -> Agent:
    first = first_promoted(state, model)
    if first is not None:
        at, run = Revision(clone, first.revision), first.run
        transfer.fetch(clone, at)
    elif (measured := _measured(clone).get(model)) is not None:
        at, run = Revision(clone, measured.revision or ""), measured.name
    else:
        raise UserError(
            f"{model}, {champion.describe(BEGINNING)}: no run of this clone that still has its bytes measured its base "
            f"policy. Start one: {commands.command('run')}"
        )
    standing = f"nobody had to approve it: the base policy with the seed prompt, as run {run} measured them"
    return Agent(model, BEGINNING, champion.BEGINNING, at, run, "champion", standing)


def first_promoted(state: State, model: str) -> Champion | None:
    """Return the first promotion that replaced the beginning."""
    every = (made for made in state.promotions.values() if made.model == model and made.before == BEGINNING)
    return next(every, None)


def beginnings(clone: Clone, state: State) -> dict[str, str]:
    """Return model -> the revision that holds its beginning."""
    found = {model: record.revision or "" for model, record in _measured(clone).items()}
    firsts = {model: first_promoted(state, model) for model in state.moves}
    return found | {model: first.revision for model, first in firsts.items() if first is not None}


def _measured(clone: Clone) -> dict[str, RunRecord]:
    """Return model -> the newest run that measured its base policy, and whose bytes are here."""
    found: dict[str, RunRecord] = {}
    for record in reversed(records.load_all(clone)):
        if record.revision is None or record.bytes_removed or champion.number(record.champion_version):
            continue
        at = Revision(clone, record.revision)
        with contextlib.suppress(GitError):  # somebody deleted the revision, but not its record
            if MEASURED.encode() not in (at.file("dvc.lock") or b"") or at.model in found:
                continue
            if {MEASURED, POLICY} <= at.outs.keys():
                found[at.model] = record
    return found


def _that_ran(clone: Clone) -> set[str]:
    """Return the models of all runs that finished a stage. Other revisions may hold other
    settings."""
    found: set[str] = set()
    for record in records.load_all(clone):
        with contextlib.suppress(GitError):  # somebody deleted the revision, but not its record
            at = Revision(clone, record.revision or "")
            if record.revision and at.lock_sha256:
                found.add(at.model)
    return found


def _arm(at: Revision) -> str:
    decision = at.report(Decision)
    return decision.candidate if decision else "champion"


def approval(made: Champion) -> str:
    """Say who approved a champion, when and why."""
    overridden = ", overriding: uncommitted code" if made.overrides else ""
    return f"approved by {made.who} on {made.time}{overridden}: {made.why}"
