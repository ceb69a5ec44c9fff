"""What an audit found: a graph of what a model rests on, with the state of every link.

Nodes are things with a name: a version, an entry of the ledger, a run, a stage, bytes,
conversations. A link claims that one thing rests on another, and has the state of that claim.
tasks/audit writes the report. It is shown as text (flows), as JSON, and as a page
(rft/page/audit.py).

    verified         recomputed just now, and it fits
    altered          recomputed, and it does not fit
    missing          what the link names is neither here nor where it could be fetched from
    erased           it was removed on purpose, and there is a record of that
    doubtful         it fits, but rests on a key that is marked as compromised
    not verifiable   nobody can check it from here; `why` gives the reason
"""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report

State = Literal["verified", "altered", "missing", "erased", "doubtful", "not verifiable"]
STATES: tuple[State, ...] = ("altered", "missing", "doubtful", "erased", "not verifiable", "verified")
"""The worst first."""
BROKEN: frozenset[State] = frozenset({"altered", "missing", "doubtful"})

Kind = Literal[
    "alias",  # where people and servers look for what is served: MLflow, the champion's file
    "version",  # of a model: one promotion, or the beginning
    "ledger",
    "entry",
    "person",
    "machine",
    "run",
    "revision",
    "code",
    "parameters",
    "environment",  # packages, Python, the version of agent-rft
    "stage",
    "bytes",  # a file or folder that dvc.lock names
    "recipe",
    "tools",
    "base model",
    "weights",
    "prompt",
    "examples",
    "window",
    "conversations",
    "conversation",
    "example",
    "package",
]


class Node(Report):
    id: str
    """Unique in its audit, e.g. `run:20261122-2339-6c03`."""
    kind: Kind
    name: str
    """What people call it."""
    about: dict[str, str] = {}
    """What is known about it, in reading order."""


class Link(Report):
    """`source` rests on `target`."""

    source: str
    target: str
    says: str
    """What the link claims, as a phrase between the two names: `was promoted by`."""
    state: State
    why: str
    """What was compared, or why it could not be. A broken link has what, where, and the remedy."""


class Audit(Report):
    question: str
    """The end of a sentence: `what icd10, champion 6, rests on`."""
    answer: list[str] = []
    """The answer in words, where the question was not about one version: for example, which
    versions depend on something."""
    ledger: str
    """The ledger's last entry at that time: number and SHA-256; or that there is none."""
    root: str | None = None
    """The node that was asked about."""
    nodes: list[Node]
    """Each node once, in the order in which the audit reached it."""
    links: list[Link]

    def worst(self) -> State:
        """The worst state of all links."""
        found = {link.state for link in self.links}
        worst: State = "verified"
        for state in reversed(STATES):
            worst = state if state in found else worst
        return worst

    def broken(self) -> list[Link]:
        return [link for link in self.links if link.state in BROKEN]
