"""What a machine guarantees is found out, named, and asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import boxes
import pytest

from rft.errors import InfrastructureError
from rft.sandbox import probe
from rft.sandbox.probe import Guarantee, Info

WEAK = Info("bubblewrap", (Guarantee("files", True, "an empty root"), Guarantee("system calls", False, "no filter")))
NONE = Info("none", (Guarantee("sandbox", False, "bwrap: not found"),))


def test_a_missing_guarantee_refuses_unless_it_is_allowed() -> None:
    with pytest.raises(InfrastructureError, match=r"would not contain code .*\. system calls: no filter"):
        WEAK.require()
    WEAK.require(allow_weaker=True)
    assert [guarantee.name for guarantee in WEAK.missing()] == ["system calls"]


def test_nothing_allows_code_to_run_without_a_sandbox() -> None:
    with pytest.raises(InfrastructureError, match="bwrap: not found"):
        NONE.require(allow_weaker=True)


@boxes.needs_sandbox
def test_every_promise_is_named_and_explained() -> None:
    info = boxes.run(probe.machine()).info
    names = [guarantee.name for guarantee in info.guarantees]
    assert names == ["files", "network", "rights", "system calls", "processes", "memory", "disk", "end"]
    assert all(guarantee.why for guarantee in info.guarantees)


PROGRAM = """
import asyncio, json
from rft.sandbox import probe
from rft.sandbox.sandbox import Spec, create
from rft.sandbox.workspace import Base
info = asyncio.run(probe.machine()).info
print(json.dumps([info.level, [[g.name, g.held, g.why] for g in info.guarantees]]))
"""


def probed(path: str, prefix: list[str] | None = None) -> tuple[str, list[tuple[str, bool, str]]]:
    """Return what a fresh process finds, with other programs in its PATH."""
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [*(prefix or []), sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    level, guarantees = json.loads(done.stdout)
    return level, [tuple(guarantee) for guarantee in guarantees]


def test_no_bubblewrap_says_what_to_install(tmp_path: Path) -> None:
    level, ((name, held, why),) = probed(str(tmp_path))
    assert (level, name, held) == ("none", "sandbox", False)
    assert "bwrap, nsenter" in why
    assert "apt-get install bubblewrap" in why


@boxes.needs_sandbox
def test_a_bubblewrap_outside_the_systems_folders_is_the_one_that_runs() -> None:
    bubblewrap = shutil.which("bwrap")
    with tempfile.TemporaryDirectory() as place:
        folder, calls = Path(place), Path(place) / "calls"
        program, calls_of = folder / "bwrap", f'#!/bin/sh\necho "$*" >> {calls}\nexec {bubblewrap} "$@"\n'
        program.write_text(calls_of, encoding="utf-8")
        calls.touch()
        folder.chmod(0o755)
        program.chmod(0o755)
        calls.chmod(0o666)  # the sandbox has another user
        level, _ = probed(f"{folder}{os.pathsep}{os.environ['PATH']}")
        assert level == "bubblewrap"
        assert "--unshare-all" in calls.read_text()


def test_ci_does_not_skip_the_tests_of_the_sandbox(tmp_path: Path) -> None:
    """CI sets a variable. With it, a missing bubblewrap is an error that says what to install."""
    root = Path(__file__).resolve().parents[2]
    assert f"export {boxes.NEED}=1\n" in (root / ".ci" / "run").read_text()
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": f"{root}:{root / 'tests'}"}
    argv = [sys.executable, "-c", "import boxes; print(boxes.needs_sandbox.args[0])"]
    environment.pop(boxes.NEED, None)
    skipped = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert skipped.stdout == "True\n", skipped.stderr
    refused = subprocess.run(argv, env={**environment, boxes.NEED: "1"}, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "the tests of the sandbox must run, and cannot: " in refused.stderr
    assert "apt-get install bubblewrap" in refused.stderr


@boxes.needs_sandbox
def test_no_user_namespaces_says_what_to_allow() -> None:
    """A user namespace in which no further one may be made stands for a machine that forbids
    them."""
    forbid = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    forbid += ['echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
    if subprocess.run([*forbid, "true"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be forbidden here")
    level, ((_, held, why),) = probed(os.environ["PATH"], forbid)
    assert (level, held) == ("none", False)
    assert "user.max_user_namespaces" in why


@boxes.needs_sandbox
def test_the_sandbox_loads_without_torch() -> None:
    program = (
        "import sys, rft.sandbox.sandbox; print(sorted({'torch', 'numpy', 'prefect', 'pydantic'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "[]\n"
