"""The dictionary of a game: its words, how a guess is marked, and which split a secret is in.

A mark is five letters, one for each letter of the guess:

    g    green: the secret has this letter here
    y    yellow: it has the letter elsewhere
    x    gray: it has no such letter, or no more of them

A letter that a guess holds twice is marked as in the real game: greens first, then yellows from
left to right, as many as the secret has left. So `marks("error", "river") == "yyxxg"`.

The default dictionary is a list of our own (words.txt), so that a run does not depend on what a
machine has installed. `recipe.options.dictionary` names another one: Debian's list
(/usr/share/dict/words of the package `wamerican`), or a file of the user's. Names, abbreviations
and words of another length are left out of it.

All words may be guessed in all games: the dictionary is public. A stable hash splits the secrets,
and the words of the guesses that an example begins with. So no secret of the test split was ever a
secret in training, and no input is in two splits.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rft.errors import UserError
from rft.types import SPLITS, Split

OWN = Path(__file__).with_name("words.txt")
LENGTH = 5
GREEN, YELLOW, GRAY = "g", "y", "x"
SOLVED = GREEN * LENGTH
EVERY_MARK = tuple("".join(letters) for letters in itertools.product(GREEN + YELLOW + GRAY, repeat=LENGTH))
MIN_WORDS = 100
"""A game in which fewer words are possible is over after a guess or two."""
MIN_OF_SPLIT = 4
"""Enough for a secret and up to three words that were guessed before (Options.given)."""
_WORD = re.compile(rf"[a-z]{{{LENGTH}}}")
_KEY = "params.yaml: recipe.options.dictionary"
_REMEDY = "Name a list of English words, one a line, such as /usr/share/dict/words, or remove the key."
Clue = tuple[str, str]
"""A guess and its marks."""


@dataclass(frozen=True, eq=False)  # equal only to itself, so that hashing is fast
class Dictionary:
    words: tuple[str, ...]  # sorted

    @functools.cached_property
    def known(self) -> frozenset[str]:
        return frozenset(self.words)

    @functools.cached_property
    def of_split(self) -> dict[Split, tuple[str, ...]]:
        return {split: tuple(word for word in self.words if split_of(word) == split) for split in SPLITS}

    def fitting(self, clues: list[Clue]) -> list[str]:
        """Return the words that could be the secret. Their order means nothing, but equal clues
        give the same order."""
        places: Sequence[int] = range(len(self.words))
        for guess, given in clues:
            row = _against_all(self, guess)
            places = [place for place in places if row[place] == given]
        return sorted(
            (self.words[place] for place in places),
            key=lambda word: hashlib.sha256(f"{clues} {word}".encode()).digest(),
        )


@functools.lru_cache(maxsize=1 << 12)
def _against_all(dictionary: Dictionary, guess: str) -> tuple[str, ...]:
    """Return the marks of a guess for each word as the secret. A cache helps, because a run guesses
    the same words again and again."""
    return tuple(marks(guess, secret) for secret in dictionary.words)


def marks(guess: str, secret: str) -> str:
    """Mark a guess as the module says."""
    left = [theirs for ours, theirs in zip(guess, secret, strict=True) if ours != theirs]
    found: list[str] = []
    for ours, theirs in zip(guess, secret, strict=True):
        if ours == theirs:
            found.append(GREEN)
        elif ours in left:
            left.remove(ours)
            found.append(YELLOW)
        else:
            found.append(GRAY)
    return sys.intern("".join(found))  # 243 strings in all, each in memory once


def split_of(word: str) -> Split:
    """Assign 60 / 20 / 20 by hash, so that a word never changes its split. A fifth of our own list
    has enough secrets for a test that asks for each of them once."""
    bucket = int.from_bytes(hashlib.sha256(f"wordle {word}".encode()).digest()[:8], "big") % 5
    return "test" if bucket == 4 else "validation" if bucket == 3 else "train"


def dictionary(path: str | None = None) -> Dictionary:
    """Read a file, by default our own list. Raises UserError, which names the file and what is
    wrong."""
    return _read(OWN if path is None else Path(path))


@functools.lru_cache(maxsize=8)
def _read(path: Path) -> Dictionary:
    where = f"{_KEY} = {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start} is not UTF-8. {_REMEDY}") from None
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror}). {_REMEDY}") from None
    every = text.split()
    found = Dictionary(tuple(sorted({word for word in every if _WORD.fullmatch(word)})))
    size = f"words in it: {len(every)}; different ones of {LENGTH} letters a to z: {len(found.words)}"
    if len(found.words) < MIN_WORDS:
        raise UserError(f"{where}: {size}, and a game needs {MIN_WORDS}. {_REMEDY}")
    for split, words in found.of_split.items():
        if len(words) < MIN_OF_SPLIT:
            few = f"the hash leaves {len(words)} for {split}, which needs {MIN_OF_SPLIT}"
            raise UserError(f"{where}: {size}; {few}. {_REMEDY}")
    return found
