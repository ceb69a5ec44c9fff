"""The grader given as Python source: runs grade(sample, item) in a sandbox, within limits.

The source may have been copied from somewhere, and it reads what a model wrote. So each grade runs
in a new process and a new workspace (rft/sandbox/). One grade leaves nothing for the next: no file,
no process, no variable. The program in the sandbox is rft/grading/python_inside.py.

    a number                     the score, within `range`
    anything else, or NaN        grader_bad_reply
    it raises, or is killed      infra_error. Too much memory, processor time or output kills it
    no answer in two minutes     grader_timeout
    no sandbox can be made       infra_error

Only the first is a score. The flag is `python_grader_runtime_error` if the source is to blame, and
`python_grader_server_error` if this machine is. The last part of what the source prints is kept as
the grade's explanation.

The published limits are for memory, disk, time and two processors, without a network. Instead of
processors we limit processor seconds. As many grades run at the same time as there are processors.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from rft import config, progress, threads
from rft.config.graders import Python
from rft.errors import InfrastructureError
from rft.grading import python_inside
from rft.grading.seen import passed
from rft.grading.within import within
from rft.sandbox import command, probe
from rft.sandbox.call import Outcome
from rft.sandbox.limits import Limits
from rft.sandbox.sandbox import Spec, create
from rft.sandbox.workspace import Base
from rft.scale import Scale
from rft.secrets import redact
from rft.types import Example, Grade, GradeStatus, RolloutContext, StopReason, Turn, Unscored
from rft.wire.contract import Envelope, Malformed, grader_payload

LIMITS = Limits(
    wall_s=120, cpu_s=240, memory_bytes=2 * 2**30, processes=128, disk_bytes=2**30, file_bytes=2**30,
    output_bytes=2**20,
)  # fmt: skip
"""OpenAI's limits, and our own for processes and output."""
RUNTIME, SERVER = "python_grader_runtime_error", "python_grader_server_error"
_INSIDE = Path(python_inside.__file__).read_text(encoding="utf-8")
# -P -s -B: nothing is imported from the workspace. Not -I, which would ignore PYTHONHASHSEED:
# without it a set has another order in each process, and a grade may have another score
_COMMAND = [sys.executable, "-P", "-s", "-B", "-c", _INSIDE]
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
_LAST_WORDS = 500


class PythonGrader:
    """`async with PythonGrader(settings, params.tools) as grader: await grader.grade(...)`."""

    def __init__(self, settings: Python, section: config.Tools, limits: Limits = LIMITS) -> None:
        self._settings, self._allow_weaker, self._limits = settings, section.weaker_sandbox, limits
        self.scale: Scale = settings.scale
        self._head = b'{"source": ' + json.dumps(settings.source).encode() + b', "body": '
        self._base: Base | None = None
        self._making = asyncio.Lock()
        self._turn = asyncio.Semaphore(threads.cores())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._base is not None:
            self._base.close()

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Raises ConfigError for a score outside of an undeclared range."""
        body = self._head + grader_payload(turns, stop_reason, Envelope(context)) + b"}"
        try:
            async with self._turn, create(await self._spec()) as sandbox:
                outcome = await sandbox.exec(_COMMAND, body, env=_ENVIRONMENT)
        except InfrastructureError as error:
            return Unscored(GradeStatus.infra_error, f"grader: {self._settings.name}: {error}", (SERVER,))
        return self._read(outcome)

    async def _spec(self) -> Spec:
        async with self._making:
            if self._base is None:
                await _warn(self._settings.name, self._allow_weaker)
                self._base = await Base.empty(command.python_folders())
        return Spec(self._base, self._limits, allow_weaker=self._allow_weaker)

    def _read(self, outcome: Outcome) -> Grade:
        printed = redact(outcome.stderr.decode("utf-8", "replace")).strip()[-_LAST_WORDS:]
        if outcome.timed_out:
            return self._without(GradeStatus.grader_timeout, f"no verdict within {self._limits.wall_s:g} s", printed)
        if outcome.oom:
            memory = f"{self._limits.memory_bytes / 2**30:g} GiB"
            return self._without(GradeStatus.infra_error, f"used more memory than {memory}", printed)
        if outcome.truncated:
            longest = f"{self._limits.output_bytes / 2**20:g} MiB"
            return self._without(GradeStatus.infra_error, f"printed more than {longest}", printed)
        match _verdict(outcome.stdout):
            case {"score": float(number)} if math.isfinite(number):
                try:
                    score = within(number, self.scale, self._settings.declares_range)
                except Malformed as error:
                    return self._without(GradeStatus.grader_bad_reply, str(error), printed)
                return passed(self._settings, score, printed)
            case {"no_number": str(what)}:
                problem = f"returned {redact(what)}, expected a number: return float(...)"
                return self._without(GradeStatus.grader_bad_reply, problem, printed)
            case {"raised": str(what)}:
                return self._without(GradeStatus.infra_error, redact(what), printed)
            case None:
                return self._without(GradeStatus.infra_error, f"ended with exit code {outcome.returncode}", printed)
            case _:
                return self._without(GradeStatus.grader_bad_reply, "wrote something that is not a verdict", printed)

    def _without(self, status: Any, why: str, printed: str) -> Unscored:
        message = f"grader: {self._settings.name}: {why}" + (f". It printed: {printed}" if printed else "")
        return Unscored(status, message, (RUNTIME,))


def _verdict(written: bytes) -> Any:
    """Read what the process wrote; None if that is not JSON. The source can write there, too, so
    the value may be any JSON, and NaN."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return None


async def check(section: config.Tools) -> None:
    """Check, before anything is computed, that the source can run here. Raises
    InfrastructureError."""
    info = (await probe.machine()).info
    try:
        info.require(section.weaker_sandbox)
    except InfrastructureError as error:
        remedy = "" if info.level == "none" else " To run it all the same, set tools.weaker_sandbox: true."
        raise InfrastructureError(f"grader.json: a python grader runs in a sandbox. {error}{remedy}") from None


async def _warn(name: str, allow_weaker: bool) -> None:
    missing = (await probe.machine()).info.missing()
    if allow_weaker and missing:
        what = "; ".join(f"{guarantee.name}: {guarantee.why}" for guarantee in missing)
        progress.print_line("grader", f"WARNING: {name} runs in a weaker sandbox, as tools.weaker_sandbox says. {what}")
