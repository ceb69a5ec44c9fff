"""Measure this machine's two limits: how fast it multiplies, and how fast it reads memory.

A speed alone says little: 200 tokens/s may be all that a machine can do, or a tenth of it. The
limits tell which. No program multiplies faster than one large product of the same numbers, or reads
the weights faster than one matrix is read.

    limits   floating-point operations and bytes, per second
    Work     what a step must multiply and read; `floor_s` is the least time that this takes
    threads  how fast one product is with 1, 2, 4, ... threads, for the setting policy.threads

On a CPU each library that PyTorch brings tries a large float32 product (rft/kernels/onednn). The
faster one counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rft.kernels import onednn

TOKENS, INPUTS, OUTPUTS = 1024, 2048, 4096
"""Sizes of the product: 17 GFLOP, with three matrices that are far larger than a cache."""
READ_BYTES = {"cpu": 2**28, "cuda": 2**31}
SECONDS = 1.0
"""Time for each limit. The best of all tries counts, because other work can only slow a machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    flops: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step. `read`: bytes of weights, keys and values, each counted once."""

    flop: float
    read: float

    def floor_s(self, limits: Limits) -> float:
        """Return the least seconds in which this machine can do the work."""
        return max(self.arithmetic_s(limits), self.memory_s(limits))

    def arithmetic_s(self, limits: Limits) -> float:
        return self.flop / limits.flops

    def memory_s(self, limits: Limits) -> float:
        return self.read / limits.bytes_per_s


@torch.inference_mode()
def limits(device: torch.device, dtype: torch.dtype, seconds: float = SECONDS) -> Limits:
    """Measure both limits, for `seconds` each."""
    return Limits(_product(device, dtype, seconds), _reading(device, dtype, seconds))


@torch.inference_mode()
def threads(limit: float = 0.2) -> dict[int, float]:
    """Measure the product with 1, 2, 4, ... threads and with all cores that this process may use,
    for `limit` seconds each. Return operations per second by number of threads."""
    cores, counts = len(os.sched_getaffinity(0)), [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    counts = sorted({*counts, cores})
    found: dict[int, float] = {}
    for count in counts:
        with _threads(count):
            found[count] = _product(torch.device("cpu"), torch.float32, limit)
    return found


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _product(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Measure operations per second."""
    x, weight = _random(device, dtype, TOKENS, INPUTS), _random(device, dtype, OUTPUTS, INPUTS)
    ways: list[Callable[[], Any]] = [lambda: torch.nn.functional.linear(x, weight)]
    if onednn.serves(weight):
        ways.append(lambda: onednn.linear(x, weight))
    return 2.0 * TOKENS * INPUTS * OUTPUTS / _best_s(device, ways, seconds)


def _reading(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Measure bytes per second."""
    held = _random(device, dtype, READ_BYTES[device.type] // (INPUTS * dtype.itemsize), INPUTS)
    vector = _random(device, dtype, INPUTS)
    ways: list[Callable[[], Any]] = [lambda: torch.mv(held, vector), lambda: held.view(torch.int32).sum()]
    return held.numel() * held.element_size() / _best_s(device, ways, seconds)


def _random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def _best_s(device: torch.device, ways: list[Callable[[], Any]], seconds: float) -> float:
    """Return the shortest time of all ways. The first try of each way is a warm-up."""
    best = float("inf")
    for way in ways:
        _timed(device, way)
        until = time.perf_counter() + seconds / len(ways)
        while time.perf_counter() < until:
            best = min(best, _timed(device, way))
    return best


def _timed(device: torch.device, way: Callable[[], Any]) -> float:
    began = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
