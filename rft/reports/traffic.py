"""The traffic report: a window of production conversations, and how they are distributed."""

from __future__ import annotations

from typing import Any, Literal

from rft.reports.base import Report


class Conversation(Report):
    """One production conversation, normalized. `feedback` is what a person corrected the answer to,
    if anyone did."""

    conversation_id: str
    time: str  # ISO 8601, UTC
    messages: list[dict[str, Any]]
    latency_s: float | None = None  # None: not logged
    tool_errors: int | None = None
    feedback: Any | None = None


FeatureGroup = Literal["input", "agent", "performance"]
Statistic = Literal["wasserstein_sd", "psi", "total_variation", "classifier_auc"]


class Feature(Report):
    """One column of a profile, as counts over bins.

    Numeric: inner `edges`, and one more count than edges. Category: `values` with their counts.
    Text: a `sample` of conversations, each as hashes of its words. `n` conversations had a value,
    `nulls` had none.
    """

    kind: Literal["numeric", "category", "text"]
    group: FeatureGroup
    statistic: Statistic
    counts: list[int] = []
    edges: list[float] = []
    values: list[str] = []
    sample: list[str] = []
    mean: float | None = None
    sd: float | None = None
    n: int
    nulls: int = 0


class Profile(Report):
    """The distribution of a window of traffic, or of the examples that a champion was trained
    on."""

    source: str
    num_conversations: int
    features: dict[str, Feature]


class TrafficReport(Report):
    source: str
    sha256: str
    first: str
    last: str
    num_rows: int
    num_conversations: int
    num_with_feedback: int
    rejected: dict[str, int] = {}  # reason -> rows, none silently
    ignored_keys: dict[str, int] = {}  # key that the format does not know -> rows
    reference: str = ""  # whose profile the window is compared with
