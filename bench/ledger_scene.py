"""A copy of a clone with a ledger, and an attacker's tools: for the figure `ledger_tamper`.

The tools rewrite chains and sign them with other keys, change the bytes of commits and trees, and
overwrite objects under their names. The tricks themselves are in the modules ledger_attacks,
ledger_bytes and ledger_rogue.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.ledger import chain, keys, memory, objects, remote, statement
from tasks.ledger.chain import Stored
from tasks.ledger.entry import (
    Act,
    Entry,
    Genesis,
    PolicyChange,
    Promotion,
    Reconcile,
    Request,
)
from tasks.ledger.keys import Key
from tasks.ledger.policy import Rules, SetRules
from tasks.ledger.state import State
from tasks.ledger.statement import Statement
from tasks.runs.clone import Clone
from tasks.runs.git import git, git_bytes

SEEN, REVISION, PIN, ALL = "last seen head", "run revision", "infra/ledger.yaml", "all"
Attack = Callable[["Scene"], object]
NOTE = Reconcile(model="tiny", projection="alias", found="1", set="2")


@dataclass
class Scene:
    """A copy of a clone with a ledger, and everything that an attacker needs."""

    clone: Clone
    keys: dict[str, Key]
    stored: list[Stored]
    state: State
    elsewhere: Callable[[], Statement]
    """Makes a statement that ada signed for another ledger."""
    files: dict[int, bytes] = field(default_factory=dict[int, bytes])

    # -- finding --------------------------------------------------------------------------------
    def nth(self, kind: type, last: bool = False) -> Stored:
        found = [each for each in self.stored if isinstance(each.entry.act, kind)]
        return found[-1 if last else 0]

    @property
    def head(self) -> Stored:
        return self.stored[-1]

    # -- making ---------------------------------------------------------------------------------
    def entry(self, act: Act, after: Stored | None = None, machine: str | None = None, **other: Any) -> Entry:
        before = after or self.head
        made = {
            "number": before.entry.number + 1,
            "previous": before.entry.id,
            "time": before.entry.time,
            "machine": machine or self.stored[0].entry.machine,
            "act": act,
            "files": {},
        }
        return Entry.model_validate(made | other, by_name=True)

    def append(
        self,
        act: Act,
        key: Key,
        files: dict[str, bytes] | None = None,
        after: Stored | None = None,
        parents: list[str] | None = None,
        machine: str | None = None,
        **other: Any,
    ) -> str:
        """Commit an entry after the head (or `after`), with policy and signers as they were."""
        before = after or self.head
        kept = {name: before.files[name] for name in (chain.POLICY, chain.SIGNERS)}
        content = {name: each for name, each in (kept | (files or {})).items() if each}
        entry = self.entry(act, before, machine, **other)
        entry = entry.model_copy(update={"files": {name: objects.sha256(each) for name, each in content.items()}})
        entry = Entry.model_validate(entry.model_dump(by_alias=True))
        commit = chain.make(self.clone, entry, content, [before.commit.id, *(parents or [])], key)
        return self.point(commit)

    def point(self, commit: str) -> str:
        """Move the ledger by writing the file of its ref: Git is not asked."""
        (self.clone.root / ".git" / chain.REF).write_text(f"{commit}\n")
        return commit

    def sign(self, act: str, signer: str, **about: Any) -> dict[str, bytes]:
        """Make a statement and its signature, as files."""
        time = self.head.entry.time
        made = {
            "act": act,
            "ledger": self.state.genesis,
            "reason": "because",
            "time": time,
            "nonce": os.urandom(16).hex(),
        }
        made |= {"expires": statement.later(time, days=1)}
        return self.signed(Statement.model_validate(made | about), signer)

    def signed(self, to_sign: Statement, signer: str, namespace: str = "rft-act") -> dict[str, bytes]:
        signature = keys.sign(self.keys[signer], to_sign.content_bytes, namespace).encode()
        return {chain.STATEMENT: to_sign.content_bytes, chain.SIGNATURE: signature}

    def raw(self, content: bytes, kind: str = "commit") -> str:
        return git(self.clone.root, "hash-object", "--literally", "-t", kind, "-w", "--stdin", given=content)

    def bytes_of(self, name: str, kind: str = "commit") -> bytes:
        return git_bytes(self.clone.root, "cat-file", kind, name)

    def rewrite(self, place: int, change: Callable[[Entry], Entry | None], key: Key | None) -> str:
        """Rewrite the chain from an entry on, with correct links and numbers. It is signed with
        `key`, or keeps the old signatures. `change` returns None to leave the entry out."""
        before, head = (self.stored[place - 1] if place else None), ""
        previous = before.entry.id if before else None
        parent = before.commit.id if before else None
        number = place
        for each in self.stored[place:]:
            made = change(each.entry) if each is self.stored[place] else each.entry
            if made is None:
                continue
            number += 1
            made = made.model_copy(update={"previous": previous, "number": number})
            made = Entry.model_validate(made.model_dump(by_alias=True))
            parents = [*([parent] if parent else []), *each.commit.parents[1:]]
            head = chain.make(self.clone, made, each.files, parents, key or self.keys["mallory"])
            if key is None and each.commit.signature:
                head = self.resigned(head, each.commit.signature)
            parent, previous = head, made.id
        return self.point(head)

    def resigned(self, commit: str, signature: str | None) -> str:
        """Make the commit with another signature, or none."""
        found = objects.parse_commit(commit, self.bytes_of(commit))
        if signature is None:
            return self.raw(found.signed)
        header = "\ngpgsig " + "\n ".join(signature.rstrip("\n").split("\n"))
        return self.raw(found.signed.replace(b"\n\n", f"{header}\n\n".encode(), 1))

    def relabeled(self, each: Stored, change: Callable[[bytes], bytes]) -> str:
        """Change the bytes of an entry's commit, and keep its signature."""
        return self.point(self.raw(change(self.bytes_of(each.commit.id))))

    def retreed(self, rows: list[str], each: Stored | None = None) -> str:
        """Make the head with other files in its tree, and no new signature."""
        each = each or self.head
        tree = git(self.clone.root, "mktree", given="".join(f"{row}\n" for row in rows).encode())
        return self.relabeled(each, lambda raw: raw.replace(each.commit.tree.encode(), tree.encode(), 1))

    def rows(self, each: Stored | None = None) -> list[str]:
        return self.clone.git("ls-tree", (each or self.head).commit.tree).splitlines()

    # -- objects --------------------------------------------------------------------------------
    def file_of(self, name: str) -> Path:
        return self.clone.root / ".git/objects" / name[:2] / name[2:]

    def overwrite(self, name: str, kind: str, content: bytes) -> None:
        """Put other bytes under the same name."""
        file = self.file_of(name)
        file.chmod(0o644)
        file.write_bytes(zlib.compress(f"{kind} {len(content)}\0".encode() + content))

    # -- anchors --------------------------------------------------------------------------------
    def only(self, *left: str) -> None:
        if SEEN not in left:
            memory.path(self.clone).unlink(missing_ok=True)
        if REVISION not in left:
            for ref in self.clone.git("for-each-ref", "--format=%(refname)", "refs/exps").split():
                self.clone.git("update-ref", "-d", ref)
        if PIN not in left:
            (self.clone.root / remote.FILE).unlink(missing_ok=True)

    def forge_memory(self, number: int, entry: str, genesis: str | None = None) -> None:
        """Write seen.json, with a MAC by the key in the place of the machine key."""
        seen = memory.LastVerified(genesis=genesis or self.state.genesis, number=number, entry=entry)
        private = (keys.folder(self.clone) / "machine").read_bytes()
        label = b"agent-rft: what this clone has seen of its ledger\0"
        mac = hmac.new(hashlib.sha256(label + private).digest(), seen.model_dump_json().encode(), hashlib.sha256)
        text = json.dumps({"seen": seen.model_dump(), "mac": mac.hexdigest()})
        memory.path(self.clone).write_text(text)


def copy(scene: Scene, root: Path) -> Scene:
    shutil.copytree(scene.clone.root, root, symlinks=True)
    return Scene(Clone(root), scene.keys, list(scene.stored), scene.state, scene.elsewhere)


def noted(entry: Entry) -> Entry:
    """Return the entry with something else in its act."""
    act: Any = entry.act
    other: dict[type, dict[str, Any]] = {
        Promotion: {"smoke": "all fine"},
        Request: {"run": "another"},
        Reconcile: {"found": "9"},
        PolicyChange: {"change": SetRules(model=None, rules=Rules())},
        Genesis: {"nonce": "another"},
    }
    return entry.model_copy(update={"act": act.model_copy(update=other.get(type(act), {"model": "another"}))})


def claims(signature: str) -> str:
    """Return the signature with its last bytes changed."""
    body = "".join(signature.split("-----")[2].split())
    blob = bytearray(base64.b64decode(body))
    blob[-8:] = bytes(each ^ 255 for each in blob[-8:])
    return armored(bytes(blob))


def armored(blob: bytes) -> str:
    return f"-----BEGIN SSH SIGNATURE-----\n{base64.b64encode(blob).decode()}\n-----END SSH SIGNATURE-----\n"


def string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
