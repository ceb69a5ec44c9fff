"""The branch of a remote that several clones share, and the ledger that it must hold.

Section `ledger` of rft.yaml, or infra/ledger.yaml without a workspace, is tracked by Git. It names
the remote, its branch, and the genesis of the ledger. It is a branch because servers protect
branches and no other refs. A push without force is the compare-and-set across clones: if two append
at once, one is refused, and reads the ledger again. If the answer to a push is lost, this clone
asks what the branch holds now.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from rft import files
from rft.errors import InfrastructureError, UserError, did_you_mean
from rft.reports.base import Report
from tasks.ledger import chain, locks, objects
from tasks.ledger.statement import Sha256
from tasks.runs import workspace
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git, git_bytes

FETCHED = "refs/rft/fetched"
FILE = "infra/ledger.yaml"
_PATIENCE_S = 120.0
_HEAD = """\
# The ledger of approvals: `rft ledger` shows it, docs/ledger.md explains it.
# remote: a Git remote that several clones share, such as origin; null: this clone alone.
# genesis: which ledger it is. Written once, when the first person approves: commit it.
"""


class AppendConflict(InfrastructureError):
    """Another clone appended first. Read the ledger again, and decide again."""


class Shared(Report):
    remote: str | None = Field(default=None, min_length=1)
    branch: str = Field(default="rft-ledger", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
    genesis: Sha256 | None = None


def file(clone: Clone) -> str:
    """Return the name of the file that says which ledger it is."""
    is_workspace = (clone.root / workspace.FILE).exists() and not (clone.root / FILE).exists()
    return workspace.FILE if is_workspace else FILE


def shared(clone: Clone) -> Shared:
    """Read which ledger is shared, and where. Raises UserError naming file and key."""
    name = file(clone)
    path = clone.root / name
    if not path.exists():
        return Shared()
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: not YAML ({error}). Restore it: git checkout {name}") from None
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}. Make it readable, or restore it: git checkout {name}") from None
    if name == workspace.FILE:
        raw = (raw.get("ledger") if isinstance(raw, dict) else None) or {}
    try:
        found = Shared.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{name}: {key}: {first['msg']}. Its keys are remote, branch and genesis.") from None
    if found.remote is not None and found.remote not in (known := git(clone.root, "remote").split()):
        raise UserError(
            f"{name}: remote = {found.remote!r} is not a remote of this clone. {did_you_mean(found.remote, known)}"
        )
    return found


def pin(clone: Clone, found: Shared, genesis: str | None) -> None:
    """Write the ledger's genesis into that file."""
    made = found.model_copy(update={"genesis": genesis}).model_dump()
    if file(clone) == workspace.FILE:
        workspace.set_ledger(clone.root, made)
    else:
        files.write_text(_HEAD + yaml.safe_dump(made, sort_keys=False), clone.root / FILE)


def fetch(clone: Clone, found: Shared) -> str | None:
    """Fetch the shared branch. Returns its head; None when there is no branch yet. Raises
    InfrastructureError for a remote that does not answer."""
    assert found.remote
    source = f"+refs/heads/{found.branch}:{FETCHED}"
    command = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", found.remote, source)
    written = (FETCHED, f"refs/remotes/{found.remote}/{found.branch}")  # Git itself writes the second one
    try:
        locks.past(clone, lambda: _ask(clone.root, *command), *written)
    except GitError as error:
        if "couldn't find remote ref" in str(error):
            return None
        raise _unreachable(clone, found, error) from None
    return git(clone.root, "rev-parse", FETCHED)


def push(clone: Clone, found: Shared, new: str) -> None:
    """Append to the shared branch. Raises AppendConflict when another clone was first."""
    assert found.remote
    try:
        _ask(clone.root, "push", "--quiet", found.remote, f"{new}:refs/heads/{found.branch}")
    except GitError as error:
        there = fetch(clone, found)
        if there is not None and is_ancestor(clone, new, there):
            return  # the push had arrived: only the answer was lost
        if there is not None and not is_ancestor(clone, there, new):
            raise AppendConflict(f"another clone appended to the ledger on {found.remote} at the same moment") from None
        raise _unreachable(clone, found, error) from None


def is_ancestor(clone: Clone, old: str, new: str) -> bool:
    with objects.opened(clone) as found:
        return chain.descends(found, new, old)


def _ask(root: Path, *arguments: str) -> None:
    git_bytes(root, *arguments, timeout_s=_PATIENCE_S)


def _unreachable(clone: Clone, found: Shared, error: GitError) -> InfrastructureError:
    message = " ".join(str(error).split()).rstrip(".")
    what = f"the ledger's remote {found.remote} ({file(clone)}) refused or did not answer: {message}"
    return InfrastructureError(f"{what}. Nothing was appended. Try again when it is back.")
