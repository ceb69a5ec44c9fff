"""The lines that a stage prints for the process that drives it. They are text, because the driver
is another process, and a person may read the same terminal.

    [train] 12/80 steps, reward 0.41   how far the stage is. The time left may follow, and after a
                                       semicolon, how far the current step is
    [train] metrics PATH               where it writes its metrics, which may be followed live
    [train] anything else              for people

`rft.progress` prints them; `tasks` and the bars of `flows` read them.
"""

from __future__ import annotations

import re
from pathlib import Path

COUNTED = re.compile(r"^\[\w+\] (\d+)/(\d+) ?(.*)$")
"""Reads the first kind: done, total, message."""
METRICS = re.compile(r"^\[\w+\] metrics (.+)$")
"""Reads the second kind: the path."""


def counted(done: int, total: int, message: str) -> str:
    return f"{done}/{total} {message}"


def metrics(path: Path) -> str:
    return f"metrics {path}"
