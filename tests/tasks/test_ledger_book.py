"""tasks/ledger/book.py: a ledger in a clone, and in clones that share a remote. What goes wrong is
said, nothing is half done, and the clone is usable afterwards.

Real Git, real bare remotes, real ssh-keygen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ledger_world
import pytest
from ledger_world import HASHES, NOTE, append, own, silent

from rft.errors import InfrastructureError, UserError
from tasks.ledger import book, chain, keys, locks, memory, remote, statement
from tasks.ledger.authorise import Refused
from tasks.ledger.book import Ledger
from tasks.ledger.entry import Approval, Entry, PolicyChange, Promotion, Request
from tasks.ledger.keys import Key
from tasks.ledger.objects import Damaged
from tasks.ledger.policy import Enrol, EnrolMachine
from tasks.ledger.remote import AppendConflict, Shared
from tasks.ledger.statement import Content
from tasks.runs.clone import Clone
from tasks.runs.git import GitError

CONTENT = Content(
    decision_sha256=HASHES[0],
    prompt_sha256=HASHES[0],
    weights_sha256=HASHES[1],
    base_sha256=None,
    test_sha256=HASHES[0],
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return ledger_world.make_clone(tmp_path / "clone")


def request(clone: Clone, **other: Any) -> Entry:
    made: dict[str, Any] = {"model": "tiny", "run": "r", "revision": clone.git("rev-parse", "main"), "key": "r"}
    made |= {"candidate": "challenger", "content": CONTENT, "champion": 0, "edits_sha256": None, "started_by": "Ada"}
    made |= {"expires": statement.later(statement.now(), days=3), "registration": look(clone)}
    return append(clone, Request.model_validate(made | other))


def look(clone: Clone) -> int:
    """The registration of a look at CONTENT."""
    state = book.read(clone, report_line=silent).state
    if not ledger_world.look_of(state, "tiny", CONTENT):
        append(clone, ledger_world.look_at(state, "tiny", CONTENT))
    return ledger_world.look_of(book.read(clone, report_line=silent).state, "tiny", CONTENT)


def number(clone: Clone) -> int:
    return book.read(clone, reverify=True, report_line=silent).state.number


def refused(clone: Clone, kind: type[Exception], message: str, act: Callable[[], object]) -> None:
    """`act` is refused with these words, and the ledger is as it was."""
    before = chain.head(clone)
    with pytest.raises(kind, match=message):
        act()
    assert chain.head(clone) == before


# -- one clone -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_from_nothing_to_a_champion(clone: Clone, cast: dict[str, Key]) -> None:
    assert book.read(clone).state.champion("tiny") == 0
    assert chain.head(clone) is None, "reading makes no ledger"
    own(clone, cast["ada"])
    asked = request(clone)
    about = {"act": "approve", "model": "tiny", "request": asked.id, "content": CONTENT}
    approved = append(clone, Approval(model="tiny", request=asked.number), cast["ada"], **about)
    promotion = {"model": "tiny", "request": asked.number, "approvals": [approved.number], "before": 0, "smoke": ""}
    done = append(clone, Promotion.model_validate(promotion | {"weights_signature": None}))
    ledger = book.read(clone, reverify=True)
    assert ledger.state.champion("tiny") == done.number == 6
    assert ledger.shared.genesis == ledger.stored[0].entry.id
    assert clone.git("rev-parse", f"{ledger.stored[3].commit.id}^2") == clone.git("rev-parse", "main")
    allowed = clone.root / "allowed"
    allowed.write_text(clone.git("show", f"{chain.REF}:allowed_signers") + "\n")
    clone.git("-c", f"gpg.ssh.allowedSignersFile={allowed}", "verify-commit", chain.REF)
    clone.git("fsck", "--strict")


@pytest.mark.slow
def test_what_may_not_stand_is_refused_and_leaves_nothing(clone: Clone, cast: dict[str, Key]) -> None:
    own(clone, cast["ada"])
    asked = request(clone)
    act = Approval(model="tiny", request=asked.number)
    about: dict[str, Any] = {"act": "approve", "model": "tiny", "request": asked.id, "content": CONTENT}
    nobody = "is not enrolled in the ledger .*rft ledger people add NAME"
    refused(clone, UserError, nobody, lambda: append(clone, act, cast["bob"], **about))
    change = Enrol(name="bob", roles=["author"], key=cast["bob"].public)
    append(clone, PolicyChange(change=change), cast["ada"], act="policy", change=change)
    role = "bob is author, and to approve takes the role owner or approver. These people have it: ada"
    refused(clone, Refused, role, lambda: append(clone, act, cast["bob"], **about))
    other = about | {"content": CONTENT.model_copy(update={"weights_sha256": HASHES[3]})}
    refused(clone, Refused, "about other content: a hash", lambda: append(clone, act, cast["ada"], **other))
    with book.opened(clone, report_line=silent) as ledger:
        signed = statement.sign(cast["ada"], ledger.statement(reason="because", **about))
        forged = signed.model_copy(update={"statement": ledger.statement(reason="of course", **about)})
        refused(clone, UserError, "does not fit the statement", lambda: ledger.append(act, forged))
        noise = signed.model_copy(update={"signature": "noise"})
        refused(clone, UserError, "not an SSH signature", lambda: ledger.append(act, noise))
        ledger.append(act, signed)
        refused(clone, Refused, "stands in the ledger already", lambda: ledger.append(act, signed))


@pytest.mark.slow
def test_entry_that_no_reader_would_let_stand_is_never_shown(clone: Clone, cast: dict[str, Key]) -> None:
    own(clone, cast["ada"])
    look(clone)
    refused(clone, Damaged, "Git object 1111111111 is missing", lambda: request(clone, revision="1" * 40))
    asked = request(clone)
    about = {"act": "approve", "model": "tiny", "request": asked.id, "content": CONTENT}
    approved = append(clone, Approval(model="tiny", request=asked.number), cast["ada"], **about)
    made = {"model": "tiny", "request": asked.number, "approvals": [approved.number], "before": 0, "smoke": ""}
    act = Promotion.model_validate(made | {"weights_signature": HASHES[0]})
    refused(clone, Damaged, r"model\.sig is not the signature", lambda: append(clone, act))
    assert append(clone).number == 6


def verified(clone: Clone, **how: bool) -> int:
    """How many signatures ssh-keygen verifies in a process that reads once, and then anew."""
    code = (
        "import json, sys; from pathlib import Path; from tasks.ledger import book, keys\n"
        "from tasks.runs.clone import Clone\n"
        "real, asked = keys._run, []\n"
        "keys._run = lambda *a, **k: (asked.append(a) if 'verify' in a else None) or real(*a, **k)\n"
        "book.read(Clone(Path(sys.argv[1])), **json.loads(sys.argv[2])); once = len(asked)\n"
        "book.read(Clone(Path(sys.argv[1])), reverify=True); print(once, len(asked))\n"
    )
    command = [sys.executable, "-c", code, str(clone.root), json.dumps(how)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    once, both = map(int, printed.split())
    assert both == 6, "each once in a process, and none is left out anew"
    return once


@pytest.mark.slow
def test_memory_spares_signatures_only_where_the_machine_is_enrolled(clone: Clone, cast: dict[str, Key]) -> None:
    own(clone, cast["ada"])
    for _ in range(3):
        append(clone)
    assert verified(clone) == 3, "genesis, policy entry and its statement: who may be believed"
    memory.path(clone).unlink()
    ledger_world.is_machine(clone, cast["desk"])
    assert verified(clone) == 6
    assert memory.recall(clone), "it is remembered"
    assert verified(clone) == 6, "by a machine that nobody enrolled"


def test_ledger_is_named_in_a_tracked_file_when_the_first_person_counts_on_it(
    clone: Clone, cast: dict[str, Key]
) -> None:
    append(clone)
    assert not (clone.root / remote.FILE).exists()
    own(clone, cast["ada"])
    assert remote.shared(clone).genesis == book.read(clone).state.genesis
    (clone.root / remote.FILE).unlink()  # as when the process died before it wrote the file
    append(clone)
    assert remote.shared(clone).genesis == book.read(clone).state.genesis


def test_clone_that_finds_a_ledger_named_makes_no_second_one(
    clone: Clone, cast: dict[str, Key], tmp_path: Path
) -> None:
    own(clone, cast["ada"])
    other = ledger_world.make_clone(tmp_path / "other")
    (other.root / "infra").mkdir()
    shutil.copy(clone.root / remote.FILE, other.root / remote.FILE)
    for act in (lambda: book.read(other), lambda: append(other)):
        refused(other, UserError, "this clone does not have it.*would split your history", act)
    other.git("fetch", "-q", str(clone.root), f"{chain.REF}:{chain.REF}")
    assert number(other) == 2
    refused(other, Refused, "is not enrolled in the ledger.*rft ledger people add --machine", lambda: append(other))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 200])
@pytest.mark.parametrize("already", ["while it reads", "before it writes"])
def test_full_disk_is_named_and_leaves_the_ledger_as_it_was(
    clone: Clone, cast: dict[str, Key], limit: int, already: str
) -> None:
    own(clone, cast["ada"])
    head = chain.head(clone)
    code = (
        "import resource, sys; from pathlib import Path; from tasks.ledger import book; "
        "from tasks.ledger.entry import Reconcile; from tasks.runs.clone import Clone\n"
        "limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try:\n"
        "    if sys.argv[3] == 'while it reads': limit()\n"
        "    with book.opened(Clone(Path(sys.argv[1]))) as ledger:\n"
        "        limit(); ledger.append(Reconcile(model='tiny', projection='a', found='1', set='2'))\n"
        "except Exception as error: print(type(error).__mro__, error)\n"
    )
    command = [sys.executable, "-c", code, str(clone.root), str(limit), already]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert "InfrastructureError" in done.stdout or "OSError" in done.stdout, done.stdout + done.stderr
    assert chain.head(clone) == head
    assert append(clone).number == 3
    assert number(clone) == 3


# -- clones that share a remote --------------------------------------------------------------------
@pytest.fixture(scope="module")
def template(cast: dict[str, Key], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("pair")
    clone = ledger_world.make_clone(tmp_path / "clone")
    clone.git("init", "-q", "--bare", str(tmp_path / "origin"))
    clone.git("remote", "add", "origin", str(tmp_path / "origin"))
    remote.pin(clone, Shared(remote="origin"), None)
    own(clone, cast["ada"])
    clone.git("add", remote.FILE)
    clone.git("commit", "-q", "-m", "ledger")
    clone.git("push", "-q", "origin", "main")
    clone.git("clone", "-q", "-b", "main", str(tmp_path / "origin"), str(tmp_path / "second"))
    second = Clone(tmp_path / "second")
    change = EnrolMachine(name="second", key=keys.machine(second).public)
    append(clone, PolicyChange(change=change), cast["ada"], act="policy", change=change)
    assert book.read(second).state.number == 3, "the first reading fetches"
    return tmp_path


@pytest.fixture
def pair(template: Path, tmp_path: Path) -> tuple[Clone, Clone]:
    """Two clones and their bare remote; both machines are enrolled."""
    return ledger_world.copied(template, tmp_path, "clone"), ledger_world.copied(template, tmp_path, "second")


def origin(clone: Clone, *arguments: str) -> str:
    return clone.git("--git-dir", clone.git("remote", "get-url", "origin"), *arguments)


def test_clones_append_in_turn(pair: tuple[Clone, Clone]) -> None:
    first, second = pair
    for clone, expected in ((second, 4), (first, 5), (second, 6)):
        assert append(clone).number == expected
    assert number(second) == 6
    assert book.read(first, fetch=True).state == book.read(second).state


@pytest.mark.slow
def test_of_two_that_append_at_once_one_loses_and_looks_again(pair: tuple[Clone, Clone]) -> None:
    first, second = pair
    with book.opened(first, report_line=silent) as ledger:
        append(second)
        refused(first, AppendConflict, "at the same moment", lambda: ledger.append(NOTE))
    calls = list[int]()

    def act(ledger: Ledger) -> int:
        calls.append(ledger.state.number)
        if len(calls) == 1:
            append(second)
        return ledger.append(NOTE).number

    assert book.acting(first, act, report_line=silent) == 6
    assert calls == [4, 5]


def test_push_whose_answer_was_lost_is_settled_by_fetching(pair: tuple[Clone, Clone], tmp_path: Path) -> None:
    first, second = pair
    hook = tmp_path / "origin/hooks/post-receive"
    hook.write_text("#!/bin/sh\nkill -9 $PPID\n")
    hook.chmod(0o755)
    assert append(first).number == 4
    hook.unlink()
    assert append(second).number == 5


def test_remote_that_does_not_answer_is_named_and_nothing_is_appended(
    pair: tuple[Clone, Clone], tmp_path: Path
) -> None:
    first, _ = pair
    shutil.move(tmp_path / "origin", tmp_path / "gone")
    message = "(?s)the ledger's remote origin .*Nothing was appended"
    refused(first, InfrastructureError, message, lambda: append(first))
    assert number(first) == 3, "reading goes on without it"
    with pytest.raises(InfrastructureError):
        book.read(first, fetch=True)
    shutil.move(tmp_path / "gone", tmp_path / "origin")
    with book.opened(first, report_line=silent) as ledger:
        shutil.move(tmp_path / "origin", tmp_path / "gone")
        refused(first, InfrastructureError, message, lambda: ledger.append(NOTE))
        shutil.move(tmp_path / "gone", tmp_path / "origin")
    assert append(first).number == 4


@pytest.mark.slow
@pytest.mark.parametrize("ref", [chain.REF, remote.FETCHED, "refs/remotes/origin/rft-ledger"])
def test_lock_that_a_killed_git_left_is_passed(
    pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch, ref: str
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.3)
    ours, theirs = pair
    append(theirs, NOTE)
    left = ours.root / f".git/{ref}.lock"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    append(ours, NOTE)
    assert not left.exists()
    assert number(ours) == number(theirs) + 1
    left.touch()
    with pytest.raises(GitError, match="File exists"):  # one on a ref that is none of ours stays
        locks.past(ours, lambda: ours.git("update-ref", ref, "HEAD"), "refs/rft/other")
    assert left.exists()


def test_remote_that_refuses_the_push_is_named(pair: tuple[Clone, Clone], tmp_path: Path) -> None:
    hook = tmp_path / "origin/hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho this branch is protected; exit 1\n")
    hook.chmod(0o755)
    refused(pair[0], InfrastructureError, "this branch is protected", lambda: append(pair[0]))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rewound", "deleted", "replaced", "garbage", "appended to"])
def test_tampered_branch_is_named_and_not_taken(pair: tuple[Clone, Clone], tmp_path: Path, how: str) -> None:
    first, second = pair
    branch = f"refs/heads/{Shared().branch}"
    messages = {
        "rewound": "was rewound: it lacks entries that this clone has",
        "deleted": "is gone, and it was there",
        "replaced": "two ledgers without a common genesis",
        "garbage": r"holds no entry\.json|not a plain file",
        "appended to": "must not stand in the ledger|not enrolled for machine",
    }
    if how == "rewound":
        origin(first, "update-ref", branch, f"{branch}~1")
    elif how == "deleted":
        origin(first, "update-ref", "-d", branch)
    elif how == "replaced":
        other = ledger_world.make_clone(tmp_path / "other")
        append(other)
        other.git("push", "-q", "-f", str(tmp_path / "origin"), f"{chain.REF}:{branch}")
    elif how == "garbage":
        made = first.git("commit-tree", "main^{tree}", "-p", chain.REF, "-m", "x")
        first.git("push", "-q", "origin", f"{made}:{branch}")
    else:
        stranger = ledger_world.make_key(tmp_path, "stranger", "ecdsa")
        last = book.read(first).stored[-1]
        files = {name: last.files[name] for name in (chain.POLICY, chain.SIGNERS)}
        entry = Entry(
            number=4,
            previous=last.entry.id,
            time=last.entry.time,
            machine="second",
            act=NOTE,
            files={name: last.entry.files[name] for name in files},
        )
        made = chain.make(first, entry, files, [last.commit.id], stranger)
        first.git("push", "-q", "origin", f"{made}:{branch}")
    for each in pair:
        before = chain.head(each)
        with pytest.raises(UserError, match=messages[how]):
            book.read(each, fetch=True)
        assert chain.head(each) == before
        assert book.read(each).state.number == 3
    assert memory.recall(second) is not None


def test_graft_does_not_hide_that_the_branch_was_rewound(pair: tuple[Clone, Clone]) -> None:
    first, _ = pair
    branch = f"refs/heads/{Shared().branch}"
    head, before = chain.head(first), first.git("rev-parse", f"{chain.REF}~1")
    origin(first, "update-ref", branch, f"{branch}~1")
    root = first.git("rev-list", "--max-parents=0", "--first-parent", chain.REF)
    (first.root / ".git/info/grafts").write_text(f"{before} {head}\n{head} {root}\n")
    first.git("merge-base", "--is-ancestor", str(head), before)  # as Git sees it
    with pytest.raises(Damaged, match="was rewound"):
        book.read(first, fetch=True)


def test_two_ledgers_that_began_apart_are_named_and_both_stay(clone: Clone, tmp_path: Path) -> None:
    clone.git("init", "-q", "--bare", str(tmp_path / "origin"))
    second = ledger_world.make_clone(tmp_path / "second")
    for each in (clone, second):
        append(each)
        each.git("remote", "add", "origin", str(tmp_path / "origin"))
    remote.pin(clone, Shared(remote="origin"), remote.shared(clone).genesis)
    append(clone)
    remote.pin(second, Shared(remote="origin"), remote.shared(second).genesis)
    refused(second, UserError, "two ledgers without a common genesis.*cannot be joined", lambda: append(second))


def test_shallow_clone_is_refused_with_the_remedy(pair: tuple[Clone, Clone], tmp_path: Path) -> None:
    first, _ = pair
    url = f"file://{tmp_path / 'origin'}"
    (first.root / "more").write_text("more")
    first.git("add", "-A")
    first.git("commit", "-q", "-m", "more")
    first.git("push", "-q", "origin", "main")
    first.git("clone", "-q", "--depth", "1", "-b", "main", url, str(tmp_path / "shallow"))
    shallow = Clone(tmp_path / "shallow")
    refused(shallow, UserError, "git fetch --unshallow", lambda: append(shallow))
    shallow.git("fetch", "-q", "--unshallow")
    assert book.read(shallow).state.number == 3


def test_rejected_settings_of_the_shared_ledger_name_the_file(clone: Clone) -> None:
    file = clone.root / remote.FILE
    file.parent.mkdir()
    for text, message in (
        ("remote: nowhere\n", "remote = 'nowhere' is not a remote of this clone"),
        ("remotes: x\n", "remotes: Extra inputs"),
        ("branch: '-f'\n", "branch: String should match"),
        ("a: [", "not YAML"),
    ):
        file.write_text(text)
        refused(clone, UserError, message, lambda: append(clone))
