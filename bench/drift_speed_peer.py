"""Evidently's default drift preset over the same rows, in its own environment (bench/peer.py).

    python bench/drift_speed_peer.py REFERENCE CURRENT COLUMN,.. OUT

Reads both folders of Parquet with pandas, which is not timed, and writes the seconds of the report,
the peak memory and the statistics that it used.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path


def main(reference: str, current: str, columns: str, out: str) -> None:
    import pandas as pd  # pyright: ignore[reportMissingImports]
    from evidently import DataDefinition, Dataset, Report  # pyright: ignore[reportMissingImports]
    from evidently.presets import DataDriftPreset  # pyright: ignore[reportMissingImports]

    names = columns.split(",")
    frames = [
        pd.concat([pd.read_parquet(path, columns=names) for path in sorted(Path(folder).glob("*.parquet"))])
        for folder in (reference, current)
    ]
    for frame in frames:
        frame.reset_index(drop=True, inplace=True)
    numbers = [name for name in names if frames[0][name].dtype.kind in "fi"]
    definition = DataDefinition(
        numerical_columns=numbers, categorical_columns=[name for name in names if name not in numbers]
    )
    start = time.perf_counter()
    sides = [Dataset.from_pandas(frame, data_definition=definition) for frame in frames]
    found = Report([DataDriftPreset()]).run(sides[1], sides[0]).dict()
    seconds = time.perf_counter() - start
    methods = {
        metric["config"]["column"]: metric["config"].get("method", "")
        for metric in found["metrics"]
        if "column" in metric.get("config", {})
    }
    statistics: dict[str, int] = {}
    for method in methods.values():
        statistics[method] = statistics.get(method, 0) + 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(out).write_text(json.dumps({"seconds": seconds, "peak_bytes": peak, "statistics": statistics}))


if __name__ == "__main__":
    main(*sys.argv[1:])
