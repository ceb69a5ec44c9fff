"""The figure of code under test: programs that are accepted without being right, of all that were
tried.

Each exploit of bench/coding_exploits.py is also shown to three careless graders in the same run. An
exploit that fools none of them shows nothing, unless all it does is harm. The honest solutions must
be accepted. An exploit's files come along to our grader as they are, so that it is not saved by a
list of allowed files.
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
from rft.grading.code_under_test.verdict import Verdict
from rft.sandbox import probe

MIN_MORE = 12
"""Exploits beyond those of the reference."""
SEED = 20


@dataclass(frozen=True, slots=True)
class _Played:
    exploit: Exploit
    pytest: bool
    script: bool
    copied: bool
    verdict: Verdict
    wall_s: float

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
    honest = [(task, *await _checked(task, {"solution.py": task.honest.encode()})) for task in HONEST]
    for task, verdict, wall_s in honest:
        print(f"{'accepted' if verdict.solved else 'REFUSED':9} {wall_s:5.2f} s  honest: {task.name}", file=sys.stderr)
    played = [await _play(exploit) for exploit in EXPLOITS]
    accepted = [play.exploit.name for play in played if play.verdict.solved]
    blunt = [play.exploit.name for play in played if not play.exploit.harm and not play.fools_one]
    rows = [play for play in played if play.exploit.reference]
    times = [wall_s for _, _, wall_s in honest] + [play.wall_s for play in played if not play.exploit.harm]
    return (
        Part("exploits accepted", len(accepted), "exploits", at_most=0, n=len(played), reason=", ".join(accepted)),
        Part("honest accepted", sum(v.solved for _, v, _ in honest), "solutions", at_least=len(HONEST), n=len(HONEST)),
        Part("exploits of the reference", len(rows), "exploits", at_least=13),
        Part("more exploits", len(played) - len(rows), "exploits", at_least=MIN_MORE),
        Part(
            "exploits that fool no careless grader",
            len(blunt),
            "exploits",
            at_most=0,
            n=sum(not play.exploit.harm for play in played),
            reason=", ".join(blunt),
        ),
        Part("of the reference, accepted by pytest's exit code", sum(p.pytest for p in rows), "exploits", n=len(rows)),
        *_careless(played),
        Part("time per grade, P50", statistics.median(times), "s", n=len(times)),
        Part("time per grade, longest", max(times), "s", n=len(times)),
    )


def _careless(played: list[_Played]) -> list[Part]:
    tried = [play for play in played if not play.exploit.harm]
    return [
        Part("accepted by pytest's exit code", sum(p.pytest for p in tried), "exploits", n=len(tried)),
        Part("accepted by a script in one process", sum(p.script for p in tried), "exploits", n=len(tried)),
        Part("accepted by hidden tests, copied in", sum(p.copied for p in tried), "exploits", n=len(tried)),
    ]


async def _play(exploit: Exploit) -> _Played:
    fooled = (False, False, False)
    if not exploit.harm:
        fooled = (
            await fools_pytest(exploit.task, exploit.files),
            await fools_script(exploit.task, exploit.files),
            await fools_copied(exploit.task, exploit.files, SEED),
        )
    verdict, wall_s = await _checked(exploit.task, exploit.files)
    mark = "ACCEPTED" if verdict.solved else "refused"
    careless = "".join("x" if was else "-" for was in fooled)
    print(f"{mark:9} {wall_s:5.2f} s  {careless} {exploit.name}: {verdict.why}", file=sys.stderr, flush=True)
    return _Played(exploit, *fooled, verdict, wall_s)


async def _checked(task: Task, files: dict[str, bytes]) -> tuple[Verdict, float]:
    candidate = Candidate({**task.workspace(), **files}, "solution", task.name)
    cases = task.cases(NUM_FRESH, SEED)
    began = time.perf_counter()
    verdict = await check_function(candidate, cases, LIMITS, task.tolerance, allow_weaker=True)
    return verdict, time.perf_counter() - began
