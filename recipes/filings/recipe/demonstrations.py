"""Dialogues for the warm start: the scripted analyst at work on questions about training companies.

It works under each instruction that the prompt stage may try. An instruction shifts the mixture of
habits: so a policy learns that its prompt matters, and a prompt search has something to find. In
one dialogue of ten, search shows another number of hits, so that the policy can be served with it.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from rft.recipe import Message

from . import analyst
from .asking import Writer
from .corpora import corpus
from .examples import example
from .filings import NOTHING
from .options import Options
from .questions import ABSTENTION
from .statements import FIRST_YEAR, LAST_YEARS, MERGED, STATEMENTS

INSTRUCTIONS = {"seed": (0.5, 0.3), "quote": (0.2, 0.6), "quick": (0.15, 0.15), "check": (0.15, 0.15)}
"""Instruction of prompts.json -> (share of the dialogues, share of these done with care)."""
OTHER_VIEWS = (1, 5)
OTHER_VIEW_SHARE = 0.1


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield whole dialogues, from the system message to the answer. Training companies only."""
    rng = random.Random(f"demonstrations {seed}")
    known = corpus(options)
    writer = Writer(options, known, known.companies("train"), rng)
    names, shares = list(INSTRUCTIONS), [share for share, _ in INSTRUCTIONS.values()]
    for _, asked in zip(range(count), writer.write(), strict=False):
        name = rng.choices(names, shares)[0]
        k = rng.choice(OTHER_VIEWS) if rng.random() < OTHER_VIEW_SHARE else 3
        opening: list[Message] = [
            {"role": "system", "content": instructions()[name]},
            {"role": "user", "content": asked.text},
        ]
        episode = analyst.Episode(opening, example("demonstration", asked, known, options).row(), k)
        if rng.random() < INSTRUCTIONS[name][1]:
            analyst.work_with_care(asked.question, episode)
        else:
            analyst.follow_old_habits(asked.question, episode, analyst.Habits(), rng)
        yield episode.messages


@functools.cache
def instructions() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8"))["instructions"]


def vocabulary(options: Options) -> list[str]:
    """Return what the embedded tokenizer keeps as one token: the pieces of an answer, an item with
    the blanks around it, and groups of three digits.

    A figure of short statements is then one token, right behind its item's token. Such a small
    model copies this well.
    """
    items = corpus(options).items
    if options.statements == "full":
        items = (*items, *(name for name, _ in MERGED.values()))
    return [
        '{"citations": [{"doc": "', '{"citations": [], "value": ', ', "quote": "', '"}, {"doc": "', '"}], "value": ',
        ', "unit": "thousands"}', ', "unit": "millions"}', ABSTENTION, NOTHING, "10K-", "less", " of US dollars",
        *(f" {item} " for item in items),
        *(f" {statement} page " for statement in STATEMENTS),
        *(f" FY{year}" for year in range(FIRST_YEAR, LAST_YEARS[-1] + 1)),
        *(f"{n:0{size}d}" for size in (3, 2, 1) for n in range(10**size)),
    ]  # fmt: skip
