"""The reports that a run has written so far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rft import commands, reports, stage_files
from rft.errors import UserError
from rft.formatting import counted

R = TypeVar("R", bound=reports.Report)


@dataclass(frozen=True)
class StageFiles:
    root: Path
    traffic: reports.TrafficReport | None
    drift: reports.DriftReport | None
    examples: reports.ExamplesReport | None
    policy: reports.PolicyReport | None
    baseline: reports.BaselineReport | None
    prompt: reports.PromptReport | None
    train: reports.TrainReport | None
    challenger: reports.ChallengerReport | None
    shown: reports.Shown | None
    """None: the run is older than this report."""
    opened: int | None
    """The ledger's entry that opened the test set; None: it is closed."""
    champion: reports.Champion
    """What was served, and where training may have begun."""
    registration: reports.Registration | None
    decision: reports.Decision | None
    latency: reports.Check | None
    timings: dict[str, Any]

    @classmethod
    def read(cls, root: Path, opened: int | None = None) -> StageFiles:
        apart = _json(root / stage_files.timing("gate"))
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
            shown=_read(reports.Shown, root),
            opened=opened,
            champion=_read(reports.Champion, root) or reports.Champion(),
            registration=_read(reports.Registration, root),
            decision=_read(reports.Decision, root),
            latency=reports.Check.model_validate(apart["latency"]) if "latency" in apart else None,
            timings=_json(root / stage_files.timing("challenger")),
        )

    @property
    def arms(self) -> list[reports.Arm]:
        """The arms to show. An arm with the prompt and weights of an earlier one is left out."""
        if self.challenger is None:
            return []
        seen: dict[tuple[str, str], reports.Arm] = {}
        for arm in self.challenger.arms:
            seen.setdefault((arm.prompt_sha256, arm.weights_sha256), arm)
        return list(seen.values())

    @property
    def candidate(self) -> str:
        """The arm to show beside the champion: the judged one, or else the last."""
        if self.decision is not None and self.decision.candidate != "none":
            return self.decision.candidate
        return self.arms[-1].name if self.arms else "champion"

    @property
    def source(self) -> str:
        """A sentence that says where the readable examples come from."""
        if self.opened is not None:
            return f"From the test set, which is open by entry {self.opened} of the ledger."
        from_where = counted(self.shown.examples if self.shown else 0, "validation example")
        return f"From {from_where}, played once by each arm; the test set stays closed."

    def rows(self, arm: reports.Arm) -> list[reports.Row]:
        """Return an arm's rows on the examples that people may read."""
        if self.opened is not None:
            return arm.sampled.rows
        return self.shown.arms.get(arm.name, []) if self.shown else []

    @property
    def trained_from_champion(self) -> bool:
        """Whether training began from the champion. It did if the champion has no weights, because
        it is the base policy then; otherwise `train.from` in params.yaml says it."""
        if self.champion.weights == "none":
            return True
        path = self.root / "params.yaml"
        train = (yaml.safe_load(path.read_bytes()) or {}).get("train") if path.exists() else None
        return isinstance(train, dict) and train.get("from", "champion") == "champion"

    def timing(self, stage: str) -> dict[str, Any]:
        return _json(self.root / stage_files.timing(stage))

    def sampled(self, stage: str) -> tuple[int, int] | None:
        """Count the stage's rollouts and their sampled tokens; None without a log."""
        rows = self.log(stage_files.rollouts(stage), "num_tokens")
        if rows is not None and stage == "challenger":
            rows += self.log(stage_files.SHOWN_ROLLOUTS, "num_tokens") or []
        return None if rows is None else (len(rows), sum(row["num_tokens"] for row in rows))

    def log(self, path: Path, *columns: str) -> list[dict[str, Any]] | None:
        """Read columns of a rollout log; None without a log. Raises UserError if it is damaged."""
        if not (self.root / path).exists():
            return None
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(self.root / path, columns=list(columns)).select(columns).to_pylist()
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            why = str(error).splitlines()[0]
            again = commands.stage(path.parent.name)
            raise UserError(f"{path}: not a whole rollout log ({why}). Run the stage again: {again}") from None

    def arm(self, name: str) -> reports.Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)


def _read(kind: type[R], root: Path) -> R | None:
    path = root / stage_files.path(kind)
    return reports.read(kind, path) if path.exists() else None


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
