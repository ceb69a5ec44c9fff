"""The endpoint grader: what it is told, which replies are scores, and that nothing else becomes
one."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scripted_server import Answer, Scripted, says, scripted, writes

from rft import config, rows
from rft.config.graders import Endpoint
from rft.errors import ConfigError, InfrastructureError
from rft.grading.endpoint import EndpointGrader
from rft.types import Example, Grade, GradeStatus, RolloutContext, Scored, StopReason, ToolCall, ToolResult, Turn
from rft.wire import client as http_client
from rft.wire.client import ToolEndpoint

EXAMPLE = Example("n-1", ({"role": "user", "content": "angina"},), ["I20.9"], {"slice": "1"})
CALLS = (ToolCall("call_0_0", "search", '{"query": "angina"}'), ToolCall("call_0_1", "lookup", '{"code": "I20.9"}'))
RESULTS = (ToolResult("call_0_0", "x", latency_s=0.25), ToolResult("call_0_1", "y", is_error=True))
TURNS = (
    Turn("<tool_call>...", CALLS, RESULTS, content="", reasoning="look first"),
    Turn('{"codes": ["I20.9"]}', reasoning="found"),
)


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.001)


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
            async with EndpointGrader(
                Endpoint.model_validate(spec), server.endpoint, config.Tools(**section)
            ) as endpoint:
                return await endpoint.grade(
                    EXAMPLE, turns, stop, RolloutContext("trace_1", EXAMPLE, "validation", 3)
                ), server

    return asyncio.run(run())


def test_the_body_is_the_contract_s():
    _, server = grade(says(1))
    assert server.paths == ["/grade"]
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in CALLS
    ]
    text = '{"codes": ["I20.9"]}'
    assert server.bodies[0] == {
        "sample": {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "tool_calls": []},
                    "finish_reason": "stop",
                }
            ],
            "output_text": text,
            "output_json": {"codes": ["I20.9"]},
            "output_tools": calls,
            "output_audio": None,
            "output_reasoning_summary": "look first\n\nfound",
            "num_tool_calls": 2,
            "stop_reason": "completed",
            "trajectory": [
                {"role": "assistant", "content": "", "tool_calls": calls, "reasoning_content": "look first"},
                {
                    "role": "tool",
                    "tool_call_id": "call_0_0",
                    "name": "search",
                    "content": "x",
                    "is_error": False,
                    "latency_s": 0.25,
                },
                {
                    "role": "tool",
                    "tool_call_id": "call_0_1",
                    "name": "lookup",
                    "content": "y",
                    "is_error": True,
                    "latency_s": None,
                },
                {"role": "assistant", "content": text, "tool_calls": [], "reasoning_content": "found"},
            ],
        },
        "item": EXAMPLE.row(),
        "trace_id": "trace_1",
    }
    assert server.headers[0]["Authorization"] == "Bearer ours"
    sent = {name: value for name, value in server.headers[0].items() if name.startswith("X-RFT-")}
    assert sent == {"X-RFT-Trace-Id": "trace_1", "X-RFT-Step": "3", "X-RFT-Split": "valid", "X-RFT-Attempt": "0"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"codes": ["I10"], "sure": 1e2}', {"codes": ["I10"], "sure": 100.0}),
        (" [1, 2]\n", [1, 2]),
        ("42", 42),
        ("I10", None),
        ('{"codes": ["I10"]', None),
        ("NaN", None),
        ('{"a": 1e999}', None),
        (r'{"a": "\ud800"}', None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_a_final_text_that_is_json_is_given_parsed(text: str, expected: Any):
    """W2: whether or not a format was asked for. A grader that prefers output_json scored right
    answers 0."""
    assert grade(says(1), turns=(Turn(text),))[1].bodies[0]["sample"]["output_json"] == expected


def test_the_row_is_the_users_bytes():
    """W1: numbers and order of keys included."""
    line = (
        '{"zeta": 1.50, "reference_answer": "x",  "big": 123456789012345678901234567890.10, "messages": '
        '[{"role":"user","content":"q"}]}'
    )
    example = rows.read(rows.Line(line, "here"), config.Keys(), "")

    async def run() -> bytes:
        async with scripted(says(1)) as server:
            spec = Endpoint.model_validate({"type": "endpoint", "name": "f1", "url": "{tool_server}/grade"})
            async with EndpointGrader(spec, server.endpoint, config.Tools()) as endpoint:
                await endpoint.grade(example, TURNS, StopReason.completed, RolloutContext("trace_1", example))
            return server.raw[0] if isinstance(server.raw[0], bytes) else server.raw[0].encode()

    assert b'"item": ' + line.encode() + b"}" in asyncio.run(run())


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
def test_a_rollout_without_an_answer_is_graded_as_what_it_is(
    turns: tuple[Turn, ...], stop: StopReason, text: str, finish: str
):
    _, server = grade(says(0), turns=turns, stop=stop)
    sample = server.bodies[0]["sample"]
    assert (sample["output_text"], sample["choices"][0]["finish_reason"], sample["stop_reason"]) == (
        text,
        finish,
        stop.value,
    )


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (0.5, Scored(0.5)),
        (1, Scored(1.0, solved=True)),
        ({"score": 0.5}, Scored(0.5)),
        ({"score": 0.5, "solved": True}, Scored(0.5, solved=True)),
        (
            {"score": 1.0, "solved": False, "reason": "all right but late"},
            Scored(1.0, explanation="all right but late"),
        ),
        (
            {"score": 0.2, "sub_scores": {"recall": 1, "precision": 0.1}},
            Scored(0.2, components={"recall": 1.0, "precision": 0.1}),
        ),
        ({"score": 0, "sub_scores": None, "solved": None, "reason": None, "more": [1]}, Scored(0.0)),
        ({"score": 0.5, "evidence": ["cat tests.py"]}, Scored(0.5, evidence=("cat tests.py",))),
        ({"score": 0, "reason": {"missing": ["I10"]}}, Scored(0.0, explanation='{"missing": ["I10"]}')),
    ],
)
def test_replies_that_are_scores(reply: Any, expected: Grade):
    assert grade(says(reply))[0] == expected


def test_solved_follows_the_declared_threshold():
    assert grade(says(0.5), grader={"pass_threshold": 0.5})[0].solved
    assert not grade(says(0.49), grader={"pass_threshold": 0.5})[0].solved


@pytest.mark.parametrize(
    ("scale", "reply", "expected"),
    [
        ({"range": [0, 5]}, 5, Scored(5.0, solved=True)),
        ({"range": [0, 5]}, 4.99, Scored(4.99)),
        ({"range": [0, 5]}, 1, Scored(1.0)),  # on 0 to 1 it would be solved
        ({"range": [0, 5], "pass_threshold": 4}, 4, Scored(4.0, solved=True)),
        ({"range": [-2, 2]}, -2, Scored(-2.0)),
        ({"range": [-2, 2], "pass_threshold": 1}, {"score": 2, "solved": False}, Scored(2.0)),
    ],
)
def test_scores_on_a_scale_of_their_own(scale: dict[str, Any], reply: Any, expected: Grade):
    assert grade(says(reply), grader=scale)[0] == expected


@pytest.mark.parametrize("score", [1.5, -0.25, 5])
def test_a_score_that_shows_that_the_range_was_forgotten_stops_the_stage(score: float):
    with pytest.raises(ConfigError) as stopped:
        grade(says({"score": score}))
    assert f"grader.json: declares no range, which means 0 to 1, and the grader gave the score {score:g}." in str(
        stopped.value
    )
    assert '"range": [low, high]' in str(stopped.value)


@pytest.mark.parametrize(("ends", "score"), [([0, 5], 5.1), ([0, 5], -1), ([-2, 2], 3), ([0, 1], 1.001)])
def test_a_score_outside_of_the_declared_range_is_unscored_and_not_clipped(ends: list[int], score: float):
    result, _ = grade(says(score), grader={"range": ends}, retries=0)
    assert (result.score, result.status, result.solved) == (None, GradeStatus.grader_bad_reply, False)
    assert (
        f"'score' is {score:g}, outside of the range {ends[0]} to {ends[1]} that grader.json declares"
        in result.explanation
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "score", "expected"),
    [([0, 1], 1 + 5e-10, 1.0), ([0, 1], -5e-10, 0.0), ([0, 5], 5 + 4e-9, 5.0), ([-2, 2], -2 - 3e-9, -2.0)],
)
def test_rounding_noise_beyond_an_end_is_that_end(ends: list[int], score: float, expected: float):
    assert grade(says(score), grader={"range": ends})[0] == Scored(expected, solved=expected == ends[1])
    beyond = expected + 4 * (score - expected)
    assert grade(says(beyond), grader={"range": ends}, retries=0)[0].score is None


@pytest.mark.parametrize(
    ("reply", "explanation"),
    [
        ({"score": 4, "hack": True}, "hack"),
        ({"score": 5, "solved": True, "hack": True, "reason": "wrote the tests anew"}, "hack: wrote the tests anew"),
        ({"score": 4, "hack": "read the answer file"}, "hack: read the answer file"),
        ({"score": 4, "hack": "read the answer file", "reason": "all right"}, "hack: read the answer file; all right"),
        ({"score": 99, "hack": True}, "hack"),
        ({"hack": True}, "hack"),
        ({"score": 4, "hack": " Yes"}, "hack"),
        ({"score": 4, "hack": "true", "error": "late"}, "hack"),
    ],
)
def test_a_hack_has_the_lowest_score_whatever_came_with_it(reply: Any, explanation: str):
    assert grade(says(reply), grader={"range": [1, 5]})[0] == Scored(
        1.0, GradeStatus.hack, False, explanation=explanation
    )


def test_without_a_declared_range_a_hack_has_0():
    assert grade(says({"score": 1, "hack": True}))[0] == Scored(0.0, GradeStatus.hack, explanation="hack")


@pytest.mark.parametrize("hack", [False, None, "", "no", "False", " none ", "0", "N/A"])
def test_what_is_no_hack(hack: Any):
    assert grade(says({"score": 1, "hack": hack}))[0] == Scored(1.0, solved=True)


@pytest.mark.parametrize("error", [None, False, ""])
def test_an_error_that_says_nothing_is_none(error: Any):
    assert grade(says({"score": 1, "error": error}))[0] == Scored(1.0, solved=True)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says({}), "the reply has no 'score': {}"),
        (says({"error": "judge overloaded", "score": 0}), "the reply has an 'error' beside its score: \"judge overlo"),
        (says({"error": {"code": 429}}), "the reply has an 'error': {\"code\": 429}"),
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
        (says({"score": 1, "hack": 1}), "'hack' is 1, expected true, false or a reason"),
        (says({"score": 1, "hack": 0}), "'hack' is 0, expected true, false or a reason"),
        (says({"score": 1, "hack": ["x"]}), """'hack' is ["x"], expected true, false or a reason"""),
        (says({"score": 1, "sub_scores": [1]}), "'sub_scores' is [1], expected an object of numbers"),
        (says({"score": 1, "sub_scores": {"f1": "high"}}), """'sub_scores.f1' is "high", expected a number"""),
        (says({"score": 1, "evidence": "x"}), """'evidence' is "x", expected a list of texts"""),
        (says({"score": 1, "evidence": ["x", 1]}), """'evidence' is ["x", 1], expected a list of texts"""),
        (writes("<html>Sign in</html>"), "the reply is not JSON: <html>Sign in</html>"),
        (writes(""), "the reply is not JSON"),
        (says({"detail": "no such row"}, 404), 'HTTP 404: {"detail": "no such row"}'),
        (says({"score": 1, "reason": "x" * 2000}), "the reply is larger than tools.max_reply_bytes"),
    ],
)
def test_replies_that_are_none_leave_it_unscored(answer: Answer, why: str):
    result, server = grade(answer, max_reply_bytes=1500)
    assert (result.score, result.status, result.solved) == (None, GradeStatus.grader_bad_reply, False)
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
    assert (result.score, result.status) == (None, GradeStatus.grader_timeout)


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
    with pytest.raises(ConfigError, match=r"grader\.json: url = .* is not an HTTP address"):
        EndpointGrader(Endpoint(type="endpoint", name="g", url=url), ToolEndpoint("http://127.0.0.1:1"), config.Tools())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(
            st.sampled_from(["score", "solved", "hack", "sub_scores", "reason", "evidence", "x"]), v, max_size=4
        )
    ),
    max_leaves=6,
)


@hypothesis_settings(max_examples=60)
@given(json_values)
def test_any_reply_is_a_finite_score_or_none(reply: Any):
    result, _ = grade(writes(json.dumps(reply)), grader={"range": [-3, 3]}, retries=0)
    if result.status is GradeStatus.hack:
        assert (result.score, result.solved) == (-3, False)
    elif result.score is None:
        assert result.status is GradeStatus.grader_bad_reply
        assert not result.solved
        assert result.explanation
    else:
        assert result.status is GradeStatus.ok
        assert -3 <= result.score <= 3


def test_a_grader_has_a_rate_limit_of_its_own():
    times: list[float] = []

    async def note(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        return web.json_response({"score": 1.0})

    async def run(**limit: float) -> float:
        times.clear()
        async with scripted(note) as server:
            spec = Endpoint.model_validate({"type": "endpoint", "name": "f1", "url": "{tool_server}/grade", **limit})
            async with EndpointGrader(spec, server.endpoint, config.Tools(rate_limit=5)) as grader:
                context = RolloutContext("trace_1", EXAMPLE)
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
