"""The ledger's part of an audit: who decided what, with which key, about which run.

Reading the ledger has already judged that the chain is whole, and that its rules allow every entry.
Here the signatures of the entries that a model rests on are verified again: this clone's memory of
an earlier verification does not count.
"""

from __future__ import annotations

from tasks.audit.context import Context
from tasks.audit.graph import Broken, altered
from tasks.ledger import chain, describe, verify
from tasks.ledger.chain import Stored
from tasks.ledger.entry import (
    Approval,
    DvcFile,
    Erasure,
    Genesis,
    Lift,
    Opened,
    Override,
    PolicyChange,
    Promotion,
    Registration,
    Rejection,
    Request,
    Rollback,
)
from tasks.ledger.facts import BEGINNING, VerifiedStatement
from tasks.ledger.objects import Damaged
from tasks.ledger.policy import Policy
from tasks.ledger.state import State
from tasks.promotion import counting
from tasks.runs.artifacts import read_yaml


def link(ctx: Context, source: str, says: str, number: int) -> str:
    """Link something to an entry of the ledger, and the entry to those who made it. Returns the
    entry's id."""
    target = _added(ctx, number)
    ctx.graph.link(source, says, target, lambda: _stands(ctx, number))
    return target


def root(ctx: Context, number: int) -> str:
    """Add an entry that the question itself names. Returns its id."""
    target = _added(ctx, number)
    ctx.graph.link(target, "is in", _ledger(ctx), lambda: _stands(ctx, number))
    return target


def _added(ctx: Context, number: int) -> str:
    name = str(number)
    if ctx.graph.knows("entry", name):
        return f"entry:{name}"
    each = ctx.ledger.stored[number - 1]
    entry = each.entry
    key = ctx.graph.add(
        "entry",
        name,
        f"entry {number}, {entry.act.kind}",
        said=describe.entry(each),
        time=entry.time,
        sha256=entry.id,
        commit=each.commit.id,
    )
    _signers(ctx, key, each)
    _rests_on(ctx, key, number)
    return key


def _ledger(ctx: Context) -> str:
    state = ctx.state
    return ctx.graph.add(
        "ledger", "ledger", "the ledger", genesis=state.genesis, entries=str(state.number), head=state.head
    )


def _stands(ctx: Context, number: int) -> str:
    if key_compromise := ctx.key_compromises.get(number):
        raise Broken("doubtful", f"entry {number} {key_compromise}")
    return f"SHA-256 of the chain's {ctx.state.number} entries recomputed, each judged by the rules before it"


# -- who made it -----------------------------------------------------------------------------------
def _signers(ctx: Context, key: str, each: Stored) -> None:
    entry, then = each.entry, before(ctx, each.entry.number)
    machine = ctx.graph.add("machine", entry.machine)
    found: list[VerifiedStatement] = []

    def by_machine() -> str:
        fingerprint, verified_statement = _verified(then, each)
        found.extend([verified_statement] if verified_statement else [])
        return f"signature of the commit verified with key {fingerprint}, enrolled at that time"

    ctx.graph.link(key, "was appended by", machine, by_machine)
    if chain.STATEMENT not in each.files:
        return
    if not found:  # the signature of the machine, or the person's, does not fit
        somebody = ctx.graph.add("person", "unknown", "somebody")
        ctx.graph.link(key, "was signed by", somebody, lambda: _verified(then, each)[0])
        return
    verified_statement = found[0]
    roles = " and ".join(then.policy.roles_of(verified_statement.person)) or "first owner"
    now = ctx.state.policy.roles_of(verified_statement.person)
    person = ctx.graph.add(
        "person",
        verified_statement.person,
        roles_now=" and ".join(now) or "none: removed since",
        key=verified_statement.key,
    )
    proof = f"signature of the statement verified with key {verified_statement.key}; {roles} at that time"
    ctx.graph.link(key, "was signed by", person, lambda: proof)
    ctx.graph.add("entry", str(entry.number), reason=verified_statement.statement.reason)


def _verified(then: State, each: Stored) -> tuple[str, VerifiedStatement | None]:
    try:
        return verify.signed(then, each)
    except Damaged as error:
        raise altered(str(error)) from None


def before(ctx: Context, number: int) -> State:
    """Return people and machines as they stood before an entry."""
    if number == 1:
        return State()
    content = ctx.ledger.stored[number - 2].files[chain.POLICY]
    policy = Policy.model_validate(read_yaml(content))
    return State(policy=policy, had_owner=bool(policy.holders("owner")))


# -- what it rests on ------------------------------------------------------------------------------
def _rests_on(ctx: Context, key: str, number: int) -> None:
    match ctx.ledger.stored[number - 1].entry.act:
        case Promotion() as act:
            link(ctx, key, "promoted what was asked for in", act.request)
            for approval in act.approvals:
                link(ctx, key, "was approved in", approval)
            for override in ctx.state.promotions[number].overrides:
                link(ctx, key, "was overridden for in", override.number)
        case Request() as act:
            link(ctx, key, "rests on the look registered in", act.registration)
            starter = ctx.state.requests[number].starter
            if starter is not None:
                ctx.graph.add("person", starter.person)
        case Registration() as act:
            _list(ctx, key, act.examples, number)
        case Opened() as act if act.registration:
            link(ctx, key, "opened the test set of", act.registration)
        case Erasure() as act:
            link(ctx, key, "erased the list of", act.registration)
        case Approval(request=request) | Rejection(request=request) | Override(request=request):
            if not ctx.graph.knows("entry", str(request)):
                link(ctx, key, "is about", request)
        case Lift() as act:
            link(ctx, key, "lifts", act.rejection)
        case Rollback() as act if act.to != BEGINNING:
            link(ctx, key, "returned to", act.to)
        case Genesis() | PolicyChange() | _:
            pass


def _list(ctx: Context, key: str, kept: DvcFile, number: int) -> None:
    """Link an entry to the list by which later looks at the same examples are counted."""
    out = counting.out(kept)
    target = ctx.graph.add(
        "bytes", f"list/{kept.md5}", "the list of test examples", md5=kept.md5, sha256=kept.sha256, size=str(kept.size)
    )

    def check() -> str:
        gone = [n for n, look in ctx.state.erased.items() if look.act.examples == kept]
        try:
            found = ctx.store.verify_kept(out)
        except Broken as broken:
            if broken.state == "missing" and gone:
                raise Broken("erased", f"entry {gone[0]} erased it") from None
            raise
        if found != kept.sha256:
            raise altered(f"its SHA-256 is {found}, and entry {number} names {kept.sha256}")
        return f"MD5 and SHA-256 {kept.sha256} recomputed"

    ctx.graph.link(key, "counts by", target, check)
