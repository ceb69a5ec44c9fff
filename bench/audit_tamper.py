"""The figure of the tampered lineage: does an audit name the link that broke, and no other?

Each case is a copy of a small year (audit_world.py), one trick (audit_attacks.py), one question. An
alarm is not enough: among the links that the answer calls broken must be the attacked one, with its
source and its target. If the ledger itself is damaged, no audit begins, and the error must name the
place.

The clean audits are of every version, run and entry of several different years. Nothing may be
named there. A link that nobody can verify is not an alarm: for example, no signature names a run
that nobody asked to promote.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from bench import audit_attacks, audit_scene, audit_world
from bench.audit_attacks import Case
from bench.audit_scene import Scene
from bench.measure import Figure, Part
from rft.errors import RftError
from rft.reports.audit import BROKEN, Audit

RUNS, ENTRIES, CLEAN = len(audit_world.CHOSEN), 90, 200


def audit_tamper(args: list[str]) -> Figure:
    """A lineage that was tampered with: cases whose link is named (all), and alarms on clean audits
    (0)."""
    small = "--small" in args
    with tempfile.TemporaryDirectory() as place, audit_world.entered(Path(place)):
        scene = made(Path(place) / "year", seed=0)
        cases = [*audit_attacks.every(scene)]
        found = attempt(Path(place), scene, cases[::25] if small else cases)
        alarms, asked = clean(scene, 12 if small else CLEAN // 2)
        for seed in () if small else (1, 2, 3):
            more, some = clean(made(Path(place) / f"year-{seed}", seed), 1 + (CLEAN - CLEAN // 2) // 3)
            alarms, asked = alarms + more, asked + some
        fetched = fetches(Path(place), scene, 1 if small else 10)
    missed = {name: why for name, why in found.items() if why is not None}
    parts = (
        Part("tampered, and the link not named", len(missed), "cases", at_most=0, n=len(found)),
        Part("cases", len(found), "cases", at_least=None if small else 200),
        Part("false alarms", len(alarms), "alarms", at_most=0, n=asked),
        Part(
            "objects that are at the remote alone, and were not fetched", len(fetched), at_most=0, n=1 if small else 10
        ),
    )
    return Figure(parts, {"missed": missed, "alarms": [*alarms, *fetched]})


def made(folder: Path, seed: int, runs: int = RUNS) -> Scene:
    world = audit_world.year(folder, runs, ENTRIES, seed)
    audit_world.share(folder)
    return audit_scene.from_world(world)


def attempt(root: Path, scene: Scene, cases: Iterable[Case]) -> dict[str, str | None]:
    """Return case -> what was said instead of its link. None: the link was named."""
    found: dict[str, str | None] = {}
    for case in cases:
        with tempfile.TemporaryDirectory(dir=root) as place:
            copy = audit_scene.copy(scene, Path(place))
            case.attack(copy)
            found[case.name] = missed(scene, case, asked(copy, question(scene, case)))
        print(
            f"{'named ' if found[case.name] is None else 'MISSED'} {case.name}{_why(found[case.name])}", file=sys.stderr
        )
    return found


def _why(missed: str | None) -> str:
    return "" if missed is None else f": {missed}"


def question(scene: Scene, case: Case) -> str:
    if case.asks == "version":
        return f"{scene.model(case.place)}@{scene.number(case.place)}"
    return scene.run(case.place)


def asked(scene: Scene, what: str) -> Audit | Exception:
    from tasks import audit

    try:
        return audit.ask(scene.clone, audit.Question(what), report_line=audit_world.silent)
    except Exception as error:  # an error that is not ours is a traceback, and names nothing
        return error


def missed(scene: Scene, case: Case, found: Audit | Exception) -> str | None:
    """Return what was said instead of the link that the case broke. None: the link was named."""
    if isinstance(found, Exception):
        is_named = bool(case.says) and isinstance(found, RftError) and case.says in str(found)
        return None if is_named else f"{type(found).__name__}: {found}"
    told = [link for link in found.links if link.state in case.states]
    for source, target in case.breaks:
        source, target = (_filled(scene, case, pattern) for pattern in (source, target))
        if any(fnmatchcase(link.source, source) and fnmatchcase(link.target, target) for link in told):
            return None
    broken = "; ".join(f"{link.source} {link.says} {link.target}" for link in told[:3]) or "nothing is broken"
    return f"{broken}, and not {' or '.join(' -> '.join(each) for each in case.breaks) or case.says}"


def _filled(scene: Scene, case: Case, pattern: str) -> str:
    return pattern.replace("RUN", scene.run(case.place)).replace("COMMIT", scene.revision(case.place))


def clean(scene: Scene, most: int) -> tuple[list[str], int]:
    """Ask about everything in a clone that nobody touched. Returns what was named all the same, and
    the number of questions."""
    state = scene.ledger.state
    every = [f"{each.model}@{each.number}" for each in state.promotions.values()] + scene.runs
    every += [f"{model}@beginning" for model in state.moves] + [*map(str, range(1, state.number + 1))]
    alarms: list[str] = []
    for what in every[:most]:
        found = asked(scene, what)
        if isinstance(found, Exception):
            alarms.append(f"{what}: {type(found).__name__}: {found}")
        else:
            broken = [link for link in found.links if link.state in BROKEN]
            alarms += [f"{what}: {link.source} {link.says} {link.target}: {link.why}" for link in broken]
    return alarms, len(every[:most])


def fetches(root: Path, scene: Scene, most: int) -> list[str]:
    """Remove objects only here. DVC's remote has them, and an audit must fetch them by hash."""
    place = audit_attacks.TRAINED
    alarms: list[str] = []
    outs = [*scene.at(place).outs.values()]
    for out in outs[:: max(1, len(outs) // most)][:most]:
        with tempfile.TemporaryDirectory(dir=root) as folder:
            copy = audit_scene.copy(scene, Path(folder))
            copy.remove(out.md5, everywhere=False)
            found = asked(copy, scene.run(place))
            if isinstance(found, Exception) or found.broken() or not copy.object(out.md5).exists():
                alarms.append(f"{out.path}: {found if isinstance(found, Exception) else found.broken()}")
    return alarms


def states(found: Audit) -> Counter[str]:
    return Counter(link.state for link in found.links)


FIGURES = {"audit_tamper": audit_tamper}
