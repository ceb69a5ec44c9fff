"""Decides whether the memory of freed buffers is kept for the next ones or given back.

The C library keeps freed buffers for the next ones, or maps each large one anew and unmaps it.
Keeping is faster, because pages that were given back must be cleared when they come again. In a
step of 16 rollouts on SmolLM2 they are 7 GB: the step takes 6.2 s, and 3.6 s with kept buffers. But
kept memory has holes, because the buffers that a backward waits for lie between those that come and
go. Another such step took 5.0 GB, of which 2.7 were in use; with its buffers given back it took
2.9.

So it depends on the free memory. A model's first step gives back, and shows how much it needs at
its peak. The next steps keep if ROOM times as much is free, and stop keeping when little is left.
If memory is short, a step takes what the doctor estimates; otherwise it may take more and is
faster. Small models have small holes and always keep. So does sampling, whose buffers are smaller.

This is for glibc. Other C libraries have ways of their own, which are left alone.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rft.errors import UserError

SMALL = 16_000_000
"""Models of up to this many parameters always keep their buffers. The embedded policy then trains
5.5 instead of 4.1 thousand tokens/s."""
ROOM = 3.0
"""Buffers are kept if this many times a step's need is free: the holes were at most as large."""
LITTLE = 0.25
"""A share of what a step needs. If less is free, what is kept goes back."""

_SPENT = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""How PyTorch's allocators say so, on GPUs, Linux and elsewhere."""

_TRIM, _MAP = -1, -3
"""mallopt's names for two sizes, from which free memory at the heap's end and freed buffers go
back."""
_NEVER, _LARGE = 1 << 30, 1 << 17
"""Buffers from 128 KiB on are given back. With 1 MiB, holes grew between the smaller ones: two
steps of a Qwen3 of 12 layers took 1,489 MB at their peak instead of 1,214, in the same time."""


def keep() -> None:
    """Keep freed buffers in the process."""
    _set(_TRIM, _NEVER)
    _set(_MAP, _NEVER)


class Steps:
    """The learning steps of a model, each a block: `with steps.one(): ...`."""

    def __init__(self, model: Any):
        self._is_small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL
        self._need: int | None = None
        self.keeps = self._is_small

    @contextmanager
    def one(self) -> Iterator[None]:
        """Keep what is freed in this block, or give it back."""
        if not self._is_small and self._need is not None:
            before, self.keeps = self.keeps, free_memory() > self._need * (LITTLE if self.keeps else ROOM)
            if before and not self.keeps:
                _give_back()
        if self.keeps:
            yield
            return
        _give_back()  # what sampling has freed: its packed weights are as large as the model
        _set(_MAP, _LARGE)
        began = _resident()
        try:
            yield
        finally:
            _set(_MAP, _NEVER)
        self._need = max(self._need or 0, _resident("VmHWM") - began)


@contextmanager
def told(what: str, remedy: str) -> Iterator[None]:
    """Raise UserError, which says what to lower, if this block runs out of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one of the latter
        message = str(error).casefold()
        if not isinstance(error, MemoryError) and not any(one in message for one in _SPENT):
            raise
        raise UserError(f"out of memory: {what}. {remedy}") from error


def free_memory() -> int:
    """Return the bytes that this process could still take."""
    import psutil

    return min([psutil.virtual_memory().available, *_cgroup()])


def _cgroup() -> list[int]:
    """Return what a container leaves us (cgroup v2). The machine's own number ignores this
    limit."""
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return []
    return [] if limit == "max" else [int(limit) - int(used)]


def _resident(line: str = "VmRSS") -> int:
    """Return the bytes that are resident. `VmHWM`: the most that ever were. Sampling counts too, so
    the number is rather too large than too small."""
    told = dict(one.split(":", 1) for one in Path("/proc/self/status").read_text().splitlines())
    kilobytes = told[line].split()[0] if line in told else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(kilobytes) * 1024


def _set(name: int, size: int) -> None:
    with suppress(OSError, AttributeError):  # another C library: slower or larger, not wrong
        ctypes.CDLL("libc.so.6").mallopt(name, size)


def _give_back() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
