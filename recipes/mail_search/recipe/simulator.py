"""A simulator of production traffic, for the demo and the tests. The questions are invented.

They are about the changelogs of this machine. It writes what a deployment would have logged: dated
conversations of the scripted clerk, with latency, tool errors and, for some, the answer that a
person confirmed or corrected. A window like the reference has the same questions as the recipe's
training examples. A drifted window is what another team would bring. It has other words, and more
questions about dates, versions and libraries. More of them have no answer in the mailbox, there are
more tool errors, and replies are slower. All packages are training packages, so that a refresh from
this traffic cannot leak what is tested.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rft.traffic import invented

from . import clerk, questions
from .demonstrations import instructions, made_for
from .examples import Options, inbox_of, style
from .index import Index
from .questions import Kind, Question, Templates


@dataclass(frozen=True)
class World:
    """What a window's conversations are drawn from."""

    templates: Templates | None = None
    kinds: tuple[Kind, ...] | None = None
    unanswerable_share: float | None = None
    exact_share: float = 0.25
    error_share: float = 0.03  # conversations with a failed tool call
    slowness: float = 1.0
    feedback_share: float = 0.4


REFERENCE = World()
DRIFTED = World(
    templates={
        "bug": (" tell me the bug that {upload} fixed ?",),
        "who": (" by whom was {upload} uploaded please ?",),
        "when": (" on what day came {upload} out ?", " release day of {upload} please ?"),
        "version": (" {package} fixed bug {bug} with which version please ?",),
    },
    kinds=("when", "version"),
    unanswerable_share=0.3,
    exact_share=0.05,
    error_share=0.12,
    slowness=1.8,
)


def write_window(
    options: Options, path: Path, start: datetime.date, days: int, conversations: int, drifted: bool, seed: int
) -> None:
    """Write OpenAI chat JSONL, ordered by time. Equal arguments give equal bytes."""
    made_for(options)
    rng = random.Random(f"traffic {start.isoformat()} {drifted} {seed}")
    world, inbox = DRIFTED if drifted else REFERENCE, inbox_of(options)
    asked = _questions(inbox, options, world, rng)
    dialogues = (_conversation(question, inbox, world, rng) for question in asked)
    invented.write(path, start, days, conversations, dialogues, rng)


def _questions(inbox: Index, options: Options, world: World, rng: random.Random) -> Iterator[Question]:
    share = options.unanswerable_share if world.unanswerable_share is None else world.unanswerable_share
    kinds = world.kinds or options.kinds
    wanted = replace(style(options), templates=world.templates, kinds=kinds, unanswerable_share=share)
    return questions.write(inbox, wanted, "train", rng, repeat=True)


def _conversation(asked: Question, inbox: Index, world: World, rng: random.Random) -> dict[str, Any]:
    opening = [{"role": "system", "content": instructions()["seed"]}, {"role": "user", "content": asked.text}]
    episode = clerk.Episode(inbox, clerk.View(), opening)
    tool_errors = 0
    while tool_errors < 2 and rng.random() < world.error_share:
        episode.fail(asked.thread)
        tool_errors += 1
    if rng.random() < world.exact_share:
        clerk.work_exactly(asked, episode)
    else:
        clerk.follow_old_habits(asked, episode, clerk.Habits(), rng)
    waited = sum(rng.lognormvariate(-0.6, 0.4) for _ in range(episode.turn))  # about 0.6 s a turn
    right = {"answer": asked.answer, "message_id": asked.mail.id if asked.mail else None}
    return {
        "latency_s": round(waited * world.slowness, 3),
        "tool_errors": tool_errors,
        "messages": episode.messages,
        "feedback": right if rng.random() < world.feedback_share else None,
    }
