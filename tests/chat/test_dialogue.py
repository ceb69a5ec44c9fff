"""A scripted turn is one that the chat and a log read."""

from __future__ import annotations

import pytest

from rft.chat import dialogue


def test_a_scripted_turn() -> None:
    asked, first, second = dialogue.scripted_turn(3, [("find", {"k": 2}), ("find", {"k": "é"})], ["a", "b"])
    assert (asked["role"], asked["content"]) == ("assistant", "")
    assert [call["function"] for call in asked["tool_calls"]] == [
        {"name": "find", "arguments": '{"k": 2}'},
        {"name": "find", "arguments": '{"k": "é"}'},
    ]
    assert [call["id"] for call in asked["tool_calls"]] == ["call_3_0", "call_3_1"]
    assert first == {"role": "tool", "tool_call_id": "call_3_0", "content": "a"}
    assert (second["tool_call_id"], second["content"]) == ("call_3_1", "b")


def test_a_terminal_call_has_no_reply() -> None:
    (only,) = dialogue.scripted_turn(0, [("answer", {"text": None})], [])
    assert only["tool_calls"][0]["function"]["arguments"] == '{"text": null}'


def test_a_call_without_its_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="2 calls and 1 replies"):
        dialogue.scripted_turn(0, [("find", {}), ("find", {})], ["a"])
