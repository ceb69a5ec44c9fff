"""The figure `gate_attacks` tells a gate that counts from one that believes what it is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import shutil, sys
from pathlib import Path
from bench import gate_attacks, promoting
from tasks.promotion import counting

place = Path(sys.argv[1])
promoting.enter(place)
base = gate_attacks._base(place / "base")
lie = next(each for each in gate_attacks._examples() if each.name == "the clone says look 1")

def attempt(name):
    scene = Path(shutil.copytree(base, place / name))
    return gate_attacks._attempt(gate_attacks.Clone(scene / "clone"), scene / "script", lie)

print(attempt("counted"))
counting.assert_counted = lambda *_: None
print(attempt("believed"))
"""


@pytest.mark.slow
def test_a_lie_about_the_look_is_refused_and_would_be_approved_if_nobody_counted_again(
    tmp_path: Path, repository: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counted, believed = done.stdout.splitlines()[-2:]
    assert "says look 1, and it was look 2" in counted
    assert believed == "(1, '')", "approved, as look 1"
