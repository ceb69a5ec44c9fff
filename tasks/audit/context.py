"""What the parts of one audit share: the verified ledger, the bytes, and the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tasks.audit import store
from tasks.audit.graph import Graph
from tasks.audit.shown import Shown
from tasks.audit.store import Store
from tasks.ledger.book import Ledger
from tasks.ledger.key_compromise import KeyCompromise
from tasks.ledger.state import State
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone


@dataclass
class Context:
    ledger: Ledger
    store: Store
    shown: Shown
    report_line: Callable[[str], None]
    graph: Graph = field(default_factory=Graph)
    audited: set[str] = field(default_factory=set[str])
    """The versions that were audited, not only named."""
    parsed: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    """(run, revision) -> revisions.Run"""
    revisions: dict[str, Revision] = field(default_factory=dict[str, Revision])

    @property
    def clone(self) -> Clone:
        return self.ledger.clone

    @property
    def state(self) -> State:
        return self.ledger.state

    @cached_property
    def key_compromises(self) -> dict[int, KeyCompromise]:
        return self.state.doubtful()

    @cached_property
    def refs(self) -> dict[str, list[tuple[str, str]]]:
        """Map each run to the refs of this clone that name its revision: (ref, commit)."""
        found: dict[str, list[tuple[str, str]]] = {}
        for line in self.clone.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/exps").splitlines():
            ref, commit = line.split()
            found.setdefault(ref.rpartition("/")[2], []).append((ref, commit))
        return found

    def at(self, commit: str) -> Revision:
        """Return a revision, whose dvc.lock is read once per audit."""
        return self.revisions.setdefault(commit, Revision(self.clone, commit))

    @property
    def head(self) -> str:
        state = self.state
        return f"entry {state.number}, {state.head}" if state.number else "no entry yet"


@contextmanager
def open_context(ledger: Ledger, fetches: bool, report_line: Callable[[str], None]) -> Iterator[Context]:
    with store.opened(ledger.clone, fetches) as found:
        yield Context(ledger, found, Shown(ledger.clone), report_line)
