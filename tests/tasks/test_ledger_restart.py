"""tasks/ledger/restart.py and anchors.py: a ledger goes on without its lost keys where people
accept that; what knows the chain from outside tells when it was cut, rewound or restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ledger_world
import pytest
from ledger_world import append, own, record, silent

from rft.errors import UserError
from tasks.ledger import book, chain, keys, memory, objects, remote, restart, verify
from tasks.ledger.entry import Genesis, PolicyChange
from tasks.ledger.keys import Key
from tasks.ledger.objects import Damaged
from tasks.ledger.policy import Change, Compromised, EnrolMachine
from tasks.ledger.remote import Shared
from tasks.runs.clone import Clone


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def template(cast: dict[str, Key], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("template")
    made = ledger_world.make_clone(tmp_path / "clone")
    made.git("init", "-q", "--bare", str(tmp_path / "origin"))
    made.git("remote", "add", "origin", str(tmp_path / "origin"))
    remote.pin(made, Shared(remote="origin"), None)
    own(made, cast["ada"])
    append(made)
    append(made)
    made.git("add", "-A")
    made.git("commit", "-q", "-m", "ledger")
    made.git("push", "-q", "origin", "main")
    return tmp_path


@pytest.fixture
def clone(template: Path, tmp_path: Path) -> Clone:
    """With a remote, an owner, and four entries."""
    return ledger_world.copied(template, tmp_path, "clone")


def cloned(clone: Clone, root: Path) -> Clone:
    clone.git("clone", "-q", "-b", "main", clone.git("remote", "get-url", "origin"), str(root))
    return Clone(root)


# -- restart ---------------------------------------------------------------------------------------
@pytest.mark.slow
def test_restart_goes_on_where_the_old_chain_ended(clone: Clone, cast: dict[str, Key]) -> None:
    old = book.read(clone).stored
    made = restart.restart(clone, "Ada's laptop\nburned", silent)
    assert (made.number, made.previous) == (5, old[-1].entry.id)
    state = book.read(clone, reverify=True).state
    assert (state.since, state.restarts, state.genesis) == (5, old[-1].entry.id, made.id)
    assert isinstance(made.act, Genesis)
    assert made.act.reason == "Ada's laptop burned"
    assert remote.shared(clone).genesis == made.id
    assert not state.policy.people
    assert [each.entry.id for each in restart.earlier(clone)] == [each.entry.id for each in old]
    own(clone, cast["bob"])
    assert append(clone).number == 7
    assert clone.git("log", "--first-parent", "--format=%s", "-1", f"{chain.REF}~6") == "ledger 1: genesis"


def test_other_clone_takes_a_restart_only_by_name(clone: Clone, tmp_path: Path) -> None:
    second = cloned(clone, tmp_path / "second")
    assert book.read(second, fetch=True).state.number == 4
    made = restart.restart(clone, "keys were lost", silent)
    before = chain.head(second)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"restarts the ledger.*keys were lost.*rft ledger restart --accept"):
            book.read(second, fetch=True)
    assert chain.head(second) == before
    assert restart.accept(second, silent) == made
    assert book.read(second, reverify=True).state == book.read(clone).state
    assert remote.shared(second).genesis == made.id


def test_new_pin_from_git_alone_is_not_enough_for_a_clone_that_knew_another(clone: Clone, tmp_path: Path) -> None:
    second = cloned(clone, tmp_path / "second")
    book.read(second)
    made = restart.restart(clone, "keys were lost", silent)
    remote.pin(second, remote.shared(second), made.id)
    with pytest.raises(Damaged, match="restarts the ledger"):
        book.read(second)
    third = cloned(clone, tmp_path / "third")
    with pytest.raises(Damaged, match="restarts the ledger"):  # its infra/ledger.yaml is the old one
        book.read(third)
    remote.pin(third, remote.shared(third), made.id)
    assert book.read(third).state.genesis == made.id


def test_restart_that_died_before_it_was_pinned_is_accepted_by_name(clone: Clone) -> None:
    old = remote.shared(clone)
    restart.restart(clone, "keys were lost", silent)
    remote.pin(clone, old, old.genesis)
    with pytest.raises(Damaged, match="restarts the ledger"):
        book.read(clone)
    restart.accept(clone, silent)
    assert append(clone).number == 6


def test_nothing_to_restart_and_nothing_to_accept(clone: Clone, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="never restarted"):
        restart.accept(clone, silent)
    with pytest.raises(UserError, match="no ledger to restart"):
        restart.restart(ledger_world.make_clone(tmp_path / "new"), "x", silent)
    with pytest.raises(UserError, match="--reason must not be empty"):
        restart.restart(clone, " ", silent)
    assert book.read(clone).state.number == 4


def attackers(clone: Clone, key: Key, after: int = 4) -> str:
    """A restart by a machine that nobody enrolled."""
    with objects.opened(clone) as found:
        stored = chain.read(found, chain.head(clone) or "")[:after]
    state = verify.replay(stored)
    act = Genesis(machine=key.public, nonce="n" * 16, restarts=stored[-1].entry.id, reason="trust me")
    files = verify.rules_after(state, act, "mallory")
    digests = {name: objects.sha256(each) for name, each in files.items()}
    last = stored[-1].entry
    made = last.model_copy(
        update={"number": after + 1, "previous": last.id, "machine": "mallory", "act": act, "files": digests}
    )
    return chain.make(clone, made, files, [stored[-1].commit.id], key)


@pytest.mark.parametrize("anchor", ["seen", "pin", "revision"])
@pytest.mark.parametrize("after", [4, 3])
def test_attackers_restart_is_named_where_an_anchor_is_left(
    clone: Clone, cast: dict[str, Key], anchor: str, after: int
) -> None:
    remote.pin(clone, Shared(), remote.shared(clone).genesis)  # no remote, which would be one more
    if anchor == "revision":
        record(clone, "run", book.read(clone).stored[-1].entry)
    clone.git("update-ref", chain.REF, attackers(clone, cast["desk"], after))
    if anchor != "seen":
        memory.path(clone).unlink()
    if anchor != "pin":
        (clone.root / remote.FILE).unlink()
    if anchor == "revision" and after == 4:
        assert book.read(clone).state.since == 5, "nothing was cut: what is left is the mark that it shows for ever"
        return
    for reverify in (False, True):
        with pytest.raises(Damaged):
            book.read(clone, reverify=reverify)


def test_restart_of_a_chain_that_lacks_what_was_seen_cannot_be_accepted(clone: Clone, cast: dict[str, Key]) -> None:
    remote.pin(clone, Shared(), remote.shared(clone).genesis)
    clone.git("update-ref", chain.REF, attackers(clone, cast["desk"], after=2))
    with pytest.raises(Damaged, match="it was cut or rewound"):
        restart.accept(clone, silent)
    assert memory.recall(clone) is not None


def test_restart_by_a_compromised_machine_is_no_restart(clone: Clone, cast: dict[str, Key]) -> None:
    def change(made: Change) -> None:
        append(clone, PolicyChange(change=made), cast["ada"], act="policy", change=made)

    change(EnrolMachine(name="desk", key=cast["desk"].public))
    change(Compromised(key=cast["desk"].fingerprint, since=5))
    memory.path(clone).unlink()
    ledger_world.is_machine(clone, cast["desk"])
    with pytest.raises(UserError, match="marked as compromised"):
        restart.restart(clone, "mine now", silent)


# -- anchors ---------------------------------------------------------------------------------------
@pytest.fixture
def alone(clone: Clone) -> Clone:
    """Without a remote ever, and with a run that knows the head."""
    remote.pin(clone, Shared(), remote.shared(clone).genesis)
    seen = memory.recall(clone)
    assert seen
    memory.keep(clone, seen.model_copy(update={"remote": False}))
    record(clone, "run", book.read(clone).stored[-1].entry)
    return clone


def rewind(clone: Clone) -> None:
    clone.git("update-ref", chain.REF, f"{chain.REF}~1")


def delete(clone: Clone) -> None:
    clone.git("update-ref", "-d", chain.REF)


@pytest.mark.parametrize("attack", [rewind, delete])
def test_run_revision_tells_that_the_chain_was_cut(alone: Clone, attack: Callable[[Clone], None]) -> None:
    attack(alone)
    memory.path(alone).unlink()
    (alone.root / remote.FILE).unlink()
    with pytest.raises(Damaged, match=r"entry 4 .* is named by run revision refs/exps/.*cut or rewound"):
        book.read(alone)


def test_run_revision_of_another_ledger_is_named_with_the_remedy(alone: Clone, tmp_path: Path) -> None:
    other = ledger_world.make_clone(tmp_path / "other")
    append(other)
    ref = record(alone, "foreign", book.read(other).stored[-1].entry)
    with pytest.raises(Damaged, match=rf"git update-ref -d {ref}"):
        book.read(alone)
    alone.git("update-ref", "-d", ref)
    assert book.read(alone).state.number == 4


def test_run_revision_that_is_ahead_makes_the_clone_fetch(clone: Clone, tmp_path: Path) -> None:
    second = cloned(clone, tmp_path / "second")
    book.read(second)
    record(second, "later", append(clone))
    assert book.read(second).state.number == 5


def test_revisions_of_before_a_restart_stay_known(alone: Clone) -> None:
    restart.restart(alone, "keys were lost", silent)
    record(alone, "after", append(alone))
    assert book.read(alone, reverify=True).state.number == 6
    memory.path(alone).unlink()
    alone.git("update-ref", chain.REF, f"{chain.REF}~3")
    with pytest.raises(Damaged):
        book.read(alone)


def test_only_the_last_trailer_of_a_message_counts(alone: Clone) -> None:
    entry = book.read(alone).stored[-1].entry
    start = alone.git("rev-parse", "main")
    message = f"run\n\nLedger: 99 {'a' * 64}\n\nLedger: {entry.number} {entry.id}\n"
    commit = alone.git("commit-tree", "main^{tree}", "-m", message)
    alone.git("update-ref", f"refs/exps/{start[:2]}/{start[2:]}/words", commit)
    assert book.read(alone).state.number == 4


def test_machine_key_that_was_replaced_is_named(alone: Clone) -> None:
    (keys.folder(alone) / "machine").unlink()
    with pytest.raises(Damaged, match="was not written with this clone's machine key"):
        book.read(alone)
