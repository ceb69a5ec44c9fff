"""Read logs of OpenAI's Responses API: the input of a request and the output items of its response.

Items become chat messages. Calls that follow an assistant's text belong to the same message;
reasoning is left out, because the agent's user did not see it. Calls of hosted tools
(`web_search_call`) count as calls of a tool of that name.

**Chains.** The history may stay on the server. A record that names a conversation
(`conversation.id`) or a previous response then holds only what is new (`continues`). With
`previous_response_id` the log names only the previous link, not the conversation. Each line is read
alone, so its reader cannot know the first link. The row calls its conversation by the previous
response's id, and its own id is an `alias` for the same conversation. When rows are joined, the
aliases are followed: resp_3 -> resp_2 -> resp_1 (`roots`). Where the chain began before the log
did, it is called by the first link that the log names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rft.traffic.formats import chat, pair
from rft.traffic.formats.row import Read, Unreadable, listing, mapping, name_of
from rft.traffic.quoting import shown

_UNSEEN = frozenset({"reasoning", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction"})
"""Items that are not part of what was said or done."""
_CALL, _REPLY = "_call", "_call_output"


def is_mine(record: dict[str, Any]) -> bool:
    """Whether a record looks like a logged response."""
    sides = (record, mapping(record.get("response")), mapping(mapping(record.get("response")).get("body")))
    return any(side.get("object") == "response" for side in sides) or (
        "choices" not in record and any(_has_items(side.get("output")) for side in sides)
    )


def _has_items(value: Any) -> bool:
    return isinstance(value, list) and any("type" in mapping(item) for item in value)


def rows(found: pair.Pair) -> Read:
    """Read one record."""
    request, response = found.request, found.response
    if response.get("status") in ("failed", "queued", "in_progress", "cancelled"):
        raise Unreadable(f"failed request: the response is {response['status']}")
    given = request.get("input", response.get("input"))
    if given is None:
        raise Unreadable("no request: the record has no input that was sent")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    dialogue = _system(request.get("instructions", response.get("instructions")))
    output = response.get("output")
    if not isinstance(items, list) or not isinstance(output, list):
        raise Unreadable(f"messages: input is {shown(given)}, output is {shown(output)}; expected lists of items")
    dialogue, errors = _messages(dialogue, items, "input", 0)
    dialogue, errors = _messages(dialogue, output, "output", errors)
    if not dialogue:
        raise Unreadable("messages: neither input nor output says anything")
    row = pair.row(found, dialogue, _tools(request.get("tools", response.get("tools"))))
    if errors:
        row["tool_errors"] = errors
    _chain(row, found)
    yield row


def _chain(row: Any, found: pair.Pair) -> None:
    own = name_of(found.response.get("id"))
    previous = name_of(found.request.get("previous_response_id", found.response.get("previous_response_id")))
    is_named = row.get("note") is None
    if previous is not None:
        row["continues"] = True
        if not is_named:
            row["conversation_id"] = previous
            del row["note"]
    elif any(mapping(side).get("conversation") for side in (found.request, found.response)):
        row["continues"] = True
    if own is not None and own != row["conversation_id"]:
        row["alias"] = own


def roots(aliases: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Resolve chains. `aliases`: (alias, conversation_id) of rows, in any order; the result maps
    each alias to the first link of its chain.

    `roots([("r2", "r1"), ("r3", "r2")])` is `{"r2": "r1", "r3": "r1"}`. A ring, which no server
    writes, is cut at its smallest name.
    """
    known = dict(aliases)
    found: dict[str, str] = {}
    for alias in known:
        path: dict[str, None] = {}
        name = alias
        while name in known and name not in found and name not in path:
            path[name] = None
            name = known[name]
        root = min(path) if name in path else found.get(name, name)
        found.update(dict.fromkeys(path, root))
    return found


# -- items -----------------------------------------------------------------------------------------
def _system(value: Any) -> list[chat.Message]:
    if isinstance(value, str) and value:
        return [chat.written("system", value)]
    return [chat.message({"role": "system"} | mapping(item), "instructions") for item in listing(value)]


def _messages(dialogue: list[chat.Message], items: list[Any], key: str, errors: int) -> tuple[list[chat.Message], int]:
    """Add items to a dialogue. Also returns how many calls are known to have failed."""
    dialogue = list(dialogue)
    for n, item in enumerate(items):
        errors += _add(dialogue, mapping(item), f"{key}[{n}]")
    return dialogue, errors


def _add(dialogue: list[chat.Message], item: dict[str, Any], where: str) -> int:
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise Unreadable(f"messages: {where} is {shown(item)}, expected an item with a type")
    if kind in _UNSEEN:
        return 0
    if kind == "message":
        dialogue.append(chat.message(item, where))
        return 0
    if kind.endswith(_REPLY):
        dialogue.append(chat.written("tool", _reply(item.get("output"), where), (), name_of(item.get("call_id"))))
        return 0
    if not kind.endswith(_CALL):
        raise Unreadable(f"messages: {where} is of type {kind}, which holds no text")
    _add_call(dialogue, item, kind)
    if item.get("output") is not None or item.get("error") is not None:  # the server ran it itself
        reply = item.get("output") if item.get("output") is not None else item.get("error")
        dialogue.append(chat.written("tool", _reply(reply, where), (), name_of(item.get("id"))))
    return int(item.get("error") is not None or item.get("status") == "failed")


def _add_call(dialogue: list[chat.Message], item: dict[str, Any], kind: str) -> None:
    name = name_of(item.get("name")) or kind.removesuffix(_CALL)
    arguments = next((item[key] for key in ("arguments", "input", "action", "code", "queries") if key in item), None)
    made = chat.written_call(item.get("call_id") or item.get("id"), name, arguments)
    last: chat.Message = dialogue[-1] if dialogue else {"role": None}
    if last["role"] == "assistant":
        dialogue[-1] = chat.written("assistant", last["content"], [*listing(last.get("tool_calls")), made])
    else:
        dialogue.append(chat.written("assistant", None, [made]))


def _reply(value: Any, where: str) -> str:
    if isinstance(value, list) and value and all("type" in mapping(part) for part in value):
        return chat.text(value, f"{where}.output") or ""
    return chat.as_reply(value)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    """Write function tools as chat completions do, so that both logs show the same schemas."""
    found = [tool for tool in listing(value) if isinstance(tool, dict)]
    flat = ("name", "description", "parameters", "strict")
    return [
        {"type": "function", "function": {key: tool[key] for key in flat if tool.get(key) is not None}}
        if tool.get("type") == "function" and "name" in tool
        else tool
        for tool in found
    ] or None
