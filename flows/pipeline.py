"""The ladder: one Prefect task per stage. Any of them may end it with its numbers, and that is a
success."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from flows import extension, settings, unattended
from rft.errors import Stopped
from rft.reports import Decision, TrainReport
from tasks.runs import clone
from tasks.stage_runner import recorded
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

UNTIL = {
    "policy": build_policy,
    "baseline": evaluate_baseline,  # with the readiness verdict that `train` obeys
    "prompt": optimize_prompt,
    "train": train_adapter,
}
"""The stages between the examples and the look. `--until` ends a run after one of them, without a
look. The stages after them need the look."""


def _until_it_has_a_name() -> str:
    """Name the flow run until the run begins and gives it its own name (tasks/stage_runner.py)."""
    return f"retrain {flow_run.parameters.get('window') or ''}".rstrip()


def _stopped(why: str) -> State:
    """Return a state that Prefect's page shows as a success that promotes nothing. A drift's reason
    may quote conversations, so it stays in this clone."""
    return Completed(name="Stopped", message=f"stopped {why}")


unattended.told_once()


@flow(
    name="retrain", flow_run_name=_until_it_has_a_name, on_failure=[unattended.failed], on_crashed=[unattended.failed]
)
def retrain(
    window: str | None = None,
    params: str | None = None,
    overrides: tuple[str, ...] = (),
    clean_only: bool = False,
    until: str | None = None,
    extends: str | None = None,
    blocks: int | None = None,
    agent: str | None = None,
) -> Decision | State:
    """Run the ladder. `window` is a file, or a pattern whose last match by name is taken.

    `until` names the last stage. `extends`: a run whose candidates are looked at again, on `blocks`
    more blocks of test examples (flows/extension.py); settings and window are that run's. `agent`:
    its name, where the current folder does not say it.

    Returns a state `Stopped` with the reason if drift said stop, training collapsed or `until` was
    reached, and Cancelled if `run.max_hours` or `rft runs cancel` stopped the run.
    """
    here = clone.enter(agent)
    more = extension.from_run(here, extends, blocks) if extends else None
    wanted = more.params if more else settings.resolve(here, params, overrides)
    file = settings.newest(here, more.extended.asked_window if more else window, wanted.recipe.path)
    try:
        with recorded(here, wanted, file, clean_only, flow_run.id, until, more and more.extended) as run:
            if more:
                run.update(extends=more.extended.name, more_blocks=more.blocks)
            load_traffic(run)  # traffic and champion are files now
            drift = check_drift(run)
            if drift.verdict == "stop":
                run.update(state="stopped", message=drift.reason)
                return _stopped("after drift: its report says what has drifted")
            build_examples(run, refresh=drift.verdict == "refresh")
            for stage, run_stage in UNTIL.items():
                report = run_stage(run)
                if isinstance(report, TrainReport) and report.collapsed:
                    run.update(state="stopped", message=report.reason, until=None)  # it did not get there
                    return _stopped("before the look: training collapsed")
                if stage == until:
                    run.update(state="stopped", message=f"stopped after {until}, as --until asked: no look was taken")
                    return _stopped(f"after {until}, as --until asked")
            if more:
                more.assert_same(run)
            register_look(run)  # the test set is opened only after this
            evaluate_challenger(run)
            return decide(run)  # the champion does not move here: `promote` is another flow
    except Stopped as stop:
        return Cancelled(message=str(stop))
