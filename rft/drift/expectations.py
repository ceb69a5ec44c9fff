"""Define our own expectations, so that Data Docs shows what Great Expectations cannot count.

Two kinds of numbers exist before Great Expectations sees a table. One is the drift of each feature
(rft/stages/drift.py). The other is the rows of a log that did not become conversations (the
manifest of a snapshot). Both are passed on as a small table of records. The expectations below look
up their record and say whether it is good. They compute nothing, so that a page never disagrees
with the report.

Import this module inside functions only: Great Expectations takes seconds to load.
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider


class TableRecords(TableMetricProvider):
    """The rows of a small table, as a list of objects."""

    metric_name = "table.records"

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,  # noqa: N805, RUF100  # Great Expectations calls it on the class
        execution_engine: PandasExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> list[dict[str, Any]]:
        frame, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE)
        return frame.to_dict("records")


class ExpectFeatureNotToDrift(BatchExpectation):
    """A feature's effect stays at its threshold, or chance explains it (q is `level` or more).

    Records: `feature`, `against`, `drifted` and `observed`, the numbers in words.
    """

    column: str
    """The feature. Data Docs groups expectations by their column."""
    against: str
    threshold: float
    level: float

    metric_dependencies: ClassVar[tuple[str, ...]] = ("table.records",)
    success_keys: ClassVar[tuple[str, ...]] = ("column", "against", "threshold", "level")

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        (found,) = [
            record
            for record in metrics["table.records"]
            if (record["feature"], record["against"]) == (self.column, self.against)
        ]
        return {"success": not found["drifted"], "result": {"observed_value": found["observed"]}}


class _ExpectRows(BatchExpectation):
    """At most a share of a log's rows is bad.

    Records: `contract`, `rows`, `bad` and `such_as`, the first bad ones in words.
    """

    column: str
    mostly: float = 1.0

    metric_dependencies: ClassVar[tuple[str, ...]] = ("table.records",)
    success_keys: ClassVar[tuple[str, ...]] = ("column", "mostly")

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        (found,) = [record for record in metrics["table.records"] if record["contract"] == self.expectation_type]
        share = found["bad"] / max(found["rows"], 1)
        result = {
            "element_count": found["rows"],
            "unexpected_count": found["bad"],
            "unexpected_percent": 100 * share,
            "partial_unexpected_list": found["such_as"],
        }
        return {"success": share <= 1 - self.mostly, "result": result}


class ExpectRowsToBeReadable(_ExpectRows):
    """Few rows of the log could not be read as conversations."""


class ExpectRowsToNameTheirUnit(_ExpectRows):
    """Few rows lack the unit of dependence that `traffic.unit` declares."""
