"""A simulator of production traffic, for the demo and the tests. The companies are invented.

It writes what a deployment would have logged: dated conversations of the scripted analyst, with
latency, tool errors and, for some, the answer that a person confirmed or corrected. A window like
the reference asks what the recipe's training examples ask. A drifted window is what another desk
would bring: other phrasing, and cash flow and debt instead of income. It has more questions that
the filings do not answer, more tool errors and slower replies. All companies are training
companies, so that a refresh from this traffic cannot leak what is tested.
"""

from __future__ import annotations

import datetime
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft.recipe import Message
from rft.traffic import invented

from . import analyst
from .asking import Asked, Writer, take
from .corpora import corpus
from .demonstrations import instructions
from .examples import answer, example
from .filings import Corpus
from .options import Options
from .questions import ABSTENTION, OPENINGS
from .statements import CASH_FLOW


@dataclass(frozen=True)
class World:
    """What a window's conversations are drawn from."""

    openings: tuple[str, ...] = OPENINGS
    items: tuple[str, ...] = ()
    """What is asked for. Empty: everything."""
    unanswerable_share: float | None = None
    careful_share: float = 0.25
    error_share: float = 0.03  # conversations with a failed tool call
    slowness: float = 1.0
    feedback_share: float = 0.4


REFERENCE = World()
DRIFTED = World(
    openings=(" our credit committee needs the", " kindly state the", " report the"),
    items=(*CASH_FLOW[1:], "debt", "cash", "interest expense"),
    unanswerable_share=0.3,
    careful_share=0.1,
    error_share=0.12,
    slowness=1.8,
)


def write_window(
    options: Options, path: Path, start: datetime.date, days: int, conversations: int, drifted: bool, seed: int
) -> None:
    """Write OpenAI chat JSONL, ordered by time. Equal arguments give equal bytes."""
    rng = random.Random(f"traffic {start.isoformat()} {drifted} {seed}")
    world, known = DRIFTED if drifted else REFERENCE, corpus(options)
    if world.unanswerable_share is not None:
        options = options.model_copy(update={"unanswerable_share": world.unanswerable_share})
    items = world.items if options.folder is None else ()
    writer = Writer(options, known, known.companies("train"), rng, world.openings, items)
    asked = take(writer.write(), conversations, "the companies of the train split")
    dialogues = (_conversation(each, world, known, options, rng) for each in asked)
    invented.write(path, start, days, conversations, dialogues, rng)


def _conversation(asked: Asked, world: World, known: Corpus, options: Options, rng: random.Random) -> dict[str, Any]:
    opening: list[Message] = [
        {"role": "system", "content": instructions()["seed"]},
        {"role": "user", "content": asked.text},
    ]
    row = example("traffic", asked, known, options)
    episode = analyst.Episode(opening, row.row())
    tool_errors = 0
    while tool_errors < 2 and rng.random() < world.error_share:
        episode.fail(f" {asked.question.company}")
        tool_errors += 1
    if rng.random() < world.careful_share:
        analyst.work_with_care(asked.question, episode)
    else:
        analyst.follow_old_habits(asked.question, episode, analyst.Habits(), rng)
    waited = sum(rng.lognormvariate(-0.6, 0.4) for _ in range(episode.turn + 1))  # about 0.6 s a turn
    confirmed = ABSTENTION if asked.lacks else json.loads(answer(row.target))
    return {
        "latency_s": round(waited * world.slowness, 3),
        "tool_errors": tool_errors,
        "messages": episode.messages,
        "feedback": confirmed if rng.random() < world.feedback_share else None,
    }
