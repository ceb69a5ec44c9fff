"""The cases of bench/stores_down.py: which store, what is wrong with it, and when.

A case says with which exit code its first command may end. A fault in a store that only shows runs
must not end the run: 0. A fault in a store that the run needs ends it, and the exit code blames the
world: 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import stores_faults as faults
from bench.stores_faults import Fault
from bench.stores_scene import Scene

PHASES = ("before", "in", "after")
SHORT = ("policy", ["--set", "policy.seed=7", "--until", "policy"])
"""The stage and its command. Most cases end after stage `policy`, which really builds the base
model. The stages before it are taken from the template's run."""
WHOLE = ("train", ["--set", "train.lr=0.00011"])
"""Other cases run up to the gate: training, challenger and gate run for real."""
WORLD = 3


@dataclass
class Case:
    store: str
    fault: str
    phase: str
    made: Callable[[Place], Fault]
    first: tuple[int, ...] = (0,)
    """The right exit codes of the command while the fault lasts: they blame the right side."""
    settings: tuple[str, ...] = ()
    server: bool = False
    """MLflow is a server, not the clone's own file."""
    anew: bool = False
    whole: bool = False
    """It runs up to the gate, not only to the base model."""
    approves: bool = False
    """The command approves the template's run."""
    shared: bool = False
    """The ledger has a Git remote, and the clone a DVC remote."""
    small: str = ""
    """A folder of the clone that is on a small file system."""
    size: int = 8
    """The size of that file system, in MiB."""

    @property
    def name(self) -> str:
        return f"{self.store}, {self.fault}, {self.phase}"

    @property
    def stage(self) -> str:
        """The stage in which, or after which, the fault strikes."""
        return (WHOLE if self.whole else SHORT)[0]


@dataclass
class Place:
    """The place where a case is played."""

    scene: Scene
    mode: Path
    closed: int
    """A port that nobody listens on."""

    @property
    def root(self) -> Path:
        return self.scene.root


def cases() -> Iterator[Case]:
    for phase in PHASES:
        whole = phase == "after"  # a stage that still needs the store
        yield Case("MLflow's database", "locked", phase, lambda p: faults.locked(lambda: _db(p)), whole=True)
        yield Case("MLflow's database", "full", phase, lambda p: faults.full(p.root / "mlruns"), small="mlruns")
        yield Case("MLflow's database", "read-only", phase, lambda p: faults.read_only(p.root / "mlruns"))
        yield Case("MLflow's database", "gone", phase, lambda p: faults.gone(p.root / "mlruns"))
        yield Case("MLflow's server", "silent", phase, lambda p: faults.through(p.mode, "silent"), server=True)
        yield Case("the clone", "full", phase, lambda p: faults.full(p.root), (WORLD,), small=".", size=40, whole=whole)
        yield Case("the clone", "read-only", phase, lambda p: faults.read_only(p.root), (WORLD,), whole=whole)
        yield Case("DVC's cache", "read-only", phase, lambda p: faults.read_only(_cache(p)), (WORLD,), whole=whole)
        yield Case(
            "DVC's cache", "full", phase, lambda p: faults.full(_cache(p)), (WORLD,), small=".dvc/cache", whole=whole
        )
        yield Case("Prefect's database", "locked", phase, lambda p: faults.locked(lambda: _prefect(p)), anew=True)
    for fault in ("gone", "slow"):
        yield Case("MLflow's server", fault, "in", lambda p, fault=fault: faults.through(p.mode, fault), server=True)
    yield Case("MLflow's database", "removed", "in", lambda p: faults.removed(p.root / "mlruns"))
    yield Case("the run's records", "read-only", "in", lambda p: faults.read_only(_runs(p)), (WORLD,))
    yield Case("DVC's cache", "gone", "in", lambda p: faults.gone(_cache(p)), (WORLD,))
    yield Case("DVC's lock", "held", "after", lambda p: faults.flocked(lambda: _lock(p)), (0, WORLD), whole=True)
    for phase in ("before", "in"):
        yield Case("Prefect's home", "read-only", phase, lambda p: faults.read_only(_home(p)), anew=True)
    yield Case("Prefect's home", "gone", "before", lambda p: faults.gone(_home(p)), anew=True)
    yield Case("Prefect's home", "full", "in", lambda p: faults.full(_home(p)), anew=True, small=".rft/prefect")
    catalog = ("run.openlineage.url=http://127.0.0.1:{}/lineage",)
    quiet = lambda p: Fault(faults.nothing, faults.nothing)  # noqa: E731 - its port is closed
    yield Case("the lineage catalog", "gone", "before", quiet, settings=catalog)
    hook = ("run.notify.webhook.url=http://127.0.0.1:{}/hook", "run.notify.webhook.signing_secret=env:STORES_DOWN_HOOK")
    yield Case(
        "notifications",
        "silent",
        "in",
        lambda p: faults.through(p.mode, "silent"),
        settings=hook,
        server=True,
        whole=True,
    )
    yield from _approvals()


def _approvals() -> Iterator[Case]:
    """Yield the cases of approvals. Stores that only show the champion must not end an approval.
    Stores that it needs end it in order."""

    def case(store: str, fault: str, made: Callable[[Place], Fault], *codes: int, **more: Any) -> Case:
        return Case(store, fault, "approval", made, codes, approves=True, **more)

    yield case("MLflow's database", "locked", lambda p: faults.locked(lambda: _db(p)), 0)
    yield case("MLflow's database", "read-only", lambda p: faults.read_only(p.root / "mlruns"), 0)
    yield case("MLflow's database", "full", lambda p: faults.full(p.root / "mlruns"), 0, small="mlruns")
    yield case("MLflow's database", "gone", lambda p: faults.gone(p.root / "mlruns"), 0)
    yield case("Prefect's database", "locked", lambda p: faults.locked(lambda: _prefect(p)), 0, anew=True)
    yield case("the clone", "full", lambda p: faults.full(p.root), WORLD, small=".", size=40)
    yield case("the clone", "read-only", lambda p: faults.read_only(p.root), WORLD)
    yield case("DVC's cache", "read-only", lambda p: faults.read_only(_cache(p)), 0, WORLD)
    yield case("DVC's cache", "gone", lambda p: faults.gone(_cache(p)), WORLD)
    yield case("DVC's remote", "gone", lambda p: faults.gone(p.scene.folder / "store"), WORLD, shared=True)
    yield case("DVC's remote", "read-only", lambda p: faults.read_only(p.scene.folder / "store"), WORLD, shared=True)
    yield case("the ledger's remote", "gone", lambda p: faults.gone(p.scene.folder / "remote.git"), WORLD, shared=True)


def _lock(place: Place) -> Path:
    """Return the lock of the run's own worktree. Before there is one, return the clone's."""
    trees = sorted((place.root / ".rft" / "worktrees").glob("*"))
    return (trees[-1] if trees else place.root) / ".dvc" / "tmp" / "lock"


def _db(place: Place) -> Path:
    return place.root / "mlruns" / "mlflow.db"


def _runs(place: Place) -> Path:
    return place.root / ".rft" / "runs"


def _cache(place: Place) -> Path:
    return place.root / ".dvc" / "cache"


def _home(place: Place) -> Path:
    return place.root / ".rft" / "prefect"


def _prefect(place: Place) -> Path:
    return _home(place) / "prefect.db"
