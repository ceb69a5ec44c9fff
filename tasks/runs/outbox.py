"""What a run sends to a lineage catalog or to MLflow, kept until they have taken it.

A receiver that is down does not fail a run, and a run does not wait for one. Three rules:

    kept       A piece is written as a line of FOLDER/RUN.ndjson before it is sent, and the file is
               removed when all of it was taken. So a kill loses nothing, but a receiver may get a
               piece twice.
    in order   One thread sends, oldest first. It tries again after a pause when a delivery fails.
               Lines that dead runs left come first.
    bounded    At the run's end, sending goes on as long as pieces are taken, with a few more tries.
               What is left is reported, and the next run sends it.

A piece that the receiver calls wrong would block all others for ever. So it is put aside, in
`RUN.refused`. A store can lose what it had, for example when somebody removes its database. For
such a store (`whole`) the file keeps all lines of a run until its process ends and all were taken.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rft.formatting import counted
from tasks.runs import records
from tasks.runs.clone import Clone

PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""The pauses before the next try after a failure. The last one is repeated."""
LAST_TRIES = 3
"""The tries at the run's end, within END_S."""
END_S = 15.0
"""How long the run's end waits for one more piece to be taken."""
LONGEST_END_S = 60.0
"""How long it waits in all, where a receiver takes a piece now and then."""
ReportLine = Callable[[str], None]


class Refused(Exception):
    """The receiver calls this piece wrong, and will not take it later either."""


@dataclass(frozen=True)
class Piece:
    """A line to be sent, and the file that keeps it until it is taken."""

    file: Path
    line: str
    """JSON, with its line break."""


class Receiver(Protocol):
    @property
    def name(self) -> str: ...

    def send(self, piece: Piece) -> None:
        """Send a piece. Raises Refused for a piece that is wrong in itself, and any other error if
        a later try may work."""
        ...

    def problem(self, error: Exception) -> str:
        """Say in few words what is wrong."""
        ...


class Outbox:
    """Sends one run's pieces to one receiver. Its methods raise nothing, and only `settle` and
    `close` wait."""

    def __init__(
        self,
        clone: Clone,
        folder: str,
        run: str | None,
        receiver: Receiver,
        report_line: ReportLine,
        what: str,
        whole: bool = False,
    ):
        """Begin to send. `folder` is the folder below `.rft/`, and the label of printed lines.
        `run` is None if only what other runs left is sent. `what` is a word for one piece."""
        place = clone.state / folder
        self._file = place / f"{run or '.none'}.ndjson"
        self._label, self._receiver, self._report_line, self._what, self._whole = (
            folder,
            receiver,
            report_line,
            what,
            whole,
        )
        self._held = ExitStack()
        self._left = deque(self._waiting(clone, run))
        self._problem = self._told = ""
        self._refused = self._taken = 0
        self._closing = self._abandoned = self._in_memory = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=folder, daemon=True)
        self._thread.start()

    def _waiting(self, clone: Clone, run: str | None) -> Iterator[Piece]:
        """Yield what is left of this run, from before it was cut off, and of runs that are over. A
        lock keeps two processes from sending the same."""
        place, mine = self._file.parent, False
        with suppress(OSError):
            lock = clone.runs / f".{place.name}.lock"
            mine = any(_files(place)) and self._held.enter_context(records.held(lock))
        for file in _files(place):
            if file.stem == run or (mine and not records.alive(clone, file.stem)):
                yield from pieces(file)

    def put(self, line: str, kept: bool = True) -> None:
        """Take one more piece. With `kept` it is kept in the file until it is taken; otherwise only
        as long as this process lasts."""
        piece = Piece(self._file, line)
        with self._changed:
            try:
                if kept:
                    append(piece)
            except OSError as error:
                if not self._in_memory:
                    memory = f"{self._what}s are only in memory until they are taken"
                    self._report_line(f"[{self._label}] {piece.file}: {error.strerror}: {memory}")
                self._in_memory = True
            self._left.append(piece)
            self._changed.notify_all()
        if kept:  # otherwise it comes from a thread, which must not print
            self._tell()

    def settle(self, patience_s: float) -> bool:
        """Wait for a while until all was taken. Does not wait for a receiver that is in trouble."""
        until = time.monotonic() + patience_s
        with self._changed:
            while self._left and not self._problem and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._left

    def close(self) -> None:
        """Wait for what is being sent, and report what was not taken."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._wait()
        with self._changed:
            self._abandoned = True
            left = [*self._left]
        with suppress(OSError):
            if not self._whole:
                _keep(self._file, left)
            elif all(piece.file != self._file for piece in left):
                self._file.unlink(missing_ok=True)
        self._held.close()
        self._report_end(left)

    def _wait(self) -> None:
        until, taken = time.monotonic() + LONGEST_END_S, -1
        while self._thread.is_alive() and taken != self._taken and (left := until - time.monotonic()) > 0:
            taken = self._taken
            self._thread.join(min(END_S, left))

    def _report_end(self, left: list[Piece]) -> None:
        refused = self._file.with_suffix(".refused")
        if self._refused:
            wrong = counted(self._refused, self._what)
            self._report_line(
                f"[{self._label}] {self._receiver.name} calls {wrong} wrong; they are put aside in {refused}"
            )
        if left:
            mine = counted(len(left), self._what)
            why = self._problem or f"no answer within {END_S:g} s"
            files = ", ".join(dict.fromkeys(str(piece.file) for piece in left))
            kept = f"Kept in {files}: the next run that tells it sends them first"
            self._report_line(f"[{self._label}] {mine} not taken by {self._receiver.name} ({why}). {kept}")
        elif self._told:
            self._report_line(f"[{self._label}] {self._receiver.name} answers again, and has taken every {self._what}")

    def _tell(self) -> None:
        """Report once what is wrong."""
        if self._problem and not self._told:
            self._told = self._problem
            again = f"The run goes on, and {self._what}s are kept in {self._file.parent} and sent again"
            self._report_line(f"[{self._label}] {self._receiver.name}: {self._told}. {again}")

    def _work(self) -> None:
        failures = late = 0
        while True:
            with self._changed:
                while not self._left and not self._closing:
                    self._changed.wait()
                if not self._left or self._abandoned:
                    return
                piece = self._left[0]
            try:
                self._receiver.send(piece)
            except Refused as refused:
                self._refused += 1
                self._problem = str(refused)
                with suppress(OSError):
                    append(Piece(piece.file.with_suffix(".refused"), piece.line))
            except Exception as error:
                with self._changed:
                    self._problem = self._receiver.problem(error)
                    self._changed.notify_all()
                late += self._closing
                if late > LAST_TRIES:
                    return
                self._pause(PAUSES_S[0 if late else min(failures, len(PAUSES_S) - 1)])
                failures += 1
                continue
            failures = 0
            self._take(piece)

    def _take(self, piece: Piece) -> None:
        with self._changed:
            self._left.popleft()
            self._taken += 1
            self._problem = ""
            self._changed.notify_all()
            keeps = self._whole and piece.file == self._file
            if not keeps and all(other.file != piece.file for other in self._left):
                with suppress(OSError):
                    piece.file.unlink(missing_ok=True)

    def _pause(self, pause_s: float) -> None:
        """Wait before the next try. New pieces do not shorten the pause; the run's end does,
        once."""
        closing, until = self._closing, time.monotonic() + pause_s
        with self._changed:
            while self._closing == closing and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)


# -- what is kept ----------------------------------------------------------------------------------
def owed(clone: Clone, folder: str) -> list[str]:
    """Return the runs that do not go on now and may have pieces that were not taken yet."""
    return [file.stem for file in _files(clone.state / folder) if not records.alive(clone, file.stem)]


def _files(place: Path) -> list[Path]:
    return sorted(place.glob("*.ndjson"))


def pieces(file: Path) -> Iterator[Piece]:
    """Yield what a file keeps, oldest first."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").split("\n"):
            with suppress(ValueError):  # the last line, cut off by a kill
                json.loads(line)
                yield Piece(file, f"{line}\n")


def append(piece: Piece) -> None:
    """Append a piece to its file, in one write, so that lines of two processes do not mix."""
    piece.file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(piece.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        content, before = piece.line.encode(), os.fstat(handle).st_size
        if os.write(handle, content) < len(content):
            os.ftruncate(handle, before)  # half a line would spoil the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def _keep(own: Path, left: list[Piece]) -> None:
    """Leave in each file only the pieces that were not taken."""
    for file in {own, *(piece.file for piece in left)}:
        lines = [piece.line for piece in left if piece.file == file]
        if lines:
            part = file.with_suffix(".part")
            part.write_text("".join(lines), encoding="utf-8")
            os.replace(part, file)
        else:
            file.unlink(missing_ok=True)
