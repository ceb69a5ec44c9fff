"""A simulator of production traffic, for the demo and the tests. The patients are invented.

It writes what a deployment would have logged: dated conversations of the scripted coder, with
latency, tool errors and, for some, the codes that a person corrected the answer to. A window like
the reference is made of the same notes as the recipe's training examples. A drifted window is what
a new clinic would bring: other chapters, other phrasing, longer notes with more distractors, more
tool errors and slower replies. All codes are training codes, so that a refresh from this traffic
cannot leak what is tested.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft.traffic import invented

from . import coder, codes
from .demonstrations import instructions
from .examples import OPENINGS, Note, Options, write_notes


@dataclass(frozen=True)
class World:
    """What a window's conversations are drawn from."""

    openings: tuple[tuple[str, str], ...] = OPENINGS
    favored_chapters: tuple[str, ...] = ()
    favor: int = 6  # how many times a favored chapter's pairs are in the deck
    parallel_share: float = 0.25
    error_share: float = 0.03  # conversations with a failed tool call
    slowness: float = 1.0
    feedback_share: float = 0.4


REFERENCE = World()
DRIFTED = World(
    openings=((" referred because of", " ."), (" new arrival reports", " ."), (" seen for", " ;")),
    favored_chapters=("S00-T88", "V00-Y99", "Z00-Z99"),
    parallel_share=0.05,
    error_share=0.12,
    slowness=1.8,
)


def write_window(
    options: Options, path: Path, start: datetime.date, days: int, conversations: int, drifted: bool, seed: int
) -> None:
    """Write OpenAI chat JSONL, ordered by time. Equal arguments give equal bytes."""
    rng = random.Random(f"traffic {start.isoformat()} {drifted} {seed}")
    world = DRIFTED if drifted else REFERENCE
    if drifted:
        options = options.model_copy(
            update={"distractor_share": 0.5, "max_diagnoses": min(8, options.max_diagnoses + 2)}
        )
    notes = write_notes(options, _pairs(world), rng, world.openings)
    dialogues = (_conversation(note, world, rng) for note in notes)
    invented.write(path, start, days, conversations, dialogues, rng)


def _conversation(note: Note, world: World, rng: random.Random) -> dict[str, Any]:
    opening = [{"role": "system", "content": instructions()["seed"]}, {"role": "user", "content": note.text}]
    episode = coder.Episode(coder.View(), opening)
    tool_errors = 0
    while tool_errors < 2 and rng.random() < world.error_share:
        episode.fail(note.phrases[0])
        tool_errors += 1
    if rng.random() < world.parallel_share:
        coder.work_in_parallel(note, episode)
    else:
        coder.follow_old_habits(note, episode, coder.Habits(), rng)
    waited = sum(rng.lognormvariate(-0.6, 0.4) for _ in range(episode.turn + 1))  # about 0.6 s a turn
    return {
        "latency_s": round(waited * world.slowness, 3),
        "tool_errors": tool_errors,
        "messages": episode.messages,
        "feedback": sorted(note.codes) if rng.random() < world.feedback_share else None,
    }


def _pairs(world: World) -> list[tuple[str, str]]:
    known = codes.catalogue()
    return [
        pair
        for pair in codes.pairs("train")
        for _ in range(world.favor if known.chapter(pair[1]) in world.favored_chapters else 1)
    ]
