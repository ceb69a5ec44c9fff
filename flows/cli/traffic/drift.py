"""Compare windows of traffic with what the champion knows, or with an earlier window.

  rft traffic drift data/inbox/2026-W14.jsonl        is this week like the training examples?
  rft traffic drift W14.jsonl --html w14.html        the same with pictures, and conversations
  rft traffic drift W14.jsonl --against W13.jsonl    is this week like the last one?
  rft traffic drift W13.jsonl W14.jsonl --html q.html      several windows, and their course
  rft traffic drift W14.jsonl --json                 the report, for programs
  rft traffic drift --history --html year.html       what the runs of this clone found, over time

Nothing else runs, and nothing is recorded. A feature drifted when its effect is larger than the
smallest that counts (drift.effects, drift.thresholds), and larger than chance allows at the level
of one comparison (drift.alpha). The verdict says what to do: continue, refresh or stop. Whatever it
is, the exit code is 0. docs/drift.md says how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from flows import drift, settings
from flows.cli.options import add_settings, count
from flows.screen import print_line
from rft import config, needs, progress, reports, secrets, stage_files
from rft.errors import UserError
from rft.page import DriftComparison
from rft.reports import DriftReport
from tasks.display import comparisons
from tasks.promotion import champions
from tasks.runs import clone, records, windows
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

TRAFFIC = ("current_profile.json", "report.json")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("windows", metavar="FILE", nargs="*", help="a window of traffic; several are told one by one")
    parser.add_argument("--against", metavar="FILE", help="an earlier window to compare with, in place of the examples")
    parser.add_argument("--history", action="store_true", help="what the runs of this clone found, the latest first")
    parser.add_argument("-n", type=count, metavar="N", help="with --history: the last N windows (default: all)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; of several, a list")
    parser.add_argument("--html", metavar="OUT", type=Path, help="also write a page with pictures")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    _refuse(options)
    return _history(options) if options.history else _windows(options)


def _refuse(options: argparse.Namespace) -> None:
    """Raise UserError for options that do not fit together."""
    if options.history and (options.windows or options.against):
        raise UserError("--history shows what runs found, and compares no FILE. Leave one of them out.")
    if not options.history and not options.windows:
        raise UserError("no FILE. Name a window of traffic, such as data/inbox/window.jsonl, or give --history.")
    if options.n is not None and not options.history:
        raise UserError("-n says how many windows --history shows. Add --history, or leave it out.")


def _windows(options: argparse.Namespace) -> int:
    here = clone.enter()
    wanted = settings.resolve(here, options.params, options.overrides)
    recipe = wanted.recipe.path
    against = settings.newest(here, options.against, recipe)
    comparisons: list[DriftComparison] = []
    for place, given in enumerate(options.windows):
        path = settings.newest(here, given, recipe)
        assert path is not None
        report, _ = check(here, wanted, path, against)
        name = Path(path).name
        comparisons.append(DriftComparison(name, given, report))
        if not options.json:
            if place:
                print_line()
            drift.tell(here, report, name=name)
    if options.json:
        found = [
            comparison.report.model_dump(mode="json") for comparison in comparisons if comparison.report is not None
        ]
        print_line(secrets.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False, indent=1))
    if options.html:
        drift.write_page(options.html, comparisons)
        if not options.json:
            print_line(f"Page: {options.html}")
    return 0


def _history(options: argparse.Namespace) -> int:
    here = clone.enter()
    recipe = champions.model_name(settings.resolve(here, options.params, options.overrides))
    found = comparisons.history(here, recipe, options.n)
    if options.json:
        print_line(secrets.dumps(drift.as_json(found.comparisons), ensure_ascii=False, indent=1))
    else:
        console = Console(highlight=False)
        for line in drift.of_runs(found, recipe):
            console.print(line, soft_wrap=True)
    if options.html:
        drift.write_page(options.html, found.comparisons, f"Drift of {recipe}, run by run", with_features=False)
        if not options.json:
            print_line(f"Page: {options.html}")
    return 0


def check(
    here: Clone, params: config.Params, window: str | Path, against: str | Path | None = None
) -> tuple[DriftReport, bool]:
    """Return the report, and whether it was made now (or was cached). `against`: an earlier window
    to compare with. Raises UserError for a window that cannot be read.

    Stage `drift` itself judges, in a scratch folder that holds what the stage would see: the
    champion's profiles and the traffic of the last run. Before there are profiles, the agent's
    behavior is compared with that traffic. The report is cached under the hash of all that it
    depends on.
    """
    snapshots: list[Path] = []
    for log in (window, against):
        if log is not None:
            any_log = params.traffic.model_copy(update={"sha256": None})
            unpinned = params.model_copy(update={"traffic": any_log})
            snapshots += [path.resolve() for path in windows.take_in(here, unpinned, log, _aside)[1].values()]
    own = params.recipe.model_copy(update={"path": str((here.home / params.recipe.path).resolve())})
    params = params.model_copy(update={"recipe": own})
    with tempfile.TemporaryDirectory(dir=_made(here.state)) as scratch, _inside(Path(scratch), here):
        _furnish(here, params, Path(scratch))
        known = here.state / "cache" / f"drift-{_key(params, snapshots)}.json"
        if known.exists():
            return reports.read(DriftReport, known), False
        from rft.stages import drift

        with _quiet():
            report = drift.check(params, *snapshots)
    reports.write(report, known)
    return report, True


def _furnish(here: Clone, params: config.Params, scratch: Path) -> None:
    """Write what the stage reads: the champion without weights, and the newest files of traffic."""
    champions.of_params(here, params, print_line).place(scratch, weights=False)
    for record in reversed(records.of_agent(here)):
        if record.revision is None or record.bytes_removed:
            continue
        at = Revision(here, record.revision)
        traffic_files = {name: at.read(stage_files.folder("traffic") / name) for name in TRAFFIC}
        if all(traffic_files.values()):
            folder = scratch / stage_files.folder("traffic")
            folder.mkdir(parents=True)
            for name, content in traffic_files.items():
                (folder / name).write_bytes(content or b"")
            return


def _key(params: config.Params, snapshots: list[Path]) -> str:
    sections = (params.recipe, params.tools, params.drift, params.traffic, params.examples)
    return progress.key(
        sections, (*snapshots, Path(params.recipe.path), Path(needs.DATA), Path(progress.__file__).parent)
    )


def _aside(line: str) -> None:
    """Report long work on stderr, where it disturbs no output."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the stage's progress lines, and Great Expectations' lines about temporary folders."""
    logging.disable(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _inside(folder: Path, here: Clone) -> Iterator[None]:
    before, state = Path.cwd(), os.environ.get("RFT_STATE")
    os.environ["RFT_STATE"] = str(here.state)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("RFT_STATE")
        if state is not None:
            os.environ["RFT_STATE"] = state


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
