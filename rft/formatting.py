"""Write counts and numbers for people: `1 rollout`, `3 rollouts`, `+0.000` but never `-0.000`."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Write `counted(2400, "rollout")` as "2,400 rollouts"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def decimal(value: float, digits: int = 3) -> str:
    return f"{value:z.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+z.{digits}f}"


def rounded_up(number: float) -> int:
    """Round up to two digits, for advice: nobody needs 4,183 examples rather than 4,200."""
    step = 10 ** max(0, len(str(int(number))) - 2)
    return int(-(-number // step) * step)
