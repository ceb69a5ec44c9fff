"""A policy behind plain chat completions: what an endpoint may answer, what the loop hears of it, and what goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config
from rft.errors import InfrastructureError
from rft.remote import ChatPolicy, connection
from rft.remote.connection import Malformed
from rft.remote.tokens import fold
from rft.rollout import PolicyFailed
from rft.types import Opening, Reading, Sampled, ToolCall, ToolResult
from tests.scripted_server import Scripted, says, scripted

MODEL = "tiny"
OPENING = Opening(({"role": "user", "content": "value of k0002"},))


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BACKOFF_S", 0.01)


def at(url: str) -> config.PolicyServer:
    return config.PolicyServer(kind="chat", url=url, model=MODEL, retries=1, timeout_s=60)


def reply(content: str | None = None, calls: Any = None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls is not None else {}), **more}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def call(arguments: Any, call_id: Any = "call_abc", name: Any = "lookup") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def hear(*replies: dict[str, Any], tools: Sequence[dict[str, Any]] = ()) -> tuple[list[Sampled], Scripted]:
    """The turns that the replies become, each call answered, and what was asked."""

    async def all_of_it() -> tuple[list[Sampled], Scripted]:
        async with scripted(*(says(one) for one in replies)) as server:
            (dialogue,) = ChatPolicy(at(server.endpoint.url), tools).open([OPENING], [(0,)], 0.5, 200)
            heard = []
            for _ in replies:
                heard.append(await dialogue.sample(30, 10.0))
                calls = heard[-1].reading.calls
                dialogue.append(calls, [ToolResult(one.call_id, one.problem or "r") for one in calls])
            return heard, server

    return asyncio.run(all_of_it())


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (call('{"key": " k1"}'), ToolCall("call_abc", "lookup", '{"key": " k1"}')),
        (call({"key": " ü"}), ToolCall("call_abc", "lookup", '{"key": " ü"}')),
        (call("{oops"), ToolCall("call_abc", "lookup", "{oops", "the arguments of lookup are not JSON")),
        (call("[1]"), ToolCall("call_abc", "lookup", "[1]", "the arguments of lookup must be a JSON object")),
        (call(None), ToolCall("call_abc", "lookup", "", "the arguments of lookup are no JSON text")),
        (call("{}", name=None), ToolCall("call_abc", "", "", "a tool call without a function's name")),
        (call("{}", call_id=None), ToolCall("call_0_0", "lookup", "{}")),
        ("lookup", ToolCall("call_0_0", "", "", "a tool call without a function's name")),
    ],
)
def test_calls_keep_their_ids_and_a_bad_one_says_what_is_wrong(given: Any, read: ToolCall):
    (sampled,), _ = hear(reply(None, [given], "tool_calls"))
    assert sampled == Sampled("", Reading("", (read,)))


def test_an_id_that_is_there_twice_is_told_apart():
    (sampled,), _ = hear(reply("", [call("{}"), call('{"key": "k"}')], "tool_calls"))
    assert [one.call_id for one in sampled.reading.calls] == ["call_abc", "call_abc_"]


def test_what_goes_back_is_what_came_with_its_reasoning():
    replies = reply(None, [call("{}"), call("{oops", "call_bad")], "tool_calls", reasoning_content="hm"), reply("9153")
    heard, server = hear(*replies)
    assert heard[0].reading.reasoning == "hm"
    assert heard[1] == Sampled("9153", Reading("9153"))
    assert server.bodies[1]["messages"][1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call("{}"), call("{}", "call_bad")]},
        {"role": "tool", "tool_call_id": "call_abc", "content": "r"},
        {"role": "tool", "tool_call_id": "call_bad", "content": "the arguments of lookup are not JSON"},
    ]


def test_the_body_is_plain_chat_completions():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    _, server = hear(reply("x"), tools=[tool])
    seed = fold((0,), 0)
    assert server.bodies == [
        {"model": MODEL, "messages": list(OPENING.messages), "temperature": 0.5, "max_tokens": 30, "seed": seed, "tools": [tool]}
    ]
    assert server.paths == ["/v1/chat/completions"]
    assert "tools" not in hear(reply("x"))[1].bodies[0]


def test_a_turn_cut_by_its_limit_has_not_ended():
    assert [one.ended for one in hear(reply("cut", finish="length"), reply("whole"))[0]] == [False, True]


@pytest.mark.parametrize("bad", [reply("x", finish="content_filter"), reply(None, "no list"), {"error": {"message": "upstream"}}, []])
def test_a_reply_that_is_none_leaves_the_turn_unsampled(bad: Any):
    if bad == []:
        with pytest.raises(InfrastructureError, match="no 'choices'"):
            hear(bad)
    else:
        with pytest.raises(PolicyFailed):
            hear(bad)


def test_usage_bounds_the_context():
    async def all_of_it() -> None:
        many = {**reply("", [call("{}")], "tool_calls"), "usage": {"prompt_tokens": 190, "completion_tokens": 10}}
        few = {**many, "usage": {"prompt_tokens": 80, "completion_tokens": 10}}
        async with scripted(says(few), says(many)) as server:
            (dialogue,) = ChatPolicy(at(server.endpoint.url), []).open([OPENING], [(0,)], 0.5, 200)
            await dialogue.sample(500, 10.0)
            assert dialogue.append([ToolCall("c", "lookup", "{}")], [ToolResult("c", "r")]) == ()
            await dialogue.sample(500, 10.0)
            assert [body["max_tokens"] for body in server.bodies] == [200, 110]
            assert dialogue.append([ToolCall("c", "lookup", "{}")], [ToolResult("c", "r")]) is None

    asyncio.run(all_of_it())


def test_a_dialogue_that_outgrows_the_endpoint_is_the_policys_doing():
    long = says({"error": {"code": "context_length_exceeded", "message": "too many"}}, status=400)

    async def play_with(*answers: Any) -> Sampled:
        async with scripted(*answers) as server:
            (dialogue,) = ChatPolicy(at(server.endpoint.url), []).open([OPENING], [(0,)], 0.5, 200)
            sampled = await dialogue.sample(20, 10.0)
            dialogue.append(sampled.reading.calls, [ToolResult("call_abc", "r")])
            return await dialogue.sample(20, 10.0)

    assert asyncio.run(play_with(says(reply(None, [call("{}")], "tool_calls")), long)) == Sampled("", Reading(""), ended=False)
    with pytest.raises(InfrastructureError, match="400"):
        asyncio.run(play_with(long))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["{}", "{oops", "[1]", "call_abc", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "name", "arguments", "function", "reasoning"]), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(message=JSON, finish=st.sampled_from(["stop", "length", "tool_calls"]) | JSON, usage=JSON, calls=JSON)
def test_any_chat_reply_is_a_turn_or_a_typed_error(message: Any, finish: Any, usage: Any, calls: Any):
    policy = ChatPolicy(at("http://h"), [])
    (dialogue,) = policy.open([OPENING], [(0,)], 0.0, 200)
    for one in (message, {"content": message, "tool_calls": calls}, {"content": "x", "tool_calls": [{"id": "c", "function": message}, calls]}):
        try:
            sampled, sent_back, _ = dialogue._read(json.dumps({"choices": [{"message": one, "finish_reason": finish}], "usage": usage}).encode())
        except (Malformed, InfrastructureError):
            continue
        ids = [call.call_id for call in sampled.reading.calls]
        assert len(set(ids)) == len(ids)
        assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in sent_back.get("tool_calls", []))
