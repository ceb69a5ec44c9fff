"""Who approved, rejected and rolled back what, when and why: `.rft/ledger.jsonl`, one line per act,
append-only.

It is a record, not a proof: nothing is signed, and whoever can write the file can rewrite it. An
act that moves the champion is announced before it begins (`pending.json`), and each of its steps
can be repeated. So an act that was cut off is finished at the next start, under the same id, and
appears in the ledger once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rft import reports, secrets
from rft.errors import UserError
from tasks.runs.clone import Clone


class Act(reports.Report):
    """One line of the ledger. `before` and `after` are the registry's versions of the champion."""

    id: str
    action: Literal["promote", "reject", "rollback"]
    when: str
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
    """The approver also started the run. Allowed, and recorded."""


def acts(clone: Clone) -> list[Act]:
    """Oldest first. Raises UserError naming the line that cannot be read."""
    found: list[Act] = []
    for number, line in enumerate(_whole(clone.ledger).splitlines(), 1):
        try:
            found.append(Act.model_validate_json(line))
        except ValidationError as error:
            what = f"{clone.ledger}:{number}: not an entry of the ledger ({error.errors()[0]['msg']})"
            raise UserError(f"{what}. Restore the file; nothing was changed.") from None
    return found


def append(clone: Clone, act: Act) -> None:
    """Idempotent per id: a repeated act changes nothing."""
    if any(known.id == act.id for known in acts(clone)):
        return
    whole = _whole(clone.ledger).encode()
    line = secrets.dumps(act.model_dump(mode="json"), ensure_ascii=False).encode() + b"\n"
    with clone.ledger.open("ab") as file:
        file.truncate(len(whole))  # a line that a crash cut in half
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def decided(clone: Clone, run: str) -> Act | None:
    """The latest act on a run."""
    return next((act for act in reversed(acts(clone)) if act.run == run), None)


def announce(clone: Clone, act: Act) -> None:
    reports.write(act, pending(clone))


def pending(clone: Clone) -> Path:
    return clone.state / "pending.json"


def announced(clone: Clone) -> Act | None:
    path = pending(clone)
    return reports.parse(Act, path.read_bytes(), str(path)) if path.exists() else None


def _whole(path: Path) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1]
