"""The policy's calls over a real socket: what it sees, what is retried, what stops the stage."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from aiohttp import web
from scripted_server import Answer, Scripted, says, scripted, writes
from scripted_tools import CONTEXT, IN_BERN, ITEM, OK, ROW_TOOL, SCHEMAS, TOWN, WEATHER, context, one, play, rft_headers, search_call, settings

from rft import config, wire
from rft.errors import ConfigError, InfrastructureError
from rft.tools import ToolClient
from rft.types import StopReason, ToolCall, ToolResult
from rft.wire import ToolEndpoint


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BACKOFF_S", 0.001)


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
    assert (sent["Authorization"], sent["X-Tenant"], sent["Content-Type"]) == ("Bearer k", "7", "application/json")
    assert rft_headers(server, 0) == {"Trace-Id": "trace_1", "Step": "3", "Split": "train", "Attempt": "1"}


@pytest.mark.parametrize(
    ("reply", "output"),
    [
        ({"type": "function_call_output", "call_id": "call_0_0", "id": "f", "output": " I10"}, " I10"),
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
    _, server = play(writes('{"output": "x"}', headers={"Set-Cookie": "patient=7"}), calls=[search_call(0), search_call(1)], concurrency=1)
    assert [headers.get("Cookie") for headers in server.headers] == [None, None]


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
def test_a_lasting_trouble_fails_thesearch_call(answer: Answer, reason: str):
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


def test_a_reply_to_another_call_is_retried_then_fails():
    other, right = says({"call_id": "call_9_9", "output": "theirs"}), says({"call_id": "call_0_0", "output": "mine"})
    assert one(other, right)[0].output == "mine"
    assert one(says({"call_id": "call_9_9", "output": "theirs"}, 404), right)[0].output == "mine"
    result, server = one(other)
    assert (result.failed, len(server.bodies), "theirs" in result.output) == (True, 4, False)


def test_a_body_shorter_than_it_says_is_retried():
    async def short(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"output": ')
        assert request.transport is not None
        request.transport.close()
        return response

    result, server = one(short, OK)
    assert (result.output, result.retries, len(server.bodies)) == ("fine", 1, 2)


@pytest.mark.parametrize(("value", "least"), [("1", 1.0), ("999999999", 0.2), ("soon", 0.0)])
def test_retry_after_is_heard_within_bounds(monkeypatch: pytest.MonkeyPatch, value: str, least: float):
    monkeypatch.setattr(wire, "LONGEST_RETRY_AFTER_S", min(1.0, least or 1.0))
    result, _ = one(writes("busy", 503, headers={"Retry-After": value}), OK)
    assert (result.output, result.retries, result.latency_s >= least) == ("fine", 1, True)


def test_retry_after_may_be_a_date():
    assert wire.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert wire.retry_after("Fri, 21 Oct 2999 07:28:00 GMT") > 1e9
    assert [wire.retry_after(value) for value in (None, "", "-3", "1e9", "7")] == [0, 0, 0, 0, 7]


def test_retries_are_counted_also_in_a_failure():
    result, _ = one(says({}, 500), retries=2)
    assert (result.failed, result.retries) == (True, 2)


def test_what_the_policy_made_too_large_is_a_413_to_it():
    result, server = one(OK, arguments=json.dumps({"query": "x" * 2000}), max_request_bytes=1500)
    assert result.output == "Error 413: the request is larger than 1500 bytes. Send less."
    assert (result.is_error, result.failed, server.bodies) == (True, False, [])
    assert one(OK, arguments=json.dumps({"query": "é" * 200}), max_request_bytes=1500)[0].is_error  # as JSON each is six bytes


def test_a_row_that_is_too_large_is_the_owner_s():
    with pytest.raises(ConfigError, match=r"example 'n-1': a request with its row takes \d+ bytes, and tools.max_request_bytes is 1500"):
        one(OK, context=context({**ITEM, "note": "x" * 1500}), max_request_bytes=1500)


def test_a_rate_limit_spaces_the_requests_of_one_tool():
    times: list[float] = []

    async def note(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        return web.json_response({"output": ""})

    play(note, calls=[search_call(n) for n in range(6)], rate_limit=20)
    assert times[-1] - times[0] >= 5 / 20 * 0.9
    times.clear()
    slow = {"name": "search", "server_url": "{server}/mine", "rate_limit": 20}
    play(note, calls=[search_call(n) for n in range(6)], rate_limit=100_000, endpoints=[slow])
    assert times[-1] - times[0] >= 5 / 20 * 0.9


# -- tools of other places -------------------------------------------------------------------------------------------------
def test_an_endpoint_has_its_own_address_headers_and_limits():
    endpoint = {**WEATHER, "parameters": TOWN, "max_reply_bytes": 30}
    result, server = one(says({"output": "x" * 50}), calls=[IN_BERN], headers={"Authorization": "Bearer ours"}, endpoints=[endpoint])
    assert (server.paths, server.headers[0]["X-Tenant"], "Authorization" in server.headers[0]) == (["/elsewhere"], "9", False)
    assert result.output == "Error 413: the reply is larger than 30 bytes. Ask for less."


def test_an_endpoint_has_its_own_deadline():
    async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    result, _ = one(hang, calls=[IN_BERN], endpoints=[{**WEATHER, "parameters": TOWN, "timeout_s": 0.1}], retries=0)
    assert "no reply within tools.endpoints.weather.timeout_s = 0.1 s" in result.output


def test_an_endpoint_takes_a_recipe_tool_s_place():
    async def run() -> tuple[list[Any], list[str]]:
        async with scripted(OK) as server:
            section = {"endpoints": [{"name": "search", "server_url": "{server}/mine"}, {**WEATHER, "parameters": TOWN}]}
            async with ToolClient(server.endpoint, settings(section, server), SCHEMAS) as client:
                await client.call_all([search_call(0)], CONTEXT)
                return client.schemas, server.paths

    schemas, paths = asyncio.run(run())
    assert paths == ["/mine"]
    assert schemas[:2] == SCHEMAS  # with the recipe's schema, as it declares none
    assert schemas[2]["function"] == {"name": "weather", "description": "Of a town.", "parameters": TOWN}


def test_a_row_s_tools_win():
    rows = [{**ROW_TOOL}, {"type": "function", "function": {"name": "search", "parameters": {"properties": {"query": {"type": "integer"}}}}}]
    ours = context({**ITEM, "tools": rows})
    calls = [IN_BERN, ToolCall("call_0_1", "search", '{"query": 3}'), search_call(2), ToolCall("call_0_3", "lookup", '{"code": "I10"}')]
    results, server = play(OK, calls=calls, context=ours, endpoints=[WEATHER])
    assert sorted(server.paths) == ["/elsewhere", "/tools/search"]
    assert [result.is_error for result in results] == [False, False, True, True]
    assert "'q2' is not of type 'integer'" in results[2].output
    assert results[3].output == "Error: unknown tool 'lookup'; known tools: weather, search"
    assert one(OK, calls=[IN_BERN], endpoints=[WEATHER])[0].is_error  # without a row nobody says what its arguments are


def test_a_schema_of_the_job_that_is_none():
    with pytest.raises(ConfigError, match=r"tools.endpoints: the parameters of tool 'weather' are no JSON schema"):
        one(OK, endpoints=[{**WEATHER, "parameters": {"type": 7}}])


@pytest.mark.parametrize("key", ["server_url", "start_url", "end_url"])
def test_addresses_that_are_none(key: str):
    section = {"endpoints": [{**WEATHER, "server_url": "weather.example"}]} if key == "server_url" else {"lifecycle": {key: "weather.example"}}
    with pytest.raises(ConfigError, match=f"{key} = 'weather.example' is no HTTP address"):
        one(OK, **section)


def test_two_endpoints_of_one_name():
    with pytest.raises(ConfigError, match=r"two tools are called 'weather': one of tools.endpoints, one of tools.endpoints"):
        one(OK, endpoints=[WEATHER, WEATHER])


# -- a rollout's life ------------------------------------------------------------------------------------------------------
def live(*answers: Answer, **section: Any) -> tuple[str | None, Scripted]:
    async def run() -> tuple[str | None, Scripted]:
        async with scripted(*answers) as server:
            section.setdefault("lifecycle", {"start_url": "{server}/start", "end_url": "{server}/end", "headers": {"X-Tenant": "9"}})
            async with ToolClient(server.endpoint, settings(section, server), SCHEMAS) as client:
                failure = await client.start(CONTEXT)
                await client.end(CONTEXT, StopReason.max_turns)
                return failure, server

    return asyncio.run(run())


def test_a_rollout_s_start_and_end_are_told():
    failure, server = live(writes("", 204))
    assert (failure, server.paths) == (None, ["/start", "/end"])
    assert server.bodies == [{"trace_id": "trace_1", "item": ITEM}, {"trace_id": "trace_1", "stop_reason": "max_turns"}]
    assert [headers["X-Tenant"] for headers in server.headers] == ["9", "9"]
    assert rft_headers(server, 1) == {"Trace-Id": "trace_1", "Step": "3", "Split": "train", "Attempt": "1"}


def test_a_start_that_fails_is_told_and_an_end_is_logged(caplog: pytest.LogCaptureFixture):
    failure, server = live(says({"error": "no room"}, 503), retries=1)
    assert failure == 'tools.lifecycle.start_url failed: HTTP 503: {"error": "no room"} (2 tries)'
    assert server.paths == ["/start"] * 2 + ["/end"] * 2
    assert "tools.lifecycle.end_url failed for trace_1: HTTP 503" in caplog.text


def test_a_refused_key_at_the_end_changes_nothing(caplog: pytest.LogCaptureFixture):
    failure, _ = live(writes(""), writes("no", 401))
    assert failure is None
    assert "refuses our key (HTTP 401: no). Mend the headers in params.yaml (tools.lifecycle)" in caplog.text


def test_no_lifecycle_no_request():
    assert live(OK, lifecycle={})[1].paths == []


def test_a_dead_server_of_others_fails_thesearch_call():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    async def run() -> ToolResult:
        async with ToolClient(ToolEndpoint(url), config.Tools(), SCHEMAS) as client:
            return await client.call(search_call(0), CONTEXT)

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

    results, _ = play(meet, calls=[search_call(n) for n in range(8)])
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

    play(count, calls=[search_call(n) for n in range(12)], concurrency=3)
    assert live[1] == 3


def test_a_client_may_be_opened_again_in_another_event_loop():
    async def run(client: ToolClient | None) -> ToolClient:
        async with scripted(OK) as server:
            client = client or ToolClient(server.endpoint, config.Tools(concurrency=1, retries=0), SCHEMAS)
            async with client:
                await client.call_all([search_call(n) for n in range(3)], CONTEXT)
        return client

    asyncio.run(run(asyncio.run(run(None))))


def test_one_bad_call_does_not_spoil_its_neighbours():
    results, _ = play(OK, calls=[search_call(0), ToolCall("call_0_1", "serach", "{}"), search_call(2)])
    assert [result.is_error for result in results] == [False, True, False]
