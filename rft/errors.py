"""Define the errors: who is to blame, and what they can do about it.

A retraining run meets four kinds of trouble, and each has one owner:

- *Ours* is a bug: an assert, a traceback.
- The *user's* is a wrong file, key or value: a `UserError`, exit code 2. Its message names the
  file, the key, the value and the remedy, and is shown without a traceback.
- The *world's* is a dead tool server or a full disk: an `InfrastructureError`, exit code 3. It
  never becomes a score of zero.
- A *bad rollout* is not an error but data: see `rft.types.Grade` and `StopReason`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_NAME = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End a message about an unknown name, with the nearest known one or with all of them."""
    known = sorted(map(str, known))
    near = difflib.get_close_matches(name[:LONGEST_NAME], known, n=1, cutoff=0.5)  # its time grows with the square
    return f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."


class RftError(Exception):
    """Base of everything that is shown as one message instead of a traceback."""

    exit_code = 1


class UserError(RftError):
    """A file, key or value that the user can fix. The message ends with the remedy."""

    exit_code = 2


class ConfigError(UserError):
    """params.yaml asks for something that cannot be honored."""


class InfrastructureError(RftError):
    """A tool server, a disk or a process failed. Nothing was scored, nothing is half-written."""

    exit_code = 3


class TooManyUnscored(InfrastructureError):
    """Too many rollouts have no score: the stage ends before it trains on the rest."""


class Stopped(RftError):
    """A stop on request (`rft cancel`) or at run.max_hours. All work is kept, so this is not a
    failure; but the stage has not finished."""

    exit_code = 4


class ToolError(Exception):
    """A refusal that the policy sees (HTTP 400), such as an unknown code or too long a query."""
