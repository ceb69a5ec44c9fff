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
from tasks.ledger import book, remote, request_status
from tasks.ledger.facts import BEGINNING, RequestState
from tasks.ledger.state import State
from tasks.promotion import counting
from tasks.runs import transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

ReportLine = Callable[[str], None]


def share(clone: Clone, report_line: ReportLine = print) -> list[str]:
    """Upload what others need of this ledger, and this clone has. Returns the runs whose bytes are
    at DVC's remote now. Raises UserError without a remote, InfrastructureError when it fails."""
    found = remote.shared(clone)
    if found.remote is None:
        raise UserError(
            f"{remote.file(clone)} names no remote, so there is nobody to share with. Write `remote: NAME` there, with "
            "one of git remote"
        )
    runs = _push(clone, book.latest(clone, report_line).state, report_line)
    with book.opened(clone, report_line=report_line) as ledger:
        if ledger.head is not None:
            remote.push(clone, found, ledger.head)
            ledger.at_remote = True
            ledger.remember()
    return runs


def before_first_push(clone: Clone, report_line: ReportLine) -> None:
    """Call before an act, without the ledger's lock. Does nothing once the ledger is shared."""
    if remote.shared(clone).remote is None:
        return
    ledger = book.read(clone, report_line=report_line)
    if not ledger.at_remote:
        _push(clone, ledger.state, report_line)


def fetch(at: Revision, request: RequestState, machine: str) -> None:
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
            f"the bytes of run {request.act.run} are not in this clone, nor all at DVC's remote: {why.rstrip('.')}. "
            f"In the clone that asked for its promotion, which is machine {machine} of the ledger: "
            f"{commands.command('ledger', 'share')}"
        )


def _push(clone: Clone, state: State, report_line: ReportLine) -> list[str]:
    counting.share(clone, state, report_line)
    pushed: list[str] = []
    for revision, run in _counted_on(state).items():
        at = Revision(clone, revision)
        if not (at.exists() and at.is_cached()):
            report_line(f"[ledger] the bytes of run {run} are not in this clone, so it cannot share them")
            continue
        transfer.push(clone, revision)
        report_line(f"[ledger] the bytes of run {run} are at DVC's remote")
        pushed.append(run)
    return pushed


def _counted_on(state: State) -> dict[str, str]:
    """Revision -> run: requests that people can still decide on, and every champion that is served
    or that rollbacks lead to."""
    found = {request.act.revision: request.act.run for request, _ in request_status.open_requests(state, state.time)}
    for model in state.moves:
        number = state.champion(model)
        while number != BEGINNING:
            made = state.promotions[number]
            found[made.revision] = made.run
            number = made.before
    return found
