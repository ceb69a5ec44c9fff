"""A simulator of production traffic, for the demo and the tests. The players are invented.

It writes what a deployment would have logged: dated conversations of the scripted player, with
latency, tool errors and, for some, the word that the player told afterwards. A window like the
reference is made of the same games as the recipe's training examples. A drifted window is what new
players would bring: other ways to describe a board, two guesses before the agent is asked, and
words with rare letters. It also has more tool errors and slower replies. All words are training
words, so that a refresh from this traffic cannot leak what is tested.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft.traffic import invented

from . import player
from .demonstrations import instructions
from .examples import OPENINGS, Board, Options, deal


@dataclass(frozen=True)
class World:
    """What a window's conversations are drawn from."""

    openings: tuple[str, ...] = OPENINGS
    favored: str = ""
    more_given: int = 0
    careful_share: float = 0.12
    error_share: float = 0.03  # conversations with a failed tool call
    slowness: float = 1.0
    feedback_share: float = 0.4


REFERENCE = World()
DRIFTED = World(
    openings=(" please help me with", " today it is", " stuck at"),
    favored="jkqvwxyz",
    more_given=1,
    careful_share=0.03,
    error_share=0.2,
    slowness=1.8,
)


def write_window(
    options: Options, path: Path, start: datetime.date, days: int, conversations: int, drifted: bool, seed: int
) -> None:
    """Write OpenAI chat JSONL, ordered by time. Equal arguments give equal bytes."""
    rng = random.Random(f"traffic {start.isoformat()} {drifted} {seed}")
    world = DRIFTED if drifted else REFERENCE
    options = options.model_copy(update={"given": min(3, options.given + world.more_given)})
    boards = deal(options, "train", rng, world.openings, world.favored)
    dialogues = (_conversation(board, world, rng) for board in boards)
    invented.write(path, start, days, conversations, dialogues, rng)


def _conversation(board: Board, world: World, rng: random.Random) -> dict[str, Any]:
    episode = player.begin(board, instructions()["seed"])
    tool_errors = 0
    while tool_errors < 2 and rng.random() < world.error_share:
        episode.fail()
        tool_errors += 1
    if rng.random() < world.careful_share:
        player.play_with_care(episode)
    else:
        player.follow_old_habits(episode, player.Habits(), rng)
    waited = sum(rng.lognormvariate(-0.6, 0.4) for _ in range(episode.turn + 1))  # about 0.6 s a turn
    return {
        "latency_s": round(waited * world.slowness, 3),
        "tool_errors": tool_errors,
        "messages": episode.messages,
        "feedback": board.secret if rng.random() < world.feedback_share else None,
    }
