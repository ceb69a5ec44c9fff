"""The champion as a file of the clone: `.rft/champion/MODEL.json`.

It tells a program what to serve (prompt, weights, hashes, revision), without MLflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rft import reports
from rft.reports import Champion
from rft.reports.base import Report
from tasks.ledger.state import State
from tasks.promotion import champions
from tasks.promotion.targets import Shown, Target
from tasks.runs.clone import Clone


class Written(Report):
    ledger: str
    act: int
    previous: int | None
    revision: str | None
    champion: Champion


@dataclass(frozen=True)
class ChampionFile:
    clone: Clone
    name: str = "champion file"

    def path(self, model: str) -> Path:
        return self.clone.state / "champion" / f"{model}.json"

    def shown(self, model: str) -> Shown | None:
        path = self.path(model)
        if not path.exists():
            return None
        try:
            found = reports.parse(Written, path.read_bytes(), str(path))
        except ValidationError:
            return Shown(None, None, None, None, description="a file that is none of ours")
        description = f"champion {found.champion.version}"
        return Shown(found.ledger, found.act, found.champion.version, found.previous, description=description)

    def show(self, target: Target, state: State) -> None:
        served = champions.served(self.clone, state, target.model)
        revision = served.revision.commit if served.revision else None
        written = Written(
            ledger=target.ledger,
            act=target.act,
            previous=target.previous,
            revision=revision,
            champion=served.champion,
        )
        reports.write(written, self.path(target.model))
