"""What the product was asked for carries weight: take one of its packages away, and a test fails.

A package that could go without anybody noticing would be decoration. So each has a test here that
passes in this environment, and in one that has all the same packages but this it does not. (That of
Triton is skipped there: other platforms have no Triton.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = {"pyproject.toml", "README.md", "flows", "tasks", "data", "dvc.yaml", "mlruns", "tests", "infra"}
TESTS = {
    "dvc": "tests/tasks/test_dvc_process.py::test_a_fork_says_what_dvc_says_and_ends_as_it_does",
    "great_expectations": "tests/drift/test_contracts.py::test_a_sound_window_holds_every_contract",
    "httpx": "tests/grading/test_judge.py::test_the_request",
    "mlflow": "tests/tasks/test_tracking.py::test_settings_numbers_and_tags",
    "peft": "tests/models/test_unmerged.py::test_an_adapter_on_an_adapter_is_one_of_the_base",
    "prefect": "tests/flows/test_deploy.py::test_the_flow_that_prefect_loads_is_ours_wherever_it_starts",
    "torch": "tests/algorithms/test_kl.py::test_k3_has_the_reverse_divergence_s_gradient",
    "transformers": "tests/chat/test_renderer.py::test_a_tokenizer_without_a_template_is_refused",
    "triton": "tests/kernels/test_kernels_compile.py::test_for_an_h100[finish]",
}


def installed(folder: Path, without: str) -> Path:
    """Make an environment: links to all that is installed here, but for one package. Return its
    interpreter."""
    here = Path(sysconfig.get_path("purelib"))
    there = folder / here.relative_to(sys.prefix)
    there.mkdir(parents=True)
    for entry in here.iterdir():
        if entry.name != without and not entry.name.startswith(f"{without}-"):
            (there / entry.name).symlink_to(entry)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    interpreter = folder / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.symlink_to(Path(sys.executable).resolve())
    return interpreter


@pytest.mark.slow
@pytest.mark.parametrize("package", TESTS)
def test_without_a_required_package_a_test_fails(package: str, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def passes(interpreter: Path) -> bool:
        command = [interpreter, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", TESTS[package]]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = path
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode == 0 and "1 passed" in done.stdout

    assert passes(installed(tmp_path / "whole", "no package"))
    assert not passes(installed(tmp_path / "without", package))


def test_the_names_at_the_top_are_there() -> None:
    listed = subprocess.run(["git", "ls-files", *TOPS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split("/")[0] for line in listed.split()} == TOPS
