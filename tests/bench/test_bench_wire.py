"""The figure of the wire: it holds today, and it would have shown each fault that published servers
met without a word."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from bench import foreign_servers
from bench import wire as figure
from rft import config
from rft.grading import budget
from rft.sampling.remote import chat
from rft.stages import examples, policy
from rft.wire import contract as wire
from rft.wire.trace import Traces
from tasks.runs import engine
from tests.sick_agents import serving_at

SMALL = 4, 3


def measured(*cases: str) -> tuple[float, bool | None]:
    """How much differs, scores and what the agent said, and whether the figure holds."""
    found = figure.measure(*SMALL, cases)
    return sum(part.value or 0 for part in found.parts[:2]), found.holds


@pytest.mark.story
def test_every_grader_gives_through_a_baseline_what_it_gives_when_asked_directly():
    assert measured(*foreign_servers.CASES) == (0.0, False), "it holds with 500 rollouts, and these are fewer"


def rebuilt(envelope: wire.Envelope) -> bytes:
    """W1: the row from four fields of ours."""
    example = envelope.context.example
    return json.dumps(
        {"id": example.id, "messages": list(example.messages), "target": example.target, "price": 0}
    ).encode()


def sorted_keys(envelope: wire.Envelope) -> bytes:
    """W1: all of the row, in other bytes."""
    return json.dumps(json.loads(envelope.context.example.line), sort_keys=True).encode()


def garbled(message: Any, key: str) -> str:
    """What the agent said, changed before our own log sees it."""
    return (message.get(key) or "").replace("SKU", "UKS")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "place", "name", "fault"),
    [
        ("own_keys", wire.Envelope, "item", property(sorted_keys)),
        ("own_keys", chat, "_text", garbled),
        ("own_keys", budget, "reward", lambda grade, used, section, low: (grade.score or 0.0) / 2),
        ("own_keys", wire.Envelope, "item", property(rebuilt)),
        ("output_json", wire, "_parsed", lambda text: None),
        ("own_path", wire, "_messages", lambda turn: []),
        (
            "stateful",
            Traces,
            "trace_id",
            lambda traces, rollout_id, attempt: f"trace_{uuid.uuid5(uuid.NAMESPACE_OID, rollout_id)}",
        ),
    ],
)
def test_a_fault_of_old_would_show(
    monkeypatch: pytest.MonkeyPatch, case: str, place: Any, name: str, fault: Callable[..., Any] | property
):
    monkeypatch.setattr(place, name, fault)
    differing, holds = measured(case)
    assert differing > 0
    assert holds is False


@pytest.mark.story
def test_what_a_kill_cut_off_comes_back_under_another_trace_id(tmp_path: Path):
    """W3: a tool server that keeps state by it has heard the first half of that rollout already."""
    lives: list[list[str]] = [[], []]
    stages: list[subprocess.Popen[bytes]] = []

    async def search(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        lives[len(stages) - 1].append(body["trace_id"])
        if len(stages) == 1 and len(lives[0]) == 6:
            stages[0].kill()
        return web.json_response({"output": "found"})

    with foreign_servers.serving() as url, serving_at(search) as tools:
        figure.write_recipe(tmp_path / "own_keys", "own_keys", url, 4)
        settings = figure.settings("own_keys", url, 4, 3)
        settings["tools"]["endpoints"][0]["server_url"] = f"{tools['server_url']}/search"
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
        env = {**os.environ, "PYTHONPATH": str(figure.ROOT)}
        engine.write(tmp_path, config.Recipe(path=str(tmp_path / "own_keys")), tmp_path / "state")
        with contextlib.chdir(tmp_path):
            for before in (examples, policy):
                before.run(config.parse(settings))
        for _ in lives:
            stages.append(
                subprocess.Popen(
                    [sys.executable, "-m", "rft", "baseline"], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL
                )
            )
            stages[-1].wait(60)
    assert [stage.returncode for stage in stages] == [-9, 0]
    assert all(lives)
    assert set(lives[0]).isdisjoint(lives[1])
    assert json.loads((tmp_path / "data/baseline/timing.json").read_text())["trace"]["starts"] == 2
