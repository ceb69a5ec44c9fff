"""Those who are told (`run.notify`): their servers answer, and take our login. Nothing is sent.

A warning at most: a run does not need them, but a request that nobody hears of waits for ever.
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
        warn(str(outcome), f"Until {outcome.setting} works, nobody is told by it: docs/notify.md.")
        for outcome in found
        if outcome.problem
    ]
    return together(problems, ", ".join(f"{each} answers" for each in found if not each.problem) or "nobody answers")
