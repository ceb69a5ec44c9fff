"""One game: a secret, six guesses, and the record of what was guessed and how it was marked.

The environment keeps the record. The grader reads it and nothing else about the game, so no text
that a policy writes can change what happened. A guess that is not a word of the dictionary, or that
was made before, costs a turn like any other. Once the secret is found or six guesses are made, the
game is over, and what comes later changes nothing.

A guess whose reply was lost is sent again with the same call id and the same word. It gets the same
reply, and costs no second turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .words import GRAY, GREEN, SOLVED, YELLOW, Clue, Dictionary, marks

GUESSES = 6
WON, OVER = " , solved", " the game is over"
UNKNOWN, REPEATED = " no such word", " said before"
MAX_SHOWN = 40
"""How many characters the record keeps of a guess that is not a word."""


@dataclass(frozen=True, slots=True)
class Move:
    """A guess as it was made. `marks` is empty for one that was wasted."""

    word: str
    marks: str
    is_given: bool = False
    """Whether the player made it, before the agent came."""

    @property
    def num_green(self) -> int:
        return self.marks.count(GREEN)

    @property
    def num_yellow(self) -> int:
        return self.marks.count(YELLOW)


@dataclass
class Game:
    dictionary: Dictionary
    secret: str
    moves: list[Move] = field(default_factory=list)
    is_spelled: bool = False
    """Whether replies also give the marks letter by letter."""
    _replies: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def begun(cls, dictionary: Dictionary, secret: str, given: Sequence[str], is_spelled: bool = False) -> Game:
        """Begin after the guesses that the player made. Raises ValueError for a game that cannot
        be, so that nobody is scored by a broken row."""
        if secret not in dictionary.known:
            raise ValueError(f"the target {secret!r} is not a word of the dictionary")
        is_new = len({secret, *given}) == 1 + len(given)
        if not 0 < len(given) < GUESSES or not is_new or not dictionary.known.issuperset(given):
            raise ValueError(f"given = {given!r}: expected up to {GUESSES - 1} different words that are not the target")
        return cls(dictionary, secret, [Move(word, marks(word, secret), is_given=True) for word in given], is_spelled)

    @property
    def is_solved(self) -> bool:
        return self.moves[-1].marks == SOLVED

    @property
    def num_left(self) -> int:
        return GUESSES - len(self.moves)

    @property
    def own(self) -> list[Move]:
        """Return the agent's guesses."""
        return [move for move in self.moves if not move.is_given]

    @property
    def clues(self) -> list[Clue]:
        return [(move.word, move.marks) for move in self.moves if move.marks]

    def guess(self, text: str, call_id: str) -> str:
        """Make a guess, and return the reply."""
        call = call_id, text  # both: some servers count the ids of each turn from 0
        if call not in self._replies:
            self._replies[call] = self._made(text)
        return self._replies[call]

    def _made(self, text: str) -> str:
        if self.is_solved or not self.num_left:
            return OVER
        word = text.strip(" ").lower() if text.isascii() else text  # so no letter passes that only looks like one
        if word not in self.dictionary.known:
            self.moves.append(Move(text[:MAX_SHOWN], ""))
            return UNKNOWN + self.state
        if any(move.word == word for move in self.moves):
            self.moves.append(Move(word, ""))
            return REPEATED + self.state
        self.moves.append(Move(word, marks(word, self.secret)))
        return clue(self.moves[-1], self.is_spelled) + self.state

    @property
    def state(self) -> str:
        """Say how the game stands."""
        return WON if self.is_solved else f" , {self.num_left} left"


def clue(move: Move, is_spelled: bool = False) -> str:
    """Write a guess with its marks. A policy copies these two tokens from a reply into a call of
    `find`. `is_spelled`: also letter by letter, for a model whose tokens are not words."""
    text = f" {move.word} {move.marks}"
    if not is_spelled:
        return text
    pairs = (f"{letter} {_NAMES[mark]}" for letter, mark in zip(move.word, move.marks, strict=True))
    return f"{text} ( {' , '.join(pairs)} )"


_NAMES = {GREEN: "green", YELLOW: "yellow", GRAY: "gray"}
