"""A copy of a small year, and the tools of somebody who tampers with it: for `audit_tamper`.

The tricks themselves are in audit_attacks.py. Here are the tools: other bytes under an old name, a
rewritten revision, a tag in MLflow. The attacker can write every file of the clone, but has no key
that the ledger knows.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bench import audit_world
from bench.audit_lock import cached
from bench.audit_world import World
from tasks.ledger import chain
from tasks.ledger.chain import Stored
from tasks.runs.artifacts import Out, Revision
from tasks.runs.clone import Clone
from tasks.runs.git import git, git_bytes

if TYPE_CHECKING:
    from tasks.ledger.book import Ledger

_SHARED = (".git/objects", ".dvc/cache")
"""Nobody honest changes these once they are written, so copies are links."""


@dataclass
class Scene:
    clone: Clone
    runs: list[str]
    ledger: Ledger

    # -- finding -----------------------------------------------------------------------------------
    @property
    def root(self) -> Path:
        return self.clone.root

    @property
    def store(self) -> Path:
        """The folder of DVC's remote."""
        return self.root.parent / audit_world.STORE

    def run(self, place: int) -> str:
        """Return a run by its place in the year. The first is 1."""
        return self.runs[place - 1]

    def revision(self, place: int) -> str:
        return audit_world.revision(self.clone, self.run(place))

    def at(self, place: int) -> Revision:
        return Revision(self.clone, self.revision(place))

    def number(self, place: int) -> int:
        """Return the version that a run became."""
        made = self.ledger.state.promotions.values()
        return next(each.number for each in made if each.run == self.run(place))

    def model(self, place: int) -> str:
        return self.at(place).model

    def entry(self, kind: str, place: int) -> Stored:
        """Return the first entry of this kind that is about a run."""
        asked = self.ledger.state.request(self.run(place))
        for each in self.ledger.stored:
            act: Any = each.entry.act
            is_about = asked is not None and getattr(act, "request", None) == asked.number
            if act.kind == kind and (getattr(act, "run", None) == self.run(place) or is_about):
                return each
        raise LookupError(f"no {kind} of run {place}")

    # -- files -------------------------------------------------------------------------------------
    def write(self, path: Path, content: bytes) -> None:
        """Write a new file, because the old one may be a link to another copy's file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    def object(self, md5: str) -> Path:
        return cached(self.clone, md5)

    def flip(self, md5: str, place: float = 0.5) -> None:
        """Flip one bit of an object in the cache."""
        content = bytearray(self.object(md5).read_bytes())
        content[int(place * (len(content) - 1))] ^= 4
        self.write(self.object(md5), bytes(content))

    def remove(self, md5: str, everywhere: bool = True) -> None:
        self.object(md5).unlink()
        if everywhere:
            (self.store / "files/md5" / md5[:2] / md5[2:]).unlink()

    def keep(self, content: bytes) -> Out:
        """Put bytes into the cache under their own name."""
        from tasks.runs import artifacts

        return artifacts.keep(self.clone, content)

    # -- Git ---------------------------------------------------------------------------------------
    def overwrite(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Put other bytes under the name of an object of Git."""
        kind = git(self.root, "cat-file", "-t", name)
        content = change(git_bytes(self.root, "cat-file", kind, name))
        file = self.root / ".git/objects" / name[:2] / name[2:]
        self.write(file, zlib.compress(f"{kind} {len(content)}\0".encode() + content))

    def blob(self, commit: str, path: str) -> str:
        return git(self.root, "rev-parse", f"{commit}:{path}")

    def rewrite(
        self, place: int, changes: dict[str, bytes | None], message: Callable[[str], str] = lambda text: text
    ) -> str:
        """Make a revision with other files, under the same run's name. Its ref is not moved."""
        commit = self.revision(place)
        with tempfile.TemporaryDirectory() as scratch:
            index = Path(scratch) / "index"
            git(self.root, "read-tree", commit, index=index)
            for path, content in changes.items():
                if content is None:
                    git(self.root, "rm", "--cached", "--quiet", "--", path, index=index)
                    continue
                blob = git(self.root, "hash-object", "-w", "--stdin", given=content)
                git(self.root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", index=index)
            tree = git(self.root, "write-tree", index=index)
        text = message(git_bytes(self.root, "cat-file", "commit", commit).decode().partition("\n\n")[2])
        parent = git(self.root, "rev-parse", f"{commit}^1")
        return git(self.root, "commit-tree", tree, "-p", parent, given=text.encode())

    def move(self, place: int, commit: str) -> None:
        """Point a run's ref at another commit."""
        ref = git(self.root, "for-each-ref", "--format=%(refname)", f"refs/exps/*/*/{self.run(place)}")
        git(self.root, "update-ref", ref, commit)

    def forge(self, place: int, commit: str) -> None:
        """Make all that is not signed name another revision: the ref, the record, MLflow."""
        self.move(place, commit)
        file = self.clone.runs / f"{self.run(place)}.json"
        record = json.loads(file.read_text())
        self.write(file, json.dumps(record | {"revision": commit}).encode())
        self.mlflow().set_tag(record["mlflow_run_id"], "revision", commit)
        lock = git_bytes(self.root, "show", f"{commit}:dvc.lock")
        import hashlib

        self.mlflow().set_tag(record["mlflow_run_id"], "dvc.lock_sha256", hashlib.sha256(lock).hexdigest())

    # -- dvc.lock ----------------------------------------------------------------------------------
    def lock(self, place: int) -> dict[str, Any]:
        return yaml.load(git_bytes(self.root, "show", f"{self.revision(place)}:dvc.lock"), yaml.CSafeLoader)

    def relocked(self, place: int, path: str, content: bytes) -> bytes:
        """Return a dvc.lock with other bytes for an output, in each row that names the output."""
        kept, lock = self.keep(content), self.lock(place)
        for stage in lock["stages"].values():
            for row in (*stage["deps"], *stage["outs"]):
                if row["path"] == path:
                    row |= {"md5": kept.md5, "size": kept.size}
        return dumped(lock)

    # -- MLflow ------------------------------------------------------------------------------------
    def mlflow(self) -> Any:
        from tasks.display import tracking

        return tracking.client(self.clone)

    def registered(self, place: int) -> Any:
        """Return the version in MLflow's registry that stands for a run."""
        found = self.mlflow().search_model_versions(f"name = '{self.model(place)}'")
        return next(each for each in found if each.tags.get("rft.champion") == str(self.number(place)))


def dumped(raw: Any) -> bytes:
    return yaml.safe_dump(raw, sort_keys=False).encode()


def from_world(world: World) -> Scene:
    from tasks.ledger import book

    return Scene(world.clone, world.runs, book.read(world.clone, report_line=audit_world.silent))


def copy(scene: Scene, folder: Path) -> Scene:
    """Copy the clone and DVC's remote into another folder."""
    for name in (scene.root.name, audit_world.STORE):
        source = scene.root.parent / name
        if source.exists():
            _copied(source, folder / name)
    return Scene(Clone(folder / scene.root.name), scene.runs, scene.ledger)


def _copied(source: Path, target: Path) -> None:
    linked = [source / name for name in _SHARED] if source.name != audit_world.STORE else [source]

    def bring(one: str, other: str) -> None:
        if any(Path(one).is_relative_to(each) for each in linked):
            os.link(one, other)
        else:
            shutil.copy2(one, other)

    shutil.copytree(source, target, symlinks=True, copy_function=bring)


def places(scene: Scene) -> Iterator[int]:
    """Yield the places of the runs that became champion."""
    promoted = {each.run for each in scene.ledger.state.promotions.values()}
    for place, run in enumerate(scene.runs, 1):
        if run in promoted:
            yield place


__all__ = ["Scene", "chain", "copy", "dumped", "from_world", "places"]
