"""Findings N3: what docs/ says of the traffic and of the wire is true, because every example on
those pages is played here.

The examples of docs/traffic.md are read as a window. docs/wire.md tells one rollout: it is rolled
out against a server that logs what it is sent, and the log must be the page, key by key and value
by value, but for the trace id and the seconds. With RECORD=1 the log is written into the page.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rft import config, rows
from rft.config import graders
from rft.grading.endpoint import EndpointGrader
from rft.reports import Conversation, PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.tools.client import ToolClient
from rft.traffic import ingest, reading
from rft.types import INFRASTRUCTURE, Grade, StopReason, Trajectory
from tests.scripted_policy import scripted as says
from tests.scripted_server import Scripted, scripted

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIRE = DOCS / "wire.md"
BLOCK = re.compile(r"<!-- (?P<mark>[^\n]*?) -->\n```json[l]?\n(?P<body>.*?)```$", re.MULTILINE | re.DOTALL)
TRACE = "trace_00000000-0000-0000-0000-000000000000"


def blocks(page: Path, kind: str) -> list[tuple[str, str]]:
    """(what follows the kind, the example) of each marked block."""
    found = [(one["mark"], one["body"]) for one in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [(mark.removeprefix(kind).strip(" :,"), body) for mark, body in found if mark.startswith(kind)]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_no_example_is_left_unplayed(page: Path) -> None:
    kinds = {
        "traffic.md": ("accepted", "refused"),
        "wire.md": ("row", "request", "reply", "grade"),
        "notify.md": ("sent",),  # tests/tasks/test_notify.py
        "exports.md": ("event",),  # tests/tasks/test_provenance.py
        "graders.md": ("grader",),
    }.get(page.name, ())
    if page.name == "first_agent.md":  # tests/test_readme.py compares it with the template
        return
    found = page.read_text(encoding="utf-8")
    assert sum(len(blocks(page, kind)) for kind in kinds) == found.count("```json")


def test_the_columns_of_the_rollout_log_are_listed() -> None:
    page = (DOCS / "rollouts.md").read_text(encoding="utf-8")
    assert tuple(page.split("over these columns:")[1].split("```")[1].split()) == rollout_log.COLUMNS


# -- graders ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("body", [body for _, body in blocks(DOCS / "graders.md", "grader")])
def test_a_grader_on_the_page_is_one(body: str) -> None:
    grader = graders.read(json.loads(body), "docs/graders.md")
    assert grader.remarks == []


def test_the_page_explains_every_key_of_the_graders() -> None:
    """Written by python -m rft.config.pages --write (tests/config/test_reference.py)."""
    text = (DOCS / "graders.md").read_text(encoding="utf-8")
    meanings = re.findall(r"^\| `[\w.\[\]]+` \|[^|]*\|[^|]*\| (.*) \|$", text, re.MULTILINE)
    assert len(meanings) > 40
    assert [meaning for meaning in meanings if not meaning.strip()] == []


def test_the_page_names_every_type_and_metric() -> None:
    text = (DOCS / "graders.md").read_text(encoding="utf-8")
    missing = [name for name in graders.TYPES if f"| `{name}` |" not in text]
    between = ("rouge_2", "rouge_3", "rouge_4")
    missing += [name for name in graders.METRICS if f"`{name}`" not in text and name not in between]
    assert missing == []


# -- traffic ---------------------------------------------------------------------------------------
def test_n3_the_window_on_the_page_is_a_window(tmp_path: Path) -> None:
    ((_, body),) = blocks(DOCS / "traffic.md", "accepted")
    (tmp_path / "window.jsonl").write_text(body, encoding="utf-8")
    snapshot = ingest.ingest("window.jsonl", config.Traffic(min_conversations=1), tmp_path, tmp_path / "snapshots")
    manifest = reading.manifest(snapshot)
    assert (manifest.num_rows, manifest.num_conversations, manifest.ignored_keys, manifest.rejected) == (2, 2, {}, {})
    first, second = reading.conversations(snapshot)
    assert first.feedback == "shipped"
    assert second.messages[0]["content"] == "Cancel order 12."


def test_n3_the_page_names_every_key_of_the_format() -> None:
    text = (DOCS / "traffic.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", text, re.MULTILINE))
    assert list(table) == ["conversation_id", "time", "messages", "latency_s", "tool_errors", "feedback"]
    assert table == {
        name: "yes" if info.is_required() else "no"
        for name, info in Conversation.model_fields.items()
        if name != "unit"
    }


@pytest.mark.parametrize(("expected", "body"), blocks(DOCS / "traffic.md", "refused"))
def test_n3_what_the_page_calls_refused_is_refused_with_those_words(tmp_path: Path, expected: str, body: str) -> None:
    good = {"conversation_id": "c-0", "time": "2026-03-02T08:14:05Z", "messages": [{"role": "user", "content": "hi"}]}
    (tmp_path / "window.jsonl").write_text(f"{json.dumps(good)}\n{body}", encoding="utf-8")
    snapshot = ingest.ingest("window.jsonl", config.Traffic(min_conversations=1), tmp_path, tmp_path / "snapshots")
    (row,) = reading.manifest(snapshot).unread
    assert expected in row.why
    assert (row.source, row.line) == ("window.jsonl", 1 + len(body.splitlines()))


# -- the wire --------------------------------------------------------------------------------------
def row() -> str:
    ((_, body),) = blocks(WIRE, "row")
    return body.strip()


EXAMPLE = rows.read(rows.Line(row(), "docs/wire.md"), config.Keys(), "")
CALL = '<tool_call>\n{"name": "find_order", "arguments": {"number": "7781"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}


def settings(url: str) -> config.Tools:
    lifecycle = {"start_url": f"{url}/start", "end_url": f"{url}/end"}
    return config.Tools.model_validate(
        {
            "endpoints": [{"name": "find_order", "server_url": f"{url}/find_order", "parameters": SCHEMA}],
            "lifecycle": lifecycle,
            "retries": 0,
        }
    )


async def play(answers: dict[str, tuple[int, str]]) -> tuple[Trajectory, Scripted]:
    """The page's rollout, against a server that gives these answers by path and logs what it is
    sent."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        status, text = answers.get(request.path, (200, "{}"))
        return web.Response(status=status, text=text, content_type="application/json")

    async with scripted(answer) as server:
        tools = settings(server.endpoint.url)
        judge = graders.Endpoint.model_validate(
            {"type": "endpoint", "name": "state", "url": f"{server.endpoint.url}/grade"}
        )
        conditions = Conditions(
            PromptSettings(name="seed", system="Be brief."), 1.0, (0,), config.Rollout(), split="train", step=12
        )
        async with (
            ToolClient(server.endpoint, tools, []) as client,
            EndpointGrader(judge, server.endpoint, tools) as grader,
        ):
            policy = says(CALL, '{"state": "shipped"}')
            (done,) = await run_rollouts(policy, client, grader, [Request(EXAMPLE, 0)], conditions, {})
        return done, server


def told() -> dict[str, tuple[int, str]]:
    """The page's own first answers."""
    return {"/find_order": (200, blocks(WIRE, "reply 200")[0][1]), "/grade": (200, blocks(WIRE, "grade")[1][1])}


def settled(value: Any) -> Any:
    """Without what differs from run to run: the trace id and the seconds."""
    if isinstance(value, dict):
        fixed = {"trace_id": TRACE, "latency_s": 0.0021}
        return {
            key: fixed.get(key, settled(one)) if type(one) is type(fixed.get(key)) else settled(one)
            for key, one in value.items()
        }
    return [settled(one) for one in value] if isinstance(value, list) else value


def test_n3_the_rollout_on_the_page_is_what_a_server_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request by request, in order. With RECORD=1 the page is written from the log."""
    monkeypatch.setenv("RFT_RUN", "20261122-0712-3f0a")
    done, server = asyncio.run(play(told()))
    assert (done.reward, done.grade.solved, done.stop_reason) == (1.0, True, StopReason.completed)
    log = {path: settled(body) for path, body in zip(server.paths, server.bodies, strict=True)}
    assert server.paths == ["/start", "/find_order", "/end", "/grade"]
    if os.environ.get("RECORD") == "1":
        record(log)
    assert {path: json.loads(body) for path, body in blocks(WIRE, "request")} == log
    # byte for byte
    assert all(row().encode() in raw for path, raw in zip(server.paths, server.raw, strict=True) if path != "/end")
    named = set(re.findall(r"`(X-RFT-[\w-]+)`", WIRE.read_text(encoding="utf-8")))
    sent = {name for headers in server.headers for name in headers if name.startswith("X-RFT-")}
    assert named - {"X-RFT-Retry"} == sent
    assert {headers["X-RFT-Job-Id"] for headers in server.headers} == {"20261122-0712-3f0a"}


def record(log: dict[str, Any]) -> None:
    def written(found: re.Match[str]) -> str:
        path = found["mark"].removeprefix("request ")
        if path == found["mark"]:
            return found[0]
        lines = json.dumps(
            log[path] | ({"item": "ITEM"} if "item" in log[path] else {}), indent=2, ensure_ascii=False
        ).replace('"ITEM"', row())
        return f"<!-- {found['mark']} -->\n```json\n{lines}\n```"

    WIRE.write_text(BLOCK.sub(written, WIRE.read_text(encoding="utf-8")), encoding="utf-8")


@pytest.mark.parametrize(("expected", "body"), blocks(WIRE, "reply"))
def test_n3_the_policy_reads_what_the_page_says_of_a_reply(expected: str, body: str) -> None:
    status, _, text = expected.partition(", the policy reads: ")
    done, _ = asyncio.run(play(told() | {"/find_order": (int(status), body)}))
    (result,) = done.turns[0].results
    assert (result.output, result.is_error, result.failed) == (text, status == "400", False)
    assert done.reward == 1.0


@pytest.mark.parametrize(("expected", "body"), blocks(WIRE, "grade"))
def test_n3_a_grade_is_read_as_the_page_says(expected: str, body: str) -> None:
    done, _ = asyncio.run(play(told() | {"/grade": (200, body)}))
    assert done.grade is not None
    assert describe(done.grade) == expected


def describe(grade: Grade) -> str:
    if grade.score is None:
        return "unscored"
    return f"score {grade.score:g}, {grade.status}" + (", solved" if grade.solved else "")


def test_n3_the_page_names_every_stop_reason_that_is_graded() -> None:
    """Those of the infrastructure are never sent: such a rollout has no grade."""
    text = WIRE.read_text(encoding="utf-8").split("`stop_reason` says how it ended: ")[1].split(".\n")[0]
    assert set(re.findall(r"`(\w+)`", text)) == {str(one) for one in {*StopReason} - INFRASTRUCTURE}


@pytest.mark.parametrize(
    ("status", "text", "becomes"),
    [
        (404, "<h1>not here</h1>", "unscored"),
        (422, '{"detail": "a number, please"}', "read"),
        (500, '{"output": "x"}', "unscored"),
        (200, '{"result": 3}', "unscored"),
        (404, '{"output": "no order has it"}', "read"),
    ],
)
def test_n3_the_table_of_answers_is_true(status: int, text: str, becomes: str) -> None:
    done, _ = asyncio.run(play(told() | {"/find_order": (status, text)}))
    assert (done.reward is None) == (becomes == "unscored")
