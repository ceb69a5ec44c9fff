"""The limits that a version's documents must state.

They say what the version was not shown to do, and what nobody can verify. Each limit is a sentence
made from the facts alone, the most important one first.
"""

from __future__ import annotations

from collections.abc import Iterator

from rft.formatting import counted
from rft.reports import wording
from tasks.ledger.facts import BEGINNING
from tasks.provenance.subject import Subject


def limits(subject: Subject) -> list[str]:
    return [*_approved(subject), *_judged(subject), *_verifiable(subject)]


def _approved(subject: Subject) -> Iterator[str]:
    if subject.number == BEGINNING:
        yield "Nobody approved it: it is what was served before the first promotion."
    if subject.key_compromise:
        yield f"Its promotion is doubtful: entry {subject.number} of the ledger {subject.key_compromise}."
    if subject.withdrawn:
        yield f"It was rolled back by {subject.withdrawn}."
    if subject.edits_sha256 is not None:
        edited = counted(len(subject.edited), "uncommitted file")
        outcome = "an owner took the responsibility" if subject.overrides else "nobody took the responsibility"
        yield f"Its run worked with {edited} beside the code commit; {outcome}."


def _judged(subject: Subject) -> Iterator[str]:
    if subject.measured is None:
        yield "No measurement of it is on record."
    else:
        rollouts = counted(subject.measured.k, "rollout")
        examples = counted(len(subject.measured.rows), "example")
        yield (
            f"It was measured on {examples} of {subject.measured_on}, {rollouts} each, at temperature "
            f"{subject.measured.temperature:g}. It was not measured on other tasks, tools or languages."
        )
    if subject.decision is not None and (unprotected := wording.unprotected(subject.decision.checks)):
        yield f"{unprotected[0].upper()}{unprotected[1:].rstrip('.')}."
    if subject.look is not None and not subject.look.by_policy:
        yield "Its look at the test set was registered under other thresholds than the policy's."
    if subject.look is not None and subject.look.act.look > 1:
        yield f"It was look {subject.look.act.look} at this test set."


def _verifiable(subject: Subject) -> Iterator[str]:
    if subject.base.kind == "served":
        yield "Its base model is served elsewhere: its hash covers only the address and the name."
    elif subject.base.kind in ("given", "warm_started"):
        name = subject.base.base or subject.base_name
        yield f"The base model {name} was given: its bytes have a hash, and where they came from is not verifiable."
    tools = subject.params.get("tools", {})
    servers = [tools["server_url"]] if tools.get("server_url") else []
    servers += [one.get("name", "") for one in (*tools.get("endpoints", []), *tools.get("mcp", []))]
    if servers:
        version = f"version {tools['version']!r} is what its owner declared" if tools.get("version") else "no version"
        yield f"Tools of {counted(len(servers), 'server')} outside of the recipe are not verifiable ({version})."
    if not subject.python:
        yield f"Its packages are those {subject.packages_from}."
