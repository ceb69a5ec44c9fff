"""What a check of code found, and how it becomes a grade.

A candidate that crashes, or uses too much time or memory, has caused its own failure: that is an
`unjudgeable_answer` with the lowest score. A sandbox that cannot be made says nothing about the
candidate: that is an InfrastructureError, and there is no score.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal

from rft.errors import InfrastructureError
from rft.sandbox.call import Outcome
from rft.scale import Scale
from rft.types import Grade, GradeStatus, Scored, Unscored

MOST_FAILURES = 5
LONGEST = 200
_KILLED_FOR_TIME = (128 + 24, 128 + 9)
"""SIGXCPU, and SIGKILL one second of processor time later."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many checks passed, such as `Verdict(9, 10, "ok", failures=("f(2) answered 5, ...",))`.

    `failures` hold inputs and expected values. They are for people, never for the policy.
    """

    passed: int
    of: int
    status: Literal["ok", "unjudgeable_answer"]
    """`unjudgeable_answer`: the candidate did not reach the end of the check."""
    why: str = ""
    """How it ended, if something went wrong."""
    failures: tuple[str, ...] = ()

    @property
    def solved(self) -> bool:
        return self.status == "ok" and self.passed == self.of > 0

    def grade(self, scale: Scale) -> Scored:
        """Give the highest score if all checks passed, else the lowest. A share of the checks earns
        nothing, or the policy would learn code that passes some of them by chance."""
        score = scale.high if self.solved else scale.low
        explanation = f"{self.passed} of {self.of} checks passed" + (f": {self.why}" if self.why else "")
        return Scored(
            score,
            GradeStatus.ok if self.status == "ok" else GradeStatus.unjudgeable_answer,
            solved=self.solved,
            components={"outcome": score},
            explanation=explanation,
            evidence=self.failures,
        )


async def graded(check: Awaitable[Verdict], scale: Scale) -> Grade:
    """Wait for a verdict and turn it into a grade. Without a sandbox the grade has no score."""
    try:
        return (await check).grade(scale)
    except InfrastructureError as error:
        return Unscored(GradeStatus.infra_error, str(error))


def exit_reason(outcome: Outcome) -> str:
    """Say which limit stopped a call; empty if none did."""
    if outcome.timed_out:
        return "stopped at the time limit"
    if outcome.oom:
        return "stopped at the memory limit"
    if outcome.truncated:
        return "stopped at the output limit"
    if outcome.returncode in _KILLED_FOR_TIME:
        return "stopped at the limit of processor time, or killed"
    return f"ended with exit code {outcome.returncode}" if outcome.returncode else ""


def clip(text: str) -> str:
    """Shorten a text for people."""
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
