"""Bytes of a recorded revision, found by hash.

Git holds dvc.lock, dvc.lock names every output's md5, and DVC's cache holds the bytes. So a run's
report can be read long after its worktree is gone. Everything read is hashed again: bytes that do
not fit their name are an error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import ValidationError

from rft import files, reports, sources, stage_files
from rft.errors import InfrastructureError, UserError
from tasks.runs import records
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git, git_bytes, unfiltered

R = TypeVar("R", bound=reports.Report)
WEIGHTS = str(stage_files.folder("champion") / "weights")
PROFILE = str(stage_files.folder("champion") / "profile.json")
WINDOW = str(stage_files.folder("champion") / "window.json")
IN_GIT = (reports.Champion, reports.Opening, reports.Registration)
"""Reports that the flow writes and Git holds; the others are outputs of stages."""
_PIECE = 1 << 20
_FASTER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml, where PyYAML has it. It is ten times faster: a dvc.lock has 3,400
lines."""
DEEPEST = 500
"""The limit for lists inside one another. libyaml's time grows with the square of the brackets:
80 kB of `[` took ten seconds. And 80 kB of `- ` overflow the stack, which ends the process."""
_IN_ONE_ANOTHER = re.compile(r"[\[\]{}]|(?:[-?:][ \t]+)++")


def _bounded(content: str | bytes) -> Any:
    """Use the faster loader. Raises YAMLError for content that is nested too deeply."""
    depth = 0
    for found in _IN_ONE_ANOTHER.finditer(content if isinstance(content, str) else content.decode("latin-1")):
        brackets = {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0])
        depth += brackets or 0
        if depth > DEEPEST or (brackets is None and len(found[0].split()) > DEEPEST):
            raise yaml.YAMLError(f"more than {DEEPEST} lists in one another")
    return _FASTER(content)


LOADER: Any = _bounded


@lru_cache(maxsize=64)
def read_yaml(content: bytes) -> Any:
    """Parse a file of a revision. The same bytes are parsed once (20 ms for a dvc.lock), so callers
    must not change the result. Raises YAMLError."""
    return yaml.load(content, LOADER) or {}


@dataclass(frozen=True)
class Out:
    """An output as dvc.lock names it; a folder's md5 ends in `.dir`."""

    path: str
    md5: str
    size: int
    num_files: int | None

    @property
    def is_folder(self) -> bool:
        return self.md5.endswith(".dir")


@dataclass(frozen=True)
class Revision:
    """A run's commit. Paths are relative to the agent's folder, as in its dvc.lock."""

    clone: Clone
    commit: str

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """The run's record in the commit's message; empty where it holds none."""
        try:
            message = git(self.clone.root, "cat-file", "commit", self.commit).partition("\n\n")[2]
            told, _ = json.JSONDecoder().raw_decode(message.partition("\n\n")[2])
        except (GitError, ValueError, RecursionError):  # a later read says what is wrong
            return {}
        return told if isinstance(told, dict) else {}

    @property
    def folder(self) -> str:
        """The agent's folder, as the record says; empty: the top. Raises UserError for one outside
        of the repository: a revision may be forged."""
        found = PurePosixPath(str(self.recorded.get("folder", "")))
        if found.is_absolute() or ".." in found.parts:
            raise UserError(f"revision {self.commit[:10]} names {str(found)!r} as its agent's folder: it was forged.")
        return "" if found == PurePosixPath() else str(found)

    def from_the_top(self, path: str | Path) -> str:
        """Name a file of the agent's folder as Git does."""
        return (PurePosixPath(self.folder) / path).as_posix()

    def file(self, path: str) -> bytes | None:
        """Return a file that Git holds; None when the revision lacks it."""
        assert self.commit, "without a commit Git would read its index"
        try:
            return git_bytes(self.clone.root, "show", f"{self.commit}:{self.from_the_top(path)}")
        except GitError as error:
            self._assert_here()  # if the commit's tree is missing, Git also says "does not exist"
            if "does not exist" in str(error) or "exists on disk, but not in" in str(error):
                return None
            raise

    def _assert_here(self) -> None:
        try:
            git(self.clone.root, "cat-file", "-e", f"{self.commit}^{{tree}}")
        except GitError:
            what = f"revision {self.commit[:10]} is not in this clone's Git, or not whole: it was deleted or damaged"
            remedy = "Fetch it from a clone that has it (git fetch CLONE 'refs/exps/*:refs/exps/*'), or start a new run"
            raise GitError(f"{what}. {remedy}.") from None

    def has_same(self, folder: str) -> bool:
        """Say whether the clone's folder still holds this revision's files, except ignored ones."""
        git, folder = self.clone.git, self.from_the_top(folder)
        listed = git("ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", folder).split("\0")
        now = sorted(name for name in filter(None, listed) if (self.clone.root / name).is_file())
        hashes = git("hash-object", "--", *now).split() if now else []
        then = git("ls-tree", "-r", "-z", self.commit, "--", folder).split("\0")
        rows = [row.partition("\t") for row in then if row]
        return dict(zip(now, hashes, strict=True)) == {name: head.split()[2] for head, _, name in rows}

    @cached_property
    def outs(self) -> dict[str, Out]:
        return self._made | self._brought

    @cached_property
    def _made(self) -> dict[str, Out]:
        """Outputs of stages, by path."""
        with self._whole("dvc.lock") as lock:
            rows = [row for stage in lock.get("stages", {}).values() for row in stage.get("outs", [])]
            return {out.path: out for out in map(_out, rows)}

    @cached_property
    def _brought(self) -> dict[str, Out]:
        """Outputs that came with the champion, by path. They take three more files, which reading a
        report does not need."""
        found: list[Out] = []
        for pointer in self._there(*(f"{path}.dvc" for path in (WEIGHTS, PROFILE, WINDOW))):
            with self._whole(pointer) as read:
                found += [_out(row | {"path": pointer.removesuffix(".dvc")}) for row in read.get("outs", [])]
        return {out.path: out for out in found}

    def _there(self, *paths: str) -> list[str]:
        """Return the files among these that Git holds."""
        try:
            tree = f"{self.commit}:{self.folder}"
            return git(self.clone.root, "ls-tree", "--name-only", tree, "--", *paths).splitlines()
        except GitError:
            self._assert_here()
            raise

    @property
    def recipe(self) -> str:
        """The folder of the recipe."""
        with self._whole("params.yaml") as params:
            return str(params["recipe"]["path"])

    @property
    def model(self) -> str:
        """The agent's name."""
        with self._whole("params.yaml") as params:
            return str(params.get("agent") or Path(params["recipe"]["path"]).name)

    @property
    def settings(self) -> dict[str, Any]:
        """All of params.yaml, as the run wrote it. Raises UserError for what no run wrote."""
        with self._whole("params.yaml") as params:
            if not isinstance(params, dict):
                raise TypeError("no sections")
            return params

    @contextmanager
    def _whole(self, path: str) -> Iterator[Any]:
        """Yield a file of the revision as YAML; empty where it is missing. An error in the block
        becomes a UserError: somebody may have changed the file by hand."""
        try:
            yield read_yaml(self.file(path) or b"")
        except (yaml.YAMLError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as error:
            what = f"{path} of revision {self.commit[:10]} is not as a run records it"
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"{what} ({why}): it was changed by hand. Start a new run.") from None

    @property
    def lock_sha256(self) -> str | None:
        lock = self.file("dvc.lock")
        return None if lock is None else hashlib.sha256(lock).hexdigest()

    def read(self, name: str | Path) -> bytes | None:
        """Return the bytes of an output, or of a file in an output folder; None where the run has
        no such output."""
        path = str(name)
        if out := self._made.get(path) or self._brought.get(path):
            return self._cached(out.md5, path)
        for parent in map(str, PurePosixPath(path).parents):
            if (out := self.outs.get(parent)) and out.is_folder:
                found = dict(self.files(parent)).get(str(PurePosixPath(path).relative_to(parent)))
                return None if found is None else self._cached(found, path)
        return None

    def report(self, kind: type[R]) -> R | None:
        """Read the run's report of this kind; None when the run has none."""
        path = stage_files.path(kind)
        content = self.read(path)
        if content is None:
            return None
        return self._parsed(kind, content, path)

    def told(self, kind: type[R]) -> R | None:
        """Read a report that the flow wrote for the stages (IN_GIT); None when the run has none."""
        assert kind in IN_GIT
        path = stage_files.path(kind)
        content = self.file(str(path))
        return None if content is None else self._parsed(kind, content, path)

    def _parsed(self, kind: type[R], content: bytes, path: Path) -> R:
        try:
            return reports.parse(kind, content, f"{path} of revision {self.commit[:10]}")
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            raise UserError(f"{path} of revision {self.commit[:10]} is not a whole {kind.__name__}: {why}.") from None

    def json(self, path: str | Path) -> Any:
        content = self.read(path)
        return None if content is None else json.loads(content)

    def files(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield (relative path, md5) of every file in an output folder, in the order of paths."""
        listing = json.loads(self._cached(self._named(folder).md5, folder))
        yield from sorted(((row["relpath"], row["md5"]) for row in listing), key=lambda row: PurePosixPath(row[0]))

    def tree_sha256(self, folder: str) -> str:
        """Compute `rft.files.tree_sha256` of the folder, from verified bytes of the cache."""
        digest = hashlib.sha256()
        for relative, md5 in self.files(folder):
            digest.update(f"{relative}\0".encode() + hashlib.sha256(self._cached(md5, f"{folder}/{relative}")).digest())
        return digest.hexdigest()

    def lay(self, path: str, target: Path) -> None:
        """Write an output, a file or a folder, to `target`, each file verified."""
        out = self._named(path)
        for relative, md5 in self.files(path) if out.is_folder else [("", out.md5)]:
            file = target / relative
            file.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.md5(usedforsecurity=False)
            with self._opened(md5, f"{path}/{relative}") as source, file.open("wb") as copy:
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    copy.write(piece)
            self._assert_is(md5, digest.hexdigest(), f"{path}/{relative}")

    def _named(self, path: str) -> Out:
        if path not in self.outs:
            what = f"dvc.lock of revision {self.commit[:10]} names no {path}"
            raise UserError(f"{what}: its run did not get that far, or the file was changed. Start a new run.")
        return self.outs[path]

    def lay_tree(self, target: Path) -> None:
        """Write all files that Git holds into an unused folder. A kill may leave an index file
        beside it, in the caller's scratch folder, which is cleared away."""
        index = target.with_name(f"{target.name}.index")
        git(self.clone.root, "read-tree", self.commit, index=index)
        git(
            self.clone.root, *unfiltered(self.clone.root), "checkout-index", "--all", f"--prefix={target}/", index=index
        )
        index.unlink()
        (target / sources.MARK).touch()  # what its recipe imports is the revision's, not the clone's

    def exists(self) -> bool:
        """Say whether this clone's Git has the revision."""
        try:
            git(self.clone.root, "cat-file", "-e", f"{self.commit}^{{commit}}")
        except GitError:
            return False
        return True

    def is_cached(self) -> bool:
        """Say whether this clone's cache has every byte of the revision."""
        return all(self._path(md5).exists() for out in self.outs.values() for md5 in [out.md5, *self._listed(out)])

    def _listed(self, out: Out) -> list[str]:
        here = out.is_folder and self._path(out.md5).exists()
        return [row["md5"] for row in json.loads(self._cached(out.md5, out.path))] if here else []

    def _cached(self, md5: str, what: str) -> bytes:
        with self._opened(md5, what) as file:
            content = file.read()
        self._assert_is(md5, hashlib.md5(content, usedforsecurity=False).hexdigest(), what)
        return content

    def _opened(self, md5: str, what: str) -> BinaryIO:
        try:
            return self._path(md5).open("rb")
        except FileNotFoundError:
            name = f"{what} of revision {self.commit[:10]}"
            every = records.load_all(self.clone)
            if removed := next((record.bytes_removed for record in every if record.revision == self.commit), None):
                raise UserError(
                    f"{name} is past its retention: `rft runs gc` removed its bytes at {removed}, as "
                    "run.retention.cache_days in params.yaml says. The revision stays: `dvc exp pull` fetches the "
                    "bytes if a remote has them, and a run of the same commit and settings makes them again."
                ) from None
            raise InfrastructureError(
                f"{name} is not in this clone's DVC cache ({self._path(md5)}). Fetch it from your remote: dvc exp pull "
                "origin RUN, and see that nobody runs `dvc gc` without --all-experiments."
            ) from None

    def _assert_is(self, md5: str, found: str, what: str) -> None:
        if found != md5.removesuffix(".dir"):
            had = f"its bytes are not those that {what} of revision {self.commit[:10]} had"
            raise InfrastructureError(f"{self._path(md5)} was changed: {had}. Delete it and fetch it again.")

    def _path(self, md5: str) -> Path:
        return _in_cache(self._cache, md5)

    @cached_property
    def _cache(self) -> Path:
        return self.clone.dvc_cache


def _out(row: dict[str, Any]) -> Out:
    return Out(row["path"], row["md5"], row.get("size", 0), row.get("nfiles"))


def keep(clone: Clone, content: bytes) -> Out:
    """Put bytes into DVC's cache unless they are there. The returned output has no path yet."""
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    path = _in_cache(clone.dvc_cache, md5)
    if not path.exists():
        with files.replacing(path) as part:
            part.write_bytes(content)
            part.chmod(0o444)  # as DVC does: worktrees may hold links to it
    return Out("", md5, len(content), None)


def path_of(clone: Clone, out: Out) -> Path:
    """Return the place of a file in the cache, whether it is there or not."""
    return _in_cache(clone.dvc_cache, out.md5)


def cached(clone: Clone, out: Out) -> bytes | None:
    """Return the bytes of a file; None where the cache lacks them. Raises InfrastructureError for
    other bytes under its name."""
    path = path_of(clone, out)
    if not path.exists():
        return None
    content = path.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != out.md5:
        raise InfrastructureError(f"{path}: its bytes do not fit its name. Remove it, and fetch it again.")
    return content


def link_out(out: Out, path: Path) -> None:
    """Write `PATH.dvc`, by which DVC finds the output's bytes by their hash in the cache."""
    row: dict[str, Any] = {"md5": out.md5, "size": out.size, "hash": "md5", "path": path.name}
    if out.num_files is not None:
        row["nfiles"] = out.num_files
    path.with_name(f"{path.name}.dvc").write_text(yaml.safe_dump({"outs": [row]}, sort_keys=False), encoding="utf-8")


def _in_cache(cache: Path, md5: str) -> Path:
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def restore(at: Revision, folder: Path) -> None:
    """Write the files of every stage, and the settings. An output folder gives only its report, not
    its weights."""
    for out in at.outs.values():
        name = f"{out.path}/report.json" if out.is_folder else out.path
        _write(at.read(name), folder / name)
    for name in ("params.yaml", *(str(stage_files.path(kind)) for kind in IN_GIT)):
        _write(at.file(name), folder / name)


def _write(content: bytes | None, path: Path) -> None:
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
