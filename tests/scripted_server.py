"""A tool or grader server that misbehaves as a test says: a real socket, and a script of
answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from rft.wire.client import ToolEndpoint

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Scripted:
    endpoint: ToolEndpoint
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def scripted(*answers: Answer, headers: dict[str, str] | None = None) -> AsyncIterator[Scripted]:
    """The n-th request gets the n-th answer; the last answer is repeated."""
    seen: list[Scripted] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        record = seen[0]
        body = await request.json() if request.can_read_body else {}
        record.raw.append(await request.read())
        record.bodies.append(body)
        record.headers.append(dict(request.headers))
        record.paths.append(request.path)
        record.methods.append(request.method)
        return await answers[min(len(record.bodies), len(answers)) - 1](request, body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    try:
        seen.append(Scripted(ToolEndpoint(str(server.make_url("")).rstrip("/"), headers or {})))
        yield seen[0]
    finally:
        await server.close()


def says(value: Any, status: int = 200) -> Answer:
    """A JSON value."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(value, status=status)

    return answer


def writes(
    text: str, status: int = 200, content_type: str = "text/html", headers: dict[str, str] | None = None
) -> Answer:
    """A body that is not JSON."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=text, status=status, content_type=content_type, headers=headers)

    return answer
