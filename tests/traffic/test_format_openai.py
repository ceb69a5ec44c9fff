"""Logs of OpenAI's two APIs are read in the shapes in which people write them. Bodies come from the
stock client against a server of ours."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from rft.traffic import formats

CALL = {"id": "call_1", "type": "function", "function": {"name": "find_order", "arguments": '{"number": "7781"}'}}
TOOL = {"type": "function", "function": {"name": "find_order", "parameters": {"type": "object"}}}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is 7781?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "shipped", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "It was shipped."},
]


def read(*records: Any, named: str = "openai-chat-completions") -> list[Any]:
    """Everything that a log of these records yields."""
    block = "".join(json.dumps(record) + "\n" for record in records).encode()
    found = formats.recognize(block[: formats.HEAD], "log")
    assert (found.name, found.is_lines) == (named, True)
    return [row for _, row in found.rows(block, 1, "log")]


# -- bodies of the stock client --------------------------------------------------------------------
class Server:
    """Answers like OpenAI, and logs the bodies that it took and gave."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.log: list[dict[str, Any]] = []
        self.client: Any = None


@pytest.fixture
def server() -> Iterator[Server]:
    here = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = here.answers.pop(0)
            here.log.append({"request": request, "response": answer, "latency_s": 0.5})
            is_stream = isinstance(answer, list)
            chunks = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in answer) + "data: [DONE]\n\n"
            body = (chunks if is_stream else json.dumps(answer)).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{listening.server_port}/v1", api_key="none") as client:
        here.client = client
        yield here
    listening.shutdown()
    listening.server_close()


def completion(message: dict[str, Any], name: str = "chatcmpl-1", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None} | message}
    return {"id": name, "object": "chat.completion", "created": 1767225600, "model": "m", "choices": [choice]} | more


def response(name: str, *output: dict[str, Any], **more: Any) -> dict[str, Any]:
    shared = {"model": "m", "status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": name, "object": "response", "created_at": 1767225600, "output": list(output)} | shared | more


def text_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def call_item(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments}


def test_requests_of_the_stock_client_extend_each_other(server: Server) -> None:
    server.answers = [completion({"tool_calls": [CALL]}), completion({"content": "It was shipped."}, "chatcmpl-2")]
    messages: list[Any] = SAID[:2]
    dumped: list[dict[str, Any]] = []
    for _ in range(2):
        request = {"model": "m", "messages": list(messages), "tools": [TOOL], "metadata": {"conversation_id": "c-1"}}
        answer = server.client.chat.completions.create(**request)
        dumped.append({"request": request, "response": answer.model_dump()})
        messages += [answer.choices[0].message.model_dump(), SAID[3]]
    dumped = json.loads(json.dumps(dumped))  # what a wrapper logs: nulls and all
    for log in (server.log, dumped):
        first, second = read(*log)
        assert first["messages"] == SAID[:3]
        assert second["messages"] == SAID
        assert {row["conversation_id"] for row in (first, second)} == {"c-1"}
        assert (second["time"], second["tools"], second["continues"]) == ("2026-01-01T00:00:00Z", [TOOL], False)
        assert "note" not in first
    assert [row["latency_s"] for row in read(*server.log)] == [0.5, 0.5]


def test_a_streamed_answer_is_put_together(server: Server) -> None:
    def chunk(**delta: Any) -> dict[str, Any]:
        shared = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1767225600, "model": "m"}
        return shared | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    head, tail = {"name": "find_order", "arguments": '{"num'}, {"arguments": 'ber": "7781"}'}
    server.answers = [
        [
            chunk(role="assistant", content="It was "),
            chunk(content="shipped."),
            chunk(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": head}]),
            chunk(tool_calls=[{"index": 0, "function": tail}]),
        ]
    ]
    chunks = list(server.client.chat.completions.create(model="m", messages=SAID[:2], stream=True))
    (row,) = read({"request": {"messages": SAID[:2]}, "response": [one.model_dump() for one in chunks], "id": "r-1"})
    assert row["messages"][-1] == {"role": "assistant", "content": "It was shipped.", "tool_calls": [CALL]}


def test_responses_of_the_stock_client_chain(server: Server) -> None:
    server.answers = [
        response("resp_1", {"type": "reasoning", "id": "rs_1", "summary": []}, call_item("call_1", "find_order", "{}")),
        response("resp_2", text_item("It was shipped."), previous_response_id="resp_1"),
        response("resp_3", text_item("Bye."), previous_response_id="resp_2"),
    ]
    client = server.client.responses
    client.create(model="m", input="Where is 7781?", instructions="Be brief.")
    reply = {"type": "function_call_output", "call_id": "call_1", "output": "shipped"}
    client.create(model="m", input=[reply], instructions="Be brief.", previous_response_id="resp_1")
    client.create(model="m", input="Thanks.", previous_response_id="resp_2")
    first, second, third = read(*server.log, named="openai-responses")
    assert [row["continues"] for row in (first, second, third)] == [False, True, True]
    assert [row["conversation_id"] for row in (first, second, third)] == ["resp_1", "resp_1", "resp_2"]
    assert [row.get("alias") for row in (first, second, third)] == [None, "resp_2", "resp_3"]
    assert formats.roots([("resp_3", "resp_2"), ("resp_2", "resp_1")]) == {"resp_3": "resp_1", "resp_2": "resp_1"}
    whole = first["messages"]
    for row in (second, third):
        whole = formats.extend(whole, row["messages"])
    assert [message["role"] for message in whole] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert whole[2]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": CALL["function"] | {"arguments": "{}"}}
    ]


# -- shapes of a record ----------------------------------------------------------------------------
REQUEST = {"model": "m", "messages": SAID[:4], "tools": [TOOL]}
ANSWER = completion({"content": "It was shipped."})
SHAPES: dict[str, Any] = {
    "request and response": {"request": REQUEST, "response": ANSWER},
    "as JSON text": {"request": json.dumps(REQUEST), "response": json.dumps(ANSWER)},
    "with body": {"request": {"body": REQUEST}, "response": {"status_code": 200, "body": ANSWER}},
    "a batch, joined": {
        "custom_id": "r-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": REQUEST,
        "response": {"status_code": 200, "request_id": "q", "body": ANSWER},
        "error": None,
    },
    "input and output": {"input": REQUEST, "output": ANSWER},
    "a stored completion": ANSWER | {"messages": SAID[:4], "tools": [TOOL], "metadata": {}},
    "messages and response": {"messages": SAID[:4], "tools": [TOOL], "response": ANSWER},
    "messages and output": {
        "messages": SAID[:4],
        "tools": [TOOL],
        "output": {"role": "assistant", "content": "It was shipped."},
        "id": "chatcmpl-1",
        "created_at": "2026-01-01T01:00:00+01:00",
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_of_a_record_says_the_same(shape: str) -> None:
    (row,) = read(SHAPES[shape])
    assert (row["messages"], row["tools"], row["time"]) == (SAID, [TOOL], "2026-01-01T00:00:00Z")
    assert (row["conversation_id"], row["note"]) == ("chatcmpl-1", "no conversation id")
    assert row["record"] == SHAPES[shape]
    assert (row["tool_errors"], row["latency_s"], row["feedback"]) == (None, None, None)


@pytest.mark.parametrize(
    "place",
    [
        lambda name: {"conversation_id": name},
        lambda name: {"metadata": {"session_id": name}},
        lambda name: {"request": REQUEST | {"metadata": {"thread_id": name}}},
        lambda name: {"response": ANSWER | {"metadata": {"conversation_id": name}}},
    ],
)
def test_the_conversation_is_named_in_many_places(place: Callable[[str], dict[str, Any]]) -> None:
    (row,) = read({"request": REQUEST, "response": ANSWER} | place("c-7"))
    assert row["conversation_id"] == "c-7"
    assert "note" not in row


@pytest.mark.parametrize(
    ("logged", "seconds"),
    [
        ({"latency_ms": 1500}, 1.5),
        ({"duration_s": 2}, 2.0),
        ({"startTime": 1767225600.0, "endTime": 1767225603.5}, 3.5),
        ({"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:04Z"}, 4.0),
    ],
)
def test_latency_is_read_in_its_unit(logged: dict[str, Any], seconds: float) -> None:
    (row,) = read({"request": REQUEST, "response": ANSWER} | logged)
    assert row["latency_s"] == seconds


def test_a_list_of_stored_completions_is_a_document() -> None:
    stored = {"object": "list", "data": [SHAPES["a stored completion"]] * 2, "has_more": False}
    for content in (json.dumps(stored, indent=2), json.dumps(stored), json.dumps(stored["data"])):
        found = formats.recognize(content.encode(), "log")
        assert (found.name, found.is_lines) == ("openai-chat-completions", False)
        rows = list(found.rows(io.BytesIO(content.encode()), "log"))
        assert [(n, row["messages"]) for n, row in rows] == [(1, SAID), (2, SAID)]


def test_a_log_of_both_apis_is_read_as_what_each_record_is() -> None:
    both = [SHAPES["request and response"], {"request": {"input": "hi"}, "response": response("r", text_item("yes"))}]
    assert [len(row["messages"]) for row in read(*both)] == [5, 2]
    assert [len(row["messages"]) for row in read(*reversed(both), named="openai-responses")] == [2, 5]


def test_dialects_of_messages_become_one() -> None:
    old = {"role": "assistant", "content": "", "function_call": {"name": "find_order", "arguments": "{}"}}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    reply = {"role": "function", "name": "find_order", "content": "shipped"}
    custom = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    refusal = completion({"refusal": "No.", "tool_calls": [custom]})
    (row,) = read({"request": {"messages": [parts, old, reply]}, "response": refusal})
    called = {"type": "function", "function": {"name": "find_order", "arguments": "{}"}}
    assert row["messages"] == [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": "shipped"},
        {
            "role": "assistant",
            "content": "No.",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "shell", "arguments": "ls"}}],
        },
    ]


def test_items_of_hosted_tools_are_calls() -> None:
    mcp = {"type": "mcp_call", "id": "m", "name": "lookup", "arguments": "{}", "output": None, "error": "down"}
    search = {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}
    log = {"request": {"input": "hi"}, "response": response("r", mcp, search, text_item("It is down."))}
    (row,) = read(log, named="openai-responses")
    names = [call["function"]["name"] for message in row["messages"] for call in message.get("tool_calls", [])]
    assert (names, row["tool_errors"]) == (["lookup", "web_search"], 1)
    assert {"role": "tool", "content": "down", "tool_call_id": "m"} in row["messages"]


def test_a_conversation_on_the_servers_side_continues() -> None:
    log = {"request": {"input": "hi"}, "response": response("r", text_item("yes"), conversation={"id": "conv_1"})}
    (row,) = read(log, named="openai-responses")
    assert (row["conversation_id"], row["continues"], row["alias"]) == ("conv_1", True, "r")


def test_chains_of_any_length_and_rings_have_one_root() -> None:
    assert set(formats.roots([(f"r{n}", f"r{n - 1}") for n in range(5000, 0, -1)]).values()) == {"r0"}
    assert set(formats.roots([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]).values()) == {"a"}


# -- what is not a conversation --------------------------------------------------------------------
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"request": REQUEST, "response": {"status_code": 429, "body": {}}}, "failed request: status 429"),
        ({"request": REQUEST, "response": None, "error": {"code": "timeout"}}, "failed request: "),
        ({"custom_id": "r", "response": {"status_code": 200, "body": ANSWER}}, "no request: a batch's output"),
        ({"request": REQUEST, "response": ANSWER | {"created": None}}, "no time: "),
        ({"request": REQUEST, "response": ANSWER | {"id": None}}, "no id: "),
        ({"request": {"messages": IMAGE}, "response": ANSWER}, "not text: messages[0].content[0]"),
        ({"request": {"input": ["a"], "model": "e"}, "response": {"object": "list", "data": []}}, "no request: "),
        ({"request": {"messages": []}, "response": ANSWER}, "messages: "),
        ({"request": {"messages": [{"role": "bot"}]}, "response": ANSWER}, "messages: messages[0]"),
        ({"request": REQUEST, "response": ANSWER | {"choices": []}}, "no answer: "),
        (
            {"request": {"input": [{"type": "item_reference", "id": "x"}]}, "response": response("r", text_item("y"))},
            "messages: input[0] is of type item_reference",
        ),
        (
            {"request": {"input": "hi"}, "response": response("r", status="failed")},
            "failed request: the response is failed",
        ),
    ],
)
def test_what_is_no_conversation_says_why(record: dict[str, Any], message: str) -> None:
    (_, why) = read(SHAPES["request and response"], record)
    assert why.startswith(message)


def test_lines_are_numbered_and_a_broken_one_costs_itself() -> None:
    line = json.dumps(SHAPES["request and response"]).encode()
    block = line + b"\n\n\xff\xfe\n" + line[:50] + b'\n{"a": NaN}\n[1]\r\n"\\ud800"\n' + line + b"\r\n"
    found = formats.recognize(line, "log")
    rows = [(n, row if isinstance(row, str) else "read") for n, row in found.rows(block, 10, "log")]
    assert [n for n, _ in rows] == [10, 12, 13, 14, 15, 16, 17]
    assert [row.split(":")[0] for _, row in rows] == [
        "read", "not UTF-8", "not JSON", "not JSON", "no object", "not JSON", "read",
    ]  # fmt: skip
