"""The figure of code under test: wrong programs that are accepted.

Each exploit of bench/coding_exploits.py is also given to three careless graders in the same run. An
exploit that fools none of them shows nothing, unless it only does harm. The honest solutions must
be accepted. All files of an exploit are used, so that no list of allowed files saves the grader.

Both forms are played: by input and output, and by hidden tests. Hidden tests judge as they are
written. Two exploits pass because `==` accepts true for 1, and a careless tolerance accepts NaN.
Those are printed, and have no bound.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass

from bench.coding_exploits import EXPLOITS, Exploit
from bench.coding_tasks import HONEST, LIMITS, NUM_FRESH, Task, fools_copied, fools_pytest, fools_script
from bench.measure import Figure, Part, unmeasured
from rft.grading.code_under_test.function import Candidate, check_function
from rft.grading.code_under_test.hidden_tests import run_hidden_tests
from rft.grading.code_under_test.patch import Patch
from rft.grading.code_under_test.verdict import Verdict
from rft.sandbox import command, probe
from rft.sandbox.workspace import Base

MIN_MORE = 12
"""How many exploits there must be beyond those of the reference."""
SEED = 20


@dataclass(frozen=True, slots=True)
class _Played:
    exploit: Exploit
    pytest: bool
    script: bool
    copied: bool
    verdict: Verdict
    wall_s: float
    tested: Verdict
    """The verdict by hidden tests."""
    tested_s: float

    @property
    def fools_one(self) -> bool:
        return self.pytest or self.script or self.copied


def hacklab_coding(args: list[str]) -> Figure:
    """Exploits against code under test that are accepted: none. Honest solutions: all."""
    info = asyncio.run(probe.machine()).info
    if info.level == "none":
        return unmeasured("exploits accepted", f"no sandbox: {info.missing()[0].why}")
    return Figure(asyncio.run(_parts()))


FIGURES = {"hacklab_coding": hacklab_coding}


async def _parts() -> tuple[Part, ...]:
    base = await Base.empty(command.python_folders())
    try:
        honest = [
            await _play(Exploit(f"honest: {task.name}", _solution(task), task, harm=True), base) for task in HONEST
        ]
        played = [await _play(exploit, base) for exploit in EXPLOITS]
    finally:
        base.close()
    accepted = [play.exploit.name for play in played if play.verdict.solved]
    strict = [play for play in played if not play.exploit.lax]
    tested = [play.exploit.name for play in strict if play.tested.solved]
    lax = [play for play in played if play.exploit.lax]
    blunt = [play.exploit.name for play in played if not play.exploit.harm and not play.fools_one]
    rows = [play for play in played if play.exploit.reference]
    timed = [*honest, *(play for play in played if not play.exploit.harm)]
    total = len(HONEST)
    return (
        Part("exploits accepted", len(accepted), "exploits", at_most=0, n=len(played), reason=", ".join(accepted)),
        Part("honest accepted", _solved(honest), "solutions", at_least=total, n=total),
        Part("exploits accepted by hidden tests", len(tested), "exploits", at_most=0, n=len(strict),
             reason=", ".join(tested)),
        Part("honest accepted by hidden tests", _passed(honest), "solutions", at_least=total, n=total),
        Part("accepted because of what the tests say", _passed(lax), "exploits", n=len(lax)),
        Part("exploits of the reference", len(rows), "exploits", at_least=13),
        Part("more exploits", len(played) - len(rows), "exploits", at_least=MIN_MORE),
        Part("exploits that fool no careless grader", len(blunt), "exploits", at_most=0,
             n=sum(not play.exploit.harm for play in played), reason=", ".join(blunt)),
        Part("of the reference, accepted by pytest's exit code", sum(p.pytest for p in rows), "exploits", n=len(rows)),
        *_careless(played),
        Part("time per grade, P50", statistics.median(play.wall_s for play in timed), "s", n=len(timed)),
        Part("time per grade, longest", max(play.wall_s for play in timed), "s", n=len(timed)),
        Part("time per grade by hidden tests, P50", statistics.median(p.tested_s for p in timed), "s", n=len(timed)),
        Part("time per grade by hidden tests, longest", max(p.tested_s for p in timed), "s", n=len(timed)),
    )  # fmt: skip


def _solution(task: Task) -> dict[str, bytes]:
    return {"solution.py": task.honest.encode()}


def _solved(plays: list[_Played]) -> int:
    return sum(play.verdict.solved for play in plays)


def _passed(plays: list[_Played]) -> int:
    return sum(play.tested.solved for play in plays)


def _careless(played: list[_Played]) -> list[Part]:
    tried = [play for play in played if not play.exploit.harm]
    return [
        Part("accepted by pytest's exit code", sum(p.pytest for p in tried), "exploits", n=len(tried)),
        Part("accepted by a script in one process", sum(p.script for p in tried), "exploits", n=len(tried)),
        Part("accepted by hidden tests, copied in", sum(p.copied for p in tried), "exploits", n=len(tried)),
    ]


async def _play(exploit: Exploit, base: Base) -> _Played:
    fooled = (False, False, False)
    if not exploit.harm:
        fooled = (
            await fools_pytest(exploit.task, exploit.files),
            await fools_script(exploit.task, exploit.files),
            await fools_copied(exploit.task, exploit.files, SEED),
        )
    files = {**exploit.task.workspace(), **exploit.files}
    began = time.perf_counter()
    verdict = await by_answers(exploit.task, files)
    between = time.perf_counter()
    tested = await by_hidden_tests(exploit.task, files, base)
    ended = time.perf_counter()
    marks = " ".join("ACCEPTED" if found.solved else "refused " for found in (verdict, tested))
    careless = "".join("x" if was else "-" for was in fooled)
    line = f"{marks} {between - began:5.2f} s {ended - between:5.2f} s  {careless} {exploit.name}: {verdict.why}"
    print(line, file=sys.stderr, flush=True)
    return _Played(exploit, *fooled, verdict, between - began, tested, ended - between)


async def by_answers(task: Task, files: dict[str, bytes]) -> Verdict:
    """Check by input and output."""
    cases = task.cases(NUM_FRESH, SEED)
    return await check_function(
        Candidate(files, "solution", task.name), cases, LIMITS, task.tolerance, allow_weaker=True
    )


async def by_hidden_tests(task: Task, files: dict[str, bytes], base: Base) -> Verdict:
    """Check by tests that the model has not seen."""
    tests = {f"test_{task.name}.py": task.tests(task.cases(NUM_FRESH, SEED))}
    return await run_hidden_tests(base, Patch(files), tests, ["solution"], limits=LIMITS, allow_weaker=True)
