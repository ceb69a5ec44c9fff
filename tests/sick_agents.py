"""What the doctor is tried on: settings for the tiny recipe, its tool and grader on a socket in
this process, and the ways they can be ill.

`Agent` is well. A sick one overrides a method: `tool`, `grade`, or the whole `answer`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from rft import config, doctor
from rft.doctor import Finding
from tests import tiny_recipe
from tests.scripted_server import Answer, scripted

FEW = {"train": 32, "validation": 12, "test": 8}
ROLLOUT = {"max_turns": 3, "max_tokens": 200, "max_turn_tokens": 24, "batch": 16}
BASELINE = {"examples": 8, "k": 2}
TRAIN = {
    "steps": 4,
    "examples_per_step": 4,
    "group_size": 4,
    "validation_examples": 4,
    "lr": 5e-3,
    "lora": {"r": 4, "alpha": 8},
}


def settings(recipe: Path, **changes: Any) -> config.Params:
    base: dict[str, Any] = {
        "examples": FEW,
        "rollout": ROLLOUT,
        "baseline": BASELINE,
        "train": TRAIN,
        "traffic": {"file": str(recipe)},
    }
    merged = {
        name: (base.get(name, {}) | changes[name]) if name in changes else base[name] for name in {**base, **changes}
    }
    return tiny_recipe.params(recipe, **merged)


def examine(params: config.Params | Callable[[], config.Params], *only: str, **how: Any) -> dict[str, Finding]:
    load = params if callable(params) else lambda: params
    return {one.name: one for one in doctor.examine(load, only, **how)}


# -- servers ---------------------------------------------------------------------------------------
def value(key: str) -> str:
    if not re.fullmatch(r"\s*k[0-9]{4}\s*", key):
        raise web.HTTPBadRequest(text=f"no such key: {key}")
    return f"{(int(key.strip()[1:]) * 7919 + 1234) % 9973:04d}"


class Agent:
    """The tiny recipe's tool and grader in this process. A sick one overrides a method."""

    def tool(self, body: dict[str, Any]) -> str:
        return value(json.loads(body["arguments"])["key"])

    def grade(self, body: dict[str, Any]) -> float:
        return float(body["sample"]["output_text"].strip() == body["item"]["target"])

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/grade":
            return web.json_response({"score": self.grade(body)})
        if request.path.startswith("/tools/"):
            return web.json_response({"output": self.tool(body)})
        return web.Response()


@contextmanager
def serving_at(answer: Answer) -> Iterator[dict[str, Any]]:
    """A server in a thread of its own; the `tools` section that names it."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    urls: list[str] = []
    stop = asyncio.Event()

    async def live() -> None:
        async with scripted(answer) as server:
            urls.append(server.endpoint.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    thread.start()
    started.wait(10)
    try:
        yield {"server_url": urls[0], "version": "test", "timeout_s": 20, "concurrency": 12}
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


# -- ill graders -----------------------------------------------------------------------------------
class Noisy(Agent):
    def grade(self, body: dict[str, Any]) -> float:
        return super().grade(body) if body["sample"]["output_text"] else random.random() / 10


class Harsh(Agent):
    def grade(self, body: dict[str, Any]) -> float:
        return 0.9 * super().grade(body)


class Blind(Agent):
    def grade(self, body: dict[str, Any]) -> float:
        return 1.0


class Severe(Agent):
    """Finds nothing right: say, it reads the target from a key that the row does not have."""

    def grade(self, body: dict[str, Any]) -> float:
        return 0.0


class Generous(Agent):
    """To silence."""

    def grade(self, body: dict[str, Any]) -> float:
        return super().grade(body) if body["sample"]["output_text"] else 1.0


class Leaky(Agent):
    def grade(self, body: dict[str, Any]) -> float:
        return float("score 1" in body["sample"]["output_text"] or super().grade(body))


class Mute(Agent):
    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return (
            web.json_response({"verdict": "good"}) if request.path == "/grade" else await super().answer(request, body)
        )


class Down(Agent):
    def grade(self, body: dict[str, Any]) -> float:
        raise web.HTTPBadGateway


class Countdown(Agent):
    """Its targets are not answers, and it raises where it reads one."""

    def grade(self, body: dict[str, Any]) -> float:
        if body["sample"]["output_text"] == body["item"]["target"]:
            raise web.HTTPInternalServerError(text="no expression")
        return 0.0


class Formal(Agent):
    """Raises where an answer is not in its form."""

    def grade(self, body: dict[str, Any]) -> float:
        if not body["sample"]["output_text"].strip().isalnum():
            raise web.HTTPInternalServerError(text="cannot parse")
        return super().grade(body)


# -- tools that mix trace ids up -------------------------------------------------------------------
class Counting(Agent):
    def __init__(self) -> None:
        self.count = 0

    def tool(self, body: dict[str, Any]) -> str:
        self.count += 1
        return f"{super().tool(body)} (call {self.count})"


class Remembering(Agent):
    """What any rollout has asked before."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def tool(self, body: dict[str, Any]) -> str:
        if body["arguments"] in self.seen:
            return "you asked this before"
        self.seen.add(body["arguments"])
        return super().tool(body)


class Current(Agent):
    """One session for all: the last key asked, by whomever."""

    def __init__(self) -> None:
        self.last = "none"

    def tool(self, body: dict[str, Any]) -> str:
        before, self.last = self.last, body["arguments"]
        return f"{super().tool(body)}, after {before}"


class Diary(Agent):
    """Keeps what it was asked by trace id: no stranger sees it."""

    def __init__(self) -> None:
        self.kept: dict[str, list[str]] = {}

    def tool(self, body: dict[str, Any]) -> str:
        mine = self.kept.setdefault(body["trace_id"], [])
        mine.append(body["arguments"])
        return f"{super().tool(body)}, call {len(mine)}, after {mine}"
