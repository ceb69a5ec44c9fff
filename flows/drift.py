"""Show what `rft drift` found: a table for people, JSON for programs, a page with pictures.

The table is grouped as the page is: the input, the agent, its performance; in each, what it was
compared with. What drifted stands first, with a line that says what moved. `brief` is the verdict
and a few rows, where drift is not what was asked about.
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
from rft.page import Look, drift, drift_looks
from rft.reports import DriftReport, FeatureDrift, drift_words
from rft.words import counted
from tasks.display.looks import History
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
    yield _text(f"{name}: {drift_words.size(report)}" if name else drift_words.size(report), "bold")
    widths = _widths(report.features)
    for part in drift_words.sections(report):
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
    more were compared. `all_of_it`: the command that shows them."""
    width = max(width or shutil.get_terminal_size().columns, _NARROWEST)
    yield next(_verdict(report))
    shown = drift_words.farthest(report, _BRIEF)
    for feature in shown:
        yield from _row(feature, _widths(shown), width, f", against {drift_words.AGAINST[feature.against]}")
    rest = sum(feature.effect is not None for feature in report.features) - len(shown)
    drifted = sum(feature.drifted for feature in report.features) - sum(feature.drifted for feature in shown)
    also = f", {drifted:,} of them drifted" if drifted else ""
    yield _text(f"{counted(rest, 'more comparison')}{also}; all with their numbers: {all_of_it}")


def _verdict(report: DriftReport) -> Iterator[Text]:
    tone, _ = drift_words.VERDICTS[report.verdict]
    yield _text(f"{report.verdict}: ", _COLORS[tone]).append_text(_text(report.advice or report.reason))
    if report.advice:
        yield _text(report.reason)


def _widths(features: Sequence[FeatureDrift]) -> list[int]:
    return [max((len(cell) for cell in column), default=0) for column in zip(*map(_cells, features), strict=True)]


def _cells(feature: FeatureDrift) -> tuple[str, ...]:
    q = "" if feature.q_value is None else f"q {feature.q_value:.2g}"
    return feature.feature, drift_words.measured(feature), q, drift_words.state(feature)


def _row(feature: FeatureDrift, widths: Sequence[int], width: int, aside: str = "") -> Iterator[Text]:
    state = drift_words.state(feature)
    name, measured, q, word = _cells(feature)
    aligned = f"{name:<{widths[0]}}  {measured:>{widths[1]}}  {q:<{widths[2]}}  {word}{aside}"
    yield _text(f"  {drift_words.SIGNS[state]} {aligned}".rstrip(), _COLORS[drift_words.TONES[state]])
    if state in ("as before", "too small to count"):
        return
    told = feature.detail
    if state != "not compared":
        told = f"{drift_words.named(feature.feature)}: {feature.detail or drift_words.effect(feature)}"
    for line in textwrap.wrap(told, width - 6):
        yield _text(f"      {line}")


def of_runs(found: History, recipe: str) -> Iterator[Text]:
    """Yield a table of the runs, the latest first."""
    rows = [_run(look) for look in reversed(found.looks)]
    if not rows:
        yield _text(f"No run of recipe {recipe} has a drift report yet.")
    else:
        head = ("run", "window", "verdict", "farthest of the input")
        widths = [max(map(len, column)) for column in zip(head, *(row for row in rows), strict=True)]
        for place, row in enumerate([head, *rows]):
            aligned = "  ".join(f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True)).rstrip()
            yield _text(aligned, "" if place else "bold")
    if found.without:
        yield _text(f"\n{counted(found.without, 'run')} of this clone ended before drift, or goes on.")


def _run(look: Look) -> tuple[str, str, str, str]:
    window = f"{look.window}{f' ({look.when})' if look.when else ''}"
    name = f"{look.name}{f' and {look.alike} later' if look.alike else ''}"
    if look.report is None:
        return name, window, "–", look.missing
    drifted = f"; drifted: {drift_looks.drifted(look.report)}"
    return name, window, look.report.verdict, drift_looks.worst(look.report) + drifted


def write_page(path: Path, looks: Sequence[Look], title: str = "", with_features: bool = True) -> None:
    """Write the page, whole or not at all. Raises UserError for a folder."""
    if path.is_dir():
        raise UserError(f"--html {path}: a folder. Name a file, such as {path / 'drift.html'}.")
    files.write_text(secrets.redact(drift.render(looks, {}, title, with_features)), path)


def as_json(found: Sequence[Look]) -> list[dict[str, object]]:
    """Return one object per look."""
    return [
        {
            "run": look.name,
            "window": look.window,
            "when": look.when,
            "later_runs_alike": look.alike,
            "missing": look.missing,
            "report": None if look.report is None else look.report.model_dump(mode="json"),
        }
        for look in found
    ]


def _text(words: str, style: str = "") -> Text:
    """Names are the traffic's: nothing in them moves the cursor or hides a line."""
    return Text("".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in words), style=style)
