"""What a check says: one word of judgement, what was seen, what to do, and the numbers behind it.

    ok       nothing to do
    warn     the run would go on, but not as its owner thinks
    fail     the run would end, or be worth nothing. `infrastructure`: the world's, not the
             settings'
    skipped  not looked at, with the reason

A check returns its finding without name and seconds, which the loop adds (rft/doctor/__init__.py).
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
    """This check cannot be made here: the words why, and what would make it possible."""

    def __init__(self, words: str, remedy: str = "") -> None:
        super().__init__(words)
        self.remedy = remedy


def ok(words: str, **facts: Any) -> Finding:
    return Finding("", "ok", words, facts=facts)


def warn(words: str, remedy: str, **facts: Any) -> Finding:
    return Finding("", "warn", words, remedy, facts=facts)


def fail(words: str, remedy: str, infrastructure: bool = False, **facts: Any) -> Finding:
    return Finding("", "fail", words, remedy, facts=facts, infrastructure=infrastructure)


def together(problems: Sequence[Finding], words: str, **facts: Any) -> Finding:
    """One finding of many: the worst status, all words, each remedy once. `words`: what is in
    order, which a failure leaves out."""
    if not problems:
        return ok(words, **facts)
    failed = [one for one in problems if one.status == "fail"]
    said = [one.words for one in failed or problems]
    return Finding(
        "",
        "fail" if failed else "warn",
        "; ".join(said if failed else [words, *said]),
        " ".join(dict.fromkeys(one.remedy for one in problems)),
        facts=facts | {key: value for one in problems for key, value in one.facts.items()},
        infrastructure=bool(failed) and all(one.infrastructure for one in failed),
    )
