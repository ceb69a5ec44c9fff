"""Your own figures as filings: a folder of CSV files.

    company,period,item,value,unit,page
    Acme Ltd,FY2023,revenue,4120,thousands,2
    Acme Ltd,FY2023,net income,-31.5,thousands,2

Each (company, period) becomes a filing. `page` may be left out: a filing's rows then fill pages of
ROWS_PER_PAGE, in their order. Everything is read and checked before anything is made of it. An
error names file, line, column and remedy.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rft.errors import UserError, did_you_mean

from .filings import Cell, Corpus, Entry, Filing, Page
from .options import Options
from .printing import line, printed, table

COLUMNS = ("company", "period", "item", "value", "unit")
OPTIONAL = ("page",)
ROWS_PER_PAGE = 12
MAX_TEXT = 80
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,6})?|-?[0-9]{1,3}(,[0-9]{3}){1,4}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    company: str
    period: str
    item: str
    value: Fraction
    unit: str
    page: int | None


def corpus(options: Options) -> Corpus:
    """Read the folder. Raises UserError."""
    assert options.folder is not None
    files, digest = read_folder(options.folder)
    rows = [row for path, text in files for row in _rows(path, text)]
    if not rows:
        raise UserError(f"{options.folder}: the CSV files have no rows below their headings. Add your figures.")
    _check_twice(rows)
    filings: dict[str, tuple[Filing, ...]] = {}
    entries: list[Entry] = []
    by_filing: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_filing.setdefault((row.company, row.period), []).append(row)
    for (company, period), found in sorted(by_filing.items()):
        doc = f"doc-{100_000 + (len(entries) * 611_953 + 7919) % 900_000}"
        entries.append(Entry(doc, company, period, "report"))
        filing = Filing(doc, company, period, "report", tuple(_pages(found, options)))
        filings[company] = (*filings.get(company, ()), filing)
    items = tuple(dict.fromkeys(row.item for row in rows))
    return Corpus(entries, filings.__getitem__, {company: company for company in filings}, items, digest)


def read_folder(folder: str) -> tuple[list[tuple[Path, str]], str]:
    """Return the texts of the CSV files and a hash of them all."""
    key = f"params.yaml: recipe.options.folder = {folder!r}"
    place = Path(folder)
    if not place.is_dir():
        raise UserError(f"{key}: there is no such folder. Name the folder of your CSV files, best by its full path.")
    paths = sorted(place.glob("*.csv"))
    if not paths:
        raise UserError(f"{key}: no file there ends in .csv. Put your figures there, with {', '.join(COLUMNS)}.")
    texts, digest = list[tuple[Path, str]](), hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + content)
        try:
            texts.append((path, content.decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            raise UserError(f"{path}: line {line}: is not UTF-8. Save the file as UTF-8.") from None
    return texts, digest.hexdigest()


def _rows(path: Path, text: str) -> Iterator[Row]:
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{path}: line {line}: holds a zero byte, so it is not a CSV file. Export it again.")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        heading = [name.strip() for name in next(reader, [])]
        _check_heading(path, heading)
        for values in reader:
            if any(value.strip() for value in values):
                yield _row(f"{path}: line {reader.line_num}", heading, values)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}. Close the quotes, or export it again.") from None


def _check_heading(path: Path, heading: list[str]) -> None:
    where, known = f"{path}: line 1", [*COLUMNS, *OPTIONAL]
    if not any(heading):
        raise UserError(f"{where}: has no columns. Begin the file with {','.join(known)}.")
    for name in heading:
        if name not in known:
            raise UserError(f"{where}: column {name!r} is unknown. {did_you_mean(name, known)}")
        if heading.count(name) > 1:
            raise UserError(f"{where}: column {name!r} is there twice. Remove one.")
    for name in COLUMNS:
        if name not in heading:
            raise UserError(f"{where}: column {name!r} is missing. Begin the file with {','.join(known)}.")


def _row(where: str, heading: list[str], values: list[str]) -> Row:
    if len(values) != len(heading):
        raise UserError(
            f"{where}: has {len(values)} values, and line 1 has {len(heading)} columns. Add or remove commas, and put "
            "a value that holds one in quotes."
        )
    found = {name: " ".join(value.split()) for name, value in zip(heading, values, strict=True)}
    for name in COLUMNS:
        value = found[name]
        if not value:
            raise UserError(f"{where}: column {name!r} is empty. Fill it in, or remove the line.")
        if len(value) > MAX_TEXT or (name != "value" and not re.search(r"\w", value)) or "|" in value:
            what = f"column {name!r} is {value[:40]!r}"
            raise UserError(f"{where}: {what}. Write at most {MAX_TEXT} characters, with a letter or digit and no '|'.")
    return Row(
        where,
        found["company"],
        found["period"],
        found["item"],
        _number(where, found["value"]),
        found["unit"],
        _page(where, found.get("page", "")),
    )


def _number(where: str, text: str) -> Fraction:
    if not _NUMBER.fullmatch(text):
        remedy = "Write digits and perhaps a point, such as 1234.5 or -1,234.5; put the unit into its own column."
        raise UserError(f"{where}: column 'value' is {text!r}, which is not a number. {remedy}")
    return Fraction(text.replace(",", ""))


def _page(where: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        remedy = "Write a whole number from 1 to 9999, or leave it out."
        raise UserError(f"{where}: column 'page' is {text!r}, which is not a page. {remedy}")
    return int(text)


def _check_twice(rows: list[Row]) -> None:
    seen: dict[tuple[str, str, str], Row] = {}
    spelled: dict[str, Row] = {}
    for row in rows:
        key = (row.company, row.period, row.item)
        if key in seen:
            what = f"{row.item!r} of {row.company!r} in {row.period!r} is already in {seen[key].where}"
            raise UserError(f"{row.where}: column 'item': {what}. Keep one of the two lines.")
        seen[key] = row
        other = spelled.setdefault(row.company.casefold(), row)
        if other.company != row.company:
            what = f"column 'company' is {row.company!r}, and {other.where} has {other.company!r}"
            raise UserError(f"{row.where}: {what}. Spell a company in one way.")


def _pages(rows: list[Row], options: Options) -> Iterator[Page]:
    numbered: dict[int, list[Row]] = {}
    for n, row in enumerate(rows):
        if (row.page is None) != (rows[0].page is None):
            empty, other = (row, rows[0]) if row.page is None else (rows[0], row)
            what = f"column 'page' is empty, and {other.where}, of the same filing, has one"
            raise UserError(f"{empty.where}: {what}. Fill it in for all lines of a filing, or for none.")
        numbered.setdefault(row.page or n // ROWS_PER_PAGE + 1, []).append(row)
    for number, found in sorted(numbered.items()):
        yield _printed_page(number, found, options)


def _printed_page(number: int, rows: list[Row], options: Options) -> Page:
    cells = [Cell(row.item, row.period, row.value, row.unit, printed(row.value, options.layout)) for row in rows]
    title = cells[0].item if len(cells) == 1 else f"{cells[0].item} to {cells[-1].item}"
    lines = [f" {rows[0].company} {rows[0].period} page {number}"]
    if options.layout == "lines":
        lines += [line(cell, cell.period) for cell in cells]
    else:
        for unit in dict.fromkeys(cell.unit for cell in cells):
            lines += [f" in {unit}", *table([(cell.item, [cell]) for cell in cells if cell.unit == unit])]
    return Page(number, title, "\n".join(lines), tuple(cells))
