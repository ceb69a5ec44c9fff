"""Show two runs side by side: what differed, whether their numbers can be compared, the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rft.formatting import decimal, signed
from rft.reports import Metric
from rft.reports.plain import ARMS
from tasks.runs.compare import Comparison, Told

_SHORT = 12
"""How many digits of a hash are shown."""
_PERCENT = ("solved", "hack rate")
_WHOLE = ("tokens sampled", "tokens read", "tool calls, P95")


def show(found: Comparison, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    pair = (found.a, found.b)
    console.print(_table("", pair, [(word, *(read(told) for told in pair)) for word, read in _HEAD.items()]))
    console.print(
        "\nSettings that differ, defaults included" if found.settings else "\nNo setting differs", markup=False
    )
    if found.settings:
        console.print(_table("", pair, [(key, *map(_value, values)) for key, values in found.settings.items()]))
    console.print("\nData and code")
    console.print(_table("", pair, _data(found)))
    console.print()
    console.print(_verdict(found))
    if names := list(dict.fromkeys([*found.a.metrics, *found.b.metrics])):
        console.print("\nMetrics on the test examples, with 95 % intervals (for the gain: the gate's interval)")
        console.print(_table("", pair, [(name, *(_cell(told, name) for told in pair)) for name in names]))
    for told in pair:
        for line in dict.fromkeys(told.missing):
            console.print(_text(f"! {told.run}: {line}", style="red"))


_HEAD = {
    "state": lambda told: told.state,
    "started": lambda told: told.started,
    "code": lambda told: told.code,
    "compared with": lambda told: told.champion,
    "decision": lambda told: told.decision,
    "judged": lambda told: ARMS.get(told.judged, told.judged) or "–",
    "why": lambda told: told.reason or "–",
}


def _table(title: str, pair: Sequence[Told], rows: Sequence[tuple[str | Text, ...]]) -> Table:
    """One column per run, as wide as the terminal; long values are broken, never cut off."""
    table = Table(box=None, pad_edge=False, expand=False, padding=(0, 2, 0, 0))
    table.add_column(title, overflow="fold", style="bold")
    for told in pair:
        table.add_column(_text(told.run), overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else _text(cell) for cell in row))
    return table


def _data(found: Comparison) -> list[tuple[str | Text, ...]]:
    rows: list[tuple[str | Text, ...]] = []
    for name, word in found.data.items():
        cells = [_hash(told, name) for told in (found.a, found.b)]
        rows.append((f"{name}: {word}", *(Text(cell, style="" if word == "same" else "red") for cell in cells)))
    return rows


def _hash(told: Told, name: str) -> str:
    count = told.counts.get("conversations" if name == "window" else name)
    size = f" ({count:,})" if count is not None else ""
    return f"{told.data[name][:_SHORT]}{size}" if told.data.get(name) else "not known"


def _verdict(found: Comparison) -> Text:
    if reservations := found.reservations:
        text = "The numbers cannot be compared directly: " + "; ".join(reservations) + "."
        if found.same_test is False:
            text += " Only this can be: each run's gain over the champion that it was compared with."
        return _text(f"! {text}", style="red")
    assert found.a.test_sha256 is not None
    size = found.a.counts.get("test examples")
    examples = f"{size:,} test examples" if size else "test examples"
    return Text(
        f"Both were measured on the same {examples} ({found.a.test_sha256[:_SHORT]}), by the same grader. A difference "
        "within both intervals may be chance."
    )


def _cell(told: Told, name: str) -> Text:
    metric = told.metrics.get(name)
    if metric is None:
        measured = bool(told.metrics)
        return Text("! not measured" if measured else "–", style="red" if measured else "")
    return Text(_numbers(metric, name.removeprefix("champion's ")))


def _numbers(metric: Metric, name: str) -> str:
    def text(x: float) -> str:
        if name in _PERCENT:
            return f"{decimal(100 * x, 1)} %"
        if name in _WHOLE:
            return f"{x:,.0f}"
        return signed(x) if name.startswith("gain") else decimal(x)

    interval = (
        f" [{text(metric.low)}, {text(metric.high)}]" if metric.low is not None and metric.high is not None else ""
    )
    return text(metric.value) + interval


def _value(value: object) -> str:
    return value if isinstance(value, str) else "none" if value is None else str(value)


def _text(text: str, style: str = "") -> Text:
    """Escape control characters. Another clone may have written the text, and it must not move the
    cursor or hide a line."""
    return Text("".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text), style=style)
