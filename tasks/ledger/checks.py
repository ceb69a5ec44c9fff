"""What `rft doctor` checks in the ledger: tools, this clone, and the remote that clones share.

The ledger on a remote is a branch, and it is as safe as that branch. A person who can force a push,
or delete the branch and push another, can take entries away. Every clone that saw the entries would
report it, but a new clone could not know. Only the server can forbid it, and only a trial shows
whether it does. So a scratch branch is pushed, replaced by force, and deleted.

Its name is always the same, because a well protected server will not let it be deleted. It begins
like the ledger's branch, so that one pattern (`rft-ledger*`) protects both. A rule for one exact
name cannot be tried on another name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rft import commands
from rft.doctor import Check, Finding
from rft.doctor.finding import Skip, ok, warn
from rft.errors import InfrastructureError, UserError
from tasks.ledger import book, keys, remote, statement
from tasks.ledger.remote import Shared
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git, git_bytes

_PATIENCE_S = 60.0


def checks(clone: Clone) -> tuple[Check, ...]:
    return (
        Check("signing", lambda _: signing(clone), 20),
        Check("ledger", lambda _: ledger(clone), 600),
        Check("remote", lambda setup: protection(clone, setup.announce), 300, ("ledger",)),
    )


def signing(clone: Clone) -> Finding:
    try:
        keys.assert_tools(clone)
    except UserError as error:
        return warn(str(error), "Runs work without it, but none can be approved.")
    git_needed, openssh = (".".join(map(str, oldest)) for oldest in (keys.GIT, keys.OPENSSH))
    return ok(f"Git {git_needed} or later, OpenSSH {openssh} or later")


def ledger(clone: Clone) -> Finding:
    """Check that the ledger verifies, every signature anew, and that this clone may append to
    it."""
    with book.opened(clone, reverify=True, report_line=lambda _: None) as found:
        if not found.stored:
            return ok("not begun: the first approval begins it")
        state, key = found.state, keys.machine(clone).fingerprint
    description = f"{state.number} entries, all verified"
    if doubtful := state.doubtful():
        description += f"; {len(doubtful)} of them are doubtful, by compromised keys: rft ledger"
    if state.policy.machine_of(key) is None:
        return warn(
            f"{description}; this clone's machine key {key} is not enrolled",
            "It may run, but not ask for a promotion. An owner enrols it here: "
            f"{commands.command('ledger people', 'add', '--machine', *commands.WHY)}",
            entries=state.number,
        )
    return ok(description, entries=state.number)


# -- the remote ------------------------------------------------------------------------------------
def protection(clone: Clone, announce: Callable[[str], None]) -> Finding:
    """Check whether the remote would let somebody take entries away."""
    shared = remote.shared(clone)
    if shared.remote is None:
        raise Skip(f"{remote.file(clone)} names no remote: the ledger is this clone's alone")
    branch = f"{shared.branch}-probe"
    announce(f"a scratch branch {branch} is pushed to {shared.remote}, to see whether it may be rewritten")
    push = partial(_push, clone, shared, f"refs/heads/{branch}")
    one, other = _commit(clone), _commit(clone)
    existed = _exists(clone, shared, branch)
    if not existed and not push(one):
        description = f"{shared.remote} refused even the scratch branch {branch}, so nothing could be tried"
        return warn(description, f"See to it yourself that nobody can rewrite or delete {shared.branch} there.")
    forced = push(f"+{other}")
    deleted = push("")
    return _judged(shared, branch, _Tried(forced, deleted))


@dataclass(frozen=True)
class _Tried:
    forced: bool
    deleted: bool

    @property
    def rewritten(self) -> str:
        ways = ((self.forced, "replaced by a forced push"), (self.deleted, "deleted"))
        return " and ".join(how for could, how in ways if could)


def _judged(shared: Shared, branch: str, tried: _Tried) -> Finding:
    facts = {"forced": tried.forced, "deleted": tried.deleted, "branch": branch}
    if not tried.rewritten:
        description = (
            f"{shared.remote} neither let the scratch branch {branch} be rewritten nor deleted; it stays there"
        )
        return ok(description, **facts)
    left = "" if tried.deleted else f" The scratch branch {branch} stays there."
    return warn(
        f"{shared.remote} lets anybody who may push rewrite a branch: {branch} was {tried.rewritten}",
        f"Protect {shared.branch} against forced pushes and deletion. On a bare repository: git config "
        "receive.denyNonFastForwards true && git config receive.denyDeletes true; on a server: its branch protection, "
        f"with the pattern {shared.branch}*, so that this check can see it. A rule for the exact name {shared.branch} "
        f"protects as well, but cannot be seen from {branch}.{left}",
        **facts,
    )


def _commit(clone: Clone) -> str:
    """Make a commit without a parent, so that none of these commits follows another."""
    tree = git(clone.root, "mktree", given=b"")
    message = f"rft doctor: may a branch be rewritten here? This one can be deleted.\n\n{statement.nonce()}"
    return git(clone.root, "commit-tree", tree, "-m", message)


def _exists(clone: Clone, shared: Shared, branch: str) -> bool:
    return bool(_ask(clone, shared, "ls-remote", "--heads", str(shared.remote), f"refs/heads/{branch}"))


def _push(clone: Clone, shared: Shared, ref: str, source: str) -> bool:
    """Push, and say whether the remote accepted it. Raises InfrastructureError if it did not
    answer."""
    try:
        _ask(clone, shared, "push", "--quiet", "--no-verify", str(shared.remote), f"{source}:{ref}")
    except InfrastructureError as error:
        if "rejected]" in str(error):
            return False
        raise
    return True


def _ask(clone: Clone, shared: Shared, *arguments: str) -> bytes:
    try:
        return git_bytes(clone.root, *arguments, timeout_s=_PATIENCE_S)
    except GitError as error:
        if "rejected]" in str(error):
            raise
        what = f"the ledger's remote {shared.remote} ({remote.file(clone)}) did not answer: {error}"
        raise InfrastructureError(f"{what}. Try again when it is back.") from None
