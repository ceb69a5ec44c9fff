"""Check that the servers of `run.notify` answer and accept our login. Nothing is sent.

A problem is only a warning, because a run does not need these servers. But a request of which
nobody is told waits for ever.
"""

from __future__ import annotations

from rft import notices
from rft.doctor.finding import Finding, ok, together, warn
from rft.doctor.setup import Setup


def check(setup: Setup) -> Finding:
    section = setup.params.run.notify
    if section.webhook is None and section.mail is None:
        return ok("nobody is told of a waiting request: run.notify is not set")
    found = notices.reach(section)
    problems = [
        warn(str(outcome), f"Until {outcome.setting} works, it tells nobody: docs/notify.md.")
        for outcome in found
        if outcome.problem
    ]
    return together(problems, ", ".join(f"{each} answers" for each in found if not each.problem) or "nobody answers")
