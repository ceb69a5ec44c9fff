"""Makes rows from the items of an eval: what the model was told, and the item's own keys.

The author of an item chooses its keys. `input_messages` of a run says how they become messages: by
a template, or by naming the key that holds the messages. A row has messages and keys, because
graders still read `{{item.KEY}}`. So rows are written anew. Only a line of a data file that has
`messages` and no `item` around it stays byte for byte.

    which items     those in the run's output items. If some or all of these are missing, also those
                    in the run's source (file_content, or the file of file_id)
    which prompt    the prompt of the item's run. An item of several runs is one row, with the
                    prompt of the newest run that has one
    no prompt       a run over stored requests has the messages that were sent, in the output item's
                    `sample.input` or the item's `input`
    tools           those that the run offered

`messages`, `tools` and `response_format` have a meaning in a row, so an item that uses such a key
for something else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rft import rows
from rft.bridges import foreign
from rft.bridges.evals.export import Export, Found, source_of
from rft.bridges.imported import Note
from rft.config.templates import Missing, Template
from rft.errors import UserError
from rft.rows import Line

RESERVED = ("messages", "tools", "response_format")
_TEXTS = ("text", "input_text", "output_text")
_REMEDY = "Fix it, or leave the item out."


class Item(NamedTuple):
    """An item with what is known about it. `sent`: the messages that the model got, if recorded."""

    value: dict[str, Any]
    where: str
    run: Found | None
    sent: Any = None
    line: Line | None = None
    """The line of the data file, where it can be used as a row unchanged."""
    has_sample: bool = False
    """Whether the source holds an answer that another program gave to this item."""


@dataclass
class Made:
    """The rows, one for each different item, and what happened to the other items."""

    lines: dict[str, Line] = field(default_factory=dict)
    """The item as JSON -> its row."""
    messages: dict[str, Any] = field(default_factory=dict)
    unlike: set[str] = field(default_factory=set)
    """Items that an older run sent with another prompt."""
    sampled: int = 0
    """How many items of a source come with an answer."""
    without: list[str] = field(default_factory=list)
    """Places of items for which no run has messages."""
    notes: list[Note] = field(default_factory=list)
    tools: dict[str, None] = field(default_factory=dict)
    """Names of tools that rows offer."""


def made(export: Export, files: Path | None) -> Made:
    """Make the rows. Raises UserError naming file, line or id of an item that cannot be a row."""
    found, silent = Made(), dict[str, str]()
    for item in _items(export, files, found.notes):
        key = json.dumps(item.value, sort_keys=True)
        messages = _messages(item)
        if messages is None:
            silent.setdefault(key, item.where)
        elif key not in found.lines:
            found.messages[key] = messages
            found.lines[key] = item.line or _line(_row(item, messages, found), item.where)
        elif messages != found.messages[key]:
            found.unlike.add(key)
        found.sampled += item.has_sample
    found.without = [where for key, where in silent.items() if key not in found.lines]
    return found


# -- where items are -------------------------------------------------------------------------------
def _items(export: Export, files: Path | None, notes: list[Note]) -> Iterator[Item]:
    """Yield all items, those of the newest run first."""
    problems: list[UserError] = []
    count = 0
    for run in [*export.runs, None]:
        here = list(_of_outputs(export, run))
        source: list[Item] = []
        if run is not None and not _is_whole(run, len(here)):
            try:
                source = list(_of_source(run, files))
            except UserError as error:
                problems.append(error)
        for item in (*here, *source):
            count += 1
            yield item
    if problems and not count:
        raise problems[0]
    notes += [Note("rows", f"a run is left out, or has the items of its output items alone. {one}") for one in problems]


def _is_whole(run: Found, here: int) -> bool:
    """Whether all output items of a run are here."""
    total = run.inner("result_counts").get("total")
    content = source_of(run).get("content")
    most = max(total if isinstance(total, int) else 0, len(content) if isinstance(content, list) else 0)
    return here >= max(most, 1)


def _of_outputs(export: Export, run: Found | None) -> Iterator[Item]:
    for output in export.items_of(run):
        value = output.get("datasource_item")
        if not isinstance(value, dict):
            raise UserError(f"{output.place}: datasource_item is {value!r}, expected an object. {_REMEDY}")
        yield Item(value, output.place, run, output.inner("sample").get("input"))


def _of_source(run: Found, files: Path | None) -> Iterator[Item]:
    source = source_of(run)
    if isinstance(source.get("content"), list):
        for number, one in enumerate(source["content"]):
            where = f"{run.place}: source.content[{number}]"
            yield Item(_item_in(one, where), where, run, has_sample=_has_sample(one))
    elif isinstance(source.get("id"), str):
        file = foreign.file_of(source["id"], "data_source.source.id", files, run.place)
        for line in rows.lines(file):
            path, _, number = line.where.rpartition(":")
            one = foreign.json_value(line.text, path, int(number))
            if isinstance(one, dict) and "item" not in one and "messages" in one:
                yield Item(one, line.where, run, line=line)
            else:
                yield Item(_item_in(one, line.where), line.where, run, has_sample=_has_sample(one))


def _item_in(value: Any, where: str) -> dict[str, Any]:
    item = value.get("item") if isinstance(value, dict) else None
    if not isinstance(item, dict):
        raise UserError(f"{where}: has no `item`, an object with the item's keys. {_REMEDY}")
    return item


def _has_sample(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("sample"))


# -- what the model was told -----------------------------------------------------------------------
def _messages(item: Item) -> list[dict[str, Any]] | None:
    """Return the messages of an item, or None where neither its run nor the item has any."""
    if item.line is not None:
        return item.value["messages"]
    given = item.run.inner("data_source").get("input_messages") if item.run else None
    if isinstance(given, dict) and given.get("type") == "item_reference":
        return _listed(_referred(str(given.get("item_reference")), item), item.where)
    if isinstance(given, dict) and isinstance(given.get("template"), list):
        return [_filled(one, n, item) for n, one in enumerate(given["template"])]
    if given is not None:
        raise UserError(
            f"{item.where}: input_messages of its run is {json.dumps(given)[:60]}, expected a template or an "
            "item_reference. Write one of them."
        )
    if item.sent:
        return _listed(item.sent, item.where)
    is_stored = item.run is not None and source_of(item.run).get("type") in ("stored_completions", "logs", "responses")
    return _listed(item.value["input"], item.where) if is_stored and item.value.get("input") else None


def _referred(reference: str, item: Item) -> Any:
    reference = reference.strip("{} ")
    try:
        (place,) = Template.read(f"{{{{{reference}}}}}").places
        return place.find({"item": item.value, "sample": {}})
    except (Missing, ValueError):
        raise UserError(f"{item.where}: has no {reference}, which its run names as messages. {_REMEDY}") from None


def _filled(given: Any, number: int, item: Item) -> dict[str, Any]:
    """Fill one message of a template."""
    where = f"{item.where}: input_messages.template[{number}]"
    message = _message(given, where)
    try:
        return message | {"content": Template.read(message["content"]).render({"item": item.value, "sample": {}})}
    except Missing as error:
        raise UserError(f"{where} reads {{{{{error.place}}}}}, which the item does not have. {_REMEDY}") from None
    except ValueError as error:
        raise UserError(f"{where}: {error}.") from None


def _listed(given: Any, where: str) -> list[dict[str, Any]]:
    """Read the messages that an item holds: a list of messages, or the user's text alone."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise UserError(f"{where}: its messages are {json.dumps(given)[:60]}, expected a list of them. {_REMEDY}")
    return [_message(one, f"{where}: messages[{n}]") for n, one in enumerate(given)]


def _message(given: Any, where: str) -> dict[str, Any]:
    """Read a message of either API: its content is a text, a part, or a list of parts. Null values
    are left out."""
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise UserError(f"{where} is {json.dumps(given)[:60]}, expected a message with role and content. {_REMEDY}")
    content = given.get("content")
    parts = content if isinstance(content, list) else [content]
    text = "".join(_text(part, f"{where}.content", given) for part in parts)
    kept = {key: given[key] for key in ("name", "tool_calls", "tool_call_id") if given.get(key)}
    return {"role": given["role"], "content": text, **kept}


def _text(part: Any, where: str, message: dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if part is None and message.get("tool_calls"):
        return ""
    if isinstance(part, dict) and part.get("type", "text") in _TEXTS and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise UserError(f"{where} holds {kind!r}, and policies here read text. {_REMEDY}")


# -- rows ------------------------------------------------------------------------------------------
def _line(row: dict[str, Any], where: str) -> Line:
    """Write a row. UTF-8 cannot hold half a surrogate pair, so that stays an escape."""
    line = rows.line_of(row, where)
    return Line(line.text.encode("utf-8", "backslashreplace").decode(), where)


def _row(item: Item, messages: list[dict[str, Any]], found: Made) -> dict[str, Any]:
    tools = list(_offered(item.run, found)) if item.run else []
    row = {"messages": messages} | ({"tools": tools} if tools else {})
    for key in RESERVED:
        if key in item.value and not _is_same(item.value[key], row.get(key), item.where):
            raise UserError(
                f"{item.where}: the item has a key {key!r}, which means something else in a row. Rename it in the "
                "items, in input_messages and in testing_criteria."
            )
    return row | {key: value for key, value in item.value.items() if key not in row}


def _is_same(own: Any, used: Any, where: str) -> bool:
    """Whether the item's reserved key has the same value as the row's."""
    try:
        return own == used or (isinstance(own, list) and _listed(own, where) == used)
    except UserError:
        return False


def _offered(run: Found, found: Made) -> Iterator[dict[str, Any]]:
    """Yield the functions that a run offered, in the form of chat completions."""
    tools = run.inner("data_source", "sampling_params").get("tools") or []
    for tool in tools if isinstance(tools, list) else [tools]:
        kind = tool.get("type") if isinstance(tool, dict) else tool
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if kind != "function" or not isinstance(function, dict) or "name" not in function:
            note = Note(run.place, f"the hosted tool {kind!r} is not served here, and rows do not offer it")
            found.notes += [] if note in found.notes else [note]
            continue
        found.tools[str(function["name"])] = None
        kept = {key: function[key] for key in ("name", "description", "parameters", "strict") if key in function}
        yield {"type": "function", "function": kept}
