"""What a run read and made, as MLflow shows datasets: the normalized window, and the three splits.

MLflow gets no rows, only the place of the bytes in DVC, their hash and the number of rows. A
dataset's digest is the output's MD5 in dvc.lock, so two runs show the same dataset exactly when
they had the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rft import reports, secrets, stage_files

_LONGEST = 500
"""Characters that MLflow takes in a tag of a dataset."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Dataset:
    context: str
    """`traffic`, `train`, `validation` or `test`."""
    path: str
    """The path in dvc.lock."""
    md5: str
    counts: Mapping[str, int]
    more: Mapping[str, str]
    """Further facts, such as the hash of the file that it was made from."""


def of_traffic(tree: Path, report: reports.TrafficReport) -> list[Dataset]:
    path = str(stage_files.CONVERSATIONS)
    md5 = _outs(tree, "traffic").get(path)
    counts = {"num_rows": report.num_conversations, "num_with_feedback": report.num_with_feedback}
    window = {"window": report.source, "window_sha256": report.sha256}
    return [Dataset("traffic", path, md5, counts, window)] if md5 else []


def of_examples(tree: Path, report: reports.ExamplesReport) -> list[Dataset]:
    return list(_splits(_outs(tree, "examples"), report))


def _splits(outs: Mapping[str, str], report: reports.ExamplesReport) -> Iterator[Dataset]:
    for split in ("train", "validation", "test"):
        path = str(stage_files.examples_file(split))
        if md5 := outs.get(path):
            more = {"source": report.source, "content_sha256": report.sha256.get(split, "")}
            yield Dataset(split, path, md5, {"num_rows": report.counts.get(split, 0)}, more)


def _outs(tree: Path, stage: str) -> dict[str, str]:
    """Return output -> md5, as DVC just wrote them."""
    lock = yaml.load((tree / "dvc.lock").read_text(encoding="utf-8"), Loader=_LOADER)
    return {row["path"]: row["md5"] for row in lock["stages"][stage]["outs"]}


def inputs(datasets: list[Dataset]) -> list[Any]:
    """Return datasets in the form that MLflow takes. One that the run has already stays as it
    is."""
    from mlflow.entities import Dataset as Shown
    from mlflow.entities import DatasetInput, InputTag

    found: list[Any] = []
    for each in datasets:
        source = {"path": each.path, "md5": each.md5}
        tags = {"mlflow.data.context": each.context, "dvc.path": each.path, "dvc.md5": each.md5, **each.more}
        shown = Shown(
            name=each.path,
            digest=each.md5,
            source_type="dvc",
            source=json.dumps(source),
            profile=json.dumps(dict(each.counts)),
        )
        found.append(
            DatasetInput(
                shown, [InputTag(key, secrets.redact(value)[:_LONGEST]) for key, value in tags.items() if value]
            )
        )
    return found
