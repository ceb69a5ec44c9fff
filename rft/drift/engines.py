"""Count profiles in this process, in several, or on Spark.

All three apply one function to each item of a list and return the results in the order of the
items. The sums of these results are exact, so the engine changes no byte of a profile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Literal, TypeVar

from rft.config import Params
from rft.errors import InfrastructureError
from rft.process import die_with

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Engine:
    """How many processes count, or which Spark."""

    kind: Literal["local", "spark"] = "local"
    processes: int = 1
    master: str = "local[*]"

    @classmethod
    def from_params(cls, params: Params) -> Engine:
        return cls(params.drift.engine, params.traffic.processes, params.drift.spark_master)

    def mapped(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the function's result for each item, in order. The function and the items are
        pickled for other processes."""
        if self.kind == "spark":
            from rft.drift import spark  # imported only here, because PySpark is an extra

            yield from spark.mapped(function, items, self.master)
        elif self.processes == 1 or len(items) < 2:
            yield from map(function, items)
        else:
            yield from _in_processes(function, items, min(self.processes, len(items)))


def _in_processes(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=die_with, initargs=(os.getpid(),))
    try:
        yield from pool.map(function, items)
    except BrokenProcessPool:
        why = "a process that counts a profile died, perhaps because memory was full"
        raise InfrastructureError(f"{why}. Run it again, with fewer traffic.processes.") from None
    finally:
        pool.shutdown(cancel_futures=True)
