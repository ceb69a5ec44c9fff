"""What the agent may call, and what a game is worth. Served over HTTP by `rft.tools.server`.

Each rollout has its own game on the server (`setup`). The policy can change the game only by a
guess. The grade is read from that game's record.

The rubric is the classic one of the verifiers library. One point is for the secret itself:

    solved       1  +  1 / n  +  0.2 * f
    not solved   0.2 * greens  +  0.1 * yellows  +  0.2 * f

    n        the number of the guess that hit, counting the player's own and every wasted one
    greens   and yellows: counted in the last marks that the game gave to a guess of the agent
    f        the share of the agent's turns that were valid guesses. In a game that is not solved,
             all the turns that it had are counted, so giving up pays only for what was played. If
             nobody can read the agent's last call, f is 0, also after the hit

The score is this sum divided by the most that this game can give. That is a hit with the agent's
first guess: 1 + 1/2 + 0.2 after one guess of the player. So the score lies between 0 and 1. With
one guess given, every game that is solved without a wasted turn scores at least 0.8, and a game
that is not solved at most 0.59.

A call of `guess` may be refused before it reaches the game, because its arguments fit no schema. It
costs a turn all the same: the record of the rollout holds it. What comes after the sixth turn,
refused calls included, counts for nothing. If a rollout tried to please the grader instead of
playing, hacks.py names how, and the score is 0.
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any

from pydantic import Field

from rft.recipe import Rollout, ToolError

from . import hacks, words
from .game import GUESSES, Game, Move

MAX_CLUES = GUESSES - 1
MAX_FOUND = 10
"""The most words that `find` lists."""
NONE_FIT = " none"
LOST = GUESSES + 1
"""The number of guesses that players count for a game that is not solved."""
REFUSED = Move("a call that fits no schema", marks="")
_CLUE = re.compile(r"(?<!\S)([a-z]{5}) +([gyx]{5})(?!\S)")


def setup(rollout: Rollout) -> None:
    """Begin the rollout's game. Raises ValueError if no game can be made of the row."""
    settings = rollout.item["metadata"]
    dictionary = words.dictionary(settings.get("dictionary"))
    is_spelled = bool(settings.get("spelled"))
    rollout.state = Game.begun(dictionary, rollout.item["target"], settings["given"], is_spelled)


def guess(rollout: Rollout, call_id: str, word: Annotated[str, Field(description="a word of five letters")]) -> str:
    """Guess the secret word. A letter is marked g if it is right, y if it is elsewhere, else x."""
    return rollout.state.guess(word, call_id)


def find(
    clues: Annotated[str, Field(description="guesses with their marks, such as: crane xygxx ; sloth xxyxx")],
    k: Annotated[int, Field(ge=1, le=MAX_FOUND, description="number of words")] = 4,
    item: dict[str, Any] | None = None,
) -> str:
    """List some words of the dictionary that fit all clues. It costs no guess."""
    settings = (item or {}).get("metadata", {})
    if settings.get("find") is False:
        raise ToolError("there is no find in this game")
    given = clues_in(clues)
    if not given or len(given) > MAX_CLUES:
        raise ToolError(f"expected 1 to {MAX_CLUES} clues, such as: crane xygxx ; sloth xxyxx")
    return listing(words.dictionary(settings.get("dictionary")).fitting(given)[:k])


TOOLS = [guess, find]


def grade(sample: dict[str, Any], item: dict[str, Any], rollout: Rollout) -> dict[str, Any]:
    """Grade as the wire's endpoint grader, by the game that the rollout played."""
    del item
    game: Game = rollout.state
    turns = _turns(sample, game)
    if hack := hacks.found_in(sample, game):
        return {"score": 0.0, "solved": False, "hack": hack, "reason": told(game, turns)}
    num_given = len(game.moves) - len(game.own)
    used = num_given + len(turns)
    solved = _is_hit(turns)
    marked = [move for move in turns if move.marks]
    # When such an end cost nothing, a trained policy wrote one after 75 % of its games (6 % before
    # training), and the gate rejected it.
    is_broken = sample.get("stop_reason") == "parse_error"
    form = 0.0 if is_broken else len(marked) / (len(turns) if solved else GUESSES - num_given)
    greens, yellows = (marked[-1].num_green, marked[-1].num_yellow) if marked else (0, 0)
    earned = 1 + 1 / used if solved else 0.2 * greens + 0.1 * yellows
    return {
        "score": (earned + 0.2 * form) / (1 + 1 / (num_given + 1) + 0.2),
        "solved": solved,
        "reason": told(game, turns) + (", then a call that nobody can read" if is_broken else ""),
        "sub_scores": {
            "guesses": float(used if solved else LOST),
            "format": form,
            "greens": float(greens),
            "yellows": float(yellows),
        },
    }


def listing(found: list[str]) -> str:
    """Write the answer of `find`."""
    return "".join(f" {word}" for word in found) or NONE_FIT


def clues_in(text: str) -> list[words.Clue]:
    """Read the guesses with marks that a text holds, in their order."""
    return [(found[1], found[2]) for found in _CLUE.finditer(text)]


def told(game: Game, turns: list[Move]) -> str:
    """Tell a game in one line. A wasted guess is quoted: it may be any text."""
    given = [move for move in game.moves if move.is_given]
    played = ", ".join(f"{move.word} {move.marks}" if move.marks else f"{move.word!r} wasted" for move in given + turns)
    return f"the word was {game.secret}; {'solved' if _is_hit(turns) else 'not solved'}: {played}"


def _turns(sample: dict[str, Any], game: Game) -> list[Move]:
    """List the agent's guesses in their order, up to a hit or the sixth guess of the game. A guess
    that was refused before it reached the game is wasted. A guess that reaches it never gets an
    error as its reply."""
    own = iter(game.own)
    found: list[Move] = []
    for message in sample.get("trajectory") or []:
        if message.get("role") == "tool" and message.get("name") == guess.__name__:
            found += [REFUSED] if message.get("is_error") else itertools.islice(own, 1)
    found += own
    num_own = GUESSES - len(game.moves) + len(game.own)
    end = next((n for n, move in enumerate(found, 1) if move.marks == words.SOLVED), num_own)
    return found[: min(end, num_own)]


def _is_hit(turns: list[Move]) -> bool:
    return bool(turns) and turns[-1].marks == words.SOLVED
