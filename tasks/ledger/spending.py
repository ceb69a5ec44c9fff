"""How much of alpha looks at the same examples have spent, and how much one more look may spend.

The rules are in rft/gate/terms.py. The ledger sees test sets and not their examples, so `authorise`
counts the looks at the same set. The clones that register, ask for a promotion or approve one have
the lists of examples. They count every look that shares an example (tasks/promotion/counting.py).
Both use these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rft.errors import UserError
from rft.gate import terms
from tasks.ledger.entry import Registration, gate_of
from tasks.ledger.facts import Look, what_of

FRESH = "Take fresh test examples (another examples.seed or block, none of them used before)."
"""The remedy for a test set that cannot be looked at any more."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Past:
    """Earlier looks at the examples of a look."""

    look: int
    """The number of this look."""
    spent: float
    """The part of alpha that earlier looks have spent."""
    most: float | None
    """The level that this very look had before, under other terms."""
    overlapping: tuple[Look, ...]
    """Looks that share examples with it, including itself under other terms."""


def past(wanted: Registration, looks: Sequence[Look]) -> Past:
    """Count the looks that share all their examples with this one. The same look again keeps its
    number."""
    first = _first(looks)
    same = first.get(what_of(wanted))
    others = [look for what, look in first.items() if what != what_of(wanted)]
    if same is not None:
        others = [look for look in others if look.number < same.number]
    number = same.act.look if same else 1 + max((look.act.look for look in looks), default=0)
    return Past(number, sum(price(look, looks) for look in others), level_before(wanted, looks), tuple(looks))


def level_before(wanted: Registration, looks: Iterable[Look]) -> float | None:
    """Return the level of this very look under other terms; None: it is new."""
    found = [look.price / terms.CANDIDATES for look in looks if look.what == what_of(wanted)]
    return min(found, default=None)


def price(look: Look, looks: Iterable[Look]) -> float:
    """Return the cost of a look, which may have been registered several times under several
    terms."""
    return max(each.price for each in looks if each.what == look.what)


def level(wanted: Registration, past: Past) -> float:
    """Return the level that a look may have. Raises UserError if nothing is left of alpha, or if
    its terms are looser than the policy's were at an earlier look at its examples. A look is
    compared with the policy's terms at that time, not with the terms of the earlier look itself."""
    gate = wanted.gate
    for look in past.overlapping:
        then = gate_of(look.policy)
        if loosened := terms.loosened_keys(gate, then):
            was = ", ".join(f"{key} was {then[key]}, and is {gate[key]}" for key in loosened)
            raise UserError(
                f"when entry {look.number} looked at these test examples, the policy had stricter terms: in section "
                f"gate, {was}. Terms that are chosen after a result are none. Keep the terms, or: {FRESH}"
            )
    found = terms.level(gate["alpha"], gate["looks"], past.look, past.spent)
    if found <= _ROUNDING:
        raise UserError(
            f"nothing is left of gate.alpha = {gate['alpha']:g}: earlier looks at these test examples have spent "
            f"{past.spent:.3g}. More looks cannot be had by raising gate.looks. {FRESH}"
        )
    return found if past.most is None else min(found, past.most)


def assert_paid(act: Registration, past: Past) -> None:
    """Raise UserError for a registration that spends more than it may."""
    most = level(act, past)
    if act.level is None or act.level > most * (1 + _ROUNDING):
        claim = "does not say its level" if act.level is None else f"asks at the level {act.level:.6g}"
        raise UserError(f"a look at test set {act.test_sha256[:12]} {claim}, and may ask at {most:.6g} at most.")


def _first(looks: Iterable[Look]) -> dict[tuple[object, ...], Look]:
    """Return the first registration of each look."""
    found: dict[tuple[object, ...], Look] = {}
    for look in looks:
        found.setdefault(look.what, look)
    return found


__all__ = ["FRESH", "Past", "assert_paid", "level", "level_before", "past", "price"]
