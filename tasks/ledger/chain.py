"""The commits of the chain: read them all, make one more.

Each commit has the entry before as its first parent. A further parent is the run's revision that
the entry is about, so that one push carries it and Git never removes it. The commit's message
repeats the SHA-256 of entry.json, so that the signature of the commit covers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.ledger import entry as entries
from tasks.ledger import keys, locks, objects
from tasks.ledger.entry import Entry, Genesis
from tasks.ledger.keys import Key
from tasks.ledger.objects import Damaged, Objects
from tasks.runs.clone import Clone
from tasks.runs.git import git

REF = "refs/rft/ledger"
NONE = "0" * 40
ENTRY, POLICY, SIGNERS = "entry.json", "policy.yaml", "allowed_signers"
STATEMENT, SIGNATURE, WEIGHTS = "statement.json", "statement.sig", "model.sig"
_DURABLE = ("-c", "core.fsync=committed,reference")


@dataclass(frozen=True)
class Stored:
    """An entry as Git holds it. Its hashes are checked, its signatures are not."""

    commit: objects.Commit
    entry: Entry
    files: dict[str, bytes]

    @property
    def where(self) -> str:
        return f"entry {self.entry.number} ({self.commit.id[:10]})"


def head(clone: Clone, ref: str = REF) -> str | None:
    return git(clone.root, "for-each-ref", "--format=%(objectname)", ref) or None


def _assert_kept(found: Objects, revision: str, each: Stored) -> None:
    """Raise Damaged unless Git has the revision that an entry is about, unchanged."""
    try:
        found.commit(revision)
    except Damaged as error:
        raise Damaged(f"{each.where} is about revision {revision[:10]}: {error}") from None


def read(found: Objects, commit: str) -> list[Stored]:
    """Read the chain that ends at a commit, back to its genesis. Returns the oldest first. Raises
    Damaged, naming the entry, for what is not a whole chain."""
    found.prefetch(commit)
    chain: list[Stored] = []
    name: str | None = commit
    while name is not None:
        each = stored(found, name)
        if chain:
            _assert_before(each, chain[-1])
        chain.append(each)
        for revision in each.commit.parents[1:]:
            _assert_kept(found, revision, each)
        if isinstance(each.entry.act, Genesis) and each.entry.act.restarts is None:
            break
        name = each.commit.parents[0] if each.commit.parents else None
    first = chain[-1].entry
    if not isinstance(first.act, Genesis) or (first.number, first.previous) != (1, None):
        raise Damaged(f"{chain[-1].where} has no entry before it, and it is not a first genesis: the chain was cut.")
    return chain[::-1]


def genesis(chain: list[Stored]) -> Stored:
    """Return the genesis that counts: the last one, if the ledger was restarted."""
    return next(each for each in reversed(chain) if isinstance(each.entry.act, Genesis))


def restart(newest: Stored) -> str:
    """Describe a restart that nobody has accepted here."""
    made = newest.entry
    assert isinstance(made.act, Genesis)
    return (
        f"{newest.where} restarts the ledger: machine {made.machine} says on {made.time}: {made.act.reason}. Its "
        "people and machines have no say any more, and this clone has not accepted that. Ask your owners; if they did "
        "it: rft ledger restart --accept"
    )


def descends(found: Objects, new: str, old: str) -> bool:
    """Say whether one head stands above another in a chain. Follows the entries' own first parents,
    and ignores grafts, replacements, .git/shallow and Git's commit graph."""
    name: str | None = new
    while name is not None and name != old:
        parents = found.commit(name).parents
        name = parents[0] if parents else None
    return name is not None


def stored(found: Objects, name: str) -> Stored:
    commit = found.commit(name)
    tree = found.tree(commit.tree)
    files = {file: found.blob(blob) for file, blob in tree.items()}
    where = f"ledger commit {name[:10]}"
    if ENTRY not in files:
        raise Damaged(f"{where} holds no {ENTRY}: it is not an entry of a ledger.")
    made = entries.parse(files.pop(ENTRY), where)
    for file in sorted({*files, *made.files}):
        there = objects.sha256(files[file]) if file in files else "missing"
        if there != made.files.get(file):
            raise Damaged(f"{where}: {file} is {there}, but entry.json names {made.files.get(file, 'no such file')}.")
    if message(made) != commit.message:
        raise Damaged(f"{where}: its message is not the one that its entry has.")
    if commit.signed != _text(made, commit.tree, commit.parents):
        raise Damaged(f"{where}: its author or date is not what its entry says, or it has lines of another kind.")
    return Stored(commit, made, files)


def _assert_before(before: Stored, after: Stored) -> None:
    if after.entry.previous != before.entry.id:
        raise Damaged(f"{after.where} follows entry {after.entry.previous}, but before it stands {before.entry.id}.")
    if after.entry.number != before.entry.number + 1:
        raise Damaged(f"{after.where} follows number {before.entry.number}: an entry was removed or reordered.")
    if after.entry.time < before.entry.time:
        raise Damaged(f"{after.where} is of {after.entry.time}, before the entry before it ({before.entry.time}).")


def message(entry: Entry) -> str:
    return f"ledger {entry.number}: {entry.act.kind}\n\nentry-sha256: {entry.id}\n"


def make(clone: Clone, entry: Entry, files: dict[str, bytes], parents: list[str], machine: Key) -> str:
    """Write the commit of an entry, signed. Nothing refers to it yet."""
    named = sorted({ENTRY: entry.content, **files}.items())
    blobs = _blobs(clone, [content for _, content in named])
    rows = "".join(f"100644 blob {blob}\t{file}\n" for (file, _), blob in zip(named, blobs, strict=True))
    tree = git(clone.root, *_DURABLE, "mktree", given=rows.encode())
    text = _text(entry, tree, parents)
    signature = keys.sign(machine, text, keys.COMMIT)
    header = "\ngpgsig " + "\n ".join(signature.rstrip("\n").split("\n"))
    signed = text.replace(b"\n\n", f"{header}\n\n".encode(), 1)
    return git(clone.root, *_DURABLE, "hash-object", "-t", "commit", "-w", "--stdin", given=signed)


def _text(entry: Entry, tree: str, parents: Iterable[str]) -> bytes:
    """Return the commit of an entry without its signature. It has one form, so that nothing can
    hide in it."""
    who = f"{entry.machine} <{entry.machine}@rft.invalid> {objects.seconds(entry.time)} +0000"
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}"]
    return ("\n".join(lines) + f"\n\n{message(entry)}").encode()


def _blobs(clone: Clone, contents: list[bytes]) -> list[str]:
    """Write blobs, all with one command."""
    with keys.scratch() as place:
        for number, content in enumerate(contents):
            (place / str(number)).write_bytes(content)
        paths = "".join(f"{place / str(number)}\n" for number in range(len(contents)))
        command = ("hash-object", "-w", "--no-filters", "--stdin-paths")
        return git(clone.root, *_DURABLE, *command, given=paths.encode()).split()


def move(clone: Clone, new: str, old: str | None) -> None:
    """Point the ledger at a new head, if it is still at the old one. Otherwise raises GitError."""
    arguments = ("update-ref", "--create-reflog", "-m", "ledger", REF, new, old or NONE)
    locks.past(clone, lambda: git(clone.root, *_DURABLE, *arguments), REF)


def is_shallow(clone: Clone) -> bool:
    return (Path(clone.root) / git(clone.root, "rev-parse", "--git-path", "shallow")).exists()
