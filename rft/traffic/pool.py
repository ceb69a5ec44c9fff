"""Spread blocks over processes, which stage parts.

The parent reads the log, so it alone decides what a block is, and only one process reads a
compressed file. A block goes through a pipe to the first process (rft/traffic/worker.py) that is
free. At most one block per process is in memory, and one more that is being read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import selectors
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from rft import process
from rft.errors import InfrastructureError
from rft.traffic.blocks import Block
from rft.traffic.parts import Plan

_LIBRARIES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "32000000",
    "MALLOC_TRIM_THRESHOLD_": "100000000",
}
"""A process keeps the memory of a block for the next one. Getting it from the system each time took
40 % more time."""


_PIPE = 1 << 20
"""Bytes that a pipe holds. The reader then wakes 5 times for a block, not 80 times."""


@dataclass(slots=True)
class _Worker:
    popen: subprocess.Popen[bytes]
    to: IO[bytes]
    answers: IO[bytes]
    errors: IO[bytes]
    block: str = ""
    """The block that it works on, in words; empty when it is free."""
    number: int = 0


def stage(blocks: Iterable[Block], plan: Plan, processes: int) -> Iterator[int]:
    """Stage all blocks. Yields the number of each as it is done, in any order.

    Raises InfrastructureError when a process dies, or cannot write.
    """
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as ready:
        workers: list[_Worker] = []
        for block in blocks:
            worker = next((each for each in workers if not each.block), None)
            if worker is None and len(workers) < processes:
                worker = stack.enter_context(_started(plan))
                ready.register(worker.answers, selectors.EVENT_READ, worker)
                workers.append(worker)
            while worker is None:
                for each in _answered(ready):
                    yield each.number
                    worker = each
            _send(worker, block, plan)
        while any(each.block for each in workers):
            for each in _answered(ready):
                yield each.number


@contextlib.contextmanager
def _started(plan: Plan) -> Iterator[_Worker]:
    with tempfile.TemporaryFile() as errors:
        popen = subprocess.Popen(
            process.module_command("rft.traffic.worker", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | _LIBRARIES,
        )
        assert popen.stdin is not None
        assert popen.stdout is not None
        with contextlib.suppress(AttributeError, OSError):  # not Linux; or more than the system's limit
            fcntl.fcntl(popen.stdin, fcntl.F_SETPIPE_SZ, _PIPE)
        worker = _Worker(popen, popen.stdin, popen.stdout, errors)
        try:
            content = pickle.dumps(plan)
            _write(worker, f"{len(content)}\n".encode() + content)
            yield worker
        finally:
            popen.kill()
            popen.wait()
            popen.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                popen.stdin.close()


def _send(worker: _Worker, block: Block, plan: Plan) -> None:
    pieces = [[p.source, p.first_line, len(p.data), p.is_end, p.is_rows] for p in block.pieces]
    skipped = [[each.source, each.line, each.why] for each in block.skipped]
    worker.number = block.number
    worker.block = f"block {block.number}"
    if block.pieces:
        first = block.pieces[0]
        worker.block += f" ({plan.names[first.source]} from line {first.first_line})"
    _write(worker, json.dumps({"number": block.number, "pieces": pieces, "skipped": skipped}).encode() + b"\n")
    for piece in block.pieces:
        _write(worker, piece.data)
    with contextlib.suppress(BrokenPipeError):
        worker.to.flush()


def _write(worker: _Worker, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it died: `_answered` says so
        worker.to.write(content)


def _answered(ready: selectors.BaseSelector) -> list[_Worker]:
    """Wait for answers. Returns the workers that are free again."""
    found: list[_Worker] = []
    for key, _ in ready.select():
        worker: _Worker = key.data
        line = worker.answers.readline()
        if not line:
            code = worker.popen.wait()
            end = process.last_output(process.tail(worker.errors))
            what = f"A process that reads the log ended with code {code} at {worker.block or 'its start'}."
            raise InfrastructureError(f"{what} What was read is kept: start again to continue. {end}")
        if line.strip():
            raise InfrastructureError(f"{line.decode().strip()}. Free the disk, and start again to continue.")
        worker.block = ""
        found.append(worker)
    return found
