"""What the ledger counts on, where every clone can fetch it: bytes at DVC's remote, and the chain.

These are the outputs of runs, and the lists of test examples behind looks. Where infra/ledger.yaml
names a remote, they are pushed before the entry that counts on them is appended. What was made
before it named one is not at the remote: requests, champions, lists. So the push that shares a
ledger for the first time, whatever act it is for, is preceded by these bytes. `rft ledger share`
does the same by name: for a ledger that came to the remote from a clone that lacks them, or a DVC
remote that was named late.
"""

from __future__ import annotations

from collections.abc import Callable

from rft import commands
from rft.errors import InfrastructureError, UserError
from tasks.ledger import book, fate, remote
from tasks.ledger.facts import BEGINNING, Waiting
from tasks.ledger.state import State
from tasks.promotion import counting
from tasks.runs import transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

Say = Callable[[str], None]


def share(clone: Clone, said: Say = print) -> list[str]:
    """Upload what others need of this ledger, and this clone has. Returns the runs whose bytes are
    at DVC's remote now. Raises UserError without a remote, InfrastructureError when it fails."""
    found = remote.shared(clone)
    if found.remote is None:
        raise UserError(
            f"{remote.FILE} names no remote, so there is nobody to share with. Write `remote: NAME` there, with one of "
            "git remote"
        )
    runs = _push(clone, book.latest(clone, said).state, said)
    with book.opened(clone, said=said) as ledger:
        if ledger.head is not None:
            remote.push(clone, found, ledger.head)
            ledger.at_remote = True
            ledger.remember()
    return runs


def before_first_push(clone: Clone, said: Say) -> None:
    """Call before an act, without the ledger's lock. Does nothing once the ledger is shared."""
    if remote.shared(clone).remote is None:
        return
    ledger = book.read(clone, said=said)
    if not ledger.at_remote:
        _push(clone, ledger.state, said)


def fetch(at: Revision, waiting: Waiting, machine: str) -> None:
    """Fetch the bytes of a request. Raises InfrastructureError, which names the clone that has them
    where the ledger is shared."""
    why = "they were never pushed, or removed"  # `dvc fetch` does not always make an error of it
    try:
        transfer.fetch(at.clone, at)
    except InfrastructureError as error:
        if remote.shared(at.clone).remote is None:
            raise
        why = str(error)
    if not at.is_cached() and remote.shared(at.clone).remote is not None:
        raise InfrastructureError(
            f"the bytes of run {waiting.act.run} are not in this clone, nor all at DVC's remote: {why.rstrip('.')}. "
            f"In the clone that asked for its promotion, which is machine {machine} of the ledger: "
            f"{commands.command('ledger', 'share')}"
        )


def _push(clone: Clone, state: State, said: Say) -> list[str]:
    counting.share(clone, state, said)
    pushed: list[str] = []
    for revision, run in _counted_on(state).items():
        at = Revision(clone, revision)
        if not (at.exists() and at.is_cached()):
            said(f"[ledger] the bytes of run {run} are not in this clone, so it cannot share them")
            continue
        transfer.push(clone, revision)
        said(f"[ledger] the bytes of run {run} are at DVC's remote")
        pushed.append(run)
    return pushed


def _counted_on(state: State) -> dict[str, str]:
    """Revision -> run: requests that people can still decide on, and every champion that is served
    or that rollbacks lead to."""
    found = {waiting.act.revision: waiting.act.run for waiting, _ in fate.open_requests(state, state.time)}
    for model in state.moves:
        number = state.champion(model)
        while number != BEGINNING:
            made = state.promotions[number]
            found[made.revision] = made.run
            number = made.before
    return found
