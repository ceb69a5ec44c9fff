"""What every stage with rollouts needs at hand: the tools' server, a client, the grader, and the policy.

    with workbench(params, recipe) as bench:
        policy = bench.policy("champion")
        rows = bench.measure(policy, examples, prompt, ...)     batch after batch, resumable

The server is the recipe's own, started here on a free port and stopped at the end, or the external one of `tools.server_url`. Finished
batches wait under `.rft/`, so that a stage that was killed repeats at most one batch; a batch is a pure function of its seed, so the bytes are
those of an uninterrupted run.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rft import config, reports, rollout_log, stats
from rft.chat import Chat
from rft.errors import TooManyUnscored, UserError
from rft.graders import EndpointGrader
from rft.recipe import Recipe
from rft.reports import PromptSettings
from rft.rollout import Conditions, Policy, Request, run_rollouts
from rft.rollout_log import LogRow
from rft.server import running
from rft.tools import ToolClient, schemas
from rft.types import Example, Trajectory

CHAMPION = Path("data/champion/champion.json")


@dataclass(slots=True)
class Times:
    """Wall seconds, kept apart from reports: a list a name of seconds a rollout, and a sum a phase."""

    rollout_s: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)

    def write(self, path: Path, **more: Any) -> None:
        spans = {
            name: {"p50": round(stats.percentile(seconds, 0.5), 4), "p95": round(stats.percentile(seconds, 0.95), 4), "n": len(seconds)}
            for name, seconds in self.rollout_s.items()
            if seconds
        }
        reports.write_json({"rollout_s": spans, "phases": {k: round(v, 3) for k, v in self.phases.items()}, **more}, path)


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement: which examples, how often, under what."""

    stage: str
    arm: str
    prompt: PromptSettings
    temperature: float
    k: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.arm}/{'greedy' if self.temperature == 0 else 'sampled'}"


class Workbench:
    """Open only inside `workbench`."""

    def __init__(self, params: config.Params, recipe: Recipe, runner: asyncio.Runner, client: ToolClient, grader: EndpointGrader):
        self.params, self.recipe = params, recipe
        self.times = Times()
        self._runner, self._client, self._grader = runner, client, grader

    def run(self, policy: Policy, requests: Sequence[Request], conditions: Conditions) -> list[Trajectory]:
        """One batch. Raises TooManyUnscored when more than the declared share has no score."""
        trajectories = self._runner.run(run_rollouts(policy, self._client, self._grader, requests, conditions, self.times.phases))
        unscored = [one for one in trajectories if one.reward is None]
        if len(unscored) > self.params.rollout.max_unscored_share * len(trajectories):
            raise TooManyUnscored(
                f"{len(unscored)} of {len(trajectories)} rollouts have no score (rollout.max_unscored_share is "
                f"{self.params.rollout.max_unscored_share}). The last reason: {unscored[-1].grade.explanation[:300]}. "
                "Mend the tool server or grader and start again; finished work is kept."
            )
        return trajectories

    def measure(self, policy: Policy, examples: Sequence[Example], plan: Plan, work: Path, report: Any, done: int = 0) -> list[LogRow]:
        """`k` rollouts of each example, in order of example and sample. `report(done, message)` after each batch."""
        requests = [Request(example, sample) for example in examples for sample in range(plan.k)]
        conditions = Conditions(
            plan.prompt, plan.temperature, (plan.seed, int(plan.temperature * 1000)), self.params.rollout, f"{plan.name}/{plan.prompt.digest()}"
        )
        size = self.params.rollout.batch
        rows: list[LogRow] = []
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            saved = work / f"{plan.arm}-{plan.prompt.digest()[:8]}-{int(plan.temperature * 1000)}-{batch[0].example.id}-{start}-{len(batch)}.json"
            if not saved.exists():
                _save(saved, self.run(policy, batch, conditions), batch, plan)
            finished, seconds = _load(saved)
            rows += finished
            self.times.rollout_s.setdefault(plan.name, []).extend(seconds)
            scores = [one.reward for one in rows if one.reward is not None]
            mean = sum(scores) / len(scores) if scores else float("nan")
            report(done + len(rows), f"rollouts, {plan.arm} {'greedy ' if plan.temperature == 0 else ''}mean reward {mean:.3f}")
        return rows


@contextmanager
def workbench(params: config.Params, recipe: Recipe) -> Iterator[Workbench]:
    names = schemas(recipe)
    with running(recipe, params.tools) as endpoint, asyncio.Runner() as runner:
        client = ToolClient(endpoint, params.tools, names)
        runner.run(client.__aenter__())
        grader = EndpointGrader(recipe.grader, endpoint, params.tools)
        runner.run(grader.__aenter__())
        try:
            yield Workbench(params, recipe, runner, client, grader)
        finally:
            runner.run(grader.__aexit__(None, None, None))
            runner.run(client.__aexit__(None, None, None))


# -- the policy of a stage -------------------------------------------------------------------------------------------------
def champion() -> reports.Champion:
    """What is served now; before anything was promoted, version 0: the base policy with the seed prompt."""
    return reports.read(reports.Champion, CHAMPION) if CHAMPION.exists() else reports.Champion()


def champion_prompt(recipe: Recipe) -> PromptSettings:
    return champion().prompt or recipe.prompts.seed


def base_model(params: config.Params, which: Literal["policy", "champion"], device: Any) -> tuple[Any, Chat]:
    """The model that a stage starts from, plain (an adapter is merged in), and its chat."""
    from rft import model, recipe

    pointer = reports.read(reports.PolicyReport, Path("data/policy/report.json"))
    network, tokenizer = model.load(pointer.model, params.policy, device)
    served = champion()
    if which == "champion" and served.weights_path:
        if served.base_sha256 not in (None, pointer.sha256):
            raise UserError(
                f"{CHAMPION}: the champion's weights (run {served.run}) were trained on another base model than data/policy holds now "
                f"({served.base_sha256[:12]}, not {pointer.sha256[:12]}). Restore the policy's settings in params.yaml, or go back "
                "to a champion without weights of its own: rft rollback."
            )
        network = model.with_weights(network, served.weights, CHAMPION.parent / served.weights_path, device)
    return network, Chat(tokenizer, schemas(recipe.load(params.recipe)))


def _save(path: Path, trajectories: list[Trajectory], batch: list[Request], plan: Plan) -> None:
    rows = [
        rollout_log.row(one, request.example, request.sample, plan.prompt, plan.stage, plan.arm)
        for one, request in zip(trajectories, batch, strict=True)
    ]
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"rows": [asdict(one) for one in rows], "seconds": [one.wall_s for one in trajectories]}))
    os.replace(part, path)


def _load(path: Path) -> tuple[list[LogRow], list[float]]:
    saved = json.loads(path.read_text())
    return [LogRow(**one) for one in saved["rows"]], saved["seconds"]


__all__ = ["CHAMPION", "Plan", "Times", "Workbench", "base_model", "champion", "champion_prompt", "workbench"]
