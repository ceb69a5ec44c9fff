"""Traces that MLflow records of an agent become conversations, in each form in which MLflow exports
them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import mlflow
import openai
import pandas
import pytest
from mlflow.entities import AssessmentSource, SpanType, Trace

from rft.traffic import formats
from rft.traffic.formats import mlflow_traces

RECORDED = Path(__file__).with_name("recorded") / "mlflow.jsonl"
CALL = {"id": "call_1", "type": "function", "function": {"name": "find_order", "arguments": '{"number": "7781"}'}}
SCHEMA = {"type": "object", "properties": {"number": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "find_order", "parameters": SCHEMA}}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is 7781?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "{}", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "It was shipped."},
]


class Answering(BaseHTTPRequestHandler):
    """A model that calls the tool, then answers."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_first = request["messages"][-1]["role"] == "user"
        message = {"role": "assistant"} | ({"content": None, "tool_calls": [CALL]} if is_first else SAID[-1])
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        shared = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1767225600, "model": "m", "usage": usage}
        body = json.dumps(shared | {"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def record(folder: Path, url: str) -> list[Trace]:
    """Let MLflow trace an agent twice: in a session, with an expectation, and alone."""

    @mlflow.trace(span_type=SpanType.TOOL)
    def find_order(number: str) -> dict[str, str]:
        raise LookupError(number)

    @mlflow.trace(span_type=SpanType.AGENT)
    def agent(client: Any, session: str | None) -> str:
        metadata = {"mlflow.trace.user": "u-1"} | ({"mlflow.trace.session": session} if session else {})
        mlflow.update_current_trace(metadata=metadata)
        messages: list[Any] = SAID[:2]
        asked = client.chat.completions.create(model="m", messages=messages, tools=[TOOL]).choices[0].message
        with contextlib.suppress(LookupError):
            find_order("7781")
        reply = {"role": "tool", "tool_call_id": "call_1", "content": "{}"}
        messages = [*messages, asked.model_dump(exclude_none=True), reply]
        return client.chat.completions.create(model="m", messages=messages, tools=[TOOL]).choices[0].message.content

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    experiment = mlflow.create_experiment("traffic", artifact_location=f"{folder}/artifacts")
    mlflow.set_experiment(experiment_id=experiment)
    mlflow.openai.autolog()
    with openai.OpenAI(base_url=url, api_key="none") as client:
        agent(client, "s-1")
        agent(client, None)
    mlflow.openai.autolog(disable=True)
    mlflow.flush_trace_async_logging()
    person = AssessmentSource(source_type="HUMAN", source_id="ann")
    for found in mlflow.search_traces(locations=[experiment], return_type="list"):
        assert isinstance(found, Trace)
        name = found.info.trace_id
        if "mlflow.trace.session" in found.info.trace_metadata:
            mlflow.log_expectation(trace_id=name, name="expected_response", value="shipped", source=person)
        else:
            mlflow.log_feedback(trace_id=name, name="answer", value="lost", source=person)
            mlflow.log_feedback(trace_id=name, name="relevance", value=0.5)  # of code, not of a person
    return [found for found in mlflow.search_traces(locations=[experiment], return_type="list") if found]  # pyright: ignore


def read(content: bytes, is_lines: bool) -> list[Any]:
    found = formats.recognize(content[: formats.HEAD], "log")
    assert (found.name, found.is_lines) == ("mlflow-traces", is_lines)
    rows = found.rows(content, 1, "log") if is_lines else found.rows(io.BytesIO(content), "log")
    return sorted((row for _, row in rows), key=lambda row: row["time"])


def check(rows: list[Any]) -> None:
    first, second = rows
    assert first["messages"] == second["messages"] == SAID
    assert (first["conversation_id"], first["feedback"], first["tool_errors"]) == ("s-1", "shipped", 1)
    assert second["feedback"] == "lost"
    assert (second["note"], second["continues"], first["continues"]) == ("no conversation id", False, True)
    assert (first["record"]["mlflow.trace.user"], first["tools"]) == ("u-1", [TOOL])
    assert 0 < first["latency_s"] < 60
    assert "note" not in first


def test_traces_in_each_form_of_export() -> None:
    """Of MLflow 3.17, as the next test records them."""
    content = RECORDED.read_bytes()
    check(read(content, True))
    traces = [Trace.from_json(line) for line in content.decode().splitlines()]
    check(read("\n".join(trace.to_json(pretty=True) for trace in traces).encode(), False))
    check(read(json.dumps([trace.to_dict() for trace in traces]).encode(), False))
    searched = {"traces": [trace.to_dict() for trace in traces], "next_page_token": None}
    check(read(json.dumps(searched, indent=2).encode(), False))  # as `mlflow traces search --output json` prints
    table = pandas.DataFrame([trace.to_pandas_dataframe_row() for trace in traces])
    check(read(str(table.to_json(orient="records", lines=True)).encode(), True))


@pytest.mark.slow
def test_what_mlflow_records_today(tmp_path: Path) -> None:
    """RECORD=1 keeps it as `recorded/mlflow.jsonl`."""
    before = mlflow.get_tracking_uri()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own
            traces = record(tmp_path, f"http://127.0.0.1:{server.server_port}/v1")
    finally:
        mlflow.set_tracking_uri(before)
        server.shutdown()
        server.server_close()
    content = "".join(trace.to_json() + "\n" for trace in traces)
    check(read(content.encode(), True))
    if os.environ.get("RECORD"):
        RECORDED.write_text(
            "".join(json.dumps(impersonal(trace.to_dict())) + "\n" for trace in traces), encoding="utf-8"
        )


def impersonal(found: dict[str, Any]) -> dict[str, Any]:
    """Take out of a trace what tells of the machine that recorded it."""
    for place in ("mlflow.source.name", "mlflow.source.git.commit", "mlflow.source.git.branch", "mlflow.user"):
        found["info"]["trace_metadata"].pop(place, None)
    found["info"]["tags"].pop("mlflow.artifactLocation", None)
    for one in found["data"]["spans"]:
        one["events"] = []  # stack traces, with paths
    return found


def span(kind: str, given: Any, answer: Any, start: int = 1, **more: Any) -> dict[str, Any]:
    values = {"mlflow.spanType": kind, "mlflow.spanInputs": given, "mlflow.spanOutputs": answer}
    attributes = {key: json.dumps(value) for key, value in values.items()}
    times = {"start_time_unix_nano": start * 10**9, "end_time_unix_nano": (start + 1) * 10**9}
    return {"name": kind, "attributes": attributes, "status": {"code": "STATUS_CODE_OK"}} | times | more


def trace(*spans: dict[str, Any], **info: Any) -> dict[str, Any]:
    shared = {"trace_id": "tr-1", "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
    return {"info": shared | info, "data": {"spans": list(spans)}}


def rows_of(record: dict[str, Any]) -> list[Any]:
    found = formats.recognize(json.dumps(record).encode(), "log")
    return [row for _, row in found.rows(json.dumps(record).encode(), 1, "log")]


HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (HI, {"role": "assistant", "content": "yes"}),
        (HI, {"choices": [{"message": {"content": "yes"}}]}),
        (HI, {"messages": [*HI["messages"], {"role": "assistant", "content": "yes"}]}),
        (HI, "yes"),
        (HI["messages"], "yes"),
        ({"messages": [HI["messages"]]}, "yes"),
        (
            {"input": "hi"},
            {"object": "response", "output": [{"type": "message", "role": "assistant", "content": "yes"}]},
        ),
    ],
)
def test_inputs_and_outputs_of_several_clients(given: Any, answer: Any) -> None:
    (row,) = rows_of(trace(span("CHAT_MODEL", given, answer)))
    assert row["messages"] == [*HI["messages"], {"role": "assistant", "content": "yes"}]
    (row,) = rows_of(trace(span("AGENT", given, answer), span("TOOL", {"number": 1}, "x")))  # no model was traced
    assert row["messages"][-1]["content"] == "yes"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (trace(), "no messages: the trace was exported without its spans"),
        (trace(span("TOOL", {"a": 1}, "b")), "no messages: no span of the trace"),
        (trace(span("LLM", HI, {"oops": 1})), "no answer: "),
        (trace(span("LLM", HI, "yes", start=0), request_time=None), "no time: "),
        (trace(span("LLM", HI, "yes"), trace_id=None), "no id: "),
        (trace(span("LLM", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "yes")), "not text: "),
    ],
)
def test_what_is_no_conversation_says_why(record: dict[str, Any], message: str) -> None:
    (why,) = rows_of(record)
    assert why.startswith(message)


def test_several_expectations_are_one_object_and_judgments_of_models_are_no_feedback() -> None:
    expectations = [{"assessment_name": name, "expectation": {"value": name}} for name in ("code", "state")]
    judged = {"assessment_name": "j", "feedback": {"value": 1}, "source": {"source_type": "LLM_JUDGE"}}
    withdrawn = {"assessment_name": "w", "expectation": {"value": 1}, "valid": False}
    serialized = {"serialized_value": {"serialization_format": "JSON_FORMAT", "value": '["I10"]'}}
    cases: list[tuple[list[Any], Any]] = [
        (expectations, {"code": "code", "state": "state"}),
        ([judged], None),
        ([withdrawn, expectations[0]], "code"),
        ([{"assessment_name": "codes", "expectation": serialized}], ["I10"]),
    ]
    for assessments, expected in cases:
        (row,) = rows_of(trace(span("LLM", HI, "yes"), assessments=assessments))
        assert row["feedback"] == expected


def test_what_looks_like_a_trace() -> None:
    assert not mlflow_traces.is_mine({"info": {}, "data": {}})
    assert mlflow_traces.is_mine(trace())
