"""Is this machine's clock right enough to append?

Times in the ledger never go back: an entry has the later of its machine's time and the time of the
entry before. So one machine whose clock is a year ahead stops the ledger's time for a year, and
nothing that waits expires meanwhile. Nobody can take such an entry back. So two checks prevent it:

    behind the ledger   The last entry has a later time than this clock: one of the two is wrong.
    off the remote      The machine that holds the shared branch says another time.

If the times differ by more than SKEW_S, nothing is appended. The remote's time is compared only if
it can be read without a login. An HTTP server says it in the header of any answer. For a folder,
also on a network drive, it is the date of a file that is made there. SSH does not tell the time.

An owner who knows whose clock is wrong can go on: `rft ledger clocks` appends an entry that says
until when clocks are not compared. That entry can be appended with any clock. So can a restart, and
the enrolment of the first owner, because without an owner nobody could append that entry.
"""

from __future__ import annotations

import contextlib
import tempfile
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rft import commands
from rft.errors import InfrastructureError
from tasks.ledger.entry import Act, Genesis, PolicyChange
from tasks.ledger.policy import Enrol, SetClocks
from tasks.ledger.remote import FILE, Shared
from tasks.ledger.state import State
from tasks.ledger.statement import SKEW_S, later
from tasks.runs.clone import Clone
from tasks.runs.git import git

_PATIENCE_S = 10.0


class WrongClock(InfrastructureError):
    """Two clocks are too far apart, and no owner has said to go on."""


def assert_right(clone: Clone, shared: Shared, state: State, act: Act, clock: str) -> None:
    """Raise WrongClock unless this machine may append at the time `clock`."""
    if _is_free(state, act) or (state.policy.clocks or "") >= max(clock, state.time):
        return
    if state.time and later(clock, seconds=SKEW_S) < state.time:
        raise WrongClock(_describe(clock, f"the ledger's last entry is of {state.time}"))
    if shared.remote is None:
        return
    there = of_remote(git(clone.root, "remote", "get-url", shared.remote), clone.root)
    if there is not None and not later(there, seconds=-SKEW_S) <= clock <= later(there, seconds=SKEW_S):
        raise WrongClock(_describe(clock, f"the clock of the ledger's remote {shared.remote} ({FILE}) says {there}"))


def _is_free(state: State, act: Act) -> bool:
    if isinstance(act, Genesis):
        return True
    change = act.change if isinstance(act, PolicyChange) else None
    return isinstance(change, SetClocks) or (isinstance(change, Enrol) and not state.had_owner)


def _describe(clock: str, other: str) -> str:
    goes_on = commands.command("ledger clocks", *commands.WHY)
    return (
        f"this machine's clock says {clock}, and {other}: one of the two is wrong, by more than {SKEW_S // 60} "
        "minutes, so nothing was appended. Set this clock right, then give the same command again. If the other is "
        f"wrong, an owner goes on: {goes_on}"
    )


def of_remote(url: str, root: Path) -> str | None:
    """Return the time at a Git remote, to the second; None where it does not tell. A relative path
    is relative to `root`."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return _of_server(url)
    place = Path(unquote(parts.path)) if parts.scheme == "file" else root / url
    return _of_folder(place) if place.is_dir() else None


def _of_server(url: str) -> str | None:
    import httpx

    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):  # the push will report it
        address = f"{url.rstrip('/')}/info/refs?service=git-upload-pack"
        return _text(parsedate_to_datetime(httpx.get(address, timeout=_PATIENCE_S).headers["date"]))
    return None


def _of_folder(place: Path) -> str | None:
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=place, prefix=".clock-") as file:
        return _text(datetime.fromtimestamp(Path(file.name).stat().st_mtime, UTC))
    return None


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
