"""What travels beside a body over a real socket: which rollout calls, signatures, and secrets that
do not come back."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from scripted_server import says
from scripted_tools import ITEM, OK, SCHEMAS, context, one, rft_headers

from rft import config
from rft.errors import ConfigError
from rft.tools.client import ToolClient
from rft.wire import client as http_client
from rft.wire.client import ToolEndpoint


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.001)


def test_the_run_and_a_retry_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RFT_RUN", "run-7")
    _, server = one(says({}, 500), OK, context=context(ITEM, "trace_1", "validation"))
    common = {"Trace-Id": "trace_1", "Job-Id": "run-7", "Step": "0", "Split": "valid", "Attempt": "0"}
    assert [rft_headers(server, 0), rft_headers(server, 1)] == [common, {**common, "Retry": "1"}]


def test_the_openai_client_verifies_the_signature(monkeypatch: pytest.MonkeyPatch):
    from openai import InvalidWebhookSignatureError, OpenAI

    secret = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="
    monkeypatch.setenv("SIGNING", secret)
    _, server = one(says({}, 500), OK, signing_secret="env:SIGNING")
    client = OpenAI(api_key="none", base_url="http://127.0.0.1:1")
    for raw, sent in zip(server.raw, server.headers, strict=True):
        client.webhooks.verify_signature(raw, sent, secret=secret)
        with pytest.raises(InvalidWebhookSignatureError):
            client.webhooks.verify_signature(raw + b" ", sent, secret=secret)
    assert server.headers[0]["webhook-id"] == server.headers[1]["webhook-id"]  # a retry is the same message


@pytest.mark.parametrize("secret", ["whsec_", "whsec_not base64!", "c2VjcmV0"])
def test_a_signing_secret_that_is_none(secret: str):
    with pytest.raises(ConfigError, match=r"tools\.signing_secret") as caught:
        ToolClient(ToolEndpoint("http://127.0.0.1:1"), config.Tools(signing_secret=secret), SCHEMAS)
    assert secret == "whsec_" or secret not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"X-Key": "canary\nX-Evil: 1"}, "the value of X-Key holds a newline"),
        ({"X-Key": "canary\x00"}, "the value of X-Key holds a newline or a control character"),
        ({"X Key": "v"}, "'X Key' is not a header name"),
        ({"x-rft-step": "9"}, "x-rft-step is set by agent-rft itself"),
    ],
)
def test_a_header_that_cannot_be_sent(headers: dict[str, str], problem: str):
    with pytest.raises(ConfigError, match=problem) as caught:
        one(OK, headers=headers)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("trace_id", ["trace_\n1", "trace_\r\nX-Evil: canary", "trace_\x7f", "tracé"])
def test_a_trace_id_that_is_no_header(trace_id: str):
    with pytest.raises(ValueError, match=r"^X-RFT-Trace-Id: a header's value must be ASCII, without") as caught:
        one(OK, context=context(ITEM, trace_id))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(("status", "failed"), [(200, False), (400, False), (500, True)])
def test_a_key_that_the_server_echoes_is_struck_out(monkeypatch: pytest.MonkeyPatch, status: int, failed: bool):
    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"output": f"you sent {request.headers['X-Mine']}"}, status=status)

    monkeypatch.setenv("KEY_OF_TEST", "Bearer canary-4711")
    endpoint = {"name": "search", "server_url": "{server}/mine", "headers": {"X-Mine": "env:KEY_OF_TEST"}}
    result, server = one(echo, endpoints=[endpoint])
    assert server.headers[0]["X-Mine"] == "Bearer canary-4711"
    assert (result.failed, "you sent [secret]" in result.output, "canary" in result.output) == (failed, True, False)


@pytest.mark.parametrize("name", ["X-Functions-Key", "x-auth-token", "X-Client-Secret", "X-Hub-Signature"])
def test_a_literal_key_is_struck_out_as_one_of_the_environment_is(name: str):
    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"output": f"you sent {request.headers[name]} to ward {request.headers['X-Tenant']}"})

    endpoint = {
        "name": "search",
        "server_url": "{server}/mine",
        "headers": {name: "canary-4711", "X-Tenant": "seventh"},
    }
    assert one(echo, endpoints=[endpoint])[0].output == "you sent [secret] to ward seventh"
