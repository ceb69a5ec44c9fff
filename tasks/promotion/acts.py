"""What people and runs do to the ledger: request, approve, reject, lift, roll back, override.

    request     A run that the gate would promote asks for it at its end.
    approve     A person signs a statement. When enough people have signed, the run is promoted.
    reject      A no to this prompt and these weights, in any run. `lift` takes it back.
    rollback    The champion before this one serves again.

Every act reads the ledger and the run's revision, never this clone's record of the run, so it works
in any clone. A promotion is its entry in the ledger: nothing is announced before it, and what shows
the champion follows it (projections.py). Each act can be repeated: what is in the ledger already is
not done again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from rft import commands, secrets
from rft.errors import RftError, UserError, did_you_mean
from rft.reports import Decision
from rft.reports.base import Report
from tasks.display import tracking
from tasks.ledger import authorise, book, keys, remote, statement, verify
from tasks.ledger.approval_status import ApprovalStatus
from tasks.ledger.authorise import Proposal
from tasks.ledger.book import Ledger
from tasks.ledger.entry import (
    Act,
    Approval,
    Entry,
    Lift,
    Override,
    PolicyChange,
    Promotion,
    Rejection,
    Request,
    Rollback,
)
from tasks.ledger.facts import Champion, RequestState, SignedEntry, VerifiedStatement
from tasks.ledger.keys import Key
from tasks.ledger.policy import Enrol, Policy, name_from
from tasks.ledger.state import State
from tasks.ledger.statement import Signed, Statement
from tasks.promotion import agents, content, preflight, projections, registration, sharing
from tasks.promotion.preflight import Checked
from tasks.runs import artifacts, edits, origin, records, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

C = TypeVar("C", bound=Report)
T = TypeVar("T")
ReportLine = Callable[[str], None]
_START_DAYS = 60.0
"""How long the statement of a run's start is valid: the request comes at the run's end."""


@dataclass(frozen=True)
class Signer:
    """A person with their key."""

    key: Key
    name: str
    """The name under which the first person to decide is enrolled."""


@dataclass(frozen=True)
class Outcome:
    """The result of an approval."""

    request: RequestState
    promoted: Champion | None
    """None: it waits for more approvals."""
    approval_status: ApprovalStatus
    problems: tuple[str, ...] = ()
    """Problems of what shows the champion. The promotion stands in spite of them."""


# -- requests --------------------------------------------------------------------------------------
def request_promotion(clone: Clone, record: RunRecord, report_line: ReportLine = print) -> RequestState:
    """Ask for the promotion of a run. A second call for the same run returns the first request.

    Raises UserError when the gate did not decide `promote`, or when a person has rejected this
    prompt and these weights. Raises InfrastructureError when the run's bytes cannot be shared. The
    record only finds the revision; what the ledger gets about the run is read from the revision.
    """
    if record.revision is None:
        remedy = "Go on with it" if record.state == "paused" else "Wait for it, or start it again"
        raise UserError(f"run {record.name} is not over: it is {record.state}. {remedy}: {record.again}")
    at = Revision(clone, record.revision)
    if at.report(Decision) is None:
        why = f"{record.state}{': ' + record.message if record.message else ''}"
        raise UserError(f"run {record.name} came to no decision ({why}). There is nothing to decide on.")
    began = origin.from_revision(at, record.name)
    look = registration.entry_number(at, record.name)
    asked, hashes = content.from_revision(at, record.name)
    if began.edits_sha256 is not None and not record.dirty:
        left = ", ".join(began.edited[:5])
        report_line(
            f"[ledger] run {record.name} holds files that its commit does not ({left}): they count as uncommitted "
            "code. If a stage wrote them, list them in .gitignore"
        )

    if remote.shared(clone).remote and book.latest(clone, report_line).state.request(record.name) is None:
        transfer.push(clone, at.commit)  # it may take minutes, so it is done before the ledger is locked

    registration.assert_fits(book.read(clone, report_line=report_line).state, look, at, record.name)

    def act(ledger: Ledger) -> RequestState:
        if (known := ledger.state.request(record.name)) is not None:
            return known
        ledger.begin()
        rules = ledger.state.policy.rules_of(at.model)
        made = Request(
            model=at.model,
            run=record.name,
            revision=at.commit,
            candidate=asked.candidate,  # type: ignore[arg-type]
            content=hashes,
            champion=began.champion,
            registration=look,
            edits_sha256=began.edits_sha256,
            edited=[statement.text(name) for name in began.edited],
            key=began.key,
            started_by=statement.text(began.started_by),
            expires=statement.later(book.now(ledger), days=rules.request_days),
        )
        entry = ledger.append(made, _start(ledger, made, began.start, report_line))
        return ledger.state.requests[entry.number]

    return _acting(clone, act, report_line)


def _start(ledger: Ledger, made: Request, start: dict[str, Any] | None, report_line: ReportLine) -> Signed | None:
    """Return the statement that says who started the run, if it still counts. If their key was
    removed since, or the ledger restarted, the starter is unknown, but the run is not lost."""
    if start is None:
        return None
    try:
        signed = Signed.model_validate(start)
        _would_stand(ledger, made, verify.verified_statement(ledger.state, signed))
    except (UserError, ValidationError) as error:
        _would_stand(ledger, made)  # raises if the request itself is refused
        report_line(f"[ledger] who started run {made.run} is unknown ({error}): it needs one approver more")
        return None
    return signed


def start(clone: Clone, model: str, record: RunRecord, report_line: ReportLine = print) -> dict[str, Any] | None:
    """Sign the start of a run, if four eyes are the rule. Returns None if they are not, or if no
    enrolled key is at hand: then nobody knows who started it, and one approver more is needed."""
    ledger = book.read(clone, report_line=report_line)
    if not ledger.state.policy.rules_of(model).four_eyes:
        return None
    try:
        key = keys.person(clone)
        if verify.holder(ledger.state, key.public, None) is None:
            raise UserError(f"key {key.fingerprint} is not enrolled")
        to_sign = ledger.statement("start", "started a run", days=_START_DAYS, model=model, run=record.key)
        return statement.sign(key, to_sign).model_dump(mode="json")
    except RftError as error:
        report_line(
            f"[ledger] four eyes are the rule, and who starts this run is unknown ({error}): it needs one approver more"
        )
        return None


def assert_known(clone: Clone, run: str, report_line: ReportLine = print) -> None:
    """Raise UserError for a run that neither this clone nor its ledger knows. Called before anybody
    is asked for a key."""
    names = [record.name for record in records.load_all(clone)]
    if not any(run in name for name in names):
        names += [request.act.run for request in book.latest(clone, report_line).state.requests.values()]
        if not any(run in name for name in names):
            records.pick(names, run)


def find(ledger: Ledger, run: str) -> RequestState:
    """Find a request by its run's name, or by any unique part of it. Raises UserError for none, and
    for several."""
    names = list(dict.fromkeys(request.act.run for request in ledger.state.requests.values()))
    hits = [name for name in names if name == run] or [name for name in names if run in name]
    if len(hits) > 1:
        raise UserError(f"{run!r} could be any of {', '.join(hits)}. Write more of the name.")
    if hits:
        found = ledger.state.request(hits[0])
        assert found
        return found
    raise UserError(f"the ledger holds no request of a run {run!r}. {did_you_mean(run, names)}")


# -- approve ---------------------------------------------------------------------------------------
def approve(
    clone: Clone, run: str, signer: Signer, why: str, override_dirty: bool = False, report_line: ReportLine = print
) -> Outcome:
    """Approve a run. Does not promote it: `promote` does that, once the outcome has enough
    approvals.

    Raises Refused when the ledger does not allow the approval, and UserError when the bytes are not
    those that were judged.
    """
    asked = _checked(clone, run, report_line)

    def act(ledger: Ledger) -> Outcome:
        request = ledger.state.requests[asked.number]
        if not _is_champion(ledger.state, request):
            authorise.assert_approvable(ledger.state, request, book.now(ledger))
            _first_owner(ledger, signer, report_line)
            is_dirty = request.act.edits_sha256 is not None
            stands = authorise.overriding(ledger.state, request, book.now(ledger))
            if override_dirty and is_dirty and not stands:
                append(ledger, _override(request), _statement(ledger, request, "override", why), signer)
            if _who(ledger.state, signer) not in _counting(ledger, request):
                append(ledger, _approval(request), _statement(ledger, request, "approve", why), signer)
        return _outcome(ledger, request)

    outcome = _acting(clone, act, report_line)
    # the run is champion already: what could not show that before may be reachable now
    return outcome if outcome.promoted is None else replace(outcome, problems=_shown(clone, report_line))


def wanted(
    clone: Clone, run: str, why: str, override_dirty: bool = False, report_line: ReportLine = print
) -> Statement:
    """Make the statement that somebody will sign elsewhere: an approval, or only the override."""
    asked = _checked(clone, run, report_line)

    def act(ledger: Ledger) -> Statement:
        request = ledger.state.requests[asked.number]
        authorise.assert_approvable(ledger.state, request, book.now(ledger))
        _assert_somebody(ledger, run)
        return _statement(ledger, request, "override" if override_dirty else "approve", why)

    return _acting(clone, act, report_line)


def submit(clone: Clone, run: str, signed: Signed, report_line: ReportLine = print) -> Outcome:
    """Append an approval or an override that was signed elsewhere."""
    asked = _checked(clone, run, report_line)

    def act(ledger: Ledger) -> Outcome:
        request = ledger.state.requests[asked.number]
        _assert_somebody(ledger, run)
        if signed.statement.id in ledger.state.statements:  # appended before; a kill stopped what came next
            return _outcome(ledger, request)
        made = {"approve": _approval, "override": _override}.get(signed.statement.act)
        if made is None:
            raise UserError(f"the statement is to {signed.statement.act}, and this takes one to approve or override.")
        ledger.append(made(request), signed)
        return _outcome(ledger, request)

    return _acting(clone, act, report_line)


def _assert_somebody(ledger: Ledger, run: str) -> None:
    if not ledger.state.had_owner:
        here = commands.command("approve", run, "--key", "FILE", *commands.WHY)
        raise UserError(f"nobody is enrolled yet: the first to decide is, with a key that signs here: {here}")


def _outcome(ledger: Ledger, request: RequestState) -> Outcome:
    approval_status = authorise.approval_status(ledger.state, request, book.now(ledger))
    is_champion = _is_champion(ledger.state, request)
    return Outcome(request, ledger.state.promotions[request.promoted[-1]] if is_champion else None, approval_status)


def _approval(request: RequestState) -> Act:
    return Approval(model=request.act.model, request=request.number)


def _override(request: RequestState) -> Act:
    return Override(model=request.act.model, request=request.number)


def _statement(ledger: Ledger, request: RequestState, act: str, why: str) -> Statement:
    days = ledger.state.policy.rules_of(request.act.model).approval_days
    more: dict[str, Any] = {"overrides": ["dirty"]} if act == "override" else {}
    about = {"model": request.act.model, "request": request.id, "content": request.act.content}
    return ledger.statement(act, why, days, **about, **more)


def _counting(ledger: Ledger, request: RequestState) -> set[str]:
    return {approval.person for approval in authorise.counting(ledger.state, request, book.now(ledger))}


def _asked(clone: Clone, run: str, report_line: ReportLine) -> RequestState:
    """Find a request. If the end of the run could not make it, it is made now, in the run's
    clone."""
    ledger = book.latest(clone, report_line)
    asked = {request.act.run for request in ledger.state.requests.values()}
    if run not in asked:
        every = records.load_all(clone)
        mine = [record for record in every if record.name == run]
        if not mine and not any(run in name for name in asked):
            mine = [record for record in every if run in record.name]
        if len(mine) == 1:
            return request_promotion(clone, mine[0], report_line)
    return find(ledger, run)


def _checked(clone: Clone, run: str, report_line: ReportLine) -> RequestState:
    """Find a request, and compare its bytes. This is done before the ledger is locked: gigabytes
    may have to be fetched, and what a request is about never changes."""
    request = _asked(clone, run, report_line)
    ledger = book.read(clone, report_line=report_line)
    if not _is_champion(ledger.state, ledger.state.requests[request.number]):
        authorise.assert_approvable(ledger.state, request, book.now(ledger))
        _assert_bytes(ledger, request)
    return request


def _assert_bytes(ledger: Ledger, request: RequestState) -> None:
    clone = ledger.clone
    at = Revision(clone, request.act.revision)
    know_secrets(at)
    if not at.exists():
        raise UserError(
            f"run {request.act.run} ran uncommitted code, so its revision {at.commit[:10]} lies only in the clone that "
            "ran it, until an owner overrides for it there. Approve it in that clone."
        )
    sharing.fetch(at, request, ledger.stored[request.number - 1].entry.machine)
    agents.assert_same(at, request)
    registration.assert_fits(ledger.state, request.act.registration, at, request.act.run)


def promote(clone: Clone, run: str, report_line: ReportLine = print) -> Outcome:
    """Make a run the champion, if enough people have approved. The slow part, the smoke test, runs
    before the ledger is locked."""
    ledger = book.read(clone, report_line=report_line)
    request = find(ledger, run)
    number, now = request.number, book.now(ledger)
    approval_status = authorise.approval_status(ledger.state, request, now)
    if _is_champion(ledger.state, request):
        return _done(clone, request, approval_status, report_line)
    if not approval_status.is_enough:
        return Outcome(request, None, approval_status)
    _would_stand(ledger, _promotion(ledger.state, request, now, Checked("", None)))
    _assert_bytes(ledger, request)
    checked = preflight.check(agents.find(clone, request.act.run), keys.machine(clone), report_line)

    def act(ledger: Ledger) -> RequestState:
        request = ledger.state.requests[number]
        if not _is_champion(ledger.state, request):
            made = _promotion(ledger.state, request, book.now(ledger), checked)
            ledger.append(made, files=checked.files)
        return request

    return _done(clone, _acting(clone, act, report_line), approval_status, report_line)


def _promotion(state: State, request: RequestState, now: str, checked: Checked) -> Promotion:
    counted = authorise.counting(state, request, now)
    return Promotion(
        model=request.act.model,
        request=request.number,
        approvals=[each.number for each in counted],
        before=state.champion(request.act.model),
        weights_signature=checked.signature_sha256,
        smoke=checked.smoke,
    )


def _done(clone: Clone, request: RequestState, approval_status: ApprovalStatus, report_line: ReportLine) -> Outcome:
    problems = _shown(clone, report_line)
    ledger = book.read(clone, report_line=report_line)
    request = ledger.state.requests[request.number]
    made = ledger.state.promotions[request.promoted[-1]] if request.promoted else None
    return Outcome(request, made, approval_status, problems)


def _shown(clone: Clone, report_line: ReportLine) -> tuple[str, ...]:
    """Show the champion everywhere. Returns what could not be shown."""
    tracking.make_up(clone, report_line)  # the version in MLflow's registry is linked to the run
    return tuple(projections.reconcile(clone, report_line))


def _is_champion(state: State, request: RequestState) -> bool:
    return state.champion(request.act.model) in request.promoted


# -- reject, lift, roll back -----------------------------------------------------------------------
def reject(clone: Clone, run: str, signer: Signer, why: str, report_line: ReportLine = print) -> SignedEntry:
    """Say no to what the gate would promote. It holds for any later run with the same content."""
    asked = _asked(clone, run, report_line)

    def act(ledger: Ledger) -> SignedEntry:
        request = ledger.state.requests[asked.number]
        know_secrets(Revision(clone, request.act.revision))
        if _is_champion(ledger.state, request):
            undo = f"To take it back: {undo_command(request.act.model)}"
            raise UserError(f"run {request.act.run} is the champion of {request.act.model} already. {undo}")
        _first_owner(ledger, signer, report_line)
        no = Rejection(model=request.act.model, request=request.number)
        append(ledger, no, _statement(ledger, request, "reject", why), signer)
        rejection = ledger.state.rejection_of(request.act)
        assert rejection
        return rejection

    return _acting(clone, act, report_line)


def lift(clone: Clone, run: str, signer: Signer, why: str, report_line: ReportLine = print) -> SignedEntry:
    """Take a rejection back. Returns the rejection that held until now."""

    def act(ledger: Ledger) -> SignedEntry:
        request = find(ledger, run)
        know_secrets(Revision(clone, request.act.revision))
        no = ledger.state.rejection_of(request.act)
        if no is None:
            raise UserError(f"what run {request.act.run} would promote is not rejected, so there is nothing to lift.")
        about = {"pair": request.act.content.pair, "rejection": ledger.state.ids[no.number]}
        to_sign = ledger.statement("lift", why, model=request.act.model, **about)
        append(ledger, Lift(model=request.act.model, rejection=no.number), to_sign, signer)
        return no

    return _acting(clone, act, report_line)


@dataclass(frozen=True)
class Returned:
    """A rollback."""

    number: int
    """The number of its entry."""
    time: str
    who: str
    why: str
    before: int
    to: Champion | None
    """None: the beginning."""
    problems: tuple[str, ...] = ()


def rollback(clone: Clone, model: str, signer: Signer, why: str, report_line: ReportLine = print) -> Returned:
    """Return to the champion before."""

    def act(ledger: Ledger) -> Returned:
        state = ledger.state
        assert_model(state, model)
        now, to = state.champion(model), state.previous(model)
        if to is None:
            raise UserError(f"{model} is at its beginning, so there is no champion before it to return to.")
        know_secrets(Revision(clone, state.promotions[now].revision))
        _first_owner(ledger, signer, report_line)
        about = {"champion": state.promotions[now].id, "to": state.promotions[to].id if to else None}
        to_sign = ledger.statement("rollback", why, model=model, **about)
        append(ledger, Rollback(model=model, before=now, to=to), to_sign, signer)
        move = state.moves[model][-1]
        return Returned(move.number, move.time, move.who, move.why, now, state.promotions.get(to))

    back = _acting(clone, act, report_line)
    return replace(back, problems=tuple(projections.reconcile(clone, report_line)))


def assert_model(state: State, model: str) -> None:
    if model not in state.moves:
        known = did_you_mean(model, state.moves) if state.moves else "Nothing was promoted yet."
        raise UserError(f"nothing of model {model!r} was ever promoted. {known}")


def only_model(state: State) -> str:
    """Return the only model that has promotions. Raises UserError for none, and for several."""
    if len(state.moves) == 1:
        return next(iter(state.moves))
    if not state.moves:
        raise UserError(
            f"nothing was promoted yet, so there is no champion but the beginning. The runs: {commands.command('runs')}"
        )
    raise UserError(f"several models were promoted: {', '.join(sorted(state.moves))}. Name one: --model NAME")


def undo_command(model: str) -> str:
    """Return the command that takes a promotion of this model back."""
    return commands.command("rollback", "--model", model, *commands.WHY)


# -- people ----------------------------------------------------------------------------------------
def enrolled(kind: type[C], **facts: object) -> C:
    """Make a change from what somebody typed. Raises UserError naming what does not fit."""
    try:
        return kind.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{key} = {facts.get(key)!r}: {first['msg']}. A name is lowercase, without blanks.") from None


def change(
    clone: Clone,
    made: Report | Callable[[Policy], Report],
    signer: Signer | None,
    why: str,
    report_line: ReportLine = print,
) -> Entry:
    """Change people, machines, rules or thresholds. `made` may be a function of the policy at that
    time. `signer` is None for thresholds while nobody is enrolled who could sign."""

    def act(ledger: Ledger) -> Entry:
        know_secrets_here(clone)
        if signer is not None and not isinstance(made, Enrol):
            _first_owner(ledger, signer, report_line)
        wanted = PolicyChange.model_validate({"change": made(ledger.state.policy) if callable(made) else made})
        if signer is None:
            return ledger.append(wanted)
        return append(ledger, wanted, ledger.statement("policy", why, change=wanted.change), signer)

    return _acting(clone, act, report_line)


def _first_owner(ledger: Ledger, signer: Signer, report_line: ReportLine) -> None:
    """Enrol the first person who decides as owner: nobody is there who could have done it
    before."""
    ledger.begin()
    if ledger.state.had_owner:
        return
    enrol = Enrol(name=name_from(signer.name), roles=["owner"], key=signer.key.public)
    to_sign = ledger.statement("policy", "the first to decide", change=enrol)
    append(ledger, PolicyChange(change=enrol), to_sign, signer)
    report_line(
        f"[ledger] {enrol.name} is the first to decide here and is enrolled as owner, with key "
        f"{signer.key.fingerprint}. To enrol others: {commands.command('ledger people', 'add', '--help')}"
    )


# -- small things ----------------------------------------------------------------------------------
def _acting(clone: Clone, act: Callable[[Ledger], T], report_line: ReportLine) -> T:
    sharing.before_first_push(clone, report_line)  # may take minutes, so before the ledger is locked
    return book.acting(clone, act, report_line)


def append(ledger: Ledger, act: Act, to_sign: Statement, signer: Signer) -> Entry:
    """Sign and append. An act that cannot stand is refused before anybody touches their key."""
    person = verify.holder(ledger.state, signer.key.public, to_sign.change)
    _would_stand(ledger, act, VerifiedStatement(person or name_from(signer.name), signer.key.fingerprint, to_sign))
    return ledger.append(act, statement.sign(signer.key, to_sign))


def _would_stand(ledger: Ledger, act: Act, verified_statement: VerifiedStatement | None = None) -> None:
    machine = keys.machine(ledger.clone).fingerprint
    authorise.authorise(ledger.state, Proposal(act, book.now(ledger), machine, verified_statement))


def _who(state: State, signer: Signer) -> str | None:
    return verify.holder(state, signer.key.public, None)


def know_secrets(at: Revision) -> None:
    """Note the secrets of the run's settings: a reason that quotes one is signed without it."""
    if not at.exists():
        return
    _add_secrets(at.file("params.yaml"), f"params.yaml of revision {at.commit[:10]}")


def know_secrets_here(clone: Clone) -> None:
    for home in clone.homes:
        file = home / "params.yaml"
        _add_secrets(file.read_bytes() if file.exists() else None, str(file.relative_to(clone.root)))


def _add_secrets(settings: bytes | None, where: str) -> None:
    """Note the secrets that settings name. Raises UserError for settings that cannot be read: a
    secret that they name would be signed, and the ledger keeps it for ever."""
    try:
        raw = artifacts.read_yaml(settings or b"")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{where}: not YAML ({why}), so the secrets that it names are unknown. Restore it.") from None
    for name, value in edits.declared_secrets(raw).items():
        if len(value) >= secrets.MIN_CHARS:
            secrets.add(name, value)
