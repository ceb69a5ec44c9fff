"""Play a stage's rollouts: open the tool server, the client and the grader, and play batches.

    with rollout_runner(params, recipe) as runner:
        policy = policies.load_policy(runner, "champion", device).policy
        rows = runner.measure(policy, examples, plan, store, ...)   batch after batch, resumable
        played = runner.run(policy, requests, conditions, stage, Waiting(...))   one batch

The server is the recipe's own, or the external one of `tools.server_url`. The recipe's own is
started here on a free port and stopped at the end.

Finished work waits in a store under `.rft/` (rft/rollouts/store.py). A stage that is started again
rolls out only what is missing there. A rollout is finished when it has its grade. With a policy
that waits (a server, a GPU) each rollout finishes on its own, and the store holds it at once.
Rollouts that finish during one write share the next write, and no other rollout waits for it. A
row is made once, when its rollout finishes; the end of the batch only adds whether it was trained
on, and why not. Behind the barrier (Policy.blocks) the whole batch is held at once. So a kill there
costs whole batches; decoded together again, they have the bytes of an uninterrupted run.

The waiting for tools and graders is in an event loop in a thread of its own
(rft/rollouts/loop_thread.py), while the calling thread decodes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rft import config, progress, reports, stats, stopping, threads
from rft.chat.dialogue import opening_of
from rft.errors import ConfigError
from rft.grading import budget
from rft.grading.grader import Grader, Ungraded, grader_of
from rft.recipe import Recipe
from rft.reports import PromptSettings
from rft.rollouts import blame, determinism, recovery, serving
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from rft.rollouts.loop import Conditions, Request, run_rollouts
from rft.rollouts.loop_thread import LoopThread
from rft.rollouts.pace import Pace
from rft.rollouts.policy import Policy
from rft.rollouts.prompting import too_many_turns
from rft.rollouts.recovery import Played, Resumed
from rft.rollouts.store import RolloutStore
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import Example, Trajectory
from rft.wire import trace
from rft.wire.trace import Traces

T = TypeVar("T")


@dataclass(slots=True)
class Times:
    """Wall times in seconds, which are not in reports. By name: the seconds of each rollout. By
    phase: a total."""

    rollout_s: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, rows: Sequence[LogRow], seconds: Sequence[float]) -> None:
        """Add only scored rollouts: the length of an outage says nothing about the policy."""
        known = self.rollout_s.setdefault(name, [])
        known += [wall_s for row, wall_s in zip(rows, seconds, strict=True) if row.reward is not None]

    def write(self, path: Path, traces: Traces | None = None, **more: Any) -> None:
        """Write the file. `traces`: the names of these rollouts on the wire."""
        spans = {
            name: {
                "p50": round(stats.percentile(seconds, 0.5), 4),
                "p95": round(stats.percentile(seconds, 0.95), 4),
                "n": len(seconds),
            }
            for name, seconds in self.rollout_s.items()
            if seconds
        }
        phases = {name: round(seconds, 3) for name, seconds in self.phases.items()}
        told = {"rollout_s": spans, "phases": phases, "threads": threads.used()}
        reports.write_json({**told, "trace": traces and traces.published(), **more}, path)


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement: the stage and arm, the prompt, the rollouts per example, and the seed."""

    stage: str
    arm: str
    prompt: PromptSettings
    temperature: float
    k: int
    seed: int
    split: str = "validation"
    step: int = 0
    left_out: str = ""
    """The reason why these rollouts are not trained on, in a stage that trains."""
    shown: bool = False
    """Whether these rollouts are only for people to read. They get another name, so that their
    times do not count as measured."""

    @property
    def name(self) -> str:
        arm = f"{self.arm}-{self.step}" if self.step else self.arm
        how = "shown" if self.shown else "greedy" if self.temperature == 0 else "sampled"
        return f"{self.stage}/{arm}/{how}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where finished rollouts wait for the end of their batch: `store.add_all(..., batch)`.

    Several calls of `RolloutRunner.run` may share a batch, as in an optimizer step, if no two of
    their requests are equal.
    """

    store: RolloutStore
    batch: str
    arm: str

    def resumed(self, requests: Sequence[Request]) -> list[Resumed]:
        """Find the rollouts of these requests that were finished before the stage was started
        again."""
        asked = {(request.example.id, request.sample): request for request in requests}
        found: list[Resumed] = []
        for row, wall_s, _, turns_json in self.store.held(self.batch):
            if (request := asked.get((row.example_id, row.sample))) is not None:
                word, trajectory = rollout_log.restored(row, turns_json, wall_s)
                found.append(Resumed(word, replace(request, attempt=row.attempt), trajectory))
        return found


class _Holder:
    """Writes finished rollouts to the store in a thread, all that are waiting at a time."""

    def __init__(self, waiting: Waiting, conditions: Conditions, stage: str, word: str):
        self._waiting, self._conditions, self._stage, self._word = waiting, conditions, stage, word
        self._ended: list[tuple[Request, Trajectory]] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, request: Request, trajectory: Trajectory) -> None:
        """Take a finished rollout. Raises what the last write raised."""
        self._ended.append((request, trajectory))
        if self._writing is None or self._writing.done():
            if self._writing is not None:
                self._writing.result()
            self._writing = asyncio.create_task(self._write())

    async def flush(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._ended:
            some, self._ended = self._ended, []
            await asyncio.to_thread(self._hold, some)

    def _hold(self, ended: Sequence[tuple[Request, Trajectory]]) -> None:
        under, where = self._conditions, self._waiting
        rows = [
            rollout_log.row(
                trajectory,
                request.example,
                request.sample,
                under.prompt,
                stage=self._stage,
                arm=where.arm,
                step=under.step,
                split=under.split,
                temperature=under.temperature,
            )
            for request, trajectory in ended
        ]
        turns_jsons = [rollout_log.turns_json(trajectory, self._word) for _, trajectory in ended]
        where.store.hold(rows, [trajectory.wall_s for _, trajectory in ended], turns_jsons, where.batch)


class RolloutRunner:
    """Open only inside `rollout_runner`."""

    def __init__(
        self,
        params: config.Params,
        recipe: Recipe,
        loop_thread: LoopThread,
        client: ToolClient,
        grader: Grader,
        traces: Traces,
    ):
        self.params, self.recipe, self.traces = params, recipe, traces
        self.times = Times()
        self._loop_thread, self._client, self._grader = loop_thread, client, grader

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The schemas of all tools, wherever the tools live."""
        return self._client.schemas

    def check_rows(self, examples: Sequence[Example]) -> None:
        """Check rows before anything is sampled. Raises ConfigError for a row's own tool that no
        server offers or whose schema is invalid."""
        self._client.check_rows(examples)

    def check_openings(self, policy: Policy, examples: Sequence[Example], prompt: PromptSettings) -> None:
        """Check openings before anything is sampled. Raises UserError for one too long for the
        context."""
        limits = self.params.rollout
        openings = [opening_of(example, prompt, limits) for example in examples]
        self.wait(policy.check_openings(openings, limits.max_tokens))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(work)

    def run(
        self,
        policy: Policy,
        requests: Sequence[Request],
        conditions: Conditions,
        stage: str,
        waiting: Waiting | None = None,
        pace: Pace | None = None,
    ) -> Played:
        """Play one batch, through outages and kills (rft/rollouts/recovery.py). The store holds the
        result until the batch is added; without a store, a kill loses it. `pace`: the progress of
        several batches; None: of this one."""
        pace = pace or Pace(stage, len(requests))

        async def play_once(some: Sequence[Request], word: str) -> list[Trajectory]:
            under = replace(conditions, name=f"{conditions.name} {word}") if word else conditions
            phases = self.times.phases
            on_progress = pace.again if word or any(request.attempt for request in some) else pace
            play = functools.partial(
                run_rollouts, policy, self._client, self._grader, some, under, phases, on_progress=on_progress
            )
            if waiting is None:
                return await play()
            holder = _Holder(waiting, under, stage, word)
            try:
                return await play(ended=holder.add)
            finally:
                await holder.flush()

        resumed = waiting.resumed(requests) if waiting else ()

        async def blamed(played: Sequence[tuple[Request, Trajectory]]) -> str:
            found = [(request.example, trajectory) for request, trajectory in played]
            share = conditions.limits.max_unscored_share
            return await blame.unjudgeable(self.recipe, self._grader, self._client, self.traces, found, share)

        report_line = functools.partial(progress.print_line, stage)
        return self._loop_thread.run(
            recovery.play(play_once, requests, conditions.limits, report_line, resumed, blamed)
        )

    def converse(self, policy: Policy, request: Request, conditions: Conditions, graded: bool) -> Trajectory:
        """Play one rollout for a person who waits: an outage causes no pause, and nothing is kept.
        Unless `graded`, the grade means nothing."""
        grader = self._grader if graded else Ungraded(self._grader.scale)
        [trajectory] = self.wait(run_rollouts(policy, self._client, grader, [request], conditions, self.times.phases))
        return trajectory

    def measure(
        self, policy: Policy, examples: Sequence[Example], plan: Plan, store: RolloutStore, report: Any, done: int = 0
    ) -> list[LogRow]:
        """Play `k` rollouts of each example, return their rows and keep their times."""
        rows, seconds = self.played(policy, examples, plan, store, report, done)
        self.times.add(plan.name, rows, seconds)
        return rows

    def played(
        self, policy: Policy, examples: Sequence[Example], plan: Plan, store: RolloutStore, report: Any, done: int = 0
    ) -> tuple[list[LogRow], list[float]]:
        """Play `k` rollouts of each example and return their rows and seconds, in order of example
        and sample. Calls `report(done, message)` after each batch.

        Superseded rollouts (rft/rollouts/recovery.py) are in the store, but are not returned.
        """
        self.check_rows(examples)
        self.check_openings(policy, examples, plan.prompt)
        requests = [Request(example, sample) for example in examples for sample in range(plan.k)]
        seed, name = (plan.seed, int(plan.temperature * 1000)), f"{plan.name}/{plan.prompt.digest()}"
        conditions = Conditions(
            plan.prompt, plan.temperature, seed, self.params.rollout, name, plan.split, plan.step, self.traces
        )
        size = self.params.rollout.batch
        rows: list[LogRow] = []
        times: list[float] = []
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            saved = f"{name}/{batch[0].example.id}/{start}/{len(batch)}"
            if saved not in store:
                if plan.stage != "train":  # training stops after a whole step (rft/trainer/loop.py)
                    stopping.check("before its next batch of rollouts")
                played = self.run(policy, batch, conditions, plan.stage, Waiting(store, saved, plan.arm))
                _add(store, played, plan.left_out, saved)
            finished, seconds = store.batch(saved) or ([], [])
            rows += finished[: len(batch)]
            times += seconds[: len(batch)]
            rewards = [row.reward for row in rows if row.reward is not None]
            mean = sum(rewards) / len(rewards) if rewards else float("nan")
            greedy = "greedy " if plan.temperature == 0 else ""
            report(done + len(rows), f"rollouts, {plan.arm} {greedy}mean reward {mean:.3f}")
        return rows, times


def _add(store: RolloutStore, played: Played, left_out: str, name: str) -> None:
    """Add the batch's rollouts, whose rows are held, and then those that were replaced."""
    rows = {kept.row.rollout_id: kept.row for kept in store.held(name)}
    ended = [(one, left_out) for one in played.trajectories] + [(one.trajectory, one.why) for one in played.superseded]
    store.add_all(
        [replace(rows[one.rollout_id], left_out=why) for one, why in ended], [one.wall_s for one, _ in ended], name
    )


@contextmanager
def rollout_runner(params: config.Params, recipe: Recipe, work: Path | None = None) -> Iterator[RolloutRunner]:
    """Open a runner. `work`: the folder of the stage's unfinished work, with the nonce of its trace
    ids.

    Raises ConfigError for a budget that does not fit these tools or this run's mode. Raises it also
    for a prompt with too many turns, and if the recipe cannot choose the answer to serve.
    """
    determinism.check_rollouts(params)
    serving.check(params, recipe)
    if problems := [f"{what}. {remedy}" for what, remedy in too_many_turns(params, recipe)]:
        raise ConfigError("\n".join(problems))
    names = schemas(recipe)
    with running(recipe, params.tools) as endpoint, LoopThread() as loop_thread, ExitStack() as stack:
        client = ToolClient(endpoint, params.tools, names, recipe=recipe)
        unopened = grader_of(recipe.grader, endpoint, params.tools)

        def opened(one: AbstractAsyncContextManager[T]) -> T:
            entered = loop_thread.run(one.__aenter__())
            stack.callback(lambda: loop_thread.run(one.__aexit__(None, None, None)))
            return entered

        client, grader = opened(client), opened(unopened)
        served = [*(tool["function"]["name"] for tool in client.schemas), *(one.name for one in params.tools.endpoints)]
        budget.check(params.rollout.budget, served)  # an endpoint's schema may be in the rows only
        yield RolloutRunner(params, recipe, loop_thread, client, grader, trace.begin(work) if work else Traces())


__all__ = ["Plan", "RolloutRunner", "Times", "Waiting", "rollout_runner"]
