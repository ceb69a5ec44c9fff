"""`rft cancel RUN`: ask a run to end at its next checkpoint, and wait until it has."""

from __future__ import annotations

import time

from flows.screen import say
from rft import commands
from tasks import cancel, clone, records

EVERY_S = 5.0


def show(run: str, now: bool, patience_s: float) -> int:
    here = clone.enter()
    record = records.find(here, run)
    told = 0.0

    def tell(line: str) -> None:
        nonlocal told
        if not told:
            say(f"Run {record.name} is asked to end {'now' if now else 'at its next checkpoint'}.")
        if time.monotonic() - told >= EVERY_S and line:
            say(f"  {line}")
        told = told if told and time.monotonic() - told < EVERY_S else time.monotonic()

    ended = cancel.cancel(here, record, now, patience_s, tell)
    if ended is None:
        say(f"Run {record.name} is ended. It had not begun, or its worktree and its commit were gone: there was nothing to record.")
        return 0
    say(f"Run {ended.name} is cancelled, and recorded as revision {(ended.revision or '')[:10]}.")
    say(f"What it did is kept until it is past its retention. A new run that takes it up: {ended.again}")
    say(f"To clear away what is past it: {commands.command('gc')}")
    return 0
