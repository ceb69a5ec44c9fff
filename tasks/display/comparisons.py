"""The drift of earlier runs, read from their revisions, for pictures and a table over time.

A run of another recipe has other features, so a history holds the runs of one recipe. A run that
ended before drift has no report, and is only counted. A run whose report cannot be read any more is
shown with the reason. Successive runs with the very same report are one comparison: a schedule that
found no new window compared nothing new.

After a year a schedule has made hundreds of such runs. One question to Git says which of them have
the same params.yaml and the same dvc.lock, and only one of these is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rft import reports, stage_files
from rft.errors import RftError
from rft.page import DriftComparison
from rft.reports import DriftReport, TrafficReport
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.git import git
from tasks.runs.records import RunRecord

SHOWN = 12
"""Comparisons on the page of a run."""


@dataclass(frozen=True)
class History:
    """The comparisons of one recipe, the latest last. `without` counts its runs that have no drift
    report."""

    comparisons: list[DriftComparison]
    without: int


def history(clone: Clone, model: str, last: int | None = None, before: str | None = None) -> History:
    """Read the comparisons of a recipe's runs, at most the `last` ones. With `before`, read only
    runs that were started earlier than this one."""
    every = records.load_all(clone)[::-1]
    if before is not None:
        names = [record.name for record in every]
        every = every[names.index(before) + 1 :] if before in names else every
    found: list[DriftComparison] = []
    without = 0
    read: dict[str, tuple[bool, DriftComparison | None]] = {}
    for record, content in zip(every, _contents(clone, every), strict=True):
        if content not in read:
            is_of = _is_of(clone, record, model)
            read[content] = is_of, _comparison(clone, record) if is_of else None
        is_of, comparison = read[content]
        if not is_of:
            continue
        if comparison is None:
            without += 1
            continue
        comparison = replace(comparison, name=record.name, window=record.window)
        _put_first(found, comparison)
        if last is not None and len(found) > last:
            found.pop(0)  # the oldest may lack some of the runs that are alike
            break
    return History(found, without)


def with_own(clone: Clone, record: RunRecord, root: Path, model: str) -> list[DriftComparison]:
    """Read the comparisons of the last runs, and that of `record`, whose files lie below `root`."""
    path = root / stage_files.path(DriftReport)
    if not path.exists():
        return []
    traffic = root / stage_files.path(TrafficReport)
    when = _when(reports.read(TrafficReport, traffic)) if traffic.exists() else ""
    own = DriftComparison(record.name, record.window, reports.read(DriftReport, path), when)
    found = history(clone, model, SHOWN - 1, before=record.name).comparisons
    if found and found[-1].report == own.report:
        return [*found[:-1], replace(found[-1], alike=found[-1].alike + 1)]
    return [*found, own]


def _contents(clone: Clone, every: Sequence[RunRecord]) -> list[str]:
    """Name the contents that are read of each run: equal names mean equal contents."""
    paths = ("params.yaml", "dvc.lock")
    asked = "\n".join(f"{record.revision or ''}:{path}" for record in every for path in paths)
    lines = iter(git(clone.root, "cat-file", "--batch-check", given=asked.encode()).splitlines() if every else ())
    held = [" ".join(next(lines) for _ in paths) for _ in every]
    return [
        record.name if record.revision is None or record.bytes_removed or "missing" in content else content
        for record, content in zip(every, held, strict=True)
    ]


def _is_of(clone: Clone, record: RunRecord, model: str) -> bool:
    """Say whether a run is of the recipe. A run without a revision or with a damaged one cannot
    tell, and is not left out."""
    try:
        return record.revision is None or Revision(clone, record.revision).model == model
    except RftError:
        return True


def _comparison(clone: Clone, record: RunRecord) -> DriftComparison | None:
    """Read one run; None if it has no drift report."""
    bare = DriftComparison(record.name, record.window, None)
    if record.bytes_removed:
        return replace(bare, missing=f"its bytes were removed at {record.bytes_removed}: past their retention")
    if record.revision is None:
        return None
    at = Revision(clone, record.revision)
    try:
        report = at.report(DriftReport)
        traffic = at.report(TrafficReport)
    except RftError as error:
        return replace(bare, missing=str(error))
    if report is None:
        return None
    return replace(bare, report=report, when=_when(traffic) if traffic else "")


def _put_first(found: list[DriftComparison], comparison: DriftComparison) -> None:
    """Put an earlier comparison before the others. If it equals the first one, count both as
    one."""
    if found and comparison.report is not None and found[0].report == comparison.report:
        found[0] = replace(comparison, alike=found[0].alike + 1)
    else:
        found.insert(0, comparison)


def _when(traffic: TrafficReport) -> str:
    first, last = traffic.first[:10], traffic.last[:10]
    return first if first == last else f"{first} to {last}"
