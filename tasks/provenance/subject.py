"""The facts of one version, from verified sources: all exports are written from them.

The ledger says who decided what. The run's revision says what was done, and each byte of it is
hashed again as it is read. Nothing comes from this clone's own notes, so two clones that have the
ledger and the bytes say the same. No fact quotes a conversation: there are only counts and hashes.

    gather(clone, state, model, number) -> Subject

Number 0 is the beginning. Nobody promoted it. It is the base policy of the run that keeps its bytes
(tasks/promotion/agents.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import yaml
from pydantic import ValidationError

from rft import files, reports, stage_files
from rft.errors import UserError
from rft.reports import (
    ChallengerReport,
    Decision,
    Evaluation,
    ExamplesReport,
    PolicyReport,
    PromptReport,
    PromptSettings,
    TrafficReport,
    TrainReport,
)
from rft.reports.environment import Environment
from tasks.dependencies import STAGES
from tasks.ledger.facts import BEGINNING, Look, SignedEntry
from tasks.ledger.state import State
from tasks.promotion import acts, agents, champions
from tasks.runs import champion, transfer
from tasks.runs.artifacts import WEIGHTS, Out, Revision, read_yaml
from tasks.runs.champion import Served
from tasks.runs.clone import Clone
from tasks.runs.git import git

ENVIRONMENT = str(stage_files.ENVIRONMENT)
_ENGINE = "rft/"


@dataclass(frozen=True)
class Stage:
    """A stage as the revision's dvc.lock records it."""

    name: str
    cmd: str
    deps: tuple[Out, ...]
    """What it read, without the engine's own files: the code commit names those."""
    outs: tuple[Out, ...]
    params: dict[str, Any]
    how: str = ""
    """ran, unchanged, restored; empty where the record of the run does not say."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Voiced:
    """What a person said about the version, in an entry of the ledger."""

    entry: int
    person: str
    time: str
    reason: str


@dataclass(frozen=True)
class File:
    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Weights:
    kind: str
    """lora or full."""
    path: str
    """The folder in the revision."""
    sha256: str
    """The hash of the folder by `rft.files.tree_sha256`, which approvals name."""
    files: tuple[File, ...]
    is_new: bool
    """This very run trained them; otherwise they are those of the champion before it."""


@dataclass(frozen=True)
class Subject:
    model: str
    number: int
    """The entry of the promotion; 0: the beginning."""
    id: str
    """SHA-256 of that entry; for the beginning, that of its revision and model."""
    time: str
    """When it was promoted; for the beginning, when its run began."""
    ledger: str
    """The ledger's genesis; empty where there is none."""
    entries: dict[str, int]
    """promotion, request, registration -> number of the entry."""
    ids: dict[int, str]
    """Each entry named here -> its SHA-256."""
    machine: str
    """Fingerprint of the key of the machine that asked for the promotion; empty: none did."""
    machine_name: str
    approvals: tuple[Voiced, ...]
    overrides: tuple[Voiced, ...]
    key_compromise: str
    """Why the promotion is doubtful; empty: it is not doubtful."""
    withdrawn: str
    """Who rolled it back, when and why; empty: nobody."""
    run: str
    revision: str
    code: str
    """The commit that the run worked with."""
    edits_sha256: str | None
    edited: tuple[str, ...]
    started: str
    ended: str
    started_by: str
    lock_sha256: str | None
    stages: tuple[Stage, ...]
    params: dict[str, Any]
    before: int
    """The champion that it was judged against."""
    before_weights: str | None
    prompt: PromptSettings | None
    serve: dict[str, Any]
    """How its answers are made; empty: each rollout is an answer."""
    weights: Weights | None
    base: PolicyReport
    recipe: str
    recipe_md5: str | None
    grader_sha256: str | None
    look: Look | None
    traffic: TrafficReport | None
    examples: ExamplesReport | None
    train: TrainReport | None
    """The report on its own weights; None: this run trained nothing that is served."""
    decision: Decision | None
    measured: Evaluation | None
    """What is served, measured on the test set; for the beginning, on the validation examples."""
    measured_on: str
    tool: str
    python: str
    platform: str
    packages: dict[str, str]
    packages_from: str
    """Where that list is from, in words."""
    uuid: UUID = field(init=False)

    def __post_init__(self) -> None:
        raw = bytearray(hashlib.sha256(f"agent-rft version {self.id} {self.model}".encode()).digest()[:16])
        object.__setattr__(self, "uuid", UUID(bytes=bytes(raw), version=5))

    @property
    def name(self) -> str:
        return f"{self.model} {champion.describe(self.number)}"

    @property
    def base_name(self) -> str:
        """The base model's name for people. One that the run made has the recipe's name."""
        return f"{self.model}-base" if self.base.is_made_here else self.base.model


def gather(clone: Clone, state: State, model: str, number: int) -> Subject:
    """Gather the facts of a version. Raises UserError for a version that does not exist, or whose
    revision is not what the ledger names, and InfrastructureError for bytes that are neither here
    nor at the remote."""
    at, run, served = _found(clone, state, model, number)
    acts.know_secrets(at)
    made = state.promotions.get(number)
    request = state.requests.get(made.request) if made is not None else None
    if request is not None:
        agents.assert_same(at, request)
    record, params = _record(at), _yaml(at, "params.yaml")
    decision, before = at.report(Decision), champion.began_with(at)
    base = at.report(PolicyReport)
    if base is None:
        raise UserError(f"revision {at.commit[:10]} of {model} has no report of its base model: it is incomplete.")
    judged = decision if number != BEGINNING else None
    look = state.looks.get(request.act.registration) if request is not None else None
    entries = {"promotion": number} if made is not None else {}
    entries |= {"request": request.number, "registration": request.act.registration} if request is not None else {}
    approvals = tuple(map(_voiced, made.approvals)) if made is not None else ()
    overrides = tuple(map(_voiced, made.overrides)) if made is not None else ()
    named = {*entries.values(), *(one.entry for one in (*approvals, *overrides))}
    machine = (state.grounds.keys.get(request.number) or ("",))[-1] if request is not None else ""
    lock, environment = _stages(at, record), _environment(at, record)
    recipe = str(params.get("recipe", {}).get("path", ""))
    measured, measured_on = _measured(at, number, decision)
    back = state.withdrawn(number) if made is not None else None
    prompt = served.champion.prompt if number != BEGINNING else _seed_prompt(at)
    return Subject(
        model=model,
        number=number,
        id=made.id if made is not None else hashlib.sha256(f"{at.commit} {model}".encode()).hexdigest(),
        time=made.time if made is not None else str(record.get("started", "")),
        ledger=state.genesis,
        entries=entries,
        ids={entry: state.ids[entry] for entry in sorted(named) if entry in state.ids},
        machine=machine,
        machine_name=(state.policy.machine_of(machine) or "") if machine else "",
        approvals=approvals,
        overrides=overrides,
        key_compromise=str(state.doubtful().get(number, "")) if made is not None else "",
        withdrawn=f"{back.who} on {back.time}: {back.why}" if back else "",
        run=run,
        revision=at.commit,
        code=str(record.get("commit") or git(clone.root, "rev-parse", f"{at.commit}^")),
        edits_sha256=record.get("edits_sha256"),
        edited=tuple(record.get("edited", ())),
        started=str(record.get("started", "")),
        ended=str(record.get("ended") or ""),
        started_by=request.starter_name if request is not None else str(record.get("started_by", "")),
        lock_sha256=at.lock_sha256,
        stages=lock,
        params=params,
        before=champion.number(before.version),
        before_weights=before.weights_sha256,
        prompt=prompt,
        serve={} if served.champion.serve.is_single else served.champion.serve.model_dump(mode="json"),
        weights=_weights(at, served),
        base=base,
        recipe=recipe,
        recipe_md5=next((dep.md5 for stage in lock for dep in stage.deps if dep.path == recipe), None),
        grader_sha256=look.act.grader_sha256 if look is not None else None,
        look=look,
        traffic=at.report(TrafficReport) if number != BEGINNING else None,
        examples=at.report(ExamplesReport),
        train=at.report(TrainReport) if judged is not None and judged.candidate == "challenger" else None,
        decision=judged,
        measured=measured,
        measured_on=measured_on,
        **environment,
    )


def _found(clone: Clone, state: State, model: str, number: int) -> tuple[Revision, str, Served]:
    if number == BEGINNING:
        revision = agents.beginnings(clone, state).get(model)
        if revision is None:
            raise UserError(f"{model}: no run whose bytes are in this clone measured its beginning.")
        at = Revision(clone, revision)
        transfer.fetch(clone, at)
        return at, str(_record(at).get("name", "")), champion.BEGINNING
    made = state.promotions.get(number)
    if made is None or made.model != model:
        known = ", ".join(str(one.number) for one in state.promotions.values() if one.model == model) or "none"
        raise UserError(f"{model} has no champion {number}. Promotions of it in the ledger: {known}.")
    served = champions.at(clone, state, number)  # and fetches the bytes
    return Revision(clone, made.revision), made.run, served


def _voiced(signed: SignedEntry) -> Voiced:
    return Voiced(signed.number, signed.person, signed.time, signed.reason)


# -- the revision ----------------------------------------------------------------------------------
def _record(at: Revision) -> dict[str, Any]:
    """Read the run's record from the message of its commit. Every version wrote the keys that are
    used here."""
    message = git(at.clone.root, "log", "-1", "--format=%B", at.commit)
    try:
        return json.JSONDecoder().raw_decode(message, message.index("\n{") + 1)[0]
    except ValueError:
        return {}


def _yaml(at: Revision, path: str) -> dict[str, Any]:
    try:
        return read_yaml(at.file(path) or b"")
    except (yaml.YAMLError, UnicodeDecodeError):
        raise UserError(f"{path} of revision {at.commit[:10]} is not YAML: it was changed by hand.") from None


def _stages(at: Revision, record: dict[str, Any]) -> tuple[Stage, ...]:
    at.outs  # noqa: B018 - raises for a dvc.lock that was edited into another form
    return stages(_yaml(at, "dvc.lock"), record.get("stages", {}), record.get("seconds", {}))


def stages(
    lock: dict[str, Any], how: Mapping[str, str] | None = None, seconds: Mapping[str, float] | None = None
) -> tuple[Stage, ...]:
    """Return the stages of a dvc.lock, in the order in which they run."""
    found: list[Stage] = []
    rows, order = lock.get("stages", {}), [*STAGES]
    for name in sorted(rows, key=lambda name: order.index(name) if name in order else len(order)):
        row = rows[name]
        deps = tuple(_out(dep) for dep in row.get("deps", []) if not dep["path"].startswith(_ENGINE))
        outs = tuple(map(_out, row.get("outs", [])))
        params = {key: value for file in row.get("params", {}).values() for key, value in file.items()}
        was, spent = (how or {}).get(name, ""), (seconds or {}).get(name, 0.0)
        found.append(Stage(name, row.get("cmd", ""), deps, outs, params, was, spent))
    return tuple(found)


def _out(row: dict[str, Any]) -> Out:
    return Out(row["path"], row.get("md5", ""), row.get("size", 0), row.get("nfiles"))


def _weights(at: Revision, served: Served) -> Weights | None:
    if served.weights is None or served.champion.weights_sha256 is None:
        return None
    found: list[File] = []
    tree = hashlib.sha256()
    for relative, _ in at.files(served.weights.path):
        content = at.read(f"{served.weights.path}/{relative}") or b""
        digest = hashlib.sha256(content)
        tree.update(f"{relative}\0".encode() + digest.digest())  # as rft.files.tree_sha256
        found.append(File(relative, digest.hexdigest(), len(content)))
    named = served.champion.weights_sha256
    if tree.hexdigest() != named:
        raise UserError(f"the weights of revision {at.commit[:10]} have hash {tree.hexdigest()}, and {named} is named.")
    is_new = served.weights.path != WEIGHTS
    return Weights(served.champion.weights, served.weights.path, named, tuple(found), is_new)


def _measured(at: Revision, number: int, decision: Decision | None) -> tuple[Evaluation | None, str]:
    if number == BEGINNING:
        baseline = at.report(reports.BaselineReport)
        return (baseline.sampled if baseline else None), "validation"
    report = at.report(ChallengerReport)
    arms = report.arms if report is not None and decision is not None else []
    return next((arm.sampled for arm in arms if decision and arm.name == decision.candidate), None), "test"


def _seed_prompt(at: Revision) -> PromptSettings | None:
    """Return the prompt with which the search began, in a run that began at the beginning."""
    report = at.report(PromptReport)
    if report is None:
        return None
    return report.candidates[0].settings if report.candidates else report.winner


# -- with what it was made -------------------------------------------------------------------------
def _environment(at: Revision, record: dict[str, Any]) -> dict[str, Any]:
    """Return packages, Python and tool, as the run itself recorded them."""
    where = f"{ENVIRONMENT} of revision {at.commit[:10]}"
    content = at.file(ENVIRONMENT)
    if content is None or hashlib.sha256(content).hexdigest() != record.get("environment_sha256"):
        raise UserError(f"{where} is not the one that its run recorded: it was changed.")
    try:
        last = reports.parse(Environment, content, where).starts[-1]
    except (ValidationError, IndexError):
        raise UserError(f"{where} is not whole: it was changed.") from None
    source = f"installed when the run started at {last.started}"
    known = {"tool": last.tool, "python": last.python, "platform": last.platform}
    return known | {"packages": dict(sorted(last.packages.items())), "packages_from": source}


def prompt_sha256(prompt: PromptSettings) -> str:
    return files.digest(prompt.model_dump(mode="json"))
