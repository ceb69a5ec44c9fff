"""Gather spans, in any order and in bounded memory, into conversations.

A trace is one request to the agent, often of many spans: the agent's, one per call of the model,
one per tool. Exporters write a span when it ends, so children come before their parents, with other
traces in between. Perhaps only one span names the conversation. So the spans of a file first go to
a temporary database, which is on disk once it is large. They come back conversation by
conversation.

**What a conversation is.** Spans that name a conversation belong to it, and so do the spans of the
same trace that name none. A trace in which no span names a conversation is a conversation of its
own, and the row says so.

**What was said.** The calls of the model, joined in time order (`chat.dialogue`); calls for
something else are counted. If no call of the model recorded its content, the agent's own spans
count.

**Latency** is that of the last trace: from the start of its first GenAI span to the end of its last
one. The **tool errors** are the tool spans with the status error. If tools were called and no tool
span was logged, their number is unknown.

Each span that is not about GenAI gives a row that says so.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from functools import partial
from typing import Any, BinaryIO

from rft.traffic.formats import chat, genai, otlp
from rft.traffic.formats.format import LARGEST, Format
from rft.traffic.formats.otlp import Item
from rft.traffic.formats.row import NO_ID, Numbered, Row, Unreadable, iso

NAME = "opentelemetry"
MOST_SPANS = 10_000
"""The most spans of one conversation in memory. If there are more, the first are read and the
others are counted."""


def of_protobuf(framing: otlp.Framing) -> Format:
    return Format(NAME, False, partial(_protobuf, framing))


def _json(stream: BinaryIO, source: str, largest: int = LARGEST) -> Numbered:
    return gathered(otlp.of_json(stream, largest))


def _protobuf(framing: otlp.Framing, stream: BinaryIO, source: str, largest: int = LARGEST) -> Numbered:
    return gathered(otlp.of_protobuf(framing, stream, largest))


JSON = Format(NAME, False, _json)
_FIELDS = tuple(field.name for field in fields(Item))


def gathered(items: Iterator[tuple[int, Item | str]]) -> Numbered:
    """Yield the problems as they come, then one row per conversation, in the order of their
    beginnings."""
    with closing(sqlite3.connect("", isolation_level=None)) as database:  # "" is temporary, on disk when large
        database.execute("PRAGMA cache_size = -65536")
        database.execute("CREATE TABLE item (trace TEXT, conversation TEXT, start INTEGER, number INTEGER, item TEXT)")
        database.execute("BEGIN")
        for number, item in items:
            if isinstance(item, str):
                yield number, item
            elif not genai.is_genai(item):
                yield number, "no GenAI span: it has no gen_ai attribute"
            else:
                values = (item.trace, genai.conversation(item), item.start, number, _packed(item))
                database.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?)", values)
        database.execute("COMMIT")
        yield from _conversations(database)


def _packed(item: Item) -> str:
    return json.dumps([getattr(item, name) for name in _FIELDS])


def _conversations(database: sqlite3.Connection) -> Numbered:
    """Give each span its conversation: its own, else the first that its trace names."""
    database.executescript("""
        CREATE INDEX by_trace ON item (trace);
        CREATE TABLE named AS
            SELECT trace, conversation FROM (
                SELECT trace, conversation, row_number() OVER (PARTITION BY trace ORDER BY start, rowid) AS n
                FROM item WHERE conversation IS NOT NULL) WHERE n = 1;
        CREATE UNIQUE INDEX by_named ON named (trace);
        CREATE TABLE placed AS
            SELECT item.rowid AS at, coalesce(item.conversation, named.conversation) AS name,
                   item.trace AS trace, item.start AS start, item.number AS number
            FROM item LEFT JOIN named USING (trace);
        CREATE INDEX by_name ON placed (coalesce('c' || name, 't' || trace), start, at);
    """)
    groups = database.execute("""
        SELECT coalesce('c' || name, 't' || trace) AS who, min(name), min(trace), min(number), count(*), min(at)
        FROM placed GROUP BY who ORDER BY min(at)
    """)
    for who, name, trace, number, num_spans, _ in groups:
        found = database.execute(
            "SELECT item FROM placed JOIN item ON item.rowid = placed.at "
            "WHERE coalesce('c' || name, 't' || placed.trace) = ? ORDER BY placed.start, placed.at LIMIT ?",
            (who, MOST_SPANS),
        )
        spans = [Item(*json.loads(text)) for (text,) in found]
        try:
            row = _row(name, trace, spans)
        except Unreadable as error:
            yield number, str(error)
            continue
        if num_spans > MOST_SPANS:
            row["counts"] = row.get("counts", {}) | {"spans beyond the first 10,000": num_spans - MOST_SPANS}
        yield number, row


def _row(name: str | None, trace: str, items: list[Item]) -> Row:
    logs: dict[str, list[Item]] = {}
    for item in items:
        if item.is_log:
            logs.setdefault(item.span, []).append(item)
    spans = [item for item in items if not item.is_log]
    known = {span.span for span in spans}
    spans += [_stand_in(found) for span, found in logs.items() if span not in known]
    spans.sort(key=lambda span: span.start)
    dialogue, num_other = _dialogue(spans, logs)
    failed = [span for span in spans if genai.is_tool(span)]
    errors = sum(span.failed for span in failed) if failed or not chat.has_calls(dialogue) else None
    last = [span for span in spans if span.trace == spans[-1].trace]
    time = iso(spans[0].start / 1e9)
    if time is None:
        raise Unreadable(f"no time: the spans of trace {trace} begin at {spans[0].start}")
    offered = [tools for span in spans if (tools := genai.tools(span))]
    result = Row(
        conversation_id=name or trace,
        time=time,
        messages=dialogue,
        latency_s=_latency(last),
        tool_errors=errors,
        feedback=None,
        tools=offered[-1] if offered else None,
        record=_described(spans),
        continues=True,
    )
    if name is None:
        result["note"] = NO_ID
    if num_other:
        result["counts"] = {chat.OTHER: num_other}
    return result


def _stand_in(found: list[Item]) -> Item:
    """Make up the span of log records that were exported without it."""
    first = found[0]
    attributes: dict[str, Any] = {}
    for log in reversed(found):
        attributes |= {key: value for key, value in log.attributes.items() if key.startswith("gen_ai.")}
    end = max(log.end for log in found)
    return Item(first.trace, first.span, first.name, first.start, end, attributes, first.resource)


def _latency(spans: list[Item]) -> float | None:
    """Return the seconds from the first start to the last end. They are negative where a clock ran
    backwards; the contracts report that."""
    ends = [span.end for span in spans if span.end]
    return (max(ends) - min(span.start for span in spans)) / 1e9 if ends else None


def _described(spans: list[Item]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for span in reversed(spans):  # the first span wins
        result |= genai.described(span)
    return result


def _dialogue(spans: list[Item], logs: dict[str, list[Item]]) -> tuple[list[chat.Message], int]:
    """Return the dialogue, and how many calls of the model belong to another one."""
    told = [(span, genai.messages(span, logs.get(span.span, ()))) for span in spans if not genai.is_tool(span)]
    calls = [dialogue for span, dialogue in told if dialogue and not genai.is_agent(span)]
    calls = calls or [dialogue for _, dialogue in told if dialogue]
    if not calls:
        raise Unreadable("no messages: the exporter recorded no content; switch on its capture of message content")
    return chat.dialogue(calls)
