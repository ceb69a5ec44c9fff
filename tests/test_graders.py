"""The endpoint grader: what it is told, which replies are scores, and that nothing else becomes one."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scripted_server import Answer, Scripted, says, scripted, writes

from rft import config, wire
from rft.errors import ConfigError, InfrastructureError
from rft.graders import EndpointGrader
from rft.recipe import Grader
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, ToolCall, ToolResult, Turn
from rft.wire import ToolEndpoint

EXAMPLE = Example("n-1", ({"role": "user", "content": "angina"},), ["I20.9"], {"slice": "1"})
CALLS = (ToolCall("call_0_0", "search", '{"query": "angina"}'), ToolCall("call_0_1", "lookup", '{"code": "I20.9"}'))
TURNS = (Turn("<tool_call>...", CALLS, (ToolResult("call_0_0", "x"), ToolResult("call_0_1", "y"))), Turn('{"codes": ["I20.9"]}'))


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BACKOFF_S", 0.001)


def grade(
    *answers: Answer,
    turns: tuple[Turn, ...] = TURNS,
    stop: StopReason = StopReason.completed,
    grader: dict[str, Any] | None = None,
    **section: Any,
) -> tuple[Grade, Scripted]:
    async def run() -> tuple[Grade, Scripted]:
        async with scripted(*answers, headers={"Authorization": "Bearer ours"}) as server:
            spec = {"type": "endpoint", "name": "f1", "url": "{tool_server}/grade", **(grader or {})}
            spec["url"] = spec["url"].replace("{elsewhere}", server.endpoint.url)
            async with EndpointGrader(Grader.model_validate(spec), server.endpoint, config.Tools(**section)) as endpoint:
                return await endpoint.grade(EXAMPLE, turns, stop, RolloutContext("trace_1", EXAMPLE.row(), "validation", 3)), server

    return asyncio.run(run())


def test_the_body_is_the_contract_s():
    _, server = grade(says(1))
    assert server.paths == ["/grade"]
    calls = [{"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in CALLS]
    text = '{"codes": ["I20.9"]}'
    assert server.bodies[0] == {
        "sample": {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text, "tool_calls": []}, "finish_reason": "stop"}],
            "output_text": text,
            "output_json": None,
            "output_tools": calls,
            "output_audio": None,
            "num_tool_calls": 2,
            "stop_reason": "completed",
        },
        "item": EXAMPLE.row(),
        "trace_id": "trace_1",
    }
    assert server.headers[0]["Authorization"] == "Bearer ours"
    sent = {name: value for name, value in server.headers[0].items() if name.startswith("X-RFT-")}
    assert sent == {"X-RFT-Trace-Id": "trace_1", "X-RFT-Step": "3", "X-RFT-Split": "valid", "X-RFT-Attempt": "0"}


def test_a_retry_is_named_and_signed_as_the_same_message():
    from openai import OpenAI

    secret = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="
    _, server = grade(says({}, 500), says(1), signing_secret=secret)
    assert [headers.get("X-RFT-Retry") for headers in server.headers] == [None, "1"]
    assert server.headers[0]["webhook-id"] == server.headers[1]["webhook-id"]
    for raw, headers in zip(server.raw, server.headers, strict=True):
        OpenAI(api_key="none", base_url="http://127.0.0.1:1").webhooks.verify_signature(raw, headers, secret=secret)


def test_a_key_that_the_grader_echoes_is_struck_out(monkeypatch: pytest.MonkeyPatch):
    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"score": 0, "reason": f"you sent {request.headers['X-Key']}"})

    monkeypatch.setenv("GRADER_KEY", "canary-4711")
    assert grade(echo, grader={"headers": {"X-Key": "env:GRADER_KEY"}})[0].explanation == "you sent [secret]"


def test_a_header_that_cannot_be_sent():
    with pytest.raises(ConfigError, match=r"^grader\.json: the value of X-Key holds a newline") as caught:
        grade(says(1), grader={"headers": {"X-Key": "canary\n"}})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("turns", "stop", "text", "finish"),
    [
        (TURNS[:1], StopReason.max_turns, "", "tool_calls"),
        ((Turn('{"codes"'),), StopReason.max_tokens, '{"codes"', "length"),
        ((Turn("<tool_call>{"),), StopReason.parse_error, "<tool_call>{", "stop"),
        ((), StopReason.timeout, "", "stop"),
    ],
)
def test_a_rollout_without_an_answer_is_graded_as_what_it_is(turns: tuple[Turn, ...], stop: StopReason, text: str, finish: str):
    _, server = grade(says(0), turns=turns, stop=stop)
    sample = server.bodies[0]["sample"]
    assert (sample["output_text"], sample["choices"][0]["finish_reason"], sample["stop_reason"]) == (text, finish, stop.value)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (0.5, Grade(0.5)),
        (1, Grade(1.0, solved=True)),
        ({"score": 0.5}, Grade(0.5)),
        ({"score": 0.5, "solved": True}, Grade(0.5, solved=True)),
        ({"score": 1.0, "solved": False, "reason": "all right but late"}, Grade(1.0, explanation="all right but late")),
        ({"score": 7.5}, Grade(7.5, solved=True)),
        ({"score": -1}, Grade(-1.0)),
        ({"score": 0.2, "sub_scores": {"recall": 1, "precision": 0.1}}, Grade(0.2, components={"recall": 1.0, "precision": 0.1})),
        ({"score": 0, "sub_scores": None, "solved": None, "reason": None, "more": [1]}, Grade(0.0)),
        ({"score": 0, "reason": {"missing": ["I10"]}}, Grade(0.0, explanation='{"missing": ["I10"]}')),
    ],
)
def test_replies_that_are_scores(reply: Any, expected: Grade):
    assert grade(says(reply))[0] == expected


def test_solved_follows_the_declared_threshold():
    assert grade(says(0.5), grader={"pass_threshold": 0.5})[0].solved
    assert not grade(says(0.49), grader={"pass_threshold": 0.5})[0].solved


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says({}), "the reply has no 'score': {}"),
        (says({"reward": 1}), "the reply has no 'score'"),
        (says({"score": None}), "'score' is null, expected a number"),
        (says({"score": "1.0"}), """'score' is "1.0", expected a number"""),
        (says({"score": True}), "'score' is true, expected a number"),
        (says([1]), "'score' is [1], expected a number"),
        (writes('{"score": NaN}'), "'score' is not finite"),
        (writes('{"score": -Infinity}'), "'score' is not finite"),
        (writes('{"score": 1e999}'), "'score' is not finite"),
        (writes('{"score": 1' + "0" * 400 + "}"), "'score' is not finite"),
        (says({"score": 1, "solved": "yes"}), """'solved' is "yes", expected true or false"""),
        (says({"score": 1, "sub_scores": [1]}), "'sub_scores' is [1], expected an object of numbers"),
        (says({"score": 1, "sub_scores": {"f1": "high"}}), """'sub_scores.f1' is "high", expected a number"""),
        (writes("<html>Sign in</html>"), "the reply is not JSON: <html>Sign in</html>"),
        (writes(""), "the reply is not JSON"),
        (says({"detail": "no such row"}, 404), 'HTTP 404: {"detail": "no such row"}'),
        (says({"score": 1, "reason": "x" * 2000}), "the reply is larger than tools.max_reply_bytes"),
    ],
)
def test_replies_that_are_none_leave_it_unscored(answer: Answer, why: str):
    result, server = grade(answer, max_reply_bytes=1500)
    assert (result.score, result.status, result.solved) == (None, GradeStatus.grader_error, False)
    assert why in result.explanation
    assert len(server.bodies) == 4  # any failure of a grader is retried


def test_no_reply_is_an_infrastructure_error():
    result, server = grade(says({"error": "bug"}, 500), retries=2)
    assert (result.score, result.status, len(server.bodies)) == (None, GradeStatus.infra_error, 3)
    assert "HTTP 500" in result.explanation


def test_a_grader_that_recovers():
    result, server = grade(says({}, 503), writes("<html>"), says(0.25))
    assert (result.score, len(server.bodies)) == (0.25, 3)


def test_a_grader_that_hangs():
    async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    result, _ = grade(hang, timeout_s=0.1, retries=0)
    assert (result.score, result.status) == (None, GradeStatus.infra_error)


def test_a_grader_that_is_down():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/grade"
    result, _ = grade(says(1), grader={"url": url}, retries=1)
    assert (result.score, result.status) == (None, GradeStatus.infra_error)


def test_a_redirect_is_not_followed():
    result, server = grade(writes("", 302, headers={"Location": "/other"}), retries=0)
    assert (result.status, server.paths) == (GradeStatus.infra_error, ["/grade"])


def test_a_refused_key_stops_the_stage():
    with pytest.raises(InfrastructureError, match="refuses our key"):
        grade(writes("no", 401))


def test_our_key_goes_to_our_server_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADER_KEY", "theirs")
    _, server = grade(says(1), grader={"url": "{elsewhere}/grade", "headers": {"X-Key": "env:GRADER_KEY"}})
    assert "Authorization" not in server.headers[0]
    assert server.headers[0]["X-Key"] == "theirs"


@pytest.mark.parametrize("url", ["/grade", "tool_server/grade", "file:///grade"])
def test_an_address_that_is_none(url: str):
    with pytest.raises(ConfigError, match=r"grader\.json: url = .* is no HTTP address"):
        EndpointGrader(Grader(type="endpoint", name="g", url=url), ToolEndpoint("http://127.0.0.1:1"), config.Tools())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["score", "solved", "sub_scores", "reason", "x"]), v, max_size=4),
    max_leaves=6,
)


@hypothesis_settings(max_examples=60)
@given(json_values)
def test_any_reply_is_a_finite_score_or_none(reply: Any):
    result, _ = grade(writes(json.dumps(reply)), retries=0)
    if result.score is None:
        assert result.status is GradeStatus.grader_error
        assert not result.solved
        assert result.explanation
    else:
        assert result.status is GradeStatus.ok
        assert math.isfinite(result.score)


def test_a_grader_has_a_rate_limit_of_its_own():
    times: list[float] = []

    async def note(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        return web.json_response({"score": 1.0})

    async def run(**limit: float) -> float:
        times.clear()
        async with scripted(note) as server:
            spec = Grader.model_validate({"type": "endpoint", "name": "f1", "url": "{tool_server}/grade", **limit})
            async with EndpointGrader(spec, server.endpoint, config.Tools(rate_limit=5)) as grader:
                context = RolloutContext("trace_1", EXAMPLE.row())
                await asyncio.gather(*(grader.grade(EXAMPLE, TURNS, StopReason.completed, context) for _ in range(6)))
        return times[-1] - times[0]

    assert asyncio.run(run(rate_limit=20)) >= 5 / 20 * 0.9
    assert asyncio.run(run()) < 5 / 5 * 0.9, "tools.rate_limit is for tools"


def test_a_grade_may_be_fetched_from_where_a_303_says():
    async def later(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=303, headers={"Location": "/later"})

    graded, server = grade(later, says({"score": 0.5}))
    assert (graded.score, server.methods, server.paths) == (0.5, ["POST", "GET"], ["/grade", "/later"])
    assert server.headers[1]["Authorization"] == "Bearer ours"
