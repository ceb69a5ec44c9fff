"""Correct replies of MCP servers that break the protocol, before the package reads them.

The `mcp` package validates a listing as a whole. If one tool's schema has no `type`, no tool of its
server can be used. The package also refuses a result that does not fit the server's own output
schema. We need neither check: the policy reads text, and rft/tools/arguments.py decides which
schemas are valid. So:

    initialize     some servers know only `tools/list` and `tools/call`, as OpenEnv's /mcp does.
                   They keep no session and have nothing to tell, so we answer in their place
    tools/list     a schema of arguments without `type: object` is wrapped in one that has it, and
                   `as_listed` unwraps it. Output schemas are left out

Both transports give the package a pair of streams; `righted` stands between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

METHOD_NOT_FOUND = -32601
_AS_LISTED = "as listed"
_RIGHTED = ("initialize", "tools/list")


@asynccontextmanager
async def righted(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (replies, requests):
        asked: dict[Any, Any] = {}
        yield _Replies(replies, asked), _Requests(requests, asked)


class _Stream:
    def __init__(self, inner: Any, asked: dict[Any, Any]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> _Stream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._inner.__aexit__(*exc)


class _Requests(_Stream):
    """Remembers which requests wait for a reply that may need a correction."""

    async def send(self, item: SessionMessage) -> None:
        if getattr(item.message, "method", None) in _RIGHTED:
            self._asked[getattr(item.message, "id", None)] = item.message
        await self._inner.send(item)


class _Replies(_Stream):
    def __aiter__(self) -> _Replies:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._read(await self._inner.__anext__())

    async def receive(self) -> SessionMessage | Exception:
        return self._read(await self._inner.receive())

    def _read(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        request = None if isinstance(item, Exception) else self._asked.pop(getattr(item.message, "id", None), None)
        if request is None or isinstance(item, Exception):
            return item
        if request.method == "tools/list":
            _list(getattr(item.message, "result", None))
        elif (error := getattr(item.message, "error", None)) is not None and error.code == METHOD_NOT_FOUND:
            item.message = _introduction(request)
        return item


def _introduction(request: Any) -> Any:
    from mcp.types import JSONRPCResponse

    result = {
        "protocolVersion": request.params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "without initialize", "version": "0"},
    }
    return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)


def _list(result: Any) -> None:
    """Correct a listing in place, if it is one."""
    tools = result.get("tools") if isinstance(result, dict) else None
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        tool.pop("outputSchema", None)
        schema = tool.get("inputSchema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            tool["inputSchema"] = {"type": "object", _AS_LISTED: schema}


def as_listed(schema: dict[str, Any]) -> Any:
    """Return a tool's schema as its server wrote it."""
    return schema.get(_AS_LISTED, schema)


__all__ = ["as_listed", "righted"]
