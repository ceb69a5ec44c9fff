"""Price a look at the test set, and tell which terms are looser than others.

`gate.alpha` is the chance that noise is promoted in a whole history of looks at the same examples.
What earlier looks took of it is spent, even if the settings changed since:

    level = (alpha - spent) / looks that are left / candidates

While the settings stay the same, each look gets alpha / looks. An owner who raises `gate.looks` in
between divides what is left among more looks. When all is spent, the next look needs fresh
examples. The ledger holds the level of each look (tasks/promotion/counting.py), and stage `gate`
asks at that level.

Terms that are chosen after a result are not terms. So a later look at the same examples must be as
strict as every earlier one, key by key (`loosened_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CANDIDATES = 2
"""A look covers two candidates: the new prompt, and the trained weights with it."""
_STRICTER_LOWER = (
    "alpha",
    "max_greedy_loss",
    "max_calls_p95_increase",
    "max_tokens_increase",
    "max_turns_p95_increase",
    "max_unreadable_increase",
    "max_abstention_increase",
    "max_unscored_increase",
    "max_hack_rate",
    "max_slice_loss",
    "min_slice",
    "max_unscored_share",
    "max_latency_increase",
)
"""A smaller value is stricter. None means no limit."""
_STRICTER_HIGHER = ("min_gain", "require_hack_source", "latency_decides")
_NOT_COMPARED = ("looks", "prompt_only_margin")
"""These may change: the looks that are left share alpha, and both candidates are paid for."""


def level(alpha: float, looks: int, look: int, spent: float) -> float:
    """Return the one-sided level of the question for one candidate; 0 where nothing is left."""
    left = looks - look + 1
    return round(max(0.0, alpha - spent) / left / CANDIDATES, 12) if left > 0 else 0.0


def loosened_keys(gate: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Name the keys in which these terms are looser than the earlier ones, or would draw again. A
    key that an earlier version did not know is not compared."""
    return [
        key
        for key, now in gate.items()
        if key in earlier
        and key not in _NOT_COMPARED
        and now != earlier[key]
        and not _is_stricter(key, now, earlier[key])
    ]


def _is_stricter(key: str, now: Any, then: Any) -> bool:
    if key in _STRICTER_LOWER:
        return now is not None and (then is None or now < then)
    if key in _STRICTER_HIGHER:
        return now > then
    return key == "require_drift" and set(now) < set(then)


__all__ = ["CANDIDATES", "level", "loosened_keys"]
