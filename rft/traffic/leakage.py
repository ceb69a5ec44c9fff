"""Find near-duplicates: inputs of a later split that nearly repeat one of an earlier split.

An input may differ from a training input only in a name or a comma. It is not the same text, so the
exact checks (rft/stages/examples.py) do not see it, but a score on it says little about new inputs.
Two texts are near-duplicates when the Jaccard similarity of their word 3-shingles is at least
`examples.near_duplicate`: this share of all their runs of three words is in both. Case, spaces and
punctuation do not count. Numbers do: order 1234 is not order 1235.

Comparing all pairs would take too long. MinHash makes a short signature of each text (Broder, On
the resemblance and containment of documents, 1997). An index finds the texts whose signatures agree
in at least one of several bands. Each pair found is then compared exactly, so no pair is reported
wrongly. A pair exactly at the threshold is missed with a probability of at most 1 - `RECALL`, and a
pair above it with a smaller probability.

The later split is indexed, and the earlier one is only read through. A text that was found is not
searched again. The index and the comparison are array operations, because among inputs that are
made from one template every pair is a candidate. Such inputs still take longer than others, most of
all where their similarity is just below the threshold.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy import sparse

from rft.formatting import counted
from rft.reports import NearDuplicates, NearPair

RECALL = 0.97
SIGNATURE = 128
"""Hashes of a signature."""
WORDS = 3
"""Words of a shingle."""
SHOWN = 10
_AT_ONCE = 10_000
"""Shingles hashed at a time, so that a very long text needs no more memory than others."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""A word. Chinese and Japanese are written without spaces: there it is one character."""


@dataclass(frozen=True, slots=True)
class Text:
    """The input of an example."""

    id: str
    text: str


Signature = np.ndarray
Sign = Callable[[frozenset[str]], Signature]


def between(groups: Mapping[str, Sequence[Text]], threshold: float, seed: int) -> list[NearDuplicates]:
    """Find in each group (a split or a block of one) the texts that nearly repeat a text of an
    earlier group.

    A text is counted once, with the first text that it repeats. The same seed finds the same.
    """
    sign = _signing(seed)
    names, found = list(groups), []
    for n, of in enumerate(names):
        indexes = {inside: _Index(groups[inside], threshold, sign) for inside in names[n + 1 :]}
        for row in groups[of]:
            if not any(index.wanted.any() for index in indexes.values()):
                break
            if parts := shingles(row.text):
                signature = sign(parts)
                for index in indexes.values():
                    index.compare(row.id, parts, signature)
        found += [index.report(of, inside) for inside, index in indexes.items()]
    return found


def repeating(known: Sequence[Text], asked: Sequence[Text], threshold: float, seed: int) -> set[str]:
    """Return the ids of the `asked` texts that nearly repeat a known one."""
    sign = _signing(seed)
    index = _Index(asked, threshold, sign)
    for row in known:
        if parts := shingles(row.text):
            index.compare(row.id, parts, sign(parts))
    return index.found


def describe(found: NearDuplicates) -> str:
    """Say how many there are, and which is the first; empty when there are none."""
    if not found.pairs:
        return ""
    first = found.pairs[0]
    what = f"{counted(found.num_examples, 'example')} of {found.inside} ({found.share:.1%})"
    return f"{what} like one of {found.of}, such as {first.id} like {first.repeats} ({first.similarity:.2f})"


# -- the index -------------------------------------------------------------------------------------
class _Index:
    """The texts of a later group, by the bands of their signatures.

    `wanted`: the texts that were not found yet.
    """

    def __init__(self, texts: Sequence[Text], threshold: float, sign: Sign) -> None:
        self._texts, self._threshold = texts, threshold
        self._bands = bands(threshold)
        self._pairs: dict[int, NearPair] = {}
        self._ids: dict[str, int] = {}  # ids of shingles
        buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
        columns: list[int] = []
        ends = [0]
        for n, row in enumerate(texts):
            parts = shingles(row.text)
            columns += sorted(self._ids.setdefault(part, len(self._ids)) for part in parts)
            ends.append(len(columns))
            if parts:
                for band in self._cut(sign(parts)):
                    buckets[band].append(n)
        self._buckets = {band: np.array(members) for band, members in buckets.items()}
        self._sizes = np.diff(ends)
        self._matrix = sparse.csr_array(
            (np.ones(len(columns)), columns, ends), shape=(len(texts), len(self._ids)), dtype=np.float64
        )
        self.wanted = self._sizes > 0

    def compare(self, name: str, parts: frozenset[str], signature: Signature) -> None:
        """Note which texts nearly repeat the one called `name`."""
        buckets = [self._buckets[band] for band in self._cut(signature) if band in self._buckets]
        if not buckets:
            return
        is_candidate = np.zeros(len(self._texts), dtype=bool)
        for members in buckets:
            is_candidate[members] = True
        candidates = np.flatnonzero(is_candidate & self.wanted)
        if not len(candidates):
            return
        known = np.zeros(len(self._ids))
        known[[self._ids[part] for part in parts if part in self._ids]] = 1
        shared = self._matrix[candidates] @ known
        similar = shared / (len(parts) + self._sizes[candidates] - shared)
        for place in np.flatnonzero(similar >= self._threshold):
            n = int(candidates[place])
            self.wanted[n] = False
            similarity = round(float(similar[place]), 4)
            self._pairs[n] = NearPair(id=self._texts[n].id, repeats=name, similarity=similarity)

    @property
    def found(self) -> set[str]:
        """The ids of the texts that were found."""
        return {self._texts[n].id for n in self._pairs}

    def report(self, of: str, inside: str) -> NearDuplicates:
        return NearDuplicates(
            of=of,
            inside=inside,
            num_examples=len(self._pairs),
            share=round(len(self._pairs) / max(len(self._texts), 1), 6),
            pairs=[self._pairs[n] for n in sorted(self._pairs)[:SHOWN]],
        )

    def _cut(self, signature: Signature) -> list[tuple[int, bytes]]:
        number, length = self._bands
        return [(n, signature[n * length : (n + 1) * length].tobytes()) for n in range(number)]


def _signing(seed: int) -> Sign:
    from datasketch import MinHash

    empty = MinHash(num_perm=SIGNATURE, seed=seed, hashfunc=zlib.crc32)

    def sign(parts: frozenset[str]) -> Signature:
        made, waiting = empty.copy(), iter(parts)
        while some := [part.encode() for part in islice(waiting, _AT_ONCE)]:
            made.update_batch(some)
        return made.hashvalues

    return sign


def bands(threshold: float) -> tuple[int, int]:
    """Return the number of bands and the hashes in each. Long bands find fewer texts that are not
    near-duplicates. These are the longest that still find a pair at the threshold with a
    probability of RECALL."""
    return next(
        (SIGNATURE // length, length)
        for length in range(SIGNATURE // 2, 0, -1)
        if 1 - (1 - threshold**length) ** (SIGNATURE // length) >= RECALL
    )


def shingles(text: str) -> frozenset[str]:
    """Split into runs of three words; a shorter text is one run."""
    words = _WORD.findall(text.casefold())
    if len(words) <= WORDS:
        return frozenset([" ".join(words)] if words else [])
    return frozenset(" ".join(words[n : n + WORDS]) for n in range(len(words) - WORDS + 1))
