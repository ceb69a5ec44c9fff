"""Read Git objects and hash each of them again.

A ledger must not be believed because Git printed it: Git does not check an object's hash when it
reads one, and follows replacements, grafts and its commit graph. So objects are fetched raw, from
`git cat-file --batch`, hashed here, and parents are followed by us.
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
from tasks.runs.git import GitError, environment, git_bytes

_CAT_FILE = ("--no-replace-objects", "cat-file", "--batch")
_MOST_FILES, _MOST_ENTRIES = 20, 100_000
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
    """What the signature is of: the commit without it."""


class Objects:
    def __init__(self, clone: Clone) -> None:
        self._clone = clone
        self._process = _started(clone)
        self._raw: dict[str, tuple[bytes, bytes]] = {}
        """Name -> kind and bytes, as Git printed them: hashed when they are used."""

    def commit(self, name: str) -> Commit:
        return parse_commit(name, self.read(name, b"commit"))

    def tree(self, name: str) -> dict[str, str]:
        """File -> blob. Raises Damaged for folders and other kinds of entries."""
        raw, found, size = self.read(name, b"tree"), dict[str, str](), len(name) // 2
        while raw:
            mode, _, rest = raw.partition(b" ")
            file, _, rest = rest.partition(b"\0")
            if mode != b"100644":
                raise Damaged(f"Git object {name[:10]}: {file.decode(errors='replace')} is no plain file.")
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
        """Get a chain's objects with four questions, where it would take three for each entry. Git
        only says what will be wanted: nothing is believed, and what it leaves out is read later."""
        try:
            commits = self._clone.git("rev-list", "--first-parent", f"--max-count={_MOST_ENTRIES}", head).split()
            self.load(commits)
            parsed = [parse_commit(name, self._raw[name][1]) for name in commits if name in self._raw]
            self.load([name for each in parsed for name in (each.tree, *each.parents[1:])])
            self.load([blob for each in parsed for blob in self.tree(each.tree).values()])
        except (GitError, Damaged):
            pass

    def load(self, names: list[str]) -> None:
        """Get many objects with one question."""
        wanted = [name for name in dict.fromkeys(names) if _NAME.fullmatch(name) and name not in self._raw]
        given = "".join(f"{name}\n" for name in wanted).encode()
        printed = git_bytes(self._clone.root, *_CAT_FILE, given=given)
        place = 0
        while place < len(printed):
            end = printed.index(b"\n", place)
            head = printed[place:end].split()
            place = end + 1
            if len(head) == 3:
                size = int(head[2])
                self._raw[head[0].decode()] = head[1], printed[place : place + size]
                place += size + 1

    def read(self, name: str, kind: bytes) -> bytes:
        """An object's bytes. Raises Damaged for one that is missing, changed or of another kind."""
        if name not in self._raw:
            self._raw[name] = self._asked(name)
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

    def _asked(self, name: str) -> tuple[bytes, bytes]:
        assert self._process.stdin
        assert self._process.stdout
        if not _NAME.fullmatch(name):
            raise Damaged(f"{name[:50]!r} is no name of a Git object.")
        try:
            self._process.stdin.write(f"{name}\n".encode())
            self._process.stdin.flush()
            head = self._process.stdout.readline().split()
        except BrokenPipeError:  # Git ends at an object that it cannot unpack
            head = []
        if len(head) != 3:
            if self._process.poll() is not None or not head:
                self.close()
                self._process = _started(self._clone)
            raise Damaged(f"Git object {name[:10]} is missing, or cannot be read. {_WHOLE}")
        content = self._process.stdout.read(int(head[2]))
        self._process.stdout.read(1)
        return head[1], content


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
