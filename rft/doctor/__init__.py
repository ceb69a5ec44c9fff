"""`rft doctor`: what would go wrong, before any compute is spent.

Most training runs that are worth nothing could have been told so in a minute: a misspelt key, a
grader that scores the empty answer, a tool server that shows one rollout what another did, a chat
template that renders the past anew, a learning rate that float32 rounds away. Each is a check.
`examine` makes them in a fixed order, and says of each what it saw and what to do:

    configuration.py    every key known and honoured, no two that contradict each other, the
                        environment's secrets there
    contents.py         the recipe: examples, splits, routes of tools, where the policy comes from
    wire.py             tools and grader at the declared burst; determinism; two trace ids that must
                        not see each other
    arguments.py        what tools are called with: the recipe's own calls, else made from the
                        schema
    serving.py          the policy's server, if there is one: one short turn of it
    template.py         prefixes kept from turn to turn, calls read back, room in the context
    capacity.py         memory and disk, estimated from the model's shape alone
    learning.py         one optimizer step, in memory: weights change, the base does not, sampler
                        and trainer agree

A check can neither hang nor crash the doctor: it runs in a thread that is left behind at its
deadline, and what it raises is its finding. One whose ground is missing (`needs`, no model yet) is
skipped, with the reason. Nothing is written anywhere.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rft import config, secrets
from rft.doctor import capacity, configuration, contents, learning, serving, template, wire
from rft.doctor.finding import Finding, Skip, fail
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError, RftError, UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class Check:
    """`model`: it looks at the policy's model, which `--no-model` leaves out."""

    name: str
    look: Callable[[Setup], Finding]
    deadline_s: float
    needs: tuple[str, ...] = ()
    model: bool = False


_THREAD = "doctor: "

CHECKS = (
    Check("configuration", configuration.look, 20),
    Check("recipe", contents.look, 120, ("configuration",)),
    Check("tools", wire.tools, 180, ("recipe",)),
    Check("grader", wire.grader, 600, ("recipe",)),
    Check("isolation", wire.isolation, 180, ("tools",)),
    Check("server", serving.look, 180, ("recipe",)),
    Check("template", template.look, 180, ("recipe",), model=True),
    Check("capacity", capacity.look, 120, ("configuration",), model=True),
    Check("step", learning.look, 600, ("recipe", "capacity"), model=True),
)


def examine(
    load: Callable[[], config.Params],
    only: Sequence[str] = (),
    use_model: bool = True,
    begin: Callable[[str], None] = lambda name: None,
    checks: Sequence[Check] = CHECKS,
    announce: Callable[[str], None] = lambda words: None,
    find_policy: Callable[[config.Params], Path | None] = lambda params: None,
) -> Iterator[Finding]:
    """One finding per check, as it comes. `load` reads params.yaml; `only` narrows to these checks
    and those that they need.

    `announce` is told, in the check's own thread and before anything is sent, how many calls go
    where. `find_policy` may know a shelf of stage `policy`, made from these settings, in another
    place than this folder; it is asked only when there is no `policy.model`.
    """
    setup = Setup(load, lambda words: announce(secrets.redact(words)), find_policy)
    found: dict[str, Finding] = {}
    for check in _chosen(checks, only):
        begin(check.name)
        missing = [name for name in check.needs if found[name].status in ("fail", "skipped")]
        if check.model and not use_model:
            finding = Finding("", "skipped", "looks at the model, which was to be left out")
        elif missing:
            finding = Finding("", "skipped", f"needs {' and '.join(missing)} to be in order first")
        else:
            finding = _look(check, setup)
        found[check.name] = finding = replace(_hushed(finding), name=check.name)
        yield finding


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when nothing failed; 2 for settings that their owner must mend, 3 when it is the world's
    alone."""
    failed = [one for one in findings if one.status == "fail"]
    return 0 if not failed else 3 if all(one.infrastructure for one in failed) else 2


def left_behind() -> list[str]:
    """The checks that still run behind their deadline. They end with the process, not before."""
    return [thread.name.removeprefix(_THREAD) for thread in threading.enumerate() if thread.name.startswith(_THREAD)]


def _chosen(checks: Sequence[Check], only: Sequence[str]) -> list[Check]:
    known = {check.name: check for check in checks}
    wanted: set[str] = set()

    def want(name: str) -> None:
        if name not in known:
            raise UserError(f"--only {name}: no such check. {did_you_mean(name, known)}")
        wanted.add(name)
        for needed in known[name].needs:
            want(needed)

    for name in only or known:
        want(name)
    return [check for check in checks if check.name in wanted]


def _look(check: Check, setup: Setup) -> Finding:
    """In a thread of its own: what never returns is left behind, and ends with the process."""
    results: list[Finding] = []

    def work() -> None:
        try:
            results.append(check.look(setup))
        except BaseException as error:
            results.append(_explain(error))

    began = time.monotonic()
    thread = threading.Thread(target=work, name=f"{_THREAD}{check.name}", daemon=True)
    thread.start()
    thread.join(check.deadline_s)
    late = fail(
        f"not done within {check.deadline_s:g} s",
        "Something that it waits for never answers: a server, a disk, or code of the recipe that does not end. Try "
        "that alone.",
        infrastructure=True,
    )
    return replace(results[0] if results else late, seconds=round(time.monotonic() - began, 3))


def _explain(error: BaseException) -> Finding:
    if isinstance(error, Skip):
        return Finding("", "skipped", str(error), error.remedy)
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _explain(error.exceptions[0])
    if isinstance(error, RftError):  # its message ends with the remedy
        return fail(str(error), "", infrastructure=isinstance(error, InfrastructureError))
    if isinstance(error, OSError):
        return fail(
            f"{type(error).__name__}: {error}",
            "A file, disk or network failed; mend that and look again.",
            infrastructure=True,
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return fail(
        f"{type(error).__name__}: {error}{where}",
        "Mend the code at that line; a recipe's code runs in the stages as it does here.",
    )


def _hushed(finding: Finding) -> Finding:
    """Without secrets: a server, or an exception, may have quoted them."""
    return replace(
        finding,
        words=secrets.redact(finding.words),
        remedy=secrets.redact(finding.remedy),
        facts=secrets.redact_json(finding.facts),
    )


__all__ = ["CHECKS", "Check", "Finding", "examine", "exit_code", "left_behind"]
