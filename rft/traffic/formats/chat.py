"""Write chat messages of any log in the one form that a snapshot stores.

OpenAI's chat format has many dialects. Content is a text, null or parts. Arguments of a call are
JSON text or an object. Some clients write the older `function_call`, and keys are null in one
client and absent in the next. A message that is written here has `role`, `content`, and where there
are any, `tool_calls`, `tool_call_id` and `name`, in that order. So the same message is the same
text, whether a log shows it as the answer to a request or in the history that the next request
sends.

That makes it possible to join conversations. A log of requests repeats the history each time; a log
with state on the server holds only what is new. `extend` joins both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rft.traffic.formats.row import Unreadable, mapping
from rft.traffic.quoting import shown
from rft.traffic.schema import ROLES

Message = dict[str, Any]
OTHER = "calls of the model for something else"
"""The name under which an agent's calls of the model outside its dialogue are counted."""
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "summary_text": "text"}
"""Types of parts that are text, and the key that holds the text."""


def messages(value: Any, key: str = "messages") -> list[Message]:
    """Read a list of messages. Raises Unreadable naming the message and the key."""
    if not isinstance(value, list) or not value:
        raise Unreadable(f"messages: {key} is {shown(value)}, expected a list that is not empty")
    return [message(item, f"{key}[{n}]") for n, item in enumerate(value)]


def message(value: Any, key: str) -> Message:
    found = mapping(value)
    role = "tool" if found.get("role") == "function" else found.get("role")
    if role not in ROLES:
        raise Unreadable(f"messages: {key} is {shown(value)}, expected an object whose role is one of {_ROLES}")
    content = text(found.get("content"), f"{key}.content")
    if content is None and isinstance(found.get("refusal"), str):
        content = found["refusal"]
    raw = found.get("tool_calls")
    if raw is not None and not isinstance(raw, list):
        raise Unreadable(f"messages: {key}.tool_calls is {shown(raw)}, expected a list")
    calls = [call(item, f"{key}.tool_calls[{n}]") for n, item in enumerate(raw or [])]
    if found.get("function_call"):
        calls.append(call({"function": found["function_call"]}, f"{key}.function_call"))
    named = found.get("tool_call_id") if role == "tool" else None
    return written(role, content, calls, named if isinstance(named, str) else None)


def written(role: str, content: str | None, calls: Sequence[Message] = (), call_id: str | None = None) -> Message:
    """Write a message in our form."""
    result: Message = {"role": role, "content": content or (None if calls else content)}
    if calls:
        result["tool_calls"] = list(calls)
    if call_id is not None:
        result["tool_call_id"] = call_id
    return result


def text(content: Any, key: str) -> str | None:
    """Join the parts of a content. Raises Unreadable for a part that is not a text, such as an
    image."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unreadable(f"messages: {key} is {shown(content)}, expected a text, null, or a list of text parts")
    return "".join(_part(part, f"{key}[{n}]") for n, part in enumerate(content))


def _part(part: Any, key: str) -> str:
    if isinstance(part, str):
        return part
    found = mapping(part)
    kind = found.get("type", "text")
    value = found.get(_TEXTS[kind]) if isinstance(kind, str) and kind in _TEXTS else None
    if not isinstance(value, str):
        raise Unreadable(f"not text: {key} is {shown(part)}, and conversations here are text")
    return value


def call(value: Any, key: str) -> Message:
    """Read a call of a function, or of a custom tool, whose input is any text."""
    found = mapping(value)
    inner = mapping(found.get("function")) or mapping(found.get("custom"))
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        expected = 'expected {"id": .., "function": {"name": .., "arguments": ..}}'
        raise Unreadable(f"messages: {key} is {shown(value)}, {expected}")
    raw = inner.get("arguments", inner.get("input"))
    return written_call(found.get("id"), name, raw)


def written_call(call_id: Any, name: str, arguments: Any) -> Message:
    """Write a call in our form. If the arguments are a text, it stays as it is."""
    written_arguments = arguments if isinstance(arguments, str) else as_json({} if arguments is None else arguments)
    result: Message = {"id": call_id} if isinstance(call_id, str) else {}
    return result | {"type": "function", "function": {"name": name, "arguments": written_arguments}}


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def as_reply(value: Any) -> str:
    """Write a tool's reply as text: a text as it is, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else as_json(value)


def extend(known: list[Message], more: list[Message]) -> list[Message]:
    """Join a conversation with a later row of it.

    If the later row begins with what is known, it is the whole conversation again. If what is known
    begins with the later row, it adds nothing. Otherwise it is what follows, without a system
    message that is already known.
    """
    if more[: len(known)] == known:
        return more
    if known[: len(more)] == more:
        return known
    new = more
    while new and new[0]["role"] in ("system", "developer") and new[0] in known:
        new = new[1:]
    before, after = _without_system(known), _without_system(more)
    if before and after[: len(before)] == before:  # the same history under another system message
        return more
    return known + new


def _without_system(found: list[Message]) -> list[Message]:
    return [message for message in found if message["role"] not in ("system", "developer")]


def dialogue(calls: Sequence[list[Message]]) -> tuple[list[Message], int]:
    """Join an agent's calls of the model, in time order. Also returns how many calls are not a part
    of its dialogue.

    An agent may call the model for other things too, such as a guard or a subordinate agent, under
    another system message. Its own dialogue is the one under the system message with the most
    calls; of equals, the first.
    """
    systems = Counter(map(_system, calls))
    main = max(systems, key=lambda system: systems[system], default="")
    joined: list[Message] = []
    for turns in calls:
        if _system(turns) == main:
            joined = extend(joined, turns)
    return joined, len(calls) - systems[main]


def _system(turns: list[Message]) -> str:
    return turns[0]["content"] or "" if turns[0]["role"] in ("system", "developer") else ""


def has_calls(found: Sequence[Message]) -> bool:
    return any(message.get("tool_calls") for message in found)


_ROLES = ", ".join(ROLES)
