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
    """Return the report, and whether it was made now or is known from before. Raises UserError for
    a window that cannot be read.

    The judgement is stage `drift`'s own. It is made in a scratch folder that holds what the stage
    would see: the champion's profile, and the traffic shelf of the last run, which is what the
    agent's habits are compared with. It is kept under the hash of all that it depends on.
    """
    from rft import reports
    from rft.reports import DriftReport

    if not window.is_file():
        raise UserError(f"{window}: no such window of traffic.")
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
    table = Table(
        box=None,
        pad_edge=False,
        title=f"{report.num_current} conversations against {report.num_reference}",
        title_justify="left",
    )
    for column in ("feature", "what", "effect", "threshold", "q", ""):
        table.add_column(column, justify="right" if column in ("effect", "threshold", "q") else "left")
    for one in report.features:
        numbers = [
            "" if value is None else f"{value:{shape}}"
            for value, shape in ((one.effect, ".3f"), (one.threshold, ".3f"), (one.q_value, ".2g"))
        ]
        is_compared = one.effect is not None and one.q_value is not None
        table.add_row(
            one.feature,
            one.statistic,
            *numbers,
            ("drifted" if one.drifted else "") if is_compared else escape(one.detail),
        )
    console.print(table)
    for contract in report.contracts:
        if not contract.success:
            console.print(f"broken contract: {contract.name} on {contract.column}: {contract.observed}", markup=False)
    console.print(f"\n{report.verdict}: {report.reason}", markup=False, soft_wrap=True)
    if report.data_docs:
        say(f"Data Docs: {here.state / report.data_docs}")


def _furnish(here: Clone, params: config.Params, scratch: Path) -> None:
    """What stage `traffic` would find there: the champion without its weights, and the shelf of the
    last run that came so far."""
    from rft import shelves
    from tasks.promotion import registry
    from tasks.runs import records
    from tasks.runs.artifacts import Revision

    registry.served(here, params).place(scratch, weights=False)
    for record in reversed(records.load_all(here)):
        shelf = (
            {}
            if record.revision is None or record.bytes_removed
            else {name: Revision(here, record.revision).read(shelves.folder("traffic") / name) for name in TRAFFIC}
        )
        if shelf and all(shelf.values()):
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
    """Without the stage's progress lines and Great Expectations' account of its temporary folders:
    `tell` shows what was found."""
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
