"""The figure of drift that is there: how often is it seen?

Twelve kinds of change, each small and large, are made in windows of 1,000 conversations, where each
user has five (bench/drift_worlds.py). The windows are compared as in bench/drift_false_alarms.py. A
cell is one kind and size: the share of its pairs in which the changed feature is called drifted. At
the larger size the share must be 80 % in each kind whose true effect lies above its threshold. The
true effect is measured between two windows of 20,000 independent conversations. For text, whose
effect depends on how much there is to learn from, it is the mean over the pairs.

Beside each stands how often Evidently's default preset calls the same column, on a few pairs, in
its own environment. Evidently corrects neither for multiple testing nor for users, so it also calls
much that did not move: the number of other columns that it calls is shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.drift_worlds import CHANGES, Change, Kind, World, pair
from bench.measure import Figure, Part
from rft import stats
from rft.config import Drift
from rft.drift import comparison, distance

ROOT = Path(__file__).resolve().parents[1]
PAIRS, PEER_PAIRS, SMALL_PAIRS = 100, 5, 2
SEEN = 0.8
WORLD = World("users of 5, ICC 0.3", per_user=5, icc=0.3)
LARGE = World("20,000 independent conversations", reference=20_000, current=20_000)
PEER = ROOT / ".rft" / "bench" / "evidently" / "bin" / "python"
NUMBERS = ["input_words", "amount", "num_tool_calls", "num_turns", "latency_s"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of change in one size. `others`: features that were called but not changed."""

    kind: Kind
    size: float
    is_large: bool
    true_effect: float
    threshold: float
    seen: int
    pairs: int
    others: int


def drift_power(args: list[str]) -> Figure:
    """Windows with a change in which it is seen: at least 80 % of the larger ones."""
    small = "--small" in args
    kinds: list[Kind] = ["a new intent", "other phrasing"] if small else list(CHANGES)
    cells = [measured(kind, large, SMALL_PAIRS if small else PAIRS) for kind in kinds for large in (False, True)]
    bound = [cell for cell in cells if cell.is_large and cell.true_effect > cell.threshold]
    worst = min(cell.seen / cell.pairs for cell in bound)
    headline = "share of pairs in which a large change is seen, the smallest of all kinds above their thresholds"
    parts = [Part(headline, worst, "share", at_least=SEEN, n=cells[0].pairs)]
    parts += [part for cell in cells for part in _parts(cell)]
    parts += _peer_parts(cells, PEER_PAIRS) if not small else []
    return Figure(tuple(parts), {"cells": [_row(cell) for cell in cells]})


FIGURES = {"drift_power": drift_power}


def measured(kind: Kind, is_large: bool, num: int, seed: int = 0) -> Cell:
    """Compare `num` pairs with that change."""
    feature, *sizes = CHANGES[kind]
    change, settings = Change(kind, sizes[is_large]), Drift()
    number = list(CHANGES).index(kind) * 2 + is_large
    seen, others = 0, 0
    found: list[tuple[float, float]] = []
    for n in range(num):
        reference, current = pair(WORLD, (seed, number, n, 1), change)
        rows = comparison.control(comparison.compare(reference.profile, current.profile, settings), settings)
        seen += any(row.drifted for row in rows if row.feature == feature)
        others += sum(row.drifted for row in rows if row.feature != feature)
        found += [(row.effect or 0.0, row.threshold) for row in rows if row.feature == feature]
    true = fmean(effect for effect, _ in found) if feature == "phrasing" else true_effect(change)
    threshold = median(threshold for _, threshold in found)
    print(
        f"{kind}, {change.size:g}: {feature} {true:.3f} over {threshold:.3f}, seen in {seen} of {num}", file=sys.stderr
    )
    return Cell(kind, change.size, is_large, true, threshold, seen, num, others)


def true_effect(change: Change) -> float:
    """Measure the effect on large windows, where noise is small."""
    reference, current = pair(LARGE, (0,), change)
    feature, *_ = CHANGES[change.kind]
    sides = [window.profile.features[feature] for window in (reference, current)]
    return distance.compared(sides[0], sides[1], str, zlib.crc32(feature.encode())).effect


# -- Evidently -------------------------------------------------------------------------------------
def _peer_parts(cells: list[Cell], num: int) -> Iterator[Part]:
    what = "pairs in which Evidently's default preset calls the column that was changed"
    if not PEER.exists():
        remedy = (
            f"python -m venv {PEER.parents[1].relative_to(ROOT)}; pip install evidently==0.7.23 pandas==2.3.3 there"
        )
        yield Part(what, None, n=0, reason=f"Evidently is not installed ({remedy})")
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            called = _called(cells, num, Path(folder))
        except subprocess.CalledProcessError as problem:
            last = (problem.stderr.strip().splitlines() or ["no message"])[-1]
            yield Part(what, None, n=0, reason=f"Evidently failed: {last}", failed=True)
            return
    for number, cell in enumerate(cells):
        feature = CHANGES[cell.kind][0]
        pairs = [called[f"pair-{number:02}-{n}.json"] for n in range(num)]
        known = [verdicts[feature] for verdicts in pairs if feature in verdicts]
        name = f"{cell.kind}, {cell.size:g}: called by Evidently"
        if known:
            yield Part(name, fmean(known), "share", n=len(known))
        others = fmean(sum(verdicts.values()) - verdicts.get(feature, False) for verdicts in pairs)
        yield Part(f"{name}: columns that were not changed", others, "columns", n=num)


def _called(cells: list[Cell], num: int, folder: Path) -> Mapping[str, dict[str, bool]]:
    """Give Evidently the rows, and read what it called."""
    for number, cell in enumerate(cells):
        for n in range(num):
            sides = pair(WORLD, (0, list(CHANGES).index(cell.kind) * 2 + cell.is_large, n, 1),
                         Change(cell.kind, cell.size), rows=True)  # fmt: skip
            held: dict[str, Any] = {
                side: {name: list(map(_plain, values)) for name, values in window.rows.items()}
                for side, window in zip(("reference", "current"), sides, strict=True)
            }
            text = ["phrasing"] if cell.kind in ("other topics", "other phrasing") else []
            for side in ("reference", "current"):
                if not text:  # the classifier for text takes ten times as long as all the rest
                    del held[side]["phrasing"]
            path = folder / f"pair-{number:02}-{n}.json"
            path.write_text(json.dumps(held | {"text": text, "numbers": NUMBERS}))
    print(f"Evidently looks at {len(cells) * num} pairs", file=sys.stderr, flush=True)
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [str(PEER), str(ROOT / "bench" / "drift_peer.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads((folder / "verdicts.json").read_text())


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else value.item()


# -- the parts -------------------------------------------------------------------------------------
def _parts(cell: Cell) -> Iterator[Part]:
    share = stats.exact_interval(cell.seen, cell.pairs)
    feature = CHANGES[cell.kind][0]
    details = f"true effect on {feature} {cell.true_effect:.3f}, threshold {cell.threshold:.3f}"
    yield Part(
        f"{cell.kind}, {cell.size:g} ({details}): seen",
        share.value,
        "share",
        low=share.low,
        high=share.high,
        n=cell.pairs,
    )


def _row(cell: Cell) -> dict[str, Any]:
    return {
        "kind": cell.kind, "feature": CHANGES[cell.kind][0], "size": cell.size, "large": cell.is_large,
        "true_effect": round(cell.true_effect, 4), "threshold": round(cell.threshold, 4), "seen": cell.seen,
        "pairs": cell.pairs, "others_called": cell.others,
    }  # fmt: skip
