"""Take in the record that earlier versions kept: `.rft/ledger.jsonl`, one unsigned line per act.

It becomes the first entries after the genesis, each marked as unsigned for ever. Later it cannot be
taken in any more: then an unsigned line could say that something was promoted.

A rejection in it was about one run and held until the next one, and nobody signed it. So it is
history and forbids nothing; `rejections` names those that somebody may want to say again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import ValidationError

from rft import commands, secrets
from rft.errors import UserError
from rft.reports.base import Report
from tasks.ledger import book
from tasks.ledger.book import Ledger
from tasks.ledger.entry import Imported
from tasks.ledger.facts import BEGINNING
from tasks.ledger.state import State
from tasks.ledger.statement import Time
from tasks.runs.clone import Clone


class Line(Report):
    """One line. `before` and `after` are versions of MLflow's registry."""

    id: str
    action: Literal["promote", "reject", "rollback"]
    when: Time
    who: str
    why: str
    model: str
    run: str | None
    revision: str | None
    decision_sha256: str | None = None
    before: str | None = None
    after: str | None = None
    overrides: list[str] = []
    own_run: bool = False


def lines(clone: Clone) -> list[Line]:
    """Oldest first; a last line that a crash cut off is none. Raises UserError naming the line that
    cannot be read."""
    text = clone.ledger.read_text(encoding="utf-8") if clone.ledger.exists() else ""
    found: list[Line] = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            found.append(Line.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            value = f" = {secrets.redact(str(first['input']))[:80]!r}" if key else ""
            raise _wrong(clone, number, f"not an entry of the record: {key}{value}: {first['msg']}") from None
    return found


def _wrong(clone: Clone, number: int, what: str) -> UserError:
    return UserError(f"{clone.ledger}:{number}: {what}. Restore the line; nothing was changed.")


def rejections(clone: Clone) -> list[str]:
    """The runs whose last line is a rejection."""
    last = {line.run: line.action for line in lines(clone) if line.run and line.action != "rollback"}
    return [run for run, action in last.items() if action == "reject"]


def refuse_forgotten(clone: Clone, state: State) -> None:
    """Raise UserError where there is such a record, and the ledger begins without it: what was
    approved then would be forgotten."""
    if state.number == 0 and clone.ledger.exists() and lines(clone):
        take = commands.command("ledger", "import")
        raise UserError(f"{clone.ledger} holds approvals of an earlier version. Take them in first: {take}")


def take_in(clone: Clone, said: Callable[[str], None] = print) -> int:
    """Raises UserError when there is nothing to take in, or the ledger has other entries."""
    found = lines(clone)
    if not found:
        raise UserError(f"{clone.ledger}: there is no record of an earlier version to take in.")

    def act(ledger: Ledger) -> int:
        now = book.now(ledger)
        for number, line in enumerate(found, 1):
            if line.action == "promote" and not (line.run and line.revision):
                raise _wrong(clone, number, "a promotion without its run and revision")
            if line.when > now:
                raise _wrong(clone, number, f"when = {line.when!r} is in the future, for it is only {now}")
        ledger.begin()
        done = len(ledger.state.imported)
        for line in found[done:]:
            ledger.append(_entry(ledger, line))
        return len(found)

    return book.acting(clone, act, said)


def _entry(ledger: Ledger, line: Line) -> Imported:
    now = ledger.state.champion(line.model)
    to = _promotion_of(ledger, line) if line.action == "rollback" else BEGINNING
    return Imported(
        model=line.model,
        action=line.action,
        when=line.when,
        who=secrets.redact(line.who),
        why=secrets.redact(line.why),
        run=line.run,
        revision=line.revision,
        decision_sha256=line.decision_sha256,
        before=now,
        to=to,
        overrides=line.overrides,
    )


def _promotion_of(ledger: Ledger, line: Line) -> int:
    made = ledger.state.promotions.values()
    return max((each.number for each in made if (each.model, each.run) == (line.model, line.run)), default=BEGINNING)
