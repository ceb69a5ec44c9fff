"""Find documents by their words: BM25 on an inverted index in memory, for the tools of recipes.

The weight of a word in a document depends on nothing but the index, so it is computed once, and a
query adds up a few arrays. Most of a query's time would go into ordering all scores. Instead, only
the documents above a share of the best score are ordered, and the share is lowered until there are
enough of them. The result is exactly the same. Equal scores are ordered by the document's number,
so a query has one answer everywhere.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHARES = (0.8, 0.5, 0.2, 0.0)


@dataclass(frozen=True)
class Index:
    """`build` makes one, `load` reads what `save` wrote. `starts`: the first posting of each word,
    and one more for the end. `documents` and `weights` have one value per posting."""

    num: int
    words: dict[str, int]
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    weights: NDArray[np.float32]

    def best(self, words: Iterable[str], k: int, key: Callable[[int], Hashable | None] | None = None) -> list[int]:
        """Return the numbers of the `k` best documents, best first; fewer if fewer have one of
        these words. `key`: only the best of the documents with equal keys counts, and a document
        whose key is None is skipped."""
        scores = np.zeros(self.num, dtype=np.float32)
        for word in dict.fromkeys(words):
            if (n := self.words.get(word)) is not None:
                span = slice(self.starts[n], self.starts[n + 1])
                scores[self.documents[span]] += self.weights[span]
        top = float(scores.max(initial=0.0))
        found: list[int] = []
        for share in SHARES if top > 0 else ():
            above = np.flatnonzero(scores > top * share)
            found = _distinct(above[np.lexsort((above, -scores[above]))], k, key)
            if len(found) == k:
                break
        return found

    def save(self, path: Path) -> None:
        letters = np.frombuffer(json.dumps(list(self.words)).encode(), dtype=np.uint8)
        with path.open("wb") as file:  # given a name, numpy would add its suffix
            np.savez(
                file,
                num=self.num,
                words=letters,
                starts=self.starts,
                documents=self.documents,
                weights=self.weights,
            )


def build(documents: Sequence[Sequence[str]], k1: float = 0.9, b: float = 0.7) -> Index:
    """Index documents, each a list of words. `k1`: how much a repeated word counts; `b`: how much a
    long document is marked down."""
    postings: dict[str, list[tuple[int, int]]] = {}
    for number, document in enumerate(documents):
        for word, count in Counter(document).items():
            postings.setdefault(word, []).append((number, count))
    vocabulary = sorted(postings)
    sizes = np.array([len(postings[word]) for word in vocabulary], dtype=np.int64)
    entries = [entry for word in vocabulary for entry in postings[word]]
    numbers, counts = np.array(entries, dtype=np.int64).reshape(-1, 2).T
    lengths = np.array([len(document) for document in documents], dtype=float)
    rarity = np.log(1 + (len(documents) - sizes + 0.5) / (sizes + 0.5))
    norms = k1 * (1 - b + b * lengths / max(lengths.sum() / max(len(lengths), 1), 1e-9))
    weights = np.repeat(rarity, sizes) * counts * (k1 + 1) / (counts + norms[numbers])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = {word: place for place, word in enumerate(vocabulary)}
    return Index(len(documents), places, starts, numbers.astype(np.int32), weights.astype(np.float32))


def load(path: Path) -> Index:
    with np.load(path) as file:
        words = json.loads(file["words"].tobytes())
        places = {word: place for place, word in enumerate(words)}
        return Index(int(file["num"]), places, file["starts"], file["documents"], file["weights"])


def _distinct(order: NDArray[np.intp], k: int, key: Callable[[int], Hashable | None] | None) -> list[int]:
    if key is None:
        return order[:k].tolist()
    found: dict[Hashable, int] = {}
    for number in order.tolist():
        name = key(number)
        if name is not None and name not in found:
            found[name] = number
            if len(found) == k:
                break
    return list(found.values())
