"""Search over the rows of a workspace (rft/bm25.py): a row's document is its words."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from rft import bm25

K1, B = 0.9, 0.3


def words(text: str) -> list[str]:
    """`words("_Kavel.__init__ = 'x'") == ["kavel", "init", "x"]`."""
    return [word for part in re.findall(r"\w+", text.lower()) if (word := part.strip("_"))]


class Index:
    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        self._index = bm25.build(documents, K1, B)
        self._found = functools.lru_cache(maxsize=1 << 14)(self._index.best)  # a run asks the same again and again

    def search(self, query: str, k: int) -> list[int]:
        """Return at most k rows with a word of the query, best first."""
        return self._found(tuple(words(query)), k)
