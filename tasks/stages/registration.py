"""Between stages 7 and 8: register the look at the test set before the set is opened."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import Registration
from tasks.display import flow_pages
from tasks.promotion import registration
from tasks.runs import repro
from tasks.runs.run import Run


@task(name="register", task_run_name="register {run.name}", cache_policy=NO_CACHE)
def register_look(run: Run) -> Registration:
    return registration.register(run, flow_pages.also_on_page(repro.listener.get().print_line))
