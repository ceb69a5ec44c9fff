"""Questions: which facts of a workspace are asked for, and in which words.

A question names two or three subjects, such as ` find default Kavel.besin.ronak , base Mudok`, and
its target is every fact about them. A subject is asked about only if its facts are clear: its
symbol stands in one module, and all its values are facts.

All subjects of a question lie in the modules of one split and in one workspace. Each split and
block has its own workspaces. So neither a tested module nor its workspace was ever trained on.
"""

from __future__ import annotations

import functools
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rft.errors import UserError
from rft.types import Split

from . import packages, workspace
from .index import words
from .options import AskedKind, Options
from .sites import Kind
from .workspace import Row, Workspace

ONE_VALUE: frozenset[Kind] = frozenset({"default", "constant"})
"""Kinds that have one value per symbol, so that two claims contradict each other."""
OPENINGS = ((" find", " ,"), (" look up", " ;"), (" report", " ,"), (" which are", " ;"), (" we need", " ,"))
"""How a question begins, and what stands between its subjects."""
MIN_WORDS = 4
"""Words of a docstring that may describe a function."""
FIRST_WORLD: dict[Split, int] = {"train": 0, "validation": 100, "test": 200}
HELD_OUT_WORLDS = 2
"""Workspaces of a package for validation, and for each block of the test split."""
_PHRASE = re.compile(r"\bdefaults of ' (.+?) '|\b(?:default|constant|base|raises|calls) \S+")


@dataclass(frozen=True)
class Subject:
    """What is asked about, and all facts about it."""

    kind: Kind
    phrase: str
    facts: tuple[Row, ...]

    @property
    def symbols(self) -> set[str]:
        return {fact.symbol for fact in self.facts}


@dataclass(frozen=True)
class Question:
    text: str
    workspace: Workspace
    subjects: tuple[Subject, ...]

    @property
    def facts(self) -> list[Row]:
        return list(dict.fromkeys(fact for subject in self.subjects for fact in subject.facts))


def phrase(row: Row) -> str:
    """Return the words that ask for a row: by its symbol, or for its callers."""
    return f"{row.kind} {row.value if row.kind == 'calls' else row.symbol}"


def phrases_in(question: str) -> list[str]:
    """Read the phrases out of a question, as they were written."""
    return [found[0] for found in _PHRASE.finditer(question)]


def description_in(phrase: str) -> str:
    """Return the words that describe a function. Empty: the phrase names its subject."""
    found = _PHRASE.fullmatch(phrase)
    return found[1] or "" if found else ""


def worlds(options: Options, split: Split, block: int = 0) -> range:
    """Return the numbers of the workspaces that a split or block asks about."""
    if split == "train":
        return range(options.worlds)
    first = FIRST_WORLD[split] + HELD_OUT_WORLDS * block
    return range(first, first + HELD_OUT_WORLDS)


def pools(options: Options, split: Split, block: int = 0) -> list[tuple[Workspace, list[Subject]]]:
    """Return the workspaces of a split or block, with all that can be asked about them. Raises
    UserError if there is nothing to ask."""
    tenths = frozenset([packages.TENTHS["test"][block]] if split == "test" else packages.TENTHS[split])
    found: list[tuple[Workspace, list[Subject]]] = []
    for package in options.packages:
        for world in worlds(options, split, block):
            known = workspace.load(package, world)
            asked = subjects(known, tenths, options)
            if len(asked) >= options.max_subjects:
                found.append((known, list(asked)))
    if not found:
        what = f"no module of {', '.join(options.packages)} gives questions for the {split} split"
        raise UserError(
            f"{packages.KEY}: {what}. Name more packages or larger ones, or lower min_facts and max_subjects there."
        )
    return found


def write(
    options: Options,
    pool: Sequence[tuple[Workspace, Sequence[Subject]]],
    rng: random.Random,
    openings: tuple[tuple[str, str], ...] = OPENINGS,
) -> Iterator[Question]:
    """Yield questions without end. Every subject of a workspace is asked about before any is asked
    about again."""
    sizes = [len(asked) for _, asked in pool]
    decks = [_deal(asked, rng) for _, asked in pool]
    while True:
        n = rng.choices(range(len(pool)), sizes)[0]
        opening, between = rng.choice(openings)
        wanted = rng.randint(options.min_subjects, options.max_subjects)
        drawn: dict[str, Subject] = {}
        for subject in decks[n]:
            drawn.setdefault(subject.phrase, subject)
            if len(drawn) == wanted:
                break
        yield Question(f"{opening} {f'{between} '.join(drawn)}", pool[n][0], tuple(drawn.values()))


# -- what can be asked -----------------------------------------------------------------------------
@functools.lru_cache(maxsize=256)
def subjects(known: Workspace, tenths: frozenset[int], options: Options) -> tuple[Subject, ...]:
    """List the subjects whose facts all lie in modules of these tenths."""
    found = _described(known) if options.describe else _named(known, options.kinds)
    return tuple(
        subject
        for subject in found
        if options.min_facts <= len(subject.facts) <= options.max_facts
        and {packages.tenth(known.package, fact.true_path) for fact in subject.facts} <= tenths
    )


def _named(known: Workspace, kinds: tuple[AskedKind, ...]) -> Iterator[Subject]:
    groups: dict[tuple[Kind, str], list[Row]] = defaultdict(list)
    for row in known.rows:
        if row.kind in kinds:
            groups[row.kind, phrase(row)].append(row)
    for (kind, text), rows in groups.items():
        has_one_value = len(rows) == 1 or kind not in ONE_VALUE
        if has_one_value and (kind == "calls" or _in_one_module(rows)) and all(row.is_fact for row in rows):
            yield Subject(kind, text, tuple(rows))


def _described(known: Workspace) -> Iterator[Subject]:
    """Yield functions that are described by the words of a docstring, without their name. The
    question asks for their defaults."""
    defaults: dict[str, list[Row]] = defaultdict(list)
    functions: dict[str, list[Row]] = defaultdict(list)
    for row in known.rows:
        if row.kind == "default" and row.is_fact:
            defaults[row.symbol.rpartition(".")[0]].append(row)
        elif row.kind == "doc":
            functions[" ".join(row.value.split())].append(row)
    for text, rows in functions.items():
        facts = defaults.get(rows[0].symbol, [])
        has_one_value = len({fact.symbol for fact in facts}) == len(facts)
        names_none = not {name for fact in facts for name in words(fact.symbol)} & set(words(text))
        is_clear = len(rows) == 1 and len(text.split()) >= MIN_WORDS and " '" not in text
        if is_clear and has_one_value and names_none and _in_one_module(facts):
            yield Subject("default", f"defaults of ' {text} '", tuple(facts))


def _in_one_module(rows: Iterable[Row]) -> bool:
    return len({row.path for row in rows}) <= 1


def _deal(asked: Sequence[Subject], rng: random.Random) -> Iterator[Subject]:
    while True:
        deck = list(asked)
        rng.shuffle(deck)
        yield from deck
