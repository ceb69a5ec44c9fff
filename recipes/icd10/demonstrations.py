"""Dialogues for the warm start: the scripted coder at work on training notes.

It works under each instruction that the prompt stage may try. An instruction shifts the mixture of
habits: so a policy learns that its prompt matters, and a prompt search has something to find. In
one dialogue of ten, search shows another number of hits or another line format, so that the policy
can be served with these.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from rft.recipe import Message

from . import coder, codes
from .examples import Options, write_notes

INSTRUCTIONS = {"seed": (0.50, 0.25), "at_once": (0.15, 0.60), "one_by_one": (0.20, 0.05), "brief": (0.15, 0.25)}
"""Instruction of prompts.json -> (share of the dialogues, share of these that work in parallel)."""
OTHER_VIEWS = (coder.View(k=1), coder.View(k=5), coder.View(form="code | description"))
OTHER_VIEW_SHARE = 0.1


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield whole dialogues, from the system message to the answer. Training codes only."""
    rng = random.Random(f"demonstrations {seed}")
    notes = write_notes(options, codes.pairs("train"), rng)
    names, shares = list(INSTRUCTIONS), [share for share, _ in INSTRUCTIONS.values()]
    for _ in range(count):
        note = next(notes)
        name = rng.choices(names, shares)[0]
        view = rng.choice(OTHER_VIEWS) if rng.random() < OTHER_VIEW_SHARE else coder.View()
        opening: list[Message] = [
            {"role": "system", "content": instructions()[name]},
            {"role": "user", "content": note.text},
        ]
        episode = coder.Episode(view, opening)
        if rng.random() < INSTRUCTIONS[name][1]:
            coder.work_in_parallel(note, episode)
        else:
            coder.follow_old_habits(note, episode, coder.Habits(), rng)
        yield episode.messages


@functools.cache
def instructions() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8"))["instructions"]


def vocabulary(options: Options) -> list[str]:
    """Return what the embedded tokenizer keeps as one token: the pieces of an answer and of a hit,
    and the category of a code.

    A code is then two or three tokens, and the first says which hit it comes from. With plain byte
    pairs F1 stalled at 0.04.
    """
    categories = sorted({code[:3] for code in codes.catalogue().codes})
    return ['{"codes": ["', '", "', '"]}', " | ", *categories]
