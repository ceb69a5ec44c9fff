"""Read Git objects and hash each of them again.

Git's output alone does not prove a ledger: Git does not check an object's hash when it reads one,
and follows replacements, grafts and its commit graph. So objects are read raw from `git cat-file
--batch`, and hashed here, and we follow the parents ourselves.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from rft.errors import UserError
from tasks.runs.clone import Clone
from tasks.runs.git import environment

_CAT_FILE = ("--no-replace-objects", "cat-file", "--batch")
_MOST_FILES, _MOST_ENTRIES = 20, 100_000
_AT_ONCE = 500
"""The number of names that are sent before reading Git's answers: they fit into a pipe."""
_WHOLE = "`git fsck` names what else is damaged; another clone or your remote has the ledger whole."
_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Damaged(UserError):
    """An object is missing, or its bytes do not fit its name."""


@dataclass(frozen=True)
class Commit:
    id: str
    tree: str
    parents: tuple[str, ...]
    message: str
    signature: str | None
    signed: bytes
    """The bytes that were signed: the commit without its signature."""


class Objects:
    def __init__(self, clone: Clone) -> None:
        self._clone = clone
        self._process = _started(clone)
        self._raw: dict[str, tuple[bytes, bytes]] = {}
        """Name -> kind and bytes, as Git printed them. They are hashed when they are used."""

    def commit(self, name: str) -> Commit:
        return parse_commit(name, self.read(name, b"commit"))

    def tree(self, name: str) -> dict[str, str]:
        """Return file -> blob. Raises Damaged for folders and other kinds of entries."""
        raw, found, size = self.read(name, b"tree"), dict[str, str](), len(name) // 2
        while raw:
            mode, _, rest = raw.partition(b" ")
            file, _, rest = rest.partition(b"\0")
            if mode != b"100644":
                raise Damaged(f"Git object {name[:10]}: {file.decode(errors='replace')} is not a plain file.")
            if file.decode("utf-8", "replace") in found:
                raise Damaged(f"Git object {name[:10]} holds {file.decode(errors='replace')} twice.")
            found[file.decode("utf-8", "replace")] = rest[:size].hex()
            raw = rest[size:]
            if len(found) > _MOST_FILES:
                raise Damaged(f"Git object {name[:10]} holds more files than an entry has.")
        return found

    def blob(self, name: str) -> bytes:
        return self.read(name, b"blob")

    def prefetch(self, head: str) -> None:
        """Get what a chain's commits name with two questions to Git, instead of two per entry.
        Nothing is trusted here: `read` reports what is wrong."""
        commits: list[Commit] = []
        with suppress(Damaged):
            name: str | None = head
            while name is not None and len(commits) < _MOST_ENTRIES:
                commits.append(self.commit(name))
                name = commits[-1].parents[0] if commits[-1].parents else None
        with suppress(Damaged):
            self.load([name for each in commits for name in (each.tree, *each.parents[1:])])
            self.load([blob for each in commits for blob in self.tree(each.tree).values()])

    def load(self, names: list[str]) -> None:
        """Get many objects with one question to Git. Missing ones are left out."""
        wanted = [name for name in dict.fromkeys(names) if _NAME.fullmatch(name) and name not in self._raw]
        for place in range(0, len(wanted), _AT_ONCE):
            self._ask(wanted[place : place + _AT_ONCE])

    def read(self, name: str, kind: bytes) -> bytes:
        """Return an object's bytes. Raises Damaged for one that is missing, changed or of another
        kind."""
        if not _NAME.fullmatch(name):
            raise Damaged(f"{name[:50]!r} is not a name of a Git object.")
        self.load([name])
        if name not in self._raw:
            raise Damaged(f"Git object {name[:10]} is missing, or cannot be read. {_WHOLE}")
        found, content = self._raw[name]
        algorithm = hashlib.sha1 if len(name) == 40 else hashlib.sha256
        digest = algorithm(b"%s %d\0" % (found, len(content)) + content, usedforsecurity=False)
        if digest.hexdigest() != name:
            raise Damaged(f"Git object {name[:10]} is not what its name says: its bytes were changed. {_WHOLE}")
        if found != kind:
            what = f"a {found.decode('ascii', 'replace')}, where the ledger needs a {kind.decode()}"
            raise Damaged(f"Git object {name[:10]} is {what}. {_WHOLE}")
        return content

    def close(self) -> None:
        process = self._process
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                pipe.close() if pipe else None
        process.wait()

    def _ask(self, names: list[str]) -> None:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked
        assert answers
        try:
            asked.write("".join(f"{name}\n" for name in names).encode())
            asked.flush()
        except BrokenPipeError:  # Git ends at an object that it cannot unpack
            pass
        for _ in names:
            head = answers.readline().split()
            if not head:
                self.close()
                self._process = _started(self._clone)
                break
            if len(head) == 3:
                self._raw[head[0].decode()] = head[1], answers.read(int(head[2]))
                answers.read(1)


@contextmanager
def opened(clone: Clone) -> Iterator[Objects]:
    found = Objects(clone)
    try:
        yield found
    finally:
        found.close()


def _started(clone: Clone) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["git", *_CAT_FILE],
        cwd=clone.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )


def parse_commit(name: str, raw: bytes) -> Commit:
    head, _, message = raw.partition(b"\n\n")
    tree, parents, signature, kept = "", list[str](), list[bytes](), list[bytes]()
    in_signature = False
    for line in head.split(b"\n"):
        if in_signature and line.startswith(b" "):
            signature.append(line[1:])
            continue
        key, _, value = line.partition(b" ")
        in_signature = key == b"gpgsig"
        if in_signature:
            signature.append(value)
            continue
        kept.append(line)
        if key == b"tree":
            tree = value.decode("ascii", "replace")
        elif key == b"parent":
            parents.append(value.decode("ascii", "replace"))
    signed = b"\n".join(kept) + b"\n\n" + message
    armored = b"\n".join(signature).decode("ascii", "replace") + "\n" if signature else None
    return Commit(name, tree, tuple(parents), message.decode("utf-8", "replace"), armored, signed)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def seconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp())
