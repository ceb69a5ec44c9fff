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
TYPING_ERROR, RESEMBLANCE = 0.8, 0.7  # as difflib measures; `case` resembles `answer` by 0.6
SHORTEST_PART = 3
LAST_WITH_OLD = "agent-rft at commit af656ea, of November 2026"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End a message about an unknown name with the nearest known name, or with all of them. The
    nearest is one with a typing error, else one that contains the name or is contained in it."""
    name, known = name[:LONGEST_NAME], sorted(map(str, known))  # difflib's time grows with the square
    parts = [one for one in known if _is_part(name, one) or _is_part(one, name)]
    near = (
        difflib.get_close_matches(name, known, n=1, cutoff=TYPING_ERROR)
        or difflib.get_close_matches(name, parts, n=1, cutoff=0.0)
        or difflib.get_close_matches(name, known, n=1, cutoff=RESEMBLANCE)
    )
    return f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."


def _is_part(part: str, whole: str) -> bool:
    return len(part) >= SHORTEST_PART and part.casefold() in whole.casefold()


class RftError(Exception):
    """Base of everything that is shown as one message instead of a traceback."""

    exit_code = 1


class UserError(RftError):
    """A file, key or value that the user can fix. The message ends with the remedy."""

    exit_code = 2


def removed(what: str, remedy: str = "") -> UserError:
    """Return the error for something in a format that no version reads any more."""
    message = f"{what} has a format from before the first release. The last version that reads it is {LAST_WITH_OLD}."
    return UserError(f"{message} {remedy}".strip())


class ConfigError(UserError):
    """params.yaml asks for something that cannot be honored."""


class InfrastructureError(RftError):
    """A tool server, a disk or a process failed. Nothing was scored, nothing is half-written."""

    exit_code = 3


class TooManyUnscored(InfrastructureError):
    """Too many rollouts have no score: the stage ends before it trains on the rest."""


class Stopped(RftError):
    """A stop on request (`rft runs cancel`) or at run.max_hours. All work is kept, so this is not a
    failure; but the stage has not finished."""

    exit_code = 4


class ToolError(Exception):
    """A refusal that the policy sees (HTTP 400), such as an unknown code or too long a query."""
