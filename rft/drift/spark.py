"""Apply a function to the parts of a snapshot on Apache Spark.

An existing cluster can count a window that is too large for one machine. Spark gets one row per
item: its number, and the pickled function and item. `mapInArrow` runs the function where Spark
chooses, and sends back the number and the pickled result. So only this file knows about Spark. The
driver sorts the results by number.

The workers need agent-rft in their Python and the parts under the same path, as on a shared file
system. PySpark is the extra `spark`; it needs Java 17 or later.
"""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from rft.errors import InfrastructureError, RftError, UserError
from rft.process import ROOT

_REMEDY = "Install it with `pip install 'agent-rft[spark]'`, or set drift.engine: local."
_SCHEMA = "number long, result binary"


def mapped(function: Callable[[Any], Any], items: Sequence[Any], master: str) -> Iterator[Any]:
    """Yield the function's result for each item, in order. Raises UserError where Spark is not
    installed, and InfrastructureError where it fails."""
    if not items:
        return
    session = _session(master)
    rows = [{"number": number, "call": pickle.dumps((function, item))} for number, item in enumerate(items)]
    try:
        frame = session.createDataFrame([(row["number"], row["call"]) for row in rows], "number long, call binary")
        frame = frame.repartition(len(rows), "number")
        found = frame.mapInArrow(_run, _SCHEMA).toArrow()
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InfrastructureError(f"drift.engine: spark: Spark at {master} failed: {lines[0][:300]}") from error
    for _, result in sorted(zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True)):
        value = pickle.loads(result)
        if isinstance(value, RftError):
            raise value
        yield value


def _run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run on a worker of Spark. A user's error is sent back as a result."""
    for batch in batches:
        for number, call in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            function, item = pickle.loads(call)
            try:
                result = function(item)
            except RftError as error:
                result = error
            columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])


def _session(master: str) -> Any:
    """Return the session of this process, or start one."""
    try:
        sql = importlib.import_module("pyspark.sql")
    except ModuleNotFoundError as error:
        raise UserError(f"drift.engine: spark: PySpark is missing ({error}). {_REMEDY}") from None
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        what = "drift.engine: spark: no Java is found, and Spark needs 17 or later"
        raise UserError(f"{what}. Install it, or set JAVA_HOME, or set drift.engine: local.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = sql.SparkSession.builder.master(master).appName("agent-rft").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    # a task per part, however small: adaptive plans would join them, and one worker would count all
    return builder.config("spark.sql.adaptive.enabled", "false").getOrCreate()
