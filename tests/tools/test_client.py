"""The policy's calls over a real socket: what it sees, what is retried, what stops the stage."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from scripted_server import Answer, Scripted, says, scripted, writes
from scripted_tools import (
    CONTEXT,
    IN_BERN,
    ITEM,
    OK,
    ROW_TOOL,
    SCHEMAS,
    TOWN,
    WEATHER,
    context,
    one,
    play,
    rft_headers,
    search_call,
    settings,
)

from rft import config
from rft.errors import ConfigError, InfrastructureError
from rft.tools.client import ToolClient
from rft.types import StopReason, ToolCall, ToolResult
from rft.wire import client as http_client
from rft.wire.client import ToolEndpoint
from tests import tiny_recipe


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.001)


# -- the wire --------------------------------------------------------------------------------------
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
        ({"call_id": "", "output": "without a call_id"}, "without a call_id"),
        ({"call_id": "call_9_9", "output": "with one of its own"}, "with one of its own"),
        ({"call_id": 7, "output": "a number"}, "a number"),
    ],
)
def test_replies_are_read_leniently(reply: Any, output: str):
    assert one(says(reply))[0].output == output


def test_cookies_do_not_travel_between_rollouts():
    _, server = play(
        writes('{"output": "x"}', headers={"Set-Cookie": "patient=7"}),
        calls=[search_call(0), search_call(1)],
        concurrency=1,
    )
    assert [headers.get("Cookie") for headers in server.headers] == [None, None]


# -- who is to blame -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (says({"output": "no such code: X"}, 400), "no such code: X"),
        (says({"detail": "too long"}, 422), '{"detail": "too long"}'),
        (writes("no such thing", 400), "no such thing"),
        (says({"output": "no such file: a.txt"}, 404), "no such file: a.txt"),
        (says({"result": {"output": "not yours"}}, 403), "not yours"),
    ],
)
def test_a_4xx_is_shown_at_once(answer: Answer, output: str):
    result, server = one(answer)
    assert (result.output, result.is_error, result.failed, len(server.bodies)) == (output, True, False, 1)


@pytest.mark.parametrize("status", [403, 404, 405, 407, 410])
@pytest.mark.parametrize("body", ['{"detail": "Not Found"}', "<h1>no</h1>", ""])
def test_a_4xx_of_the_server_s_own_fails_the_call_at_once(status: int, body: str):
    result, server = one(writes(body, status))
    assert (result.failed, result.is_error, result.retries, len(server.bodies)) == (True, False, 0, 1)
    assert f"tool search failed: HTTP {status} without an 'output': {body}" in result.output
    assert "declare client_errors: policy for search (1 try)" in result.output


def test_an_oversized_404_is_the_server_s():
    result, server = one(writes("x" * 5000, 404), max_reply_bytes=1000)
    assert (result.failed, result.is_error, len(server.bodies)) == (True, False, 1)


def test_a_tool_may_mean_the_policy_by_a_bare_404():
    endpoint = {**WEATHER, "parameters": TOWN, "client_errors": "policy"}
    result, _ = one(says({"detail": "no such town"}, 404), calls=[IN_BERN], endpoints=[endpoint])
    assert (result.output, result.is_error, result.failed) == ('{"detail": "no such town"}', True, False)
    result, _ = one(writes("no", 403), traits={"search": {"client_errors": "policy"}})
    assert (result.output, result.is_error, result.failed) == ("no", True, False)
    assert one(writes("no", 403), traits={"lookup": {"client_errors": "policy"}})[0].failed


@pytest.mark.parametrize(
    "trouble",
    [says({"error": "bug"}, 500), writes("<h1>bad gateway</h1>", 502), says({}, 429), says({}, 408), writes("<html>")],
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


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_other_redirects_are_not_followed(status: int):
    result, server = one(writes("", status, headers={"Location": "/elsewhere"}))
    assert result.failed
    assert f"HTTP {status} redirects to /elsewhere; only a 303 on the same host is followed" in result.output
    assert server.paths == ["/tools/search"], "and a tool that may have run is not asked again"


def sees(location: str, **headers: str) -> Answer:
    """The reply will be there; `{port}` is this server's."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(
            status=303, headers={"Location": location.replace("{port}", str(request.url.port)), **headers}
        )

    return answer


def test_a_303_is_followed_by_get_with_the_same_headers():
    keys = {"Authorization": "Bearer k", "content-type": "application/json"}
    signed = {"signing_secret": "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="}
    result, server = one(sees("../later?call=1#top"), sees("http://127.0.0.1:{port}/done"), OK, headers=keys, **signed)
    assert (result.output, result.failed, result.retries) == ("fine", False, 0)
    assert (server.methods, server.paths) == (["POST", "GET", "GET"], ["/tools/search", "/later", "/done"])
    assert server.raw[1:] == [b"", b""]
    for sent in server.headers:
        assert sent["Authorization"] == "Bearer k"
    assert [rft_headers(server, n) for n in (1, 2)] == [rft_headers(server, 0)] * 2
    of_the_body = {"content-type", "webhook-id", "webhook-timestamp", "webhook-signature"}
    assert [of_the_body & {name.lower() for name in sent} for sent in server.headers] == [of_the_body, set(), set()]


@pytest.mark.parametrize(
    "location",
    [
        *(
            "http://localhost:{port}/x",
            "http://127.0.0.1:1/x",
            "https://127.0.0.1:{port}/x",
            "http://u:p@127.0.0.1:{port}/x",
            "//example.org/x",
        ),
        *("http://[x", "http://127.0.0.1:x/", ""),
    ],
)
def test_a_303_to_another_place_is_not_followed(location: str):
    result, server = one(sees(location))
    assert (result.failed, len(server.paths)) == (True, 1)
    expected = location.replace("{port}", server.endpoint.url.rpartition(":")[2]) or "?"
    assert f"HTTP 303 redirects to {expected}; only a 303 on the same host is followed (1 try)" in result.output


@pytest.mark.parametrize("trouble", [says({}, 500), says({}, 429), writes("<html>"), says({"answer": 1})])
def test_after_a_303_only_its_address_is_asked_again(trouble: Answer):
    result, server = one(sees("/later"), trouble, OK)
    assert (result.output, result.retries) == ("fine", 1)
    assert (server.methods, server.paths) == (["POST", "GET", "GET"], ["/tools/search", "/later", "/later"])
    assert server.headers[2]["X-RFT-Retry"] == "1"


def test_a_303_that_leads_nowhere_ends_with_the_deadline():
    result, server = one(sees("/round"), retries=1, timeout_s=0.3)
    assert (result.failed, server.methods.count("POST"), len(server.methods) > 4) == (True, 1, True)
    assert "no reply within tools.timeout_s = 0.3 s" in result.output


def test_a_303_is_followed_for_as_long_as_the_deadline_lasts(monkeypatch: pytest.MonkeyPatch):
    """A platform that answers 303 at once and has the result much later; askings become rarer, and
    are not counted."""
    monkeypatch.setattr(http_client, "LONGEST_HOP_S", 0.002)
    result, server = one(*[sees("/later")] * 60, OK)
    assert (result.output, result.retries, server.methods.count("POST"), len(server.methods)) == ("fine", 0, 1, 61)


def test_a_303_and_what_follows_share_the_deadline_of_a_try():
    async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await sees("/on")(request, body)

    result, server = one(hang, timeout_s=0.5, retries=0)
    assert (result.failed, "no reply within tools.timeout_s = 0.5 s" in result.output, len(server.methods)) == (
        True,
        True,
        2,
    )


@pytest.mark.slow
def test_a_303_may_ask_for_a_pause():
    result, _ = one(sees("/later", **{"Retry-After": "1"}), OK)
    assert (result.output, result.latency_s >= 1) == ("fine", True)


def test_a_refused_key_stops_the_stage():
    with pytest.raises(
        InfrastructureError,
        match=r"refuses our key \(HTTP 401: no\)\. Fix the headers in params\.yaml \(tools\.headers\)",
    ):
        one(writes("no", 401))


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


@pytest.mark.slow
@pytest.mark.parametrize(("value", "least"), [("1", 1.0), ("999999999", 0.2), ("soon", 0.0)])
def test_retry_after_is_heard_within_bounds(monkeypatch: pytest.MonkeyPatch, value: str, least: float):
    monkeypatch.setattr(http_client, "LONGEST_RETRY_AFTER_S", min(1.0, least or 1.0))
    result, _ = one(writes("busy", 503, headers={"Retry-After": value}), OK)
    assert (result.output, result.retries, result.latency_s >= least) == ("fine", 1, True)


def test_retry_after_may_be_a_date():
    assert http_client.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert http_client.retry_after("Fri, 21 Oct 2999 07:28:00 GMT") > 1e9
    assert [http_client.retry_after(value) for value in (None, "", "-3", "1e9", "7")] == [0, 0, 0, 0, 7]


def test_retries_are_counted_also_in_a_failure():
    result, _ = one(says({}, 500), retries=2)
    assert (result.failed, result.retries) == (True, 2)


def test_what_the_policy_made_too_large_is_a_413_to_it():
    result, server = one(OK, arguments=json.dumps({"query": "x" * 2000}), max_request_bytes=1500)
    assert result.output == "Error 413: the request is larger than 1500 bytes. Send less."
    assert (result.is_error, result.failed, server.bodies) == (True, False, [])
    # as JSON each is six bytes
    assert one(OK, arguments=json.dumps({"query": "é" * 200}), max_request_bytes=1500)[0].is_error


def test_a_row_that_is_too_large_is_the_owner_s():
    with pytest.raises(
        ConfigError, match=r"example 'n-1': a request with its row takes \d+ bytes, and tools.max_request_bytes is 1500"
    ):
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


# -- tools of other places -------------------------------------------------------------------------
def test_an_endpoint_has_its_own_address_headers_and_limits():
    endpoint = {**WEATHER, "parameters": TOWN, "max_reply_bytes": 30}
    result, server = one(
        says({"output": "x" * 50}), calls=[IN_BERN], headers={"Authorization": "Bearer ours"}, endpoints=[endpoint]
    )
    assert (server.paths, server.headers[0]["X-Tenant"], "Authorization" in server.headers[0]) == (
        ["/elsewhere"],
        "9",
        False,
    )
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
            section = {
                "endpoints": [{"name": "search", "server_url": "{server}/mine"}, {**WEATHER, "parameters": TOWN}]
            }
            async with ToolClient(server.endpoint, settings(section, server), SCHEMAS) as client:
                await client.call_all([search_call(0)], CONTEXT)
                return client.schemas, server.paths

    schemas, paths = asyncio.run(run())
    assert paths == ["/mine"]
    assert schemas[:2] == SCHEMAS  # with the recipe's schema, as it declares none
    assert schemas[2]["function"] == {"name": "weather", "description": "Of a town.", "parameters": TOWN}


def test_a_row_s_tools_win():
    rows = [
        {**ROW_TOOL},
        {
            "type": "function",
            "function": {"name": "search", "parameters": {"properties": {"query": {"type": "integer"}}}},
        },
    ]
    ours = context({**ITEM, "tools": rows})
    calls = [
        IN_BERN,
        ToolCall("call_0_1", "search", '{"query": 3}'),
        search_call(2),
        ToolCall("call_0_3", "lookup", '{"code": "I10"}'),
    ]
    results, server = play(OK, calls=calls, context=ours, endpoints=[WEATHER])
    assert sorted(server.paths) == ["/elsewhere", "/tools/search"]
    assert [result.is_error for result in results] == [False, False, True, True]
    assert '"q2" is not of type "integer"' in results[2].output
    assert results[3].output == "Error: unknown tool 'lookup'; known tools: weather, search"
    assert one(OK, calls=[IN_BERN], endpoints=[WEATHER])[0].is_error  # without a row nobody says what its arguments are


def test_a_schema_of_the_job_that_is_none():
    with pytest.raises(ConfigError, match=r"tools.endpoints: the parameters of tool 'weather' are not a JSON schema"):
        one(OK, endpoints=[{**WEATHER, "parameters": {"type": 7}}])


@pytest.mark.parametrize("key", ["server_url", "start_url", "end_url"])
def test_addresses_that_are_none(key: str):
    section = (
        {"endpoints": [{**WEATHER, "server_url": "weather.example"}]}
        if key == "server_url"
        else {"lifecycle": {key: "weather.example"}}
    )
    with pytest.raises(ConfigError, match=f"{key} = 'weather.example' is not an HTTP address"):
        one(OK, **section)


def test_an_endpoint_declared_twice(tmp_path: Path):
    with pytest.raises(
        ConfigError,
        match=r"^params\.yaml: 'tools': tools\.endpoints declares 'weather' twice\. Rename or remove one\.$",
    ):
        tiny_recipe.params(tmp_path, tools={"endpoints": [WEATHER, {**WEATHER, "server_url": "http://h"}]})


# -- where an external server has the recipe's tools -----------------------------------------------
EXTERNAL = {"server_url": "{server}", "version": "7"}


@pytest.mark.parametrize(
    ("paths", "asked"),
    [
        ("/{name}", ["/search", "/lookup"]),
        ("/api/{name}/{name}/", ["/api/search/search/", "/api/lookup/lookup/"]),
        ({"search": "/find"}, ["/find", "/tools/lookup"]),
        ({"search": "/v2/find", "lookup": "/v2/get"}, ["/v2/find", "/v2/get"]),
        ({}, ["/tools/search", "/tools/lookup"]),
    ],
)
def test_tools_are_called_at_their_paths(paths: Any, asked: list[str]):
    calls = [search_call(0), ToolCall("call_0_1", "lookup", '{"code": "I10"}')]
    results, server = play(OK, calls=calls, concurrency=1, paths=paths, **EXTERNAL)
    assert ([result.output for result in results], server.paths) == (["fine", "fine"], asked)
    assert [body["name"] for body in server.bodies] == ["search", "lookup"]


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (
            {"paths": "/api/{name}"},
            "tools.paths = '/api/{name}' needs tools.server_url. Add it, or remove tools.paths.",
        ),
        ({"paths": {"search": "/find"}}, "tools.paths = {'search': '/find'} needs tools.server_url"),
        (
            {"paths": "api/{name}", **EXTERNAL},
            "tools.paths = 'api/{name}': a template starts with '/' and holds {name}, such as '/api/{name}'.",
        ),
        ({"paths": "/api", **EXTERNAL}, "tools.paths = '/api': a template"),
        ({"paths": "/{tool}/{name}", **EXTERNAL}, "tools.paths = '/{tool}/{name}': a template"),
        ({"paths": "/my {name}", **EXTERNAL}, "tools.paths = '/my {name}': a template"),
        ({"paths": {"search": "find"}, **EXTERNAL}, "tools.paths.search = 'find': a path starts with '/'"),
        (
            {"paths": {"search": "/{name}"}, **EXTERNAL},
            "tools.paths.search = '/{name}': a path starts with '/' and holds no blanks or braces",
        ),
        (
            {"paths": {"search": "/x", "lookup": "/x"}, **EXTERNAL},
            "tools.paths.search and tools.paths.lookup are both '/x'. Give each tool a path",
        ),
        (
            {"paths": {"weather": "/x"}, "endpoints": [WEATHER], **EXTERNAL},
            "tools.paths.weather is an endpoint, which has its own server_url.",
        ),
    ],
)
def test_paths_that_cannot_be_honoured(tmp_path: Path, tools: dict[str, Any], expected: str):
    with pytest.raises(ConfigError) as refused:
        tiny_recipe.params(tmp_path, tools=tools)
    assert str(refused.value).startswith(f"params.yaml: 'tools': {expected}")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ({"serach": "/x"}, "tools.paths.serach = '/x': the recipe has no tool 'serach'. Did you mean 'search'?"),
        ({"zzz": "/x"}, "tools.paths.zzz = '/x': the recipe has no tool 'zzz'. There are: lookup, search."),
        (
            {"search": "/tools/lookup"},
            "tools.paths: search and lookup are both at '/tools/lookup'. Give each tool its own path.",
        ),
    ],
)
def test_paths_that_do_not_fit_the_recipe_s_tools(paths: Any, expected: str):
    with pytest.raises(ConfigError) as refused:
        one(OK, paths=paths, **EXTERNAL)
    assert str(refused.value) == f"params.yaml: {expected}"


# -- what a tool declares about itself -------------------------------------------------------------
def test_traits_come_from_the_endpoint_s_entry_or_by_name():
    section = config.Tools.model_validate(
        {
            "traits": {"search": {"probe": False, "validate": False}},
            "endpoints": [{**WEATHER, "client_errors": "policy", "terminal": True}],
        }
    )
    client = ToolClient(ToolEndpoint("http://127.0.0.1:1"), section, SCHEMAS)
    traits = {name: client.traits(name) for name in ("search", "weather", "lookup")}
    assert {
        name: (one.probe, one.validate_arguments, one.terminal, one.client_errors) for name, one in traits.items()
    } == {
        "search": (False, False, False, "infrastructure"),
        "weather": (True, True, True, "policy"),
        "lookup": (True, True, False, "infrastructure"),
    }


def test_traits_of_a_tool_that_is_none():
    with pytest.raises(
        ConfigError, match=r"^params\.yaml: tools\.traits\.serach: there is no tool 'serach'\. Did you mean 'search'\?$"
    ):
        one(OK, traits={"serach": {"probe": False}})


def test_traits_of_an_endpoint_stand_in_its_entry(tmp_path: Path):
    with pytest.raises(
        ConfigError,
        match=(
            r"^params\.yaml: 'tools': tools\.traits\.weather is an endpoint\. Move its traits to its "
            r"entry"
        ),
    ):
        tiny_recipe.params(tmp_path, tools={"endpoints": [WEATHER], "traits": {"weather": {"probe": False}}})


# -- a rollout's life ------------------------------------------------------------------------------
def live(*answers: Answer, stop: StopReason = StopReason.max_turns, **section: Any) -> tuple[str | None, Scripted]:
    async def run() -> tuple[str | None, Scripted]:
        async with scripted(*answers) as server:
            section.setdefault(
                "lifecycle", {"start_url": "{server}/start", "end_url": "{server}/end", "headers": {"X-Tenant": "9"}}
            )
            async with ToolClient(server.endpoint, settings(section, server), SCHEMAS) as client:
                failure = await client.start(CONTEXT)
                await client.end(CONTEXT, stop)
                return failure, server

    return asyncio.run(run())


def test_a_rollout_s_start_and_end_are_told():
    failure, server = live(writes("", 204))
    assert (failure, server.paths) == (None, ["/start", "/end"])
    assert server.bodies == [{"trace_id": "trace_1", "item": ITEM}, {"trace_id": "trace_1", "stop_reason": "max_turns"}]
    assert [headers["X-Tenant"] for headers in server.headers] == ["9", "9"]
    assert rft_headers(server, 1) == {"Trace-Id": "trace_1", "Step": "3", "Split": "train", "Attempt": "1"}


def test_servers_go_on_hearing_of_a_samplers_failure_by_its_first_name():
    _, server = live(writes("", 204), stop=StopReason.sampler_error)
    assert server.bodies[1] == {"trace_id": "trace_1", "stop_reason": "policy_error"}


def test_a_start_that_fails_is_told_and_an_end_is_logged(caplog: pytest.LogCaptureFixture):
    failure, server = live(says({"error": "no room"}, 503), retries=1)
    assert failure == 'tools.lifecycle.start_url failed: HTTP 503: {"error": "no room"} (2 tries)'
    assert server.paths == ["/start"] * 2 + ["/end"] * 2
    assert "tools.lifecycle.end_url failed for trace_1: HTTP 503" in caplog.text


def test_a_refused_key_at_the_end_changes_nothing(caplog: pytest.LogCaptureFixture):
    failure, _ = live(writes(""), writes("no", 401))
    assert failure is None
    assert "refuses our key (HTTP 401: no). Fix the headers in params.yaml (tools.lifecycle)" in caplog.text


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


# -- several calls ---------------------------------------------------------------------------------
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
