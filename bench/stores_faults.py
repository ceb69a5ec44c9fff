"""Stores that are really locked, full, read-only, gone or slow, for bench/stores_down.py.

    locked      a lock that another process holds: SQLite's, or DVC's
    full        a small file system of its own, filled up
    read-only   the immutable flag of ext4, which also holds for root and for open files
    gone        the folder or file is moved away, and a file takes the place of the folder; a
                server's port is closed
    slow        a proxy in front of the server, which passes each piece on seconds late, or never

`strike` makes the fault, `heal` removes it. File systems are mounted in the figure's own namespace
(bench/stores_down.py), so none outlives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 1 << 16
PROXY = """
import asyncio, sys
from pathlib import Path
port, target, mode = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

async def carry(reader, writer, late):
    try:
        while piece := await reader.read(65536):
            if late and mode.read_text() == "slow":
                await asyncio.sleep(2.5)
            while mode.read_text() == "silent":
                await asyncio.sleep(0.2)
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()

async def serve(reader, writer):
    if mode.read_text() == "gone":
        return writer.close()
    there, back = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(carry(reader, back, False), carry(there, writer, True), return_exceptions=True)

async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()

asyncio.run(main())
"""


@dataclass
class Fault:
    strike: Callable[[], None]
    heal: Callable[[], None]
    environment: dict[str, str] = field(default_factory=dict)


def nothing() -> None:
    pass


def locked(database: Callable[[], Path]) -> Fault:
    """Lock a database from another connection, as a backup or a browser does."""
    held: list[sqlite3.Connection] = []

    def strike() -> None:
        held.append(sqlite3.connect(database(), timeout=30, isolation_level=None))
        held[0].execute("PRAGMA locking_mode = EXCLUSIVE")
        held[0].execute("BEGIN EXCLUSIVE")

    def heal() -> None:
        held.pop().close()

    return Fault(strike, heal)


def flocked(file: Callable[[], Path]) -> Fault:
    """Hold a lock file from another process."""
    held: list[int] = []

    def strike() -> None:
        file().parent.mkdir(parents=True, exist_ok=True)
        held.append(os.open(file(), os.O_RDWR | os.O_CREAT))
        fcntl.flock(held[0], fcntl.LOCK_EX)

    return Fault(strike, lambda: os.close(held.pop()))


def read_only(*places: Path) -> Fault:
    """Make everything below these places read-only."""

    def flag(sign: str) -> None:
        for place in places:
            subprocess.run(["chattr", "-R", "-f", f"{sign}i", str(place)], check=False, capture_output=True)

    return Fault(lambda: flag("+"), lambda: flag("-"))


def full(place: Path) -> Fault:
    """Fill the small file system at this place (`small`)."""
    ballast = place / ".ballast"

    def strike() -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(BLOCK))
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(64))

    return Fault(strike, lambda: ballast.unlink(missing_ok=True))


def gone(place: Path) -> Fault:
    """Move a folder away, and put a file in its place."""
    aside = place.with_name(f"{place.name}.aside")

    def strike() -> None:
        if place.exists():
            place.rename(aside)
        place.write_text("not a folder")

    def heal() -> None:
        place.unlink()
        if aside.exists():
            aside.rename(place)

    return Fault(strike, heal)


def removed(place: Path) -> Fault:
    """Delete a folder. The program that needs it makes it again."""
    return Fault(lambda: shutil.rmtree(place, ignore_errors=True), nothing)


@contextlib.contextmanager
def small(place: Path, mebibytes: int) -> Iterator[None]:
    """Mount a small file system at this place, with the files that are there."""
    aside = place.with_name(f"{place.name}.before")
    place.rename(aside)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)], check=True)
    try:
        shutil.copytree(aside, place, dirs_exist_ok=True, symlinks=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@contextlib.contextmanager
def proxy(port: int, target: int, mode: Path) -> Iterator[None]:
    """Open a port in front of a server. The file `mode` says what it does: pass, slow, silent,
    gone."""
    mode.write_text("pass")
    process = subprocess.Popen([sys.executable, "-c", PROXY, str(port), str(target), str(mode)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def through(mode: Path, what: str, **environment: Any) -> Fault:
    def tell(word: str) -> None:
        part = mode.with_suffix(".part")
        part.write_text(word)
        os.replace(part, mode)

    return Fault(lambda: tell(what), lambda: tell("pass"), environment)
