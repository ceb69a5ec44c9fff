"""DVC that is loaded once in a session, and forks for each command and each stage.

A run loads a DVC of its own, and a command loads one, which takes a second each time; a session of
all tests has hundreds. tests/tasks/test_dvc_process.py has the real thing, and so has every `rft`
in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.runs import dvc_process, repro
from tasks.runs.dvc_process import Environment, Loaded, Process


class _Ready(Loaded):
    """Made for any folder and any environment, and for one process at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._last: Process | None = None

    def fork(self, tree: Path, arguments: list[str], more: Environment) -> Process | None:
        if self._last is not None and self._last.poll() is None:
            return None  # two runs at once: the other one loads DVC
        if self._process is None:
            self.start(tree, {})
        self._made_for = (tree, dict(more))
        self._last = super().fork(tree, ["--cd", str(tree), *arguments], more)
        return self._last


@contextmanager
def ready() -> Iterator[None]:
    one = _Ready()

    def started(tree: Path, arguments: list[str], more: Environment, of_run: Any = None) -> Any:
        return dvc_process.started(tree, arguments, more, one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repro, "dvc_process", SimpleNamespace(started=started))
        patch.setattr(repro, "load", lambda *_: None)
        yield
    one.stop()
