"""What `rft doctor` says of the sandbox: what holds, what is missing, and what to install."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import boxes
import pytest
import tiny_recipe

from rft import config
from rft.doctor import examine, exit_code
from rft.doctor.finding import Finding
from rft.sandbox import probe
from rft.sandbox.probe import Guarantee, Info, Machine

SOURCE = {"type": "python", "source": "def grade(sample, item): return 1.0"}


def checked(recipe: Path, **tools: object) -> Finding:
    params = tiny_recipe.params(recipe)
    params = params.model_copy(update={"tools": config.Tools(**tools)})  # type: ignore[arg-type]
    return list(examine(lambda: params, ["sandbox"]))[-1]


@pytest.fixture
def sourced(tmp_path: Path) -> Path:
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text(json.dumps(SOURCE))
    return made


@boxes.needs_sandbox
def test_what_holds_is_named(sourced: Path):
    found = checked(sourced)
    assert found.status == "ok"
    assert found.words.startswith("bubblewrap holds files, network, rights, system calls, processes, memory, disk, end")
    assert found.facts["level"] == "bubblewrap"


def test_where_no_grader_needs_it_one_line_says_what_there_is(tmp_path: Path):
    found = checked(tiny_recipe.make(tmp_path))
    assert (found.status, found.remedy) == ("ok", "")
    assert found.words.startswith("not needed, the grader is not a source; ")


def test_what_to_install(sourced: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(probe, "_found", {})
    monkeypatch.setenv("PATH", str(tmp_path))
    found = checked(sourced)
    assert (found.status, exit_code([found])) == ("fail", 3)
    assert "apt-get install bubblewrap" in found.words


@boxes.needs_sandbox
def test_a_guarantee_that_the_kernel_refuses(sourced: Path, monkeypatch: pytest.MonkeyPatch):
    real = asyncio.run(probe.machine())

    async def machine() -> Machine:
        return replace(real, info=Info("bubblewrap", (Guarantee("network", False, "the interfaces are lo, eth0"),)))

    monkeypatch.setattr(probe, "machine", machine)
    found = checked(sourced)
    assert found.status == "fail"
    assert found.words == "bubblewrap does not hold network: the interfaces are lo, eth0"
    assert "tools.weaker_sandbox: true" in found.remedy
    assert checked(sourced, weaker_sandbox=True).status == "warn"
