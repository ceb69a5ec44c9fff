"""The examples report: counts and hashes of the splits, and what leaked between them."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report, added


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
