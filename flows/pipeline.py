"""The ladder: one Prefect task per stage. Any of them may end it with its numbers, and that is a
success."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows import settings, unattended
from rft.errors import Stopped
from rft.reports import Decision
from tasks.ladder import recorded
from tasks.runs import clone
from tasks.stages.baseline import evaluate_baseline
from tasks.stages.challenger import evaluate_challenger
from tasks.stages.drift import check_drift
from tasks.stages.examples import build_examples
from tasks.stages.gate import decide
from tasks.stages.policy import build_policy
from tasks.stages.prompt import optimize_prompt
from tasks.stages.registration import register_look
from tasks.stages.traffic import load_traffic
from tasks.stages.train import train_adapter


@flow(name="retrain", on_failure=[unattended.failed], on_crashed=[unattended.failed])
def retrain(
    window: str | None = None, params: str | None = None, overrides: tuple[str, ...] = (), clean_only: bool = False
) -> Decision | State | None:
    """Run the ladder. `window` is a file, or a pattern whose last match by name is taken.

    Returns None if drift said stop, and Cancelled with the reason if `run.max_hours` or
    `rft cancel` stopped the run.
    """
    here = clone.enter()
    wanted = settings.resolve(here, params, overrides)
    try:
        with recorded(here, wanted, settings.newest(here, window, wanted.recipe.path), clean_only, flow_run.id) as run:
            load_traffic(run)  # traffic and champion are files now
            drift = check_drift(run)
            if drift.verdict == "stop":
                run.update(state="stopped", message=drift.reason)
                return None
            build_examples(run, refresh=drift.verdict == "refresh")
            build_policy(run)
            evaluate_baseline(run)  # with the readiness verdict that `train` obeys
            optimize_prompt(run)
            train_adapter(run)
            register_look(run)  # the test set is opened only after this
            evaluate_challenger(run)
            return decide(run)  # the champion does not move here: `promote` is another flow
    except Stopped as stop:
        return Cancelled(message=str(stop))
