"""The drift report: how far a window of traffic is from its reference, and what to do."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report, added
from rft.reports.traffic import FeatureGroup, Statistic

Against = Literal["train", "validation", "test", "window"]
"""What a window is compared with: the examples of a split, or the window of the champion's run."""


class Bar(Report):
    """The share of one value, or of a range of values, on both sides."""

    label: str
    reference: float
    current: float


class FeatureDrift(Report):
    """Drift of one feature against one reference.

    `effect`, `p_value` and `q_value` are None where there is nothing to compare with; `detail` says
    so. `threshold` is the configured one or, if larger, `noise`. Chance alone exceeds `noise` in a
    share alpha of windows like these.
    """

    feature: str
    against: Against = added("train")
    group: FeatureGroup
    statistic: Statistic
    effect: float | None
    threshold: float
    p_value: float | None
    q_value: float | None
    n_reference: int
    n_current: int
    drifted: bool
    detail: str = ""
    reference: str = ""  # whose profile
    noise: float | None = added(None)
    groups_reference: int = added(0)  # groups of units with a value
    groups_current: int = added(0)
    bars: list[Bar] = added([])  # what a picture shows, at most a dozen


class Carrier(Report):
    """A conversation that shows the drift of a feature, shortened to fit a page, and redacted."""

    feature: str
    conversation_id: str
    says: str


class Contract(Report):
    """One Great Expectations expectation on the window's table."""

    name: str
    column: str
    success: bool
    observed: str = ""


class DriftReport(Report):
    verdict: Literal["continue", "refresh", "stop"]
    reason: str
    features: list[FeatureDrift]
    contracts: list[Contract]
    num_reference: int
    num_current: int
    window_sha256: str = ""
    num_usable_feedback: int = 0  # graded conversations that can become training examples
    tool_error_share: float = 0.0
    data_docs: str = ""  # inside the state folder
    alpha: float | None = added(None)  # the false-discovery rate of this comparison
    carriers: list[Carrier] = added([])
    advice: str = added("")  # what to do, in one sentence
