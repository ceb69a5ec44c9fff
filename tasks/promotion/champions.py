"""The champion of a model, from the ledger."""

from __future__ import annotations

from collections.abc import Callable

from rft import config
from rft.errors import removed
from tasks.ledger import book
from tasks.ledger.facts import BEGINNING
from tasks.ledger.state import State
from tasks.runs import champion, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.champion import Served
from tasks.runs.clone import Clone


def model_name(params: config.Params) -> str:
    return params.agent_name


def served(clone: Clone, state: State, model: str) -> Served:
    """Return what is served now."""
    return at(clone, state, state.champion(model))


def at(clone: Clone, state: State, number: int) -> Served:
    """Return the champion that a promotion made; 0 is the beginning."""
    if number == BEGINNING:
        return champion.BEGINNING
    made = state.promotions[number]
    revision = Revision(clone, made.revision)
    transfer.fetch(clone, revision)
    return champion.from_revision(revision, made.run, number)


def of_params(clone: Clone, params: config.Params, report_line: Callable[[str], None] = print) -> Served:
    """Return the champion with which a run of these settings begins, and fetch its bytes. A remote
    that does not answer does not stop a run. Its challenger is judged against the champion that
    this clone knows, and cannot be promoted if that was not the champion."""
    state = book.latest(clone, report_line).state
    if state.number == 0 and (record := clone.state / "ledger.jsonl").exists():
        remedy = "To begin a ledger without it, move it away: what was approved then no longer counts."
        raise removed(f"{record}, a record of approvals,", remedy)
    return served(clone, state, model_name(params))


def anchor(clone: Clone) -> str | None:
    """Return the ledger's last entry, which a run's revision names."""
    state = book.read(clone).state
    return f"{state.number} {state.head}" if state.number else None
