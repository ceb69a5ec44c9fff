"""The flow that makes a run the champion once enough people have signed."""

from __future__ import annotations

from prefect import flow

from flows.screen import print_line
from tasks.display import flow_pages
from tasks.promotion import acts
from tasks.promotion.acts import Outcome
from tasks.runs import clone


@flow(name="promote", flow_run_name="promote {run}")
def promote(run: str) -> Outcome:
    try:
        return acts.promote(clone.enter(), run, flow_pages.also_on_page(print_line))
    finally:
        flow_pages.end()
