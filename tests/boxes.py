"""Sandboxes for tests: skips where none can be made, and runs coroutines in one loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rft.sandbox import probe
from rft.sandbox.limits import Limits
from rft.sandbox.sandbox import Sandbox, Spec, create
from rft.sandbox.workspace import Base, Mode

MIB = 2**20
SMALL = Limits(
    wall_s=20, cpu_s=5, memory_bytes=160 * MIB, processes=40, disk_bytes=16 * MIB, file_bytes=8 * MIB, output_bytes=MIB
)
T = TypeVar("T")


def why_not() -> str:
    """Return why no sandbox can be made here, or nothing."""
    info = asyncio.run(probe.machine()).info
    return info.missing()[0].why if info.level == "none" else ""


NEED = "RFT_NEED_SANDBOX"
"""Where this variable is set, as in CI, a sandbox that cannot be made is an error: nobody reads the
list of what was skipped."""


_reason = why_not()
if _reason and os.environ.get(NEED):
    raise RuntimeError(f"{NEED} is set, so the tests of the sandbox must run, and cannot: {_reason}")
needs_sandbox = pytest.mark.skipif(bool(_reason), reason=_reason)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


class Box:
    """A base and a sandbox of it: `async with Box(tmp_path) as sandbox`."""

    def __init__(self, folder: Path | None = None, limits: Limits = SMALL, mode: Mode | None = None) -> None:
        self._folder, self._limits, self._mode = folder, limits, mode

    async def __aenter__(self) -> Sandbox:
        make = Base.of_folder(self._folder, mode=self._mode) if self._folder else Base.empty(mode=self._mode)
        self._base = await make
        self._made = create(Spec(self._base, self._limits, allow_weaker=True))
        return await self._made.__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        await self._made.__aexit__(*exc)
        self._base.close()


def sh(script: str) -> list[str]:
    return ["sh", "-ec", script]
