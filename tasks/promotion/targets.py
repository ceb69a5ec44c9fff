"""What should be shown of a model, what is shown, and the interface of what shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tasks.ledger.facts import Move
from tasks.ledger.state import State


@dataclass(frozen=True)
class Target:
    """What should be shown of a model."""

    model: str
    ledger: str
    """The ledger's genesis."""
    act: int
    """The promotion or rollback that led to it."""
    champion: int
    previous: int | None


@dataclass(frozen=True)
class Shown:
    """What is shown. None: it does not say, for example because others made it."""

    ledger: str | None
    act: int | None
    champion: int | None
    previous: int | None
    begun: int | None = None
    """The act that a process was following when it was cut off."""
    description: str = ""
    """What was found, for the ledger's entry."""


class Projection(Protocol):
    @property
    def name(self) -> str: ...

    def shown(self, model: str) -> Shown | None:
        """Return what is shown; None: nothing yet."""
        ...

    def show(self, target: Target, state: State) -> None: ...


def targets(state: State) -> list[Target]:
    return [target_of(state, moves[-1]) for moves in state.moves.values()]


def target_of(state: State, move: Move) -> Target:
    """Return what should be shown after a promotion or rollback."""
    previous = state.promotions[move.champion].before if move.champion else None
    return Target(move.model, state.genesis, move.number, move.champion, previous)
