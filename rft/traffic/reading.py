"""Read a snapshot: its manifest, its parts, and conversations where they are needed whole.

The functions:

    manifest(folder)                  what the snapshot holds
    parts(folder)                     the Parquet files, in the order of the log
    batches(folder, columns)          columns, a piece of the rows at a time
    conversations(folder, ...)        conversations, one at a time
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rft import files, reports
from rft.errors import UserError
from rft.reports import Conversation, Manifest
from rft.traffic import normal, schema
from rft.traffic.arrow import pc

KEPT = "no "
"""A reason in `Manifest.rejected` that begins with this does not reject the row. The row lacks a
unit, a declared column or an id of its own, but is kept."""
_BATCH = 4096
_WHOLE = ["conversation_id", "time", "messages", "latency_s", "tool_errors", "feedback", "unit"]


def num_rejected(found: Manifest) -> int:
    """Count the rows that did not become conversations of their own."""
    return sum(count for reason, count in found.rejected.items() if not reason.startswith(KEPT))


def manifest(folder: Path, verify: bool = False) -> Manifest:
    """Read the manifest. `verify`: also hash each part. Raises UserError for what is missing or has
    changed."""
    path = folder / schema.MANIFEST
    if not path.exists():
        raise UserError(f"{path}: missing, so {folder} is not a snapshot of traffic. Ingest the log again.")
    found = reports.read(Manifest, path)
    for part in found.parts if verify else []:
        file = folder / part.name
        if not file.exists() or files.sha256(file) != part.sha256:
            what = "is missing" if not file.exists() else "has changed since it was written"
            raise UserError(f"{file}: {what}. Restore it, or delete {folder} and ingest the log again.")
    return found


def parts(folder: Path) -> list[Path]:
    """List the parts in the order of the log."""
    return [folder / part.name for part in manifest(folder).parts]


def batches(folder: Path, columns: Sequence[str] | None = None, size: int = _BATCH) -> Iterator[pa.RecordBatch]:
    """Yield columns, all of them by default, in the order of the log."""
    names = None if columns is None else list(columns)
    for path in parts(folder):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=size, columns=names, use_threads=False)


def conversations(folder: Path, graded: bool = False, ids: Sequence[str] | None = None) -> Iterator[Conversation]:
    """Yield conversations in the order of the log. `graded`: only those with feedback. `ids`: only
    these."""
    wanted = None if ids is None else pa.array(ids, pa.string())
    for path in parts(folder):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256, columns=_WHOLE, use_threads=False):
                if graded:
                    batch = batch.filter(pc.is_valid(batch["feedback"]))
                if wanted is not None:
                    batch = batch.filter(pc.is_in(batch["conversation_id"], wanted))
                for row in batch.to_pylist():
                    yield _conversation(row)


def _conversation(row: dict[str, object]) -> Conversation:
    time, messages, feedback = row["time"], row["messages"], row["feedback"]
    return Conversation.model_validate(
        row
        | {
            "time": normal.iso(time),  # pyright: ignore[reportArgumentType]
            "messages": json.loads(str(messages)),
            "feedback": None if feedback is None else json.loads(str(feedback)),
        }
    )


def place(folder: Path, conversation_id: str) -> str:
    """Name the place of a conversation in the log: `FILE:LINE`."""
    for path in parts(folder):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["conversation_id", "source", "line"], use_threads=False):
                found = pc.index(batch["conversation_id"], conversation_id).as_py()
                if found >= 0:
                    source = manifest(folder).sources[batch["source"][found].as_py()]
                    return f"{source.name}:{batch['line'][found].as_py()}"
    raise KeyError(conversation_id)


def total(paths: Sequence[Path], column: str) -> int:
    """Add up a column of numbers over parts; null counts as nothing."""
    return sum(pc.sum(pq.read_table(path, columns=[column])[column]).as_py() or 0 for path in paths)
