"""The policy's calls over a real socket: what it sees, what is retried, what stops the stage."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scripted_server import Answer, Scripted, says, scripted, writes

from rft import config, toolserver, wire
from rft.errors import ConfigError, InfrastructureError
from rft.tools import ToolClient
from rft.types import ToolCall, ToolResult
from rft.wire import ToolEndpoint

ITEM = {"id": "n-1", "messages": [], "target": ["I10"], "metadata": {}}


def search(query: str, k: int = 3) -> str:
    """Find codes."""
    return query * k


def lookup(code: str) -> str:
    """The description of a code."""
    return code


SCHEMAS = [toolserver.schema(search), toolserver.schema(lookup)]
OK = says({"output": "fine"})


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BACKOFF_S", 0.001)


def play(
    *answers: Answer,
    calls: Sequence[ToolCall] | None = None,
    arguments: str = '{"query": "angina"}',
    defaults: dict[str, dict[str, Any]] | None = None,
    headers: dict[str, str] | None = None,
    names: list[str] | None = None,
    **section: Any,
) -> tuple[list[ToolResult], Scripted]:
    """One turn's calls against a server that answers by script."""

    async def run() -> tuple[list[ToolResult], Scripted]:
        tools = config.Tools(**section)
        async with scripted(*answers, headers=headers) as server, ToolClient(server.endpoint, tools, SCHEMAS, names) as client:
            mine = calls or [ToolCall("call_0_0", "search", arguments)]
            return list(await client.call_all(mine, "trace_1", ITEM, defaults)), server

    return asyncio.run(run())


def one(*answers: Answer, **more: Any) -> tuple[ToolResult, Scripted]:
    results, server = play(*answers, **more)
    return results[0], server


# -- the wire --------------------------------------------------------------------------------------------------------------
def test_the_body_is_the_contract_s():
    result, server = one(OK, headers={"Authorization": "Bearer k", "X-Tenant": "7"})
    assert (result.call_id, result.output, result.is_error, result.failed) == ("call_0_0", "fine", False, False)
    assert result.latency_s > 0
    assert server.paths == ["/tools/search"]
    assert server.bodies == [
        {
            "type": "function_call",
            "id": "fc_call_0_0",
            "call_id": "call_0_0",
            "name": "search",
            "arguments": '{"query": "angina"}',
            "trace_id": "trace_1",
            "item": ITEM,
        }
    ]
    sent = server.headers[0]
    assert (sent["Authorization"], sent["X-Tenant"], sent["X-RFT-Trace-Id"]) == ("Bearer k", "7", "trace_1")


@pytest.mark.parametrize(
    ("reply", "output"),
    [
        ({"type": "function_call_output", "call_id": "c", "id": "f", "output": " I10"}, " I10"),
        ({"result": {"output": "nested"}}, "nested"),
        ({"output": ["I10", {"é": 1}]}, '["I10", {"é": 1}]'),
        ({"output": None}, "null"),
        ({"output": "lone \ud800 surrogate"}, "lone ? surrogate"),
        ({"output": ""}, ""),
    ],
)
def test_replies_are_read_leniently(reply: Any, output: str):
    assert one(says(reply))[0].output == output


def test_cookies_do_not_travel_between_rollouts():
    _, server = play(writes('{"output": "x"}', headers={"Set-Cookie": "patient=7"}), calls=[_call(0), _call(1)], concurrency=1)
    assert [headers.get("Cookie") for headers in server.headers] == [None, None]


# -- arguments -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"query": "a"}', {"query": "a", "k": 5}),
        ('{"query": "a", "k": 1}', {"query": "a", "k": 1}),
    ],
)
def test_defaults_fill_only_what_is_missing(arguments: str, sent: dict[str, Any]):
    _, server = one(OK, arguments=arguments, defaults={"search": {"k": 5}, "lookup": {}})
    assert json.loads(server.bodies[0]["arguments"]) == sent


def test_a_default_does_not_excuse_a_required_argument():
    result, _ = one(OK, arguments="{}", defaults={"search": {"query": "all"}})
    assert result.output == "Error: invalid arguments for search: arguments: 'query' is a required property"


@pytest.mark.parametrize("defaults", [{"serach": {"k": 5}}, {"search": {"top": 5}}])
def test_a_default_that_no_tool_has_is_an_error(defaults: dict[str, dict[str, Any]]):
    with pytest.raises(ConfigError, match="tool_defaults"):
        one(OK, defaults=defaults)


def test_names_narrow_what_may_be_called():
    result, server = one(OK, names=["lookup"])
    assert result.output == "Error: unknown tool 'search'; known tools: lookup"
    assert server.bodies == []
    with pytest.raises(ConfigError, match=r"tools \['serach'\] have no schema"):
        one(OK, names=["serach"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "the arguments of search are not JSON"),
        ('{"query": "a", "k": NaN}', "the arguments of search are not JSON"),
        ("[" * 100_000, "the arguments of search are not JSON"),
        ('{"query": "a", "k": ' + "9" * 5000 + "}", "the arguments of search are not JSON"),
        ('["angina"]', "the arguments of search must be a JSON object"),
        ('{"query": "a", "k": "3"}', "invalid arguments for search: k: '3' is not of type 'integer'"),
        ('{"query": 3}', "invalid arguments for search: query: 3 is not of type 'string'"),
        (
            '{"query": "a", "colour": 1}',
            "invalid arguments for search: arguments: Additional properties are not allowed ('colour' was unexpected)",
        ),
        ("{}", "invalid arguments for search: arguments: 'query' is a required property"),
    ],
)
def test_bad_arguments_are_shown_and_never_sent(arguments: str, problem: str):
    result, server = one(OK, arguments=arguments)
    assert (result.output, result.is_error, result.failed) == (f"Error: {problem}", True, False)
    assert server.bodies == []


def test_a_problem_is_short():
    assert len(one(OK, arguments=json.dumps({"query": ["x" * 10_000]}))[0].output) < 300


def test_an_unknown_tool_is_shown():
    result, _ = one(OK, calls=[ToolCall("c", "n" * 1000, "{}")])
    assert result.is_error
    assert "known tools: search, lookup" in result.output
    assert len(result.output) < 300


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=5
)


@hypothesis_settings(max_examples=60)
@given(arguments=st.one_of(st.text(), values.map(json.dumps), st.fixed_dictionaries({"query": values}, optional={"k": values}).map(json.dumps)))
def test_whatever_the_policy_writes_is_answered(arguments: str):
    """Never an exception, never an outage; what leaves fits the schema."""
    result, server = one(OK, arguments=arguments)
    assert not result.failed
    assert result.is_error != bool(server.bodies)
    for body in server.bodies:
        sent = json.loads(body["arguments"])
        assert isinstance(sent["query"], str)
        assert set(sent) <= {"query", "k"}


# -- who is to blame -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (says({"output": "no such code: X"}, 400), "no such code: X"),
        (says({"detail": "gone"}, 404), '{"detail": "gone"}'),
        (writes("not yours", 403), "not yours"),
    ],
)
def test_a_4xx_is_shown_at_once(answer: Answer, output: str):
    result, server = one(answer)
    assert (result.output, result.is_error, result.failed, len(server.bodies)) == (output, True, False, 1)


@pytest.mark.parametrize(
    "trouble", [says({"error": "bug"}, 500), writes("<h1>bad gateway</h1>", 502), says({}, 429), says({}, 408), writes("<html>")]
)
def test_a_passing_trouble_is_retried_under_the_same_call_id(trouble: Answer):
    result, server = one(trouble, trouble, OK)
    assert (result.output, result.is_error, result.failed) == ("fine", False, False)
    assert [body["call_id"] for body in server.bodies] == ["call_0_0"] * 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says({"error": "RuntimeError: a bug"}, 500), 'HTTP 500: {"error": "RuntimeError: a bug"} (4 tries)'),
        (writes("<html>\n  Sign in"), "the reply is not JSON: <html> Sign in (4 tries)"),
        (says({"answer": 1}), """the reply has no 'output': {"answer": 1} (4 tries)"""),
        (says("text"), """the reply has no 'output': "text" (4 tries)"""),
    ],
)
def test_a_lasting_trouble_fails_the_call(answer: Answer, reason: str):
    result, server = one(answer)
    assert (result.output, result.is_error, result.failed) == (f"tool search failed: {reason}", False, True)
    assert len(server.bodies) == 4


def test_retries_are_a_setting():
    result, server = one(says({}, 503), retries=0)
    assert (result.failed, len(server.bodies), result.output.endswith("(1 try)")) == (True, 1, True)


def test_a_hang_ends_at_the_deadline():
    async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    result, server = one(hang, timeout_s=0.1, retries=1)
    assert (result.failed, len(server.bodies)) == (True, 2)
    assert "no reply within tools.timeout_s = 0.1 s" in result.output


def test_a_body_that_trickles_for_ever_ends_at_the_deadline():
    async def trickle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    assert one(trickle, timeout_s=0.2, retries=0)[0].failed


def test_a_connection_cut_in_the_middle_is_retried():
    async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    result, server = one(cut, OK)
    assert (result.output, len(server.bodies)) == ("fine", 2)


def test_an_oversized_reply_is_a_413_to_the_policy():
    result, server = one(says({"output": "x" * 5000}), max_reply_bytes=1000)
    assert result.output == "Error 413: the reply is larger than 1000 bytes. Ask for less."
    assert (result.is_error, result.failed, len(server.bodies)) == (True, False, 1)
    assert one(says({"output": "x" * 986}), max_reply_bytes=1000)[0].output == "x" * 986  # exactly at the limit


def test_redirects_are_not_followed():
    result, server = one(writes("", 307, headers={"Location": "/elsewhere"}), retries=0)
    assert result.failed
    assert "HTTP 307 redirects to /elsewhere; redirects are not followed" in result.output
    assert server.paths == ["/tools/search"]


def test_a_refused_key_stops_the_stage():
    with pytest.raises(InfrastructureError, match=r"refuses our key \(HTTP 401: no\)\. Mend the headers in params\.yaml \(tools\.headers\)"):
        one(writes("no", 401))


def test_a_dead_server_of_others_fails_the_call():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    async def run() -> ToolResult:
        async with ToolClient(ToolEndpoint(url), config.Tools(), SCHEMAS) as client:
            return await client.call(_call(0), "trace_1", ITEM)

    result = asyncio.run(run())
    assert (result.failed, "Cannot connect" in result.output) == (True, True)


# -- several calls ---------------------------------------------------------------------------------------------------------
def test_calls_of_a_turn_run_side_by_side_and_are_answered_in_order():
    arrived: list[str] = []
    together = asyncio.Event()

    async def meet(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        arrived.append(body["call_id"])
        if len(arrived) == 8:
            together.set()
        await together.wait()
        return web.json_response({"output": json.loads(body["arguments"])["query"]})

    results, _ = play(meet, calls=[_call(n) for n in range(8)])
    assert [result.output for result in results] == [f"q{n}" for n in range(8)]
    assert [result.call_id for result in results] == [f"call_0_{n}" for n in range(8)]


def test_concurrency_is_a_limit():
    live: list[int] = [0, 0]

    async def count(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        live[0] += 1
        live[1] = max(live)
        await asyncio.sleep(0.01)
        live[0] -= 1
        return web.json_response({"output": ""})

    play(count, calls=[_call(n) for n in range(12)], concurrency=3)
    assert live[1] == 3


def test_a_client_may_be_opened_again_in_another_event_loop():
    async def run(client: ToolClient | None) -> ToolClient:
        async with scripted(OK) as server:
            client = client or ToolClient(server.endpoint, config.Tools(concurrency=1, retries=0), SCHEMAS)
            async with client:
                await client.call_all([_call(n) for n in range(3)], "trace_1", ITEM)
        return client

    asyncio.run(run(asyncio.run(run(None))))


def test_one_bad_call_does_not_spoil_its_neighbours():
    results, _ = play(OK, calls=[_call(0), ToolCall("call_0_1", "serach", "{}"), _call(2)])
    assert [result.is_error for result in results] == [False, True, False]


def _call(n: int) -> ToolCall:
    return ToolCall(f"call_0_{n}", "search", json.dumps({"query": f"q{n}"}))
