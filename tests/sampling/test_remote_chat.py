"""A policy behind plain chat completions: what an endpoint may answer, what the loop hears of it,
and what goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.rollouts.policy import PolicyFailed
from rft.sampling.remote import ChatPolicy, connection
from rft.sampling.remote.tokens import fold
from rft.types import Opening, Reading, Sampled, ToolCall, ToolResult, Usage
from rft.wire.contract import Malformed
from tests import tiny_recipe
from tests.scripted_server import Scripted, says, scripted

MODEL = "tiny"
OPENING = Opening(({"role": "user", "content": "value of k0002"},), example_id="n-7")


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BACKOFF_S", 0.01)


def at(url: str, **more: Any) -> config.PolicyServer:
    return config.PolicyServer.model_validate(
        {"kind": "chat", "url": url, "model": MODEL, "retries": 1, "timeout_s": 60, **more}
    )


def reply(content: str | None = None, calls: Any = None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls is not None else {}), **more}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def call(arguments: Any, call_id: Any = "call_abc", name: Any = "lookup") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turns_of(*replies: dict[str, Any], tools: Sequence[dict[str, Any]] = ()) -> tuple[list[Sampled], Scripted]:
    """The turns that the replies become, each call answered, and what was asked."""

    async def all_of_it() -> tuple[list[Sampled], Scripted]:
        async with scripted(*(says(one) for one in replies)) as server:
            (dialogue,) = ChatPolicy(at(server.endpoint.url), tools).open([OPENING], [(0,)], 0.5, 200)
            turns = []
            for _ in replies:
                turns.append(await dialogue.sample(30, 10.0))
                calls = turns[-1].reading.calls
                dialogue.append(calls, [ToolResult(one.call_id, one.problem or "r") for one in calls])
            return turns, server

    return asyncio.run(all_of_it())


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (call('{"key": " k1"}'), ToolCall("call_abc", "lookup", '{"key": " k1"}')),
        (call({"key": " ü"}), ToolCall("call_abc", "lookup", '{"key": " ü"}')),
        (call("{oops"), ToolCall("call_abc", "lookup", "{oops", "the arguments of lookup are not JSON")),
        (call(""), ToolCall("call_abc", "lookup", "{}")),
        (call("[1]"), ToolCall("call_abc", "lookup", "[1]", "the arguments of lookup must be a JSON object")),
        (call(None), ToolCall("call_abc", "lookup", "", "the arguments of lookup are not JSON text")),
        (call("{}", name=None), ToolCall("call_abc", "", "", "a tool call without a function's name")),
        (call("{}", call_id=None), ToolCall("call_0_0", "lookup", "{}")),
        ("lookup", ToolCall("call_0_0", "", "", "a tool call without a function's name")),
    ],
)
def test_calls_keep_their_ids_and_a_bad_one_says_what_is_wrong(given: Any, read: ToolCall):
    (sampled,), _ = turns_of(reply(None, [given], "tool_calls"))
    assert sampled == Sampled("", Reading("", (read,)))


def test_an_id_that_is_there_twice_is_told_apart():
    (sampled,), _ = turns_of(reply("", [call("{}"), call('{"key": "k"}')], "tool_calls"))
    assert [one.call_id for one in sampled.reading.calls] == ["call_abc", "call_abc_"]


def test_what_goes_back_is_what_came_with_its_reasoning():
    replies = reply(None, [call("{}"), call("{oops", "call_bad")], "tool_calls", reasoning_content="hm"), reply("9153")
    turns, server = turns_of(*replies)
    assert turns[0].reading.reasoning == "hm"
    assert turns[1] == Sampled("9153", Reading("9153"))
    assert server.bodies[1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [call("{}"), call("{}", "call_bad")],
        },
        {"role": "tool", "tool_call_id": "call_abc", "content": "r"},
        {"role": "tool", "tool_call_id": "call_bad", "content": "the arguments of lookup are not JSON"},
    ]


def test_the_body_is_plain_chat_completions():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    _, server = turns_of(reply("x"), tools=[tool])
    seed = fold((0,), 0)
    assert server.bodies == [
        {
            "model": MODEL,
            "messages": list(OPENING.messages),
            "temperature": 0.5,
            "max_tokens": 30,
            "seed": seed,
            "tools": [tool],
        }
    ]
    assert server.paths == ["/v1/chat/completions"]
    assert "tools" not in turns_of(reply("x"))[1].bodies[0]


def test_a_turn_cut_by_its_limit_has_not_ended():
    assert [one.ended for one in turns_of(reply("cut", finish="length"), reply("whole"))[0]] == [False, True]


@pytest.mark.parametrize(
    "bad", [reply("x", finish="content_filter"), reply(None, "no list"), {"error": {"message": "upstream"}}, []]
)
def test_a_reply_that_is_none_leaves_the_turn_unsampled(bad: Any):
    if bad == []:
        with pytest.raises(InfrastructureError, match="no 'choices'"):
            turns_of(bad)
    else:
        with pytest.raises(PolicyFailed):
            turns_of(bad)


# -- a server that says nothing -------------------------------------------------------------------
async def never(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.parametrize(
    ("first", "deadline_s", "limit"),
    [
        ([], 9.0, "0 s (policy.server.timeout_s)"),
        ([], 0.4, "0 s (policy.server.timeout_s)"),
        ([], 0.2, "0 s (the turn's deadline)"),
        ([says(reply("4711"))], 9.0, None),
    ],
)
def test_who_waits_for_a_first_reply_is_told_so_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: list[Any],
    deadline_s: float,
    limit: str | None,
) -> None:
    """It was silent for as long as the timeout. One that has replied is only slow; a list of models
    is no such reply."""

    async def all_of_it() -> str:
        async with scripted(says({"data": []}), *first, never) as server:
            policy = ChatPolicy(at(server.endpoint.url, timeout_s=0.4, retries=0), ())
            dialogues = policy.open([OPENING] * 3, [(0,)] * 3, 0.5, 200)
            await policy.fetch_context_limit(None)
            if first:
                await dialogues[0].sample(30, 10.0)
            monkeypatch.setattr(connection, "QUIET_S", 0.0)
            failed = await asyncio.gather(*(one.sample(30, deadline_s) for one in dialogues), return_exceptions=True)
            assert [type(one) for one in failed] == [PolicyFailed] * 3
            return server.endpoint.url

    url = asyncio.run(all_of_it())
    told = f"[server] waits for a first reply from {url}/v1/chat/completions, for up to {limit}\n"
    assert capsys.readouterr().out == (told if limit else "")


@pytest.mark.parametrize(
    "ending", ["", "/", "/v1", "/v1/", "/chat/completions", "/v1/chat/completions", "/v1/chat/completions/"]
)
def test_an_address_may_be_given_down_to_the_route(ending: str) -> None:
    assert ChatPolicy(at(f"http://h/api{ending}"), ()).connection.url == "http://h/api"


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"prompt_tokens": 90, "completion_tokens": 7}, Usage(90, 0, 7)),
        (
            {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}},
            Usage(90, 64, 7),
        ),
        ({"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": None}, Usage(90, 0, 7)),
        (
            {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 91}},
            Usage(90, 0, 7),
        ),
        ({"prompt_tokens": 90}, None),
        ({"prompt_tokens": -1, "completion_tokens": 7}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": True, "completion_tokens": 7}, None),
        (None, None),
    ],
)
def test_a_turn_costs_what_the_endpoint_counts(usage: Any, cost: Usage | None):
    (sampled,), _ = turns_of({**reply("x"), "usage": usage})
    assert sampled.usage == cost


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
    too_long = says({"error": {"code": "context_length_exceeded", "message": "too many"}}, status=400)

    async def play_with(*answers: Any) -> Sampled:
        async with scripted(*answers) as server:
            (dialogue,) = ChatPolicy(at(server.endpoint.url), []).open([OPENING], [(0,)], 0.5, 200)
            sampled = await dialogue.sample(20, 10.0)
            dialogue.append(sampled.reading.calls, [ToolResult("call_abc", "r")])
            return await dialogue.sample(20, 10.0)

    assert asyncio.run(play_with(says(reply(None, [call("{}")], "tool_calls")), too_long)) == Sampled(
        "", Reading(""), ended=False, usage=Usage()
    )
    with pytest.raises(UserError, match=r"example 'n-7': its opening does not fit .*context_length_exceeded.*Shorten"):
        asyncio.run(play_with(too_long))


# -- the limit of a context ------------------------------------------------------------------------
@dataclass
class Endpoint:
    """Chat completions that count a token for each `x` of the messages. `models`: the entry in its
    list, or the status of its refusal."""

    models: dict[str, Any] | int = 404
    counts: bool = False
    """It has vLLM's /tokenize."""
    takes: int | None = None
    """Longer contexts are refused."""
    calls: int = 0
    """Turns that call a tool before the answer."""
    asked: list[tuple[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.asked.append((request.path, body))
        if request.path == "/v1/models":
            if isinstance(self.models, int):
                return web.json_response({"error": {"message": "no list"}}, status=self.models)
            return web.json_response(
                {"object": "list", "data": [{"id": "other", "max_model_len": 7}, {"id": MODEL, **self.models}]}
            )
        num_tokens = json.dumps(body.get("messages")).count("x")
        if request.path == "/tokenize" and self.counts:
            return web.json_response({"count": num_tokens, "max_model_len": 10_000, "tokens": []})
        if request.path != "/v1/chat/completions":
            return web.json_response({"detail": "Not Found"}, status=404)
        most = body.get("max_tokens") or body["max_completion_tokens"]
        if self.takes is not None and num_tokens + most > self.takes:
            return web.json_response(
                {"error": {"message": f"This model's maximum context length is {self.takes} tokens."}}, status=400
            )
        num_answers = sum(message["role"] == "assistant" for message in body["messages"])
        made = (
            reply(None, [call("{}", f"call_{num_answers}")], "tool_calls")
            if num_answers < self.calls
            else reply("4711")
        )
        return web.json_response({**made, "usage": {"prompt_tokens": num_tokens, "completion_tokens": 1}})

    def turns(self) -> list[Any]:
        return [body for path, body in self.asked if path == "/v1/chat/completions"]


def using(endpoint: Endpoint, use: Callable[[ChatPolicy], Awaitable[Any]], **more: Any) -> Any:
    async def all_of_it() -> Any:
        async with scripted(endpoint.answer) as server, ChatPolicy(at(server.endpoint.url, **more), []) as policy:
            return await use(policy)

    return asyncio.run(all_of_it())


def long(name: str, num_tokens: int, padding: int = 0) -> Opening:
    return Opening(({"role": "user", "content": "x" * num_tokens + "." * padding},), example_id=name)


@pytest.mark.parametrize(
    ("models", "limit"),
    [
        ({"max_model_len": 300}, 300),
        ({"context_length": 400}, 400),
        ({"context_window": 500}, 500),
        ({"context_length": "many"}, None),
        ({}, None),
        *((status, None) for status in (404, 405, 501)),
    ],
)
def test_an_endpoint_may_say_how_long_a_context_it_takes(models: Any, limit: int | None):
    async def use(policy: ChatPolicy) -> int | None:
        await policy.fetch_context_limit(None)
        return policy.limit(None)

    assert using(Endpoint(models), use) == limit


@pytest.mark.parametrize("status", [401, 500, 503])
def test_an_endpoint_that_fails_says_nothing_about_its_limit(status: int):
    with pytest.raises(InfrastructureError, match=str(status)):
        using(Endpoint(status), lambda policy: policy.fetch_context_limit(None))


def test_nobody_there_is_an_error():
    with pytest.raises(InfrastructureError, match="Is that server running"):
        asyncio.run(ChatPolicy(at("http://127.0.0.1:9"), []).fetch_context_limit(None))


def test_a_limit_that_the_endpoint_does_not_take_is_refused():
    using(Endpoint({"context_window": 500}), lambda policy: policy.fetch_context_limit(500))
    with pytest.raises(ConfigError, match=r"rollout\.max_tokens = 501, but the server takes 500"):
        using(Endpoint({"context_window": 500}), lambda policy: policy.fetch_context_limit(501))


@pytest.mark.parametrize(("models", "num_asked"), [(404, [90] * 4), ({"max_model_len": 7050}, [90, 48])])
def test_the_context_is_bounded_by_what_the_endpoint_says_and_else_not_at_all(models: Any, num_asked: list[int]):
    """25 kB rows met a bound of 512 tokens that nobody had set, and ended `max_tokens` after one
    call."""
    endpoint = Endpoint(models, calls=3)

    async def use(policy: ChatPolicy) -> bool:
        await policy.fetch_context_limit(None)
        (dialogue,) = policy.open([long("n-1", 7001)], [(0,)], 0.5, None)
        while True:
            sampled = await dialogue.sample(90, 10.0)
            calls = sampled.reading.calls
            if not calls:
                return True
            if dialogue.append(calls, [ToolResult(calls[0].call_id, "x" * 60)]) is None:
                return False

    assert using(endpoint, use) is (models == 404)
    assert [body["max_tokens"] for body in endpoint.turns()] == num_asked


@pytest.mark.parametrize(
    ("models", "configured"), [({"max_model_len": 200}, None), ({"max_model_len": 300}, 200), (404, 200)]
)
def test_a_server_that_counts_finds_the_opening_that_does_not_fit(models: Any, configured: int | None):
    """Though it is not the longest by characters; one token less fits. Nothing is sampled."""
    for length, fits in ((199, True), (200, False)):
        endpoint = Endpoint(models, counts=True)

        async def use(policy: ChatPolicy, length: int = length) -> None:
            await policy.fetch_context_limit(configured)
            await policy.check_openings([long("n-1", 10, 900), long("n-2", length), long("n-3", 20)], configured)

        if fits:
            using(endpoint, use)
        else:
            with pytest.raises(
                UserError,
                match=r"example 'n-2': its opening alone has 200 tokens, and rollout\.max_tokens is 200 .*shorten",
            ):
                using(endpoint, use)
        assert endpoint.turns() == []


@pytest.mark.parametrize(
    ("endpoint", "configured", "message"),
    [
        (Endpoint(), 300, r"example 'n-2': its opening alone has 300 tokens, and rollout\.max_tokens is 300"),
        (
            Endpoint({"max_model_len": 250}),
            None,
            r"example 'n-2': its opening alone has 300 tokens, and rollout\.max_tokens is 250",
        ),
        (Endpoint(takes=300), None, r"example 'n-2': its opening does not fit .*maximum context length is 300"),
        (Endpoint(takes=300), 1000, r"example 'n-2': its opening does not fit .*maximum context length is 300"),
        (Endpoint(takes=301), None, None),
        (Endpoint(takes=301), 301, None),
        (Endpoint({"max_model_len": 301}), None, None),
    ],
)
def test_one_that_cannot_count_is_tried_with_the_longest_opening(
    endpoint: Endpoint, configured: int | None, message: str | None
):
    async def use(policy: ChatPolicy) -> None:
        await policy.fetch_context_limit(configured)
        for _ in range(2):
            await policy.check_openings([long("n-1", 10), long("n-2", 300), long("n-3", 20)], configured)

    if message is None:
        using(endpoint, use)
    else:
        with pytest.raises(UserError, match=message):
            using(endpoint, use)
    (tried,) = endpoint.turns()
    assert (tried["messages"], tried["max_tokens"]) == (list(long("n-2", 300).messages), 1)


def test_a_trial_that_fails_is_no_fit():
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9"):
        asyncio.run(ChatPolicy(at("http://127.0.0.1:9"), []).check_openings([OPENING], None))


# -- dialects, formats -----------------------------------------------------------------------------
def test_a_reasoning_model_is_asked_in_its_own_dialect(capsys: pytest.CaptureFixture[str]):
    endpoint = Endpoint()

    async def use(policy: ChatPolicy) -> None:
        for temperature in (1.0, 0.0, 0.0):
            (dialogue,) = policy.open([OPENING], [(0,)], temperature, None)
            await dialogue.sample(30, 10.0)

    using(endpoint, use, dialect="openai_reasoning")
    body = {"model": MODEL, "messages": list(OPENING.messages), "max_completion_tokens": 30, "seed": fold((0,), 0)}
    assert endpoint.turns() == [body] * 3
    assert capsys.readouterr().out.count("takes no temperature") == 1


REFUSALS = {
    "max_tokens": (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    ),
    "temperature": (
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
    ),
    "other words": "invalid temperature: only 1 is allowed for this model",
}


@pytest.mark.parametrize("why", REFUSALS.values(), ids=REFUSALS)
def test_the_refusal_of_a_reasoning_model_names_the_dialect(why: str):
    async def use(url: str, dialect: Any) -> None:
        (dialogue,) = ChatPolicy(at(url, dialect=dialect), []).open([OPENING], [(0,)], 0.0, None)
        await dialogue.sample(30, 10.0)

    async def all_of_it(dialect: str) -> None:
        async with scripted(says({"error": {"message": why}}, status=400)) as server:
            await use(server.endpoint.url, dialect)

    remedy = r"set policy\.server\.dialect: openai_reasoning\.$"
    with pytest.raises(InfrastructureError, match=remedy):
        asyncio.run(all_of_it("openai"))
    with pytest.raises(InfrastructureError) as told:
        asyncio.run(all_of_it("openai_reasoning"))
    assert "set policy.server.dialect" not in str(told.value)


@pytest.mark.parametrize(
    "why",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 96.",
        "'messages' must hold text",
        "the tool temperature_at has no parameters",
    ],
)
def test_another_refusal_names_no_dialect(why: str):
    async def use() -> None:
        async with scripted(says({"error": {"message": why}}, status=400)) as server:
            (dialogue,) = ChatPolicy(at(server.endpoint.url), []).open([OPENING], [(0,)], 0.0, None)
            await dialogue.sample(30, 10.0)

    with pytest.raises(InfrastructureError) as told:
        asyncio.run(use())
    assert "dialect" not in str(told.value)


def test_a_reasoning_model_may_call_one_token_too_few():
    """OpenAI's answer to a trial of one token."""
    few = says(
        {"error": {"message": "Could not finish the message because max_tokens or model output limit was reached."}},
        status=400,
    )

    async def use(dialect: str) -> None:
        async with scripted(says({}, status=404), few) as server:
            await ChatPolicy(at(server.endpoint.url, dialect=dialect), []).check_openings([OPENING], 200)

    asyncio.run(use("openai_reasoning"))
    with pytest.raises(InfrastructureError, match="Could not finish"):
        asyncio.run(use("openai"))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_dialect_is_for_chat(kind: str):
    with pytest.raises(
        ConfigError, match=rf"dialect = openai_reasoning is for kind chat, but kind is {kind}\. Remove dialect"
    ):
        config.parse(
            {"kind": kind, "url": "http://h", "model": "m", "dialect": "openai_reasoning"},
            "params.yaml",
            config.PolicyServer,
        )


def test_a_temperature_that_a_reasoning_model_cannot_honour_is_refused(tmp_path: Path):
    server = {"kind": "chat", "url": "http://h", "model": "m"}
    given: dict[str, Any] = {"baseline": {"temperature": 0.7}, "challenger": {"temperature": 1.2}}
    tiny_recipe.params(tmp_path, policy={"server": server}, **given)
    reasoning = {"server": {**server, "dialect": "openai_reasoning"}}
    tiny_recipe.params(tmp_path, policy=reasoning)
    tiny_recipe.params(tmp_path, policy=reasoning, prompt={"temperature": 1})
    with pytest.raises(
        ConfigError,
        match=r"^params\.yaml: baseline\.temperature = 0\.7, challenger\.temperature = 1\.2 cannot .*dialect",
    ):
        tiny_recipe.params(tmp_path, policy=reasoning, **given)
    with pytest.raises(ConfigError, match=r"^params\.yaml: prompt\.temperature = 0\.5 cannot"):
        tiny_recipe.params(tmp_path, policy=reasoning, prompt={"temperature": 0.5})


def test_an_openings_format_goes_along_with_every_turn():
    endpoint = Endpoint(calls=1)
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}

    async def use(policy: ChatPolicy) -> None:
        free, bound = policy.open([OPENING, replace(OPENING, response_format=wanted)], [(0,), (1,)], 0.5, None)
        await free.sample(30, 10.0)
        sampled = await bound.sample(30, 10.0)
        bound.append(sampled.reading.calls, [ToolResult("call_0", "r")])
        await bound.sample(30, 10.0)

    using(endpoint, use)
    free, *bound = endpoint.turns()
    assert "response_format" not in free
    assert [body["response_format"] for body in bound] == [wanted] * 2
    assert [body["messages"][0] for body in bound] == [OPENING.messages[0]] * 2, "and the messages stay as they are"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["{}", "{oops", "[1]", "call_abc", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "arguments", "function", "reasoning"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(message=JSON, finish=st.sampled_from(["stop", "length", "tool_calls"]) | JSON, usage=JSON, calls=JSON)
def test_any_chat_reply_is_a_turn_or_a_typed_error(message: Any, finish: Any, usage: Any, calls: Any):
    policy = ChatPolicy(at("http://h"), [])
    (dialogue,) = policy.open([OPENING], [(0,)], 0.0, 200)
    for one in (
        message,
        {"content": message, "tool_calls": calls},
        {"content": "x", "tool_calls": [{"id": "c", "function": message}, calls]},
    ):
        try:
            sampled, sent_back, _ = dialogue._read(
                json.dumps({"choices": [{"message": one, "finish_reason": finish}], "usage": usage}).encode()
            )
        except (Malformed, InfrastructureError):
            continue
        ids = [call.call_id for call in sampled.reading.calls]
        assert len(set(ids)) == len(ids)
        assert all(
            isinstance(json.loads(call["function"]["arguments"]), dict) for call in sent_back.get("tool_calls", [])
        )
