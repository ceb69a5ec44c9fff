"""Check contracts: what any window must fulfill before its statistics mean anything.

A distribution may move; a contract may not break. Contracts are about nulls, ranges and sets. A
latency of minus three seconds, or a call to a tool that the agent does not have, shows that the log
is broken, not that patients have changed. Great Expectations checks them (rft/drift/validation.py),
on three tables:

    log             its rows: those that cannot be read, and those without the declared unit
    conversations   one row per conversation, the narrow columns of the snapshot
    tool_calls      one row per tool call

Contracts on values allow a small declared share of bad rows (`drift.max_bad_share`); contracts on
the form of the table allow none. A fourth table, `statistics`, shows the drift of each feature
(rft/stages/drift.py). That is not a contract, but people look for both in Data Docs.

A window is a sequence of snapshot parts, or of tables with the same columns. It may have any size:
`PIECE` conversations are read at a time, without their text.

The agent's tools are known from its recipe and from params.yaml; no server is asked (`KnownTools`).
An MCP server names its tools only to its callers. So a tool that starts with its prefix counts as
the server's own. Without a prefix or a list of tools the contract is not checked, and the verdict
says so. A row may describe tools of its own, but only those with an address in params.yaml.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rft.config import Drift, Tools
from rft.drift import validation
from rft.errors import UserError
from rft.reports import Contract, FeatureDrift, Manifest
from rft.traffic.schema import OWN

if TYPE_CHECKING:
    import pandas as pd

Window = Sequence[Path | pa.Table]
"""Parts of a snapshot, or tables with its columns."""

PIECE = 100_000
"""Conversations, or calls, in memory at a time."""
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
REPEATED = ("repeated", "continued", "joined")
"""Reasons of the manifest for rows that were read: another row holds their conversation."""
NO_UNIT = "no unit"
"""Reason of the manifest for rows that were kept, each as a unit of its own."""


@dataclass(frozen=True, slots=True)
class KnownTools:
    """The agent's tools, as far as files name them."""

    names: frozenset[str]
    prefixes: tuple[str, ...] = ()
    """Prefixes of MCP servers whose tools no file lists."""
    unlisted: tuple[str, ...] = ()
    """Names of such servers without a prefix: any tool may be theirs."""

    @classmethod
    def from_tools(cls, recipe_tools: Iterable[str], section: Tools) -> KnownTools:
        listed = {f"{server.prefix}{tool}" for server in section.mcp for tool in server.tools or ()}
        open_servers = [server for server in section.mcp if server.tools is None]
        return cls(
            names=frozenset({*recipe_tools, *(endpoint.name for endpoint in section.endpoints), *listed}),
            prefixes=tuple(server.prefix for server in open_servers if server.prefix),
            unlisted=tuple(server.name for server in open_servers if not server.prefix),
        )

    def among(self, called: Iterable[str]) -> list[str]:
        """List the known names, and the called names that start with a prefix."""
        return sorted(self.names | {name for name in called if self.prefixes and name.startswith(self.prefixes)})

    @property
    def not_checked(self) -> str:
        """Return a note for the verdict if calls of unknown tools cannot be detected; else an empty
        text."""
        if not self.unlisted:
            return ""
        servers = ", ".join(f"'{name}'" for name in self.unlisted)
        why = f"only tools.mcp {servers} knows; set its `prefix` or `tools`"
        return f" Not checked: whether every tool that was called exists, because {why}."


def check(
    window: Window,
    tools: KnownTools,
    statistics: Sequence[FeatureDrift],
    settings: Drift,
    docs: Path,
    manifest: Manifest | None = None,
) -> list[Contract]:
    """Check every contract, and write Data Docs to `docs`.

    Raises InfrastructureError when a check itself failed, and UserError for a part without the
    columns of this version. `manifest`: None where no log was ingested.
    """
    own = _own_columns(window)
    with validation.writing(docs) as pages:
        found: list[Contract] = []
        if manifest is not None:
            found += pages.table("log", [_log_table(manifest)], _on_log(manifest, settings), settings.max_bad_share)
        found += pages.table(
            "conversations",
            _frames(_batches(window, [*COLUMNS, *own])),
            _on_conversations(settings, own, _logged(manifest)),
            settings.max_bad_share,
        )
        called = _called(window, tools)
        if called is not None and not tools.unlisted:
            expectations = _on_calls(settings, tools.among(called))
            found += pages.table("tool_calls", _frames(_calls(window)), expectations, settings.max_bad_share)
        if statistics:
            pages.table("statistics", [_statistics_table(statistics)], _on_statistics(statistics, settings), 0.0)
    return found


# -- reading ---------------------------------------------------------------------------------------
def _schema(part: Path | pa.Table) -> pa.Schema:
    return pq.read_schema(part) if isinstance(part, Path) else part.schema


def _own_columns(window: Window) -> list[str]:
    """List the owner's columns. Raises UserError for a part that lacks what contracts read."""
    own = sorted(name for name in _schema(window[0]).names if name.startswith(OWN)) if window else []
    for part in window:
        missing = {*COLUMNS, "tools", *own} - set(_schema(part).names)
        if missing:
            what = f"{part if isinstance(part, Path) else 'the window'}: has no column '{min(missing)}'"
            raise UserError(f"{what}. Another version of agent-rft wrote it: ingest the log again.")
    return own


def _batches(window: Window, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for part in window:
        if isinstance(part, Path):
            with pq.ParquetFile(part) as file:
                yield from file.iter_batches(batch_size=PIECE, columns=columns)
        else:
            yield from part.select(columns).to_batches(max_chunksize=PIECE)


def _calls(window: Window) -> Iterator[pa.RecordBatch]:
    for batch in _batches(window, ["tools"]):
        names = batch.column("tools").flatten()
        for start in range(0, len(names), PIECE):
            yield pa.record_batch({"tool": names.slice(start, PIECE)})


def _called(window: Window, tools: KnownTools) -> set[str] | None:
    """Collect the names of the tools that were called; None if there was no call.

    If no server has a prefix, reading stops at the first names.
    """
    names: set[str] = set()
    for batch in _calls(window):
        names.update(batch.column("tool").unique().to_pylist())
        if names and not tools.prefixes:
            break
    return names or None


def _frames(batches: Iterator[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
    """Make frames of about PIECE rows: validating few rows costs as much as validating many."""
    waiting: list[pa.RecordBatch] = []
    yielded = False
    for batch in batches:
        if waiting and sum(map(len, waiting)) + len(batch) > PIECE:
            yield _frame(waiting)
            yielded, waiting = True, []
        waiting.append(batch)
    if waiting:
        yield _frame(waiting)
    elif not yielded:
        raise AssertionError("a window has at least one part")


def _frame(batches: list[pa.RecordBatch]) -> pd.DataFrame:
    frame = pa.Table.from_batches(batches).to_pandas()
    # one type whether or not a piece has nulls, so that bad values look the same on a page
    return frame.astype({name: "float64" for name in ("tool_errors", "latency_s") if name in frame})


# -- contracts -------------------------------------------------------------------------------------
def _on_log(manifest: Manifest, settings: Drift) -> list[Any]:
    from rft.drift import expectations as ours

    mostly = 1 - settings.max_bad_share
    readable = ours.ExpectRowsToBeReadable(
        column="log", mostly=mostly, description="rows of the log must be readable as conversations"
    )
    if manifest.unit is None:
        return [readable]
    what = f"rows of the log must name their unit, traffic.unit: {manifest.unit}"
    return [readable, ours.ExpectRowsToNameTheirUnit(column="log", mostly=mostly, description=html.escape(what))]


def _log_table(manifest: Manifest) -> pd.DataFrame:
    import pandas as pd

    repeated = sum(manifest.rejected.get(reason, 0) for reason in REPEATED)
    unread = manifest.num_rows - manifest.num_conversations - repeated
    first = [f"{row.source}:{row.line} ({row.why})" for row in manifest.unread]
    rows = [
        ("expect_rows_to_be_readable", manifest.num_rows, unread, first[: validation.SHOWN]),
        ("expect_rows_to_name_their_unit", manifest.num_conversations, manifest.rejected.get(NO_UNIT, 0), []),
    ]
    return pd.DataFrame(rows, columns=["contract", "rows", "bad", "such_as"])


def _logged(manifest: Manifest | None) -> list[str]:
    """List the columns that the log's formats can hold. Requests and responses of a model name no
    latency and no failed tool calls, so nulls in these columns are not missing values there."""
    formats = {source.format for source in manifest.sources} if manifest is not None else set[str]()
    return ["latency_s", "tool_errors"] if formats <= {"own"} else []


def _on_conversations(settings: Drift, own: Sequence[str], logged: Sequence[str]) -> list[Any]:
    gxe = _expectations()
    mostly = 1 - settings.max_bad_share
    limits = {"latency_s": settings.max_latency_s, "tool_errors": MAX_ERRORS}
    values: list[Any] = []
    for column, limit in limits.items():
        if column in logged:
            values.append(gxe.ExpectColumnValuesToNotBeNull(column=column, mostly=mostly))
        values.append(gxe.ExpectColumnValuesToBeBetween(column=column, min_value=0, max_value=limit, mostly=mostly))
    return [
        gxe.ExpectTableColumnsToMatchSet(column_set=[*COLUMNS, *own], exact_match=True),
        gxe.ExpectColumnValuesToNotBeNull(column="conversation_id"),
        gxe.ExpectColumnValuesToBeUnique(column="conversation_id"),
        gxe.ExpectColumnValuesToNotBeNull(column="time"),
        gxe.ExpectColumnValuesToBeInSet(column="last_role", value_set=["assistant"], mostly=mostly),
        gxe.ExpectColumnValuesToBeBetween(column="input_words", min_value=1, mostly=mostly),
        *values,
        *(gxe.ExpectColumnValuesToNotBeNull(column=name, mostly=mostly) for name in own),
    ]


def _on_calls(settings: Drift, tools: Sequence[str]) -> list[Any]:
    gxe = _expectations()
    return [gxe.ExpectColumnValuesToBeInSet(column="tool", value_set=list(tools), mostly=1 - settings.max_bad_share)]


def _on_statistics(statistics: Sequence[FeatureDrift], settings: Drift) -> list[Any]:
    from rft.drift import expectations as ours

    return [
        ours.ExpectFeatureNotToDrift(
            column=html.escape(feature.feature),  # a page's headings are HTML too
            against=feature.against,
            threshold=feature.threshold,
            level=settings.level,
            description=html.escape(
                f"{feature.feature} against {feature.against}: {feature.statistic} at most {feature.threshold:.3f}, "
                f"or q at least {settings.level:.3g}"
            ),
        )
        for feature in statistics
    ]


def _statistics_table(statistics: Sequence[FeatureDrift]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        (html.escape(feature.feature), feature.against, feature.drifted, _describe(feature)) for feature in statistics
    ]
    return pd.DataFrame(rows, columns=["feature", "against", "drifted", "observed"])


def _describe(feature: FeatureDrift) -> str:
    if feature.effect is None or feature.q_value is None:
        return f"not tested: {feature.detail}"
    verdict = "drifted" if feature.drifted else "not drifted"
    return f"{feature.effect:.3f}, q {feature.q_value:.4f}: {verdict}. {feature.detail}"


def _expectations() -> Any:
    """Import the module of expectations; it does not declare its exports to type checkers."""
    from great_expectations import expectations

    return expectations
