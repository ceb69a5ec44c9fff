"""Search over the rows of a workspace: BM25 on an inverted index in memory.

A row's document is its words. The weight of a word in a row depends on nothing but the index, so it
is computed once, and a query adds up a few lists. Equal scores are ordered by row, so a query has
one answer everywhere.
"""

from __future__ import annotations

import functools
import heapq
import math
import re
from collections import Counter
from collections.abc import Sequence

K1, B = 0.9, 0.3


def words(text: str) -> list[str]:
    """`words("_Kavel.__init__ = 'x'") == ["kavel", "init", "x"]`."""
    return [word for part in re.findall(r"\w+", text.lower()) if (word := part.strip("_"))]


class Index:
    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        self._postings: dict[str, list[tuple[int, float]]] = {}
        counts = [Counter(document) for document in documents]
        for row, found in enumerate(counts):
            for word, count in found.items():
                self._postings.setdefault(word, []).append((row, count))
        lengths = [len(document) for document in documents]
        mean = sum(lengths) / max(1, len(lengths))
        norms = [K1 * (1 - B + B * length / mean) for length in lengths]
        for word, posting in self._postings.items():
            rarity = math.log(1 + (len(documents) - len(posting) + 0.5) / (len(posting) + 0.5))
            self._postings[word] = [(row, rarity * count * (K1 + 1) / (count + norms[row])) for row, count in posting]
        self._found = functools.lru_cache(maxsize=1 << 14)(self._search)

    def search(self, query: str, k: int) -> tuple[int, ...]:
        """Return the k best rows, best first; fewer where no more has a word of the query."""
        return self._found(tuple(dict.fromkeys(words(query))), k)

    def _search(self, query: tuple[str, ...], k: int) -> tuple[int, ...]:
        scores: dict[int, float] = {}
        for word in query:
            for row, weight in self._postings.get(word, ()):
                scores[row] = scores.get(row, 0.0) + weight
        return tuple(heapq.nsmallest(k, scores, key=lambda row: (-scores[row], row)))
