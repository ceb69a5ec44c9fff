"""Read the parts of a snapshot, as tasks for a process or a worker of Spark.

The functions:

    count_parts(plan, task)     counts the columns of some neighboring parts
    choose(size, task)          takes a sample of their rows
    read_texts(task)            reads what the user wrote in chosen rows of some parts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rft.drift import counting
from rft.drift.counting import Partial
from rft.drift.features import Plan, columns_of
from rft.drift.sample import BATCH_ROWS, Sample, texts_of_part
from rft.errors import UserError

COUNT_ROWS = 65_536
"""Rows that are counted at a time."""
_SCRATCH = "Delete the snapshot's folder: it is made again from the log."

Task = tuple[tuple[int, Path], ...]
"""Neighboring parts, with their numbers."""


def count_parts(plan: Plan, task: Task) -> Partial:
    """Count some parts. The engine decides where it runs."""
    found = counting.empty(plan)
    for number, path in task:
        counting.add(found, _batches(path, plan), plan, number)
    return found


def tasks_of(parts: Sequence[Path], num_rows: int) -> list[Task]:
    """Group parts into tasks of at least so many rows, because a process takes a second to
    start."""
    tasks: list[Task] = []
    task: list[tuple[int, Path]] = []
    held = 0
    for number, path in enumerate(parts):
        task.append((number, path.absolute()))
        held += _opened(path).metadata.num_rows
        if held >= num_rows:
            tasks.append(tuple(task))
            task, held = [], 0
    return [*tasks, tuple(task)] if task else tasks


def _batches(path: Path, plan: Plan) -> Iterator[pa.RecordBatch]:
    wanted = columns_of(plan)
    file = _opened(path, wanted)
    rows = BATCH_ROWS if "messages" in wanted else COUNT_ROWS
    try:
        yield from file.iter_batches(rows, columns=wanted, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error}). {_SCRATCH}") from None


def _opened(path: Path, wanted: Sequence[str] = ()) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if wanted and not missing:  # texts that repeat are read as numbers, which Arrow cannot do for lists
            texts = [name for name in wanted if pa.types.is_string(file.schema_arrow.field(name).type)]
            repeating = [name for name in texts if name != "messages"]
            file = pq.ParquetFile(path, read_dictionary=repeating, metadata=file.metadata)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a part of a snapshot ({error}). {_SCRATCH}") from None
    if missing:
        why = "the snapshot was made with other traffic.columns, or by another version"
        raise UserError(f"{path}: has no column '{missing[0]}': {why}. {_SCRATCH}")
    return file


def choose(size: int, task: Task) -> Sample:
    """Sample the rows of some parts by their hashes."""
    chosen = Sample(size)
    for number, path in task:
        first = 0
        for batch in _opened(path).iter_batches(COUNT_ROWS, columns=["draw", "pick"], use_threads=False):
            draw, pick = (batch.column(name).to_numpy() for name in ("draw", "pick"))
            chosen.add(draw, pick, number, first)
            first += batch.num_rows
    return chosen


def read_texts(task: tuple[tuple[int, Path, list[int]], ...]) -> dict[tuple[int, int], str]:
    """Read what the user wrote in rows of some parts. `task`: the number, path and rows of each
    part. The texts are returned by number and row."""
    found: dict[tuple[int, int], str] = {}
    for number, path, rows in task:
        try:
            texts = texts_of_part(path, rows)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error}). {_SCRATCH}") from None
        found |= {(number, row): text for row, text in zip(rows, texts, strict=True)}
    return found
