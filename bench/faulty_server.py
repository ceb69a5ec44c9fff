"""A tool and grader server that fails on demand.

It is a recipe's own server (rft/tools/server.py) in a process of its own, with faults in front.

    with serving(recipe_folder) as url:
        tell(url, Faults(seed=3, error=0.05, hang=0.03))     POST /control; GET says what was done

Every fault is drawn from a hash of (seed, rollout, call_id, number of the try). So a retry may
succeed, and an equal run meets equal faults. Trace ids are new in every run, so here a rollout is
the n-th of its row, in order of arrival. The number of the try is counted here, too. Two faults are
not drawn for each call: an `outage` makes all requests of a share of the rollouts fail, and
`breaks_on` makes every call with that argument's value fail.

A reset is a real RST (SO_LINGER 0). A hang keeps the connection, and answers long after every
deadline. Half of the truncated replies end before their Content-Length; the others are whole HTTP
around half a JSON value.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web
from pydantic import BaseModel, ConfigDict

from rft import config, recipe
from rft.process import die_with
from rft.tools import server as toolserver

ROOT = Path(__file__).resolve().parents[1]
HANG_S = 20.0
STOP_S = 5.0


class Faults(BaseModel):
    """What goes wrong from now on. All but the last four are shares of calls and grades."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    error: float = 0.0
    """HTTP 500."""
    hang: float = 0.0
    reset: float = 0.0
    truncated: float = 0.0
    oversized: float = 0.0
    oversized_bytes: int = 1_000_000
    latency_s: float = 0.0
    """Latency of every tool call. A grade is answered at once."""
    outage: float = 0.0
    """Share of rollouts whose calls and grade all fail (HTTP 503)."""
    outage_from_step: int = 0
    """The step is read from X-RFT-Step."""
    breaks_on: dict[str, Any] = {}
    """Argument -> value: calls that have it fail (HTTP 500)."""

    def draw(self, *parts: object) -> float:
        """Return a number in [0, 1), a function of the seed and the words."""
        digest = hashlib.blake2b(json.dumps([self.seed, *parts]).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64

    def strikes(self, rollout: str, call_id: str, number: int) -> str:
        """Return the fault of this try, or ''."""
        left = self.draw(rollout, call_id, number)
        for name in ("error", "hang", "reset", "truncated", "oversized"):
            if (left := left - getattr(self, name)) < 0:
                return name
        return ""


# -- the server ------------------------------------------------------------------------------------
class Trouble:
    """The present faults, and what was done so far."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.tries: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.names: dict[str, str] = {}
        self.rows: Counter[str] = Counter()

    def rollout(self, body: dict[str, Any]) -> str:
        """Name a rollout: `n-0001 3` is the third of row n-0001 that sent a request."""
        trace_id = str(body.get("trace_id"))
        if trace_id not in self.names:
            row = str((body.get("item") or {}).get("id"))
            self.names[trace_id] = f"{row} {self.rows[row]}"
            self.rows[row] += 1
        return self.names[trace_id]

    async def control(self, request: web.Request) -> web.Response:
        """POST starts over, counts included; GET reads the counts."""
        done = dict(sorted(self.done.items()))
        if request.method == "POST":
            self.faults = Faults.model_validate_json(await request.read())
            self.tries.clear()
            self.done.clear()
            self.names.clear()
            self.rows.clear()
            gc.collect()  # else the next measurement pays for the garbage of the last
        return web.json_response(done)

    @web.middleware
    async def stand_between(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.method != "POST" or request.path == "/control":
            return await handler(request)
        body, is_tool = await request.json(), request.path.startswith("/tools/")
        kind = self._kind(body, is_tool, int(request.headers.get("X-RFT-Step", "0")))
        self.done[kind or "fine"] += 1
        if is_tool and self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s)
        return await (getattr(self, f"_{kind}")(request, body) if kind else handler(request))

    def _kind(self, body: dict[str, Any], is_tool: bool, step: int) -> str:
        faults, rollout = self.faults, self.rollout(body)
        call_id = str(body.get("call_id")) if is_tool else "grade"
        number = self.tries[rollout, call_id]
        self.tries[rollout, call_id] += 1
        if step >= faults.outage_from_step and faults.draw("outage", rollout) < faults.outage:
            return "outage"
        if is_tool and faults.breaks_on and faults.breaks_on.items() & json.loads(body["arguments"]).items():
            return "error"
        return faults.strikes(rollout, call_id, number)

    async def _outage(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(status=503, text="the environment is being reset")

    async def _error(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(status=500, text="Internal Server Error")

    async def _hang(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(HANG_S)
        return web.json_response({"output": "too late", "score": 0.0})

    async def _reset(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if request.transport is not None:
            with contextlib.suppress(OSError):  # the client may have left already
                request.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            request.transport.abort()
        return web.Response()

    async def _truncated(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        half = '{"type": "function_call_output", "output": "12'
        if self.faults.draw("framing", self.rollout(body), body.get("call_id")) < 0.5:
            return web.Response(text=half, content_type="application/json")
        if request.transport is not None:
            request.transport.write(
                f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{half}".encode()
            )
            request.transport.close()
        return web.Response()

    async def _oversized(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response({"output": "x" * self.faults.oversized_bytes})


def app(folder: Path) -> web.Application:
    trouble = Trouble()
    served = toolserver.app(recipe.load(config.Recipe(path=str(folder))))
    served.middlewares.insert(0, trouble.stand_between)
    served.router.add_route("*", "/control", trouble.control)
    return served


# -- its life --------------------------------------------------------------------------------------
@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start the recipe's server as a process on a free port, and yield its address. It has no
    faults until `tell` is called."""
    command = [sys.executable, "-m", "bench.faulty_server", str(folder), "--parent", str(os.getpid())]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        if words[:1] != ["listening"]:
            raise RuntimeError(f"the faulty server of {folder} did not start")
        yield f"http://{words[1]}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def tell(url: str, faults: Faults) -> dict[str, int]:
    """Set the faults. Returns what was done until now: fault ('fine': none) -> requests."""
    reply = httpx.post(f"{url}/control", content=faults.model_dump_json(), timeout=30, trust_env=False)
    return reply.raise_for_status().json()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faulty_server", description="Serve a recipe's tools and grader with faults on demand."
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE_FOLDER")
    parser.add_argument(
        "--parent", type=int, metavar="PID", help="end when this process, which must be the parent, ends"
    )
    args = parser.parse_args(argv)
    if args.parent is not None:
        die_with(args.parent)
    asyncio.run(
        toolserver.serve(
            app(args.recipe), "127.0.0.1", 0, lambda port: print(f"listening 127.0.0.1:{port}", flush=True)
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
