"""The ledger as one thing: open it, read its state, append to it.

    with book.opened(clone) as ledger:      # fetched, verified, under this clone's lock
        ledger.state.champion("icd10")
        ledger.append(act, signed)          # authorised, signed, pushed, then the clone's own ref

Appending is two compare-and-set operations: `git push` without force across clones, and `git
update-ref` with the old value in this clone. With a remote the push comes first, so this clone
never knows an entry that the others cannot see. A process that dies in between loses nothing: the
next one fetches.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rft.errors import InfrastructureError, UserError
from tasks.ledger import anchors, chain, clocks, keys, memory, objects, remote, statement, verify
from tasks.ledger.anchors import CloneBehind
from tasks.ledger.authorise import Proposal, authorise
from tasks.ledger.chain import Stored
from tasks.ledger.entry import Act, Entry, Genesis, PolicyChange
from tasks.ledger.memory import LastVerified
from tasks.ledger.objects import Damaged
from tasks.ledger.policy import EnrolMachine, name_from
from tasks.ledger.remote import AppendConflict, Shared
from tasks.ledger.state import State
from tasks.ledger.statement import Signed, Statement
from tasks.runs import records
from tasks.runs.clone import Clone

T = TypeVar("T")
_TRIES = 10


@dataclass
class Ledger:
    clone: Clone
    shared: Shared
    stored: list[Stored]
    """The entries, oldest first; empty: nothing was decided yet."""
    state: State
    report_line: Callable[[str], None]
    at_remote: bool = False

    @property
    def head(self) -> str | None:
        return self.stored[-1].commit.id if self.stored else None

    def begin(self, restarts: Stored | None = None, reason: str | None = None) -> None:
        """Make the genesis, signed by this clone's machine key. Does nothing if there is one,
        except for a restart of the ledger after its last entry (see restart.py)."""
        if self.stored and restarts is None:
            return
        machine = keys.machine(self.clone)
        act = Genesis(
            machine=machine.public,
            nonce=statement.nonce(),
            restarts=restarts.entry.id if restarts else None,
            reason=reason,
        )
        self._append(act, None, {}, machine_name(machine.fingerprint))
        self.report_line(f"[ledger] {'restarted' if restarts else 'begun'}: {self.state.genesis[:16]}")
        if restarts is not None and self.shared.genesis is not None:
            self._pin()

    def _pin(self) -> None:
        remote.pin(self.clone, self.shared, self.state.genesis)
        self.shared = remote.shared(self.clone)
        self.report_line(
            f"[ledger] {remote.file(self.clone)} names it now. Commit that file, so that other clones know it"
        )

    def _pin_once(self) -> None:
        """Name the ledger in a tracked file once a person is enrolled. A trial in which nobody
        approved anything leaves the working tree as it was."""
        if self.shared.genesis is None and self.state.policy.people:
            self._pin()

    def append(self, act: Act, signed: Signed | None = None, files: dict[str, bytes] | None = None) -> Entry:
        """Append an entry if `authorise` allows it. Raises Refused, AppendConflict, WrongClock or
        InfrastructureError; then nothing is half done."""
        self.begin()
        self._pin_once()  # an earlier process may have died between `_append` and `_pin_once` below
        name = self.state.policy.machine_of(keys.machine(self.clone).fingerprint)
        made = self._append(act, signed, files or {}, name)
        self._pin_once()
        return made

    def statement(self, act: str, reason: str, days: float | None = None, **about: object) -> Statement:
        """Make a statement for a person to sign now. It names the ledger, so a missing ledger is
        begun."""
        self.begin()
        time = now(self)
        rules = self.state.policy.rules_of(str(about.get("model")))
        valid = rules.approval_days if days is None else days
        made = {"act": act, "ledger": self.state.genesis, "reason": statement.reason(reason), "time": time}
        made |= {"expires": statement.later(time, days=valid), "nonce": statement.nonce()}
        return Statement.model_validate(made | about)

    def _append(
        self,
        act: Act,
        signed: Signed | None,
        files: dict[str, bytes],
        name: str | None,
    ) -> Entry:
        if self.at_remote and self.shared.remote is None:
            raise UserError(
                f"{remote.file(self.clone)} of this checkout names no remote, and this clone's ledger is shared. "
                "What is appended here would be a second history: restore the line `remote:` from the branch that has "
                "it"
            )
        memory.assert_writable(self.clone)
        machine, state = keys.machine(self.clone), self.state
        clock = statement.now()
        clocks.assert_right(self.clone, self.shared, state, act, clock)
        verified_statement = verify.verified_statement(state, signed, getattr(act, "change", None)) if signed else None
        proposal = Proposal(act, now(self), machine.fingerprint, verified_statement)
        authorise(state, proposal)
        if signed is not None:
            files = files | {
                chain.STATEMENT: signed.statement.content_bytes,
                chain.SIGNATURE: signed.signature.encode(),
            }
        name = name or _new_machine_name(act)
        files = files | verify.rules_after(state, act, name)
        entry = Entry(
            number=state.number + 1,
            previous=state.head or None,
            time=proposal.time,
            machine=name,
            act=act,
            files={file: objects.sha256(content) for file, content in files.items()},
        )
        parents = [*([self.head] if self.head else []), *verify.carried_revisions(state, act)]
        commit = chain.make(self.clone, entry, files, parents, machine)
        with objects.opened(self.clone) as found:
            for revision in parents[1:]:
                found.commit(revision)  # raises for a missing revision: no push could carry it
            stored = chain.stored(found, commit)
        verify.check_entry(state, stored)  # as every reader will, before anybody can see it
        if self.shared.remote:
            remote.push(self.clone, self.shared, commit)
            self.at_remote = True
        chain.move(self.clone, commit, self.head)
        self.stored.append(stored)
        state.apply(entry, verified_statement, machine.fingerprint)
        self.remember()
        return entry

    def remember(self) -> None:
        if self.stored:
            state = self.state
            seen = LastVerified(genesis=state.genesis, number=state.number, entry=state.head, remote=self.at_remote)
            memory.keep(self.clone, seen)


def _new_machine_name(act: Act) -> str:
    """Return the name of a machine that this very entry enrols."""
    if isinstance(act, PolicyChange) and isinstance(act.change, EnrolMachine):
        return act.change.name
    raise AssertionError("authorise let an unknown machine append")


def now(ledger: Ledger) -> str:
    """Return the time of the next entry, which is never before the last one (see clocks.py)."""
    return max(statement.now(), ledger.state.time)


def machine_name(fingerprint: str) -> str:
    mark = hashlib.sha256(fingerprint.encode()).hexdigest()[:4]
    return f"{name_from(socket.gethostname())[:30]}-{mark}"


# -- opening ---------------------------------------------------------------------------------------
def lock(clone: Clone) -> Path:
    """Return the lock that is held during an append, from the read before it, and while the result
    is carried out."""
    return clone.state / "registry.lock"


@contextmanager
def opened(
    clone: Clone, fetch: bool = True, reverify: bool = False, report_line: Callable[[str], None] = print
) -> Iterator[Ledger]:
    """Open the ledger, verified, under the clone's lock. `reverify` verifies every signature again.

    Raises Damaged for a ledger that was tampered with, and InfrastructureError for a remote that
    does not answer.
    """
    with records.held(lock(clone), wait=True):
        yield read(clone, fetch, reverify, report_line, locked=True)


def read(
    clone: Clone,
    fetch: bool = False,
    reverify: bool = False,
    report_line: Callable[[str], None] = print,
    restarted: bool = False,
    locked: bool = False,
) -> Ledger:
    """Read and verify the ledger. `locked`: the caller holds the lock. `restarted`: a restart that
    nobody has accepted here yet is not an error.

    Fetches anyway when something here names an entry that this clone does not have yet.

    The memory of what was seen, and the clone's ref, are written only under the lock. Otherwise a
    slow reader could replace what an append has written meanwhile by older values. So if another
    process holds the lock, or this user may not write here, reading changes nothing.
    """
    with ExitStack() as stack:
        writes = locked or _took(stack, clone)
        try:
            return _read(clone, fetch, reverify, report_line, restarted, writes)
        except CloneBehind:
            if fetch or not writes or remote.shared(clone).remote is None:
                raise
            return _read(clone, True, reverify, report_line, restarted, writes)


def _took(stack: ExitStack, clone: Clone) -> bool:
    try:
        return stack.enter_context(records.held(lock(clone)))
    except OSError:
        return False


def _read(
    clone: Clone, fetch: bool, reverify: bool, report_line: Callable[[str], None], restarted: bool, writes: bool
) -> Ledger:
    shared = remote.shared(clone)
    seen = memory.recall(clone)
    local, there = chain.head(clone), None
    if shared.remote and fetch:
        refuse_shallow(clone)
        there = remote.fetch(clone, shared)
        if there is None and seen is not None and seen.remote:
            raise Damaged(
                f"the branch {shared.branch} of {shared.remote} is gone, and it was there. Find out who deleted it; to "
                f"restore it: {_push(shared)}"
            )
    head = _newest(clone, shared, local, there, seen)
    if head is None:
        if seen is not None:
            raise Damaged(
                f"this clone's ledger ({chain.REF}) is gone, and it had {seen.number} entries. Fetch it from your "
                f"remote or from another clone: git fetch THAT_CLONE refs/rft/ledger:{chain.REF}"
            )
        if shared.genesis is not None:
            source = f"fetch it from {shared.remote}" if shared.remote else "name its remote there"
            raise CloneBehind(
                f"{remote.file(clone)} names the ledger {shared.genesis[:16]}, and this clone does not have it. A "
                f"second ledger would split your history: {source}, or take the ledger from the clone that has it: "
                f"git fetch THAT_CLONE {chain.REF}:{chain.REF}"
            )
        anchors.assert_known(clone, [])
        return Ledger(clone, shared, [], State(), report_line)
    with objects.opened(clone) as found:
        stored = chain.read(found, head)
    anchors.assert_genesis(shared, stored, restarted)
    memory.assert_descends(seen, stored, restarted)
    anchors.assert_known(clone, stored)
    ledger = Ledger(clone, shared, stored, _replay(clone, stored, seen, reverify), report_line)
    ledger.at_remote = there is not None or (seen is not None and seen.remote)
    if not writes:
        return ledger
    if head != local:
        chain.move(clone, head, local)
    if seen is None or seen.number != ledger.state.number or seen.remote != ledger.at_remote:
        ledger.remember()
    return ledger


def _replay(clone: Clone, stored: list[Stored], seen: LastVerified | None, reverify: bool) -> State:
    """Replay the chain, and skip the signatures that this clone has verified before. The memory of
    them counts only for a machine key that the ledger knows. Otherwise an attacker who can write
    files could bring a key of their own, and a memory that fits it.

    So a clone whose machine is not enrolled verifies everything, once in each process
    (keys.verifies). Nothing on the disk could save that work. It would need a secret that the
    ledger knows and an attacker cannot bring. Here that could only be a person's key, which does
    not sign without asking them.
    """
    if seen is not None and not reverify:
        state = verify.replay(stored, known=seen.number)
        if state.policy.machine_of(keys.machine(clone).fingerprint) is not None:
            return state
    return verify.replay(stored)


def _newest(
    clone: Clone, shared: Shared, local: str | None, there: str | None, seen: LastVerified | None
) -> str | None:
    if local is None or there is None or local == there:
        return local or there
    if remote.is_ancestor(clone, local, there):
        return there
    if remote.is_ancestor(clone, there, local):
        if seen is not None and seen.remote:
            raise Damaged(
                f"the branch {shared.branch} of {shared.remote} was rewound: it lacks entries that this clone has. "
                f"Find out who forced it; to restore it: {_push(shared)}"
            )
        return local
    with objects.opened(clone) as found:
        ours, theirs = (chain.read(found, head)[0].entry.id for head in (local, there))
    if ours != theirs:
        raise UserError(
            f"two ledgers without a common genesis: this clone's ({ours[:16]}) and that of {shared.remote} "
            f"({theirs[:16]}). They cannot be joined. Keep the remote's, if this clone's may be lost: "
            f"git update-ref refs/rft/ledger-old {chain.REF} && git update-ref -d {chain.REF} && "
            f"rm {memory.path(clone)}; or name another branch in {remote.file(clone)}"
        )
    raise Damaged(
        f"this clone's ledger and that of {shared.remote} both begin with {ours[:16]}, and then differ: one of them "
        "was rewritten. Compare them: rft ledger verify in both clones"
    )


def _push(shared: Shared) -> str:
    return f"git push {shared.remote} {chain.REF}:refs/heads/{shared.branch}"


def refuse_shallow(clone: Clone) -> None:
    """Raise UserError for a shallow clone."""
    if chain.is_shallow(clone):
        raise UserError(
            "this is a shallow clone: Git lacks the commits that the ledger's entries are about. Make it whole: "
            "git fetch --unshallow"
        )


def latest(clone: Clone, report_line: Callable[[str], None] = print, reverify: bool = False) -> Ledger:
    """Fetch and read the ledger. If fetching fails, say so, and read what this clone has."""
    try:
        with opened(clone, reverify=reverify, report_line=report_line) as ledger:
            return ledger
    except InfrastructureError as error:
        report_line(f"[ledger] {error} What follows is what this clone knows.")
        return read(clone, reverify=reverify, report_line=report_line)


def acting(clone: Clone, act: Callable[[Ledger], T], report_line: Callable[[str], None] = print) -> T:
    """Open the ledger and act on it. Starts again when another clone was faster."""
    for _ in range(_TRIES):
        try:
            with opened(clone, report_line=report_line) as ledger:
                return act(ledger)
        except AppendConflict:
            continue
    raise InfrastructureError(f"{_TRIES} times another clone appended to the ledger first. Try again.")
