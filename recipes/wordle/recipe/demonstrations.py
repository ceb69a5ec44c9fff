"""Dialogues for the warm start: the scripted player at work on training games.

It plays under each instruction that the prompt stage may try. An instruction shifts the mixture of
habits: so a policy learns that its prompt matters, and a prompt search has something to find. In
one dialogue of ten, `find` shows another number of words, so that the policy can be served with it.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from rft.recipe import Message

from . import player, words
from .examples import Options, deal
from .game import GUESSES, OVER, REPEATED, UNKNOWN, WON
from .tools import NONE_FIT

INSTRUCTIONS = {"seed": (0.50, 0.12), "with_care": (0.15, 0.28), "quick": (0.20, 0.03), "brief": (0.15, 0.12)}
"""Instruction of prompts.json -> (share of the dialogues, share of these that play with care)."""
OTHER_K = (2, 6)
OTHER_K_SHARE = 0.1


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield whole dialogues, from the system message to the last word. Training games only."""
    rng = random.Random(f"demonstrations {seed}")
    boards = deal(options, "train", rng)
    names, shares = list(INSTRUCTIONS), [share for share, _ in INSTRUCTIONS.values()]
    for _ in range(count):
        name = rng.choices(names, shares)[0]
        k = rng.choice(OTHER_K) if rng.random() < OTHER_K_SHARE else 4
        episode = player.begin(next(boards), instructions()[name], k)
        if rng.random() < INSTRUCTIONS[name][1]:
            player.play_with_care(episode)
        else:
            player.follow_old_habits(episode, player.Habits(), rng)
        yield episode.messages


@functools.cache
def instructions() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8"))["instructions"]


def vocabulary(options: Options) -> list[str]:
    """Return what the embedded tokenizer keeps as one token: every word of the dictionary, every
    mark, and the fixed pieces of a reply.

    A clue is then two tokens and a guess is one, which a small model can copy. Letter by letter, it
    would have to copy five tokens that all look alike.
    """
    left = [f" , {num} left" for num in range(GUESSES)]
    pieces = [WON, *left, OVER, UNKNOWN, REPEATED, NONE_FIT, " ;"]
    known = words.dictionary(options.dictionary).words
    return [*pieces, *(f" {mark}" for mark in words.EVERY_MARK), *(f" {word}" for word in known)]
