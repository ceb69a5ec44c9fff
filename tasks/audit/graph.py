"""Build an audit: each node once, and links with the result of their check.

A check is a function that returns why a link fits, or raises. What it raises becomes the state of
the link. So a claim that could not be checked is never green, whatever went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from rft import secrets
from rft.errors import RftError
from rft.reports.audit import Audit, Kind, Link, Node, State
from rft.reports.base import Newer

Check = Callable[[], str]
SHORT = 12
"""Characters of a hash that are shown to people."""


class Broken(Exception):
    """A link is not verified; `state` says what it is instead."""

    def __init__(self, state: State, why: str) -> None:
        super().__init__(why)
        self.state: State = state
        self.why = why


def altered(why: str) -> Broken:
    return Broken("altered", why)


def missing(why: str) -> Broken:
    return Broken("missing", why)


def unverifiable(why: str) -> Broken:
    return Broken("not verifiable", why)


def fits(found: object, named: object, what: str) -> None:
    """Raise Broken unless what was found is what is named."""
    if found != named:
        raise altered(f"{what}: found {found}, but {named} is named")


@dataclass
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    links: dict[tuple[str, str, str], Link] = field(default_factory=dict[tuple[str, str, str], Link])

    def add(self, kind: Kind, name: str, shown: str | None = None, **about: str | None) -> str:
        """Add a node, or add facts to one that is there. Returns its id."""
        key = f"{kind}:{name}"
        told = {word.replace("_", " "): secrets.redact(value) for word, value in about.items() if value is not None}
        before = self.nodes.get(key)
        label = shown or (before.name if before else name)
        self.nodes[key] = Node(id=key, kind=kind, name=label, about={**(before.about if before else {}), **told})
        return key

    def knows(self, kind: Kind, name: str) -> bool:
        return f"{kind}:{name}" in self.nodes

    def link(self, source: str, says: str, target: str, check: Check) -> State:
        """Check a link now and add it. Returns its state."""
        state, why = state_of(check)
        self.links[source, says, target] = Link(
            source=source, target=target, says=says, state=state, why=secrets.redact(why)
        )
        return state

    def audit(self, question: str, ledger: str, root: str | None, answer: list[str] | None = None) -> Audit:
        return Audit(
            question=question,
            answer=answer or [],
            ledger=ledger,
            root=root,
            nodes=[*self.nodes.values()],
            links=[*self.links.values()],
        )


def state_of(check: Check) -> tuple[State, str]:
    try:
        return "verified", check()
    except Broken as broken:
        return broken.state, broken.why
    except Newer as error:
        return "not verifiable", str(error)
    except RftError as error:  # our own readers name what does not fit, with the remedy
        return "altered", str(error)
    except ValidationError as error:  # from a report that a reader expected to be whole
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        return "altered", f"what it names is not a whole {error.title}: {key}: {first['msg']}"
