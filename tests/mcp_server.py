"""A small real MCP server, by the official package: `python tests/mcp_server.py stdio`, or `...
http PORT_FILE`, on a free port. `... forks SOCKET`: tests/ready_mcp.py."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import ready_mcp
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rft.process import die_with

server = MCPServer("small")
seen: list[dict[str, str]] = []


@server.tool()
def add(a: int, b: int) -> str:
    """The sum."""
    return str(a + b)


@server.tool()
def refuse(why: str) -> str:
    """Always an error."""
    raise ToolError(f"no: {why}")


@server.tool()
def crash(why: str) -> str:
    """A bug."""
    raise RuntimeError(why)


@server.tool()
def crash_once(file: str) -> str:
    """A bug that passes."""
    if not Path(file).exists():
        Path(file).touch()
        raise RuntimeError("not yet")
    return "fine"


@server.tool()
def crash_below(why: str) -> str:
    """A bug in what it calls."""
    raise UnexpectedToolError(f"Error executing tool {why}")


@server.tool()
def protest(text: str) -> str:
    """Refuses the arguments, by the protocol."""
    raise MCPError(INVALID_PARAMS, text)


@server.tool()
def forget(name: str) -> str:
    """From now on there is no such tool."""
    server.remove_tool(name)
    return "forgotten"


@server.tool()
async def sleep(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "slept"


@server.tool()
def much(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool()
def meta(ctx: Context) -> str:
    """What came along."""
    given = ctx.request_context.meta or {}
    return " ".join(str(given.get(key)) for key in ("trace_id", "call_id", "retry"))


@server.tool()
def environment(name: str) -> str:
    """A variable of this process."""
    return os.environ.get(name, "")


@server.tool()
def die(code: int) -> str:
    """Ends this process."""
    os._exit(code)


def flaky(app: ASGIApp) -> ASGIApp:
    """Breaks tools/call as the X-Break header says, once for each time that it is named: `500`,
    `cut`, `html`. Keeps the headers of each request."""
    left: list[str] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        seen.append(dict(request.headers))
        if request.headers.get("authorization") == "Bearer wrong":
            await PlainTextResponse("who?", status_code=401)(scope, receive, send)
            return
        if request.url.path == "/seen":
            await Response(repr(seen))(scope, receive, send)
            return
        body = await request.body()
        if b'"tools/call"' in body and "x-break" in request.headers:
            if not left:
                left.extend([*request.headers["x-break"].split(","), ""])
            word = left.pop(0)
            if word == "500":
                await PlainTextResponse("bad", status_code=500)(scope, receive, send)
                return
            if word == "html":
                await Response("<html>Sign in</html>", media_type="text/html")(scope, receive, send)
                return
            if word == "cut":
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [(b"content-type", b"application/json"), (b"content-length", b"500")],
                    }
                )
                await send({"type": "http.response.body", "body": b'{"jsonrpc"', "more_body": True})
                raise ConnectionResetError("cut")

        read = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(read, None) or await receive()

        await app(scope, again, send)

    return serve


def main() -> None:
    if sys.argv[1] == "stdio":
        print("small MCP server", file=sys.stderr, flush=True)
        server.run("stdio")
        return
    if sys.argv[1] == "forks":
        die_with(os.getppid())
        ready_mcp.forks(sys.argv[2], lambda: server.run("stdio"))
    listener = socket.create_server(("127.0.0.1", 0))
    Path(sys.argv[2]).write_text(str(listener.getsockname()[1]))
    app = flaky(server.streamable_http_app(json_response=sys.argv[3:] == ["json"]))
    config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
