"""Write the gate's results in words: what each check found, and the reason for the decision.

`describe` writes a check and `reason` the decision's reason. What to do when a decision is
inconclusive is in rft/gate/sample_size.py.

The stage's lines, `decision.json`, the terminal and the page all show these words. They are made
only from the checks, so that an old decision can be shown without its run.
"""

from __future__ import annotations

import math
from typing import Literal

from rft.formatting import counted, signed
from rft.reports.gate import OF_RANGE, Check

HACK_RATE = "hack rate"
COST, TURNS, UNREADABLE, UNSCORED = "token cost", "P95 turns", "unreadable calls", "unscored increase"
ABSTENTIONS = "abstentions"
LIKE_PRODUCTION = "test examples like production"


def price(alpha: float, looks: int, level: float) -> str:
    """Say what a look costs: `one-sided 0.5 %: alpha 5 % pays for 5 looks at this test set, of two
    candidates each`. If alpha or looks changed since the first look, say what is left instead."""
    if not math.isclose(level, alpha / looks / 2, rel_tol=1e-6):
        left = f"a share of what earlier looks at this test set left of alpha {percent(alpha)}"
        return f"one-sided {percent(level)}: {left}, for each of two candidates"
    paid = f"{counted(looks, 'look')} at this test set, of two candidates{' each' if looks > 1 else ''}"
    return f"one-sided {percent(level)}: alpha {percent(alpha)} pays for {paid}"


def percent(share: float) -> str:
    """Write a level or a confidence: `percent(0.005)` is "0.5 %"."""
    return f"{100 * share:.3g} %"


def describe(check: Check) -> str:
    """`mean reward: passed, +0.210 [+0.180, +0.240] against +0.050`."""
    numbered = f", {numbers(check)}" if check.value is not None else ""
    return f"{check.name}: {verdict(check)}{numbered}" + (f" ({check.detail})" if check.detail else "")


def verdict(check: Check) -> Literal["passed", "failed", "open", "not measured"]:
    """Name the outcome. A guard without a number to compare is "not measured", because more
    examples would not settle it."""
    if check.passed is None:
        return "not measured" if check.value is None else "open"
    return "passed" if check.passed else "failed"


def numbers(check: Check) -> str:
    """Write value, interval and margin in the check's own unit."""
    return measured(check) + (f" against {quantity(check, check.margin)}" if check.margin is not None else "")


def measured(check: Check) -> str:
    """Write value and interval; empty for a check on a state."""
    if check.value is None:
        return ""
    found = quantity(check, check.value)
    if check.low is not None and check.high is not None:
        found += f" [{quantity(check, check.low)}, {quantity(check, check.high)}]"
    return found + (OF_RANGE if check.unit.endswith(OF_RANGE) else "")


def quantity(check: Check, x: float | None) -> str:
    """Write one number in the check's own unit."""
    if x is None:
        return "none"
    if check.unit == "share":
        return f"{100 * x:.2f} %"
    if check.unit == "relative":
        return f"{signed(100 * x, 1)} %"
    if check.unit == "points":
        return f"{signed(100 * x, 1)} points"
    if check.unit in ("calls", "turns"):
        return signed(x, 0 if x == int(x) else 1)
    return signed(x)


def reason(decision: str, candidate: str, checks: list[Check]) -> str:
    """Say why the decision is what it is, with the numbers of the checks that made it."""
    deciding = [check for check in checks if check.decides]
    if decision == "promote":
        who = "the new prompt alone" if candidate == "champion_new_prompt" else "the challenger"
        others = [check for check in deciding[1:] if check.passed]
        open_ = [check.name for check in deciding if verdict(check) == "open"]
        rest = f"the other {counted(len(others), 'check')} passed" + (
            f"; no loss beyond the margin is shown in {', '.join(open_)}" if open_ else ""
        )
        blind = [check.name for check in checks if verdict(check) == "not measured"]
        unseen = f"; not measured: {', '.join(blind)}" if blind else ""
        return f"{who} is better: {_brief(deciding[0])}; {rest}{_too_small(checks)}{unseen}"
    if decision == "reject":
        return "the champion stays, failed: " + "; ".join(_brief(check) for check in deciding if check.passed is False)
    open_ = "; ".join(_brief(check) for check in deciding if check.is_unsettled)
    return f"not settled: {open_}"


def _too_small(checks: list[Check]) -> str:
    names = [check.name for check in checks if check.is_unprotected]
    return f"; too small to be protected: {', '.join(names)}" if names else ""


def unprotected(checks: list[Check]) -> str:
    """Name the slices in which a loss of twice the margin can easily go unseen; empty for none."""
    found = [check for check in checks if check.is_unprotected]
    if not found:
        return ""
    sizes = "; ".join(
        f"{check.name} ({counted(check.n, 'example')}, "
        + (f"{check.needed_for_veto:,} needed)" if check.needed_for_veto else "no number would do)")
        for check in found
    )
    return f"Too small to be protected, which is to show a loss of twice the margin in 80 % of cases: {sizes}."


def _brief(check: Check) -> str:
    return f"{check.name} {numbers(check)}" if check.value is not None else f"{check.name} ({check.detail})"
