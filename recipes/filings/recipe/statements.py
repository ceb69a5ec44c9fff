"""Statements of invented companies that agree with one another, year after year.

Every number is a whole number of the company's unit, and nothing is rounded afterwards, so what is
printed agrees exactly:

    gross profit   = revenue - cost of sales
    net income     = gross profit - expenses - interest - income tax
    total assets   = total liabilities + total equity
    cash at end    = cash at start + operating + investing + financing cash flow = cash
    cash at start, retained earnings, property, goodwill and debt follow from the year before

Payments (expenses, capital expenditure, acquisitions, dividends) are positive numbers. A year may
be restated because revenue was booked too early. Then revenue, receivables, profit and equity are
lower, and the years after it start from there. printing.py makes pages of a year.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace

from .options import Options

INCOME = (
    "revenue", "cost of sales", "gross profit", "research expense", "selling expense", "administrative expense",
    "operating income", "interest expense", "income tax", "net income",
)  # fmt: skip
BALANCE = (
    "cash", "receivables", "inventory", "property", "goodwill", "total assets", "payables", "debt",
    "total liabilities", "share capital", "retained earnings", "total equity",
)  # fmt: skip
CASH_FLOW = (
    "net income", "depreciation", "working capital change", "operating cash flow", "capital expenditure",
    "acquisitions", "investing cash flow", "debt change", "dividends", "financing cash flow",
    "net change in cash", "cash at start", "cash at end",
)  # fmt: skip
STATEMENTS = {"income": INCOME, "balance": BALANCE, "cash flow": CASH_FLOW}
ITEMS = tuple(dict.fromkeys(INCOME + BALANCE + CASH_FLOW))
SHORT = {
    "income": ("revenue", "gross profit", "selling expense", "operating income", "net income"),
    "balance": ("cash", "receivables", "total assets", "debt", "total liabilities", "total equity"),
    "cash flow": ("depreciation", "operating cash flow", "capital expenditure", "dividends", "cash at end"),
}
"""Which of these items short statements show."""
MERGED = {
    "income": ("other expense", ("research expense", "selling expense", "administrative expense")),
    "balance": ("other assets", ("receivables", "inventory", "goodwill")),
    "cash flow": ("other adjustments", ("depreciation", "working capital change")),
}
"""Statement -> the line that replaces two of these items if a company does not show them. A short
statement leaves them out without such a line."""
MERGED_SHARE = 1 / 3
FIRST_YEAR, LAST_YEARS = 2016, (2022, 2023, 2024)
"""No company files before FIRST_YEAR. A company's last year is one of LAST_YEARS, so that a year
alone does not tell whether there is an answer."""
UNITS = ("thousands", "millions")

Year = dict[str, int]


@dataclass(frozen=True)
class Profile:
    """What is known of a company before its statements are made."""

    name: str
    years: tuple[int, ...]
    unit: str
    revenue: int
    """Its revenue before the first year that it has filed."""
    switches: bool
    """Whether its last year is in millions, and the years before are in thousands."""
    restates: int | None
    order: tuple[str, ...]
    """The order of the statements in its filings."""
    merged: dict[str, tuple[str, ...]]
    """Statement -> the items that it shows only as a sum."""


@dataclass(frozen=True)
class Report:
    """A year as it was filed, in `unit`. Each number is printed times `scale`."""

    period: str
    year: Year
    before: Year
    before_restated: bool
    unit: str
    scale: int
    restated: bool


def shown_by(options: Options) -> dict[str, tuple[str, ...]]:
    """Return each statement's items. A company may leave out some of them."""
    return SHORT if options.statements == "short" else STATEMENTS


def profile(name: str, options: Options) -> Profile:
    rng = random.Random(f"profile {name}")
    unit, switch, restate, order = rng.choice(UNITS), rng.random(), rng.random(), list(STATEMENTS)
    if options.mixed_order:
        rng.shuffle(order)
    last = rng.choice(LAST_YEARS)
    years = tuple(range(last - options.years + 1, last + 1))
    restates = rng.choice(years[:-1]) if restate < options.restated_share else None
    switches = switch < options.unit_switch_share
    return Profile(
        name, years, unit, _first_revenue(options, switches, rng), switches, restates, tuple(order), _merged(rng)
    )


def _first_revenue(options: Options, switches: bool, rng: random.Random) -> int:
    if options.statements == "short":
        return rng.randint(100, 400)
    return rng.randint(2_000, 9_000) if switches else rng.randint(20_000, 700_000)


def period(year: int) -> str:
    return f"FY{year}"


def forms(known: Profile) -> list[tuple[str, str]]:
    """List the filings of a company: period and form. An amended one comes after the first."""
    found: list[tuple[str, str]] = []
    for year in known.years:
        found.append((period(year), "10-K"))
        if year == known.restates:
            found.append((period(year), "10-K/A"))
    return found


def reports(known: Profile) -> list[Report]:
    """Make a company's years, in the order of its filings."""
    rng = random.Random(f"statements {known.name}")
    year = _opening(known, rng)
    is_restated = False
    made: list[Report] = []
    for number in known.years:
        before, year = year, _next(year, rng)
        in_millions = known.switches and number == known.years[-1]
        unit = known.unit if not known.switches else "millions" if in_millions else "thousands"
        scale = 1000 if known.switches and not in_millions else 1
        first = Report(
            period=period(number),
            year=year,
            before=before,
            before_restated=is_restated,
            unit=unit,
            scale=scale,
            restated=False,
        )
        made.append(first)
        is_restated = number == known.restates
        if is_restated:
            year = restated(year, rng)
            made.append(replace(first, year=year, restated=True))
    return made


def restated(year: Year, rng: random.Random) -> Year:
    """Take back revenue that was booked too early."""
    less = min(round(year["revenue"] * rng.uniform(0.02, 0.06)), year["receivables"] // 2)
    changes = dict.fromkeys(
        ("revenue", "gross profit", "operating income", "net income", "receivables", "total assets"), -less
    )
    changes |= {"retained earnings": -less, "total equity": -less, "working capital change": less}
    return {item: value + changes.get(item, 0) for item, value in year.items()}


def _opening(known: Profile, rng: random.Random) -> Year:
    """Make the balance sheet that the first filed year starts from."""
    size = known.revenue
    balance = {
        "revenue": size,
        "cash": round(size * rng.uniform(0.1, 0.3)),
        "receivables": round(size * rng.uniform(0.1, 0.18)),
        "inventory": round(size * rng.uniform(0.06, 0.16)),
        "property": round(size * rng.uniform(0.3, 0.9)),
        "goodwill": round(size * rng.uniform(0.05, 0.2)),
        "payables": round(size * rng.uniform(0.05, 0.12)),
        "debt": round(size * rng.uniform(0.1, 0.4)),
    }
    equity = sum(balance[item] for item in BALANCE[:5]) - balance["payables"] - balance["debt"]
    balance["retained earnings"] = round(equity * rng.uniform(0.3, 0.7))
    balance["share capital"] = equity - balance["retained earnings"]
    return balance


def _next(last: Year, rng: random.Random) -> Year:
    """Make a year from the one before."""
    share = rng.uniform
    year: Year = {"revenue": round(last["revenue"] * share(0.9, 1.2))}
    revenue = year["revenue"]
    year["cost of sales"] = round(revenue * share(0.45, 0.62))
    year["research expense"] = round(revenue * share(0.03, 0.08))
    year["selling expense"] = round(revenue * share(0.06, 0.11))
    year["administrative expense"] = round(revenue * share(0.05, 0.09))
    year["gross profit"] = revenue - year["cost of sales"]
    expenses = year["research expense"] + year["selling expense"] + year["administrative expense"]
    year["operating income"] = year["gross profit"] - expenses
    year["interest expense"] = round(last["debt"] * share(0.03, 0.07))
    before_tax = year["operating income"] - year["interest expense"]
    year["income tax"] = round(max(before_tax, 0) * share(0.18, 0.28))
    year["net income"] = before_tax - year["income tax"]

    year["receivables"] = round(revenue * share(0.1, 0.18))
    year["inventory"] = round(revenue * share(0.06, 0.16))
    year["payables"] = round(revenue * share(0.05, 0.12))
    year["depreciation"] = round(last["property"] * share(0.08, 0.12))
    year["capital expenditure"] = round(year["depreciation"] * share(0.8, 1.6))
    year["acquisitions"] = round(revenue * share(0.004, 0.02))
    year["property"] = last["property"] + year["capital expenditure"] - year["depreciation"]
    year["goodwill"] = last["goodwill"] + year["acquisitions"]
    bound = sum(year[item] - last[item] for item in ("receivables", "inventory"))
    year["working capital change"] = year["payables"] - last["payables"] - bound
    year["operating cash flow"] = year["net income"] + year["depreciation"] + year["working capital change"]
    year["investing cash flow"] = -year["capital expenditure"] - year["acquisitions"]
    year["dividends"] = round(max(year["net income"], 0) * share(0.2, 0.5))

    paid = last["cash"] + year["operating cash flow"] + year["investing cash flow"] - year["dividends"]
    borrowed = round(last["debt"] * share(-0.12, 0.15))
    year["debt change"] = max(borrowed, round(revenue * share(0.04, 0.08)) - paid)  # it never runs out of cash
    year["debt"] = last["debt"] + year["debt change"]
    year["financing cash flow"] = year["debt change"] - year["dividends"]
    year["cash at start"], year["cash at end"] = last["cash"], paid + year["debt change"]
    year["net change in cash"] = year["cash at end"] - year["cash at start"]
    year["cash"] = year["cash at end"]
    year["share capital"] = last["share capital"]
    year["retained earnings"] = last["retained earnings"] + year["net income"] - year["dividends"]
    year["total assets"] = sum(year[item] for item in BALANCE[:5])
    year["total liabilities"] = year["payables"] + year["debt"]
    year["total equity"] = year["share capital"] + year["retained earnings"]
    return year


def _merged(rng: random.Random) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for statement, (_, items) in MERGED.items():
        if rng.random() < MERGED_SHARE:
            found[statement] = tuple(rng.sample(items, 2))
    return found


@functools.cache
def statement_of(item: str) -> str:
    """Return the statement in which an item is looked for first."""
    return next((statement for statement, items in STATEMENTS.items() if item in items), "")
