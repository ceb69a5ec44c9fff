"""Test sets that no later look can use: those that somebody read, and those whose list is erased.

    opened    Rollouts on the test set were shown. People who have read them choose the next prompt
              by them, even if they are honest. So a gain on these examples means nothing any more.
              The entry comes first, and then the rollouts are shown. Opening the set of the same
              run again is free.
    erased    The list by which looks at the examples are counted is gone, for example because a
              window of production is past its time. The number of looks that another set shares
              with it is not known any more.

Earlier requests stay valid: they were judged on a closed set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rft import reports, stage_files
from rft.errors import UserError
from tasks.ledger import book, statement
from tasks.ledger.book import Ledger
from tasks.ledger.entry import Erasure, Opened
from tasks.ledger.facts import Look
from tasks.ledger.policy import Policy
from tasks.ledger.state import State
from tasks.promotion import acts, counting
from tasks.promotion.acts import Signer
from tasks.runs import artifacts, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.run import user

ReportLine = Callable[[str], None]
HERE = "none: the shelves of a folder"
"""The name of the run for what `dvc repro` made by hand."""


@dataclass(frozen=True)
class Source:
    """The place of the rollouts that somebody wants to read."""

    run: str
    model: str
    read: Callable[[str], bytes | None]
    """Returns the content of a stage's file."""
    registration: bytes | None
    """The content of `registration.json`, which is in Git."""
    at: Revision | None = None


def of_run(clone: Clone, run: str, revision: str) -> Source:
    at = Revision(clone, revision)
    registered = at.file(str(stage_files.path(reports.Registration)))
    return Source(run, at.model, at.read, registered, at)


def of_folder(folder: Path, run: str, model: str) -> Source:
    def read(path: str) -> bytes | None:
        return (folder / path).read_bytes() if (folder / path).is_file() else None

    return Source(run, model, read, read(str(stage_files.path(reports.Registration))))


# -- opened ----------------------------------------------------------------------------------------
def open_test(clone: Clone, source: Source, why: str | None, report_line: ReportLine = print) -> int:
    """Open a test set, and retire it. Returns the entry that says so. `why` may be None if the set
    of this run is open already.

    Raises UserError without examples or without a reason. Raises InfrastructureError if the ledger,
    or the remote with the list of its examples, cannot be reached. Then nothing is shown.
    """
    examples = source.read(str(stage_files.examples_file("test")))
    if examples is None:
        raise UserError(f"run {source.run} has no test examples, so there is nothing to open.")
    key, state = book.acting(clone, lambda ledger: (counting.key(ledger), ledger.state), report_line)
    wanted = source.model, source.run, hashlib.sha256(examples).hexdigest()
    if number := _opened(state, wanted):
        return number
    if why is None:
        raise UserError("--open-test needs --reason TEXT: the ledger keeps it for everybody who asks a year later.")
    _know_secrets(clone, source)
    reason, test_sha256 = statement.reason(why), wanted[-1]
    lines = counting.lines(key, examples)
    listed = counting.listed(lines)
    if not state.erasure_of(test_sha256, listed):
        counting.keep(clone, lines)
    entry = reports.parse(reports.Registration, source.registration or b"{}", "registration.json").entry

    def act(ledger: Ledger) -> int:
        if number := _opened(ledger.state, wanted):
            return number
        look = ledger.state.looks.get(entry)
        made = Opened(
            model=source.model,
            run=source.run,
            test_sha256=test_sha256,
            registration=entry if look and look.act.test_sha256 == test_sha256 else 0,
            examples=listed,
            who=statement.text(user(clone)),
            reason=reason,
        )
        number = ledger.append(made).number
        report_line(f"[ledger] entry {number}: the test set of run {source.run} is open, and retired")
        return number

    return book.acting(clone, act, report_line)


def _opened(state: State, wanted: tuple[str, str, str]) -> int:
    """Return the entry that opened the test set of this model and run; 0: none did."""
    same = (n for n, act in state.opened.items() if (act.model, act.run, act.test_sha256) == wanted)
    return next(same, 0)


def _know_secrets(clone: Clone, source: Source) -> None:
    acts.know_secrets_here(clone)
    if source.at is not None:
        acts.know_secrets(source.at)


# -- erased ----------------------------------------------------------------------------------------
def erase(
    clone: Clone, number: int, why: str, signer: Callable[[Policy], Signer | None], report_line: ReportLine = print
) -> tuple[int, list[str]]:
    """Erase the list of examples of a registration. Returns the entry, and where else its bytes may
    lie. `signer` gives an owner, once there is one. For a list that the ledger calls erased, the
    bytes in this clone are removed again."""
    reason = ""

    def act(ledger: Ledger) -> tuple[int, Look]:
        look = ledger.state.looks.get(number)
        if look is None:
            every = ", ".join(map(str, ledger.state.looks)) or "none yet"
            raise UserError(f"entry {number} registers no look at a test set. These do: {every}.")
        if known := ledger.state.erasure_of(look.act.test_sha256, look.act.examples):
            return known, look
        made = Erasure(model=look.act.model, registration=number, reason=reason)
        if (who := signer(ledger.state.policy)) is None:
            return ledger.append(made).number, look
        to_sign = ledger.statement("erase", reason, model=made.model, registration=ledger.state.ids[number])
        return acts.append(ledger, made, to_sign, who).number, look

    acts.know_secrets_here(clone)
    reason = statement.reason(why)
    entry, look = book.acting(clone, act, report_line)
    out = counting.out(look.act.examples)
    artifacts.path_of(clone, out).unlink(missing_ok=True)
    return entry, transfer.places(clone, out)
