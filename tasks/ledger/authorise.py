"""The one function that decides whether an entry may stand: `authorise(state, proposal)`.

It is called before an entry is appended, and again for every entry of a chain that is verified. So
there is no second path. What it refuses cannot be promoted here, and is named as wrong in a chain
that another program wrote. It judges by the state before the entry and by the entry's own time. It
reads nothing else: no clock, no file, no registry.

    who         The machine must be enrolled. A person's statement must be signed with an enrolled
                key, in a role that may do this, about this very content, not expired, and new.
    promotion   It needs enough approvals of different people. Where four eyes are the rule, the
                person who started the run does not count. This prompt and these weights must not
                be rejected. The champion must still be the one against which the run was judged.
                Uncommitted code needs an override.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rft import commands
from rft.errors import UserError
from tasks.ledger import keys, policy, spending
from tasks.ledger.approval_status import DECIDES, approval_status, counting, end, is_own, overriding
from tasks.ledger.entry import (
    Act,
    Approval,
    Erasure,
    Genesis,
    Lift,
    Opened,
    Override,
    PolicyChange,
    Promotion,
    Reconcile,
    Registration,
    Rejection,
    Request,
    Rollback,
)
from tasks.ledger.facts import BEGINNING, RequestState, VerifiedStatement
from tasks.ledger.policy import Enrol, EnrolMachine, Role, SetThresholds
from tasks.ledger.spending import FRESH
from tasks.ledger.state import State
from tasks.ledger.statement import SKEW_S, Statement, later


class Refused(UserError):
    """The entry may not stand. The message says why, and what is needed."""


@dataclass(frozen=True)
class Proposal:
    """What somebody wants to append."""

    act: Act
    time: str
    machine: str
    """The key that signs the commit, by fingerprint."""
    verified_statement: VerifiedStatement | None = None
    """The statement of a person whose signature was verified."""


def authorise(state: State, proposal: Proposal) -> None:
    """Return if the entry may stand. Otherwise raises Refused."""
    act, verified_statement = proposal.act, proposal.verified_statement
    if isinstance(act, Genesis):
        _genesis(state, proposal, act)
        return
    _machine(state, proposal)
    if verified_statement is not None:
        _statement(state, proposal, verified_statement)
    match act:
        case PolicyChange():
            _policy(state, proposal, act)
        case Registration():
            _registration(state, proposal, act)
        case Opened():
            _opened(state, proposal, act)
        case Erasure():
            _erasure(state, proposal, act)
        case Request():
            _request(state, proposal, act)
        case Approval() | Rejection() | Override():
            _about_request(state, proposal, act)
        case Lift():
            statement = _signed(state, verified_statement, "lift", DECIDES)
            held = state.rejections.get(act.rejection)
            holds = held in state.rejected and state.rejected[held].number == act.rejection
            _need(holds, f"entry {act.rejection} is not a rejection that holds")
            same = held == (act.model, *(statement.pair or ())) and statement.rejection == state.ids[act.rejection]
            _need(same, "the statement is about another rejection")
        case Promotion():
            _promotion(state, proposal, act)
        case Rollback():
            _rollback(state, proposal, act)
        case Reconcile():
            _unsigned(verified_statement)


def _genesis(state: State, proposal: Proposal, act: Genesis) -> None:
    """Judge the first entry, or a restart. Any machine may make one, because all keys may be lost.
    So every reader of the ledger must accept a restart by name (see restart.py)."""
    _unsigned(proposal.verified_statement)
    _need(proposal.machine == keys.fingerprint(act.machine), "a genesis is signed by the machine that it names")
    if state.number == 0:
        _need(act.restarts is None, "the first entry restarts nothing")
        return
    _need(act.restarts == state.head, "a ledger has one genesis, its first entry, unless a restart names the last one")
    _need(act.reason, "a restart needs a reason")
    _need(proposal.time >= state.time, f"its time {proposal.time} is before that of the last entry ({state.time})")
    _need(proposal.machine not in state.policy.compromised, "its machine's key is marked as compromised")


def _unsigned(verified_statement: VerifiedStatement | None) -> None:
    """Refuse a statement where none is needed: it counts once, so it must not be used up."""
    _need(verified_statement is None, "it carries a person's statement, and takes none")


# -- who -------------------------------------------------------------------------------------------
def _machine(state: State, proposal: Proposal) -> None:
    change = proposal.act.change if isinstance(proposal.act, PolicyChange) else None
    enrols_itself = isinstance(change, EnrolMachine) and keys.fingerprint(change.key) == proposal.machine
    if state.policy.machine_of(proposal.machine) is None and not enrols_itself:
        raise Refused(
            f"this clone's machine key {proposal.machine} is not enrolled in the ledger, so it cannot append to it. "
            f"Enrol it, as an owner: {commands.command('ledger people', 'add', '--machine', *commands.WHY)}; or "
            "elsewhere, with --public and this one's .rft/keys/machine.pub"
        )
    _need(proposal.time >= state.time, f"its time {proposal.time} is before that of the last entry ({state.time})")


def _statement(state: State, proposal: Proposal, verified_statement: VerifiedStatement) -> None:
    statement = verified_statement.statement
    _need(statement.ledger == state.genesis, "the statement was signed for another ledger", "Sign a new one.")
    used = state.statements.get(statement.id)
    _need(used is None, f"the statement stands in the ledger already, as entry {used}", "Sign a new one.")
    early = statement.time > later(proposal.time, seconds=SKEW_S)
    _need(not early, f"the statement is of {statement.time}, but it is only {proposal.time}", "Set the clocks right.")
    _need(proposal.time <= statement.expires, f"the statement expired at {statement.expires}", "Sign a new one.")
    _need(statement.time <= statement.expires, "the statement expires before it begins")


def _signed(state: State, verified_statement: VerifiedStatement | None, act: str, roles: Iterable[Role]) -> Statement:
    """Return the statement of this act, which somebody in one of the roles must have signed."""
    if verified_statement is None:
        raise Refused(f"to {act} needs a signed statement of a person, and there is none.")
    _need(
        verified_statement.statement.act == act, f"the statement is to {verified_statement.statement.act}, not to {act}"
    )
    has = state.policy.roles_of(verified_statement.person)
    if not {*has} & {*roles}:
        can = ", ".join(state.policy.holders(*roles)) or "nobody yet"
        what = f"{verified_statement.person} is {' and '.join(has) or 'not enrolled'}, and to {act} takes the role "
        raise Refused(f"{what}{' or '.join(roles)}. These people have it: {can}.")
    return verified_statement.statement


# -- people and rules ------------------------------------------------------------------------------
def _policy(state: State, proposal: Proposal, act: PolicyChange) -> None:
    change = act.change
    if not state.had_owner and isinstance(change, SetThresholds):
        _unsigned(proposal.verified_statement)  # nobody is there yet who could sign
        return
    if not state.had_owner and isinstance(change, Enrol):
        # the first owner: trusted because nobody was there before, as SSH trusts a host's first key
        verified_statement = proposal.verified_statement
        _need("owner" in change.roles, "the first person must be an owner")
        _need(
            verified_statement is not None
            and verified_statement.key == keys.fingerprint(change.key)
            and verified_statement.statement.act == "policy",
            "the first owner signs for themselves",
        )
        assert verified_statement is not None
        statement = verified_statement.statement
    else:
        statement = _signed(state, proposal.verified_statement, "policy", ("owner",))
    _need(statement.change == change, "the statement is about another change")
    try:
        policy.changed(state.policy, change)
    except Refused:
        raise
    except UserError as error:
        raise Refused(str(error)) from None


# -- looks at a test set ---------------------------------------------------------------------------
def _registration(state: State, proposal: Proposal, act: Registration) -> None:
    _unsigned(proposal.verified_statement)
    now = state.champion(act.model)
    _need(
        act.champion == now,
        f"run {act.run} would be judged against {describe(act.champion)} of {act.model}, but {describe(now)} is served",
        "Start a new run.",
    )
    assert_not_retired(state, act)
    again = state.registered(act)
    _need(again is None, f"entry {again.number if again else 0} registered this very look")
    known = [look for look in state.looks.values() if look.act.test_sha256 == act.test_sha256]
    past = spending.past(act, known)
    at, looks = f"test set {act.test_sha256[:12]}", policy.looks_of(act.settings)
    _need(act.look >= past.look, f"it says that it is look {act.look} at {at}, and it is look {past.look}")
    _need(act.look <= looks, f"its thresholds allow {looks} looks at one test set, and it would be look {act.look}")
    if act.level is None:  # by an earlier version, whose chains stay valid; nobody can ask for its promotion now
        since = next((look.number for look in state.looks.values() if look.act.level is not None), None)
        _need(since is None, f"it does not say what it spends of alpha, as looks do since entry {since}")
        return
    try:
        spending.assert_paid(act, past)
    except UserError as error:
        raise Refused(str(error)) from None


def assert_not_retired(state: State, act: Registration) -> None:
    """Raise Refused for a test set that was opened, or whose list of examples was erased."""
    at = f"test set {act.test_sha256[:12]}"
    if number := state.opening_of(act.test_sha256):
        opened = state.opened[number]
        why = f"entry {number} opened it: {opened.who} read rollouts of run {opened.run} ({opened.reason})"
        raise Refused(f"{at} is retired: {why}. {FRESH}")
    if number := state.erasure_of(act.test_sha256, act.examples):
        raise Refused(f"{at} is retired: entry {number} erased the list of its examples. {FRESH}")


def _opened(state: State, proposal: Proposal, act: Opened) -> None:
    _unsigned(proposal.verified_statement)
    if act.registration:
        look = state.looks.get(act.registration)
        same = (act.model, act.test_sha256, act.examples.sha256)
        known = look is not None and same == (look.act.model, look.act.test_sha256, look.act.examples.sha256)
        _need(known, f"entry {act.registration} registers no look of {act.model} at test set {act.test_sha256[:12]}")
    earlier = {(each.model, each.run, each.test_sha256) for each in state.opened.values()}
    _need((act.model, act.run, act.test_sha256) not in earlier, f"the test set of run {act.run} was opened before")


def _erasure(state: State, proposal: Proposal, act: Erasure) -> None:
    look = state.looks.get(act.registration)
    if look is None or look.act.model != act.model:
        raise Refused(f"entry {act.registration} registers no look of {act.model}.")
    erased = state.erasure_of(look.act.test_sha256, look.act.examples)
    _need(not erased, f"entry {erased} erased the list of these examples already")
    if not state.had_owner:
        _unsigned(proposal.verified_statement)  # nobody is there yet who could sign
        return
    statement = _signed(state, proposal.verified_statement, "erase", ("owner",))
    about = (statement.model, statement.registration, statement.reason)
    same = about == (act.model, state.ids[act.registration], act.reason)
    _need(same, "the statement is about another erasure")


# -- requests, and what people say about them ------------------------------------------------------
def _request(state: State, proposal: Proposal, act: Request) -> None:
    verified_statement = proposal.verified_statement
    if verified_statement is not None:
        statement = _signed(state, verified_statement, "start", policy.ROLES)
        _need(
            (statement.run, statement.model) == (act.key, act.model), "the statement is about the start of another run"
        )
    _known(state, act.champion, act.model)
    _assert_registered(state, act)
    assert_not_rejected(state, act)
    latest = later(proposal.time, days=state.policy.rules_of(act.model).request_days)
    _need(act.expires <= latest, f"it would wait until {act.expires}, and the rules let it wait until {latest}")


def _assert_registered(state: State, act: Request) -> None:
    """Refuse a request without a look that was registered before it, under the policy's
    thresholds."""
    look = state.looks.get(act.registration)
    if look is None or look.act.model != act.model:
        raise Refused(f"entry {act.registration} registers no look of {act.model}.")
    _need(look.act.champion == act.champion, f"entry {look.number} registered a comparison with another champion")
    _need(look.act.test_sha256 == act.content.test_sha256, f"entry {look.number} registered another test set")
    _need(act.content.pair in look.act.candidates, f"entry {look.number} registered another prompt or other weights")
    opened = state.opening_of(look.act.test_sha256)
    _need(
        not opened,
        f"entry {opened} opened the test set of run {act.run} before anybody was asked to promote it",
        f"Run again on fresh test examples (another block or examples.seed): {commands.command('run')}",
    )
    _need(
        look.by_policy,
        f"run {act.run} had other thresholds than the policy holds for {act.model}, so nobody can promote it",
        f"To run under the policy's: {commands.command('ledger policy', 'show')}. To change the policy: "
        f"{commands.command('ledger policy', 'sign', '--params', 'FILE', *commands.WHY)}",
    )


def _about_request(state: State, proposal: Proposal, act: Approval | Rejection | Override) -> None:
    request = _find_request(state, act.request, act.model)
    match act:
        case Approval():
            statement = _signed(state, proposal.verified_statement, "approve", DECIDES)
            assert_approvable(state, request, proposal.time)
            until = end(state, request, statement)
            _need(proposal.time <= until, f"by the rules the statement counted until {until}", "Sign a new one.")
        case Override():
            statement = _signed(state, proposal.verified_statement, "override", ("owner",))
            _need(statement.overrides == ["dirty"], "the statement names nothing to override")
            assert_approvable(state, request, proposal.time)
            assert proposal.verified_statement is not None
            person = proposal.verified_statement.person
            _need(not is_own(state, request, person), _own(person, request), "Another owner must override it.")
        case Rejection():
            statement = _signed(state, proposal.verified_statement, "reject", DECIDES)
            assert_not_rejected(state, request.act)
    _need(statement.request == request.id, f"the statement is about another request than that of run {request.act.run}")
    _need(statement.content == request.act.content, "the statement is about other content: a hash in it differs")
    _need(statement.model == act.model, "the statement is about another model")
    if isinstance(act, Approval):
        assert proposal.verified_statement is not None
        person = proposal.verified_statement.person
        _need(not is_own(state, request, person), _own(person, request), "Somebody else must approve it.")
        again = person in {each.person for each in counting(state, request, proposal.time)}
        _need(not again, f"{person} approved run {request.act.run} already, and a person counts once")


def _judged_against(state: State, asked: Request) -> None:
    then, now = asked.champion, state.champion(asked.model)
    _need(
        then == now,
        f"run {asked.run} was judged against {describe(then)} of {asked.model}, but {describe(now)} is served now",
        "Its gain over that one is unknown: start a new run.",
    )


def assert_not_rejected(state: State, act: Request, so: str = "") -> None:
    """Raise Refused if somebody rejected this prompt and these weights. `so` begins the message
    with what that stops."""
    if no := state.rejection_of(act):
        raise Refused(
            f"{so}this prompt and these weights of {act.model} were rejected by {no.person} on {no.time} (entry "
            f"{no.number}): {no.reason}. A no holds for them in whatever run, until an approver lifts it: "
            f"{commands.command('reject', state.rejected_runs[no.number], '--lift', *commands.WHY)}"
        )


def _in_time(request: RequestState, time: str) -> None:
    remedy = "Start a new run: finished stages are kept."
    _need(time <= request.act.expires, f"the request of run {request.act.run} expired at {request.act.expires}", remedy)


# -- promotion and rollback ------------------------------------------------------------------------
def assert_approvable(state: State, request: RequestState, time: str) -> None:
    """Raise Refused for a request that nobody can approve any more."""
    _judged_against(state, request.act)
    _in_time(request, time)
    assert_not_rejected(state, request.act)


def _own(person: str, request: RequestState) -> str:
    edits = " and wrote its uncommitted edits" if request.act.edits_sha256 else ""
    return f"four eyes are the rule, and {person} started run {request.act.run}{edits}"


def _promotion(state: State, proposal: Proposal, act: Promotion) -> None:
    _unsigned(proposal.verified_statement)
    request = _find_request(state, act.request, act.model)
    asked, now = request.act, state.champion(act.model)
    _judged_against(state, asked)
    _need(act.before == now, f"it replaces {describe(act.before)}, but {describe(now)} is served")
    assert_not_rejected(state, asked)
    _in_time(request, proposal.time)
    found = approval_status(state, request, proposal.time)
    have = ", ".join(approval.person for approval in found.counting) or "nobody"
    _need(
        found.is_enough,
        f"run {asked.run} has {len(found.counting)} of {found.needed} approvals ({have}; {found.why})",
        f"To approve it: {commands.command('approve', asked.run, *commands.WHY)}",
    )
    _need(
        act.approvals == [approval.number for approval in found.counting],
        "it names other approvals than those that count",
    )
    if asked.edits_sha256 is not None and not overriding(state, request, proposal.time):
        raise Refused(
            f"run {asked.run} ran uncommitted code ({', '.join(asked.edited[:5])}), which no branch holds. Commit "
            "and run again (finished stages are kept), or let an owner take the responsibility: "
            f"{commands.command('approve', asked.run, '--override-dirty', *commands.WHY)}"
        )


def _rollback(state: State, proposal: Proposal, act: Rollback) -> None:
    statement = _signed(state, proposal.verified_statement, "rollback", DECIDES)
    now = state.champion(act.model)
    _need(now != BEGINNING, f"{act.model} is at its beginning, so there is nothing to return to")
    _need(act.before == now, f"it withdraws {describe(act.before)}, but {describe(now)} is served")
    _known(state, act.to, act.model)
    _need(act.to == state.promotions[now].before, f"{describe(act.to)} is not what {describe(now)} replaced")
    same = (statement.model, statement.champion, statement.to)
    wanted = (act.model, state.promotions[now].id, state.promotions[act.to].id if act.to else None)
    _need(same == wanted, "the statement is about another rollback")
    if (returned := state.requested(act.to)) is not None:
        assert_not_rejected(state, returned, f"{describe(act.to)} cannot serve again: ")


# -- small things ----------------------------------------------------------------------------------
def describe(champion: int) -> str:
    return f"champion {champion}" if champion else "the beginning"


def _find_request(state: State, number: int, model: str) -> RequestState:
    request = state.requests.get(number)
    if request is None or request.act.model != model:
        raise Refused(f"entry {number} is not a request about {model}.")
    return request


def _known(state: State, champion: int, model: str) -> None:
    found = state.promotions.get(champion)
    _need(
        not champion or (found is not None and found.model == model), f"entry {champion} is not a promotion of {model}"
    )


def _need(is_so: object, otherwise: str, remedy: str = "") -> None:
    if not is_so:
        raise Refused(f"{otherwise}. {remedy}".rstrip())
