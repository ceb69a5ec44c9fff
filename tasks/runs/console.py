"""What stages print, as plain lines: for logs, scheduled runs, and output that is not a terminal.

A stage prints `[train] 12/80 steps, reward 0.41` several times per second. One such line per five
seconds is shown, and the last one. All other lines are shown as they are. `flows.screen` draws bars
from the same calls.
"""

from __future__ import annotations

import time

from rft import secrets
from rft.lines import COUNTED

EVERY_S = 5.0


class Lines:
    """A listener: `begin(stage)`, `on_line(line)` for each line, `end(how)`."""

    def __init__(self) -> None:
        self.stage = ""
        self.skipped: list[str] = []
        self._began = self._told = 0.0

    def begin(self, stage: str) -> None:
        self.stage, self._began, self._told = stage, time.monotonic(), 0.0

    def on_line(self, line: str) -> None:
        found = COUNTED.match(line)
        if found is None:
            self.print_line(line)
        elif int(found[1]) >= int(found[2]) or time.monotonic() - self._told >= EVERY_S:
            self._told = time.monotonic()
            self.print_line(line)

    def end(self, how: str) -> None:
        if how != "ran":
            self.skipped.append(self.stage)
        text = {
            "ran": "",
            "unchanged": "unchanged, skipped",
            "restored": "unchanged, skipped: taken from an earlier run",
        }[how]
        self.print_line(f"  {'✓' if how == 'ran' else '·'} {self.stage:<11} {self.seconds:6.1f} s  {text}".rstrip())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def print_line(self, text: str) -> None:
        print(secrets.redact(text), flush=True)
