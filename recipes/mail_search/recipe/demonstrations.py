"""Dialogues for the warm start: the scripted clerk at work on questions about training packages.

It works under each instruction that the prompt stage may try. An instruction shifts the mixture of
habits: so a policy learns that its prompt matters, and a prompt search has something to find. In
one dialogue of ten, search shows another number of hits or another form of line, so that the policy
can be served with these.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from rft.errors import UserError
from rft.recipe import Message

from . import clerk, questions
from .examples import Options, call, inbox_of, style

INSTRUCTIONS = {"seed": (0.50, 0.25), "exact": (0.15, 0.55), "browse": (0.20, 0.05), "brief": (0.15, 0.25)}
"""Instruction of prompts.json -> (share of the dialogues, share of these that work exactly)."""
OTHER_VIEWS = (clerk.View(max_results=1), clerk.View(max_results=5), clerk.View(show="subject, sender, date"))
OTHER_VIEW_SHARE = 0.1


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield whole dialogues, from the system message to the final call. Training packages only."""
    made_for(options)
    inbox, rng = inbox_of(options), random.Random(f"demonstrations {seed}")
    asked = questions.write(inbox, style(options), "train", rng, repeat=True)
    names, shares = list(INSTRUCTIONS), [share for share, _ in INSTRUCTIONS.values()]
    for _, question in zip(range(count), asked, strict=False):
        name = rng.choices(names, shares)[0]
        view = rng.choice(OTHER_VIEWS) if rng.random() < OTHER_VIEW_SHARE else clerk.View()
        opening: list[Message] = [
            {"role": "system", "content": instructions()[name]},
            {"role": "user", "content": question.text},
        ]
        episode = clerk.Episode(inbox, view, opening)
        if rng.random() < INSTRUCTIONS[name][1]:
            clerk.work_exactly(question, episode)
        else:
            clerk.follow_old_habits(question, episode, clerk.Habits(), rng)
        yield episode.messages


def made_for(options: Options) -> None:
    """Raise UserError for options that the scripted clerk cannot work with."""
    for name, is_set in (
        ("questions", options.questions is not None),
        ("by_month", options.by_month),
        ("whole_mails", options.whole_mails),
    ):
        if is_set:
            raise UserError(
                f"recipe.options.{name}: the scripted clerk works with the short form of changelogs only, so there "
                "are no demonstrations and no invented traffic. Name a model that can read in policy.model, and a "
                "window of your own in traffic.file."
            )


@functools.cache
def instructions() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8"))["instructions"]


def vocabulary(options: Options) -> list[str]:
    """Return what the embedded tokenizer keeps as one token: the fixed pieces of an answer and of a
    mail, and digits by three.

    An id is then two tokens, and so is a bug. The first token says which one it is. "I don't know"
    is one token.
    """
    del options
    groups = [f"{number:03d}" for number in range(1000)]
    return [
        call("return_final_answer", answer=None, sources=[]),
        *('", "sources": []}}\n</tool_call>', '["', '", "', '"]}}\n</tool_call>'),
        *(" | ", " ;", " closes ", " bug ", " date "),
        *groups,
        *(f"m{group}" for group in groups),
        *map(str, range(1990, 2036)),
        *(f"-{number}" for number in range(32)),
        *(f"-{number:02d}" for number in range(10)),
    ]
