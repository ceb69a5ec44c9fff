"""The flow that moves the champion once a person approves, and the flow that moves it back."""

from __future__ import annotations

from prefect import flow

from tasks.promotion import registry
from tasks.promotion.ledger import Act
from tasks.runs import clone, records


@flow(name="promote")
def promote(run: str, who: str, why: str, override_dirty: bool = False) -> Act:
    here = clone.enter()
    return registry.approve(here, records.find(here, run), who, why, override_dirty)


@flow(name="rollback")
def rollback(model: str, who: str, why: str) -> Act:
    return registry.rollback(clone.enter(), model, who, why)
