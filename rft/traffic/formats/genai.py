"""Read a GenAI span, in the three generations of conventions that agents write.

    parts       gen_ai.input.messages, gen_ai.output.messages, gen_ai.system_instructions: messages
                of typed parts, as JSON text or as nested attributes; on the span, on its event
                `gen_ai.client.inference.operation.details`, or on a log record of that name
    events      gen_ai.user.message, gen_ai.choice and kin: one event or log record per message
    numbered    gen_ai.prompt.0.content, gen_ai.completion.0.role: one attribute per value

By default, exporters record no content. Such a span has everything but messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rft.traffic.formats import chat
from rft.traffic.formats.otlp import Item
from rft.traffic.formats.row import Unreadable, listing, loaded, mapping, name_of
from rft.traffic.quoting import shown

CONVERSATIONS = (
    "gen_ai.conversation.id",
    "session.id",
    "traceloop.association.properties.conversation_id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)
"""Attributes that may name a conversation, the best one first."""
_TOOL_KINDS = frozenset({"execute_tool", "tool"})
_EVENT = re.compile(r"^gen_ai\.(system|user|assistant|tool)\.message$")
_NUMBERED = re.compile(r"^gen_ai\.(prompt|completion)\.(\d+)\.(.+)$")
_CALLS = re.compile(r"^tool_calls\.(\d+)\.(id|name|arguments)$")
_UNSEEN = frozenset({"reasoning", "thinking"})
_PAYLOAD = re.compile(
    r"^gen_ai\.(prompt|completion|input\.messages|output\.messages|system_instructions|tool\.(definitions|call\.\w+)|content)"
    r"|^traceloop\.entity\.|^llm\.request\.functions\."
)


def is_genai(item: Item) -> bool:
    return any(key.startswith(_PREFIXES) for key in item.attributes) or item.name.startswith("gen_ai.")


_PREFIXES = ("gen_ai.", "traceloop.span.kind", "llm.request.type")


def conversation(item: Item) -> str | None:
    return next((found for key in CONVERSATIONS if (found := name_of(item.attributes.get(key)))), None)


def is_tool(item: Item) -> bool:
    return _kind(item) in _TOOL_KINDS


def is_agent(item: Item) -> bool:
    return _kind(item) in ("invoke_agent", "invoke_workflow", "create_agent", "agent", "workflow")


def _kind(item: Item) -> Any:
    return item.attributes.get("gen_ai.operation.name", item.attributes.get("traceloop.span.kind"))


def described(item: Item) -> dict[str, Any]:
    """Return the attributes that are not payload: `traffic.unit` and `traffic.columns` may name
    these."""
    return {
        key: value
        for key, value in (item.resource | item.attributes).items()
        if not _PAYLOAD.match(key) and (value is None or isinstance(value, str | int | float | bool))
    }


def tools(item: Item) -> list[dict[str, Any]] | None:
    """Return the schemas of the tools that a request offered."""
    found = [tool for tool in listing(loaded(item.attributes.get("gen_ai.tool.definitions"))) if isinstance(tool, dict)]
    found = found or _functions(item.attributes)
    return [_tool(tool) for tool in found] or None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool or "name" not in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _functions(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in attributes.items():
        number, _, name = key.removeprefix("llm.request.functions.").partition(".")
        if key.startswith("llm.request.functions.") and name:
            found.setdefault(number, {})[name] = loaded(value)
    return [tool for _, tool in sorted(found.items()) if "name" in tool]


# -- messages --------------------------------------------------------------------------------------
def messages(item: Item, logs: Iterable[Item] = ()) -> list[chat.Message]:
    """Return what was said in the request of a span, and its answer; nothing if no content was
    recorded. `logs`: its log records. Raises Unreadable."""
    events = [*item.events, *((log.name, log.attributes) for log in logs)]
    for attributes in (item.attributes, *(attributes for _, attributes in events)):
        dialogue = _of_parts(attributes)
        if dialogue:
            return dialogue
    return _of_events(events) or _of_numbered(item.attributes)


def _of_parts(attributes: dict[str, Any]) -> list[chat.Message]:
    given, answer = (listing(loaded(attributes.get(f"gen_ai.{side}.messages"))) for side in ("input", "output"))
    instructions = loaded(attributes.get("gen_ai.system_instructions"))
    dialogue: list[chat.Message] = []
    if isinstance(instructions, str) and instructions:
        dialogue.append(chat.written("system", instructions))
    elif listing(instructions):
        dialogue += _message({"role": "system", "parts": instructions}, "gen_ai.system_instructions")
    for n, message in enumerate(given):
        dialogue += _message(message, f"gen_ai.input.messages[{n}]")
    for n, message in enumerate(answer[:1]):  # the first of several choices
        dialogue += _message({"role": "assistant"} | mapping(message), f"gen_ai.output.messages[{n}]")
    return dialogue


def _message(value: Any, key: str) -> list[chat.Message]:
    """Read a message of parts. If it holds replies of several tools, each becomes a message."""
    found = mapping(value)
    if "parts" not in found:
        return [chat.message(found, key)]
    texts: list[str] = []
    calls: list[chat.Message] = []
    replies: list[chat.Message] = []
    for n, raw in enumerate(listing(found["parts"])):
        part, where = mapping(raw), f"{key}.parts[{n}]"
        kind = part.get("type", "text")
        if kind in _UNSEEN:
            continue
        if kind == "tool_call" and isinstance(part.get("name"), str):
            calls.append(chat.written_call(part.get("id"), part["name"], part.get("arguments")))
        elif kind == "tool_call_response":
            reply = part.get("response", part.get("result"))
            replies.append(chat.written("tool", chat.as_reply(reply), (), name_of(part.get("id"))))
        elif kind == "text" and isinstance(text := part.get("content", part.get("text")), str):
            texts.append(text)
        else:
            raise Unreadable(f"not text: {where} is {shown(raw)}, and conversations here are text")
    if replies and not calls:
        return replies
    return [chat.message({"role": found.get("role"), "content": "".join(texts) or None, "tool_calls": calls}, key)]


def _of_events(events: Iterable[tuple[str, dict[str, Any]]]) -> list[chat.Message]:
    dialogue: list[chat.Message] = []
    answers: list[chat.Message] = []
    for name, attributes in events:
        found = _EVENT.match(name)
        if found:
            role = found.group(1)
            dialogue.append(_of_event({"role": role} | attributes, name))
        elif name == "gen_ai.choice":
            inner = loaded(attributes.get("message"))
            answer = {"role": "assistant"} | (mapping(inner) or attributes)
            answers.append(_of_event(answer, name))
        elif name == "gen_ai.content.prompt":
            dialogue += chat.messages(loaded(attributes.get("gen_ai.prompt")), name)
        elif name == "gen_ai.content.completion":
            answers += chat.messages(loaded(attributes.get("gen_ai.completion")), name)
    return dialogue + answers[:1]


def _of_event(value: dict[str, Any], name: str) -> chat.Message:
    content = value.get("content")
    if not isinstance(content, str | list) and content is not None:
        content = chat.as_json(content)
    calls = loaded(value.get("tool_calls"))
    named = value.get("tool_call_id", value.get("id"))
    return chat.message({"role": value["role"], "content": content, "tool_calls": calls, "tool_call_id": named}, name)


def _of_numbered(attributes: dict[str, Any]) -> list[chat.Message]:
    found: dict[tuple[bool, int], dict[str, Any]] = {}
    for key, value in attributes.items():
        match = _NUMBERED.match(key)
        if match:
            side, number, name = match.groups()
            found.setdefault((side == "completion", int(number)), {})[name] = value
    answers = [place for place in sorted(found) if place[0]][:1]
    dialogue: list[chat.Message] = []
    for place in [place for place in sorted(found) if not place[0]] + answers:
        dialogue += _numbered(found[place], f"gen_ai.{'completion' if place[0] else 'prompt'}.{place[1]}")
    return dialogue


def _numbered(values: dict[str, Any], key: str) -> list[chat.Message]:
    calls: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        match = _CALLS.match(name)
        if match:
            calls.setdefault(int(match.group(1)), {})[match.group(2)] = value
    content = loaded(values.get("content"))
    if not isinstance(content, list) or not all("type" in mapping(part) for part in content):
        content = values.get("content")
    made = [
        chat.written_call(call.get("id"), str(call.get("name")), call.get("arguments"))
        for _, call in sorted(calls.items())
    ]
    role = values.get("role", "assistant")
    named = values.get("tool_call_id")
    return [chat.message({"role": role, "content": content, "tool_calls": made, "tool_call_id": named}, key)]
