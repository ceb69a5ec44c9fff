"""Pause, redo or refill rollouts without a score, and go on after a kill.

What is trained on never depends on an outage.

    a batch -> unscored share above rollout.max_unscored_share?
        yes: if the grader is up but cannot judge what the policy wrote, the stage ends at once.
             Otherwise the circuit breaker opens, and the whole batch is set aside. After growing
             pauses a few of its requests are tried. Once these have scores, the whole batch is
             rolled out again, from the same random streams
        no:  each unscored rollout is rolled out again, from a stream of its own, as long as
             `rollout.refill` allows

In deterministic mode a repeated batch equals the batch of a run without the outage, bit for bit. An
outage longer than `rollout.pause_s` ends the stage as an infrastructure failure; finished work is
kept for the next start. Every rollout that was set aside or replaced is passed on with its reason,
so that sampled = trained + left out.

A stage that is started again passes in the finished rollouts of the batch (`resumed`). The same
decisions are made again, but only the missing rollouts are played. The waiting for failed servers
is not repeated: the batch goes on with its last repetition, and with fresh canaries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rft import config
from rft.errors import InfrastructureError, TooManyUnscored, UserError
from rft.progress import duration
from rft.rollouts.loop import Request
from rft.types import Trajectory
from rft.wire.client import UNREACHED

FIRST_PAUSE_S = 1.0  # doubled after each try
LONGEST_PAUSE_S = 60.0
CANARIES = 8

CANARY, AGAIN = "canary", "again"
TRIED, ASIDE = "tried while paused", "set aside by a pause"

Play = Callable[[Sequence[Request], str], Awaitable[list[Trajectory]]]
"""Rolls out requests. The word becomes part of the trace ids, so that a tool server can tell a
repetition from the first try."""


Blame = Callable[[Sequence[tuple[Request, Trajectory]]], Awaitable[str]]
"""Says why waiting does not help; empty if it may help (rft/rollouts/blame.py)."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A rollout that another one replaced."""

    trajectory: Trajectory
    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A rollout that was finished before the stage was started again. `word`: see Play."""

    word: str
    request: Request
    trajectory: Trajectory


@dataclass(slots=True)
class Played:
    """`trajectories`: one per request, in order. `superseded`: all other sampled rollouts."""

    trajectories: list[Trajectory]
    superseded: list[Superseded] = field(default_factory=list)


async def play(
    play_once: Play,
    requests: Sequence[Request],
    limits: config.Rollout,
    report_line: Callable[[str], None],
    resumed: Iterable[Resumed] = (),
    blame: Blame | None = None,
) -> Played:
    """Play a batch. Raises TooManyUnscored when an outage lasts longer than rollout.pause_s,
    UserError when it is not an outage (`blame`), InfrastructureError when the policy's tokens fork
    too often."""
    missing = _Missing(play_once, resumed)
    word, number = missing.begun()
    goes_on = bool(missing.known)
    played = Played(await missing(requests, word))
    if goes_on and _forks_too_often(played.trajectories, limits):
        number += 1  # the forks that ended the stage may be fixed now
        await _redo(missing, requests, number, "forked too often", played)
    if share_unscored(played.trajectories) > limits.max_unscored_share:
        await _wait_out(missing, requests, limits, report_line, played, number, blame)
    if trouble := _forks_too_often(played.trajectories, limits):
        raise InfrastructureError(trouble)
    await _refill(missing, requests, limits, played)
    played.superseded += [Superseded(one.trajectory, _why(one)) for one in missing.known.values()]
    return played


class _Missing:
    """Plays only rollouts that were not finished before. `known`: finished, and not yet asked
    for."""

    def __init__(self, play_once: Play, resumed: Iterable[Resumed]):
        self._play_once = play_once
        self.known = {_key(one.request, one.word): one for one in resumed}

    async def __call__(self, requests: Sequence[Request], word: str) -> list[Trajectory]:
        found = [self.known.pop(_key(one, word), None) for one in requests]
        missing = [request for request, one in zip(requests, found, strict=True) if one is None]
        fresh = iter(await self._play_once(missing, word) if missing else ())
        return [next(fresh) if one is None else one.trajectory for one in found]

    def begun(self) -> tuple[str, int]:
        """Find the word of the batch's last repetition, and the highest number in use."""
        words = {word for *_, word in self.known if word}
        last = max((word for word in words if word.startswith(AGAIN)), key=_number, default="")
        return last, max(map(_number, words), default=0)


def _key(request: Request, word: str) -> tuple[str, int, int, str]:
    return request.example.id, request.sample, request.attempt, word


def _number(word: str) -> int:
    return int(word.split()[-1])


def _why(one: Resumed) -> str:
    if one.word.startswith(CANARY):
        return TRIED
    return "not asked for again" if one.request.attempt else ASIDE


def share_unscored(trajectories: Sequence[Trajectory]) -> float:
    return sum(one.reward is None for one in trajectories) / max(1, len(trajectories))


async def _wait_out(
    play_once: Play,
    requests: Sequence[Request],
    limits: config.Rollout,
    report_line: Callable[[str], None],
    played: Played,
    number: int,
    blame: Blame | None,
) -> None:
    """Wait until a whole batch has scores again. `number`: the number of the last try."""
    if blame and (why := await blame(list(zip(requests, played.trajectories, strict=True)))):
        raise UserError(f"{_trouble(played.trajectories, limits)} {why}")
    deadline, pause = time.monotonic() + limits.pause_s, FIRST_PAUSE_S
    while True:
        reason = _trouble(played.trajectories, limits)
        left = deadline - time.monotonic()
        if left <= 0:
            waited = f"Waited rollout.pause_s = {limits.pause_s:g} s"
            raise TooManyUnscored(
                f"{reason} {waited}. Fix the tool server or grader and start again; finished work is kept."
            )
        running = " Is it running, at that address?" if UNREACHED.search(reason) else ""
        report_line(
            f"paused: {reason}{running} Trying again in {min(pause, left):.0f} s, for {duration(left)} more "
            "(rollout.pause_s); nothing is trained meanwhile. Ctrl-C loses nothing: the same command goes on."
        )
        await asyncio.sleep(min(pause, left))
        pause, number = min(2 * pause, LONGEST_PAUSE_S), number + 1
        canaries = requests[:CANARIES]
        tried = await play_once(canaries, f"{CANARY} {number}")
        played.superseded += [Superseded(one, TRIED) for one in tried]
        if share_unscored(tried) > limits.max_unscored_share:
            continue
        await _redo(play_once, requests, number, ASIDE, played)
        if share_unscored(played.trajectories) <= limits.max_unscored_share:
            report_line("goes on: tools and grader answer again")
            return


async def _redo(play_once: Play, requests: Sequence[Request], number: int, why: str, played: Played) -> None:
    played.superseded += [Superseded(one, why) for one in played.trajectories]
    played.trajectories = await play_once(requests, f"{AGAIN} {number}")


def _trouble(trajectories: Sequence[Trajectory], limits: config.Rollout) -> str:
    unscored = [one for one in trajectories if one.reward is None]
    limit = f"rollout.max_unscored_share is {limits.max_unscored_share:g}"
    last = unscored[-1].grade.explanation[:300]
    return f"{len(unscored)} of {len(trajectories)} rollouts have no score ({limit}). The last reason: {last}."


async def _refill(play_once: Play, requests: Sequence[Request], limits: config.Rollout, played: Played) -> None:
    """Replace unscored rollouts, attempt by attempt, within the budget."""
    budget, attempt = int(limits.refill * len(requests)), 0
    while budget and (missing := [n for n, one in enumerate(played.trajectories) if one.reward is None][:budget]):
        budget, attempt = budget - len(missing), attempt + 1
        again = await play_once([replace(requests[n], attempt=attempt) for n in missing], "")
        for n, fresh in zip(missing, again, strict=True):
            old = played.trajectories[n]
            played.superseded.append(Superseded(old, f"replaced: {old.grade.status}"))
            played.trajectories[n] = fresh


def _forks_too_often(trajectories: Sequence[Trajectory], limits: config.Rollout) -> str:
    turns = sum(len(one.turns) for one in trajectories)
    forks = sum(one.num_forks for one in trajectories)
    if forks <= limits.max_fork_share * max(1, turns):
        return ""
    return (
        f"{forks} of {turns} turns do not continue the tokens that came before them "
        f"(rollout.max_fork_share is {limits.max_fork_share:g}): the policy's server renders messages again. "
        "Use a server that takes token ids, or fix its chat template."
    )
