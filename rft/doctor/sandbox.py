"""Check whether a sandbox for a grader's source can be made here, and what it guarantees.

The check makes one (rft/sandbox/probe.py). The finding describes the sandbox even if no grader
needs it, because nothing else does before one is needed.
"""

from __future__ import annotations

import asyncio

from rft.doctor.finding import Finding, fail, ok, warn
from rft.doctor.setup import Setup
from rft.sandbox import probe
from rft.sandbox.probe import Info


def check(setup: Setup) -> Finding:
    info = asyncio.run(probe.machine()).info
    missing = info.missing()
    facts = {"level": info.level, **{guarantee.name: guarantee.held for guarantee in info.guarantees}}
    if not setup.recipe.grader.needs_sandbox:
        return ok(f"not needed, the grader is not a source; {_there(info)}", **facts)
    if not missing:
        return ok(_there(info), **facts)
    description = _there(info)
    if info.level == "none":
        return fail(description, "The grader's source runs in a sandbox only.", infrastructure=True, **facts)
    if setup.params.tools.weaker_sandbox:
        return warn(description, "The grader's source runs anyway: tools.weaker_sandbox is set.", **facts)
    remedy = "Repair it, or set tools.weaker_sandbox: true, if you trust the grader's source."
    return fail(description, remedy, infrastructure=True, **facts)


def _there(info: Info) -> str:
    missing = info.missing()
    if info.level == "none":
        return f"no sandbox can be made here: {missing[0].why}"
    if not missing:
        memory = next(guarantee.why for guarantee in info.guarantees if guarantee.name == "memory")
        return f"{info.level} holds {', '.join(guarantee.name for guarantee in info.guarantees)} ({memory})"
    return f"{info.level} does not hold " + "; ".join(f"{guarantee.name}: {guarantee.why}" for guarantee in missing)
