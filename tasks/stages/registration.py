"""Between stages 7 and 8: the look at the test set is registered before the set is opened."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft.reports import Registration
from tasks.promotion import registration
from tasks.runs import repro
from tasks.runs.run import Run


@task(name="register", cache_policy=NO_CACHE)
def register_look(run: Run) -> Registration:
    return registration.register(run, repro.listener.get().say)
