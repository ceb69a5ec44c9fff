"""Every attack of the figure `sandbox_containment`, as whoever tests and as a plain user."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator

import boxes
import pytest

from bench import sandbox_scene
from bench.sandbox_scene import Played

pytestmark = boxes.needs_sandbox


class Stage:
    """The scene, kept for all attacks of this file."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner, self._scene = runner, sandbox_scene.scene()
        self._treasures, self._base = runner.run(self._scene.__aenter__())

    def play(self, name: str) -> Played:
        return self._runner.run(sandbox_scene.play(name, self._treasures, self._base))

    def close(self) -> None:
        self._runner.run(self._scene.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        stage = Stage(runner)
        yield stage
        stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sandbox_scene.names())
def test_held(stage: Stage, name: str) -> None:
    played = stage.play(name)
    assert not played.escaped, played.says
    assert played.control or not played.needs_control, "it fails without a sandbox too: it shows nothing"


@pytest.mark.slow
def test_all_are_held_for_a_plain_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests run as a plain user already")
    if (plain := sandbox_scene.as_plain_user("-m", "bench.sandbox_scene")) is None:
        pytest.skip("no Python here can be run by a plain user")
    argv, environment = plain
    done = subprocess.run(argv, env=environment, cwd=sandbox_scene.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    played = [Played(**json.loads(line)) for line in done.stdout.splitlines()]
    assert [each.name for each in played] == sandbox_scene.names()
    assert [each.name for each in played if each.escaped] == []
    assert [each.name for each in played if each.needs_control and not each.control] == []
