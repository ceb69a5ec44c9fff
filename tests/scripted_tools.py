"""One turn's calls through the whole client, against a server that answers by script: what tests of
tools, arguments and headers share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from scripted_server import Answer, Scripted, says, scripted

from rft import config
from rft.tools import signatures
from rft.tools.client import ToolClient
from rft.types import Example, RolloutContext, ToolCall, ToolResult

ITEM = {"id": "n-1", "messages": [], "target": ["I10"], "metadata": {}}


def context(item: Mapping[str, Any] = ITEM, trace_id: str = "trace_1", *more: Any) -> RolloutContext:
    """Of a rollout of this row; `more`: split, step, attempt."""
    tools = item.get("tools")
    row = Example(
        str(item.get("id", "")),
        (),
        item.get("target"),
        tools=None if tools is None else tuple(tools),
        line=json.dumps(item),
    )
    return RolloutContext(trace_id, row, *more)


CONTEXT = context(ITEM, "trace_1", "train", 3, 1)


def search(query: str, k: int = 3) -> str:
    """Find codes."""
    return query * k


def lookup(code: str) -> str:
    """The description of a code."""
    return code


SCHEMAS = [signatures.schema(search), signatures.schema(lookup)]
OK = says({"output": "fine"})


def play(
    *answers: Answer,
    calls: Sequence[ToolCall] | None = None,
    arguments: str = '{"query": "angina"}',
    defaults: dict[str, dict[str, Any]] | None = None,
    headers: dict[str, str] | None = None,
    names: list[str] | None = None,
    context: RolloutContext = CONTEXT,
    **section: Any,
) -> tuple[list[ToolResult], Scripted]:
    """One turn's calls against a server that answers by script. `{server}` in a setting is its
    address."""

    async def run() -> tuple[list[ToolResult], Scripted]:
        async with (
            scripted(*answers, headers=headers) as server,
            ToolClient(server.endpoint, settings(section, server), SCHEMAS, names) as client,
        ):
            mine = calls or [ToolCall("call_0_0", "search", arguments)]
            return list(await client.call_all(mine, context, defaults)), server

    return asyncio.run(run())


def settings(section: dict[str, Any], server: Scripted) -> config.Tools:
    return config.Tools.model_validate_json(json.dumps(section).replace("{server}", server.endpoint.url))


def one(*answers: Answer, **more: Any) -> tuple[ToolResult, Scripted]:
    results, server = play(*answers, **more)
    return results[0], server


def search_call(n: int) -> ToolCall:
    return ToolCall(f"call_0_{n}", "search", json.dumps({"query": f"q{n}"}))


def rft_headers(server: Scripted, number: int) -> dict[str, str]:
    return {
        name.removeprefix("X-RFT-"): value
        for name, value in server.headers[number].items()
        if name.startswith("X-RFT-")
    }


WEATHER = {
    "name": "weather",
    "server_url": "{server}/elsewhere",
    "headers": {"X-Tenant": "9"},
    "description": "Of a town.",
}
TOWN = {
    "type": "object",
    "properties": {"town": {"type": "string"}},
    "required": ["town"],
    "additionalProperties": False,
}
ROW_TOOL = {"type": "function", "function": {"name": "weather", "parameters": TOWN}}
IN_BERN = ToolCall("call_0_0", "weather", '{"town": "Bern"}')
