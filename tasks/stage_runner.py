"""What all stages have in common, so that the task of a stage is a few lines.

`recorded` opens a run and its MLflow run, and writes the HTML page at the end of the ladder. It
tells people about a request that waits for them, and tells MLflow and a lineage catalog how the run
ended. `drive_stage` brings one stage up to date, reads its report, and shows its numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import yaml

from rft import commands, config, lines, page, reports, secrets, stage_files
from rft.errors import RftError, Stopped
from rft.formatting import counted
from tasks import notify
from tasks.display import comparisons, flow_pages, markdown, tracking
from tasks.display.tracking import Tracker
from tasks.ledger import book
from tasks.promotion import acts, champions, projections
from tasks.provenance import live
from tasks.runs import artifacts, champion, outbox, records, repro
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord
from tasks.runs.run import Run

R = TypeVar("R", bound=reports.Report)
Numbers = Mapping[str, reports.Metric | float | None]
opened: list[str] = []
"""The names of the runs that this process opened, in order."""


@contextlib.contextmanager
def recorded(
    clone: Clone,
    params: config.Params,
    window: str | Path | None,
    clean_only: bool = False,
    flow_run_id: str | None = None,
    until: str | None = None,
    code: RunRecord | None = None,
) -> Iterator[Run]:
    """Open a run of these settings, and record how it was asked for. It runs the code of an earlier
    run (`code`), or that of the working tree. With `clean_only`, as on a schedule, raises UserError
    for a dirty tree."""
    report_line = flow_pages.also_on_page(repro.listener.get().print_line)
    live.check(clone, params.run.openlineage)
    plan = runs.plan(
        clone, params, champions.of_params(clone, params, report_line), window, clean_only, code, report_line
    )
    for problem in projections.reconcile(clone, report_line):
        report_line(f"[ledger] {problem}. It is tried again at the next start")
    anchor = champions.anchor(clone)
    run: Run | None = None
    try:
        with runs.start(clone, plan) as run:
            opened.append(run.name)
            repro.load(run.dvc, run.tree, clone.state, run.name, run.deadline)
            asked = commands.from_the_top(clone.home, str(window)) if window else None
            run.update(
                flow_run_id=flow_run_id,
                settings=commands.remembered(),
                asked_window=asked,
                clean_only=clean_only,
                until=until,
                ledger=anchor,
            )
            report_line(f"[run] {run.name}{_opening(run)}")
            flow_pages.rename(f"retrain {run.name}{', adopted' if run.adopted else ''}", report_line)
            _tell_ends(clone)
            run.tracker = Tracker(run, champions.model_name(params), report_line)
            run.tracker.settings(plan.params.identity(), _tags(run))
            run.lineage = live.begin(run, champions.model_name(params), params.run.openlineage, report_line)
            if run.record.start is None:
                run.update(start=acts.start(clone, champions.model_name(params), run.record, report_line))
            try:
                yield run
                _show(run)
            finally:
                run.tracker.settle()
    except BaseException:
        with contextlib.suppress(Exception):  # the run's own error counts, not one from reporting it
            _end(run)
        raise
    _ask(clone, params, run.record, report_line)
    _end(run)


def _ask(clone: Clone, params: config.Params, record: RunRecord, report_line: Callable[[str], None]) -> None:
    """Request the promotion of what the gate would promote. A failure here fails no run."""
    if record.decision != "promote":
        return
    try:
        request = acts.request_promotion(clone, record, report_line)
    except RftError as error:
        report_line(f"[ledger] nobody is asked to approve run {record.name} yet: {error}")
        return
    report_line(f"[ledger] entry {request.number}: run {record.name} waits for approval until {request.act.expires}")
    policy = book.read(clone, report_line=report_line).state.policy
    approvers = policy.holders("owner", "approver") or None
    notify.request_waits(clone, params.run.notify, record, request.act, approvers)


def drive_stage(run: Run, stage: str, kind: type[R], numbers: Callable[[R], Numbers], file: str = "report.json") -> R:
    """Bring a stage up to date, read its report, and show its numbers. Raises what
    `repro_stage` raises."""
    with run.tracker.live() as live, _timed(run, stage):

        def on_line(line: str) -> bool:
            """Catch the line that says where the metrics of the running stage are."""
            if found := lines.METRICS.match(line):
                live.follow(Path(found[1]), _prefix(stage, Path(found[1])))
            return found is not None

        how = repro_stage(run, stage, on_line)
    report = reports.read(kind, run.stage_folder(stage) / file)
    run.found.append(report)
    found = numbers(report)
    run.tracker.stage(stage, how, found)
    flow_pages.artifact(markdown.of_stage(stage, how, found), repro.listener.get().print_line)
    return report


def _prefix(stage: str, path: Path) -> str:
    """Name the numbers of a file after the stage, and after the folder in its work that holds them:
    those of a warm start within `train` are `train/warm_start/...`."""
    part = path.parent.name
    return f"{stage}/" if part.startswith(f"{stage}-") else f"{stage}/{part}/"


def repro_stage(run: Run, stage: str, on_line: Callable[[str], bool] | None = None) -> repro.How:
    """Bring the stage's files up to date.

    Raises StageFailed with the stage's own message, and Stopped when run.max_hours is spent or the
    run was cancelled. That happens before the stage, at one of its checkpoints, or at once by `rft
    runs cancel --now`. A stage's own error is raised even while the run is being cancelled: its
    owner must hear of a grader that is down.
    """
    try:
        run.check(f"before stage {stage}")
        log, note = run.clone.log(run.name, stage), partial(runs.note_group, run)
        shown = flow_pages.FlowLines()
        shown.begin(stage)

        def on_each_line(line: str) -> bool:
            if on_line and on_line(line):
                return True
            shown.on_line(line)
            return False

        with live.stage(run, stage) as completed:
            outcome = repro.repro(
                run.tree,
                stage,
                run.clone.state,
                run.name,
                log=log,
                note_group=note,
                on_line=on_each_line,
                deadline=run.deadline,
                loaded=run.dvc,
            )
            completed(outcome.how)
        shown.end(outcome.how)
    except repro.StageKilled:
        if run.cancelled:
            raise Stopped(f"during stage {stage}") from None
        raise
    # an adopted run that was cut off finds its own finished work as "unchanged"
    ran = "ran" in (outcome.how, run.record.stages.get(stage))
    run.update(stages=run.record.stages | {stage: "ran" if ran else outcome.how})
    return outcome.how


@contextlib.contextmanager
def _timed(run: Run, stage: str) -> Iterator[None]:
    """Add the block's wall time to the run's record, however it ends."""
    began = time.monotonic()
    try:
        yield
    finally:
        spent = run.record.seconds.get(stage, 0.0) + time.monotonic() - began
        run.update(seconds=run.record.seconds | {stage: round(spent, 1)})


def _opening(run: Run) -> str:
    text, edited = "", run.record.edited
    if run.adopted:
        text = ", adopted: it was cut off, and goes on"
        if run.max_hours is not None:
            text += f" ({run.record.spent_s / 3600:.2g} hours of work so far)"
    if run.record.dirty:
        text += f", with uncommitted {', '.join(edited[:3])}{' and more' if len(edited) > 3 else ''}: dirty"
    return text


def _tags(run: Run) -> dict[str, str]:
    record = run.record
    return {
        "run": record.name,
        tracking.NOTE: markdown.of_run(record, run.found),
        "git_commit": record.commit,
        "edits_sha256": record.edits_sha256 or "none",
        "ledger": record.ledger or "none",
        "window": record.window,
        "champion_version": str(record.champion_version),
        "started_by": record.started_by,
        "prefect_flow_run_id": record.flow_run_id or "none",
    }


def write_page(clone: Clone, record: RunRecord, root: Path, opened: int | None = None) -> Path:
    """Write the HTML page of a run, from the files below `root`. `opened` is the ledger's entry
    that lets the page show the test set. Such a page has a path of its own, and MLflow never gets
    it."""
    recipe = _recipe(clone, record, root)
    facts = {
        "run": record.name,
        "recipe": recipe,
        "commit": record.commit[:10],
        "window": record.window,
        "champion": champion.describe(record.champion_version),
        "started": f"{record.started} by {record.started_by}",
        "dirty": f"yes: {counted(len(record.edited), 'uncommitted file')}" if record.dirty else "no",
        "uncommitted": ", ".join(record.edited),
        "stopped": record.message if record.until and record.state == "stopped" else "",
        "again": record.again,
    }
    spent = {stage: page.Spent(seconds, record.stages.get(stage, "")) for stage, seconds in record.seconds.items()}
    path = clone.page(record.name if opened is None else f"{record.name}.test")
    path.parent.mkdir(parents=True, exist_ok=True)
    course = comparisons.with_own(clone, record, root, record.agent or Path(recipe).name)
    path.write_text(secrets.redact(page.render(root, facts, spent, opened, course)), encoding="utf-8")
    return path


def _recipe(clone: Clone, record: RunRecord, root: Path) -> str:
    """Return the recipe's folder, from the settings that the run had."""
    file, text = root / "params.yaml", None
    if file.exists():
        text = file.read_bytes()
    elif record.revision:
        text = Revision(clone, record.revision).file("params.yaml")
    return str((yaml.safe_load(text or b"") or {}).get("recipe", {}).get("path", ""))


def _end(run: Run | None) -> None:
    """Show how the run ended: first its state, so that it is shown even if the description
    fails."""
    live.end(run)
    if run is not None and run.tracker is not None:
        try:
            run.tracker.tag(state=run.record.state, outcome=markdown.outcome(run.record))
            run.tracker.end(run.record.state)
            run.tracker.tag(**_lineage(run.clone, run.record))
            told = markdown.of_run(run.record, run.found)
            run.tracker.tag(**{tracking.NOTE: told})
        finally:
            run.tracker.close()
        about = f"How run {run.name} came out."
        flow_pages.artifact(told, repro.listener.get().print_line, f"report-{run.name}", about)
    flow_pages.end()


def _lineage(clone: Clone, record: RunRecord) -> dict[str, str | None]:
    """Return the hashes by which a run that is over can be found and audited."""
    if record.revision is None:
        return {}
    at = Revision(clone, record.revision)
    environment = at.file(str(stage_files.ENVIRONMENT))
    return {
        "revision": at.commit,
        "dvc.lock_sha256": at.lock_sha256,
        "environment_sha256": None if environment is None else hashlib.sha256(environment).hexdigest(),
    }


def _tell_ends(clone: Clone) -> None:
    """Queue for MLflow how earlier runs ended, where they could not say so themselves."""
    owed = outbox.owed(clone, tracking.FOLDER)
    for record in records.load_all(clone) if owed else ():
        with contextlib.suppress(RftError, OSError, StopIteration):
            if record.name in owed and record.over and not tracking.says_its_end(clone, record):
                note = {tracking.NOTE: markdown.of_run(record, []), "state": record.state}
                page = clone.page(record.name)
                with contextlib.suppress(RftError, OSError):
                    page = page if page.exists() else page_again(clone, record)
                tracking.tell_end(clone, record, note | _lineage(clone, record), page)


def page_again(clone: Clone, record: RunRecord, opened: int | None = None) -> Path:
    """Write the page of a run from its revision."""
    assert record.revision is not None
    with tempfile.TemporaryDirectory(dir=clone.state) as scratch:
        artifacts.restore(Revision(clone, record.revision), Path(scratch))
        return write_page(clone, record, Path(scratch), opened)


def _show(run: Run) -> None:
    run.tracker.page(write_page(run.clone, run.record, run.tree))


__all__ = ["Numbers", "drive_stage", "opened", "page_again", "recorded", "repro_stage", "write_page"]
