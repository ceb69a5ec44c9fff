"""The figure of completeness: an audit finds all that rests on a conversation, and nothing else.

A year is simulated (audit_world.py), and questions are asked from both ends: on which conversations
does this version rest, and which runs and versions rest on this conversation? Each answer is
compared with a search through every revision that uses none of our code (audit_search.py). Each
conversation or version that is missing or too many is one difference.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from bench import audit_search, audit_world
from bench.audit_search import Found, Version
from bench.measure import Figure, Part
from rft.reports.audit import Audit
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from tasks.audit.upwards import Sought

RUNS, ENTRIES, ASKED = 64, 300, 50


def audit_complete(args: list[str]) -> Figure:
    """50 conversations and 50 versions of a year, asked about upwards and downwards: answers that
    differ from an exhaustive search (0)."""
    small = "--small" in args
    runs, entries, asked = (7, 45, 6) if small else (RUNS, ENTRIES, ASKED)
    with tempfile.TemporaryDirectory() as place, audit_world.entered(Path(place)):
        world = audit_world.year(Path(place), runs, entries)
        found = audit_search.search(world.scripted.root)
        rng = Random(0)
        every = sorted(set[str]().union(*found.windows.values()))
        conversations = rng.sample(every, min(asked, len(every)))
        versions = rng.sample(found.versions, min(asked, len(found.versions)))
        examples = rng.sample(sorted(set[str]().union(*found.examples.values())), asked // 2)
        up = {each: upwards(world.clone, found, each) for each in conversations}
        down = {f"{each.model}@{each.number}": downwards(world.clone, each) for each in versions}
        taught = {each: of_example(world.clone, found, each) for each in examples}
    wrong = {what: why for answers in (up, down, taught) for what, why in answers.items() if why}
    for what, why in wrong.items():
        print(f"WRONG {what}: {why}", file=sys.stderr)
    shared = sum(len(found.versions_with(each)) > 1 for each in conversations)
    parts = (
        Part("answers that differ from a search by force", len(wrong), "answers", at_most=0, n=len(up) + len(down)),
        Part("conversations asked about", len(up), at_least=None if small else ASKED),
        Part("versions asked about", len(down), at_least=None if small else ASKED),
        Part("of the conversations, behind more than one version", shared, at_least=1),
        Part("training examples asked about", len(taught)),
        Part("runs of the year", len(found.windows)),
    )
    return Figure(parts, {"wrong": wrong} if wrong else None)


def upwards(clone: Clone, found: Found, conversation: str) -> str:
    """Say what differs. Empty: nothing does."""
    from tasks.audit.upwards import Sought

    audit = _asked(clone, Sought("conversation", conversation))
    runs, versions = _runs(audit), _versions(audit)
    wanted = {f"version:{model}@{number}" for model, number in found.versions_with(conversation)}
    return _differ("runs", runs, found.runs_with(conversation)) + _differ("versions", versions, wanted)


def downwards(clone: Clone, version: Version) -> str:
    from tasks import audit

    question = audit.Question(f"{version.model}@{version.number}")
    told = {*audit.conversations(clone, question, report_line=audit_world.silent)}
    return _differ("conversations", told, version.conversations)


def of_example(clone: Clone, found: Found, example: str) -> str:
    from tasks.audit.upwards import Sought

    wanted = {run for run, ids in found.examples.items() if example in ids}
    return _differ("runs", _runs(_asked(clone, Sought("example", example))), wanted)


def _asked(clone: Clone, sought: Sought) -> Audit:
    from tasks import audit

    return audit.ask(clone, audit.Question(sought=sought), report_line=audit_world.silent)


def _runs(audit: Audit) -> set[str]:
    """Return the runs that hold what was sought."""
    return {link.source.removeprefix("run:") for link in audit.links if link.target == audit.root}


def _versions(audit: Audit) -> set[str]:
    return {node.id for node in audit.nodes if node.kind == "version"}


def _differ(what: str, told: set[str], wanted: set[str] | frozenset[str]) -> str:
    more, less = sorted(told - wanted), sorted(wanted - told)
    sentences = [f"{len(more)} {what} too many ({', '.join(more[:3])}). "] if more else []
    sentences += [f"{len(less)} {what} too few ({', '.join(less[:3])}). "] if less else []
    return "".join(sentences)


FIGURES = {"audit_complete": audit_complete}
