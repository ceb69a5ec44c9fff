"""Budgets: the price of a rollout's use of tools, tokens, turns and time.

    over   = min(1, max(0, used - free) / free)           for each budget that is set
    kept   = product over the budgets of (1 - weight * over)
    earned = min(outcome, score) - low, never below 0     what the task itself earned

    multiplied:  reward = (score - earned) + earned * kept
    added:       reward = score - (1 - kept)              not clamped: may fall below 0

With free = 0, over is min(1, used).

`low` is the low end of the grader's range (rft/scale.py): the score of a rollout that earned
nothing. It is 0 unless grader.json says otherwise. On a range of 1 to 5 a failure has the score 1,
whatever it used; on -2 to 2 it has -2. `outcome` is on the scale of the score. If the grader names
no outcome, outcome = score, and with low = 0 the multiplied reward is score * kept. An example with
`tool_calls: 4, weight: 0.5` and `tokens: {free: 200, weight: 0.2}`:

    calls  tokens   kept                    multiplied: solved, failed    added: solved, failed
        4     150   1    * 1   = 1                      1       0                1       0
        6     150   0.75 * 1   = 0.75                   0.75    0                0.75   -0.25
        6     300   0.75 * 0.9 = 0.675                  0.675   0                0.675  -0.325
        8     400   0.5  * 0.8 = 0.4                    0.4     0                0.4    -0.6
       40    9000   0.5  * 0.8 = 0.4                    0.4     0                0.4    -0.6

The multiplied form is the default. It scales what was earned, so a rollout that earned nothing
loses nothing. In a group in which all rollouts failed, all rewards stay equal, and there is no
advantage to learn from. The added form creates an advantage there: it rewards the failure that
tried least, and can teach a policy to stop calling tools (`make figure NAME=outcome_gate` measures
the collapse). For the same reason only `outcome` decides whether a group's rollouts differ. A
grade's other components (process, style) do not, nor does what a budget took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rft import config
from rft.errors import ConfigError, did_you_mean
from rft.types import OUTCOME, Grade, GradeStatus, Turn


@dataclass(frozen=True, slots=True)
class Use:
    """What a rollout used: `Use(("search", "lookup"), tokens=61, turns=3, seconds=4.2)`."""

    calls: tuple[str, ...]
    """The names of the called tools. Refused calls are included, because the policy wrote them."""
    tokens: int
    turns: int
    seconds: float

    @classmethod
    def from_turns(cls, turns: Sequence[Turn], seconds: float) -> Use:
        """`seconds`: the rollout's time, without the time in which our own sampler served
        others."""
        calls = tuple(call.name for turn in turns for call in turn.calls)
        return cls(calls, sum(len(turn.token_ids) for turn in turns), len(turns), seconds)


def outcome(grade: Grade) -> float | None:
    """Return what the task itself earned; None if unscored. It is the score if the grader names no
    outcome, and for a hack, whose score is the lowest."""
    if grade.score is None or grade.status is GradeStatus.hack:
        return grade.score
    return grade.components.get(OUTCOME, grade.score)


def reward(grade: Grade, used: Use, section: config.Budget, low: float = 0.0) -> float | None:
    """Return the reward, which is never above the score; None if and only if there is no score.
    `low`: the low end of the grader's range."""
    if grade.score is None:
        return None
    share = kept(used, section)
    if section.form == "added":
        return grade.score - (1 - share)
    task = outcome(grade)
    assert task is not None
    earned = min(task, grade.score) - low
    if earned <= 0:  # an outcome below the range; scaling it would raise the reward
        return grade.score
    return min(grade.score, grade.score - earned + earned * share)


def kept(used: Use, section: config.Budget) -> float:
    """Return the share of the outcome that the budgets leave: 1 inside all of them."""
    share = 1.0
    if section.tool_calls is not None:
        calls = sum(section.tool_weights.get(name, 1.0) for name in used.calls)
        share *= 1 - section.weight * _over(calls, section.tool_calls)
    uses = (used.tokens, section.tokens), (used.turns, section.turns), (used.seconds, section.latency_s)
    for amount, allowed in uses:
        if allowed is not None:
            share *= 1 - allowed.weight * _over(amount, allowed.free)
    return share


def _over(used: float, free: float) -> float:
    return min(1.0, max(0.0, used - free) / (free or 1))


# -- budgets that cannot be honored ----------------------------------------------------------------
def check(section: config.Budget, names: Iterable[str]) -> None:
    """Raises ConfigError for the weight of a tool that is not in `names`, the tools that a rollout
    may call: such a weight would never count."""
    known = set(names)
    if unknown := [name for name in section.tool_weights if name not in known]:
        listed = ", ".join(map(repr, unknown))
        raise ConfigError(
            f"params.yaml: rollout.budget.tool_weights names {listed}, and there is no such tool. "
            f"{did_you_mean(unknown[0], known)}"
        )


def contradictions(params: config.Params, is_deterministic: bool) -> Iterator[tuple[str, str]]:
    """Yield (what, remedy) for each budget that this run cannot honor. `is_deterministic`: whether
    the run will be deterministic, with rollout.deterministic: null already resolved."""
    section, server = params.rollout.budget, params.policy.server
    if section.latency_s is not None and is_deterministic:
        yield (
            "rollout.budget.latency_s makes rewards depend on wall time, and in deterministic mode equal seeds give "
            "equal bytes",
            "Set rollout.deterministic: false, or remove the latency budget.",
        )
    if section.tokens is not None and server is not None and server.kind == "chat":
        yield (
            "rollout.budget.tokens counts sampled tokens, and policy.server.kind = chat gives none: no rollout would "
            "ever exceed it",
            "Remove the token budget, or use vllm or sglang.",
        )


def never_exceeded(section: config.Rollout) -> Iterator[tuple[str, str]]:
    """Yield (what, remedy) for each budget that never costs anything, because a limit ends the
    rollout first."""
    budget = section.budget
    heaviest = max([1.0, *budget.tool_weights.values()])
    calls = budget.tool_calls if budget.weight else None
    for name, free, limit, most in (
        ("tool_calls", calls, "max_tool_calls", section.max_tool_calls * heaviest),
        ("tokens", budget.tokens and budget.tokens.free, "max_tokens", section.max_tokens),
        ("turns", budget.turns and budget.turns.free, "max_turns", section.max_turns),
        ("latency_s", budget.latency_s and budget.latency_s.free, "deadline_s", section.deadline_s),
    ):
        if free is not None and most is not None and free >= most:
            yield (
                f"rollout.budget.{name} = {free:g} is never exceeded: rollout.{limit} = {getattr(section, limit):g} "
                "ends a rollout first",
                f"Lower the budget, or set rollout.budget.{name}: null.",
            )


__all__ = ["OUTCOME", "Use", "check", "contradictions", "kept", "never_exceeded", "outcome", "reward"]
