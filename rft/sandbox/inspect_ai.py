"""Offer a sandbox to Inspect, the evaluation framework, in the form that its tools expect.

Inspect asks for a class with its methods and signatures, and we do not import it. Where it is
installed, two lines register the class under a name that a task may use:

    @sandboxenv(name="rft")
    class Rft(InspectEnvironment, SandboxEnvironment):
        base = Path("repository")

Inspect tells failures apart by Python's own errors, so a refusal becomes the one that it knows:
`FileNotFoundError`, `IsADirectoryError`, `PermissionError`. A call beyond its deadline is a
`TimeoutError`. There is one user inside, so asking for another one is an error.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from rft.errors import UserError
from rft.sandbox import command, probe, sandbox
from rft.sandbox.limits import Limits
from rft.sandbox.reading import Refusal
from rft.sandbox.workspace import Base, Workspace

OUTPUT_BYTES, READ_BYTES = 10 * 2**20, 100 * 2**20
"""Inspect's own limits of a stream and of a file."""


@dataclass(frozen=True)
class ExecResult:
    """What Inspect calls the result of a call."""

    success: bool
    returncode: int
    stdout: str
    stderr: str


class InspectEnvironment:
    """One sandbox, with the methods of Inspect's `SandboxEnvironment`."""

    base: ClassVar[Path | None] = None
    """The folder that each sample starts from."""
    limits: ClassVar[Limits] = Limits(output_bytes=OUTPUT_BYTES)

    def __init__(self, inner: sandbox.AnySandbox, bases: Sequence[Base] = ()) -> None:
        super().__init__()
        self._inner, self._bases = inner, bases

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult:
        """Run a program. `timeout_retry` and `concurrency` are hints that change nothing here."""
        if user is not None:
            raise UserError(f"The sandbox has one user, so a command cannot run as {user!r}.")
        given = input.encode() if isinstance(input, str) else input or b""
        with _as_python_says():
            outcome = await self._inner.exec(cmd, given, _inside(cwd or "."), env, timeout)
        if outcome.timed_out:
            raise TimeoutError(f"{cmd[0]!r} did not end within its {timeout or self.limits.wall_s} s.")
        stdout, stderr = outcome.stdout.decode(), outcome.stderr.decode()
        return ExecResult(outcome.returncode == 0, outcome.returncode, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        content = contents.encode() if isinstance(contents, str) else contents
        with _as_python_says():
            await self._inner.write_file(_inside(file), content)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        with _as_python_says():
            content = await self._inner.read_file(_inside(file), READ_BYTES)
        return content.decode() if text else content

    # -- its life ----------------------------------------------------------------------------------
    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Refuse early where the machine would not contain a program."""
        (await probe.machine()).info.require()

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: Mapping[str, str]) -> dict[str, Self]:
        """Make the sandbox of a sample."""
        machine = await probe.machine()
        machine.info.require()
        binds = command.python_folders()
        base = await Base.of_folder(cls.base, binds) if cls.base else await Base.empty(binds)
        workspace = await Workspace.create(base, cls.limits.disk_bytes)
        inner = sandbox.Sandbox(sandbox.Spec(base, cls.limits), workspace, machine)
        return {"default": cls(inner, [base])}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: Mapping[str, Any], interrupted: bool
    ) -> None:
        """End the sandboxes of a sample."""
        for environment in environments.values():
            await environment._inner.close()
            for base in environment._bases:
                base.close()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Nothing is shared by the samples of a task."""

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Nothing is left behind, so there is nothing to clean up."""


def _inside(path: str) -> str:
    """Return a path relative to the workspace."""
    return path.removeprefix(command.WORKSPACE).lstrip("/") or "." if path.startswith(command.WORKSPACE) else path


@contextmanager
def _as_python_says() -> Iterator[None]:
    """Raise a refusal as the error that `open` would raise."""
    try:
        yield
    except Refusal as refusal:
        kinds = {errno.ENOENT: FileNotFoundError, errno.EISDIR: IsADirectoryError}
        raise kinds.get(refusal.number, PermissionError)(refusal.number, str(refusal)) from None
