"""What people see of the arms: a few validation examples, played once by each arm.

A person who reads test dialogues tunes on the test, even with the best intentions. So stage
`challenger` also plays some validation examples, only for the report. The gate never reads this
file.
"""

from __future__ import annotations

from pydantic import Field

from rft.reports.base import Report
from rft.reports.evaluation import Row


class Shown(Report):
    """`data/challenger/shown.json`; the rollouts themselves are in `shown.parquet`."""

    examples: int = Field(ge=0)
    """How many, from the start of validation; 0: none were asked for."""
    arms: dict[str, list[Row]]
    """Arm -> its rows, in the order of the examples."""
