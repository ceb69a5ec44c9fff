"""Conversations are whole, wherever in a log their rows stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rft import config
from rft.errors import ConfigError
from rft.traffic import blocks, reading
from rft.traffic.ingest import ingest

SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
MORE = [*SAID, {"role": "user", "content": "bye"}]


def row(name: str, messages: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {"conversation_id": name, "time": "2026-03-02T08:14:05Z", "messages": messages} | changes


def made(place: Path, *files: list[dict[str, Any]], **settings: Any) -> Path:
    (place / "logs").mkdir()
    for number, rows in enumerate(files):
        (place / "logs" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = config.Traffic.model_validate({"min_conversations": 1, "processes": 1} | settings)
    return ingest("logs", section, place, place / "snapshots")


@pytest.fixture(params=[blocks.SIZE, 100])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIZE", request.param)


@pytest.mark.usefixtures("size")
def test_the_longest_row_of_a_conversation_stays(tmp_path: Path) -> None:
    files = [row("a", SAID), row("b", MORE)], [row("b", SAID), row("a", MORE), row("a", MORE), row("c", SAID)]
    folder = made(tmp_path, *files)
    found = reading.manifest(folder, verify=True)
    assert found.rejected == {"continued": 2, "repeated": 1}
    assert {c.conversation_id: len(c.messages) for c in reading.conversations(folder)} == {"b": 3, "a": 3, "c": 2}


@pytest.mark.usefixtures("size")
def test_rows_that_differ_in_the_order_of_keys_only_are_repeated(tmp_path: Path) -> None:
    turned = [dict(reversed(message.items())) for message in SAID]
    folder = made(tmp_path, [row("a", SAID)], [row("a", turned)])
    assert reading.manifest(folder).rejected == {"repeated": 1}


@pytest.mark.usefixtures("size")
def test_other_content_under_an_id_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path, [row("a", SAID)], [row("b", SAID), row("a", SAID, feedback="x")])
    (unread,) = reading.manifest(folder).unread
    assert (unread.source, unread.line) == ("logs/1.jsonl", 2)
    assert unread.why == "other content: conversation_id 'a' was met before, at logs/0.jsonl:1"


def response(number: int, after: int | None, text: str, answer: str) -> dict[str, Any]:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}
    given = {"id": f"resp_{number}", "object": "response", "created_at": 1772440000 + number, "output": [item]}
    before = None if after is None else f"resp_{after}"
    return {"request": {"input": text, "previous_response_id": before}, "response": given | {"status": "completed"}}


@pytest.mark.usefixtures("size")
def test_a_chain_of_responses_is_one_conversation(tmp_path: Path) -> None:
    files = [response(2, 1, "two", "2"), response(9, None, "nine", "9")], [response(3, 2, "three", "3")]
    folder = made(tmp_path, *files, [response(1, None, "one", "1")])
    found = {c.conversation_id: [m["content"] for m in c.messages] for c in reading.conversations(folder)}
    assert found == {"resp_1": ["one", "1", "two", "2", "three", "3"], "resp_9": ["nine", "9"]}
    manifest = reading.manifest(folder, verify=True)
    assert manifest.rejected["joined"] == 2
    assert manifest.num_rows == manifest.num_conversations + reading.num_rejected(manifest)


def test_what_is_redacted_is_nowhere_and_json_stays_json(tmp_path: Path) -> None:
    call = {"id": "x", "function": {"name": "send", "arguments": '{"to": "ada@example.org", "n": 1}'}}
    messages = [
        {"role": "user", "content": "I am ada@example.org or 4111"},
        {"role": "assistant", "content": None, "tool_calls": [call], "thought": "ada@example.org?"},
        {"role": "tool", "content": '{"sent": ["ada@example.org"]}'},
    ]
    rules = {"email": r"[^ ]+@[^ ]+", "card": r"\b\d{4}\b"}
    folder = made(tmp_path, [row("a", messages, feedback={"mail": "to ada@example.org"}), row("b", SAID)], redact=rules)
    assert reading.manifest(folder).redacted == {"email": 5, "card": 1}
    (found,) = reading.conversations(folder, ids=["a"])
    assert "ada" not in found.model_dump_json()
    assert found.messages[0]["content"] == "I am [email] or [card]"
    assert json.loads(found.messages[1]["tool_calls"][0]["function"]["arguments"]) == {"to": "[email]", "n": 1}
    assert found.feedback == {"mail": "to [email]"}
    assert b"example" not in b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize(("pattern", "why"), [("(?=a)", "not a regular expression"), ("a*", "matches an empty text")])
def test_a_rule_that_cannot_be_honored_is_named_at_once(pattern: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"traffic.redact.bad = .* {why}"):
        made(tmp_path, [row("a", SAID)], redact={"bad": pattern})
