"""What a check reports: a status, what was seen, what to do, and the numbers behind it.

    ok       nothing to do
    warn     the run would go on, but not as its owner thinks
    fail     the run would end, or be worthless; `infrastructure`: no setting is to blame
    skipped  the check did not run; the words say why

A check leaves out its name and seconds. The loop in rft/doctor/__init__.py adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Status
    words: str
    remedy: str = ""
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    infrastructure: bool = False


class Skip(Exception):
    """Says why a check cannot run here, and what would make it possible."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def ok(description: str, **facts: Any) -> Finding:
    return Finding("", "ok", description, facts=facts)


def warn(description: str, remedy: str, **facts: Any) -> Finding:
    return Finding("", "warn", description, remedy, facts=facts)


def fail(description: str, remedy: str, infrastructure: bool = False, **facts: Any) -> Finding:
    return Finding("", "fail", description, remedy, facts=facts, infrastructure=infrastructure)


def together(problems: Sequence[Finding], description: str, **facts: Any) -> Finding:
    """Combine findings: the worst status, all words, each remedy once. `description` says what is
    in order. A failure leaves it out."""
    if not problems:
        return ok(description, **facts)
    failed = [problem for problem in problems if problem.status == "fail"]
    descriptions = [problem.words for problem in failed or problems]
    return Finding(
        "",
        "fail" if failed else "warn",
        "; ".join(descriptions if failed else [description, *descriptions]),
        " ".join(dict.fromkeys(problem.remedy for problem in problems)),
        facts=facts | {key: value for problem in problems for key, value in problem.facts.items()},
        infrastructure=bool(failed) and all(problem.infrastructure for problem in failed),
    )
