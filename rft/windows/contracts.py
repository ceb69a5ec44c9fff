"""Great Expectations contracts, with Data Docs: what any window must fulfill before its statistics
mean anything.

A distribution may move; a contract may not break. Schema, nulls, ranges and sets are contracts: a
latency of minus three seconds, or a call to a tool that the agent does not have, says that the log
is broken, not that patients have changed. Two tables are checked, one row per conversation and one
row per tool call. Contracts on values allow a small declared share of bad rows
(`drift.max_bad_share`); contracts on the log's form allow none.

Great Expectations turns an exception inside an expectation into `success=False`. Here it is a
pipeline error: never drift, never a broken contract. The drift statistics (rft/stages/drift.py) are
only shown here, on a page of their own, and are no contracts. Data Docs hold times and random ids,
so they are outside every claim of equal bytes.

The agent's tools are known from its recipe and from params.yaml; no server is asked (`KnownTools`).
An MCP server tells its tools only to its callers. So what starts with its prefix counts as its own;
without a prefix or a list of tools the contract is not checked, and the verdict says so. A row may
describe tools of its own, but only those with an address in params.yaml.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft.config import Drift, Tools
from rft.errors import InfrastructureError
from rft.reports import Contract, Conversation, FeatureDrift
from rft.windows.profile import input_messages, tool_names, user_text, words

if TYPE_CHECKING:
    import pandas as pd

MAX_ERRORS = 10_000
COLUMNS = (
    "conversation_id",
    "time",
    "num_messages",
    "last_role",
    "input_words",
    "num_tool_calls",
    "tool_errors",
    "latency_s",
)


@dataclass(frozen=True, slots=True)
class KnownTools:
    """The agent's tools, as far as files tell."""

    names: frozenset[str]
    prefixes: tuple[str, ...] = ()
    """Prefixes of MCP servers whose tools no file lists."""
    unlisted: tuple[str, ...] = ()
    """Names of such servers without a prefix: any tool may be theirs."""

    @classmethod
    def of(cls, recipe_tools: Iterable[str], section: Tools) -> KnownTools:
        listed = {f"{server.prefix}{tool}" for server in section.mcp for tool in server.tools or ()}
        open_servers = [server for server in section.mcp if server.tools is None]
        return cls(
            names=frozenset({*recipe_tools, *(endpoint.name for endpoint in section.endpoints), *listed}),
            prefixes=tuple(server.prefix for server in open_servers if server.prefix),
            unlisted=tuple(server.name for server in open_servers if not server.prefix),
        )

    def among(self, called: Iterable[str]) -> list[str]:
        """List the known names, and those that were called and start with a prefix."""
        return sorted(self.names | {name for name in called if self.prefixes and name.startswith(self.prefixes)})

    @property
    def not_checked(self) -> str:
        """A note for the verdict if calls of unknown tools cannot be detected; else empty."""
        if not self.unlisted:
            return ""
        servers = ", ".join(f"'{name}'" for name in self.unlisted)
        why = f"only tools.mcp {servers} knows; set its `prefix` or `tools`"
        return f" Not checked: whether every tool that was called exists, because {why}."


def check(
    conversations: Sequence[Conversation],
    tools: KnownTools,
    statistics: Sequence[FeatureDrift],
    settings: Drift,
    docs: Path,
) -> list[Contract]:
    """Check every contract; writes Data Docs to `docs`. Raises InfrastructureError when a check
    itself failed."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():  # its import goes through deprecated modules of the standard library
        warnings.simplefilter("ignore")
        import great_expectations as gx
        import pandas as pd
    # it logs its temporary folders
    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
    calls = pd.DataFrame(
        {"tool": [name for conversation in conversations for name in tool_names(conversation)]}, dtype="object"
    )
    numbers = pd.DataFrame({one.feature: ["drifted" if one.drifted else "not drifted"] for one in statistics})
    context: Any = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("window")
    docs = docs.resolve()  # Great Expectations takes no relative folder
    docs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=docs.parent, prefix=".docs-") as part:
        _send_docs_to(context, Path(part) / "site")
        found = _validate(context, source, "conversations", table(conversations), _on_conversations(settings))
        if len(calls) and not tools.unlisted:
            found += _validate(context, source, "tool_calls", calls, _on_calls(settings, tools.among(calls["tool"])))
        if len(numbers.columns):
            _validate(context, source, "statistics", numbers, _on_statistics(statistics))
        context.build_data_docs()
        shutil.rmtree(docs, ignore_errors=True)
        os.replace(Path(part) / "site", docs)
    return found


def table(conversations: Sequence[Conversation]) -> pd.DataFrame:
    """Make a table with one row per conversation."""
    import pandas as pd

    rows = [
        (
            one.conversation_id,
            one.time,
            len(one.messages),
            one.messages[-1]["role"],
            len(words(user_text(input_messages(one.messages)))),
            len(tool_names(one)),
            one.tool_errors,
            one.latency_s,
        )
        for one in conversations
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"tool_errors": "float64", "latency_s": "float64"})


def _on_conversations(settings: Drift) -> list[Any]:
    gxe = _expectations()
    mostly = 1 - settings.max_bad_share
    return [
        gxe.ExpectTableColumnsToMatchSet(column_set=list(COLUMNS), exact_match=True),
        gxe.ExpectColumnValuesToNotBeNull(column="conversation_id"),
        gxe.ExpectColumnValuesToBeUnique(column="conversation_id"),
        gxe.ExpectColumnValuesToNotBeNull(column="time"),
        gxe.ExpectColumnValuesToBeInSet(column="last_role", value_set=["assistant"], mostly=mostly),
        gxe.ExpectColumnValuesToBeBetween(column="input_words", min_value=1, mostly=mostly),
        gxe.ExpectColumnValuesToNotBeNull(column="latency_s", mostly=mostly),
        gxe.ExpectColumnValuesToBeBetween(
            column="latency_s", min_value=0, max_value=settings.max_latency_s, mostly=mostly
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="tool_errors", mostly=mostly),
        gxe.ExpectColumnValuesToBeBetween(column="tool_errors", min_value=0, max_value=MAX_ERRORS, mostly=mostly),
    ]


def _on_calls(settings: Drift, tools: Sequence[str]) -> list[Any]:
    gxe = _expectations()
    return [gxe.ExpectColumnValuesToBeInSet(column="tool", value_set=list(tools), mostly=1 - settings.max_bad_share)]


def _on_statistics(statistics: Sequence[FeatureDrift]) -> list[Any]:
    gxe = _expectations()
    expect = gxe.ExpectColumnValuesToBeInSet
    return [
        expect(column=one.feature, value_set=["not drifted"], description=f"{one.feature}: {one.detail}")
        for one in statistics
    ]


def _expectations() -> Any:
    """Import the module of expectations; it does not declare its exports to type checkers."""
    from great_expectations import expectations

    return expectations


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


def _validate(context: Any, source: Any, name: str, frame: pd.DataFrame, expectations: list[Any]) -> list[Contract]:
    """Validate, in the order of `expectations`; Great Expectations has an order of its own."""
    import great_expectations as gx

    batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    checkpoint = gx.Checkpoint(name=name, validation_definitions=[definition], result_format="SUMMARY")
    outcome = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    (validated,) = outcome.run_results.values()
    found = [_contract(result) for result in validated.results]
    order = [(one.expectation_type, one.configuration.kwargs.get("column", "(table)")) for one in suite.expectations]
    return sorted(found, key=lambda one: order.index((f"expect_{one.name}", one.column)))


def _contract(result: Any) -> Contract:
    """Read a result. Raises InfrastructureError when the expectation itself raised."""
    kind = result.expectation_config.type
    column = str(result.expectation_config.kwargs.get("column", "(table)"))
    info = result.exception_info or {}
    # One exception, or several by the name of the metric that raised.
    raised = [one for one in (info, *info.values()) if isinstance(one, dict) and one.get("raised_exception")]
    if raised:
        message = " ".join(str(raised[0].get("exception_message")).split())
        what = f"Great Expectations could not check {kind} on {column}: {message}"
        raise InfrastructureError(f"{what}. This is not drift, and no verdict was written.")
    name, observed = kind.removeprefix("expect_"), _observed(result.result)
    return Contract(name=name, column=column, success=bool(result.success), observed=observed)


def _observed(result: dict[str, Any]) -> str:
    if "unexpected_count" not in result:
        value = result.get("observed_value")
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    bad, total = result["unexpected_count"], result["element_count"]
    shown = ", ".join(dict.fromkeys(str(value) for value in result.get("partial_unexpected_list", [])[:3]))
    return f"{bad} of {total} bad" + (f", such as {shown}" if bad and shown else "")
