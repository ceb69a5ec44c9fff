"""Tools of MCP servers: listed when a stage starts, called like any other tool, closed at its end.

    tools:
      mcp:
        - {name: wiki, url: "http://127.0.0.1:8000/mcp", headers: {Authorization: "env:WIKI_KEY"}}
        - {name: files, command: [python, server.py], env: {ROOT: "env:ROOT"}, tools: [read]}

The first is reached by streamable HTTP; the second is a process of ours, reached by stdio.

The official `mcp` package speaks the protocol. This module adds a deadline and a maximum size for
each call, retries after failures of the transport, signatures, and the trace id in each call's
`_meta`. A result with `isError`, and a refusal of the arguments, are the policy's fault, and it
sees them. Everything else that is not a result is retried and then `failed`.

Two errors of the first kind are still the server's fault. Only their text shows it
(`McpTool._blame`):
- The server listed a tool and no longer knows it. The error comes as INVALID_PARAMS, as the
  specification asks, or with `isError`, as the packages do it. The call is `failed` at once, like
  an HTTP 404.
- A tool function crashed. Release 2 of the `mcp` package hides the exception and answers "Error
  executing tool NAME". That is retried, like an HTTP 500. If a colon follows, then the text after
  it is what the tool raised for the model to read, or names the arguments that do not fit. Release
  1 puts the text of a crash there too, so a crash under it counts as the policy's fault.

`client_errors: policy` in tools.traits blames the policy for all of them.

rft/tools/mcp_righted.py corrects replies of servers that break the protocol.

Two properties of the package shape this file. Its tasks live in cancel scopes, and one task must
enter and leave a scope. So a connection belongs to a task that opens it, waits, and closes it
(`_own`). And if one exchange breaks over HTTP, the package ends the whole session, with all running
calls. So `_transport` gives it an error reply instead, and passes the cause to the call that met
it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, Self

from rft import config
from rft.errors import ConfigError, InfrastructureError
from rft.process import last_output, tail
from rft.secrets import Secrets, redact_json
from rft.tools.mcp_righted import as_listed, righted
from rft.types import ToolCall
from rft.wire import headers
from rft.wire.client import TRANSIENT, HttpClient, Limits, NoReply, RateLimiter, http_address, retry_after, retrying
from rft.wire.contract import Envelope, Outcome, as_text, too_large

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.types import CallToolResult

OPEN_DEADLINE_S = 60.0
CLOSE_DEADLINE_S = 10.0  # the package gives a process 2 s to end by itself, and 2 s more after SIGTERM
_CODE = r"(?:MCP error -?\d+: )?"  # how the TypeScript package begins
# Python: "Unknown tool: NAME"; Go: 'unknown tool "NAME"'; Java: "Unknown tool: invalid_tool_name",
# literally, and once "Tool not found: NAME"; Rust: "tool not found"; TypeScript: "Tool NAME not
# found" or "disabled"; mcp-go: "tool 'NAME' not found: ...". More may follow, such as a list of the
# known tools. With any other name it is not this error: a tool that takes tools' names as arguments
# refuses a wrong one with the same words.
_NAMED = r"""(unknown tool|tool not found)(:? ['"]?(NAME|invalid_tool_name)['"]?(?![\w/-]|\.\w)|[.;,!]|$)"""
_UNKNOWN = rf"""{_CODE}({_NAMED}|tool ['"]?NAME['"]? (not found|disabled)\b)"""
SESSION_LOST = "Session terminated"  # the package's text for a session id that the server no longer knows

log = logging.getLogger("rft.tools.mcp")


class _Oversized(Exception):
    """The reply was larger than allowed."""


class _Refused(Exception):
    """The server refused the arguments."""


_troubles: ContextVar[list[Exception] | None] = ContextVar("troubles", default=None)
"""Errors that `_transport` met for the call in this context: NoReply, InfrastructureError or
_Oversized."""


@dataclass(frozen=True, slots=True)
class McpTool:
    server: Server
    name: str
    """The server's own name of the tool, without prefix."""
    limits: Limits
    rate_limiter: RateLimiter
    client_errors: str = "infrastructure"
    """See config.Traits."""

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        trace_id = envelope.context.trace_id

        async def once(attempt: int) -> Outcome:
            meta = {"trace_id": trace_id, "call_id": call.call_id, "retry": attempt}
            async with self.rate_limiter, asyncio.timeout(self.limits.timeout_s):
                try:
                    return self._read(await self.server.call(self.name, json.loads(arguments), meta))
                except _Oversized:
                    return too_large(self.limits.max_reply_bytes)
                except _Refused as problem:
                    self._blame(str(problem))
                    return Outcome(f"Error: {problem}", is_error=True)

        outcome, retries = await retrying(self.limits, f"{trace_id} {call.call_id}", once)
        return replace(outcome, retries=retries)

    def _read(self, result: CallToolResult) -> Outcome:
        """Join the result's texts. A picture or a resource becomes JSON."""
        text = "\n".join(
            block.text if block.type == "text" else block.model_dump_json(by_alias=True, exclude_none=True)
            for block in result.content
        )
        if not result.content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        text = self.server.secrets.redact(as_text(text))
        if result.is_error:
            self._blame(text)
        if len(text.encode()) > self.limits.max_reply_bytes:
            return too_large(self.limits.max_reply_bytes)
        return Outcome(text, result.is_error)

    def _blame(self, error: str) -> None:
        """Raises NoReply for an error that is the server's fault."""
        if self.client_errors == "policy":
            return
        name = re.escape(self.name)
        if re.match(_UNKNOWN.replace("NAME", name), error.strip(), re.IGNORECASE):
            raise NoReply(f"the server listed {self.name} and no longer knows it: {error}", lasting=True)
        if re.fullmatch(rf"Error executing tool {name}(: Error executing tool \S+)*", error):
            raise NoReply(f"the tool crashed: {error}")


class Server:
    """One MCP server and its tools.

    async with Server(params.tools.mcp[0], params.tools, http) as server:
        server.tools, server.source(name)
    """

    def __init__(self, server: config.McpServer, section: config.Tools, http: HttpClient) -> None:
        self.name = server.name
        self.tools: list[dict[str, Any]] = []
        """Chat-Completions tools in the server's order, with the prefix in their names."""
        self.url = server.url or ""
        self._where = f"params.yaml (tools.mcp, {server.name})"
        self._server, self._section, self._http = server, section, http
        self._headers, secrets = headers.resolve(server.headers, self._where)
        self._env = {name: config.secret(value) for name, value in server.env.items()}
        self.secrets = secrets | Secrets(
            self._env[name] for name, value in server.env.items() if value.startswith("env:")
        )
        self._signer = headers.signer(section)
        if server.url is not None:
            http_address(server.url, f"{self._where}: url", "http://host:8000/mcp")
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect and list the tools. Raises InfrastructureError if the server does not answer,
        ConfigError for a tool that it does not have."""
        self._opening = asyncio.Lock()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __aexit__
        try:
            self.tools = redact_json(self._allowed(await self._list()))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()
        self._output.close()

    def source(self, name: str, client_errors: str = "infrastructure") -> McpTool:
        own = name.removeprefix(self._server.prefix)
        rate_limiter = self._http.rate_limiter(self._section.rate_limit)
        return McpTool(self, own, Limits.from_params(self._section), rate_limiter, client_errors)

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> CallToolResult:
        """Call a tool. Raises _Refused, _Oversized, and NoReply for everything else that is not a
        result."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS

        client = await self._connected()
        token = _troubles.set(troubles := [])
        try:
            return await client.call_tool(name, arguments, meta=meta)  # type: ignore[arg-type]
        except MCPError as error:
            if troubles:
                raise troubles[0] from None
            if error.code == INVALID_PARAMS:
                raise _Refused(self.secrets.redact(as_text(error.message))) from None
            if (error.code == CONNECTION_CLOSED and self._server.url is None) or error.message == SESSION_LOST:
                await self._drop(client)
            raise NoReply(self._explain(error)) from None
        except Exception as error:  # not a result, or one that breaks its own schema, or a bad schema
            raise NoReply(self._explain(error), malformed=True) from None
        finally:
            _troubles.reset(token)

    # -- what it has
    async def _list(self) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(OPEN_DEADLINE_S):
                client, tools, cursor = await self._connected(), [], None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    if (cursor := page.next_cursor) is None:
                        break
        except InfrastructureError:
            raise
        except Exception as failure:
            late = f"no answer within {OPEN_DEADLINE_S:g} s"
            why = late if isinstance(failure, TimeoutError) else self._explain(failure)
            raise InfrastructureError(
                f"{self._where}: the MCP server cannot be used: {why}. Start it, or fix its address or command."
            ) from None
        return [
            {"name": tool.name, "description": tool.description or "", "parameters": as_listed(tool.input_schema)}
            for tool in tools
        ]

    def _allowed(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Make Chat-Completions tools of the functions that params.yaml names."""
        known = [function["name"] for function in listed]
        wanted = known if self._server.tools is None else self._server.tools
        if unknown := [name for name in wanted if name not in known]:
            raise ConfigError(f"{self._where}: tools = {unknown}: the server has no such tools. It has {known}.")
        prefix = self._server.prefix
        return [
            {"type": "function", "function": {**function, "name": prefix + function["name"]}}
            for function in listed
            if function["name"] in wanted
        ]

    # -- one connection after another
    async def _connected(self) -> Client:
        """Return the connection, and make one if needed. Raises NoReply if that fails."""
        if self._client is not None:
            return self._client
        async with self._opening:
            if self._client is None:
                await self._close()
                self._leave, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
                self._owner = asyncio.create_task(self._own(ready))
                try:
                    return await ready
                except BaseException:
                    self._owner.cancel()
                    await self._close()
                    raise
            return self._client

    async def _own(self, ready: asyncio.Future[Client]) -> None:
        _troubles.set(troubles := [])
        try:
            async with self._open() as client:
                self._client = client
                ready.set_result(client)
                await self._leave.wait()
        except (Exception, BaseExceptionGroup) as error:
            if ready.done():
                log.warning("%s: the connection broke: %s", self._where, self._explain(error))
            else:
                ready.set_exception(troubles[0] if troubles else NoReply(self._explain(error)))
        finally:
            ready.cancel()
            self._client = None

    async def _drop(self, client: Client) -> None:
        """Close this connection once, even if several calls met its end."""
        async with self._opening:
            if self._client is client:
                await self._close()

    async def _close(self) -> None:
        if (owner := self._owner) is None:
            return
        self._owner, self._client = None, None
        self._leave.set()
        await asyncio.wait([owner], timeout=CLOSE_DEADLINE_S)
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if self._server.url is None:
            command, *arguments = self._server.command or []
            process = StdioServerParameters(command=command, args=arguments, env=self._env)
            async with Client(righted(stdio_client(process, errlog=self._output))) as client:  # type: ignore[arg-type]
                yield client
        else:
            async with (
                _http_client(self) as http,
                Client(
                    righted(streamable_http_client(self._server.url, http_client=http, max_sse_event_size=None))
                ) as client,
            ):
                yield client

    def _explain(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = str(error) if isinstance(error, NoReply) else f"{type(error).__name__}: {error}"
        output = tail(self._output).strip()
        return self.secrets.redact(as_text(f"{text}\n{last_output(output)}" if output else text))


# -- HTTP under the session ------------------------------------------------------------------------
def _http_client(server: Server) -> httpx2.AsyncClient:
    import httpx2

    signer = server._signer

    async def sign(request: httpx2.Request) -> None:
        if signer is not None:
            body = await request.aread()
            request.headers.update(signer.sign(body.decode(), body))  # each JSON-RPC message has its own id

    return httpx2.AsyncClient(
        headers=server._headers,
        # with room for escapes, for the text twice, and for the frame around it
        transport=_transport(4 * server._section.max_reply_bytes + 65536, server),
        timeout=httpx2.Timeout(30.0, read=None),  # the call's own deadline is around it
        max_redirects=0,
        trust_env=False,
        event_hooks={"request": [sign]},
    )


def _transport(limit: int, server: Server) -> httpx2.AsyncBaseTransport:
    import httpx2

    def met(trouble: Exception) -> None:
        if (troubles := _troubles.get()) is not None:
            troubles.append(trouble)

    class Body(httpx2.AsyncByteStream):
        """A reply's body, of at most `limit` bytes."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            num_bytes = 0
            try:
                async for chunk in self._inner:
                    num_bytes += len(chunk)
                    if num_bytes > limit:
                        met(_Oversized())
                        raise httpx2.StreamError("the reply is too large")
                    yield chunk
            except httpx2.TransportError as error:
                met(NoReply(server._explain(error)))
                raise httpx2.StreamError("the connection broke") from None

        async def aclose(self) -> None:
            await self._inner.aclose()

    class Steady(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            try:
                response = await super().handle_async_request(request)
            except httpx2.TransportError as error:
                met(NoReply(server._explain(error)))
                return httpx2.Response(503)
            if response.status_code == 401:
                why = f"the MCP server refuses our key (HTTP 401). Fix the headers in {server._where}."
                met(InfrastructureError(why))
            elif response.status_code in TRANSIENT:
                pause_s = retry_after(response.headers.get("Retry-After"))
                met(NoReply(f"HTTP {response.status_code}", retry_after_s=pause_s))
            response.stream = Body(response.stream)
            return response

    return Steady(limits=httpx2.Limits(max_connections=None))


__all__ = ["McpTool", "Server"]
