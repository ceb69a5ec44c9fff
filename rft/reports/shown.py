"""What people see of the arms: a few validation examples, played once by each.

Whoever reads test dialogues tunes on the test, with the best intentions. So stage `challenger`
plays some validation examples beside it, for the report alone. The gate never reads this file.
"""

from __future__ import annotations

from pydantic import Field

from rft.reports.base import Report
from rft.reports.evaluation import Row


class Shown(Report):
    """`data/challenger/shown.json`; the rollouts themselves are in `shown.parquet`."""

    examples: int = Field(ge=0)
    """The first ones of validation; 0: none were asked for."""
    arms: dict[str, list[Row]]
    """Arm -> its rows, in the order of the examples."""
