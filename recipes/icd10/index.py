"""Search over every name of every leaf code (rft/bm25.py).

A document is one name of a leaf code: a description or an inclusion term. Documents are sorted by
code, so that the lower code comes first if scores are equal.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from rft import bm25, files

from . import codes

K1, B = 0.9, 0.7


@dataclass(frozen=True)
class Hit:
    text: str  # the name that matched
    code: str


@dataclass(frozen=True)
class Index:
    rows: list[tuple[str, str]]  # (text, code), sorted by code
    names: bm25.Index

    def search(self, query: str, k: int, hidden: frozenset[str] = frozenset()) -> list[Hit]:
        """Return the k best leaf codes, each once under its best name. `hidden` names are ignored,
        as if they were never indexed."""

        def code(row: int) -> str | None:
            text, found = self.rows[row]
            return None if text in hidden else found

        return [Hit(*self.rows[row]) for row in self.names.best(codes.words(query).split(), k, code)]


@functools.cache
def index() -> Index:
    rows = sorted(codes.catalogue().entries(), key=lambda row: (row[1], row[0]))
    path = files.kept(
        codes.cache_path(f"index-{K1}-{B}.npz"),
        lambda part: bm25.build([text.split() for text, _ in rows], K1, B).save(part),
    )
    return Index(rows, bm25.load(path))


@functools.lru_cache(maxsize=1 << 16)
def search(query: str, k: int, hidden: frozenset[str] = frozenset()) -> tuple[Hit, ...]:
    """Search the whole classification, with a cache: a run asks the same again and again."""
    return tuple(index().search(query, k, hidden))


def reply(hits: tuple[Hit, ...], form: codes.LineFormat) -> str:
    """Return the tool's answer: one hit per line."""
    return "\n".join(codes.line(hit.text, hit.code, form) for hit in hits) or " no hits"
