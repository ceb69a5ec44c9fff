"""What a person sees while the ladder runs: a bar a stage on a terminal, plain lines elsewhere.

Stages print `[train] 12/80 steps, reward 0.41`; a line of that form moves a bar, any other line of a stage is its latest word. Plain lines are
thinned to one in five seconds, so that a log stays readable. The screen only listens: nothing depends on it.
"""

from __future__ import annotations

import re
import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

EVERY_S = 5.0
_PROGRESS = re.compile(r"^\[(\w+)\] (\d+)/(\d+) ?(.*)$")
_SAID = re.compile(r"^\[(\w+)\] (.*)$")
_WORDS = {"ran": "", "unchanged": "unchanged, skipped", "restored": "unchanged, skipped: taken from an earlier run"}


class Screen:
    """A listener for tasks.stages, as a context manager."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False)
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._began, self._said, self._word = 0.0, 0.0, ""
        self.skipped: list[str] = []

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description:<11}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[word]}", markup=False),
            )
            self._bars = Progress(*columns, console=self.console, transient=True)
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, stage: str, line: str) -> None:
        if not line:
            self._begin(stage)
        elif line.startswith(f"[{stage}] = "):
            self._end(stage, line.removeprefix(f"[{stage}] = "))
        elif found := _PROGRESS.match(line):
            self._move(stage, int(found[2]), int(found[3]), found[4])
        else:
            self._tell(stage, found[2] if (found := _SAID.match(line)) else line)

    def _begin(self, stage: str) -> None:
        self._began = time.monotonic()
        self._said, self._word = 0.0, ""
        if self._bars is not None:
            self._bar = self._bars.add_task(stage, total=None, word="")

    def _move(self, stage: str, done: int, total: int, word: str) -> None:
        self._word = word
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=done, total=total, word=word)
        elif done >= total or time.monotonic() - self._said >= EVERY_S:
            self._said = time.monotonic()
            self._print(f"[{stage}] {done}/{total} {word}")

    def _tell(self, stage: str, text: str) -> None:
        self._word = text
        if self._bars is None or self._bar is None:
            self._print(f"[{stage}] {text}")
        else:
            self._bars.update(self._bar, word=text)

    def _end(self, stage: str, how: str) -> None:
        if how != "ran":
            self.skipped.append(stage)
        if self._bars is not None and self._bar is not None:
            self._bars.remove_task(self._bar)
        seconds = time.monotonic() - self._began
        word = _WORDS.get(how, how) or self._word
        self._print(f"  {'✓' if how == 'ran' else '·'} {stage:<11} {seconds:6.1f} s  {word}")
        self._bar = None

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=not self.console.is_terminal)


def say(text: str = "") -> None:
    print(text, flush=True)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
