"""What every child process of ours has in common: it ends with its parent, and its last words are
shown."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rft import process
from rft.process import DIES_WITH_PARENT, last_output, tail

WAITS = "import time; print('up', flush=True); time.sleep(60)"
CHILDREN = {
    "die_with": f"import sys; from rft.process import die_with; die_with(int(sys.argv[1])); {WAITS}",
    "DIES_WITH_PARENT": f"{DIES_WITH_PARENT}\n{WAITS}",
}
FINDS_US = os.environ | {"PYTHONPATH": str(process.ROOT)}
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel makes no such promise")
@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN)
def test_a_child_ends_with_its_parent_even_if_that_is_killed(child: str) -> None:
    command = [sys.executable, "-c", PARENT, child]
    with subprocess.Popen(command, env=FINDS_US, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """A zombie, which waits for its new parent, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN)
def test_a_child_of_another_parent_than_it_was_told_ends_at_once(child: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", child, "0"],
        env=FINDS_US,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_the_end_of_the_output_is_shown() -> None:
    with tempfile.TemporaryFile() as output:
        assert last_output(tail(output)) == "It printed nothing."
        output.write(b"first\n" + b"x" * 3000 + b"\nlast\n")
        output.flush()
        position = os.lseek(output.fileno(), 0, os.SEEK_CUR)
        assert tail(output, 6) == "\nlast\n"
        assert last_output(tail(output)) == f"Its last words:\n{'x' * 1994}\nlast"
        assert os.lseek(output.fileno(), 0, os.SEEK_CUR) == position
