"""What the ledger counts on, where every clone can fetch it: bytes at DVC's remote, and the chain.

The bytes are outputs of runs, and the lists of test examples behind looks. If infra/ledger.yaml
names a remote, they are pushed before the entry that counts on them is appended. Requests,
champions and lists from before it named one are not at the remote. So they are pushed before the
first push of the ledger, with any act. `rft ledger share` does the same on demand. It is needed if
a clone without these bytes shared the ledger, or if the DVC remote was named late.
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
    """Upload what others need of this ledger, as far as this clone has it. Returns the runs whose
    bytes are at DVC's remote now. Raises UserError without a remote, and InfrastructureError when
    the upload fails."""
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
    """Push the bytes that the ledger counts on, before it is shared for the first time. Call before
    an act, without the ledger's lock."""
    if remote.shared(clone).remote is None:
        return
    ledger = book.read(clone, report_line=report_line)
    if not ledger.at_remote:
        _push(clone, ledger.state, report_line)


def fetch(at: Revision, request: RequestState, machine: str) -> None:
    """Fetch the bytes of a request. Raises InfrastructureError; for a shared ledger it names the
    clone that has them."""
    why = "they were never pushed, or removed"  # `dvc fetch` does not always fail then
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
    """Return revision -> run, for the requests that people can still decide on, and for every
    champion that is served or that rollbacks can reach."""
    found = {request.act.revision: request.act.run for request, _ in request_status.open_requests(state, state.time)}
    for model in state.moves:
        number = state.champion(model)
        while number != BEGINNING:
            made = state.promotions[number]
            found[made.revision] = made.run
            number = made.before
    return found
