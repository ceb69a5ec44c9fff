"""Turn blocks into parts, one after the other, as a process of the pool.

rft/traffic/pool.py starts the process. It reads its plan and then blocks from its standard input,
and answers each block with one line. The line is empty when the part is staged, and otherwise says
what went wrong. When its input ends, the process ends.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
from importlib.abc import MetaPathFinder
from typing import BinaryIO

import pyarrow as pa

from rft import process
from rft.traffic import parts
from rft.traffic.blocks import Block, Piece, Skipped


class _WithoutPandas(MetaPathFinder):
    """Hides pandas. pyarrow loads it where it is installed, only to know its types, which takes a
    third of a second and 40 MB."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no pandas here", name=fullname)


def main() -> None:
    process.die_with(int(sys.argv[1]))
    sys.meta_path.insert(0, _WithoutPandas())
    gc.disable()  # parsed rows hold no cycles
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that what a library prints is not taken for an answer
    plan: parts.Plan = pickle.loads(_exactly(source, int(source.readline())))
    while header := source.readline():
        block = _block(json.loads(header), source)
        try:
            parts.make(plan, block)
            answer = ""
        except OSError as error:
            answer = f"{error.filename or plan.staged}: {error.strerror or error}"
        del block
        gc.collect()
        answers.write(answer.replace("\n", " ").encode() + b"\n")


def _block(header: dict[str, object], source: BinaryIO) -> Block:
    found: list[Piece] = []
    for each in header["pieces"]:  # pyright: ignore[reportGeneralTypeIssues]
        index, first_line, num_bytes, is_end, is_rows = each
        found.append(Piece(index, first_line, _exactly(source, num_bytes), is_end, is_rows))
    skipped = tuple(Skipped(*each) for each in header["skipped"])  # pyright: ignore[reportGeneralTypeIssues]
    return Block(int(str(header["number"])), tuple(found), skipped)


def _exactly(source: BinaryIO, num_bytes: int) -> bytes:
    found = source.read(num_bytes)
    if len(found) != num_bytes:
        sys.exit("the process that sends blocks is gone")
    return found


if __name__ == "__main__":
    main()
