"""docs/verify-ledger.sh on random histories: what this code let stand, the script lets stand."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from tests import ledger_world
from tests.ledger_world import Story

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "verify-ledger.sh"


@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_is_right_for_the_script_too(tmp_path: Path, seed: int) -> None:
    keys, clone = ledger_world.cast(tmp_path / "keys"), ledger_world.make_clone(tmp_path / "clone")
    ledger_world.is_machine(clone, keys["laptop"])
    story = Story(Random(seed), keys, clone.git("rev-parse", "main"), signs=True)
    while len(story.lines) < 30:
        story.step()
    ledger_world.write(clone, story)
    command = ["sh", str(SCRIPT), str(clone.root), "refs/rft/ledger", story.state.genesis]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    named = {int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("DOUBTFUL")}
    assert named == {*story.state.doubtful()}
