"""Dialogues for the warm start: the scripted researcher at work on training questions.

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

from rft.errors import UserError
from rft.recipe import Message

from . import names, questions, researcher
from .options import Options

INSTRUCTIONS = {"seed": (0.50, 0.25), "at_once": (0.15, 0.60), "one_by_one": (0.20, 0.05), "brief": (0.15, 0.25)}
"""Instruction of prompts.json -> (share of the dialogues, share of these that work at once)."""
OTHER_VIEWS = (researcher.View(k=1), researcher.View(k=3))
OTHER_VIEW_SHARE = 0.1


def demonstrations(options: Options, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield whole dialogues, from the system message to the answer. Training modules only. Raises
    UserError for questions that the researcher cannot answer."""
    _check(options)
    rng = random.Random(f"demonstrations {seed}")
    asked = questions.write(options, questions.pools(options, "train"), rng)
    instruction_names, shares = list(INSTRUCTIONS), [share for share, _ in INSTRUCTIONS.values()]
    for _ in range(count):
        question = next(asked)
        name = rng.choices(instruction_names, shares)[0]
        view = rng.choice(OTHER_VIEWS) if rng.random() < OTHER_VIEW_SHARE else researcher.View()
        episode = researcher.Episode(question, view, opening(name, question), options.snippets)
        if rng.random() < INSTRUCTIONS[name][1]:
            researcher.work_at_once(episode)
        else:
            researcher.follow_old_habits(episode, researcher.Habits(), rng)
        yield episode.messages


def _check(options: Options) -> None:
    harder = {"describe": options.describe, "max_facts": options.max_facts > 1, "kinds": "calls" in options.kinds}
    for key in (key for key, is_harder in harder.items() if is_harder):
        raise UserError(
            f"params.yaml: recipe.options.{key} = {json.dumps(getattr(options, key))}: there are no demonstrations of "
            "that; the scripted researcher takes one fact for each name. Set policy.model to a model that can read, "
            "without policy.warm_start.weights."
        )


def opening(instruction: str, question: questions.Question) -> list[Message]:
    return [
        {"role": "system", "content": instructions()[instruction]},
        {"role": "user", "content": question.text},
    ]


@functools.cache
def instructions() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8"))["instructions"]


def vocabulary(options: Options) -> list[str]:
    """Return what the embedded tokenizer keeps as one token: the pieces of names, of a hit and of
    an answer.

    A name is then two tokens, a value one to three, and the text between two parts of a hit or of a
    fact is one. The dot of a symbol is in the token of the name that follows, and a quotation mark
    in the token before it. So no token is so common that copying loses its place.
    """
    between = [f".py | {kind} {quote}" for kind in options.kinds for quote in ("", "'")]
    fact = ['", "path": "', '.py", "value": "', '.py", "value": "\'']
    ends = [f'{quote}"}}{end}' for quote in ("", "'") for end in (', {"symbol": "', "]")]
    return [
        *(f" {kind} " for kind in options.kinds),
        *between,
        *(f".py | {header} | line " for header in ("function", "class")),
        *(f"{quote} | line " for quote in ("", "'")),
        " | ",
        ".__init__",
        ".py",
        '[{"symbol": "',
        *fact,
        *ends,
        *(f"{pair:02d}" for pair in range(100)),
        *names.pieces(),
    ]
