"""What an outsider does to the bytes of a ledger, for the figure `ledger_tamper`.

The tricks change commits, trees, objects, what Git believes, and what the clone remembers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from bench.ledger_scene import ALL, NOTE, Attack, Scene, claims, noted
from tasks.ledger import chain, keys, memory, objects
from tasks.ledger.chain import Stored
from tasks.ledger.entry import (
    Approval,
    PolicyChange,
    Request,
)
from tasks.ledger.policy import EnrolMachine
from tasks.ledger.state import State
from tests import ledger_world


def commits() -> Iterator[tuple[str, Attack]]:
    def replaced(old: bytes, new: bytes, kind: type | None = None) -> Attack:
        def attack(s: Scene) -> object:
            each = s.nth(kind, last=True) if kind else s.head
            return s.relabeled(each, lambda raw: raw.replace(old, new, 1))

        return attack

    yield "another message", replaced(b"\n\nledger ", b"\n\nLedger ")
    yield "more in the message", lambda s: s.relabeled(s.head, lambda raw: raw + b"approved by everybody\n")
    yield "another author", replaced(b"author ", b"author x")
    yield "another date", replaced(b" +0000\ncommitter", b" +0100\ncommitter")
    yield "an encoding", replaced(b"\ngpgsig", b"\nencoding latin1\ngpgsig")
    yield "a second tree", lambda s: s.relabeled(s.head, lambda raw: b"tree " + b"0" * 40 + b"\n" + raw)

    def parents(change: Callable[[Scene, list[str]], list[str]]) -> Attack:
        """Change only the request's parents."""

        def attack(s: Scene) -> object:
            each = s.nth(Request, last=True)
            old = "".join(f"parent {name}\n" for name in each.commit.parents)
            new = "".join(f"parent {name}\n" for name in change(s, list(each.commit.parents)))
            return s.relabeled(each, lambda raw: raw.replace(old.encode(), new.encode(), 1))

        return attack

    yield "parents swapped", parents(lambda _, names: names[::-1])
    yield "the revision replaced", parents(lambda s, names: [names[0], s.clone.git("rev-parse", "other")])
    yield "the revision left out", parents(lambda _, names: names[:1])
    yield "a further parent", parents(lambda s, names: [*names, s.clone.git("rev-parse", "other")])
    yield "a parent that is not an object name", parents(lambda _, names: ["HEAD", *names[1:]])
    yield "a parent of two words", parents(lambda _, names: [f"{names[0]} {names[0]}", *names[1:]])
    yield "a parent that does not exist", parents(lambda _, names: ["1" * 40, *names[1:]])
    yield "an older entry as the parent", parents(lambda s, names: [s.stored[2].commit.id, *names[1:]])
    yield "the head is a commit of the main branch", lambda s: s.point(s.clone.git("rev-parse", "main"))
    yield (
        "the head is a file",
        lambda s: (s.clone.root / ".git" / chain.REF).write_text(s.raw(b"nothing", "blob") + "\n"),
    )
    yield (
        "the head is a symbolic ref to the main branch",
        lambda s: s.clone.git("symbolic-ref", chain.REF, "refs/heads/main"),
    )
    yield f"the head is noise, left: {ALL}", lambda s: (s.clone.root / ".git" / chain.REF).write_text("noise\n")

    def tagged(s: Scene) -> object:
        text = f"object {s.head.commit.id}\ntype commit\ntag x\ntagger x <x@y> 1 +0000\n\nx\n"
        return s.point(s.raw(text.encode(), "tag"))

    yield "the head is a tag", tagged


def trees() -> Iterator[tuple[str, Attack]]:
    def blob(s: Scene, content: bytes) -> str:
        return s.raw(content, "blob")

    def changed(name: str, content: Callable[[Scene, bytes], bytes], at: type | None = None) -> Attack:
        """Change the bytes of one file in the head's tree."""

        def attack(s: Scene) -> object:
            each = s.nth(at, last=True) if at else s.head
            old = each.entry.content if name == chain.ENTRY else each.files[name]
            made = f"100644 blob {blob(s, content(s, old))}\t{name}"
            return s.retreed([made if row.endswith(f"\t{name}") else row for row in s.rows(each)], each)

        return attack

    def promoted(_: Scene, old: bytes) -> bytes:
        return old.replace(b'"approver"', b'"owner"').replace(b"approver]", b"owner]")

    yield "policy.yaml forged", changed(chain.POLICY, lambda s, old: promoted(s, old) + b"# \n")
    yield (
        "allowed_signers forged",
        changed(chain.SIGNERS, lambda s, old: old + f'ada namespaces="rft-act" {s.keys["mallory"].public}\n'.encode()),
    )
    yield "a key deleted from allowed_signers", changed(chain.SIGNERS, lambda _, old: old.split(b"\n", 1)[1])
    yield (
        "entry.json altered in the tree",
        changed(chain.ENTRY, lambda _, old: old.replace(b'"tiny"', b'"icd10"') + b" "),
    )
    yield "entry.json printed otherwise", changed(chain.ENTRY, lambda _, old: json.dumps(json.loads(old)).encode())
    yield "entry.json with a key twice", changed(chain.ENTRY, lambda _, old: b'{"number":1,' + old[1:])
    yield "entry.json with one key more", changed(chain.ENTRY, lambda _, old: old[:-1] + b',"zz":1}')
    yield "entry.json cut off", changed(chain.ENTRY, lambda _, old: old[: len(old) // 2])
    yield (
        "entry.json of a later version",
        changed(chain.ENTRY, lambda _, old: old.replace(b"agent-rft/ledger/1", b"agent-rft/ledger/2")),
    )
    yield (
        "a statement altered",
        changed(chain.STATEMENT, lambda _, old: old.replace(b'"because"', b'"of course"'), Approval),
    )
    yield "a signature altered", changed(chain.SIGNATURE, lambda _, old: claims(old.decode()).encode(), Approval)
    yield (
        "a person's signature by another key",
        changed(chain.SIGNATURE, lambda s, _: keys.sign(s.keys["mallory"], b"x", keys.ACT).encode(), Approval),
    )
    yield "a file more in the tree", lambda s: s.retreed([*s.rows(), f"100644 blob {blob(s, b'x')}\tnotes"])
    yield "a folder more in the tree", lambda s: s.retreed([*s.rows(), f"040000 tree {s.head.commit.tree}\tnotes"])
    yield "entry.json left out", lambda s: s.retreed([row for row in s.rows() if "entry.json" not in row])
    yield "policy.yaml left out", lambda s: s.retreed([row for row in s.rows() if "policy.yaml" not in row])
    yield "a file made executable", lambda s: s.retreed([row.replace("100644", "100755") for row in s.rows()])
    yield (
        "a link in the place of a file",
        lambda s: s.retreed([row.replace("100644", "120000") if "policy" in row else row for row in s.rows()]),
    )

    def twice(s: Scene) -> object:
        raw = s.bytes_of(s.head.commit.tree, "tree")
        forged = b"100644 entry.json\0" + bytes.fromhex(blob(s, s.stored[3].entry.content))
        tree = s.raw(forged + raw, "tree")
        return s.relabeled(s.head, lambda text: text.replace(s.head.commit.tree.encode(), tree.encode(), 1))

    yield "a file twice in the tree", twice


def stored() -> Iterator[tuple[str, Attack]]:
    """Yield tricks with bytes under .git/objects, and with other things that Git believes."""

    def blob_of(each: Stored, s: Scene, name: str = chain.ENTRY) -> str:
        row = next(row for row in s.rows(each) if row.endswith(f"\t{name}"))
        return row.split()[2]

    def entry(place: int) -> Attack:
        def attack(s: Scene) -> object:
            each = s.stored[place]
            return s.overwrite(blob_of(each, s), "blob", noted(each.entry).content)

        return attack

    for place in (0, 3, 6, -1):
        yield f"bytes of entry.json changed under its name, at {place}", entry(place)
    yield (
        "bytes of a commit changed under its name",
        lambda s: s.overwrite(s.stored[4].commit.id, "commit", s.bytes_of(s.stored[5].commit.id)),
    )
    yield (
        "bytes of a tree changed under its name",
        lambda s: s.overwrite(s.stored[4].commit.tree, "tree", s.bytes_of(s.stored[5].commit.tree, "tree")),
    )
    yield (
        "bytes of a statement changed under its name",
        lambda s: s.overwrite(blob_of(s.nth(Approval), s, chain.STATEMENT), "blob", b"{}"),
    )
    yield (
        "bytes of a run's revision changed under its name",
        lambda s: s.overwrite(s.nth(Request).commit.parents[1], "commit", s.bytes_of("other")),
    )
    yield "a run's revision deleted", lambda s: s.file_of(s.nth(Request).commit.parents[1]).unlink()
    yield "an entry's object deleted", lambda s: s.file_of(blob_of(s.stored[4], s)).unlink()
    yield "a commit deleted", lambda s: s.file_of(s.stored[4].commit.id).unlink()

    def truncated(s: Scene) -> object:
        file = s.file_of(s.stored[4].commit.id)
        file.chmod(0o644)
        return file.write_bytes(file.read_bytes()[:20])

    yield "an object cut off", truncated

    def emptied(s: Scene) -> object:
        file = s.file_of(blob_of(s.stored[4], s))
        file.chmod(0o644)
        return file.write_bytes(b"")

    yield "an object emptied", emptied

    def replacement(s: Scene) -> object:
        """Make refs/replace show a forged commit, and remove the real one."""
        forged = s.rewrite(5, noted, s.keys["mallory"])
        s.point(s.head.commit.id)
        s.clone.git("replace", s.head.commit.id, forged)
        return s.file_of(s.head.commit.id).unlink()

    yield "a replacement of a commit that was deleted", replacement

    def grafted(s: Scene) -> object:
        (s.clone.root / ".git/info/grafts").write_text(f"{s.head.commit.id} {s.stored[2].commit.id}\n")
        return s.file_of(s.stored[5].commit.id).unlink()

    yield "a graft over a commit that was deleted", grafted

    def shallow(s: Scene) -> object:
        (s.clone.root / ".git/shallow").write_text(f"{s.stored[6].commit.id}\n")
        return s.file_of(s.stored[5].commit.id).unlink()

    yield "a shallow boundary over a commit that was deleted", shallow


def remembered() -> Iterator[tuple[str, Attack]]:
    def forged(s: Scene) -> str:
        """Yield entries that pass if signatures are believed without verification."""
        commit = s.append(NOTE, s.keys["mallory"])
        return s.point(s.resigned(commit, claims(s.stored[0].commit.signature or "")))

    def remembered(s: Scene, key: str | None) -> None:
        """Yield forged memories that say that the forged entry was verified."""
        with objects.opened(s.clone) as found:
            last = chain.read(found, chain.head(s.clone) or "")[-1].entry
        if key is None:
            kept = json.loads(memory.path(s.clone).read_text())
            kept["seen"] |= {"number": last.number, "entry": last.id}
            memory.path(s.clone).write_text(json.dumps(kept))
            return
        ledger_world.is_machine(s.clone, s.keys[key])
        s.forge_memory(last.number, last.id)

    def believed(key: str | None) -> Attack:
        def attack(s: Scene) -> object:
            forged(s)
            return remembered(s, key)

        return attack

    yield "memory forged, old MAC", believed(None)
    yield "memory forged, with a machine key of one's own", believed("mallory")

    def keeps_public(s: Scene) -> object:
        shown = s.keys["laptop"].file.with_suffix(".pub").read_text()
        believed("mallory")(s)
        return (keys.folder(s.clone) / "machine.pub").write_text(shown)

    yield "memory forged, with a private key of one's own beside the enrolled public one", keeps_public

    def enrolled(s: Scene) -> object:
        """Enrol one's own machine by an owner's statement that is noise, and have it believed."""
        change = EnrolMachine(name="mallory", key=s.keys["mallory"].public)
        after = State(policy=s.state.policy, signers=s.state.signers)
        after.change(change)
        files = {chain.POLICY: after.policy_yaml, chain.SIGNERS: after.signers}
        signed_files = s.sign("policy", "mallory", change=change)
        signed_files[chain.SIGNATURE] = claims(s.nth(PolicyChange).files[chain.SIGNATURE].decode()).encode()
        commit = s.append(PolicyChange(change=change), s.keys["mallory"], files | signed_files)
        s.point(s.resigned(commit, claims(s.stored[0].commit.signature or "")))
        return remembered(s, "mallory")

    yield "memory forged, with a machine key that a forged entry enrolled", enrolled
    yield (
        f"memory cut off, left: {ALL}",
        lambda s: memory.path(s.clone).write_text(memory.path(s.clone).read_text()[:40]),
    )
    yield (
        f"memory of another clone, left: {ALL}",
        lambda s: (
            s.forge_memory(len(s.stored), s.head.entry.id),
            ledger_world.is_machine(s.clone, s.keys["server"]),
        ),
    )

    def stale(s: Scene) -> object:
        """Combine the MAC of an older memory with a newer number."""
        kept = json.loads(memory.path(s.clone).read_text())
        kept["seen"]["number"] -= 1
        kept["seen"]["entry"] = s.stored[-2].entry.id
        memory.path(s.clone).write_text(json.dumps(kept))
        return s.point(s.stored[-2].commit.id)

    yield f"memory rewound with the ledger, left: {ALL}", stale
