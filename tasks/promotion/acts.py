"""What people and runs do to the ledger: request, approve, reject, lift, roll back, override.

    request     the end of a run that the gate would promote
    approve     a person's statement; when enough have signed, the promotion
    reject      a no to this prompt and these weights, in whatever run; `lift` takes it back
    rollback    the champion before this one serves again

Every act reads the ledger and the run's revision, never this clone's record of the run, so it works
in any clone. A promotion is its entry: nothing is announced before it, and what shows the champion
follows it (projections.py). Each act can be repeated: what stands in the ledger already is not done
again.
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
from tasks.ledger.facts import Champion, Said, Voice, Waiting
from tasks.ledger.keys import Key
from tasks.ledger.policy import Enrol, Policy, name_from
from tasks.ledger.standing import Standing
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
Say = Callable[[str], None]
_START_DAYS = 60.0
"""How long the statement of a run's start is valid: the request comes at its end."""


@dataclass(frozen=True)
class Signer:
    """A person with their key."""

    key: Key
    name: str
    """Under which the first to decide is enrolled."""


@dataclass(frozen=True)
class Outcome:
    """What an approval came to."""

    waiting: Waiting
    promoted: Champion | None
    """None: it waits for more approvals."""
    standing: Standing
    problems: tuple[str, ...] = ()
    """Of what shows the champion; the promotion stands all the same."""


# -- requests --------------------------------------------------------------------------------------
def request(clone: Clone, record: RunRecord, said: Say = print) -> Waiting:
    """Ask for the promotion of a run. The same run is asked for once.

    Raises UserError when the gate did not decide `promote`, or a person rejected this prompt and
    these weights before; InfrastructureError when the run's bytes cannot be shared. The record only
    finds the revision: what the ledger is told of the run is read there.
    """
    if record.revision is None:
        remedy = "Go on with it" if record.state == "paused" else "Wait for it, or start it again"
        raise UserError(f"run {record.name} is not over: it is {record.state}. {remedy}: {record.again}")
    at = Revision(clone, record.revision)
    if at.report(Decision) is None:
        why = f"{record.state}{': ' + record.message if record.message else ''}"
        raise UserError(f"run {record.name} came to no decision ({why}). There is nothing to decide on.")
    began = origin.of(at, record.name)
    look = registration.of(at, record.name)
    asked, hashes = content.of(at, record.name)
    if began.edits_sha256 is not None and not record.dirty:
        left = ", ".join(began.edited[:5])
        said(
            f"[ledger] run {record.name} holds files that its commit does not ({left}): they count as uncommitted "
            "code. If a stage wrote them, list them in .gitignore"
        )

    if remote.shared(clone).remote and book.latest(clone, said).state.request(record.name) is None:
        transfer.push(clone, at.commit)  # minutes, perhaps: before the ledger is held

    registration.assert_fits(book.read(clone, said=said).state, look, at, record.name)

    def act(ledger: Ledger) -> Waiting:
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
        entry = ledger.append(made, _start(ledger, made, began.start, said))
        return ledger.state.requests[entry.number]

    return _acting(clone, act, said)


def _start(ledger: Ledger, made: Request, start: dict[str, Any] | None, said: Say) -> Signed | None:
    """The statement of who started the run, if it still counts. Where their key was removed since,
    or the ledger restarted, the starter is unknown, and the run is not lost."""
    if start is None:
        return None
    try:
        signed = Signed.model_validate(start)
        _would_stand(ledger, made, verify.voice(ledger.state, signed))
    except (UserError, ValidationError) as error:
        _would_stand(ledger, made)  # raises where it is the request that is refused
        said(f"[ledger] who started run {made.run} is unknown ({error}): it needs one approver more")
        return None
    return signed


def start(clone: Clone, model: str, record: RunRecord, said: Say = print) -> dict[str, Any] | None:
    """Sign the start of a run, where four eyes are the rule. None where they are not, or where no
    enrolled key is at hand: then nobody knows who started it, and one approver more is needed."""
    ledger = book.read(clone, said=said)
    if not ledger.state.policy.rules_of(model).four_eyes:
        return None
    try:
        key = keys.person(clone)
        if verify.holder(ledger.state, key.public, None) is None:
            raise UserError(f"key {key.fingerprint} is not enrolled")
        words = ledger.statement("start", "started a run", days=_START_DAYS, model=model, run=record.key)
        return statement.sign(key, words).model_dump(mode="json")
    except RftError as error:
        said(
            f"[ledger] four eyes are the rule, and who starts this run is unknown ({error}): it needs one approver more"
        )
        return None


def assert_known(clone: Clone, run: str, said: Say = print) -> None:
    """Raises UserError for a run that neither this clone nor its ledger knows. To be told before
    anybody is asked for a key."""
    names = [record.name for record in records.load_all(clone)]
    if not any(run in name for name in names):
        names += [waiting.act.run for waiting in book.latest(clone, said).state.requests.values()]
        if not any(run in name for name in names):
            records.pick(names, run)


def find(ledger: Ledger, run: str) -> Waiting:
    """Find a request by its run's name, or by any part of it that only one run has; where there is
    none, ask for the promotion of this clone's run."""
    names = list(dict.fromkeys(waiting.act.run for waiting in ledger.state.requests.values()))
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
    clone: Clone, run: str, signer: Signer, why: str, override_dirty: bool = False, said: Say = print
) -> Outcome:
    """Approve a run. Does not promote it: `promote` does, when the outcome says that enough have.

    Raises Refused when the ledger does not let it stand, UserError when the bytes are not those
    that were judged.
    """
    asked = _checked(clone, run, said)

    def act(ledger: Ledger) -> Outcome:
        waiting = ledger.state.requests[asked.number]
        if not _is_champion(ledger.state, waiting):
            authorise.assert_approvable(ledger.state, waiting, book.now(ledger))
            _first_owner(ledger, signer, said)
            is_dirty = waiting.act.edits_sha256 is not None
            stands = authorise.overriding(ledger.state, waiting, book.now(ledger))
            if override_dirty and is_dirty and not stands:
                append(ledger, _override(waiting), _words(ledger, waiting, "override", why), signer)
            if _who(ledger.state, signer) not in _counting(ledger, waiting):
                append(ledger, _approval(waiting), _words(ledger, waiting, "approve", why), signer)
        return _outcome(ledger, waiting)

    outcome = _acting(clone, act, said)
    # it is the champion already: what could not show that may answer now
    return outcome if outcome.promoted is None else replace(outcome, problems=_shown(clone, said))


def wanted(clone: Clone, run: str, why: str, override_dirty: bool = False, said: Say = print) -> Statement:
    """The statement that somebody is to sign elsewhere: an approval, or the override alone."""
    asked = _checked(clone, run, said)

    def act(ledger: Ledger) -> Statement:
        waiting = ledger.state.requests[asked.number]
        authorise.assert_approvable(ledger.state, waiting, book.now(ledger))
        _assert_somebody(ledger, run)
        return _words(ledger, waiting, "override" if override_dirty else "approve", why)

    return _acting(clone, act, said)


def submit(clone: Clone, run: str, signed: Signed, said: Say = print) -> Outcome:
    """Take in an approval or an override that was signed elsewhere."""
    asked = _checked(clone, run, said)

    def act(ledger: Ledger) -> Outcome:
        waiting = ledger.state.requests[asked.number]
        _assert_somebody(ledger, run)
        if signed.statement.id in ledger.state.statements:  # it was taken in, and what came next was cut off
            return _outcome(ledger, waiting)
        made = {"approve": _approval, "override": _override}.get(signed.statement.act)
        if made is None:
            raise UserError(f"the statement is to {signed.statement.act}, and this takes one to approve or override.")
        ledger.append(made(waiting), signed)
        return _outcome(ledger, waiting)

    return _acting(clone, act, said)


def _assert_somebody(ledger: Ledger, run: str) -> None:
    if not ledger.state.had_owner:
        here = commands.command("approve", run, "--key", "FILE", *commands.WHY)
        raise UserError(f"nobody is enrolled yet: the first to decide is, with a key that signs here: {here}")


def _outcome(ledger: Ledger, waiting: Waiting) -> Outcome:
    standing = authorise.standing(ledger.state, waiting, book.now(ledger))
    is_champion = _is_champion(ledger.state, waiting)
    return Outcome(waiting, ledger.state.promotions[waiting.promoted[-1]] if is_champion else None, standing)


def _approval(waiting: Waiting) -> Act:
    return Approval(model=waiting.act.model, request=waiting.number)


def _override(waiting: Waiting) -> Act:
    return Override(model=waiting.act.model, request=waiting.number)


def _words(ledger: Ledger, waiting: Waiting, act: str, why: str) -> Statement:
    days = ledger.state.policy.rules_of(waiting.act.model).approval_days
    more: dict[str, Any] = {"overrides": ["dirty"]} if act == "override" else {}
    about = {"model": waiting.act.model, "request": waiting.id, "content": waiting.act.content}
    return ledger.statement(act, why, days, **about, **more)


def _counting(ledger: Ledger, waiting: Waiting) -> set[str]:
    return {said.person for said in authorise.counting(ledger.state, waiting, book.now(ledger))}


def _asked(clone: Clone, run: str, said: Say) -> Waiting:
    """Find a request. One that could not be made at the end of the run is made now, where the run
    is."""
    ledger = book.latest(clone, said)
    asked = {waiting.act.run for waiting in ledger.state.requests.values()}
    if run not in asked:
        every = records.load_all(clone)
        mine = [record for record in every if record.name == run]
        if not mine and not any(run in name for name in asked):
            mine = [record for record in every if run in record.name]
        if len(mine) == 1:
            return request(clone, mine[0], said)
    return find(ledger, run)


def _checked(clone: Clone, run: str, said: Say) -> Waiting:
    """Find a request, and compare its bytes. Before the ledger is held: they may be gigabytes that
    are to be fetched, and what a request is about is the same ever after."""
    waiting = _asked(clone, run, said)
    ledger = book.read(clone, said=said)
    if not _is_champion(ledger.state, ledger.state.requests[waiting.number]):
        authorise.assert_approvable(ledger.state, waiting, book.now(ledger))
        _assert_bytes(ledger, waiting)
    return waiting


def _assert_bytes(ledger: Ledger, waiting: Waiting) -> None:
    clone = ledger.clone
    at = Revision(clone, waiting.act.revision)
    know_secrets(at)
    if not at.exists():
        raise UserError(
            f"run {waiting.act.run} ran uncommitted code, so its revision {at.commit[:10]} lies only in the clone that "
            "ran it, until an owner overrides for it there. Approve it in that clone."
        )
    sharing.fetch(at, waiting, ledger.stored[waiting.number - 1].entry.machine)
    agents.assert_same(at, waiting)
    registration.assert_fits(ledger.state, waiting.act.registration, at, waiting.act.run)


def promote(clone: Clone, run: str, said: Say = print) -> Outcome:
    """Make a run the champion, if enough people have approved. What takes long (the smoke test)
    happens before the ledger is held."""
    ledger = book.read(clone, said=said)
    waiting = find(ledger, run)
    number, now = waiting.number, book.now(ledger)
    standing = authorise.standing(ledger.state, waiting, now)
    if _is_champion(ledger.state, waiting):
        return _done(clone, waiting, standing, said)
    if not standing.is_enough:
        return Outcome(waiting, None, standing)
    _would_stand(ledger, _promotion(ledger.state, waiting, now, Checked("", None)))
    _assert_bytes(ledger, waiting)
    checked = preflight.check(agents.find(clone, waiting.act.run), keys.machine(clone), said)

    def act(ledger: Ledger) -> Waiting:
        waiting = ledger.state.requests[number]
        if not _is_champion(ledger.state, waiting):
            made = _promotion(ledger.state, waiting, book.now(ledger), checked)
            ledger.append(made, files=checked.files)
        return waiting

    return _done(clone, _acting(clone, act, said), standing, said)


def _promotion(state: State, waiting: Waiting, now: str, checked: Checked) -> Promotion:
    counted = authorise.counting(state, waiting, now)
    return Promotion(
        model=waiting.act.model,
        request=waiting.number,
        approvals=[each.number for each in counted],
        before=state.champion(waiting.act.model),
        weights_signature=checked.signature_sha256,
        smoke=checked.smoke,
    )


def _done(clone: Clone, waiting: Waiting, standing: Standing, said: Say) -> Outcome:
    problems = _shown(clone, said)
    ledger = book.read(clone, said=said)
    waiting = ledger.state.requests[waiting.number]
    made = ledger.state.promotions[waiting.promoted[-1]] if waiting.promoted else None
    return Outcome(waiting, made, standing, problems)


def _shown(clone: Clone, said: Say) -> tuple[str, ...]:
    """Show the champion everywhere. Returns what could not be."""
    tracking.make_up(clone, said)  # the version in MLflow's registry is linked to the run
    return tuple(projections.reconcile(clone, said))


def _is_champion(state: State, waiting: Waiting) -> bool:
    return state.champion(waiting.act.model) in waiting.promoted


# -- reject, lift, roll back -----------------------------------------------------------------------
def reject(clone: Clone, run: str, signer: Signer, why: str, said: Say = print) -> Said:
    """Say no to what the gate would promote, whatever run brings it again."""
    asked = _asked(clone, run, said)

    def act(ledger: Ledger) -> Said:
        waiting = ledger.state.requests[asked.number]
        know_secrets(Revision(clone, waiting.act.revision))
        if _is_champion(ledger.state, waiting):
            undo = f"To take it back: {undo_command(waiting.act.model)}"
            raise UserError(f"run {waiting.act.run} is the champion of {waiting.act.model} already. {undo}")
        _first_owner(ledger, signer, said)
        no = Rejection(model=waiting.act.model, request=waiting.number)
        append(ledger, no, _words(ledger, waiting, "reject", why), signer)
        said_no = ledger.state.rejection_of(waiting.act)
        assert said_no
        return said_no

    return _acting(clone, act, said)


def lift(clone: Clone, run: str, signer: Signer, why: str, said: Say = print) -> Said:
    """Take a rejection back. Returns the rejection that held."""

    def act(ledger: Ledger) -> Said:
        waiting = find(ledger, run)
        know_secrets(Revision(clone, waiting.act.revision))
        no = ledger.state.rejection_of(waiting.act)
        if no is None:
            raise UserError(f"what run {waiting.act.run} would promote is not rejected, so there is nothing to lift.")
        about = {"pair": waiting.act.content.pair, "rejection": ledger.state.ids[no.number]}
        words = ledger.statement("lift", why, model=waiting.act.model, **about)
        append(ledger, Lift(model=waiting.act.model, rejection=no.number), words, signer)
        return no

    return _acting(clone, act, said)


@dataclass(frozen=True)
class Returned:
    """A rollback."""

    number: int
    """Of its entry."""
    time: str
    who: str
    why: str
    before: int
    to: Champion | None
    """None: the beginning."""
    problems: tuple[str, ...] = ()


def rollback(clone: Clone, model: str, signer: Signer, why: str, said: Say = print) -> Returned:
    """Return to the champion before."""

    def act(ledger: Ledger) -> Returned:
        state = ledger.state
        assert_model(state, model)
        now, to = state.champion(model), state.previous(model)
        if to is None:
            raise UserError(f"{model} is at its beginning, so there is no champion before it to return to.")
        know_secrets(Revision(clone, state.promotions[now].revision))
        _first_owner(ledger, signer, said)
        about = {"champion": state.promotions[now].id, "to": state.promotions[to].id if to else None}
        words = ledger.statement("rollback", why, model=model, **about)
        append(ledger, Rollback(model=model, before=now, to=to), words, signer)
        move = state.moves[model][-1]
        return Returned(move.number, move.time, move.who, move.why, now, state.promotions.get(to))

    back = _acting(clone, act, said)
    return replace(back, problems=tuple(projections.reconcile(clone, said)))


def assert_model(state: State, model: str) -> None:
    if model not in state.moves:
        known = did_you_mean(model, state.moves) if state.moves else "Nothing was promoted yet."
        raise UserError(f"of model {model!r} nothing was ever promoted. {known}")


def only_model(state: State) -> str:
    """The only model of which anything was promoted. Raises UserError for none, and for several."""
    if len(state.moves) == 1:
        return next(iter(state.moves))
    if not state.moves:
        raise UserError("nothing was promoted yet, so there is no champion but the beginning.")
    raise UserError(f"several models were promoted: {', '.join(sorted(state.moves))}. Name one: --model NAME")


def undo_command(model: str) -> str:
    """The command that takes a promotion of this model back."""
    return commands.command("rollback", "--model", model, *commands.WHY)


# -- people ----------------------------------------------------------------------------------------
def enrolled(kind: type[C], **facts: object) -> C:
    """A change from what somebody typed. Raises UserError naming what does not fit."""
    try:
        return kind.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{key} = {facts.get(key)!r}: {first['msg']}. A name is lowercase, without blanks.") from None


def change(
    clone: Clone, made: Report | Callable[[Policy], Report], signer: Signer | None, why: str, said: Say = print
) -> Entry:
    """Change people, machines, rules or thresholds. `made` may be a function of the policy as it is
    then. `signer` None: thresholds, where nobody is enrolled yet who could sign."""

    def act(ledger: Ledger) -> Entry:
        know_secrets_here(clone)
        if signer is not None and not isinstance(made, Enrol):
            _first_owner(ledger, signer, said)
        wanted = PolicyChange.model_validate({"change": made(ledger.state.policy) if callable(made) else made})
        if signer is None:
            return ledger.append(wanted)
        return append(ledger, wanted, ledger.statement("policy", why, change=wanted.change), signer)

    return _acting(clone, act, said)


def _first_owner(ledger: Ledger, signer: Signer, said: Say) -> None:
    """Who decides first is enrolled as owner: nobody was there before who could have done it."""
    ledger.begin()
    if ledger.state.had_owner:
        return
    enrol = Enrol(name=name_from(signer.name), roles=["owner"], key=signer.key.public)
    words = ledger.statement("policy", "the first to decide", change=enrol)
    append(ledger, PolicyChange(change=enrol), words, signer)
    said(
        f"[ledger] {enrol.name} is the first to decide here and is enrolled as owner, with key "
        f"{signer.key.fingerprint}. To enrol others: {commands.command('people', 'add', '--help')}"
    )


# -- small things ----------------------------------------------------------------------------------
def _acting(clone: Clone, act: Callable[[Ledger], T], said: Say) -> T:
    sharing.before_first_push(clone, said)  # minutes, perhaps: before the ledger is held
    return book.acting(clone, act, said)


def append(ledger: Ledger, act: Act, words: Statement, signer: Signer) -> Entry:
    """Sign and append. What would be refused is refused before anybody touches their key."""
    person = verify.holder(ledger.state, signer.key.public, words.change)
    _would_stand(ledger, act, Voice(person or name_from(signer.name), signer.key.fingerprint, words))
    return ledger.append(act, statement.sign(signer.key, words))


def _would_stand(ledger: Ledger, act: Act, voice: Voice | None = None) -> None:
    machine = keys.machine(ledger.clone).fingerprint
    authorise.authorise(ledger.state, Proposal(act, book.now(ledger), machine, voice))


def _who(state: State, signer: Signer) -> str | None:
    return verify.holder(state, signer.key.public, None)


def know_secrets(at: Revision) -> None:
    """A reason that quotes a secret of the run's settings is signed without it."""
    if not at.exists():
        return
    _add_secrets(at.file("params.yaml"), f"params.yaml of revision {at.commit[:10]}")


def know_secrets_here(clone: Clone) -> None:
    file = clone.root / "params.yaml"
    _add_secrets(file.read_bytes() if file.exists() else None, file.name)


def _add_secrets(settings: bytes | None, where: str) -> None:
    """Raises UserError for settings that cannot be read: a secret that they name would be signed,
    and the ledger keeps it for ever."""
    try:
        raw = artifacts.read_yaml(settings or b"")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{where}: not YAML ({why}), so the secrets that it names are unknown. Restore it.") from None
    for name, value in edits.declared_secrets(raw).items():
        if len(value) >= secrets.MIN_CHARS:
            secrets.add(name, value)
