"""Pages of a filing: a year's statements as text, and the cells that the text shows.

lines                                      table
 Amber Harbor Foods FY2024 income page 2    Amber Harbor Foods FY2024 income page 2
 revenue 482130 thousands                   in thousands of US dollars
 FY2023 revenue 455210 thousands            | item | FY2024 | FY2023 |
 cost of sales 262051 thousands             | --- | ---: | ---: |
                                            | revenue | 482,130 | 455,210 |

The year before is shown only with `comparatives`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from fractions import Fraction

from .arithmetic import plain
from .filings import Cell, Page
from .options import Options
from .statements import MERGED, Profile, Report, Year, shown_by

REGIONS = ("northern", "southern", "overseas")


def pages(company: Profile, report: Report, form: str, options: Options) -> tuple[Page, ...]:
    amended = " amended" if report.restated else ""
    title = f" {company.name} {report.period}{amended}"
    cover = f"{title} annual report {form} page 1\n amounts in {report.unit} of US dollars"
    made = [Page(1, "cover", cover)]
    for number, statement in enumerate(company.order, 2):
        heading = f"{title} {statement} page {number}"
        rows = list(_rows(company, report, statement, options))
        made.append(_page(number, statement, heading, rows, report, options))
    if options.notes:
        number = len(made) + 1
        lines = [f"{title} notes page {number}", *_notes(company, report, options)]
        made.append(Page(number, "notes", "\n".join(lines)))
    return tuple(made)


def printed(value: int | Fraction, layout: str) -> str:
    """Write a number as a page does: 482130 or -1234 in lines, 482,130 or (1,234) in a table."""
    text = plain(abs(value))
    if layout == "lines":
        return f"-{text}" if value < 0 else text
    whole, point, decimals = text.partition(".")
    text = f"{int(whole):,}{point}{decimals}"
    return f"({text})" if value < 0 else text


def _rows(company: Profile, report: Report, statement: str, options: Options) -> Iterator[tuple[str, list[Cell]]]:
    """Yield each line's label with its cells: this year's, and perhaps the year before's."""
    hidden = company.merged.get(statement, ())
    name = MERGED[statement][0]
    years = [(report.period, report.year, report.restated)]
    if options.comparatives and "net income" in report.before:
        before = f"FY{int(report.period[2:]) - 1}"
        years.append((before, report.before, report.before_restated))
    is_told = options.statements == "short"  # a short statement has no line for what is hidden
    for item in shown_by(options)[statement]:
        if item in hidden and is_told:
            continue
        is_told = is_told or item in hidden
        label, items = (name, hidden) if item in hidden else (item, (item,))
        yield label, [_cell(label, period, year, items, is_new, report, options) for period, year, is_new in years]


def _cell(
    label: str, period: str, year: Year, items: Iterable[str], restated: bool, report: Report, options: Options
) -> Cell:
    value = report.scale * sum(year[item] for item in items)
    return Cell(label, period, Fraction(value), report.unit, printed(value, options.layout), restated)


def _page(
    number: int, title: str, heading: str, rows: list[tuple[str, list[Cell]]], report: Report, options: Options
) -> Page:
    cells = tuple(cell for _, found in rows for cell in found)
    if options.layout == "lines":
        lines = [line(cell, report.period) for cell in cells]
        return Page(number, title, "\n".join([heading, *lines]), cells)
    return Page(number, title, "\n".join([heading, f" in {report.unit} of US dollars", *table(rows)]), cells)


def line(cell: Cell, period: str) -> str:
    """Write a cell as a line of a filing of this period."""
    before = "" if cell.period == period else f" {cell.period}"
    return f"{before} {cell.item} {cell.number} {cell.unit}"


def table(rows: list[tuple[str, list[Cell]]]) -> list[str]:
    """Write rows as a Markdown table with a column per period."""
    periods = [cell.period for cell in rows[0][1]]
    lines = [f"| item | {' | '.join(periods)} |", f"| --- |{' ---: |' * len(periods)}"]
    return [*lines, *(f"| {label} | {' | '.join(cell.number for cell in found)} |" for label, found in rows)]


def _notes(company: Profile, report: Report, options: Options) -> Iterator[str]:
    """Yield lines that look like an answer: revenue of segments, budgets."""
    rng = random.Random(f"notes {company.name} {report.period}")
    revenue = report.scale * report.year["revenue"]
    parts = [round(revenue * rng.uniform(0.15, 0.4)) for _ in REGIONS[1:]]
    for region, part in zip(REGIONS, [revenue - sum(parts), *parts], strict=True):
        yield f" {region} segment revenue {printed(part, options.layout)} {report.unit}"
    for item in ("revenue", "operating income", "capital expenditure"):
        budget = round(report.scale * report.year[item] * rng.uniform(0.85, 1.15))
        yield f" budget for the next year : {item} {printed(budget, options.layout)} {report.unit}"
