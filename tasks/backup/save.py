"""`rft backup make`: bring a back-up's folder up to date with the clone.

Each file is stored under its SHA-256, so a file that is there already is not copied again. Files of
DVC's cache never change: one with the size and time in the manifest is not even read. The bundle is
made anew when a ref has moved. The manifest is replaced at the end. Then files that it no longer
names are removed, so what `rft runs gc` or an erasure removed from the clone leaves the back-up
too. Bytes that the clone has lost by accident stay.

After a kill the earlier back-up is whole, beside files that no manifest names. The same command
verifies these and uses them. Nothing runs in the clone meanwhile (tasks/retention.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rft import commands, files
from rft.errors import InfrastructureError, UserError
from tasks import retention
from tasks.backup import contents, databases, manifest
from tasks.backup.contents import Source
from tasks.backup.manifest import File, Git, Manifest
from tasks.ledger import book, chain
from tasks.ledger.book import Ledger
from tasks.runs import records
from tasks.runs.clone import Clone
from tasks.runs.git import GitError

Tell = Callable[[str, int, int, int], None]
"""Gets the progress: the name of the work, files done, files in all, bytes."""
_PIECE = 1 << 20
_SCRATCH = "scratch-"


@dataclass(frozen=True)
class Saved:
    made: Manifest
    num_copied: int
    copied_bytes: int
    num_removed: int
    damaged: list[str]
    """Files of DVC's cache whose bytes do not fit their names."""
    kept: list[str]
    """Files that the clone has lost, and the back-up still has."""


def save(clone: Clone, folder: Path, tell: Tell) -> Saved:
    """Make or update a back-up. Raises UserError for a folder that is something else, for a shallow
    clone, and while a run is going on."""
    folder = folder.resolve()
    _check_place(clone, folder)
    if chain.is_shallow(clone):
        what = "this is a shallow clone: Git lacks commits that a back-up must hold"
        raise UserError(f"{what}. Make it whole: git fetch --unshallow")
    with retention.alone(clone, done="backed up"), _opened(folder):
        before = manifest.find(folder)
        ledger = book.read(clone, locked=True)
        if before is not None:
            _assert_same_clone(clone, ledger, before, folder)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
            return _Saving(clone, folder, before, Path(scratch), tell).save(ledger)


# -- where -----------------------------------------------------------------------------------------
def _check_place(clone: Clone, folder: Path) -> None:
    if folder.is_relative_to(clone.root) or folder.is_relative_to(clone.dvc_cache):
        what = f"{folder} lies inside of what is backed up, and would be lost with it"
        raise UserError(f"{what}. Name a folder outside of the clone, best on another disk.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file. Name a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / manifest.MARK).exists():
        raise UserError(f"{folder} is not empty, and is not a back-up of agent-rft. Name a new folder.")


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[None]:
    """Mark the folder as ours, and keep others out of it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # conversations are in it
    with records.held(folder / manifest.MARK) as free:
        if not free:
            raise UserError(f"{folder}: another `rft backup make` is writing there. Wait until it ends.")
        (folder / manifest.MARK).write_text(manifest.ABOUT, encoding="utf-8")
        for left in folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left)
        yield


def _assert_same_clone(clone: Clone, ledger: Ledger, before: Manifest, folder: Path) -> None:
    """Raise UserError if the folder backs up another clone, or if this clone has lost entries or
    records."""
    ids = ledger.state.ids
    if before.entry is not None and ids.get(before.num_entries) != before.entry:
        what = f"it holds entry {before.num_entries} of a ledger ({before.entry[:16]}), and this clone's lacks it"
    elif gone := set(before.runs) - {record.name for record in records.load_all(clone)}:
        what = f"it holds run {min(gone)}, of which this clone has no record"
    else:
        return
    raise UserError(
        f"{folder} is a back-up of another clone, or this one has lost something: {what}. It stays as it is. Name "
        f"another folder, or restore it: {commands.command('backup restore', str(folder), 'INTO')}"
    )


# -- one back-up -----------------------------------------------------------------------------------
class _Saving:
    def __init__(self, clone: Clone, folder: Path, before: Manifest | None, scratch: Path, tell: Tell):
        self.clone, self.folder, self.before, self.scratch, self.tell = clone, folder, before, scratch, tell
        self._known = {file.path: file for file in before.files} if before else dict[str, File]()
        self._trusted = {file.sha256 for file in self._known.values()}
        self._num_copied = self._copied_bytes = 0
        self._damaged: list[str] = []

    def save(self, ledger: Ledger) -> Saved:
        found = contents.find(self.clone, ledger.state, self.before, self._held)
        self._assert_space(found.sources)
        left_out = [*found.left_out]
        remotes = contents.remotes(self.clone, left_out)
        head = _branch(self.clone)
        bundle, size, refs, needs = self._bundle()
        files_ = self._take_all(found.sources)
        kept = sorted(path for path in found.lost if self._has(path))
        files_ += [self._known[path] for path in kept]
        made = Manifest(
            made=records.now(),
            version=importlib.metadata.version("agent-rft"),
            root=str(self.clone.root),
            genesis=ledger.state.genesis or None,
            entry=ledger.state.head or None,
            num_entries=ledger.state.number,
            runs=[record.name for record in records.load_all(self.clone)],
            git=Git(
                bundle=bundle, size=size, refs=refs, branch=head, remotes=remotes, deleted=found.deleted, needs=needs
            ),
            files=files_,
            left_out=left_out,
        )
        os.sync()  # all that the manifest names is on the disk before the manifest
        manifest.write(made, self.folder)
        removed = self._remove_others(made)
        return Saved(made, self._num_copied, self._copied_bytes, removed, self._damaged, kept)

    def _held(self, path: str) -> bytes | None:
        if (file := self._known.get(path)) is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            return manifest.place(self.folder, file.sha256).read_bytes()

    def _assert_space(self, sources: list[Source]) -> None:
        """Raise InfrastructureError for too small a disk. Counts what the back-up cannot have yet,
        and takes the bundle to be as large as Git's objects."""
        needed = 0
        for source in sources:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                size = source.place.stat().st_size
                needed += 0 if self._has(source.path) and self._known[source.path].size == size else size
        counts = dict(line.split(": ") for line in self.clone.git("count-objects", "-v").splitlines())
        needed += 1024 * (int(counts["size"]) + int(counts["size-pack"]))
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            what = f"the back-up needs up to {needed / 1e9:.2f} GB more, and its disk has {free / 1e9:.2f} GB free"
            raise InfrastructureError(f"{self.folder}: {what}. Nothing was backed up. Free some, or name another disk.")

    def _has(self, path: str) -> bool:
        file = self._known.get(path)
        return file is not None and manifest.is_whole(manifest.place(self.folder, file.sha256), file.size)

    # -- Git -----------------------------------------------------------------------------------
    def _bundle(self) -> tuple[str, int, dict[str, str], list[str]]:
        """Bundle all that is this clone's own. Returns the bundle's SHA-256, size and refs, and the
        commits that it needs."""
        refs, before = _refs(self.clone), self.before.git if self.before else None
        if before and before.refs == refs:
            path = manifest.bundle(self.folder, before.bundle)
            if manifest.is_whole(path, before.size):
                return before.bundle, before.size, refs, before.needs
        made = self.scratch / "git.bundle"
        which = [*refs, *_elsewhere(self.clone, refs)]
        self.clone.git("--no-replace-objects", "bundle", "create", "--quiet", str(made), *which)
        self.clone.git("bundle", "verify", "--quiet", str(made))
        listed = manifest.heads(self.clone.root, made)
        if not listed.items() <= refs.items() or ("--not" not in which and listed != refs):
            moved = ", ".join(sorted(name for name, _ in {*listed.items()} ^ {*refs.items()})[:5])
            raise InfrastructureError(f"Git's refs moved while they were copied ({moved}). Run the same command again.")
        sha256, size = files.sha256(made), made.stat().st_size
        path = manifest.bundle(self.folder, sha256)
        path.parent.mkdir(exist_ok=True)
        os.replace(made, path)
        self._num_copied, self._copied_bytes = self._num_copied + 1, self._copied_bytes + size
        left_out = {commit for name, commit in refs.items() if name not in listed}
        return sha256, size, refs, sorted({*manifest.needs(path), *left_out})

    # -- files ---------------------------------------------------------------------------------
    def _take_all(self, sources: list[Source]) -> list[File]:
        found: list[File] = []
        num_bytes = 0
        for number, source in enumerate(sources, 1):
            with contextlib.suppress(FileNotFoundError):  # a page that somebody removed meanwhile
                found.append(self._take(source))
                num_bytes += found[-1].size
            self.tell("backup", number, len(sources), num_bytes)
        return found

    def _take(self, source: Source) -> File:
        known, state = self._known.get(source.path), source.place.stat()
        stamp = (state.st_size, state.st_mtime_ns)
        if source.kind == "cache" and known and stamp == (known.size, known.changed_ns) and self._has(source.path):
            return known
        place = source.place
        if place in (contents.mlflow(self.clone), contents.prefect(self.clone)):
            place = self.scratch / place.name
            databases.copy(source.place, place)
        sha256, md5 = _hashes(place)
        if source.md5 not in (None, md5):
            self._damaged.append(source.path)
            if known is not None and self._has(source.path):
                return known  # the back-up's copy may be from before the damage
        size = self._put(place, sha256)
        return File(
            path=source.path,
            kind=source.kind,
            sha256=sha256,
            size=size,
            changed_ns=state.st_mtime_ns,
            mode=state.st_mode & 0o777,
        )

    def _put(self, place: Path, sha256: str) -> int:
        target, size = manifest.place(self.folder, sha256), place.stat().st_size
        if sha256 in self._trusted and manifest.is_whole(target, size):
            return size
        if not (target.exists() and files.sha256(target) == sha256):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = self.scratch / "part"
            shutil.copyfile(place, part)
            if files.sha256(part) != sha256:
                raise InfrastructureError(f"{place} changed while it was copied. Run the same command again.")
            os.replace(part, target)
            self._num_copied, self._copied_bytes = self._num_copied + 1, self._copied_bytes + size
        self._trusted.add(sha256)
        return size

    def _remove_others(self, made: Manifest) -> int:
        named = {manifest.place(self.folder, file.sha256) for file in made.files}
        named.add(manifest.bundle(self.folder, made.git.bundle))
        others = [*self.folder.glob("objects/*/*"), *self.folder.glob("bundles/*")]
        for path in (gone := [path for path in others if path not in named]):
            path.unlink()
        return len(gone)


def _branch(clone: Clone) -> str | None:
    try:
        return clone.git("symbolic-ref", "--quiet", "--short", "HEAD")
    except GitError:
        return None


def _refs(clone: Clone) -> dict[str, str]:
    """Return branches, tags, the ledger and the recorded runs: ref -> object."""
    form = "--format=%(refname) %(objectname)"
    lines = clone.git("for-each-ref", form, "refs/heads", "refs/tags", chain.REF).splitlines()
    if clone.is_guest:
        runs = retention.ours(clone)
    else:
        runs = dict(line.split(" ") for line in clone.git("for-each-ref", form, "refs/exps").splitlines())
    return {"HEAD": clone.git("rev-parse", "HEAD"), **dict(line.split(" ") for line in lines), **runs}


def _elsewhere(clone: Clone, refs: dict[str, str]) -> list[str]:
    """Return options that leave out what a remote has, where the history is another program's."""
    if not clone.is_guest or not clone.git("for-each-ref", "--count=1", "refs/remotes"):
        return []
    left = clone.git("rev-list", "--count", *refs.values(), "--not", "--remotes")
    return ["--not", "--remotes"] if int(left) else []


def _hashes(path: Path) -> tuple[str, str]:
    """Return SHA-256 and MD5, from one reading."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            sha256.update(piece)
            md5.update(piece)
    return sha256.hexdigest(), md5.hexdigest()
