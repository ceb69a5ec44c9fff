"""Get bytes for an audit from Git's objects and DVC's cache. Each is hashed again, once.

What this clone's cache lacks is fetched from DVC's remote, by the hashes in the revision's
dvc.lock. The state of a hash is remembered during one audit, because fifty runs share most of their
hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rft.errors import InfrastructureError, RftError
from rft.models import hashes
from tasks.audit.graph import Broken, altered, missing
from tasks.ledger import objects
from tasks.ledger.objects import Commit, Damaged, Objects
from tasks.runs import artifacts, records, transfer
from tasks.runs.artifacts import Out, Revision
from tasks.runs.clone import Clone

_PIECE = 1 << 20


@dataclass(frozen=True)
class Blob:
    """A file in a Git tree."""

    path: str
    name: str
    """The hash that names its Git object."""
    is_link: bool


@dataclass
class Store:
    clone: Clone
    git: Objects
    fetches: bool = True
    """Missing bytes may be fetched."""
    _trees: dict[str, list[Blob]] = field(default_factory=dict[str, list[Blob]])
    _commits: dict[str, Commit] = field(default_factory=dict[str, Commit])
    _whole: dict[str, int] = field(default_factory=dict[str, int])
    _md5: dict[str, str | Broken] = field(default_factory=dict[str, "str | Broken"])
    _sha256: dict[str, str] = field(default_factory=dict[str, str])
    """md5 in the cache -> SHA-256 of the same bytes."""
    _blob_md5: dict[str, str] = field(default_factory=dict[str, str])
    _folders: dict[Path, str] = field(default_factory=dict[Path, str])
    _fetched: dict[str, str] = field(default_factory=dict[str, str])
    """Revision -> the result of its fetch, in words."""

    # -- Git ---------------------------------------------------------------------------------------
    def commit(self, name: str) -> Commit:
        """Return a commit, hashed. Raises Broken."""
        if name not in self._commits:
            try:
                self._commits[name] = self.git.commit(name)
            except Damaged as error:
                raise self._lost(name, error) from None
        return self._commits[name]

    def files(self, commit: str) -> list[Blob]:
        """List all files of a commit's tree, whose folders are hashed. Raises Broken."""
        return self._tree(self.commit(commit).tree)

    def verify(self, commit: str) -> int:
        """Hash every object of a commit's tree. Returns the number of files. Raises Broken."""
        tree = self.commit(commit).tree
        if tree not in self._whole:
            blobs = self._tree(tree)
            for blob in blobs:
                self.blob(blob)
            self._whole[tree] = len(blobs)
        return self._whole[tree]

    def blob(self, blob: Blob) -> bytes:
        """Return a file's bytes, hashed. Raises Broken."""
        try:
            return self.git.read(blob.name, b"blob")
        except Damaged as error:
            raise altered(f"{blob.path}: {error}") from None

    def file(self, commit: str, path: str) -> bytes | None:
        """Return a file of a commit, hashed; None where the commit lacks it. Raises Broken."""
        found = next((blob for blob in self.files(commit) if blob.path == path), None)
        return None if found is None else self.blob(found)

    def folder_of(self, commit: str, folder: str) -> dict[str, Blob]:
        """Return the files of a folder in a commit's tree, by their path in the folder."""
        head = f"{folder.rstrip('/')}/"
        return {blob.path.removeprefix(head): blob for blob in self.files(commit) if blob.path.startswith(head)}

    def folder_sha256_of(self, commit: str, folder: str) -> str:
        """Compute `rft.files.tree_sha256` of a folder as a commit has it. Raises Broken."""
        digest = hashlib.sha256()
        for path, blob in sorted(self.folder_of(commit, folder).items(), key=lambda row: PurePosixPath(row[0])):
            digest.update(f"{path}\0".encode() + hashlib.sha256(self.blob(blob)).digest())
        return digest.hexdigest()

    def blob_md5(self, blob: Blob) -> str:
        if blob.name not in self._blob_md5:
            self._blob_md5[blob.name] = hashlib.md5(self.blob(blob), usedforsecurity=False).hexdigest()
        return self._blob_md5[blob.name]

    def _tree(self, name: str) -> list[Blob]:
        if name not in self._trees:
            found = [*self._walk(name, "")]
            self.git.load([blob.name for blob in found])
            self._trees[name] = found
        return self._trees[name]

    def _walk(self, name: str, above: str) -> Iterator[Blob]:
        try:
            raw = self.git.read(name, b"tree")
        except Damaged as error:
            raise altered(f"the folder {above or 'at the top'}: {error}") from None
        size = len(name) // 2
        while raw:
            mode, _, rest = raw.partition(b" ")
            file, _, rest = rest.partition(b"\0")
            path = above + file.decode("utf-8", "surrogateescape")
            if mode == b"40000":
                yield from self._walk(rest[:size].hex(), f"{path}/")
            elif mode != b"160000":  # a submodule is another repository's commit
                yield Blob(path, rest[:size].hex(), mode == b"120000")
            raw = rest[size:]

    def _lost(self, name: str, error: Damaged) -> Broken:
        if "is missing" not in str(error):
            return altered(f"commit {name[:10]}: {error}")
        why = f"commit {name[:10]} is not in this clone's Git"
        if (self.clone.root / self.clone.git("rev-parse", "--git-path", "shallow")).exists():
            return missing(f"{why}, which is shallow. Make it whole: git fetch --unshallow")
        return missing(f"{why}. Fetch it from a clone that has it: git fetch CLONE 'refs/exps/*:refs/exps/*'")

    # -- DVC's cache -------------------------------------------------------------------------------
    def verify_out(self, at: Revision, out: Out) -> str:
        """Hash an output's bytes; for a folder, those of its list and of every file. Returns in
        words what was compared. Raises Broken."""
        self._verify_md5(at, out.md5, out.path)
        if not out.is_folder:
            return f"MD5 {out.md5} recomputed"
        listed = self.listing(out.md5)
        for relative, md5 in listed:
            self._verify_md5(at, md5, f"{out.path}/{relative}")
        return f"MD5 {out.md5} recomputed, with those of its {len(listed)} files"

    def listing(self, md5: str) -> list[tuple[str, str]]:
        """Return (path, MD5) of every file in a folder's list, which was verified before."""
        path = artifacts.path_of(self.clone, Out("", md5, 0, None))
        try:
            rows = json.loads(path.read_bytes())
            found = [(str(row["relpath"]), str(row["md5"])) for row in rows]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise altered(f"{path} is not a list of a folder: {error}") from None
        return sorted(found, key=lambda row: PurePosixPath(row[0]))

    def read(self, at: Revision, out: Out) -> bytes:
        """Return an output file's bytes, verified. Raises Broken."""
        self._verify_md5(at, out.md5, out.path)
        return artifacts.path_of(self.clone, out).read_bytes()

    def verify_kept(self, out: Out) -> str:
        """Hash a file that no revision names. Returns its SHA-256. Raises Broken."""
        if out.md5 not in self._md5:
            why = "no DVC remote is set, so it cannot be fetched"
            if not artifacts.path_of(self.clone, out).exists() and self.fetches and transfer.remotes(self.clone):
                try:
                    transfer.fetch_file(self.clone, out)
                except RftError as error:
                    why = f"the DVC remote does not give it ({_short(error)})"
            self._md5[out.md5] = self._hashed(out.md5, out.path, why)
        self._assert_md5(out.md5)
        return self._sha256[out.md5]

    def tree_sha256(self, at: Revision, out: Out) -> str:
        """Compute `rft.files.tree_sha256` of an output folder. Raises Broken."""
        self.verify_out(at, out)
        digest = hashlib.sha256()
        for relative, md5 in self.listing(out.md5):
            digest.update(f"{relative}\0".encode() + bytes.fromhex(self._sha256[md5]))
        return digest.hexdigest()

    def model_sha256(self, place: Path) -> str:
        """Hash a given model outside of the cache, a folder or a GGUF file, once per audit."""
        if place not in self._folders:
            self._folders[place] = hashes.sha256(place)
        return self._folders[place]

    def sha256(self, md5: str) -> str:
        """Return the SHA-256 of bytes that were verified before."""
        return self._sha256[md5]

    def _verify_md5(self, at: Revision, md5: str, what: str) -> None:
        if md5 not in self._md5:
            why = "" if artifacts.path_of(self.clone, Out("", md5, 0, None)).exists() else self._fetch(at)
            self._md5[md5] = self._hashed(md5, what, why, at)
        self._assert_md5(md5)

    def _assert_md5(self, md5: str) -> None:
        found = self._md5[md5]
        if isinstance(found, Broken):
            raise Broken(found.state, found.why)

    def _hashed(self, md5: str, what: str, why: str, at: Revision | None = None) -> str | Broken:
        path = artifacts.path_of(self.clone, Out("", md5, 0, None))
        if not path.exists():
            return self._gone(what, why, at)
        digest, strong = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    strong.update(piece)
        except OSError as error:
            return missing(f"{what}: {path} cannot be read: {error.strerror}")
        if digest.hexdigest() != md5.removesuffix(".dir"):
            where = path.relative_to(self.clone.root) if path.is_relative_to(self.clone.root) else path
            return altered(
                f"{what}: {where} was changed: it has MD5 {digest.hexdigest()}. Delete it, and run the audit again"
            )
        self._sha256[md5] = strong.hexdigest()
        return md5

    def _gone(self, what: str, why: str, at: Revision | None) -> Broken:
        mine = [record for record in records.load_all(self.clone) if at and record.revision == at.commit]
        removed = next((record.bytes_removed for record in mine), None)
        if removed is not None:
            return Broken("erased", f"{what}: `rft runs gc` removed its bytes at {removed}, and {why}")
        return missing(f"{what} is not in this clone's DVC cache, and {why}")

    def _fetch(self, at: Revision) -> str:
        """Fetch what is missing of a revision, once. Returns the result in words, for a message."""
        if at.commit not in self._fetched:
            self._fetched[at.commit] = self._fetch_now(at)
        return self._fetched[at.commit]

    def _fetch_now(self, at: Revision) -> str:
        names = transfer.remotes(self.clone)
        if not names:
            return "no DVC remote is set: dvc remote add --default NAME URL"
        if not self.fetches:
            return f"it was not fetched from {', '.join(names)} (--no-fetch)"
        try:
            transfer.fetch(self.clone, at)
        except InfrastructureError as error:
            return f"the DVC remote {', '.join(names)} lacks it or does not answer ({_short(error)})"
        except RftError as error:
            return f"it could not be fetched: {error}"
        return f"the DVC remote {', '.join(names)} lacks it"


@contextmanager
def opened(clone: Clone, fetches: bool = True) -> Iterator[Store]:
    with objects.opened(clone) as found:
        yield Store(clone, found, fetches)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
