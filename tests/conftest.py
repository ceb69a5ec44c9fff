"""What every test shares: no telemetry, no network hub, one thread, no file outside its own folder,
the same examples each time. RFT_TEST_DISTURB and RFT_TEST_THREADS stand for other processors
(CONTRIBUTING.md).

The environment is set when this file is loaded, before any test imports Prefect, MLflow or torch:
they read it only once, and the processes that tests start inherit it. Git runs without the
developer's configuration, so that a test cannot lean on it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from at_hand import AtHand

ROOT = Path(__file__).resolve().parents[1]
_HOME = tempfile.TemporaryDirectory(prefix="rft-tests-", ignore_cleanup_errors=True)

os.environ.update(
    DO_NOT_TRACK="true",
    MLFLOW_DISABLE_TELEMETRY="true",
    DVC_NO_ANALYTICS="1",
    GX_ANALYTICS_ENABLED="false",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS=os.environ.get("RFT_TEST_THREADS") or "1",
    TOKENIZERS_PARALLELISM="false",
    PREFECT_HOME=f"{_HOME.name}/prefect",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="120",
    DVC_SITE_CACHE_DIR=f"{_HOME.name}/dvc",
    MLFLOW_TRACKING_URI=f"sqlite:///{_HOME.name}/mlflow.db",
    HYPOTHESIS_STORAGE_DIRECTORY=f"{_HOME.name}/hypothesis",
    GIT_CONFIG_GLOBAL=os.devnull,
    GIT_CONFIG_NOSYSTEM="1",
)

if os.environ.get("RFT_TEST_DISTURB"):
    from disturbed import sitecustomize as _  # noqa: F401 - no test may rest on the last digits of a processor

    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT / "tests/disturbed"), os.environ.get("PYTHONPATH")])
    )

settings.register_profile("house", derandomize=True, deadline=None, database=None)
settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: two workers then end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("story")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _home() -> Iterator[None]:
    yield
    _HOME.cleanup()


@pytest.fixture(autouse=True)
def _denormals() -> None:
    """rft/models/weights.py flushes denormal floats, for the process that loads a model; hypothesis
    draws them."""
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _secrets() -> Iterator[None]:
    """A value that one test declares secret is an ordinary word in the next."""
    yield
    from rft import secrets

    secrets.forget()


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """What a verb sets for its own process (Prefect's log level, addresses) must not reach the next
    test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of this repository."""
    return ROOT


@pytest.fixture(scope="session")
def _ladder_run() -> Path:
    from tests import kept
    from tests.ladder import run_ladder
    from tests.tiny_recipe import make, teachable

    def both(folder: Path) -> None:
        (folder / "stages").mkdir()
        run_ladder(folder / "stages", teachable(make(folder / "recipe")))

    code = [*(ROOT / "rft").rglob("*.py"), *(ROOT / "tests").glob("*.py"), ROOT / "constraints.txt"]
    return kept.folder("ladder", both, code)


@pytest.fixture(scope="session")
def ladder_recipe(_ladder_run: Path) -> Path:
    """The tiny recipe that `ladder` was run with: its policy surely learns it."""
    return next((_ladder_run / "recipe").iterdir())


@pytest.fixture(scope="session")
def ladder(_ladder_run: Path) -> Path:
    """A folder after every stage with a policy, run for real once. Copy it before changing
    it."""
    return _ladder_run / "stages"


@pytest.fixture(scope="session")
def agent_clone(ladder: Path) -> Path:
    """A clone with a recorded run whose LoRA adapter the gate would promote (tests/agent_clone.py).
    Copy it before changing it."""
    import agent_clone
    import ladder_clone

    from tests import kept

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("MLFLOW_TRACKING_URI")
            scripted = agent_clone.make(folder, ladder)
            assert ladder_clone.run_ladder(scripted).decision == "promote"

    return kept.folder("agent", make, ladder_clone.CODE, date.today()) / "clone"


@pytest.fixture(scope="session")
def approved_clone(tmp_path_factory: pytest.TempPathFactory, agent_clone: Path) -> Path:
    """The same, after Ada approved it."""
    import shutil

    import people

    from tasks.runs import records
    from tasks.runs.clone import Clone

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        clone = Clone(Path(shutil.copytree(agent_clone, tmp_path_factory.mktemp("approved") / "clone", symlinks=True)))
        people.approve(clone, records.load_all(clone)[0].name)
        return clone.root


@pytest.fixture(scope="module")
def ready_server() -> Iterator[None]:
    """In this module a recipe's tool server is forked from a process that has imported what it
    needs (tests/ready_server.py)."""
    from rft.tools import lifetime
    from tests import ready_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifetime, "subprocess", ready_server)
        yield


@pytest.fixture(scope="session", autouse=True)
def _ready_dvc() -> Iterator[None]:
    """What DVC does in this process needs a second less (tests/ready_dvc.py)."""
    import ready_dvc

    with ready_dvc.ready():
        yield


@pytest.fixture(scope="session")
def at_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtHand]:
    """`at_hand(root, "run", ...)`: the command `rft` in this process (tests/at_hand.py)."""
    import at_hand

    at_hand.history(Path(os.environ["PREFECT_HOME"]))
    with at_hand.server(tmp_path_factory.mktemp("prefect")) as api:
        yield at_hand.AtHand(api)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """`golden("surface.txt", text)` compares with tests/golden/surface.txt; RECORD=1 writes it
    instead (CONTRIBUTING.md)."""

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if os.environ.get("RECORD") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing: record it with RECORD=1 and read the diff."
        assert text == path.read_text(encoding="utf-8"), (
            f"{name} changed. If that is meant: RECORD=1, read the diff, say why in the commit."
        )

    return compare
