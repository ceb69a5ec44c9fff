"""Show what `rft traffic drift` found: a table for people, JSON for programs, a page with pictures.

The table has the page's groups: the input, the agent, its performance. Each group is divided by
what the window was compared with. Features that drifted come first, each with a line that says what
moved. `brief` shows the verdict and a few rows, for commands that are not about drift.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rft import files, secrets
from rft.errors import UserError
from rft.formatting import counted
from rft.page import DriftComparison, drift, drift_comparisons
from rft.reports import DriftReport, FeatureDrift, drift_wording
from tasks.display.comparisons import History
from tasks.runs.clone import Clone

_COLORS = {"good": "green", "bad": "red", "open": "yellow", "off": ""}
_NARROWEST = 60
_BRIEF = 4
"""Rows of the short form."""


def tell(here: Clone, report: DriftReport, console: Console | None = None, name: str = "") -> None:
    """Print one report."""
    console = console or Console(highlight=False)
    for line in lines(report, console.width, name):
        console.print(line, soft_wrap=True)
    if report.data_docs:
        console.print(f"Data Docs: {here.state / report.data_docs}", markup=False, soft_wrap=True)


def lines(report: DriftReport, width: int = 0, name: str = "") -> Iterator[Text]:
    """Yield the table, then what is wrong with the log, then the verdict."""
    width = max(width or shutil.get_terminal_size().columns, _NARROWEST)
    yield _text(f"{name}: {drift_wording.size(report)}" if name else drift_wording.size(report), "bold")
    widths = _widths(report.features)
    for part in drift_wording.sections(report):
        for compared in part.compared:
            yield Text()
            yield _text(f"{part.title} {compared.title}", "bold")
            for feature in compared.features:
                yield from _row(feature, widths, width)
    broken = [contract for contract in report.contracts if not contract.success]
    if broken:
        yield Text()
    for contract in broken:
        yield _text(f"broken contract: {contract.name} on {contract.column}: {contract.observed}", "red")
    yield Text()
    yield from _verdict(report)


def brief(report: DriftReport, all_of_it: str, width: int = 0) -> Iterator[Text]:
    """Yield the verdict, the features that drifted farthest or came nearest to it, and how many
    more were compared. `all_of_it`: the command that shows them all."""
    width = max(width or shutil.get_terminal_size().columns, _NARROWEST)
    yield next(_verdict(report))
    shown = drift_wording.farthest(report, _BRIEF)
    for feature in shown:
        yield from _row(feature, _widths(shown), width, f", against {drift_wording.AGAINST[feature.against]}")
    rest = sum(feature.effect is not None for feature in report.features) - len(shown)
    drifted = sum(feature.drifted for feature in report.features) - sum(feature.drifted for feature in shown)
    also = f", {drifted:,} of them drifted" if drifted else ""
    yield _text(f"{counted(rest, 'more comparison')}{also}; all with their numbers: {all_of_it}")


def _verdict(report: DriftReport) -> Iterator[Text]:
    tone, _ = drift_wording.VERDICTS[report.verdict]
    yield _text(f"{report.verdict}: ", _COLORS[tone]).append_text(_text(report.advice or report.reason))
    if report.advice:
        yield _text(report.reason)


def _widths(features: Sequence[FeatureDrift]) -> list[int]:
    return [max((len(cell) for cell in column), default=0) for column in zip(*map(_cells, features), strict=True)]


def _cells(feature: FeatureDrift) -> tuple[str, ...]:
    q = "" if feature.q_value is None else f"q {feature.q_value:.2g}"
    return feature.feature, drift_wording.measured(feature), q, drift_wording.state(feature)


def _row(feature: FeatureDrift, widths: Sequence[int], width: int, aside: str = "") -> Iterator[Text]:
    state = drift_wording.state(feature)
    name, measured, q, word = _cells(feature)
    aligned = f"{name:<{widths[0]}}  {measured:>{widths[1]}}  {q:<{widths[2]}}  {word}{aside}"
    yield _text(f"  {drift_wording.SIGNS[state]} {aligned}".rstrip(), _COLORS[drift_wording.TONES[state]])
    if state in ("as before", "too small to count"):
        return
    told = feature.detail
    if state != "not compared":
        told = f"{drift_wording.named(feature.feature)}: {feature.detail or drift_wording.effect(feature)}"
    for line in textwrap.wrap(told, width - 6):
        yield _text(f"      {line}")


def of_runs(found: History, recipe: str) -> Iterator[Text]:
    """Yield a table of the runs, the latest first."""
    rows = [_run(comparison) for comparison in reversed(found.comparisons)]
    if not rows:
        yield _text(f"No run of recipe {recipe} has a drift report yet.")
    else:
        head = ("run", "window", "verdict", "farthest of the input")
        widths = [max(map(len, column)) for column in zip(head, *(row for row in rows), strict=True)]
        for place, row in enumerate([head, *rows]):
            aligned = "  ".join(f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True)).rstrip()
            yield _text(aligned, "" if place else "bold")
    if found.without:
        yield _text(f"\n{counted(found.without, 'run')} of this clone ended before stage drift, or did not end yet.")


def _run(comparison: DriftComparison) -> tuple[str, str, str, str]:
    window = f"{comparison.window}{f' ({comparison.when})' if comparison.when else ''}"
    name = f"{comparison.name}{f' and {comparison.alike} later' if comparison.alike else ''}"
    if comparison.report is None:
        return name, window, "–", comparison.missing
    drifted = f"; drifted: {drift_comparisons.drifted(comparison.report)}"
    return name, window, comparison.report.verdict, drift_comparisons.worst(comparison.report) + drifted


def write_page(path: Path, comparisons: Sequence[DriftComparison], title: str = "", with_features: bool = True) -> None:
    """Write the page, whole or not at all. Raises UserError for a folder."""
    if path.is_dir():
        raise UserError(f"--html {path}: a folder. Name a file, such as {path / 'drift.html'}.")
    files.write_text(secrets.redact(drift.render(comparisons, {}, title, with_features)), path)


def as_json(found: Sequence[DriftComparison]) -> list[dict[str, object]]:
    """Return one object per comparison."""
    return [
        {
            "run": comparison.name,
            "window": comparison.window,
            "when": comparison.when,
            "later_runs_alike": comparison.alike,
            "missing": comparison.missing,
            "report": None if comparison.report is None else comparison.report.model_dump(mode="json"),
        }
        for comparison in found
    ]


def _text(text: str, style: str = "") -> Text:
    """Escape control characters. Names come from the traffic, and must not move the cursor or hide
    a line."""
    return Text("".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text), style=style)
