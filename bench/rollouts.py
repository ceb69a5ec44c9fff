"""The figures of the rollout engine: its cost over a bare HTTP loop, and what faults do to rewards.

The policy is scripted, but tools and grader are real. The tests' tiny recipe runs behind a server
process that fails on demand (bench/faulty_server.py). The engine's own loop, tool client and grader
are in front of it. `Caller` looks its key up three times, one call per turn, and answers with the
value if all three agree. It answers wrongly about half of the time, drawn from example and sample,
so that groups have different means. If a fault changed an answer, that would show.

`rollout_concurrency` compares two programs, and in both a grade is a call, too. 500 rollouts are
1,500 tool calls of 50 ms and 500 grades. The bare loop posts the same 2,000 bodies, encoded before,
with as many in flight as there are rollouts. Both open 500 connections of their own, and take turns
in going first. Three things could strike only one side of a pair by chance:

    the client's garbage    is collected before each, outside the measured time
    the server's garbage    is, too: its collections alone moved ratios from 1.2 to 1.0 and 1.5
    the listen queue        holds 500 connections (rft/tools/server.py). Those that did not fit were
                            tried again a second later, which made ratios of 0.7 and 2.6

The bare loop gets the same setting of the garbage collector as the engine
(rft/rollouts/garbage.py). That saves it a seventh of its processor time. Without it, the ratio
would measure the interpreter as much as our code.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench import faulty_server
from bench.faulty_server import Faults
from bench.measure import Figure, Part
from rft import config, recipe
from rft.grading.grader import grader_of
from rft.reports import PromptSettings
from rft.rollouts.garbage import seldom_collected
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Opening, Reading, RolloutContext, Sampled, StopReason, ToolCall, ToolResult, Trajectory
from rft.wire import client as http_client
from rft.wire import contract as wire

LATENCY_S = 0.05
CALLS = 3
CALM = Faults(latency_s=LATENCY_S)
MAX_REPLY_BYTES = 50_000
STORM = Faults(
    latency_s=LATENCY_S,
    error=0.05,
    hang=0.03,
    reset=0.03,
    truncated=0.01,
    oversized=0.01,
    oversized_bytes=4 * MAX_REPLY_BYTES,
)
TIMEOUT_S = 0.5  # ends a hang: ten times the latency, so that a busy machine does not look like one
IN_FLIGHT = 128  # with faults: so few that waiting for the processor stays far below TIMEOUT_S
DEADLINE_S = 30.0
PROMPT = PromptSettings(name="seed", system="", max_turns=12)


# -- the policy ------------------------------------------------------------------------------------
class Caller:
    """A scripted policy without tokens. It asks again if a result is an error, as a policy would
    that is told that a reply is too large."""

    blocks = False

    async def check_openings(self, openings: Sequence[Opening], max_context_tokens: int | None) -> None:
        """Accept all: it has room for every opening."""

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> list[Asking]:
        keys = [str(one.messages[-1]["content"]).split()[-1] for one in openings]
        return [
            Asking(key, random.Random(repr(tuple(seed))).random() < 0.5) for key, seed in zip(keys, seeds, strict=True)
        ]


@dataclass(slots=True)
class Asking:
    """One dialogue of a Caller."""

    key: str
    right: bool
    outputs: list[str] = field(default_factory=list)
    turn: int = 0
    prompt_ids: tuple[int, ...] = ()

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        self.turn += 1
        if len(self.outputs) < CALLS:
            call = ToolCall(f"call_{self.turn - 1}_0", "lookup", json.dumps({"key": self.key}))
            return Sampled("", Reading("", (call,)))
        answer = self.outputs[0] if self.right and len(set(self.outputs)) == 1 else "none"
        return Sampled(answer, Reading(answer))

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        self.outputs += [result.output for result in results if not result.is_error]
        return ()

    def close(self) -> None:
        pass


# -- a world to roll out in ------------------------------------------------------------------------
@dataclass(frozen=True)
class World:
    ours: recipe.Recipe
    url: str
    requests: list[Request]

    async def play(self, **tools: Any) -> tuple[list[Trajectory], float]:
        """Play all rollouts once. Returns them, and the seconds that they took."""
        section = config.Tools(server_url=self.url, version="1", **tools)
        limits = config.Rollout(
            max_turns=PROMPT.max_turns or 12, deadline_s=DEADLINE_S, budget=config.Budget(tool_calls=None)
        )
        endpoint = http_client.ToolEndpoint(self.url)
        async with (
            ToolClient(endpoint, section, schemas(self.ours)) as client,
            grader_of(self.ours.grader, endpoint, section) as grader,
        ):
            began = time.perf_counter()
            done = await run_rollouts(
                Caller(), client, grader, self.requests, Conditions(PROMPT, 1.0, (0,), limits, "figure"), {}
            )
            return done, time.perf_counter() - began


@contextmanager
def world(examples: int, group_size: int) -> Iterator[World]:
    from tests import tiny_recipe

    with tempfile.TemporaryDirectory() as folder:
        ours = recipe.load(config.Recipe(path=str(tiny_recipe.make(Path(folder)))))
        with faulty_server.serving(ours.folder) as url:
            yield World(
                ours,
                url,
                [
                    Request(example, sample)
                    for example in ours.examples("train", examples, 0)
                    for sample in range(group_size)
                ],
            )


# -- rollout_concurrency ---------------------------------------------------------------------------
def rollout_concurrency(args: list[str]) -> Figure:
    """Wall time of 500 rollouts of 3 tool calls of 50 ms, divided by that of a bare aiohttp loop
    with the same calls. Upper 95 % limit of the median of 31 pairs (<= 1.35)."""
    return concurrency()


def concurrency(examples: int = 50, group_size: int = 10, repeats: int = 31) -> Figure:
    """Measure ours and the bare loop in turns, after one of each to warm up. The bound is on the
    upper limit of the median of their ratios. The limit comes from their order, so it assumes
    nothing about their distribution."""
    rollouts = examples * group_size
    walls: list[float] = []
    rates: list[float] = []
    with world(examples, group_size) as place:
        faulty_server.tell(place.url, CALM)
        bodies = _bodies(place, asyncio.run(place.play(concurrency=rollouts))[0])
        asyncio.run(_bare(bodies, rollouts))

        def bare() -> None:
            rates.append(len(bodies) / asyncio.run(_bare(bodies, rollouts)))

        def ours() -> None:
            done, wall_s = asyncio.run(place.play(concurrency=rollouts))
            assert all(one.stop_reason is StopReason.completed and one.reward is not None for one in done)
            walls.append(wall_s)

        for number in range(repeats):
            for measure in (bare, ours) if number % 2 == 0 else (ours, bare):
                faulty_server.tell(place.url, CALM)  # collects the server's garbage
                gc.collect()
                measure()
            print(
                f"{number + 1}/{repeats}: bare {rates[-1]:.0f} calls/s, ours {len(bodies) / walls[-1]:.0f} calls/s",
                file=sys.stderr,
            )
    ideal_s = CALLS * LATENCY_S
    ratios = [wall / max(ideal_s, len(bodies) / rate) for wall, rate in zip(walls, rates, strict=True)]
    low, high = median_limits(ratios)
    return Figure(
        (
            Part(
                "wall time over the bare loop's, median", statistics.median(ratios), "", low=low, high=high, n=repeats
            ),
            Part("its upper 95 % limit", high, "", at_most=1.35, n=repeats),
            Part("wall time", statistics.median(walls), "s", low=min(walls), high=max(walls), n=repeats),
            Part(
                "rate of the bare loop", statistics.median(rates), "calls/s", low=min(rates), high=max(rates), n=repeats
            ),
            Part("our rate", len(bodies) / statistics.median(walls), "calls/s", n=repeats),
            Part("ideal critical path", ideal_s, "s"),
        ),
        {"rollouts": rollouts, "calls": len(bodies), "ratios": [round(ratio, 3) for ratio in ratios]},
    )


def median_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % interval of the median, from the values' order."""
    from scipy.stats import binom

    ordered = sorted(values)
    rank = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return ordered[rank], ordered[-1 - rank]


def _bodies(place: World, done: Sequence[Trajectory]) -> list[tuple[str, bytes]]:
    """Return what these rollouts posted: address and body, tool calls first."""
    tools: list[tuple[str, bytes]] = []
    grades: list[tuple[str, bytes]] = []
    for request, one in zip(place.requests, done, strict=True):
        envelope = wire.Envelope(RolloutContext(one.rollout_id, request.example))
        for call in (call for turn in one.turns for call in turn.calls):
            tools.append((f"{place.url}/tools/{call.name}", wire.call_payload(call, call.arguments, envelope)))
        grades.append((f"{place.url}/grade", wire.grader_payload(one.turns, one.stop_reason, envelope)))
    return tools + grades


@seldom_collected()
async def _bare(bodies: Sequence[tuple[str, bytes]], in_flight: int) -> float:
    """Return the seconds to post all bodies, with only the code that aiohttp needs."""
    left = iter(bodies)

    async def one(session: aiohttp.ClientSession) -> None:
        for url, payload in left:
            async with session.post(url, data=payload, headers={"Content-Type": "application/json"}) as response:
                assert response.status == 200
                await response.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(one(session) for _ in range(in_flight)))
        return time.perf_counter() - began


# -- rollout_faults --------------------------------------------------------------------------------
def rollout_faults(args: list[str]) -> Figure:
    """Rollouts under 5 % 500s, 3 % hangs, 3 % resets, 2 % broken bodies, 20 seeds: false zeros and
    changed group means (0)."""
    return faults()


@dataclass(slots=True)
class Tally:
    """Counts what faults did, over seeds."""

    rollouts: int = 0
    unended: int = 0  # without a trajectory, or after the rollout's deadline
    longest_s: float = 0.0
    false_zeros: int = 0
    unexplained: int = 0
    groups: int = 0
    changed_groups: int = 0
    unscored: int = 0
    retried: int = 0
    refused: int = 0
    requests: Counter[str] = field(default_factory=Counter)

    def add(self, done: Sequence[Trajectory], calm: Sequence[Trajectory], group_size: int) -> None:
        """Count the rollouts of a seed. `calm` are the same rollouts in a world without faults."""
        self.rollouts += len(calm)
        self.unended += len(calm) - sum(one.wall_s <= DEADLINE_S for one in done)
        self.longest_s = max([self.longest_s, *(one.wall_s for one in done)])
        for one, still in zip(done, calm, strict=True):
            results = [result for turn in one.turns for result in turn.results]
            self.false_zeros += one.reward == 0.0 and (still.reward != 0.0 or any(result.failed for result in results))
            self.unexplained += one.reward is None and not one.grade.explanation
            self.unscored += one.reward is None
            self.retried += sum(result.retries for result in results)
            self.refused += sum(result.is_error for result in results)
        for start in range(0, len(calm), group_size):
            pairs = list(zip(done[start : start + group_size], calm[start : start + group_size], strict=True))
            self.groups += 1
            self.changed_groups += _mean([one.reward for one, _ in pairs]) != _mean(
                [still.reward for one, still in pairs if one.reward is not None]
            )


def faults(examples: int = 50, group_size: int = 10, seeds: int = 20, bare_seeds: int = 5) -> Figure:
    """Play `seeds` with the retries that the engine makes by default, and `bare_seeds` without
    retries, where many rollouts are unscored."""
    with world(examples, group_size) as place:
        faulty_server.tell(place.url, CALM)
        tools: dict[str, Any] = {"timeout_s": TIMEOUT_S, "max_reply_bytes": MAX_REPLY_BYTES, "concurrency": IN_FLIGHT}
        calm, _ = asyncio.run(place.play(**tools))
        assert all(one.reward is not None for one in calm), (
            "a rollout failed without a fault: this machine is too busy to measure on"
        )
        with_retries = _storm(place, calm, group_size, range(seeds), tools)
        without = _storm(place, calm, group_size, range(bare_seeds), tools | {"retries": 0})
    return Figure(
        (*_parts(with_retries, ""), *_parts(without, ", no retries", marked=1)),
        {"requests": dict(with_retries.requests)},
    )


def _storm(place: World, calm: Sequence[Trajectory], group_size: int, seeds: range, tools: dict[str, Any]) -> Tally:
    tally = Tally()
    for seed in seeds:
        faulty_server.tell(place.url, STORM.model_copy(update={"seed": seed}))
        done, wall_s = asyncio.run(place.play(**tools))
        tally.add(done, calm, group_size)
        tally.requests.update(faulty_server.tell(place.url, CALM))
        print(f"seed {seed}: {len(done)} rollouts in {wall_s:.1f} s, {tally.unscored} unscored so far", file=sys.stderr)
    return tally


def _parts(tally: Tally, when: str, marked: int | None = None) -> list[Part]:
    """Make the parts. `marked`: at least so many rollouts must be unscored, or nothing was
    tried."""
    struck = sum(tally.requests.values()) - tally.requests["fine"]
    return [
        Part(
            f"infrastructure failures with reward 0{when}", tally.false_zeros, "rollouts", at_most=0, n=tally.rollouts
        ),
        Part(f"rollouts that did not end{when}", tally.unended, "rollouts", at_most=0, n=tally.rollouts),
        Part(
            f"groups whose mean differs from the fault-free run's{when}",
            tally.changed_groups,
            "groups",
            at_most=0,
            n=tally.groups,
        ),
        Part(f"longest rollout{when}", tally.longest_s, "s", n=tally.rollouts),
        Part(f"unscored without a reason{when}", tally.unexplained, "rollouts", at_most=0, n=tally.unscored),
        Part(f"unscored (marked){when}", tally.unscored, "rollouts", at_least=marked, n=tally.rollouts),
        Part(
            f"requests that met a fault{when}",
            struck / sum(tally.requests.values()),
            "share",
            at_least=0.1,
            n=sum(tally.requests.values()),
        ),
        Part(f"replies too large, told to the policy{when}", tally.refused, "calls", n=tally.rollouts * CALLS),
    ]


def _mean(rewards: Sequence[float | None]) -> float | None:
    scored = [reward for reward in rewards if reward is not None]
    return statistics.fmean(scored) if scored else None


FIGURES = {"rollout_concurrency": rollout_concurrency, "rollout_faults": rollout_faults}
