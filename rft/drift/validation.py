"""Validate tables piece by piece with Great Expectations, and write one page per table.

A table comes as pieces: pandas frames of some 100,000 rows. Only one piece is in memory at a time.
Great Expectations judges each piece. We do not use its own verdict on a piece: 3 % of bad rows in
one piece may be 0.1 % of the table. So the counts of rows and of bad rows are summed over the
pieces, and the contract is decided on the sums. Data Docs gets the sums as well, under one result
per table. The page says how many pieces were summed. Its examples are the first bad values met. A
repeated value is found only if both rows are in one piece.

Great Expectations turns an exception inside an expectation into `success=False`. Here it is a
pipeline error: never drift, never a broken contract. Data Docs holds times and random ids, so its
bytes differ each time. It shows values as HTML. The values come from a log, so they are escaped
before Data Docs sees them.
"""

from __future__ import annotations

import html
import logging
import os
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft.errors import InfrastructureError
from rft.formatting import counted
from rft.reports import Contract

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 20
"""The most bad values that a page lists."""


@dataclass(frozen=True, slots=True)
class Validation:
    """A session of Great Expectations that leaves only its pages behind."""

    context: Any
    source: Any

    def table(
        self, name: str, pieces: Iterable[pd.DataFrame], expectations: Sequence[Any], max_bad_share: float
    ) -> list[Contract]:
        """Validate a table and keep a page about it. The contracts are in the order of
        `expectations`.

        `max_bad_share` applies to the expectations that set `mostly`; the others allow no bad row.
        `pieces` has at least one piece. Raises InfrastructureError when an expectation itself
        raised.
        """
        import great_expectations as gx

        batch = self.source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        suite = self.context.suites.add(gx.ExpectationSuite(name=name, expectations=list(expectations)))
        whole: Any = None
        num_pieces = num_rows = 0
        for piece in pieces:
            found = batch.get_batch(batch_parameters={"dataframe": piece}).validate(suite, result_format="SUMMARY")
            for result in found.results:
                _assert_ran(result)
            num_pieces, num_rows = num_pieces + 1, num_rows + len(piece)
            whole = found if whole is None else _joined(whole, found)
        for result in whole.results:
            _decide(result, max_bad_share)
        order = [expectation.id for expectation in suite.expectations]
        whole.results.sort(key=lambda result: order.index(result.expectation_config.id))
        contracts = [_contract(result) for result in whole.results]
        summed = f", counts summed over {num_pieces} pieces" if num_pieces > 1 else ""
        self._keep(name, whole, f"{name}: {counted(num_rows, 'row')}{summed}")
        return contracts

    def _keep(self, name: str, whole: Any, header: str) -> None:
        """Store the sums as the table's only result, from which Data Docs makes the page."""
        from great_expectations.core.run_identifier import RunIdentifier
        from great_expectations.data_context.types.resource_identifiers import (
            ExpectationSuiteIdentifier,
            ValidationResultIdentifier,
        )

        for result in whole.results:
            _escape(result.result)
        good = sum(bool(result.success) for result in whole.results)
        whole.success = good == len(whole.results)
        whole.statistics = {
            "evaluated_expectations": len(whole.results),
            "successful_expectations": good,
            "unsuccessful_expectations": len(whole.results) - good,
            "success_percent": 100 * good / len(whole.results),
        }
        run = RunIdentifier(run_name=name, run_time=datetime.now(UTC))
        whole.meta["run_id"] = run
        whole.meta["batch_spec"] = {"data_asset_name": header}
        suite = ExpectationSuiteIdentifier(name=name)
        self.context.validation_results_store.store_validation_results(
            suite_validation_result=whole,
            suite_validation_result_identifier=ValidationResultIdentifier(suite, run, whole.batch_id),
            expectation_suite_identifier=suite,
        )


@contextmanager
def writing(docs: Path) -> Iterator[Validation]:
    """Yield a Validation. Its pages replace `docs` at the end, but not after an exception."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():  # its import uses deprecated modules of the standard library
        warnings.simplefilter("ignore")
        import great_expectations as gx

        import rft.drift.expectations  # noqa: F401  # registers our own
    # otherwise it logs its temporary folders
    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
    context: Any = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    docs = docs.resolve()  # Great Expectations does not accept a relative folder
    docs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=docs.parent, prefix=".docs-") as part:
        _send_docs_to(context, Path(part) / "site")
        yield Validation(context, context.data_sources.add_pandas("window"))
        context.build_data_docs()
        shutil.rmtree(docs, ignore_errors=True)
        os.replace(Path(part) / "site", docs)


def _send_docs_to(context: Any, site: Path) -> None:
    for name in list(context.variables.config.data_docs_sites or {}):
        context.delete_data_docs_site(name)
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site)}
    config = {
        "class_name": "SiteBuilder",
        "store_backend": store,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    context.add_data_docs_site(site_name="window", site_config=config)


# -- sums ------------------------------------------------------------------------------------------
def _joined(whole: Any, more: Any) -> Any:
    """Add the counts of a further piece."""
    added = {result.expectation_config.id: result for result in more.results}
    for result in whole.results:
        other = added[result.expectation_config.id]
        if "unexpected_count" not in result.result:
            if result.success and not other.success:
                result.result = other.result
            result.success = bool(result.success and other.success)
            continue
        total: dict[str, Any] = result.result
        for count in ("element_count", "unexpected_count", "missing_count"):
            if count in total:
                total[count] += other.result[count]
        values = [*total.get("partial_unexpected_list", []), *other.result.get("partial_unexpected_list", [])]
        total["partial_unexpected_list"] = values[:SHOWN]
    return whole


def _decide(result: Any, max_bad_share: float) -> None:
    """Set the success and the shares of a result from its counts."""
    total = result.result
    if "unexpected_count" not in total:
        return
    bad, rows, missing = total["unexpected_count"], total["element_count"], total.get("missing_count", 0)
    allowed = max_bad_share if result.expectation_config.kwargs.get("mostly", 1) < 1 else 0.0
    share = bad / (rows - missing) if rows > missing else 0.0
    result.success = share <= allowed
    total["unexpected_percent"] = total["unexpected_percent_nonmissing"] = 100 * share
    total["unexpected_percent_total"] = 100 * bad / max(rows, 1)
    if "missing_count" in total:
        total["missing_percent"] = 100 * missing / max(rows, 1)
    total.pop("partial_unexpected_index_list", None)  # positions in a piece mean nothing


def _escape(result: dict[str, Any]) -> None:
    """Make the values of a result safe to show: Data Docs writes them as HTML."""
    if isinstance(result.get("observed_value"), str):
        result["observed_value"] = html.escape(result["observed_value"])
    if "partial_unexpected_list" in result:
        values = [html.escape(str(value)) for value in result["partial_unexpected_list"]]
        result["partial_unexpected_list"] = values
        result["partial_unexpected_counts"] = [
            {"value": value, "count": count} for value, count in Counter(values).most_common()
        ]


def _assert_ran(result: Any) -> None:
    info = result.exception_info or {}
    # One exception, or several, keyed by the metric that raised.
    raised = [found for found in (info, *info.values()) if isinstance(found, dict) and found.get("raised_exception")]
    if raised:
        config = result.expectation_config
        message = " ".join(str(raised[0].get("exception_message")).split())
        what = f"Great Expectations could not check {config.type} on {_column(config)}: {message}"
        raise InfrastructureError(f"{what}. This is not drift, and no verdict was written.")


def _column(config: Any) -> str:
    return str(config.kwargs.get("column", "(table)"))


def _contract(result: Any) -> Contract:
    name = result.expectation_config.type.removeprefix("expect_")
    column = _column(result.expectation_config)
    return Contract(name=name, column=column, success=bool(result.success), observed=_observed(result.result))


def _observed(result: dict[str, Any]) -> str:
    if "unexpected_count" not in result:
        value = result.get("observed_value")
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    bad, total = result["unexpected_count"], result["element_count"]
    known = [value for value in result.get("partial_unexpected_list", []) if value is not None and value == value]
    shown = ", ".join(dict.fromkeys(str(value) for value in known[:3]))
    return f"{bad} of {total} bad" + (f", such as {shown}" if bad and shown else "")
