"""The flow that makes a run the champion once enough people have signed."""

from __future__ import annotations

from prefect import flow

from flows.screen import say
from tasks.promotion import acts
from tasks.promotion.acts import Outcome
from tasks.runs import clone


@flow(name="promote")
def promote(run: str) -> Outcome:
    return acts.promote(clone.enter(), run, say)
