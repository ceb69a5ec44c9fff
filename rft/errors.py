"""Who is to blame, and what they can do about it.

A retraining run meets four kinds of trouble, and each has one owner. *Ours* is a bug: an assert, a
traceback. The *user's* is a wrong file, key or value: a `UserError`, whose message names the file,
the key, the value and the remedy, shown without a traceback, exit code 2. The *world's* is a dead
tool server or a full disk: an `InfrastructureError`, exit code 3; it never becomes a score of zero.
And a *bad rollout* is no error at all but data: see `rft.types.Grade` and `StopReason`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End a message about an unknown name: with the nearest known one, or with all of them."""
    near = difflib.get_close_matches(name, known := sorted(map(str, known)), n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."


class RftError(Exception):
    """Base of everything that is shown as one message instead of a traceback."""

    exit_code = 1


class UserError(RftError):
    """A file, key or value that its owner can mend. The message ends with the remedy."""

    exit_code = 2


class ConfigError(UserError):
    """params.yaml says something that cannot be honoured."""


class InfrastructureError(RftError):
    """A tool server, a disk or a process failed. Nothing was scored, nothing is half-written."""

    exit_code = 3


class TooManyUnscored(InfrastructureError):
    """More rollouts than the declared rate have no score: the stage stops itself before it trains
    on what is left."""


class Stopped(RftError):
    """A stop in order, before the end: run.max_hours is spent, or `rft cancel` asked for it. All
    work is kept. No error, but no end either."""

    exit_code = 4


class ToolError(Exception):
    """A refusal that the policy sees (HTTP 400): no such code, a query that is too long."""
