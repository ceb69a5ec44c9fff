"""The columns say what today's functions say of one conversation at a time."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.errors import UserError
from rft.traffic import columns, schema, shapes, words
from rft.traffic.texts import input_messages, user_text
from rft.traffic.texts import words as split

ROLES = ["system", "developer", "user", "assistant", "tool"]


def one(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    row = {"conversation_id": "c", "time": "2026-03-02T08:14:05Z", "messages": list(messages)} | changes
    (found,) = columns.of_rows([row]).to_pylist()
    return found


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def message(role: str, content: str | None) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_one_conversation_in_columns() -> None:
    found = one(
        message("system", "Be kind."),
        message("user", "Where is order 77?"),
        called("find_order", '{"number": 77, "exact": true}'),
        message("tool", '{"status": "ok", "items": [{"b": 1, "a": -2}]}'),
        called("find_order", "77"),
        message("tool", "shipped"),
        called("find_order", "oops"),
        message("tool", " "),
        message("assistant", "I'm sorry, but I can't help with that."),
        latency_s=3,
        feedback="on its way",
        tools=[{"b": 1, "a": 2}],
    )
    assert found["tools"] == ["find_order"] * 3
    shapes = ['find_order{"exact":"BOOLEAN","number":"BIGINT"}', "find_order!not-json", "find_order!not-json"]
    assert found["calls"] == shapes
    assert found["replies"] == ['{"items":[{"a":"BIGINT","b":"BIGINT"}],"status":"VARCHAR"}', "text", "empty"]
    assert (found["num_messages"], found["num_turns"], found["num_tool_calls"]) == (9, 4, 3)
    assert (found["input_words"], found["last_role"], found["latency_s"]) == (4, "assistant", 3.0)
    assert (found["refused"], found["grade"], found["tool_errors"]) == (True, "corrected", None)
    assert found["system"] == hashlib.sha256(b"Be kind.").hexdigest()[:12]
    assert found["offered"] == hashlib.sha256(b'[{"a": 2, "b": 1}]').hexdigest()[:12]
    assert found["pick"] == found["draw"] == schema.draw("c")
    assert found["group"] == schema.draw("c") % schema.GROUPS


def test_what_is_not_there_is_null_or_nothing() -> None:
    found = one(message("user", None))
    assert [found[name] for name in ("unit", "feedback", "system", "offered", "grade", "latency_s")] == [None] * 6
    assert (found["tools"], found["calls"], found["replies"], found["refused"]) == ([], [], [], False)


@pytest.mark.parametrize(
    ("answer", "feedback", "grade"),
    [
        ('{"codes": ["b", "a"]}', ["a", "b"], "as answered"),
        (" I10 ", "I10", "as answered"),
        ("I10", "I11", "corrected"),
        ("1.0", 1, "corrected"),
        (None, "x", "corrected"),
    ],
)
def test_grades_compare_answers_as_json(answer: str | None, feedback: Any, grade: str) -> None:
    assert one(message("user", "q"), message("assistant", answer), feedback=feedback)["grade"] == grade


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("I cannot do this.", True),
        ("\n I'm unable to open it.", True),
        ("Sorry, I can not do that", True),
        ("Unfortunately, I can't help.", True),
        ("Sorry, I can do that now.", False),
        ("You cannot do this.", False),
        ("I cannotate it.", False),
    ],
)
def test_refusals_are_told_by_their_opening(answer: str, refused: bool) -> None:
    assert one(message("user", "q"), message("assistant", answer))["refused"] is refused


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES), "content": st.none() | st.text(st.characters(exclude_categories=["Cs"]))},
        optional={
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"function": st.fixed_dictionaries({"name": st.text("ab"), "arguments": st.text('{}"a:1')})}
                ),
                max_size=3,
            )
        },
    ),
    min_size=1,
    max_size=8,
)


def graded(row: dict[str, Any]) -> str | None:
    """As it was worked out before there were columns."""
    if row["feedback"] is None:
        return None
    answers = [message.get("content") or "" for message in row["messages"] if message["role"] == "assistant"]
    return "corrected" if not answers or canonical(answers[-1]) != canonical(row["feedback"]) else "as answered"


def canonical(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return json.dumps(value.strip())
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, list):
        value = sorted(json.dumps(each, sort_keys=True) for each in value)
    return json.dumps(value, sort_keys=True)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(messages, st.none() | st.text('a1[]{}" '))))
def test_many_conversations_say_what_each_says_alone(drawn: list[tuple[list[dict[str, Any]], str | None]]) -> None:
    rows = [
        {"conversation_id": f"c{n}", "time": "2026-03-02T08:14:05Z", "messages": turns, "feedback": feedback}
        for n, (turns, feedback) in enumerate(drawn)
    ]
    for row, found in zip(rows, columns.of_rows(rows).to_pylist(), strict=True):
        calls = [call for message in row["messages"] for call in message.get("tool_calls") or []]
        assert found["tools"] == [call["function"]["name"] for call in calls]
        assert found["input_words"] == len(split(user_text(input_messages(row["messages"]))))
        assert found["num_turns"] == sum(message["role"] == "assistant" for message in row["messages"])
        assert found["last_role"] == row["messages"][-1]["role"]
        assert json.loads(found["messages"]) == row["messages"]
        assert found["grade"] == graded(row)
        assert found["draw"] == schema.draw(row["conversation_id"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])) | st.text("aİé_1٣² \u0307")))
def test_words_are_counted_as_they_are_split(texts: list[str | None]) -> None:
    assert words.count(pa.array(texts, pa.string())).tolist() == [len(split(text or "")) for text in texts]


def test_a_row_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match=r"conversation 'c': messages is \[\]"):
        columns.of_rows([{"conversation_id": "c", "time": "2026-03-02T08:14:05Z", "messages": []}])
    assert columns.of_rows([]).schema == schema.SCHEMA


# -- shapes ----------------------------------------------------------------------------------------
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def structure(engine: duckdb.DuckDBPyConnection, text: str) -> Any:
    (found,) = engine.execute("select json_structure(?)::varchar", [text]).fetchone() or ("",)
    return json.loads(found.replace("UBIGINT", "BIGINT").replace("HUGEINT", "BIGINT"))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(values, min_size=1, max_size=3), st.integers(1, 30))
def test_shapes_are_those_of_duckdb(drawn: list[Any], times: int) -> None:
    """Also of texts that come often, for which there is a shorter way."""
    texts = [json.dumps(value) for value in drawn] * times
    with duckdb.connect() as engine:
        expected = [structure(engine, json.dumps(value)) for value in drawn] * times
    assert [json.loads(shape) for shape in shapes.of_replies(texts).to_pylist()] == expected


@pytest.mark.parametrize("text", ["{", '{"a":1,}', "[NaN]", "1e999", "{'a': 1}", '"\\ud800"', "a:b", '{"a":1} x'])
def test_what_is_no_json_has_no_shape(text: str) -> None:
    assert shapes.of_replies([text, None, " \n", ""]).to_pylist() == ["text", "empty", "empty", "empty"]
    assert shapes.of_calls(pa.array(["f"]), [text]).to_pylist() == ["f!not-json"]


def test_deep_texts_are_not_looked_at() -> None:
    deep, wide = "[" * 101 + "]" * 101, "[" + "[" * 100 + "]" * 100 + ",1" * 200 + "]"
    shallow = [json.dumps(["[" * 300] * 200), json.dumps([[]] * 300)]
    found = shapes.of_replies([deep, wide, "[" * 5000, *shallow]).to_pylist()
    assert found == ["too deep", "too deep", "too deep", '["VARCHAR"]', '[["NULL"]]']
