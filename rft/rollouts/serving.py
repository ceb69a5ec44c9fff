"""Choose the rollout that is served out of several, before anybody knows a grade.

Many agents in production sample several times and serve the best answer, which is cheaper than
training. Such an agent must be judged by the answers that it serves. A policy that is right in 40 %
of its rollouts may be right in 60 % of its majorities, or in 20 %. And each answer costs all its
rollouts.

    majority     serves the most frequent final answer, and the first sampled of equally frequent
                 ones. Texts are compared without the whitespace around them, JSON in its canonical
                 form (rft/files.py). An answer that is empty, or not JSON, has no vote
    best_of_n    serves the rollout to which the recipe's `verify(messages, sample)` gives the
                 highest number, the first of equals

The choice uses only what a server has: the dialogue and the final answer. `verify` gets copies of
the opening's messages and of the graded view (rft/wire/contract.py), but no item, target or grade.
If no answer has a vote, the first rollout is served. If one of an answer's rollouts was lost to an
infrastructure failure, the answer is unscored, because production would serve another one. An
outage must not turn one arm's majority of five into a majority of two.

An answer's outcome (reward, score, hack, stop reason) is that of the chosen rollout. Its costs
(turns, calls, tokens) are the sums over all its rollouts, because all are paid for. Its seconds are
those of the slowest rollout, because they run side by side.
"""

from __future__ import annotations

import copy
import math
import numbers
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rft import commands, config, files, stage_files
from rft.errors import ConfigError, UserError
from rft.recipe import Recipe
from rft.reports import Champion
from rft.rollouts.log import LogRow
from rft.rollouts.replay import turns
from rft.rollouts.transcript import dialogue
from rft.types import INFRASTRUCTURE, Message, StopReason
from rft.wire import contract

_SPOKEN = ("role", "content", "name", "tool_calls", "tool_call_id")
"""The keys of a row's message that a policy reads. A row may have other keys of its own."""


NOT_SERVED = "not served: the answer is another rollout's"
LOST = "not served: another rollout of this answer was lost"


@dataclass(frozen=True, slots=True)
class Answers:
    """One row per answer, with its seconds. `not_served`: the reason, by rollout id."""

    rows: list[LogRow]
    seconds: list[float]
    not_served: dict[str, str] = field(default_factory=dict)


def check(params: config.Params, recipe: Recipe) -> None:
    """Raises ConfigError if the best of several rollouts shall be served and the recipe has no
    `verify` to choose it."""
    if problems := [f"{what}. {remedy}" for what, remedy in without_verify(params, recipe)]:
        raise ConfigError("\n".join(problems))


def without_verify(params: config.Params, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (what, remedy) for each agent that serves the best of several rollouts without a
    `verify` to choose it."""
    missing = f"{recipe.folder}/tools.py has no verify(messages, sample), which chooses the rollout to serve"
    write = "Write it so that it returns a finite number, and a higher one for a better rollout"
    if recipe.python is not None:
        missing = "recipe.python runs tools.py in a process of its own, where verify(messages, sample) cannot be called"
        write = "Leave recipe.python out"
    elif recipe.verify is not None:
        return
    if params.policy.serve.method == "best_of_n":
        yield f"params.yaml: policy.serve.method = best_of_n, but {missing}", f"{write}, or choose another method."
    if stage_files.champion().serve.method == "best_of_n":
        back = commands.rollback(params.agent_name)
        what = f"{stage_files.path(Champion)}: serve.method is best_of_n, but {missing}"
        yield what, f"{write}, or go back to a champion with another method: {back}"


def answers(rows: Sequence[LogRow], seconds: Sequence[float], serve: config.Serve, recipe: Recipe) -> Answers:
    """Make answers of rollouts, which are in order of example and sample: one answer of each
    `serve.num_rollouts` consecutive rollouts. Raises UserError for a `verify` that fails."""
    if serve.is_single:
        return Answers([*rows], [*seconds])
    made = Answers([], [])
    for start in range(0, len(rows), serve.num_rollouts):
        group = rows[start : start + serve.num_rollouts]
        times = seconds[start : start + serve.num_rollouts]
        lost = next((row for row in group if StopReason(row.stop_reason) in INFRASTRUCTURE), None)
        chosen = lost or group[_chosen(group, serve, recipe)]
        made.rows.append(_with_costs_of(group, chosen))
        made.seconds.append(max(times))
        why = LOST if lost else NOT_SERVED
        made.not_served.update({row.rollout_id: why for row in group if row is not chosen})
    return made


def _chosen(group: Sequence[LogRow], serve: config.Serve, recipe: Recipe) -> int:
    samples = [_sample(row) for row in group]
    if serve.method == "majority":
        return majority([_vote(sample, serve.over) for sample in samples])
    assert recipe.verify is not None
    values = [_verified(recipe.verify, row, sample, recipe) for row, sample in zip(group, samples, strict=True)]
    return values.index(max(values))


# -- majority --------------------------------------------------------------------------------------
def majority(votes: Sequence[bytes | None]) -> int:
    """Return the place of the first of the most frequent votes; None is not a vote."""
    counts = Counter(vote for vote in votes if vote is not None)
    most = max(counts.values(), default=0)
    return next((n for n, vote in enumerate(votes) if vote is not None and counts[vote] == most), 0)


def _vote(sample: dict[str, Any], over: str | None) -> bytes | None:
    if over == "output_text":
        return sample["output_text"].strip().encode("utf-8", "surrogatepass") or None
    if sample["output_json"] is None:
        return None
    try:
        return files.canonical(sample["output_json"])
    except (UserError, RecursionError):  # such as an integer that JSON cannot hold exactly
        return None


# -- best of n -------------------------------------------------------------------------------------
def _verified(verify: Callable[..., Any], row: LogRow, sample: dict[str, Any], recipe: Recipe) -> float:
    """Ask the recipe. A failure must not count as a low number, which would silently decide the
    choice."""
    where = f"{recipe.folder}/tools.py: verify, of rollout {row.rollout_id} (example {row.example_id}, {row.arm})"
    try:
        value = verify(_messages(row), copy.deepcopy(sample))
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except Exception as error:
        raise UserError(f"{where} failed: {type(error).__name__}: {error}. Fix it.") from error
    if not math.isfinite(number):
        raise UserError(f"{where} returned {reprlib.repr(value)}, expected a finite number. Fix it.")
    return number


def _messages(row: LogRow) -> list[Message]:
    """Return the messages that the policy was told, without other keys of the row's messages."""
    told = dialogue(row).opening  # parsed from the log's text, so nobody else has these objects
    return [{key: message[key] for key in _SPOKEN if key in message} for message in told]


def _sample(row: LogRow) -> dict[str, Any]:
    return contract.sample(turns(row), StopReason(row.stop_reason))


# -- costs -----------------------------------------------------------------------------------------
def _with_costs_of(group: Sequence[LogRow], chosen: LogRow) -> LogRow:
    return replace(
        chosen,
        num_turns=sum(row.num_turns for row in group),
        num_tool_calls=sum(row.num_tool_calls for row in group),
        num_tool_errors=sum(row.num_tool_errors for row in group),
        num_tokens=sum(row.num_tokens for row in group),
        num_forks=sum(row.num_forks for row in group),
        num_context_tokens=_sum([row.num_context_tokens for row in group]),
        num_cached_tokens=_sum([row.num_cached_tokens for row in group]),
        num_unreadable_calls=_sum([row.num_unreadable_calls for row in group]),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None if one of the counts is missing."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


__all__ = ["Answers", "answers", "check", "majority", "without_verify"]
