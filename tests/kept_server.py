"""Tool servers that stay, for tests that are about something else.

A stage, `rft doctor` and a preflight each start the recipe's own server, most of a second of
processor time, and in tests it is nearly always one of the same few: the tiny recipe of
tests/tiny_recipe.py. With the fixture `kept_server` (tests/conftest.py) whoever asks for a server
gets the process that already serves a folder of the same bytes, with the same options, limits and
environment: a real one, with its own key, asked over its socket.

Not for tests of a server's life, its log or its environment, nor for a recipe whose code keeps
something between two stages. One with `setup` is started anew here, and so is one whose code has
raised or ended.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import IO

from rft import config, secrets
from rft.process import tail
from rft.recipe import Recipe
from rft.tools import lifetime

Started = lifetime._Process
MOST = 12
"""Of about 70 MB each; the one that waited longest goes."""


class Kept:
    """Servers by what they serve."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Started, IO[bytes], str]] = {}

    def process(self, recipe: Recipe, output: IO[bytes], state: config.RolloutState) -> _Lent | Started:
        """Stands for `lifetime._Process`."""
        if recipe.setup is not None or threading.current_thread() is not threading.main_thread():
            return Started(recipe, output, state)
        what = _digest(recipe, state)
        if what not in self._known:
            while len(self._known) >= MOST:
                self.forget(next(iter(self._known)))
            own = tempfile.TemporaryFile()  # noqa: SIM115 - closed by forget()
            started = Started(recipe, own, state)
            try:
                self._known[what] = started, own, started.wait_until_healthy()
            except BaseException:
                started.stop()
                own.close()
                raise
        found = self._known[what] = self._known.pop(what)
        return _Lent(self, what, *found)

    def forget(self, what: str) -> None:
        process, output, _ = self._known.pop(what)
        process.stop()
        output.close()

    def forget_all(self) -> None:
        for what in list(self._known):
            self.forget(what)


class _Lent:
    """A server for one block of `running`, which looks at it as at its own."""

    def __init__(self, kept: Kept, what: str, process: Started, output: IO[bytes], url: str) -> None:
        self._kept, self._what, self._process, self._output, self._url = kept, what, process, output, url
        self.headers, self.raise_if_dead = process.headers, process.raise_if_dead
        self.last_words = process.last_words
        secrets.add(lifetime.KEY, self.headers["Authorization"].removeprefix("Bearer "))

    def wait_until_healthy(self) -> str:
        self.raise_if_dead()
        return self._url

    def stop(self) -> None:
        pass

    def keep_log(self) -> None:
        self._process.keep_log()
        if lifetime.RAISED in tail(self._output, lifetime.LOG_BYTES) or self._process._process.poll() is not None:
            self._kept.forget(self._what)


def _digest(recipe: Recipe, state: config.RolloutState) -> str:
    around = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    given = recipe.options.model_dump_json(by_alias=True), state.model_dump_json()
    found = hashlib.sha256(repr((recipe.name, given, sorted(around.items()))).encode())
    for path in sorted(recipe.folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(repr((str(path.relative_to(recipe.folder)), _bytes(path))).encode())
    return found.hexdigest()


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
