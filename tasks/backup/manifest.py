"""The folder of a back-up: its manifest, and the places of the bytes that the manifest names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from rft import commands, files, reports, secrets
from rft.errors import UserError
from rft.reports.base import SCHEMA, Report
from tasks.ledger.statement import Sha256
from tasks.runs.git import git

NAME, MARK = "manifest.json", "agent-rft-backup.txt"
ABOUT = """\
A back-up that `rft backup make` made. manifest.json says what it consists of and is written last: without
it, the back-up is unfinished, and the same command goes on. `rft backup restore` verifies it and lays it
out as a clone. The file in bundles/ can be read without agent-rft: git clone FILE
"""
Kind = Literal["cache", "records", "champion", "pages", "MLflow", "Prefect", "edits", "inputs"]


def _inside(path: str) -> str:
    """Accept a normalized path of a file inside the clone, outside of `.git`."""
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or not parts or {"..", ".git"} & {*parts} or path.startswith("/") or "\0" in path:
        raise ValueError("not the path of a file inside the clone")
    return path


Inside = Annotated[str, AfterValidator(_inside)]


class File(Report):
    path: Inside
    """The place in the restored clone."""
    kind: Kind
    sha256: Sha256
    size: int = Field(ge=0)
    changed_ns: int
    """The time of the last change: `rft runs gc` goes by age, so a restored file keeps it."""
    mode: int = Field(ge=0, le=0o777)


class Remote(Report):
    name: str
    url: str
    """Without a password or token."""


class Git(Report):
    bundle: Sha256
    size: int
    refs: dict[str, str]
    """Name -> object, including `HEAD`."""
    branch: str | None
    """What was checked out; None: HEAD was detached."""
    remotes: list[Remote]
    deleted: list[Inside]
    """Tracked files that were deleted without a commit."""
    needs: list[str] = []
    """Commits that the bundle leaves out because a remote has them: the history of the program
    whose repository holds the agents."""


class Manifest(Report):
    made: str
    version: str
    """The version of agent-rft."""
    root: str
    """Where the clone lay: MLflow names its artifacts by absolute addresses."""
    genesis: Sha256 | None
    entry: Sha256 | None
    """The ledger's last entry; None: there was no ledger."""
    num_entries: int
    runs: list[str]
    git: Git
    files: list[File]
    left_out: list[str]
    """Sentences, each with its remedy."""

    @property
    def num_bytes(self) -> int:
        return self.git.size + sum({file.sha256: file.size for file in self.files}.values())


def write(made: Manifest, folder: Path) -> None:
    text = secrets.dumps({"schema": SCHEMA, **made.model_dump(mode="json")}, indent=1, ensure_ascii=False)
    files.write_text(text + "\n", folder / NAME, durable=True)


def find(folder: Path) -> Manifest | None:
    """Read a folder's manifest; None where there is none yet. Raises UserError for another file."""
    file = folder / NAME
    try:
        found = reports.parse(Manifest, file.read_bytes(), str(file))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        remedy = f"It was changed, or cut off. Make the back-up anew, in another folder: {_again('FOLDER')}"
        raise UserError(f"{file}: {key}: {first['msg']}. {remedy}") from None
    twice = [path for path, count in Counter(each.path for each in found.files).items() if count > 1]
    if twice:
        raise UserError(f"{file}: files: {twice[0]} is named twice: the manifest was changed.")
    return found


def read(folder: Path) -> Manifest:
    """Read the manifest of a finished back-up. Raises UserError where there is none."""
    if (found := find(folder)) is not None:
        return found
    if (folder / MARK).exists():
        what = f"{folder} is an unfinished back-up: it has no {NAME} yet, and nothing can be restored from it"
        raise UserError(f"{what}. To finish it, in the clone that it backs up: {_again(str(folder))}")
    raise UserError(f"{folder} is not a back-up: it has no {NAME}. To make one, in a clone: {_again('FOLDER')}")


def _again(folder: str) -> str:
    return commands.command("backup make", folder)


def place(folder: Path, sha256: str) -> Path:
    return folder / "objects" / sha256[:2] / sha256[2:]


def bundle(folder: Path, sha256: str) -> Path:
    return folder / "bundles" / f"{sha256}.bundle"


def heads(root: Path, bundle: Path) -> dict[str, str]:
    """Return the refs that a bundle holds."""
    lines = git(root, "bundle", "list-heads", str(bundle)).splitlines()
    return {name: commit for commit, _, name in (line.partition(" ") for line in lines)}


def needs(bundle: Path) -> list[str]:
    """Return the commits that must be there before a bundle is unpacked. They are the lines of its
    head that begin with a minus (gitformat-bundle)."""
    found: list[str] = []
    with bundle.open("rb") as file:
        for line in iter(file.readline, b"\n"):
            if line.startswith(b"-"):
                found.append(line[1:].split()[0].decode())
            elif not line:
                break
    return found


def is_whole(path: Path, size: int) -> bool:
    """Say whether a file is there and has its length. Its bytes are verified elsewhere."""
    return path.is_file() and path.stat().st_size == size


__all__ = [
    "File",
    "Git",
    "Kind",
    "Manifest",
    "Remote",
    "bundle",
    "find",
    "heads",
    "is_whole",
    "needs",
    "place",
    "read",
    "write",
]
