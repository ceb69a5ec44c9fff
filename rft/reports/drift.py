"""The drift report: how far a window of traffic is from its reference, and what to do."""

from __future__ import annotations

from typing import Literal

from rft.reports.base import Report
from rft.reports.traffic import FeatureGroup, Statistic


class FeatureDrift(Report):
    """Drift of one feature. `effect`, `p_value` and `q_value` are None where there is nothing to
    compare with; `detail` says so."""

    feature: str
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
