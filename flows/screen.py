"""Progress on a terminal: a bar for the running stage, and a line for each finished one.

Elsewhere the lines of tasks/runs/console.py are shown. Nothing depends on what is shown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from rft.lines import COUNTED
from tasks.runs import repro
from tasks.runs.console import Lines


@contextlib.contextmanager
def watched(console: Console | None = None) -> Iterator[Lines]:
    """Show the progress of this block's stages: as bars on a terminal, as plain lines elsewhere."""
    console = console or Console(highlight=False)
    with contextlib.ExitStack() as stack:
        lines = Bars(stack.enter_context(_progress(console))) if console.is_terminal else Lines()
        token = repro.listener.set(lines)
        try:
            yield lines
        finally:
            repro.listener.reset(token)


class Bars(Lines):
    def __init__(self, progress: Progress):
        super().__init__()
        self._progress = progress
        self._bar: TaskID | None = None
        self._word = ""

    def begin(self, stage: str) -> None:
        super().begin(stage)
        self._word = ""
        self._bar = self._progress.add_task(stage, total=None, word="")

    def on_line(self, line: str) -> None:
        found = COUNTED.match(line)
        self._word = found[3] if found else line.removeprefix(f"[{self.stage}] ")
        if self._bar is None:
            self.print_line(line)
        elif found:
            self._progress.update(self._bar, completed=int(found[1]), total=int(found[2]), word=self._word)
        else:
            self._progress.update(self._bar, word=self._word)

    def end(self, how: str) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None
        if how == "ran":
            self.print_line(f"  ✓ {self.stage:<11} {self.seconds:6.1f} s  {self._word}")
        else:
            super().end(how)

    def print_line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, no_wrap=True, overflow="ellipsis")


def print_line(text: str = "") -> None:
    print(text, flush=True)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _progress(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[word]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        ),
    )
    return Progress(*columns, console=console, transient=True, expand=True)
