"""The wheel holds all that `rft` needs, and works in somebody else's repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tasks.runs.git import git

ROOT = Path(__file__).resolve().parents[1]
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import agent_rft; sys.argv[0] = 'rft'; sys.exit(agent_rft.rft())"
)
NOT_CODE = (".jinja", "py.typed", "flows/template/")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as pip lays them out."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"  # setuptools leaves files where it builds
    git(ROOT, "worktree", "prune")
    names = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in (
        name
        for name in names
        if name.startswith(("rft", "tasks", "flows", "agent_rft", "pyproject", "README", "LICENSE"))
    ):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(tree),
    ]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def rft(installed: Path, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", START, str(installed), *arguments]
    environment = os.environ | {"PYTHONPATH": "."}
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_template(installed: Path) -> None:
    wanted = {
        name
        for name in git(ROOT, "ls-files").splitlines()
        if name.split("/")[0] in ("rft", "tasks", "flows", "agent_rft.py")
        and (name.endswith(".py") or any(part in name for part in NOT_CODE))
    }
    found = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    assert wanted - found == set()
    assert {name.split("/")[0] for name in found} - {"rft", "tasks", "flows", "agent_rft.py"} == {
        next(name for name in os.listdir(installed) if name.endswith(".dist-info"))
    }


@pytest.mark.slow
def test_it_makes_an_agent_in_a_repository_with_modules_of_our_names(installed: Path, tmp_path: Path) -> None:
    for name in ("rft", "tasks", "flows"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the user')\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "a program")
    assert rft(installed, tmp_path, "--version").stdout.endswith(f", {installed}\n")
    for arguments in (["init"], ["new", "agents/mine"], ["agents"]):
        done = rft(installed, tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    assert "mine  agents/mine" in done.stdout
    engine = rft(installed, tmp_path, "stage", "engine")
    assert f"Engine: {installed}" in engine.stdout, engine.stderr
