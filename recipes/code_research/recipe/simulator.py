"""A simulator of production traffic, for the demo and the tests. Nobody asked these questions.

It writes what a deployment would have logged: dated conversations of the scripted researcher, with
latency, tool errors and, for some, the facts that a person confirmed. A window like the reference
is made of the same questions as the recipe's training examples. A drifted window is what a new team
would bring. It asks what code raises and derives from, in other words, and asks more at once. Tools
fail more often, and answers are slower. All facts are of training modules and workspaces, so that a
refresh from this traffic cannot leak what is tested.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft.traffic import invented

from . import questions, researcher
from .demonstrations import opening
from .examples import target
from .options import MAX_SUBJECTS, Options
from .questions import OPENINGS, Question, Subject
from .sites import Kind
from .workspace import Workspace


@dataclass(frozen=True)
class World:
    """What a window's conversations are drawn from."""

    openings: tuple[tuple[str, str], ...] = OPENINGS
    favored_kinds: frozenset[Kind] = frozenset()
    favor: int = 5  # how many times a subject of a favored kind is in the deck
    more_subjects: int = 0
    at_once_share: float = 0.25
    error_share: float = 0.03  # conversations with a failed tool call
    slowness: float = 1.0
    feedback_share: float = 0.4


REFERENCE = World()
DRIFTED = World(
    openings=((" for the review list", " and"), (" before we merge check", " and"), (" find", " ,")),
    favored_kinds=frozenset({"raises", "base", "calls"}),
    more_subjects=1,
    at_once_share=0.05,
    error_share=0.12,
    slowness=1.8,
)


def write_window(
    options: Options, path: Path, start: datetime.date, days: int, conversations: int, drifted: bool, seed: int
) -> None:
    """Write OpenAI chat JSONL, ordered by time. Equal arguments give equal bytes."""
    rng = random.Random(f"traffic {start.isoformat()} {drifted} {seed}")
    world = DRIFTED if drifted else REFERENCE
    options = options.model_copy(
        update={
            "min_subjects": min(MAX_SUBJECTS, options.min_subjects + world.more_subjects),
            "max_subjects": min(MAX_SUBJECTS, options.max_subjects + world.more_subjects),
        }
    )
    asked = questions.write(options, _pool(questions.pools(options, "train"), world), rng, world.openings)
    dialogues = (_conversation(question, world, options.snippets, rng) for question in asked)
    invented.write(path, start, days, conversations, dialogues, rng)


def _conversation(question: Question, world: World, snippets: bool, rng: random.Random) -> dict[str, Any]:
    episode = researcher.Episode(question, researcher.View(), opening("seed", question), snippets)
    tool_errors = 0
    while tool_errors < 2 and rng.random() < world.error_share:
        episode.fail(question.subjects[0].phrase)
        tool_errors += 1
    if rng.random() < world.at_once_share:
        researcher.work_at_once(episode)
    else:
        researcher.follow_old_habits(episode, researcher.Habits(), rng)
    waited = sum(rng.lognormvariate(-0.6, 0.4) for _ in range(episode.turn + 1))  # about 0.6 s a turn
    return {
        "latency_s": round(waited * world.slowness, 3),
        "tool_errors": tool_errors,
        "messages": episode.messages,
        "feedback": target(question.facts) if rng.random() < world.feedback_share else None,
    }


def _pool(pool: Sequence[tuple[Workspace, Sequence[Subject]]], world: World) -> list[tuple[Workspace, list[Subject]]]:
    return [
        (
            known,
            [subject for subject in asked for _ in range(world.favor if subject.kind in world.favored_kinds else 1)],
        )
        for known, asked in pool
    ]
