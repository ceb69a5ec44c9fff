"""How a recorded run began, read only from its revision in Git.

A promotion depends on how its run began: from which champion, with which uncommitted work, and who
started it. This clone's record of the run (records.py) is a file that anybody can change in an
editor. So the ledger gets what the revision says, and the record only finds the revision:

    what was edited   The difference between the run's commit and the commit at which it began. It
                      also reveals a record that was changed before the run ended.
    its champion      champion.json, as the run's stages read it.
    key, who, start   From the record in the commit's message. The key and the name are claims.
                      `start` is more than a claim: it is a signature over the run's key and its
                      model, which the ledger verifies. Without it the starter counts as unknown,
                      which takes one approver more where four eyes are the rule. So removing it
                      gains nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rft import commands, reports
from rft.errors import UserError
from tasks.runs import champion, edits
from tasks.runs.artifacts import Revision
from tasks.runs.records import RunRecord


@dataclass(frozen=True)
class Origin:
    edited: tuple[str, ...]
    edits_sha256: str | None
    """The hash of the difference as a patch; None: a commit holds all the code."""
    champion: int
    """The number of the champion that it was judged against."""
    key: str
    started_by: str
    start: dict[str, Any] | None
    """The signed statement that says who started it."""


def from_revision(at: Revision, run: str) -> Origin:
    """Read how a run began. Raises UserError for a revision that is not this run's."""
    told = recorded(at, run)
    found = edits.between(at.clone, f"{at.commit}^1", at.commit, told.folder)
    return Origin(
        edited=found.changed or tuple(told.edited),
        edits_sha256=found.sha256 or told.edits_sha256,
        champion=champion.number(champion.began_with(at).version),
        key=told.key,
        started_by=told.started_by,
        start=told.start,
    )


def recorded(at: Revision, run: str) -> RunRecord:
    """Return the record as it was when the run ended, from its commit's message. Raises UserError
    for a revision that is not this run's."""
    what = f"revision {at.commit[:10]}, which this clone's record names for run {run},"
    remedy = (
        f"Find the right one: git for-each-ref 'refs/exps/*/*/{run}'; or start a new run: {commands.command('run')}"
    )
    _, _, message = at.clone.git("cat-file", "commit", at.commit).partition("\n\n")  # no setting changes it
    body = message.partition("\n\n")[2]
    try:
        told, _ = json.JSONDecoder().raw_decode(body)
        record = reports.parse(RunRecord, json.dumps(told).encode(), f"the message of revision {at.commit[:10]}")
    except (ValueError, ValidationError):
        raise UserError(f"{what} does not say how the run began: it is not a run's. {remedy}") from None
    if record.name != run:
        raise UserError(f"{what} is that of run {record.name}. {remedy}")
    return record
