"""Evidently's verdicts on pairs of windows: a script for an environment of its own.

    python bench/drift_peer.py FOLDER

reads each FOLDER/*.json, {"reference": {column: values}, "current": ..., "text": [columns],
"numbers": [columns]}, and writes FOLDER/verdicts.json: file -> column -> whether its default data
drift preset calls the column drifted. Columns that are neither text nor number are categories.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

P_VALUES = ("K-S", "chi-square", "Z-test", "Fisher", "T-test", "Anderson", "Cramer", "Mann", "p_value")


def verdicts(held: dict[str, Any]) -> dict[str, bool]:
    """Run the preset on one pair."""
    import pandas as pd
    from evidently import DataDefinition, Dataset, Report  # pyright: ignore[reportMissingImports]
    from evidently.presets import DataDriftPreset  # pyright: ignore[reportMissingImports]

    text, numbers = held["text"], held["numbers"]
    others = [name for name in held["reference"] if name not in text and name not in numbers]
    definition = DataDefinition(numerical_columns=numbers, categorical_columns=others, text_columns=text)
    sides: list[Any] = []
    for side in ("current", "reference"):
        frame = pd.DataFrame(held[side]).astype(dict.fromkeys(others, str))
        sides.append(Dataset.from_pandas(frame, data_definition=definition))
    found = Report([DataDriftPreset()]).run(*sides).dict()
    out: dict[str, bool] = {}
    count = 0
    for metric in found["metrics"]:
        match = re.search(r"column=([^,]+),method=(.+),threshold=([0-9.]+)\)", metric.get("metric_name", ""))
        if metric.get("metric_name", "").startswith("DriftedColumnsCount"):
            count = int(metric["value"]["count"])
        if match and match.group(1) not in text:
            column, method, threshold = match.group(1), match.group(2), float(match.group(3))
            score = float(metric["value"])
            by_p = any(name in method for name in P_VALUES)
            out[column] = score < threshold if by_p else score >= threshold
    # For text it gives the AUC, but not the threshold. So the rest of the count is the text's.
    assert len(text) <= 1
    return out | {name: count > sum(out.values()) for name in text}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    found = {path.name: verdicts(json.loads(path.read_text())) for path in sorted(folder.glob("pair-*.json"))}
    (folder / "verdicts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
