"""A stage runs with the engine and the packages that its run was begun with, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rft import config, engine, needs, stopping
from rft.errors import UserError
from tasks import dependencies
from tasks.runs import engine as engines

ROOT = Path(__file__).resolve().parents[1]
NOT_DECIDING = {
    "aiohttp": "carries bytes", "httpx": "carries bytes", "httpx2": "carries bytes", "mcp": "carries bytes",
    "standardwebhooks": "signs bytes", "huggingface_hub": "finds files, which are hashed",
    "psutil": "measures processes", "joblib": "counts processors", "pydantic": "checks types", "yaml": "reads settings",
    "rfc8785": "writes hashes' input, in a form that a standard fixes",
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    engines.write(tmp_path, config.Recipe(path="recipe"), tmp_path / "state")
    return tmp_path


def test_the_engine_that_was_written_down_passes(written: Path) -> None:
    for stage in needs.NEEDS:
        engine.check(stage)
    assert engines.write(written, config.Recipe(path="recipe"), written / "state") == [], "and it is not written again"


def test_a_file_holds_the_stages_own_modules_and_nothing_else(written: Path) -> None:
    train, gate = (json.loads((written / needs.engine(stage)[0]).read_text()) for stage in ("train", "gate"))
    assert "rft/trainer/loop.py" in train
    assert "rft/trainer/loop.py" not in gate
    assert all(name.startswith("rft/") and len(sha256) == 64 for name, sha256 in train.items())


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("gate.json", lambda found: found | {"rft/gate/decide.py": "0" * 64}, "is another one: rft/gate/decide.py"),
        ("gate.json", lambda found: found | {"rft/gone.py": "0" * 64}, "is another one: rft/gone.py"),
        ("PINS.json", lambda found: found | {"torch": "1.0"}, "other packages are installed now: torch 1.0 -> "),
        ("PINS.json", lambda found: found | {"gone": "1.0"}, "other packages are installed now: gone 1.0 -> missing"),
        ("PINS.json", lambda found: [], "expected names with hashes"),
    ],
)
def test_another_engine_is_refused_with_the_remedy(written: Path, file: str, change, says: str) -> None:
    path = written / "data/engine" / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=r"rft stage engine") as refused:
        engine.check("gate")
    assert says in str(refused.value)


def test_during_a_run_the_remedy_is_to_start_it_again(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (written / "data/engine/gate.json").write_text('{"rft/gone.py": ""}')
    monkeypatch.setenv(stopping.RUN, "20261127-1")
    with pytest.raises(UserError, match=r"It changed during the run. Start it again, .*: rft run"):
        engine.check("gate")


@pytest.mark.parametrize("name", ["data/engine/gate.json", "data/engine/PINS.json"])
def test_without_the_files_no_stage_starts(written: Path, name: str) -> None:
    (written / name).unlink()
    with pytest.raises(UserError, match=f"{name}: missing. .* write it with: rft stage engine"):
        engine.check("gate")
    (written / name).write_text("{")
    with pytest.raises(UserError, match=f"{name}: not JSON"):
        engine.check("gate")


def test_every_package_that_a_stage_imports_is_judged() -> None:
    ours = {name.casefold().replace("-", "_") for name in engine.DECIDING}
    found = set[str]()
    for path in {path for stage in needs.NEEDS for path in dependencies.modules(ROOT, stage)}:
        found |= {
            name.split(".")[0] for name in dependencies.imported(ROOT, ROOT / path, dependencies.tree(ROOT / path))
        }
    third = {name for name in found if name not in sys.stdlib_module_names} - {"", "rft"}
    assert third - ours - NOT_DECIDING.keys() == set(), "does its version decide numbers? rft/engine.py, or here"
    assert ours - third == {"pyspark"} - third, "no stage imports it any more"


# -- how everything of ours starts (agent_rft.py) --------------------------------------------------
def start(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A user's repository, with modules that have our names and those of the standard library."""
    for name in ("rft", "tasks", "flows", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is the module of the user')")
    return tmp_path


@pytest.mark.parametrize("pythonpath", ["", ".", "{}", "{}:."])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("-c", "import agent_rft; agent_rft.rft()", "--help"), "Retrain a tool-using agent"),
        (("-c", "import agent_rft; agent_rft.stage()", "--help"), "Run one stage of the ladder"),
        (("-P", "-s", str(ROOT / "agent_rft.py"), "rft.smoke", "--help"), "Play an agent's smoke test"),
    ],
)
def test_no_module_of_the_users_is_imported(
    foreign: Path, pythonpath: str, command: tuple[str, ...], says: str
) -> None:
    if command[0] == "-c":  # a console script has its own folder first on the path
        (foreign / "bin").mkdir()
        script = foreign / "bin" / "start"
        script.write_text(f"import sys; sys.path.append({str(ROOT)!r}); {command[1]}")
        command = (str(script), *command[2:])
    (foreign / "json.py").unlink()  # Python itself would import it, before any code of ours
    done = start(foreign, *command, PYTHONPATH=pythonpath.format(foreign))
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


def test_a_package_from_elsewhere_is_named(tmp_path: Path) -> None:
    """As where another distribution put its `tasks` into the same environment, first."""
    place = tmp_path / "site"
    (place / "tasks").mkdir(parents=True)
    (place / "tasks/__init__.py").touch()
    code = f"import sys; sys.path[:0] = [{str(place)!r}, {str(ROOT)!r}]; import agent_rft; agent_rft.rft()"
    done = start(tmp_path, "-I", "-c", code)
    assert done.returncode == 1
    assert f"its package 'tasks' comes from {place}" in done.stderr
    assert "pipx install agent-rft" in done.stderr


def test_a_stage_starts_with_the_engine_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "rft").mkdir()
    (tmp_path / "rft/__init__.py").touch()
    (tmp_path / "rft/__main__.py").write_text("def main():\n    print('the engine of the worktree')\n")
    code = f"import sys; sys.path.append({str(ROOT)!r}); import agent_rft; agent_rft.stage()"
    done = start(ROOT, "-I", "-c", code, RFT_ENGINE=str(tmp_path))
    assert done.stdout == "the engine of the worktree\n", done.stderr
