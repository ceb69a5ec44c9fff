"""What belongs in a back-up besides Git's objects, and what is left out and reported.

    cache      What DVC holds of every revision, branch, tag and working tree, and of the ledger's
               lists of test examples. DVC's memory of finished stages is taken where it names only
               these. So from a cache that other projects share, only this clone's files are taken.
    records    Records of runs, the champion's files, pages, MLflow's and Prefect's files, edits
               without a commit, and the inputs that runs name and Git ignores.

Keys, the memory that is sealed with a key, settings with passwords, and other people's servers are
left out. A sentence for each tells this to the person who restores.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rft import stage_files
from rft.formatting import counted
from tasks import retention
from tasks.backup import databases
from tasks.backup.manifest import Kind, Manifest, Remote
from tasks.display import tracking
from tasks.ledger.state import State
from tasks.runs import edits, records, workspace
from tasks.runs.artifacts import LOADER
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git_bytes

CACHE = ".dvc/cache"
"""The cache's place in a restored clone, even if this clone's cache is elsewhere."""
_SHOWN = 5
_KEY = b"PRIVATE KEY-----"
_KNOWN = {".rft", ".dvc", "mlruns", ".venv", ".pytest_cache", ".ruff_cache", ".hypothesis", "build", "dist"}
"""Ignored folders that are handled elsewhere, or made again."""
_MADE = re.compile(r"(?:^|/)(?:__pycache__|[^/]*\.egg-info)/|\.pyc$|^\.env")
"""Files that Python makes, and environment files, which have a sentence of their own."""


@dataclass(frozen=True)
class Source:
    path: str
    """The place in the restored clone."""
    kind: Kind
    place: Path
    """The place now."""
    md5: str | None = None
    """The hash under which DVC has it."""


@dataclass(frozen=True)
class Contents:
    sources: list[Source]
    lost: set[str]
    """Paths in the cache whose bytes are gone here. The earlier back-up has them, and they stay."""
    deleted: list[str]
    left_out: list[str]


def find(clone: Clone, state: State, before: Manifest | None, held: Callable[[str], bytes | None]) -> Contents:
    """Find what belongs in the back-up. Call while nothing runs in the clone. `held` returns the
    bytes of a path in the earlier back-up."""
    left_out: list[str] = []
    sources = [*_cache(clone, state), *_state(clone)]
    edited, deleted = _edits(clone, left_out)
    sources += edited
    sources += _inputs(clone, {source.path for source in sources}, left_out)
    left_out += _unused(clone, {source.path for source in sources})
    whole = [source for source in sources if _is_plain(source, left_out)]
    return Contents(whole, _lost(clone, state, before, held), deleted, _keys(clone) + left_out + _servers(clone))


# -- DVC's cache -----------------------------------------------------------------------------------
def _cache(clone: Clone, state: State) -> Iterator[Source]:
    cache = clone.dvc_cache

    def content(md5: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return _in(cache, md5).read_bytes()

    revisions = {made.revision for made in state.promotions.values()}
    names = closure(_named(clone, revisions) | _lists(state), content)
    for md5 in sorted(names):
        if (path := _in(cache, md5)).is_file():
            yield Source(_path(md5), "cache", path, md5.removesuffix(".dir"))
    for path in sorted((cache / "runs").glob("*/*/*")):
        if path.is_file() and _outs(path) <= names:
            yield Source(f"{CACHE}/{path.relative_to(cache).as_posix()}", "cache", path)


def closure(some: set[str], content: Callable[[str], bytes | None]) -> set[str]:
    """Add the files of the folders among these hashes, where the folder's list can be read."""
    found = set(some)
    for md5 in some:
        if md5.endswith(".dir"):
            with contextlib.suppress(ValueError, TypeError, KeyError):  # a damaged list is copied as it is
                found |= {row["md5"] for row in json.loads(content(md5) or b"[]")}
    return found


def _lists(state: State, erased: bool = True) -> set[str]:
    """Return the hashes of the lists of test examples by which the ledger counts looks."""
    acts = [*(look.act for look in state.looks.values()), *state.opened.values()]
    return {act.examples.md5 for act in acts if erased or not state.erasure_of(act.test_sha256, act.examples)}


def _lost(clone: Clone, state: State, before: Manifest | None, held: Callable[[str], bytes | None]) -> set[str]:
    """Return the paths whose bytes the back-up has, this clone's cache lacks, and a revision needs.
    What was removed on purpose (`rft runs gc`, `rft ledger erase`) is not lost."""
    prefix = f"{CACHE}/files/md5/"
    mine = {file.path for file in before.files if file.path.startswith(prefix)} if before else set[str]()
    gone = {path for path in mine if not _in(clone.dvc_cache, path.removeprefix(prefix).replace("/", "")).exists()}
    if not gone:
        return set()
    removed = {record.revision for record in records.load_all(clone) if record.revision and record.bytes_removed}
    needed = {made.revision for made in state.promotions.values()}
    named = _named(clone, needed, removed) | _lists(state, erased=False)
    return gone & {_path(md5) for md5 in closure(named, lambda md5: held(_path(md5)))}


def _named(clone: Clone, needed: set[str], removed: set[str] | None = None) -> set[str]:
    """Return the hashes that runs and working trees name. In another program's repository only the
    agents' folders count."""
    folders = {*workspace.folders(clone.root), *(record.folder for record in records.load_all(clone))}
    return retention.named(clone, removed or set(), needed, folders if clone.is_guest else None)


def _in(cache: Path, md5: str) -> Path:
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def _path(md5: str) -> str:
    return f"{CACHE}/files/md5/{md5[:2]}/{md5[2:]}"


def _outs(entry: Path) -> set[str]:
    """Return the hashes that an entry of the run cache names. A damaged entry names a hash that
    nothing has."""
    try:
        found: dict[str, Any] = yaml.load(entry.read_bytes(), LOADER) or {}
        return {row["md5"] for row in found.get("outs", []) if "md5" in row}
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError, TypeError):
        return {"damaged"}


# -- the clone's own files -------------------------------------------------------------------------
def _state(clone: Clone) -> Iterator[Source]:
    root = clone.root
    yield from _files(root, "records", sorted(clone.runs.glob("*.json")))
    yield from _files(root, "champion", sorted((clone.state / "champion").glob("*.json")))
    yield from _files(root, "pages", sorted((clone.state / "reports").rglob("*")))
    every = sorted(clone.mlruns.rglob("*"))
    own = {clone.mlruns / name for name in ("README.md", "mlflow.db", "mlflow.db-wal", "mlflow.db-shm")}
    yield from _files(root, "MLflow", [path for path in every if path not in own])
    yield from _files(root, "MLflow", [mlflow(clone)])
    yield from _files(root, "Prefect", [prefect(clone)])


def mlflow(clone: Clone) -> Path:
    return clone.mlruns / "mlflow.db"


def prefect(clone: Clone) -> Path:
    return clone.state / "prefect" / "prefect.db"


def _files(root: Path, kind: Kind, paths: Iterable[Path]) -> Iterator[Source]:
    for path in paths:
        if path.is_symlink() or path.is_file():
            yield Source(path.relative_to(root).as_posix(), kind, path)


def _edits(clone: Clone, left_out: list[str]) -> tuple[list[Source], list[str]]:
    """Return changed and untracked files as they are now, and tracked files that were deleted."""
    paths = _own_paths(clone)
    changed = _listed(clone, "diff", "--name-only", "--no-renames", "-z", "HEAD", "--", *paths)
    untracked = _listed(clone, "ls-files", "--others", "--exclude-standard", "-z", "--", *paths)
    if clone.is_guest:
        theirs = _listed(
            clone, "status", "--porcelain", "-z", "--", ".", *(f":(exclude,literal){each}" for each in paths)
        )
        if theirs:
            what = f"{counted(len(theirs), 'file')} without a commit outside of the agents' folders"
            left_out.append(f"{what}. Commit and push what you want to keep")
    nested = [name for name in untracked if name.endswith("/")]
    left_out += [f"{name}: a Git repository inside the clone. Copy it by other means" for name in nested]
    found = [*_files(clone.root, "edits", (clone.root / name for name in [*changed, *untracked]))]
    secret = _with_secrets(clone, found)
    left_out += [f"{source.path}: {why}. Copy it by hand, if it is needed" for source, why in secret]
    hidden = {source.path for source, _ in secret}
    deleted = [name for name in changed if not (clone.root / name).exists() and not (clone.root / name).is_symlink()]
    return [source for source in found if source.path not in hidden], deleted


def _own_paths(clone: Clone) -> list[str]:
    """Return the paths of the working tree that belong in a back-up. In another program's
    repository they are the agents' folders and what `rft init` wrote."""
    if not clone.is_guest:
        return ["."]
    every = [*filter(None, workspace.folders(clone.root)), workspace.FILE, ".gitignore", ".dvc", ".dvcignore"]
    return [path for path in every if (clone.root / path).exists()]


def _inputs(clone: Clone, known: set[str], left_out: list[str]) -> list[Source]:
    """Return windows and model folders that runs took from this clone and Git does not hold."""
    found: dict[str, Source] = {}
    tracked = set(_listed(clone, "ls-files", "-z"))
    for name in _named_by_runs(clone):
        if "://" in name:
            left_out.append(f"{name}: a run took it from an object store. What it read is in the cache")
            continue
        place = Path(os.path.abspath(clone.root / name))
        if not place.is_relative_to(clone.root):
            left_out.append(f"{name}: a run took it from outside of the clone. Copy it by other means")
            continue
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        for source in _files(clone.root, "inputs", inside):
            if source.path not in tracked | known and ".git" not in Path(source.path).parts:
                found[source.path] = source
    secret = dict(_with_secrets(clone, found.values()))
    left_out += [f"{source.path}: {why}. Copy it by hand, if it is needed" for source, why in secret.items()]
    return [source for source in found.values() if source not in secret]


def _named_by_runs(clone: Clone) -> list[str]:
    """Return the inputs and logs of the runs. A pattern stands for what it matches now."""
    found: set[str] = set()
    for record in records.load_all(clone):
        found |= {str(record.inside(name)) for name in {*record.inputs} - {str(stage_files.SNAPSHOT)}}
        if "://" in record.window:
            found.add(record.window)
        elif any(letter in record.window for letter in "*?["):
            matches = clone.root.glob(str(record.inside(record.window)))
            found |= {path.relative_to(clone.root).as_posix() for path in matches}
        else:
            found.add(str(record.inside(record.window)))
    return sorted(found)


def _unused(clone: Clone, taken: set[str]) -> list[str]:
    """Report what the user has in the clone that Git ignores and no run named."""
    found: list[str] = []
    ignored = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    for name in _listed(clone, *ignored, "--", *_own_paths(clone)):
        parts = Path(name).parts
        if parts[0] in _KNOWN or ".dvc" in parts or name in taken or _MADE.search(name):
            continue
        inside = {path for path in taken if path.startswith(name)} if name.endswith("/") else set[str]()
        if not inside:
            found.append(name)
        else:
            every = (path.relative_to(clone.root).as_posix() for path in (clone.root / name).rglob("*"))
            found += sorted(path for path in every if path not in inside and (clone.root / path).is_file())
    if not found:
        return []
    names = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    return [f"{names}: Git ignores this, and no run had it as an input. Copy it by hand, if it is needed"]


def _with_secrets(clone: Clone, sources: Iterable[Source]) -> list[tuple[Source, str]]:
    """Return the user's files that hold a private key, or the value of a declared secret."""
    declared: dict[str, str] = {}
    for home in clone.homes:
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            declared |= edits.declared_secrets(yaml.safe_load((home / "params.yaml").read_text(encoding="utf-8")))
    wanted = {_KEY: "it holds a private key"}
    wanted |= {value.encode(): f"it holds the value of the secret {name}" for name, value in declared.items()}
    found: list[tuple[Source, str]] = []
    for source in sources:
        if not source.place.is_symlink() and (hit := _holds(source.place, wanted)):
            found.append((source, wanted[hit]))
    return found


def _holds(path: Path, wanted: Iterable[bytes]) -> bytes | None:
    """Return which of the texts a file holds. Reads in pieces, each with the end of the last one: a
    model may be larger than memory."""
    longest, end = max(map(len, wanted)), b""
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            for one in wanted:
                if one in end + piece:
                    return one
            end = piece[-longest:]
    return None


def _listed(clone: Clone, *arguments: str) -> list[str]:
    names = git_bytes(clone.root, *arguments).decode("utf-8", "surrogateescape").split("\0")
    return sorted(filter(None, names))


def _is_plain(source: Source, left_out: list[str]) -> bool:
    try:
        source.path.encode()
    except UnicodeEncodeError:
        left_out.append(f"{source.path.encode(errors='replace').decode()}: its name is not UTF-8. Rename it")
        return False
    if source.place.is_symlink() and source.kind != "cache":
        left_out.append(f"{source.path}: a link to {os.readlink(source.place)}. Make it again")
        return False
    return True


# -- what is left out ------------------------------------------------------------------------------
def _keys(clone: Clone) -> list[str]:
    found = [
        "the machine key, and what this clone remembers of its ledger, which is sealed with it. The restored clone "
        "makes a key of its own, and verifies the whole ledger once. An owner lets it append, from there: "
        "rft ledger people add --machine --reason TEXT",
        "people's keys. They lie with the people",
    ]
    unfinished = [record.name for record in records.load_all(clone) if not record.over]
    if unfinished:
        what = f"what a stage had begun in {counted(len(unfinished), 'unfinished run')} ({', '.join(unfinished)})"
        found.append(f"{what}. Started again, a run takes finished stages from DVC's cache, and begins that one anew")
    found.append("logs of stages and servers (.rft/logs)")
    local = clone.root / ".dvc" / "config.local"
    if local.exists():
        found.append(".dvc/config.local, which may hold passwords. Set it again: dvc remote modify --local REMOTE ...")
    if clone.dvc_cache != (clone.root / CACHE).resolve():
        found.append("where DVC's cache lies (cache.dir). The restored clone keeps its own, in .dvc/cache")
    env = sorted(path.name for path in clone.root.glob(".env*"))
    if env:
        found.append(f"{', '.join(env)}: environment files hold secrets. Copy them in a safe way")
    return found


def _servers(clone: Clone) -> list[str]:
    """Report databases that are not files of this clone: their owners back them up."""
    found: list[str] = []
    address = tracking.address(clone)
    if "MLFLOW_TRACKING_URI" in os.environ and address != f"sqlite:///{mlflow(clone)}":
        shown = tracking.without_password(address)
        found.append(f"MLflow's store at {shown} (MLFLOW_TRACKING_URI). Its owner backs it up")
    for name in ("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        if value := os.environ.get(name):
            shown = tracking.without_password(value)
            found.append(f"Prefect's server at {shown} ({name}). Its owner backs it up")
    home = Path(os.environ.get("PREFECT_HOME", clone.state / "prefect"))
    if home.resolve() != prefect(clone).parent.resolve():
        found.append(f"Prefect's home at {home} (PREFECT_HOME): it lies outside of the clone")
    if mlflow(clone).exists():
        for place in databases.elsewhere(mlflow(clone), clone.mlruns.parent):
            found.append(f"MLflow's artifacts at {place}: they lie outside of the clone. Copy them by other means")
    return found


def remotes(clone: Clone, left_out: list[str]) -> list[Remote]:
    """Return Git's remotes, with absolute addresses and without passwords."""
    found: list[Remote] = []
    for name in clone.git("remote").split():
        with contextlib.suppress(GitError):
            url = clone.git("config", f"remote.{name}.url")
            made = _bare(url)
            if "://" not in made and ":" not in made.split("/")[0]:
                made = os.path.normpath(clone.root / made)
            if made != url and "://" in url:
                again = f"git remote set-url {name} URL"
                left_out.append(f"the password in the address of Git's remote {name}. Set it again: {again}")
            found.append(Remote(name=name, url=made))
    return found


def _bare(url: str) -> str:
    """Return a URL without user and password; SSH keeps the user, which is not secret."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    user, at, place = host.rpartition("@")
    if not separator or not at:
        return url
    kept = f"{user.partition(':')[0]}@" if scheme.endswith("ssh") else ""
    return f"{scheme}://{kept}{place}{slash}{path}"
