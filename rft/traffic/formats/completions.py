"""Read logs of OpenAI's chat completions: one record per request.

A record holds the messages of its request and the answer. So the requests of one conversation
repeat each other, and the longest one has all messages. If there are several choices, the user saw
the first. A streamed answer may be logged as its chunks.

Records of the Responses API in the same log are read as such, because a service that moves from one
API to the other writes both (rft/traffic/formats/responses.py).
"""

from __future__ import annotations

from typing import Any

from rft.traffic.formats import chat, pair, responses
from rft.traffic.formats.row import Read, Unreadable, listing, mapping
from rft.traffic.quoting import shown


def is_mine(record: dict[str, Any]) -> bool:
    """Whether a record looks like a logged request and its answer."""
    if "conversation_id" in record and "messages" in record and not _ANSWERS & record.keys():
        return False
    if "custom_id" in record and ("body" in record or "response" in record):
        return True
    if str(record.get("object")).startswith("chat.completion") or "choices" in record:
        return True
    sides = {"request", "response"} <= record.keys() or {"input", "output"} <= record.keys()
    return sides or ("messages" in record and bool(_ANSWERS & record.keys()))


_ANSWERS = frozenset({"response", "choices", "output"})


def read(record: dict[str, Any]) -> Read:
    """Read one record of either API."""
    found = pair.take_apart(record)
    if found.is_responses:
        yield from responses.rows(found)
        return
    if "messages" not in found.request:
        raise Unreadable(f"no request: {_lacks(found)}")
    history = chat.messages(found.request["messages"])
    answer = _answer(found)
    tools = [tool for tool in listing(found.request.get("tools")) if isinstance(tool, dict)]
    yield pair.row(found, [*history, answer], tools or None)


def _lacks(found: pair.Pair) -> str:
    if "custom_id" in found.record:
        return "a batch's output has answers alone; join it with its input by custom_id"
    return f"the record has no messages that were sent; its keys are {', '.join(found.record)[:80]}"


def _answer(found: pair.Pair) -> chat.Message:
    response = found.response
    chunks = response.get("chunks")
    if isinstance(chunks, list):
        return _joined(chunks)
    choices = listing(response.get("choices"))
    if not choices and isinstance(found.record.get("output"), str):
        return chat.written("assistant", found.record["output"])
    if not choices:
        raise Unreadable(f"no answer: choices is {shown(response.get('choices'))}")
    first = mapping(choices[0])
    if "message" not in first:
        raise Unreadable(f"no answer: choices[0] is {shown(choices[0])}, expected one with a message")
    return chat.message({"role": "assistant"} | mapping(first["message"]), "choices[0].message")


def _joined(chunks: list[Any]) -> chat.Message:
    """Put the deltas of a streamed answer together."""
    content: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    for chunk in map(mapping, chunks):
        for choice in map(mapping, listing(chunk.get("choices"))[:1]):
            delta = mapping(choice.get("delta"))
            if isinstance(delta.get("content"), str):
                content.append(delta["content"])
            for part in map(mapping, listing(delta.get("tool_calls"))):
                _add(calls, part)
    if not content and not calls:
        raise Unreadable("no answer: the chunks hold neither content nor calls")
    made = [
        chat.call({"id": one["id"], "function": one}, f"chunks.tool_calls[{n}]") for n, one in sorted(calls.items())
    ]
    return chat.written("assistant", "".join(content) or None, made)


def _add(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", 0)
    known = calls.setdefault(index if isinstance(index, int) else 0, {"id": None, "name": "", "arguments": ""})
    function = mapping(part.get("function"))
    known["id"] = known["id"] or part.get("id")
    for key in ("name", "arguments"):
        if isinstance(function.get(key), str):
            known[key] += function[key]
