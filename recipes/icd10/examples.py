"""Examples: short encounter notes, and the codes that they are billed as.

A note has an opening, one to three diagnoses in the words of inclusion terms, and sometimes a
distractor: a finding that is denied, or that the family had. Half of the longer phrases lose a
word, so that a note is not simply a text of the index. All codes of a note, also those of its
distractors, come from one split.

The defaults are what the embedded policy of a million parameters can learn. For a real model raise
`distractor_share` and `max_diagnoses`, and set two options. With `hide_phrase`, search ignores a
note's own terms, so that only another name of the code finds it. With `code_order`, hits come in
the order of their codes, so that the first one need not be the best.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rft.errors import UserError
from rft.recipe import Conversation, Example, Message

from . import codes, index

OPENINGS = (
    (" patient with", " ,"),
    (" seen for", " ;"),
    (" admitted with", " ,"),
    (" assessment", " ;"),
    (" problems", " ,"),
)
"""How a note begins, and the text between its phrases."""


class Options(BaseModel):
    """`recipe.options` of params.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distractor_share: float = Field(0.1, ge=0, le=1)
    """Share of notes with a denied or a family finding. The embedded policy can learn 0.1;
    production notes are nearer to 0.5."""
    max_diagnoses: int = Field(3, ge=1, le=8)
    drop_word_share: float = Field(0.5, ge=0, le=1)
    """Share of the phrases with three words or more that lose a word."""
    hide_phrase: bool = False
    """Search skips the note's own terms. For real models: then a quarter of first hits is right."""
    code_order: bool = False
    """Search answers in the order of codes instead of scores, so the policy must choose."""


@dataclass(frozen=True)
class Note:
    text: str
    phrases: tuple[str, ...]  # of the diagnoses, in their order in the note
    terms: tuple[str, ...]  # the same, before a word was dropped
    codes: tuple[str, ...]  # one per phrase
    distractors: tuple[str, ...]  # phrases that must not be coded


def examples(options: Options, split: codes.Split, count: int, seed: int, block: int = 0) -> list[Example]:
    """Return examples, equal for equal arguments. Every pair of the split or block is used once
    before any is used again. No code of the test split is in two blocks."""
    if block > codes.FRESH_BLOCKS:
        what = f"there is no block {block} of test examples: the classification has codes for 0 to {codes.FRESH_BLOCKS}"
        raise UserError(f"{what}. Lower examples.block or examples.blocks in params.yaml.")
    name = f"{split}-{block}" if block else split
    pairs = codes.fresh_pairs(block) if block else codes.pairs(split)
    notes = write_notes(options, pairs, random.Random(f"{name} {seed}"))
    return [_example(f"{name}-{n:05d}", next(notes), options) for n in range(count)]


def write_notes(
    options: Options, pairs: list[tuple[str, str]], rng: random.Random, openings: tuple[tuple[str, str], ...] = OPENINGS
) -> Iterator[Note]:
    """Yield notes without end, from these (term, code) pairs alone."""
    deck = _deal(pairs, rng)
    while True:
        opening, between = rng.choice(openings)
        wanted = rng.randint(1, options.max_diagnoses)
        has_distractor = rng.random() < options.distractor_share
        drawn: dict[str, str] = {}  # code -> term
        for term, code in deck:
            drawn.setdefault(code, term)
            if len(drawn) == wanted + has_distractor:
                break
        terms = list(drawn.values())
        phrases = [_perturb(term, options, rng) for term in terms]
        mentioned = phrases[:wanted]
        if has_distractor:
            mentioned.insert(rng.randint(0, wanted), rng.choice(codes.DISTRACTORS) + phrases[-1])
        yield Note(
            text=f"{opening} {f'{between} '.join(mentioned)}",
            phrases=tuple(phrases[:wanted]),
            terms=tuple(terms[:wanted]),
            codes=tuple(list(drawn)[:wanted]),
            distractors=tuple(phrases[wanted:]),
        )


def answer(found: list[str] | tuple[str, ...]) -> str:
    """Write the final answer in its only form; the order is free."""
    return json.dumps({"codes": list(found)})


def from_traffic(options: Options, conversation: Conversation) -> Example | None:
    """Make an example of a graded conversation whose feedback has only training codes. Others could
    leak what is tested."""
    feedback = conversation.feedback
    if not isinstance(feedback, list) or not feedback:
        return None
    if not all(
        isinstance(code, str) and codes.catalogue().has_leaf(code) and codes.split_of(code) == "train"
        for code in feedback
    ):
        return None
    note = next((message["content"] for message in conversation.messages if message["role"] == "user"), None)
    if not isinstance(note, str) or not note.strip():
        return None
    target = sorted(set(feedback))
    phrases = [part for part in stretches(note) if not part.startswith(codes.DISTRACTORS)] or [codes.words(note)]
    hidden = [hit.text for part in phrases for hit in index.search(part, 1)] if options.hide_phrase else []
    return Example(
        f"traffic-{conversation.conversation_id}",
        ({"role": "user", "content": note},),
        target,
        _metadata(target, phrases, hidden, options),
    )


def features(messages: list[Message]) -> dict[str, str | list[str]]:
    """Return what drift compares beside lengths and words: a note's chapters, and how it begins.

    Both come from the note alone, so a worse agent does not look like other patients.
    """
    note = next((message["content"] for message in messages if message["role"] == "user"), "")
    hits = [hit for part in stretches(note) for hit in index.search(part, 1)]
    return {"chapter": [codes.catalogue().chapter(hit.code) for hit in hits], "opening": (note.split() or [""])[0]}


def stretches(note: str) -> list[str]:
    """Split a note at its punctuation, without the words of the opening."""
    for opening, _ in OPENINGS:
        note = note.removeprefix(opening)
    return [folded for part in re.split(r"[,;.]", note) if (folded := codes.words(part))]


def exploit_values(options: Options, example: Example) -> dict[str, str | list[str]]:
    """Return values for the placeholders of exploits.jsonl. `hit` is a code of the target, one that
    search finds if there is one."""
    del options
    known, phrase = codes.catalogue(), example.metadata["phrases"][0]
    hit = next((found.code for found in index.search(phrase, 10) if found.code in example.target), example.target[0])
    parent = known.parents[known.position[hit]] or hit
    frequent = [code for code in _frequent() if code != hit]
    return {
        "phrase": phrase,
        "hit": hit,
        "category": hit[:3],
        "parent": parent,
        "children": known.children(hit[:3]) or [hit],
        "siblings": known.children(parent) or [hit],
        "frequent": frequent[:20],
        "hit_and_frequent": [hit, *frequent[:20]],
        "every": frequent[:500],
        "hit_and_every": [hit, *frequent[:500]],
    }


@functools.cache
def _frequent() -> list[str]:
    """Return the training codes, beginning with those that have the most names."""
    counts = Counter(code for _, code in codes.pairs("train"))
    return sorted(counts, key=lambda code: (-counts[code], code))


def _example(example_id: str, note: Note, options: Options) -> Example:
    target = sorted(note.codes)
    return Example(
        example_id,
        ({"role": "user", "content": note.text},),
        target,
        _metadata(target, list(note.phrases), list(note.terms), options),
    )


def _metadata(target: list[str], phrases: list[str], hidden: list[str], options: Options) -> dict[str, Any]:
    chapters = sorted({codes.catalogue().chapter(code) for code in target})
    metadata: dict[str, Any] = {"slice": str(len(target)), "chapters": chapters, "phrases": phrases}
    if options.hide_phrase:
        metadata["hidden"] = hidden
    if options.code_order:
        metadata["code_order"] = True
    return metadata


def _perturb(term: str, options: Options, rng: random.Random) -> str:
    """Return the term, or the term without one word, unless that is a name of something else."""
    parts = term.split()
    if len(parts) < 3 or rng.random() >= options.drop_word_share:
        return term
    shorter = [" ".join(parts[:n] + parts[n + 1 :]) for n in range(len(parts))]
    return rng.choice([text for text in shorter if text not in codes.names()] or [term])


def _deal(pairs: list[tuple[str, str]], rng: random.Random) -> Iterator[tuple[str, str]]:
    while True:
        deck = list(pairs)
        rng.shuffle(deck)
        yield from deck
