"""The adapter for Inspect has its signatures, and fails in the ways that it knows."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import boxes
import pytest

from rft.errors import UserError
from rft.sandbox.inspect_ai import InspectEnvironment

pytestmark = boxes.needs_sandbox

SIGNATURES = {
    "exec": "cmd input cwd env user timeout timeout_retry concurrency",
    "write_file": "file contents",
    "read_file": "file text",
    "task_init": "task_name config",
    "sample_init": "task_name config metadata",
    "sample_cleanup": "task_name config environments interrupted",
    "task_cleanup": "task_name config cleanup",
    "cli_cleanup": "id",
}
"""As of Inspect 0.3.285."""


@pytest.mark.parametrize("method", SIGNATURES)
def test_a_method_takes_what_inspect_gives(method: str) -> None:
    names = [name for name in inspect.signature(getattr(InspectEnvironment, method)).parameters if name != "self"]
    assert names == SIGNATURES[method].split()


def play(folder: Path | None, act: Any) -> None:
    class Environment(InspectEnvironment):
        base = folder

    async def played() -> None:
        await Environment.task_init("task", None)
        samples = await Environment.sample_init("task", None, {})
        try:
            await act(samples["default"])
        finally:
            await Environment.sample_cleanup("task", None, samples, False)
            await Environment.task_cleanup("task", None, True)

    boxes.run(played())


def test_calls_and_files(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from the sample")

    async def act(box: InspectEnvironment) -> None:
        result = await box.exec(["sh", "-c", "cat - given; exit 2"], input="text, ", env={"A": "b"})
        assert (result.success, result.returncode, result.stdout) == (False, 2, "text, from the sample")
        await box.write_file("/ws/src/a", "text")
        await box.write_file("b", b"\xff")
        assert await box.read_file("src/a") == "text"
        assert await box.read_file("/ws/b", text=False) == b"\xff"
        assert (await box.exec(["pwd"], cwd="/ws/src")).stdout == "/ws/src\n"

    play(tmp_path, act)


def test_failures_are_pythons(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "bytes").write_bytes(b"\xff")

    async def act(box: InspectEnvironment) -> None:
        with pytest.raises(FileNotFoundError):
            await box.read_file("missing")
        with pytest.raises(IsADirectoryError):
            await box.read_file("folder")
        with pytest.raises(IsADirectoryError):
            await box.write_file("folder", "text")
        with pytest.raises(PermissionError):
            await box.read_file("link")
        with pytest.raises(PermissionError):
            await box.read_file("/etc/passwd")
        with pytest.raises(UnicodeDecodeError):
            await box.read_file("bytes")
        with pytest.raises(TimeoutError, match=r"'sleep' did not end within its 0\.2 s"):
            await box.exec(["sleep", "5"], timeout=0.2)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UserError, match="one user"):
            await box.exec(["true"], user="root")

    play(tmp_path, act)
