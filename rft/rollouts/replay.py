"""Grade stored trajectories again, to see what another grader says.

    row of the log -> turns, as the policy wrote them -> the new grader -> old and new score

Nothing is sampled and no tool is called. A row holds the dialogue and the example's whole row. That
is all that an endpoint grader sees, except latencies. So an unchanged grader gives the same scores,
if it reads no latency and stores nothing under trace ids. A rollout that ended in an infrastructure
failure says nothing about the policy: it is not sent, and stays unscored. A rollout whose new grade
failed is unscored, too. Both are counted separately, and no mean contains them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft import config, recipe, reports
from rft.config import graders
from rft.errors import UserError
from rft.grading.grader import Grader, grader_of, usage_of
from rft.grading.judge import TokenUsage
from rft.rollouts.log import LogRow
from rft.rollouts.transcript import dialogue
from rft.tools.lifetime import running
from rft.tools.signatures import ROLLOUT, described
from rft.types import (
    INFRASTRUCTURE,
    Example,
    Grade,
    GradeStatus,
    RolloutContext,
    StopReason,
    ToolCall,
    ToolResult,
    Turn,
    Unscored,
)
from rft.wire.client import ToolEndpoint
from rft.wire.trace import Traces


@dataclass(frozen=True, slots=True)
class Regraded:
    """A rollout of the log, and its new grade."""

    row: LogRow
    grade: Grade

    @property
    def change(self) -> float | None:
        """The new score minus the old one; None unless both graders gave a score."""
        return None if self.row.score is None or self.grade.score is None else self.grade.score - self.row.score


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares old and new grades. Means are over the rollouts that both graders scored."""

    both: int
    old_mean: float | None
    new_mean: float | None
    old_solved: float | None
    new_solved: float | None
    changed: int
    up: int
    down: int
    only_old: int  # only the old grader gave a score
    only_new: int
    neither: int

    @property
    def unscored(self) -> int:
        return self.only_old + self.neither


def load_grader(path: Path) -> recipe.Grader:
    """Read a grader. Raises UserError or ConfigError naming the file, key and value."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=config.unique)
    except OSError as error:
        remedy = "Name a grader's JSON file, such as recipes/icd10/grader.json."
        raise UserError(f"{path}: cannot be read ({error.strerror}). {remedy}") from None
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}). Write it like recipes/icd10/grader.json.") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: holds no JSON object. Write it like recipes/icd10/grader.json.")
    return graders.read(raw, str(path))


Spent = Mapping[str, TokenUsage]
"""Model -> the tokens of a judge."""


def regrade(
    log: Sequence[LogRow],
    grader: recipe.Grader,
    params: config.Params,
    report: Callable[[int], None],
    spent: Callable[[Spent], None] = lambda usage: None,
) -> list[Regraded]:
    """Grade again, in order of `log`. Starts the recipe's server only for a grader that runs there.
    Calls `report(done)` after each rollout, and `spent` at the end."""
    with _endpoint(grader, params) as endpoint:
        try:
            return asyncio.run(_regrade(log, grader_of(grader, endpoint, params.tools), params.rollout, report, spent))
        except ExceptionGroup as group:  # raise the bare error that stops a replay, such as a refused key
            raise group.exceptions[0] from None


@contextmanager
def _endpoint(grader: recipe.Grader, params: config.Params) -> Iterator[ToolEndpoint]:
    if not grader.needs_tool_server:
        yield ToolEndpoint("")
        return
    loaded = recipe.load(params.recipe)
    if ROLLOUT in described(loaded).asks.get("grade", []):
        what = f"{loaded.folder}/tools.py: grade(sample, item, rollout) looks at the rollout's state"
        raise UserError(f"{what}, which a log does not hold. Only a grader without it can grade stored rollouts again.")
    with running(loaded, params.tools) as endpoint:
        yield endpoint


async def _regrade(
    log: Sequence[LogRow],
    unopened: AbstractAsyncContextManager[Grader],
    limits: config.Rollout,
    report: Callable[[int], None],
    spent: Callable[[Spent], None],
) -> list[Regraded]:
    done, traces = 0, Traces()  # new ids, because a grader may have stored something under the old ones
    slots = asyncio.Semaphore(limits.batch)  # as many as the stages send at once

    async def grade_one(row: LogRow) -> Regraded:
        nonlocal done
        async with slots:
            grade = await _grade(row, grader, limits.grader_deadline_s, traces)
        done += 1
        report(done)
        return Regraded(row, grade)

    async with unopened as grader, asyncio.TaskGroup() as group:
        tasks = [group.create_task(grade_one(row)) for row in log]
    spent(usage_of(grader))
    return [task.result() for task in tasks]


async def _grade(row: LogRow, grader: Grader, deadline_s: float, traces: Traces) -> Grade:
    stop = StopReason(row.stop_reason)
    if stop in INFRASTRUCTURE:
        return Unscored(GradeStatus.infra_error, f"not sent: the rollout ended with {stop}")
    example = example_of(row)
    context = RolloutContext(traces.trace_id(row.rollout_id, row.attempt), example, row.split, row.step, row.attempt)
    try:
        async with asyncio.timeout(deadline_s):
            return await grader.grade(example, turns(row), stop, context)
    except TimeoutError:
        why = f"grader: no grade within rollout.grader_deadline_s = {deadline_s:g} s"
        return Unscored(GradeStatus.grader_timeout, why)


# -- a row, read back ------------------------------------------------------------------------------
def example_of(row: LogRow) -> Example:
    """Restore the example as it was when it was rolled out."""
    where = f"rollout {row.rollout_id} of {row.stage}, column `item`"
    remedy = "Without the example's whole row it cannot be graded again."
    if not reports.parse_line(row.item, where, remedy).get("messages"):
        raise UserError(f"{where}: has no messages. {remedy}")
    return Example(row.example_id, (), slice=row.slice, line=row.item)


def turns(row: LogRow) -> list[Turn]:
    """Restore the turns as a grader sees them, without tokens."""
    return [
        Turn(
            text=spoken.message.get("content") or "",
            calls=tuple(
                ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in spoken.calls
            ),
            results=tuple(
                ToolResult(one["tool_call_id"], one["content"], one.get("is_error", False)) for one in spoken.results
            ),
            reasoning=spoken.message.get("reasoning_content", ""),
            submitted=spoken.message.get("submitted"),
        )
        for spoken in dialogue(row).turns
    ]


def cost(grader: recipe.Grader, model: str, tokens: TokenUsage) -> float | None:
    """Return the cost of the judge's tokens at the prices of grader.json; None without prices."""
    parts = grader.graders.values() if isinstance(grader, graders.Multi) else [grader]
    prices = [part.prices for part in parts if isinstance(part, graders.ModelGrader) and part.model == model]
    known = next((found for found in prices if found is not None), None)
    return None if known is None else tokens.cost(known)


# -- old beside new --------------------------------------------------------------------------------
def compare(regraded: Iterable[Regraded]) -> Comparison:
    """Compare the old and new grades of all rollouts."""
    pairs = list(regraded)
    both = [one for one in pairs if one.change is not None]
    changes = [change for one in both if (change := one.change) is not None]
    return Comparison(
        both=len(both),
        old_mean=_mean([one.row.score for one in both]),
        new_mean=_mean([one.grade.score for one in both]),
        old_solved=_mean([one.row.solved for one in both]),
        new_solved=_mean([one.grade.solved for one in both]),
        changed=sum(change != 0 for change in changes),
        up=sum(change > 0 for change in changes),
        down=sum(change < 0 for change in changes),
        only_old=sum(one.row.score is not None and one.grade.score is None for one in pairs),
        only_new=sum(one.row.score is None and one.grade.score is not None for one in pairs),
        neither=sum(one.row.score is None and one.grade.score is None for one in pairs),
    )


def disagreements(regraded: Iterable[Regraded]) -> list[Regraded]:
    """List the changed rollouts, the largest change first; equal changes in the log's order."""
    return sorted((one for one in regraded if one.change), key=lambda one: -abs(one.change or 0.0))


def record(one: Regraded) -> dict[str, Any]:
    """Make a line of `--out`: the rollout's place in the log, and both grades."""
    row, grade = one.row, one.grade
    names = ("stage", "arm", "step", "example_id", "sample", "attempt", "rollout_id", "stop_reason")
    return {name: getattr(row, name) for name in names} | {
        "old_score": row.score,
        "old_solved": row.solved,
        "old_status": row.status,
        "old_explanation": row.explanation,
        "new_score": grade.score,
        "new_solved": None if grade.score is None else grade.solved,
        "new_status": str(grade.status),
        "new_explanation": grade.explanation,
        "change": one.change,
        "new_components": json.dumps(grade.components, sort_keys=True),
    }


def _mean(values: Sequence[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
