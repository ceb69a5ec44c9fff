"""What becomes of the memory of buffers that are freed: kept for the next ones, or given back.

The C library keeps freed buffers for the next ones, or maps each large one anew and unmaps it. To
keep is faster: pages that are given back must be cleared when they come again. But what is kept has
holes, because the buffers that a backward waits for lie between those that come and go. For small
models the holes are small. A step on SmolLM2 took 5.0 GB of which 2.7 were in use; given back, it
takes 2.9 GB and 8.2 -> 11.3 s. So a model of that size learns with its buffers given back, and the
doctor's estimate is what it takes. Sampling makes smaller buffers, and always keeps them.

This is for glibc. Other C libraries have ways of their own, which are left alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SMALL = 16_000_000
"""Parameters up to which buffers are kept while learning, too: 4.1 -> 5.5 thousand training
tokens/s for the embedded policy."""

_TRIM, _MAP = -1, -3
"""mallopt's names for the sizes from which free memory at the end, and freed buffers, go back."""
_NEVER, _LARGE = 1 << 30, 1 << 20


def keep() -> None:
    """Keep freed buffers in the process."""
    _set(_TRIM, _NEVER)
    _set(_MAP, _NEVER)


@contextmanager
def for_learning(model: Any) -> Iterator[None]:
    """Give buffers of a megabyte and more back in this block, unless the model is small."""
    if sum(parameter.numel() for parameter in model.parameters()) <= SMALL:
        yield
        return
    _set(_MAP, _LARGE)
    try:
        yield
    finally:
        _set(_MAP, _NEVER)


def _set(name: int, size: int) -> None:
    with suppress(OSError, AttributeError):  # another C library: slower or larger, not wrong
        ctypes.CDLL("libc.so.6").mallopt(name, size)
