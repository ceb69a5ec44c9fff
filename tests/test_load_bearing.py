"""What the product was asked for carries weight: take one of its packages away, and a test fails.

A package that could go without anybody noticing would be decoration. So each has a test here that
passes with it and fails without it: in its process and in those that it starts, a finder that
refuses this package stands before all others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "dvc": "tests/tasks/test_dvc_process.py::test_a_fork_says_what_dvc_says_and_ends_as_it_does",
    "great_expectations": "tests/windows/test_contracts.py::test_a_sound_window_holds_every_contract",
    "httpx": "tests/grading/test_judge.py::test_the_request",
    "mlflow": "tests/tasks/test_tracking.py::test_settings_numbers_and_tags",
    "peft": "tests/models/test_unmerged.py::test_an_adapter_on_an_adapter_is_one_of_the_base",
    "prefect": "tests/flows/test_deploy.py::test_the_schedule_of_this_repository_and_wrong_ones",
    "torch": "tests/algorithms/test_kl.py::test_k3_has_the_reverse_divergence_s_gradient",
    "transformers": "tests/chat/test_renderer.py::test_a_tokenizer_without_a_template_is_refused",
    "triton": "tests/kernels/test_kernels.py::test_in_the_interpreter",
}
REFUSED = """
import importlib.abc, os, sys

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == os.environ["WITHOUT"]:
            raise ModuleNotFoundError(f"{name} was taken away", name=name)

sys.meta_path.insert(0, Refused())
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", TESTS)
def test_without_a_required_package_a_test_fails(package: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSED)
    path = os.pathsep.join(filter(None, [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", TESTS[package]]
    codes = [
        subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path, "WITHOUT": without}, timeout=300
        ).returncode
        for without in ("no package", package)
    ]
    assert codes[0] == 0
    assert codes[1] != 0


def test_the_names_at_the_top_are_there() -> None:
    asked = "pyproject.toml README.md flows tasks data dvc.yaml mlruns tests infra".split()
    listed = subprocess.run(["git", "ls-files", *asked], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split("/")[0] for line in listed.split()} == set(asked)
