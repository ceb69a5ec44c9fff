"""Check a chain from Git, entry by entry, and return its result.

The hashes of the chain are checked at every read, because that costs little. Signatures cost 5 ms
each. So those that this clone has verified before are not verified again, unless somebody asks for
it. `known` is the number of the last entry that was verified (see memory.py). Entries that change
people or machines are always verified: they decide whose key makes the memory believable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rft import commands
from rft.errors import UserError
from tasks.ledger import chain, keys, statement
from tasks.ledger.authorise import Proposal, authorise
from tasks.ledger.chain import Stored
from tasks.ledger.entry import Act, Genesis, Override, PolicyChange, Promotion, Registration, Request
from tasks.ledger.facts import VerifiedStatement
from tasks.ledger.objects import Damaged, sha256
from tasks.ledger.policy import Change, Enrol, EnrolMachine, signer_line
from tasks.ledger.state import State

OnEntry = Callable[[str], None]


def replay(entries: Iterable[Stored], known: int = 0, on_entry: OnEntry = lambda _: None) -> State:
    """Check every entry by the state before it. Raises Damaged, naming the first that is wrong."""
    state = State()
    for stored in entries:
        try:
            skip = stored.entry.number <= known and not isinstance(stored.entry.act, Genesis | PolicyChange)
            machine, verified_statement = check_entry(state, stored, verified=skip)
        except Damaged:
            raise
        except UserError as error:
            raise Damaged(f"{stored.where} must not stand in the ledger: {error}") from None
        state.apply(stored.entry, verified_statement, machine)
        on_entry(stored.where)
    return state


def signed(before: State, stored: Stored) -> tuple[str, VerifiedStatement | None]:
    """Verify an entry's signatures, with the people and machines as they stood before it. Returns
    the machine's key and the verified statement. Raises Damaged."""
    return _machine(before, stored), _verified_statement(before, stored)


def check_entry(state: State, stored: Stored, verified: bool = False) -> tuple[str, VerifiedStatement | None]:
    """Check an entry by the state before it. With `verified`, its signatures are not checked again.
    Returns the key of its machine and its statement."""
    entry, act = stored.entry, stored.entry.act
    machine = _machine(state, stored, verified)
    verified_statement = _verified_statement(state, stored, verified)
    authorise(state, Proposal(act, entry.time, machine, verified_statement))
    _assert_parents(state, stored)
    if isinstance(act, Promotion):
        there = sha256(stored.files[chain.WEIGHTS]) if chain.WEIGHTS in stored.files else None
        if there != act.weights_signature:
            raise Damaged(f"{stored.where}: {chain.WEIGHTS} is not the signature that the promotion names.")
    for file, content in rules_after(state, act, entry.machine).items():
        if stored.files.get(file) != content:
            raise Damaged(f"{stored.where}: {file} is not what the entries up to it make of it.")
    return machine, verified_statement


def rules_after(state: State, act: Act, name: str) -> dict[str, bytes]:
    """Return policy.yaml and allowed_signers as they stand after an act of machine `name`."""
    after = State(policy=state.policy, policy_yaml=state.policy_yaml, signers=state.signers)
    if isinstance(act, Genesis):
        after.begin(EnrolMachine(name=name, key=act.machine))
    elif isinstance(act, PolicyChange):
        after.change(act.change)
    elif isinstance(act, Registration):
        after.first_thresholds(act)
    return {chain.POLICY: after.policy_yaml, chain.SIGNERS: after.signers}


def _machine(state: State, stored: Stored, verified: bool = False) -> str:
    """Return the key that signed the commit. It must be the key of the machine that the entry
    names."""
    signature, name = stored.commit.signature, stored.entry.machine
    if signature is None:
        raise Damaged(f"{stored.where} is not signed.")
    public = _signer_key(stored, signature)
    key = keys.fingerprint(public)
    new_key = _new_machine_key(stored.entry.act, name)
    enrolled = None if isinstance(stored.entry.act, Genesis) else state.policy.machines.get(name)
    expected = enrolled or (keys.fingerprint(new_key) if new_key else None)
    if expected != key:
        raise Damaged(f"{stored.where} is signed with key {key}, which is not enrolled for machine {name}.")
    if not verified:
        line = signer_line(EnrolMachine(name=name, key=public))
        if not keys.verifies(stored.commit.signed, signature, line, name, keys.COMMIT):
            raise Damaged(f"{stored.where}: its signature does not fit: it was altered after {name} signed it.")
    return key


def _new_machine_key(act: object, name: str) -> str | None:
    """Return the key of a machine that the entry itself enrols."""
    if isinstance(act, Genesis):
        return act.machine
    change = act.change if isinstance(act, PolicyChange) else None
    return change.key if isinstance(change, EnrolMachine) and change.name == name else None


def _verified_statement(state: State, stored: Stored, verified: bool = False) -> VerifiedStatement | None:
    """Return the statement of an entry, after verifying its signature."""
    content, armored = stored.files.get(chain.STATEMENT), stored.files.get(chain.SIGNATURE)
    if content is None and armored is None:
        return None
    if content is None or armored is None:
        raise Damaged(f"{stored.where} holds a statement without a signature, or a signature without a statement.")
    made = statement.parse(content, stored.where)
    change = stored.entry.act.change if isinstance(stored.entry.act, PolicyChange) else None
    signature = armored.decode("ascii", "replace")
    public = _signer_key(stored, signature)
    person = holder(state, public, change)
    if person is None:
        raise Damaged(
            f"{stored.where}: its statement is signed with key {keys.fingerprint(public)}, which is nobody's."
        )
    if not verified:
        line = signer_line(Enrol(name=person, roles=["author"], key=public))
        if not keys.verifies(content, signature, line, person, keys.ACT):
            raise Damaged(f"{stored.where}: the signature of {person} does not fit the statement.")
    return VerifiedStatement(person, keys.fingerprint(public), made)


def holder(state: State, public: str, change: Change | None) -> str | None:
    """Return the person whose key it is. The first owner's key is in the statement itself."""
    known = state.policy.person_of(keys.fingerprint(public))
    if known is None and not state.had_owner and isinstance(change, Enrol) and change.key == public:
        return change.name
    return known


def verified_statement(state: State, signed: statement.Signed, change: Change | None = None) -> VerifiedStatement:
    """Verify a statement before it is appended. Raises UserError when nobody's signature fits."""
    try:
        public = keys.signer(signed.signature)
    except ValueError as error:
        raise UserError(f"the signature is {error}. Make it again, with the command that --print shows.") from None
    person = holder(state, public, change)
    if person is None:
        known = ", ".join(state.policy.people) or "nobody"
        who = ("NAME", "--role", "approver", "--public", public)
        enrol = commands.command("ledger people", "add", *who, *commands.WHY)
        raise UserError(
            f"key {keys.fingerprint(public)} is not enrolled in the ledger ({known} is). An owner enrols it: {enrol}"
        )
    content = signed.statement.content_bytes
    line = signer_line(Enrol(name=person, roles=["author"], key=public))
    if not keys.verifies(content, signed.signature, line, person, keys.ACT):
        raise UserError(f"the signature of {person} does not fit the statement: one of the two was changed.")
    return VerifiedStatement(person, keys.fingerprint(public), signed.statement)


def _signer_key(stored: Stored, signature: str) -> str:
    try:
        return keys.signer(signature)
    except ValueError as error:
        raise Damaged(f"{stored.where}: {error}.") from None


def _assert_parents(state: State, stored: Stored) -> None:
    """Check a commit's parents: the entry before, and the run's revision that the entry is about,
    so that Git keeps it."""
    act, parents = stored.entry.act, list(stored.commit.parents)
    if isinstance(act, Genesis):
        if len(parents) != (act.restarts is not None):
            raise Damaged(f"{stored.where} is a genesis, and its parents do not fit what it says it continues.")
    elif parents[1:] != carried_revisions(state, act):
        raise Damaged(f"{stored.where} does not carry the revision of the run that it is about, or another one.")


def carried_revisions(state: State, act: Act) -> list[str]:
    """Return the revisions that the commit of an entry keeps. A revision with uncommitted edits is
    kept only once an owner has taken the responsibility for them."""
    if isinstance(act, Request) and act.edits_sha256 is None:
        return [act.revision]
    return [state.requests[act.request].act.revision] if isinstance(act, Override) else []
