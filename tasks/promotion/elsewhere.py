"""Runs of other clones that ask here for a promotion.

This clone has no record of them. But the ledger has their requests. A request brings its revision
with it, unless the revision holds uncommitted code. The revision's message holds the record as it
was when the run ended. So an approver here sees the same as in the run's own clone: the numbers,
the checks, the page, the rollouts. The bytes come from DVC's remote, each compared with its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rft.errors import UserError
from tasks.ledger import book
from tasks.ledger.state import State
from tasks.runs import origin, records, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

ReportLine = Callable[[str], None]


def find(clone: Clone, name: str, report_line: ReportLine = print) -> RunRecord:
    """Find a run by any unique part of its name: a run of this clone, or else one that asks here,
    whose bytes are then fetched. Raises UserError for none, and for several."""
    own = {record.name: record for record in records.load_all(clone)}
    if any(name in known for known in own):
        return own[records.pick([*own], name)]
    every = own | {record.name: record for record in asking(clone, book.latest(clone, report_line).state)}
    found = every[records.pick([*every], name)]
    if found.name not in own:
        transfer.fetch(clone, _revision(clone, found))
    return found


def asking(clone: Clone, state: State) -> Iterator[RunRecord]:
    """Yield the records of other clones' runs that asked in this ledger, oldest first. A run with
    uncommitted code is left out: its revision stays in its own clone."""
    own = {record.name for record in records.load_all(clone)}
    for request in state.requests.values():
        at = Revision(clone, request.act.revision)
        if request.act.run not in own and at.exists():
            own.add(request.act.run)
            try:
                yield origin.recorded(at, request.act.run).model_copy(update={"revision": at.commit})
            except UserError:  # another program wrote no record; an approval says so
                continue


def _revision(clone: Clone, record: RunRecord) -> Revision:
    assert record.revision is not None
    return Revision(clone, record.revision)
