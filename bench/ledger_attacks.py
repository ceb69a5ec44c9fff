"""What an outsider does to a ledger, for the figure `ledger_tamper`: one function per trick.

The outsider can write every file and ref of a clone, and holds no enrolled key. Here are the tricks
with whole entries. Those with single bytes are in ledger_bytes, and those of a machine in wrong
hands in ledger_rogue.

If a name says `left: `, the chain is valid in itself, or gone, and only the anchor that is named
can reveal it. All other cases need no anchor: they are read again with all anchors removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench import ledger_bytes
from bench.ledger_scene import ALL, NOTE, PIN, REVISION, SEEN, Attack, Scene, armored, claims, noted, string
from tasks.ledger import chain, keys, objects, remote, statement
from tasks.ledger.chain import Stored
from tasks.ledger.entry import (
    Act,
    Approval,
    Entry,
    Genesis,
    PolicyChange,
)
from tasks.ledger.policy import Enrol, EnrolMachine, Policy, signers
from tasks.ledger.state import State


def outsider() -> Iterator[tuple[str, Attack]]:
    """Yield the tricks with files and refs, without an enrolled key."""
    yield from _altered()
    yield from _cut()
    yield from _appended()
    yield from ledger_bytes.commits()
    yield from ledger_bytes.trees()
    yield from ledger_bytes.stored()
    yield from ledger_bytes.remembered()


def general() -> Iterator[tuple[str, Attack]]:
    """Yield the tricks that are possible with any history."""
    yield from _altered()
    yield from _cut()


def _altered() -> Iterator[tuple[str, Attack]]:
    def at(place: int, key: str | None, change: Callable[[Entry], Entry | None]) -> Attack:
        return lambda s: s.rewrite(place, change, s.keys[key] if key else None)

    for place in (1, 3, 5, 6, 9):
        yield f"entry {place + 1} altered, linked again, old signatures", at(place, None, noted)
        yield f"entry {place + 1} altered, signed with another key", at(place, "mallory", noted)
        yield f"entry {place + 1} removed, old signatures", at(place, None, lambda _: None)
        yield f"entry {place + 1} removed, signed with another key", at(place, "mallory", lambda _: None)

    def times(days: float) -> Callable[[Entry], Entry]:
        return lambda entry: entry.model_copy(update={"time": statement.later(entry.time, days=days)})

    yield "entry time set back, old signatures", at(5, None, times(-400))
    yield "entry time set back, signed with another key", at(5, "mallory", times(-400))
    yield "entry time set forward, old signatures", at(5, None, times(400))

    def swapped(key: str | None) -> Attack:
        def attack(s: Scene) -> object:
            a, b = s.stored[8], s.stored[9]
            s.stored[8], s.stored[9] = b, a
            return s.rewrite(8, lambda entry: entry, s.keys[key] if key else None)

        return attack

    yield "two entries reordered, old signatures", swapped(None)
    yield "two entries reordered, signed with another key", swapped("mallory")


def _cut() -> Iterator[tuple[str, Attack]]:
    """Yield valid chains that are cut or not the real one. Only an anchor can reveal them."""

    def left(anchor: str, attack: Attack) -> Attack:
        def both(s: Scene) -> object:
            attack(s)
            return s.only(anchor)

        return both

    def rewound(number: int) -> Attack:
        return lambda s: s.point(s.stored[-1 - number].commit.id)

    for anchor in (SEEN, REVISION):
        for number in (1, 2, 5, 10):
            yield f"rewound by {number}, left: {anchor}", left(anchor, rewound(number))
        yield f"rewound to the genesis, left: {anchor}", left(anchor, lambda s: s.point(s.stored[0].commit.id))

    def gone(s: Scene) -> object:
        return s.clone.git("update-ref", "-d", chain.REF)

    def replaced(s: Scene) -> object:
        return s.point(_another(s, len(s.stored) + 3))

    def shorter(s: Scene) -> object:
        return s.point(_another(s, 3))

    def restarted(s: Scene) -> object:
        return _restart(s, s.head)

    def restarted_below(s: Scene) -> object:
        return _restart(s, s.stored[-3])

    def repinned(attack: Attack) -> Attack:
        """Make the genesis in infra/ledger.yaml fit the forged chain."""

        def both(s: Scene) -> object:
            attack(s)
            with objects.opened(s.clone) as found:
                newest = chain.genesis(chain.read(found, chain.head(s.clone) or "")).entry
            return remote.pin(s.clone, remote.shared(s.clone), newest.id)

        return both

    for anchor in (SEEN, REVISION, PIN):
        yield f"ledger deleted, left: {anchor}", left(anchor, gone)
        yield f"replaced by another of mallory's, left: {anchor}", left(anchor, replaced)
        yield f"replaced by a shorter one, left: {anchor}", left(anchor, shorter)
        yield f"restarted by mallory below the head, left: {anchor}", left(anchor, restarted_below)
    for anchor in (SEEN, PIN):
        yield f"restarted by mallory, left: {anchor}", left(anchor, restarted)
    yield f"restarted by mallory, infra/ledger.yaml too, left: {SEEN}", repinned(restarted)
    yield f"replaced by another, infra/ledger.yaml too, left: {SEEN}, {REVISION}", repinned(replaced)

    def restarted_twice(s: Scene) -> object:
        _restart(s, s.head)
        with objects.opened(s.clone) as found:
            return _restart(s, chain.read(found, chain.head(s.clone) or "")[-1])

    yield f"restarted twice, left: {ALL}", restarted_twice

    def without_roots(s: Scene) -> object:
        return s.relabeled(s.head, lambda raw: raw.replace(f"parent {s.head.commit.parents[0]}\n".encode(), b"", 1))

    yield "cut off below the head", without_roots

    def pretends(s: Scene) -> object:
        act = Genesis(machine=s.keys["mallory"].public, nonce="n" * 32)
        return s.append(act, s.keys["mallory"], machine="mallory")

    yield "a second genesis on top, which restarts nothing", pretends


def _another(s: Scene, length: int) -> str:
    """Make mallory's own chain, valid in itself."""
    mallory = s.keys["mallory"]
    policy, lines = Policy(machines={"mallory": mallory.fingerprint}), b""
    lines = signers(lines, EnrolMachine(name="mallory", key=mallory.public))
    files = {chain.POLICY: policy.yaml(), chain.SIGNERS: lines}
    digests = {name: objects.sha256(each) for name, each in files.items()}
    act: Act = Genesis(machine=mallory.public, nonce="m" * 32)
    head, previous = "", None
    for number in range(1, length + 1):
        entry = Entry(
            number=number, previous=previous, time=s.head.entry.time, machine="mallory", act=act, files=digests
        )
        head = chain.make(s.clone, entry, files, [head] if head else [], mallory)
        previous, act = entry.id, NOTE
    return head


def _restart(s: Scene, after: Stored) -> str:
    mallory = s.keys["mallory"]
    act = Genesis(machine=mallory.public, nonce="r" * 32, restarts=after.entry.id, reason="keys were lost")
    with objects.opened(s.clone) as found:
        state = _state(chain.read(found, after.commit.id))
    state.begin(EnrolMachine(name="mallory", key=mallory.public))
    files = {chain.POLICY: state.policy_yaml, chain.SIGNERS: state.signers}
    return s.append(act, mallory, files, after=after, machine="mallory")


def _state(stored: list[Stored]) -> State:
    from tasks.ledger import verify

    return verify.replay(stored)


def _appended() -> Iterator[tuple[str, Attack]]:
    def by(signer: str, name: str | None = None, act: Act = NOTE, **more: Any) -> Attack:
        return lambda s: s.append(act, s.keys[signer], machine=name, **more)

    yield "appended by an unknown machine", by("mallory", "mallory")
    yield "appended by an unknown machine, in the name of an enrolled one", by("mallory")
    yield "appended with a person's key in the place of a machine's", by("ada")
    yield "appended with a person's key, in the person's name", by("ada", "ada")
    yield "appended by a machine that was removed", by("desk", "desk")

    def grants(signer: str | None, name: str = "mallory") -> Attack:
        def attack(s: Scene) -> object:
            change = Enrol(name="mallory", roles=["owner"], key=s.keys["mallory"].public)
            after = State(policy=s.state.policy, signers=s.state.signers)
            after.change(change)
            files = {chain.POLICY: after.policy_yaml, chain.SIGNERS: after.signers}
            signed_files = s.sign("policy", signer, change=change) if signer else {}
            return s.append(PolicyChange(change=change), s.keys["mallory"], files | signed_files, machine=name)

        return attack

    yield "a role granted to oneself", grants("mallory")
    yield "a role granted to oneself without a statement", grants(None)

    def enrols_itself(s: Scene) -> object:
        change = EnrolMachine(name="mallory", key=s.keys["mallory"].public)
        after = State(policy=s.state.policy, signers=s.state.signers)
        after.change(change)
        files = {chain.POLICY: after.policy_yaml, chain.SIGNERS: after.signers}
        files |= s.sign("policy", "mallory", change=change)
        return s.append(PolicyChange(change=change), s.keys["mallory"], files, machine="mallory")

    yield "a machine that enrols itself", enrols_itself

    def reused(s: Scene) -> object:
        change = EnrolMachine(name="mallory", key=s.keys["mallory"].public)
        after = State(policy=s.state.policy, signers=s.state.signers)
        after.change(change)
        old = s.nth(PolicyChange).files
        files = {chain.POLICY: after.policy_yaml, chain.SIGNERS: after.signers}
        files |= {name: old[name] for name in (chain.STATEMENT, chain.SIGNATURE)}
        return s.append(PolicyChange(change=change), s.keys["mallory"], files, machine="mallory")

    yield "a machine that enrols itself with an owner's old statement", reused

    def copied(s: Scene) -> object:
        """Append another entry's act once more, with its files."""
        old = s.nth(Approval)
        return s.append(old.entry.act, s.keys["mallory"], {n: old.files[n] for n in (chain.STATEMENT, chain.SIGNATURE)})

    yield "an approval copied to the top", copied

    def pasted(s: Scene) -> object:
        commit = s.append(NOTE, s.keys["mallory"])
        return s.point(s.resigned(commit, s.head.commit.signature))

    yield "the signature of another commit", pasted

    def garbage(s: Scene) -> object:
        commit = s.append(NOTE, s.keys["mallory"])
        return s.point(s.resigned(commit, claims(s.stored[0].commit.signature or "")))

    yield "a signature that names an enrolled key, and is noise", garbage
    yield "no signature at all", lambda s: s.point(s.resigned(s.append(NOTE, s.keys["mallory"]), None))
    yield (
        "an OpenPGP signature",
        lambda s: s.point(
            s.resigned(
                s.append(NOTE, s.keys["mallory"]), "-----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----"
            )
        ),
    )

    def kind(s: Scene) -> object:
        """Sign with a key whose type field holds the enrolled key, so that careless readers find
        that one."""
        enrolled = keys.signer(s.stored[0].commit.signature or "").split()[1]
        public = string(f"ssh-ed25519 {enrolled} x".encode()) + string(b"k" * 32)
        blob = b"SSHSIG" + (1).to_bytes(4, "big") + string(public) + string(b"git")
        commit = s.append(NOTE, s.keys["mallory"])
        return s.point(s.resigned(commit, armored(blob)))

    yield "a signature whose key's kind holds an enrolled key", kind
