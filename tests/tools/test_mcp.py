"""Real MCP servers over both transports: listing, calling, limits, what the policy sees, what is
retried, and a clean end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from aiohttp import web
from mcp.types import CallToolResult, TextContent
from scripted_tools import context

from rft import config
from rft.errors import ConfigError, InfrastructureError
from rft.secrets import Secrets
from rft.tools.client import ToolClient
from rft.tools.mcp import McpTool
from rft.types import ToolCall, ToolResult
from rft.wire import client as http_client
from rft.wire import contract as wire
from rft.wire.client import ToolEndpoint

FILE = Path(__file__).parents[1].joinpath("mcp_server.py")
STDIO = [sys.executable, str(FILE), "stdio"]
READY = FILE.with_name("ready_mcp.py")
CONTEXT = context({"id": "n-1"}, "trace_7")
NOWHERE = ToolEndpoint("http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.001)


def _start(folder: Path, *args: str) -> tuple[subprocess.Popen[bytes], str]:
    port = folder / "port"
    process = subprocess.Popen([sys.executable, str(FILE), "http", str(port), *args])
    deadline = time.monotonic() + 120
    while not (port.exists() and port.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, f"http://127.0.0.1:{port.read_text()}/mcp"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process, address = _start(tmp_path_factory.mktemp("mcp"))
    with process:
        yield address
        process.kill()


@pytest.fixture(scope="module")
def stdio() -> Iterator[list[str]]:
    """STDIO, without its imports (tests/ready_mcp.py)."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([sys.executable, str(FILE), "forks", place := f"{folder}/socket"])
        with process:
            deadline = time.monotonic() + 120
            while not Path(place).exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield [sys.executable, "-S", str(READY), place, "stdio"]
            process.kill()


def play(
    server: dict[str, Any], *calls: tuple[str, dict[str, Any]], between: Any = None, **section: Any
) -> list[ToolResult]:
    """One call after another, through the whole client."""

    async def run() -> list[ToolResult]:
        tools = config.Tools.model_validate({"mcp": [{"name": "small", **server}], **section})
        async with ToolClient(NOWHERE, tools, []) as client:
            results: list[ToolResult] = []
            for number, (name, arguments) in enumerate(calls):
                if number and between:
                    between()
                results += await client.call_all([ToolCall(f"call_{number}", name, json.dumps(arguments))], CONTEXT)
            return results

    return asyncio.run(run())


def children() -> list[str]:
    return [
        " ".join(child.cmdline())
        for child in psutil.Process().children(recursive=True)
        if {str(FILE), str(READY)} & {*child.cmdline()} and "stdio" in child.cmdline()
    ]


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, url: str, stdio: list[str]) -> dict[str, Any]:
    return {"command": stdio} if request.param == "stdio" else {"url": url}


@pytest.mark.slow
def test_tools_are_listed_and_called(server: dict[str, Any]):
    async def run() -> tuple[list[Any], tuple[ToolResult, ...]]:
        tools = config.Tools.model_validate({"mcp": [{"name": "small", "tools": ["add", "meta", "refuse"], **server}]})
        async with ToolClient(NOWHERE, tools, []) as client:
            calls = [
                ToolCall("c0", "add", '{"a": 2, "b": 3}'),
                ToolCall("c1", "meta", "{}"),
                ToolCall("c2", "refuse", '{"why": "late"}'),
            ]
            calls += [ToolCall("c3", "add", '{"a": "two", "b": 3}'), ToolCall("c4", "sleep", '{"seconds": 0}')]
            return client.schemas, await client.call_all(calls, CONTEXT)

    schemas, results = asyncio.run(run())
    assert [tool["function"]["name"] for tool in schemas] == ["add", "refuse", "meta"]
    assert schemas[0]["function"]["description"] == "The sum."
    assert schemas[0]["function"]["parameters"]["required"] == ["a", "b"]
    assert [result.failed for result in results] == [False] * 5
    assert [result.is_error for result in results] == [False, False, True, True, True]
    assert [result.output for result in results[:2]] == ["5", "trace_7 c1 0"]
    assert "no: late" in results[2].output
    assert results[3].output == 'Error: invalid arguments for add: a: "two" is not of type "integer"'
    assert results[4].output.startswith("Error: unknown tool 'sleep'")  # listed, and not allowed
    assert children() == []


# -- who is to blame -------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_tool_that_crashed_is_retried_and_then_fails(server: dict[str, Any]):
    (result,) = play(server, ("crash", {"why": "canary"}), retries=2)
    assert (result.failed, result.is_error, result.retries) == (True, False, 2)
    assert result.output == "tool crash failed: the tool crashed: Error executing tool crash (3 tries)"
    (below,) = play(server, ("crash_below", {"why": "add"}), retries=0)
    assert (below.failed, "Error executing tool crash_below: Error executing tool add" in below.output) == (True, True)


@pytest.mark.slow
def test_a_crash_that_passes_costs_a_retry(server: dict[str, Any], tmp_path: Path):
    (result,) = play(server, ("crash_once", {"file": str(tmp_path / "met")}))
    assert (result.output, result.failed, result.retries) == ("fine", False, 1)


@pytest.mark.slow
def test_a_tool_that_was_listed_and_is_unknown_fails_at_once(stdio: list[str]):
    _, gone, kept = play(
        {"command": stdio}, ("forget", {"name": "add"}), ("add", {"a": 1, "b": 1}), ("refuse", {"why": "late"})
    )
    assert (gone.failed, gone.is_error, gone.retries) == (True, False, 0)
    assert gone.output == "tool add failed: the server listed add and no longer knows it: Unknown tool: add (1 try)"
    assert (kept.failed, kept.is_error) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Unknown tool: protest", True),
        ("Unknown tool 'protest'", True),
        ("MCP error -32602: Tool protest not found", True),
        ("MCP error -32602: Tool protest disabled", True),
        ("tool not found", True),
        ("Tool not found.", True),
        ("Tool not found: protest", True),
        ("Unknown tool: invalid_tool_name", True),
        ("unknown tool", True),
        ('unknown tool "protest"', True),
        ("Unknown tool: protest. Available tools: add, refuse", True),
        ("UNKNOWN TOOL: protest, expected one of: add, refuse", True),
        ("tool 'protest' not found: tool not found", True),
        ("Unknown tool: hammer", False),
        ("Tool not found: hammer", False),
        ("Unknown tool: protester", False),
        ("Unknown tool: protest-2", False),
        ("Unknown tool: protest.v2", False),
        ("tool 'hammer' not found", False),
        ("Unknown toolbox: protest", False),
        ("text: too short", False),
        ("text names an unknown tool: protest", False),
        ("Invalid arguments: tool not found", False),
        ("Tool protest takes a text; tool protest not found in it", False),
        ("Error executing tool protest: it is closed", False),
    ],
)
def test_a_refusal_by_the_protocol(text: str, failed: bool, stdio: list[str]):
    (result,) = play({"command": stdio}, ("protest", {"text": text}))
    assert (result.failed, result.is_error, result.retries) == (failed, not failed, 0)
    assert text in result.output


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("tool not found", True),
        ("Unknown tool: add. Available tools: a, b", True),
        ("MCP error -32602: Tool add not found", True),
        ("tool 'add' not found: gone", True),
        ("Unknown tool: hammer", False),
        ("a is an unknown tool: add", False),
    ],
)
def test_the_same_words_come_as_a_result(text: str, gone: bool):
    server = SimpleNamespace(secrets=Secrets())
    tool = McpTool(
        server,
        "add",
        http_client.Limits.from_params(config.Tools()),
        http_client.RateLimiter(asyncio.Semaphore(), None),
    )  # type: ignore[arg-type]
    result = CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    if not gone:
        assert tool._read(result) == wire.Outcome(text, is_error=True)
        return
    with pytest.raises(http_client.NoReply, match="the server listed add and no longer knows it") as caught:
        tool._read(result)
    assert caught.value.lasting


@pytest.mark.slow
def test_what_a_tool_raises_for_the_model_is_the_model_s(server: dict[str, Any]):
    refused, misfit = play(
        server, ("refuse", {"why": "late"}), ("add", {"a": "two", "b": 1}), traits={"add": {"validate": False}}
    )
    assert (refused.output, refused.is_error, refused.failed) == ("Error executing tool refuse: no: late", True, False)
    assert (misfit.is_error, misfit.failed, "validation error" in misfit.output) == (True, False, True)


@pytest.mark.slow
def test_all_errors_of_a_tool_may_be_the_policy_s(stdio: list[str]):
    traits = {"crash": {"client_errors": "policy"}, "protest": {"client_errors": "policy"}}
    crashed, unknown = play(
        {"command": stdio}, ("crash", {"why": "x"}), ("protest", {"text": "Unknown tool: protest"}), traits=traits
    )
    assert (crashed.output, crashed.is_error, crashed.failed) == ("Error executing tool crash", True, False)
    assert (unknown.output, unknown.is_error, unknown.failed) == ("Error: Unknown tool: protest", True, False)


# -- two servers -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_prefix_tells_the_tools_of_two_servers_apart(url: str, stdio: list[str]):
    section = config.Tools.model_validate(
        {
            "mcp": [
                {"name": "one", "url": url, "tools": ["add", "refuse"], "prefix": "one_"},
                {"name": "two", "command": stdio, "tools": ["add", "crash"], "prefix": "two."},
                {"name": "three", "command": stdio, "tools": ["add"]},
            ],
            "traits": {"two.crash": {"client_errors": "policy"}, "one_add": {"validate": False}},
        }
    )

    async def run() -> tuple[list[str], tuple[ToolResult, ...]]:
        async with ToolClient(NOWHERE, section, []) as client:
            calls = [
                ToolCall("c0", "one_add", '{"a": "x"}'),
                ToolCall("c1", "two.add", '{"a": 2, "b": 2}'),
                ToolCall("c2", "two.crash", '{"why": "x"}'),
            ]
            return [tool["function"]["name"] for tool in client.schemas], await client.call_all(calls, CONTEXT)

    names, results = asyncio.run(run())
    assert names == ["one_add", "one_refuse", "two.add", "two.crash", "add"]
    assert (results[0].is_error, "Error executing tool add: 2 validation errors" in results[0].output) == (True, True)
    assert [result.output for result in results[1:]] == ["4", "Error executing tool crash"]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["add", "one_ad"])
def test_traits_name_the_offered_tool(key: str, stdio: list[str]):
    with pytest.raises(
        ConfigError, match=rf"tools\.traits\.{key}: there is no tool '{key}'\. Did you mean 'one_add'\?"
    ):
        play({"command": stdio, "tools": ["add"], "prefix": "one_"}, traits={key: {"probe": False}})


@pytest.mark.slow
def test_a_call_ends_at_its_deadline_and_the_next_one_works(server: dict[str, Any]):
    slow, after = play(server, ("sleep", {"seconds": 60}), ("add", {"a": 1, "b": 1}), timeout_s=2.0, retries=0)
    assert (slow.failed, "no reply within tools.timeout_s = 2 s (1 try)" in slow.output) == (True, True)
    assert (after.output, after.failed) == ("2", False)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1001, 100_000])  # measured after it came, and cut on the way
def test_a_large_result_is_a_413_to_the_policy(server: dict[str, Any], size: int):
    (cut, whole) = play(server, ("much", {"size": size}), ("much", {"size": 1000}), max_reply_bytes=1000)
    assert (cut.output, cut.is_error, cut.failed) == (
        "Error 413: the reply is larger than 1000 bytes. Ask for less.",
        True,
        False,
    )
    assert whole.output == "x" * 1000


@pytest.mark.slow
def test_an_unknown_tool_in_the_allow_list():
    with pytest.raises(
        ConfigError, match=r"tools\.mcp, small\): tools = \['ad'\]: the server has no such tools. It has \['add', "
    ):
        play({"command": STDIO, "tools": ["ad"]})
    assert children() == []


@pytest.mark.slow
def test_environment_values_are_secrets(monkeypatch: pytest.MonkeyPatch, stdio: list[str]):
    monkeypatch.setenv("KEY_OF_TEST", "canary-4711")
    (told,) = play({"command": stdio, "env": {"GIVEN": "env:KEY_OF_TEST"}}, ("environment", {"name": "GIVEN"}))
    assert told.output == "[secret KEY_OF_TEST]"


@pytest.mark.slow
def test_a_process_that_dies_is_started_again():
    died, after = play({"command": STDIO}, ("die", {"code": 3}), ("add", {"a": 1, "b": 1}), retries=1)
    assert (died.failed, died.retries, "2 tries" in died.output) == (True, 1, True)
    assert after.output == "2"
    assert children() == []


@pytest.mark.parametrize(
    "command",
    [["no-such-program-anywhere"], [sys.executable, "-c", "import sys; sys.exit('the index is missing')"]],
    ids=["none", "ends"],
)
def test_a_command_that_is_no_server(command: list[str]):
    with pytest.raises(
        InfrastructureError, match=r"\(tools\.mcp, small\): the MCP server cannot be used: .*"
    ) as caught:
        play({"command": command})
    assert ("the index is missing" in str(caught.value)) == (len(command) > 1)


def test_a_server_that_is_down():
    with pytest.raises(InfrastructureError, match=r"the MCP server cannot be used: ConnectError"):
        play({"url": "http://127.0.0.1:1/mcp"})


def test_a_refused_key(url: str):
    with pytest.raises(
        InfrastructureError, match=r"refuses our key \(HTTP 401\). Fix the headers in params.yaml \(tools.mcp, small\)"
    ):
        play({"url": url, "headers": {"Authorization": "Bearer wrong"}})


@pytest.mark.parametrize(("breaks", "tries"), [("500", 2), ("cut,500", 3), ("html", 2)])
def test_what_the_transport_lost_is_retried(url: str, breaks: str, tries: int):
    (result,) = play({"url": url, "headers": {"X-Break": breaks}}, ("meta", {}))
    assert (result.output, result.failed, result.retries) == (f"trace_7 call_0 {tries - 1}", False, tries - 1)


@pytest.mark.slow
def test_one_broken_exchange_leaves_its_neighbours_alone(url: str):
    async def run() -> tuple[ToolResult, ...]:
        tools = config.Tools.model_validate(
            {"mcp": [{"name": "small", "url": url, "headers": {"X-Break": "fine,cut"}}]}
        )
        async with ToolClient(NOWHERE, tools, []) as client:
            slow = asyncio.create_task(client.call(ToolCall("c0", "sleep", '{"seconds": 2}'), CONTEXT))
            await asyncio.sleep(1)
            return await client.call(ToolCall("c1", "meta", "{}"), CONTEXT), await slow

    cut, slow = asyncio.run(run())
    assert (cut.output, cut.retries) == ("trace_7 c1 1", 1)
    assert (slow.output, slow.retries) == ("slept", 0)


def test_what_stays_broken_fails_the_call(url: str):
    (result,) = play({"url": url, "headers": {"X-Break": "500,500"}}, ("add", {"a": 1, "b": 1}), retries=1)
    assert (result.failed, result.output) == (True, "tool add failed: HTTP 500 (2 tries)")


def test_requests_carry_headers_and_a_signature(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEY_OF_TEST", "Bearer canary-4711")
    play(
        {"url": url, "headers": {"Authorization": "env:KEY_OF_TEST"}},
        ("add", {"a": 1, "b": 1}),
        signing_secret="whsec_c2VjcmV0IG9mIHRoZSB0ZXN0",
    )
    seen = httpx.get(url.replace("/mcp", "/seen"), trust_env=False).text
    assert "'authorization': 'Bearer canary-4711'" in seen
    assert "'webhook-signature': 'v1," in seen


@pytest.mark.slow
def test_a_server_that_died_fails_its_calls(tmp_path: Path):
    process, address = _start(tmp_path, "json")

    def kill() -> None:
        process.kill()
        process.wait()

    before, after = play({"url": address}, *[("add", {"a": 1, "b": 1})] * 2, between=kill, retries=1)
    assert before.output == "2"
    assert (after.failed, "ConnectError" in after.output) == (True, True)


def test_two_tools_of_one_name(url: str):
    section = config.Tools.model_validate(
        {"mcp": [{"name": "one", "url": url, "tools": ["add"]}, {"name": "two", "url": url}]}
    )

    async def enter() -> None:
        async with ToolClient(NOWHERE, section, []):
            pass

    with pytest.raises(
        ConfigError,
        match=r"two tools are called 'add': one from tools.mcp one, one from tools.mcp two\. .* tools\.mcp\[\]\.prefix",
    ):
        asyncio.run(enter())


LISTING = """
import json, sys
LISTED = [
    {"name": "no_type", "inputSchema": {"properties": {"query": {}}}},
    {"name": "empty", "inputSchema": {}},
    {"name": "pattern", "inputSchema": {"type": "object", "properties": {"a": {"pattern": r"^[\\p{L}]+$"}}}},
    {"name": "lies", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "required": ["b"]}},
    {"name": "dangles", "inputSchema": {"type": "object"},
     "outputSchema": {"type": "object", "properties": {"s": {"$ref": "#/$defs/S"}}, "required": ["s"]}},
]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"content": [{"type": "text", "text": "Porto"}], "structuredContent": {"s": 1}}
    known = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "odd", "version": "1"}},
             "tools/list": {"tools": LISTED}, "tools/call": answer}
    found = known.get(asked["method"])
    reply = {"result": found} if found else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
"""


def test_one_odd_schema_takes_no_other_tool_away_and_what_is_said_is_read():
    names = ["no_type", "empty", "pattern", "lies", "dangles"]
    results = play({"command": [sys.executable, "-c", LISTING]}, *((name, {}) for name in names))
    assert [(result.output, result.failed) for result in results] == [("Porto", False)] * len(names)


def test_a_server_without_initialize_is_used_all_the_same():
    """OpenEnv's POST /mcp knows two methods, and answers results in words of its own."""
    tool = {"name": "add", "description": "The sum.", "inputSchema": {"type": "object"}}
    asked: list[str] = []

    async def mcp(request: web.Request) -> web.Response:
        given = await request.json()
        asked.append(given["method"])
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": given.get("id")}
        if given["method"] == "tools/list":
            reply["result"] = {"tools": [{**tool, "outputSchema": {"type": "object", "required": ["result"]}}]}
        elif given["method"] == "tools/call":
            content = [{"type": "text", "text": "5"}]
            reply["result"] = {"content": content, "structured_content": {"result": 5}, "is_error": False}
        else:
            reply["error"] = {"code": -32601, "message": f"Method not found: {given['method']}", "data": None}
        return web.json_response(reply)

    async def run() -> list[ToolResult]:
        app = web.Application()
        app.router.add_post("/mcp", mcp)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        tools = config.Tools.model_validate({"mcp": [{"name": "env", "url": address}], "retries": 0})
        try:
            async with ToolClient(NOWHERE, tools, []) as client:
                return [*await client.call_all([ToolCall("c0", "add", "{}")], CONTEXT)]
        finally:
            await runner.cleanup()

    [result] = asyncio.run(run())
    assert (result.output, result.is_error, result.failed) == ("5", False, False)
    assert "initialize" in asked
