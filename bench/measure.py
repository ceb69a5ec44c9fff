"""What a figure returns: one value, or several parts, each with its bound.

A part holds or does not. A part that cannot be measured on this machine has no value but a reason,
and its `holds` is None. A part whose command failed has no value either, and does not hold. A bound
on an interval is a part of its own: `part("low end", gain.low, at_least=0.125)` beside
`part("gain", gain.value, at_least=0.25, low=gain.low, high=gain.high)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 1
    reason: str = ""
    failed: bool = False

    @property
    def bound(self) -> str | None:
        """Return the bound, such as `<= 300`. None: the value is only shown."""
        sides = [f"<= {self.at_most:g}"] if self.at_most is not None else []
        sides += [f">= {self.at_least:g}"] if self.at_least is not None else []
        return " and ".join(sides) or None

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return False if self.failed else None
        above, below = self.at_most, self.at_least
        return (above is None or self.value <= above) and (below is None or self.value >= below)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": self.name,
            "value": _round(self.value),
            "low": _round(self.low),
            "high": _round(self.high),
        }
        row |= {"n": self.n, "unit": self.unit, "bound": self.bound, "holds": self.holds}
        return row | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True, slots=True)
class Figure:
    """The first part is the headline. `notes` are further facts, kept with the recorded result."""

    parts: tuple[Part, ...]
    notes: dict[str, Any] | None = None

    @property
    def holds(self) -> bool | None:
        """Return False if any part fails, None if any could not be measured."""
        verdicts = [part.holds for part in self.parts]
        return False if False in verdicts else None if None in verdicts else True

    def line(self, name: str) -> dict[str, Any]:
        line = self.parts[0].row() | {"name": name, "holds": self.holds}
        reasons = [part.reason for part in self.parts if part.reason]
        line |= {"reason": "; ".join(reasons)} if reasons else {}
        return line | ({"parts": [part.row() for part in self.parts]} if len(self.parts) > 1 else {})


def unmeasured(name: str, reason: str) -> Figure:
    """Make a figure that this machine cannot measure."""
    return Figure((Part(name, None, n=0, reason=reason),))


def failed(name: str, reason: str) -> Figure:
    """Make a figure that broke, so that there is nothing to measure."""
    return Figure((Part(name, None, n=0, reason=reason, failed=True),))


def _round(value: float | None) -> float | None:
    """Round to four digits: a figure is not more precise than that."""
    return None if value is None else float(f"{value:.4g}")
