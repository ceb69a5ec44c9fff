"""Find tools that tell the target to any caller.

A tool gets the whole row beside its arguments. If it looks up the answer there, it teaches the
policy to ask it anything and to copy the reply.

So each tool gets the same call for one row after the other: a call of the recipe, or the smallest
that its schema allows. For each row, its own reply is compared with the reply for another row:

    only its own reply holds the row's target      counts against the tool
    only the other reply holds the row's target    counts for the tool
    both hold it, or neither                       does not count

Both hold it if the tool says the same to everybody, such as a city that is the target of many rows.
If a reply has nothing to do with the row, the first two cases are equally likely. So the sign test
tells whether chance explains the counts.

A tool may be meant to show the target, such as a document that holds the answer. The trait
`shows_target` says so, and the tool is then not asked. A tool with `probe: false` is not asked
either.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rft import config
from rft.errors import InfrastructureError
from rft.grading import scripted
from rft.recipe import Recipe
from rft.tools.client import ToolClient
from rft.types import Example, RolloutContext, StopReason, ToolCall
from rft.wire.contract import clip
from rft.wire.trace import Traces

NUM_ROWS = 12
"""Rows for each tool, with one call per row."""
LEVEL = 0.01
"""The level of the one-sided sign test: seven rows against the tool and none for it reach it."""


@dataclass(frozen=True, slots=True)
class TargetLeak:
    """A tool whose replies hold the target, whatever the call."""

    tool: str
    told: int
    asked: int
    call: str
    example_id: str
    reply: str
    """The first reply that held the target of its row."""
    setting: str
    """The setting of params.yaml that allows the tool to show the target."""

    @property
    def description(self) -> str:
        first = f"for example {self.example_id} it answered {self.reply!r}"
        asked = f"asked {self.call} for each of {self.asked} examples"
        told = f"it replied with the target of just that one {self.told} times"
        return f"tool {self.tool!r} gives the target away: {asked}, {told}; {first}"


def remedy(found: Sequence[TargetLeak]) -> str:
    """Say what to do, with each tool's setting. A tool at an endpoint has it in another place."""
    return (
        "Keep the target out of what the tool reads or returns. If it is meant to show it, such as a document in which "
        f"the answer is written, say so: {', '.join(one.setting for one in found)}."
    )


async def find(recipe: Recipe, examples: Sequence[Example], tools: ToolClient, seed: int = 0) -> list[TargetLeak]:
    """Call each tool for up to NUM_ROWS examples that have a target. Raises InfrastructureError for
    a tool that fails."""
    known = [example for example in examples if leaves(example.target)][:NUM_ROWS]
    if len(known) < 2:
        return []
    own = scripted.own_calls(recipe, known[0], seed)
    traces, found = Traces(), list[TargetLeak]()
    for name, parameters in offered(tools, known).items():
        call, _ = scripted.one_call(name, parameters, own)
        replies = await asyncio.gather(*(_ask(tools, call, traces, example) for example in known))
        if told := _judged(call, known, replies, tools.trait_setting(name, "shows_target: true")):
            found.append(told)
    return found


def offered(tools: ToolClient, examples: Sequence[Example]) -> dict[str, dict[str, Any]]:
    """Return the tools to ask: name -> parameters."""
    found: dict[str, dict[str, Any]] = {}
    for example in examples:
        for tool in tools.schemas if example.tools is None else example.tools:
            found.setdefault(tool["function"]["name"], tool["function"].get("parameters") or {})
    return {name: schema for name, schema in found.items() if _may_ask(tools.traits(name))}


def _may_ask(traits: config.Traits) -> bool:
    return traits.probe and not traits.shows_target and not traits.terminal


async def _ask(tools: ToolClient, call: ToolCall, traces: Traces, example: Example) -> str:
    context = RolloutContext(traces.trace_id(f"giveaway {call.name} {example.id}", 0), example, "train")
    if (failure := await tools.start(context)) is not None:
        raise InfrastructureError(f"tools.lifecycle.start_url: {failure}. Fix that server, or remove the key.")
    [result] = await tools.call_all([call], context)
    await tools.end(context, StopReason.completed)
    await tools.release(context)
    if result.failed:
        raise InfrastructureError(f"tool {call.name!r}: {result.output}. The preflight needs working tools.")
    return result.output


def _judged(call: ToolCall, examples: Sequence[Example], replies: Sequence[str], setting: str) -> TargetLeak | None:
    """Compare each row's reply with the reply for the next row that has another target."""
    told: list[int] = []
    against = 0
    for n, example in enumerate(examples):
        other = next((m for m in _after(n, len(examples)) if examples[m].target != example.target), None)
        if other is None:
            continue
        own, others = holds(replies[n], example.target), holds(replies[other], example.target)
        told += [n] if own and not others else []
        against += others and not own
    if not told or chance_of(len(told), len(told) + against) > LEVEL:
        return None
    first = told[0]
    asked, reply = clip(call.arguments.encode()), clip(replies[first].encode())
    return TargetLeak(call.name, len(told), len(examples), asked, examples[first].id, reply, setting)


def _after(n: int, num: int) -> Iterator[int]:
    return ((n + step) % num for step in range(1, num))


def chance_of(told: int, num: int) -> float:
    """Return the probability of `told` or more of `num` when both cases are equally likely."""
    return sum(math.comb(num, k) for k in range(told, num + 1)) / 2**num


def holds(reply: str, target: Any) -> bool:
    """Tell whether any part of the target is in the reply, as a word of its own."""
    return any(re.search(rf"(?<!\w){re.escape(leaf)}(?!\w)", reply, re.IGNORECASE) for leaf in leaves(target))


def leaves(target: Any) -> list[str]:
    """Return the texts and numbers in a target. True, false and null are left out, because any text
    may contain them."""
    if isinstance(target, str):
        return [text] if (text := target.strip()) else []
    if isinstance(target, bool) or target is None:
        return []
    if isinstance(target, int | float):
        return [json.dumps(target)]
    inner = target.values() if isinstance(target, dict) else target
    return [leaf for value in inner for leaf in leaves(value)]
