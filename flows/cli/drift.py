"""Compare one window of traffic with what the champion knows.

Nothing else runs, and nothing is recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.options import add_settings
from flows.screen import say
from rft.errors import UserError
from tasks.runs import clone
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from rft import config
    from rft.reports import DriftReport

TRAFFIC = ("reference_profile.json", "current_profile.json", "report.json")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("window", metavar="FILE")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    from flows import settings

    here = clone.enter()
    wanted = settings.resolve(here, options.params, options.overrides)
    path = settings.newest(here, options.window, wanted.recipe.path)
    assert path is not None
    report, _ = check(here, wanted, path)
    tell(here, report)
    return 0


def check(here: Clone, params: config.Params, window: Path) -> tuple[DriftReport, bool]:
    """Return the report, and whether it was made now (or was cached). Raises UserError for a window
    that cannot be read.

    Stage `drift` itself judges, in a scratch folder that holds what the stage would see: the
    champion's profile, and the traffic shelf of the last run, with which the agent's behavior is
    compared. The report is cached under the hash of all that it depends on.
    """
    from rft import reports
    from rft.reports import DriftReport

    if not window.is_file():
        raise UserError(f"{window}: no such file. Name a window of traffic, such as data/inbox/window.jsonl.")
    window = window.resolve()
    own = params.recipe.model_copy(update={"path": str((here.root / params.recipe.path).resolve())})
    params = params.model_copy(update={"recipe": own})
    with tempfile.TemporaryDirectory(dir=_made(here.state)) as scratch, _inside(Path(scratch), here):
        _furnish(here, params, Path(scratch))
        known = here.state / "cache" / f"drift-{_key(params, window)}.json"
        if known.exists():
            return reports.read(DriftReport, known), False
        from rft.stages import drift

        with _quiet():
            report = drift.check(params, window)
    reports.write(report, known)
    return report, True


def tell(here: Clone, report: DriftReport, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    title = f"{report.num_current} conversations against {report.num_reference}"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column in ("feature", "what", "effect", "threshold", "q", ""):
        table.add_column(column, justify="right" if column in ("effect", "threshold", "q") else "left")
    for feature in report.features:
        shapes = ((feature.effect, ".3f"), (feature.threshold, ".3f"), (feature.q_value, ".2g"))
        numbers = ["" if value is None else f"{value:{shape}}" for value, shape in shapes]
        note = "drifted" if feature.drifted else ""
        if feature.effect is None or feature.q_value is None:
            note = escape(feature.detail)
        table.add_row(feature.feature, feature.statistic, *numbers, note)
    console.print(table)
    for contract in report.contracts:
        if not contract.success:
            console.print(f"broken contract: {contract.name} on {contract.column}: {contract.observed}", markup=False)
    console.print(f"\n{report.verdict}: {report.reason}", markup=False, soft_wrap=True)
    if report.data_docs:
        say(f"Data Docs: {here.state / report.data_docs}")


def _furnish(here: Clone, params: config.Params, scratch: Path) -> None:
    """Write what the stage reads: the champion without weights, and the newest traffic shelf."""
    from rft import shelves
    from tasks.promotion import champions
    from tasks.runs import records
    from tasks.runs.artifacts import Revision

    champions.of_params(here, params, say).place(scratch, weights=False)
    for record in reversed(records.load_all(here)):
        if record.revision is None or record.bytes_removed:
            continue
        at = Revision(here, record.revision)
        shelf = {name: at.read(shelves.folder("traffic") / name) for name in TRAFFIC}
        if all(shelf.values()):
            folder = scratch / shelves.folder("traffic")
            folder.mkdir(parents=True)
            for name, content in shelf.items():
                (folder / name).write_bytes(content or b"")
            return


def _key(params: config.Params, window: Path) -> str:
    from rft import needs, progress

    sections = (params.recipe, params.tools, params.drift, params.traffic, params.examples)
    return progress.key(sections, (window, Path(params.recipe.path), Path(needs.DATA), Path(progress.__file__).parent))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the stage's progress lines and Great Expectations' talk of its temporary folders."""
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
