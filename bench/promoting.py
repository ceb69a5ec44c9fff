"""Clones in which something can be promoted, for the figures of promotions.

The clone is that of the tests (tests/ladder_clone.py). It has real Git, DVC, MLflow and ssh-keygen,
and a run whose stages' files were made beforehand. Its policy is some bytes that no engine loads,
so the smoke test before a promotion is scripted here. Hashes, signatures and all writes are real.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rft import config
from tasks.runs.clone import TELEMETRY_OFF, Clone

if TYPE_CHECKING:
    from tasks.promotion.acts import Signer

ROOT = Path(__file__).resolve().parents[1]
MODEL = "tiny"
WHY = "half the calls"
LOOKS = 1000
"""Looks at one test set. The same candidate against another champion of a figure is another
look."""


def enter(place: Path) -> None:
    """Set the environment of this process and its children, and script the smoke test."""
    # tests/ladder_clone.py and its parts import each other without the name of their package
    sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]
    os.environ.update(
        TELEMETRY_OFF,
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        DVC_SITE_CACHE_DIR=str(place / "dvc"),
        OMP_NUM_THREADS="1",
    )
    os.environ.pop("MLFLOW_TRACKING_URI", None)

    from tasks.promotion import smoke

    def play(*_: object) -> smoke.Smoke:
        return smoke.Smoke(source="scripted", examples=4, solved=4, mean_reward=1.0, stop_reasons={}, seconds=0.0)

    smoke.play = play


def make(folder: Path, shared: bool) -> Clone:
    """Make a clone with a run that the gate would promote. `shared`: with a bare Git remote beside
    it, and a DVC remote in the folder above."""
    from tests import ladder_clone

    scripted = ladder_clone.make(folder)
    scripted.set_params(gate={"looks": LOOKS})
    scripted.git("commit", "--quiet", "--all", "--message", "many looks")
    ladder_clone.rehash(scripted.script / "data", config.load(scripted.root / "params.yaml").gate)
    if shared:
        _share(scripted.clone, folder)
    assert ladder_clone.run_ladder(scripted).decision == "promote"
    return scripted.clone


def _share(clone: Clone, folder: Path) -> None:
    clone.git("init", "--quiet", "--bare", str(folder / "remote.git"))
    clone.git("remote", "add", "origin", "../remote.git")  # relative, so that a copy of the folder has its own remote
    settings = clone.root / ".dvc/config"
    text = settings.read_text().replace("[core]", "[core]\n    remote = store")
    settings.write_text(f"{text}['remote \"store\"']\n    url = {folder.parent / 'store'}\n")
    (clone.root / "infra").mkdir(exist_ok=True)
    (clone.root / "infra/ledger.yaml").write_text("remote: origin\n")
    clone.git("add", "--all")
    clone.git("commit", "--quiet", "--message", "shared")
    clone.git("push", "--quiet", "origin", "main")


def signer(clone: Clone, name: str, file: Path) -> Signer:
    from tasks.ledger import keys
    from tasks.promotion.acts import Signer

    return Signer(keys.person(clone, str(file)), name)


def silent(_: str) -> None:
    """Drop what an act reports on the way."""
