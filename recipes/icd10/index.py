"""Search over every name of every leaf code: BM25 on an inverted index in memory.

One row is one name (a description or an inclusion term) of a leaf code. The weight of a word in a
row depends on nothing but the index, so it is computed once and a query is a few array additions.
Most of a query's time would go into ordering some 83,000 scores; instead only rows above a share of
the best score are ordered, and the share is lowered until enough distinct codes are among them,
which gives exactly the same hits. Equal scores are ordered by code, so a query has one answer
everywhere.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rft import files

from . import codes

K1, B = 0.9, 0.7


@dataclass(frozen=True)
class Hit:
    text: str  # the name that matched
    code: str


@dataclass(frozen=True)
class Index:
    rows: list[tuple[str, str]]  # (text, code), sorted by code: a row's number breaks ties
    words: dict[str, int]
    starts: np.ndarray  # word -> its first posting; one longer than words
    row_ids: np.ndarray
    weights: np.ndarray

    def search(self, query: str, k: int, hidden: frozenset[str] = frozenset()) -> list[Hit]:
        """The k best leaf codes, each once under its best name. `hidden` names are passed over, as
        if never indexed."""
        scores = np.zeros(len(self.rows), dtype=np.float32)
        for word in dict.fromkeys(codes.words(query).split()):
            if (n := self.words.get(word)) is not None:
                span = slice(self.starts[n], self.starts[n + 1])
                scores[self.row_ids[span]] += self.weights[span]
        best = float(scores.max())
        if best <= 0:
            return []
        for share in (0.8, 0.5, 0.2, 0.0):
            floor = best * share
            found = np.flatnonzero(scores > floor)
            hits = self._distinct(found[np.lexsort((found, -scores[found]))], k, hidden)
            if len(hits) == k:
                break
        return hits

    def _distinct(self, order: np.ndarray, k: int, hidden: frozenset[str]) -> list[Hit]:
        hits: dict[str, Hit] = {}
        for row in order.tolist():
            text, code = self.rows[row]
            if code not in hits and text not in hidden:
                hits[code] = Hit(text, code)
                if len(hits) == k:
                    break
        return list(hits.values())


@functools.cache
def index() -> Index:
    rows = sorted(codes.catalogue().entries(), key=lambda row: (row[1], row[0]))
    path = files.kept(codes.cache_path(f"index-{K1}-{B}.npz"), lambda part: _save(part, [text for text, _ in rows]))
    with np.load(path) as file:
        vocabulary = json.loads(file["vocabulary"].tobytes())
        return Index(
            rows, {word: n for n, word in enumerate(vocabulary)}, file["starts"], file["row_ids"], file["weights"]
        )


@functools.lru_cache(maxsize=1 << 16)
def search(query: str, k: int, hidden: frozenset[str] = frozenset()) -> tuple[Hit, ...]:
    """`Index.search` of the whole classification; a run asks the same things again and again."""
    return tuple(index().search(query, k, hidden))


def reply(hits: tuple[Hit, ...], form: codes.LineFormat) -> str:
    """Return the tool's answer: one hit per line."""
    return "\n".join(codes.line(hit.text, hit.code, form) for hit in hits) or " no hits"


def _save(path: Path, texts: list[str]) -> None:
    vocabulary, starts, row_ids, weights = _build(texts)
    letters = np.frombuffer(json.dumps(vocabulary).encode(), dtype=np.uint8)
    with path.open("wb") as file:  # to a name, numpy would add its suffix
        np.savez(file, vocabulary=letters, starts=starts, row_ids=row_ids, weights=weights)


def _build(texts: list[str]) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Vocabulary, starts, row_ids, weights."""
    split = [text.split() for text in texts]
    postings: dict[str, list[tuple[int, int]]] = {}
    for row, row_words in enumerate(split):
        for word, count in Counter(row_words).items():
            postings.setdefault(word, []).append((row, count))
    vocabulary = sorted(postings)
    sizes = np.array([len(postings[word]) for word in vocabulary])
    row_ids, counts = (
        np.array(column) for column in zip(*(entry for word in vocabulary for entry in postings[word]), strict=True)
    )
    lengths = np.array([len(row_words) for row_words in split], dtype=float)
    idf = np.log(1 + (len(texts) - sizes + 0.5) / (sizes + 0.5))
    norm = K1 * (1 - B + B * lengths / lengths.mean())
    weights = np.repeat(idf, sizes) * counts * (K1 + 1) / (counts + norm[row_ids])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return vocabulary, starts, row_ids.astype(np.int32), weights.astype(np.float32)
