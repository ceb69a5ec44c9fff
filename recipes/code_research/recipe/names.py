"""Invented names: what a package's own names become in a workspace.

A name is one head and one or more tails: `kav` + `el`. It keeps the style of the name that it
replaces, so that a class still looks like one: `_ClientPool` becomes `_Kavel`, `MAX_SIZE` becomes
`KAVEL`. The pieces are few, and `pieces` lists them for the embedded policy's tokenizer: a small
policy copies a name of two tokens well, and spells badly.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

_CONSONANTS, _VOWELS, _ENDS = "bdfgklmnprstvz", "aeiou", "bdfgklmnprstvz"
HEADS = [a + b + c for a, b, c in itertools.product(_CONSONANTS, _VOWELS, _ENDS) if a != c][::6][:144]
TAILS = [a + b for a, b in itertools.product(_VOWELS, _ENDS)][:70]
DRAWS = 20
"""How often a name is drawn before it gets one more tail."""


def pieces() -> list[str]:
    """List every piece in every style, heads also with the dot that joins two names of a symbol."""
    heads = [style for head in HEADS for style in (head, head.capitalize(), head.upper())]
    tails = [style for tail in TAILS for style in (tail, tail.upper())]
    return [*heads, *(f".{head}" for head in heads), *tails]


class Inventor:
    """Draws names that are all different, whatever their case. Equal seeds draw equal names."""

    def __init__(self, seed: str, taken: Iterable[str] = ()) -> None:
        self._rng = random.Random(seed)
        self._taken = {name.strip("_").lower() for name in taken}

    def name(self) -> str:
        for draw in itertools.count():
            tails = self._rng.choices(TAILS, k=1 + draw // DRAWS)
            found = self._rng.choice(HEADS) + "".join(tails)
            if found not in self._taken:
                self._taken.add(found)
                return found
        raise AssertionError("unreachable: names grow until one is free")

    def like(self, name: str) -> str:
        """Draw a name in the style of `name`: its underscores at both ends, its case."""
        stem = name.strip("_")
        before = name[: len(name) - len(name.lstrip("_"))]
        after = name[len(name.rstrip("_")) :]
        found = self.name()
        if stem.isupper():
            found = found.upper()
        elif stem[:1].isupper():
            found = found.capitalize()
        return before + found + after
