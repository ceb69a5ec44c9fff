"""The examples report: counts and hashes of the splits, and what leaked between them."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report, added


class NearPair(Report):
    """An example whose input nearly repeats that of an example of an earlier split."""

    id: str
    repeats: str  # id
    similarity: float  # Jaccard similarity of their word 3-shingles


class NearDuplicates(Report):
    """Examples of one split or block that nearly repeat an example of another."""

    of: str
    inside: str
    num_examples: int  # of `inside`
    share: float  # of all examples of `inside`
    pairs: list[NearPair] = []  # the first of them


class ExamplesReport(Report):
    source: Literal["recipe", "window"]
    counts: dict[str, int]  # split -> examples
    sha256: dict[str, str]  # split -> content hash
    leakage: dict[str, int]  # check -> offending examples; all must be 0
    repeated: dict[str, int] = {}  # split -> repeated lines, which were taken once
    without_target: dict[str, int] = {}  # split -> examples
    slices: dict[str, dict[str, int]]  # split -> slice -> examples
    offers_blocks: bool = added(False)
    """Whether the recipe can make fresh test examples."""
    near_duplicates: list[NearDuplicates] = added([])
    """What `examples.near_duplicate` found; [] when it is switched off."""
    imitated: int = added(0)
    """Dialogues for supervised training, from the source that `train.source` names."""
    not_imitated: dict[str, int] = added({})
    """Reason -> dialogues of that source that were left out."""
