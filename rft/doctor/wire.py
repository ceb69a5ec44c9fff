"""Open the recipe's tools and grader as a run would open them.

The checks are in rft/doctor/tools.py and rft/doctor/grader.py. No call is retried here, and none
may take longer than PATIENCE_S. So a server that needs retries is noticed. What this costs a run is
computed from its own settings: the share of rollouts that stay unscored after tools.retries.

Everything is announced before it is sent (`Setup.announce`): the most calls and grades, to which
tool, at which host, and of how many rollouts tools.lifecycle is told.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rft import config, stats
from rft.doctor.finding import Finding
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError, UserError
from rft.grading.grader import Grader, grader_of
from rft.tools import lifetime
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Example, RolloutContext, StopReason, ToolCall, ToolResult
from rft.wire.contract import SERVERS_OWN

BURST = 50
PATIENCE_S = 30.0
"""Longest wait for one call. Each check also has its own deadline (rft/doctor/__init__.py)."""
WRONG_PLACE = frozenset(f"HTTP {status}" for status in (*SERVERS_OWN, 301, 302, 303, 307, 308))
"""Statuses that come from a wrong address, method or key."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Open tools and an open grader."""

    tools: ToolClient
    grader: Grader
    last_output: Callable[[], str]
    """What the recipe's own server printed last. Empty for other servers."""


def visit(setup: Setup, work: Callable[[Wire], Awaitable[Finding]]) -> Finding:
    """Run a check against open tools and an open grader."""
    params, recipe = impatient(setup.params), setup.recipe

    async def inside(endpoint: Any) -> Finding:
        async with (
            ToolClient(endpoint, params.tools, schemas(recipe), recipe=recipe) as client,
            grader_of(recipe.grader, endpoint, params.tools) as graded,
        ):
            setup.offered = client.schemas
            return await work(Wire(client, graded, endpoint.last_output))

    if not setup.rows["train"]:
        raise UserError("the recipe gave no training example to ask with.")
    with lifetime.running(recipe, params.tools) as endpoint:
        return asyncio.run(inside(endpoint))


def impatient(params: config.Params, retries: int = 0) -> config.Params:
    """Copy the settings so that no call may take longer than PATIENCE_S."""
    endpoints = [
        endpoint.model_copy(update={"timeout_s": endpoint.timeout_s and min(endpoint.timeout_s, PATIENCE_S)})
        for endpoint in params.tools.endpoints
    ]
    changes = {"retries": retries, "timeout_s": min(params.tools.timeout_s, PATIENCE_S), "endpoints": endpoints}
    return params.model_copy(update={"tools": params.tools.model_copy(update=changes)})


def limit(params: config.Params) -> str:
    """Name what ends a call that takes too long."""
    timeout_s = params.tools.timeout_s
    own = f"tools.timeout_s = {timeout_s:g} s"
    return own if timeout_s <= PATIENCE_S else f"the doctor's patience of {PATIENCE_S:g} s"


def burst_size(section: config.Tools, own_rate: float | None = None) -> int:
    """Return the calls of one second at the declared rate. Without a rate, return how many calls
    may run at once."""
    rate = own_rate or section.rate_limit
    return max(1, min(math.ceil(rate), 4 * BURST)) if rate else min(section.concurrency, BURST)


def context(setup: Setup, name: str, word: object, row: Example | None = None) -> RolloutContext:
    row = row or setup.rows["train"][0]
    return RolloutContext(setup.traces.trace_id(f"doctor {name} {word} {row.id}", 0), row, "train")


async def start(client: ToolClient, contexts: Sequence[RolloutContext]) -> None:
    for each in contexts:
        if (failure := await client.start(each)) is not None:
            raise InfrastructureError(f"tools.lifecycle.start_url: {failure}. Fix that server, or remove the key.")


async def one_by_one(client: ToolClient, calls: Sequence[ToolCall], rollout: RolloutContext) -> list[ToolResult]:
    """Make the calls one after the other, within the life of one rollout."""
    await start(client, [rollout])
    results = [result for call in calls for result in await client.call_all([call], rollout)]
    await client.end(rollout, StopReason.completed)
    return results


# -- words -----------------------------------------------------------------------------------------
def announce_calls(setup: Setup, client: ToolClient, check: str, sizes: Mapping[str, int], rollouts: int) -> None:
    """Announce how many calls go to which tool, at which host, and what tools.lifecycle is told."""
    if sizes:
        parts = [f"{size} to {name}{at_host(client.address(name))}" for name, size in sizes.items()]
        life = setup.params.tools.lifecycle
        urls = {"start_url": life.start_url, "end_url": life.end_url}
        told = ", ".join(f"{rollouts} to {key}{at_host(url)}" for key, url in urls.items() if url)
        setup.announce(f"{check}: calls the tools, {', '.join(parts)}{told and '; '}{told}")


def at_host(address: str) -> str:
    """Return ` at HOST`. Empty for the recipe's own tools and grader, which we serve ourselves."""
    host = urlsplit(address).netloc.rpartition("@")[2] if "://" in address else ""
    return f" at {host}" if host else ""


def raised(setup: Setup, wire: Wire, what: str) -> str:
    """Return the remedy if the recipe's own code raised: file, log and traceback. Else empty."""
    output = wire.last_output()
    if lifetime.RAISED not in output:
        return ""
    last = output[output.rindex(lifetime.RAISED) :]
    file, log = setup.recipe.folder / "tools.py", lifetime.log_of(setup.recipe)
    return f"{what} raised: fix it in {file}. Its server's log: {log}\n{last}"


def speed(what: str, latencies: Sequence[float], seconds: float) -> dict[str, Any]:
    """Return how many `what` were made, how many per second, and how long one took."""
    return {
        what: len(latencies),
        f"{what}_per_s": round(len(latencies) / max(seconds, 1e-9), 3),
        "p50_s": round(stats.percentile(latencies, 0.5), 4),
        "p95_s": round(stats.percentile(latencies, 0.95), 4),
    }


def describe_speed(what: str, numbers: Mapping[str, Any]) -> str:
    rate = numbers[f"{what}_per_s"]
    rounded = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{rounded} {what}/s, P50 {_duration(numbers['p50_s'])}, P95 {_duration(numbers['p95_s'])}"


def one_line(text: str, limit: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + "..."


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
