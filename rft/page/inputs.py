"""The reports that a run left, as far as it came."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rft import commands, reports, shelves
from rft.errors import UserError
from rft.scale import UNIT, from_to

R = TypeVar("R", bound=reports.Report)

ARMS = {"champion": "champion", "champion_new_prompt": "after the prompt", "challenger": "after RFT"}
"""Arm -> what people call it."""


@dataclass(frozen=True)
class Shelves:
    root: Path
    traffic: reports.TrafficReport | None
    drift: reports.DriftReport | None
    examples: reports.ExamplesReport | None
    policy: reports.PolicyReport | None
    baseline: reports.BaselineReport | None
    prompt: reports.PromptReport | None
    train: reports.TrainReport | None
    challenger: reports.ChallengerReport | None
    decision: reports.Decision | None
    latency: reports.Check | None
    timings: dict[str, Any]

    @classmethod
    def read(cls, root: Path) -> Shelves:
        apart = _json(root / shelves.timing("gate"))
        return cls(
            root=root,
            traffic=_read(reports.TrafficReport, root),
            drift=_read(reports.DriftReport, root),
            examples=_read(reports.ExamplesReport, root),
            policy=_read(reports.PolicyReport, root),
            baseline=_read(reports.BaselineReport, root),
            prompt=_read(reports.PromptReport, root),
            train=_read(reports.TrainReport, root),
            challenger=_read(reports.ChallengerReport, root),
            decision=_read(reports.Decision, root),
            latency=reports.Check.model_validate(apart["latency"]) if "latency" in apart else None,
            timings=_json(root / shelves.timing("challenger")),
        )

    @property
    def arms(self) -> list[reports.Arm]:
        """The arms worth showing: one with the prompt and weights of another is left out."""
        if self.challenger is None:
            return []
        seen: dict[tuple[str, str], reports.Arm] = {}
        for arm in self.challenger.arms:
            seen.setdefault((arm.prompt_sha256, arm.weights_sha256), arm)
        return list(seen.values())

    @property
    def candidate(self) -> str:
        """The arm that was judged, to be shown beside the champion."""
        if self.decision is not None and self.decision.candidate != "none":
            return self.decision.candidate
        return self.arms[-1].name if self.arms else "champion"

    def timing(self, stage: str) -> dict[str, Any]:
        return _json(self.root / shelves.timing(stage))

    def sampled(self, stage: str) -> tuple[int, int] | None:
        """How many rollouts the stage's log holds, and their sampled tokens; None without a log."""
        rows = self.log(stage, "num_tokens")
        return None if rows is None else (len(rows), sum(row["num_tokens"] for row in rows))

    def log(self, stage: str, *columns: str) -> list[dict[str, Any]] | None:
        """Columns of the stage's rollout log; None without one. Raises UserError when damaged."""
        path = shelves.rollouts(stage)
        if not (self.root / path).exists():
            return None
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(self.root / path, columns=list(columns)).select(columns).to_pylist()
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            why = str(error).splitlines()[0]
            again = commands.stage(stage)
            raise UserError(f"{path}: not a whole rollout log ({why}). Run the stage again: {again}") from None

    def arm(self, name: str) -> reports.Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)


def between(one: reports.Evaluation) -> str:
    """The range of the scores, to be added to a note; empty for 0 to 1."""
    return "" if one.range == UNIT.ends else f"; the grader scores from {from_to(one.range)}"


def _read(kind: type[R], root: Path) -> R | None:
    path = root / shelves.path(kind)
    return reports.read(kind, path) if path.exists() else None


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
