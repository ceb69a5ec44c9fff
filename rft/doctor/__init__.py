"""`rft doctor`: find what would go wrong before any compute is spent.

Most worthless training runs could have been spotted in a minute. A key is misspelt, or a grader
scores the empty answer. A tool server shows one rollout what another did. A chat template rewrites
the past, or float32 rounds the learning rate away. Each has a check. `examine` runs the checks in a
fixed order, and tells for each what it saw and what to do:

    configuration.py    all keys are known and honored, none contradicts another, and every secret
                        is in the environment
    contents.py         the recipe: examples, splits, routes of tools, where the policy comes from
    refresh.py          whether the window's graded conversations can become training examples
    tools.py            tools at the declared burst; two trace ids that must not see each other
    sandbox.py          what the sandbox guarantees in which a grader's source runs
    grader.py           the grader at the declared burst; one body, one score; exploits refused
    wire.py             how tools and grader are opened and asked
    serving.py          the policy's server, if there is one: a turn, a burst of turns, an adapter
    notify.py           the servers through which people are told; nothing is sent
    template.py         prefixes kept from turn to turn, calls read back, room in the context
    capacity.py         memory and disk, estimated from the model's shape alone; what a
                        microbatch's passes need is in rft/trainer/activations.py
    learning.py         one optimizer step, in memory: weights change, the base does not, sampler
                        and trainer agree
    rate.py             a learning rate that will collapse the policy, or teach it nothing
    hours.py            roughly how long each stage will take, at the speed of that step

The checks share what they look at, which is read once (setup.py), and the form of a finding
(finding.py). `rft doctor speed` measures the speed more closely (speed.py), and compares it with
the machine's limits (machine.py).

A check can neither hang nor crash the doctor. It runs in a thread that is left behind at its
deadline, and an exception becomes its finding. A check is skipped, with the reason, when a check
that it `needs` did not pass, or when there is no model yet. So are checks of a model that a
chat-completions server holds. No written file stays.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rft import config, secrets
from rft.doctor import (
    capacity,
    configuration,
    contents,
    grader,
    learning,
    notify,
    refresh,
    sandbox,
    serving,
    template,
    tools,
)
from rft.doctor.finding import Finding, Skip, fail
from rft.doctor.setup import Setup
from rft.errors import InfrastructureError, RftError, UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[Setup], Finding]
    deadline_s: float
    needs: tuple[str, ...] = ()
    model: bool = False
    """Whether it looks at the policy's model, which `--no-model` leaves out."""


_THREAD = "doctor: "
_AT_THE_SERVER = "does not apply: the server renders the prompts and holds the model"

CHECKS = (
    Check("configuration", configuration.check, 20),
    Check("prompt", configuration.prompt, 20, ("configuration",)),
    Check("recipe", contents.check, 120, ("configuration",)),
    Check("refresh", refresh.check, 120, ("recipe",)),
    Check("tools", tools.tools, 180, ("recipe",)),
    Check("sandbox", sandbox.check, 60, ("recipe",)),
    Check("grader", grader.grader, 600, ("recipe", "sandbox")),
    Check("isolation", tools.isolation, 180, ("tools",)),
    Check("server", serving.check, 180, ("recipe",)),
    Check("notify", notify.check, 30, ("configuration",)),
    Check("template", template.check, 180, ("recipe",), model=True),
    Check("capacity", capacity.check, 120, ("configuration",), model=True),
    Check("step", learning.check, 600, ("recipe", "capacity"), model=True),
)


def examine(
    load: Callable[[], config.Params],
    only: Sequence[str] = (),
    use_model: bool = True,
    begin: Callable[[str], None] = lambda name: None,
    checks: Sequence[Check] = CHECKS,
    announce: Callable[[str], None] = lambda message: None,
    find_policy: Callable[[config.Params], Path | None] = lambda params: None,
) -> Iterator[Finding]:
    """Yield one finding per check, when the check ends.

    `load` reads params.yaml. `only` names checks; they run with those that they need. `announce` is
    told how many calls go where, in the check's own thread and before anything is sent.
    `find_policy` may find files of stage `policy` outside of this folder that were made from the
    same settings. It is not asked for a given model without a warm start.
    """
    setup = Setup(load, lambda message: announce(secrets.redact(message)), find_policy)
    found: dict[str, Finding] = {}
    for check in _chosen(checks, only):
        begin(check.name)
        why = _left_out(check, setup, use_model, found)
        finding = Finding("", "skipped", why) if why else _once(_hushed(_run(check, setup)), found)
        found[check.name] = finding = replace(_hushed(finding), name=check.name)
        yield finding


def _left_out(check: Check, setup: Setup, use_model: bool, found: Mapping[str, Finding]) -> str:
    """Say why the check does not run. Empty if it runs."""
    if check.model and not use_model:
        return "looks at the model, which --no-model leaves out"
    needed = {name: found[name] for name in check.needs}
    missing = [
        name for name, one in needed.items() if one.status in ("fail", "skipped") and one.words != _AT_THE_SERVER
    ]
    if missing:
        return f"needs {' and '.join(missing)} to pass first"
    return _AT_THE_SERVER if check.model and setup.is_behind_chat else ""


def _once(finding: Finding, found: Mapping[str, Finding]) -> Finding:
    """Report the same failure only once. Several checks open the same servers, and all fail alike
    if one does not answer."""
    same = (name for name, other in found.items() if (other.status, other.words) == ("fail", finding.words))
    if finding.status == "fail" and (first := next(same, None)):
        return Finding("", "skipped", f"ended as {first} did", seconds=finding.seconds)
    return finding


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 if nothing failed, 3 if only infrastructure failed, else 2: settings to fix."""
    failed = [finding for finding in findings if finding.status == "fail"]
    if not failed:
        return 0
    return 3 if all(finding.infrastructure for finding in failed) else 2


def left_behind() -> list[str]:
    """List the checks that still run after their deadline. They end only with the process."""
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


def _run(check: Check, setup: Setup) -> Finding:
    """Run the check in its own thread. A check that never returns ends with the process."""
    results: list[Finding] = []

    def work() -> None:
        try:
            results.append(check.run(setup))
        except BaseException as error:
            results.append(_explain(error))

    began = time.monotonic()
    thread = threading.Thread(target=work, name=f"{_THREAD}{check.name}", daemon=True)
    thread.start()
    thread.join(check.deadline_s)
    late = fail(
        f"not finished within {check.deadline_s:g} s",
        "It waits for something that never answers: a server, a disk, or endless code of the recipe. Try that alone.",
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
        description = f"{type(error).__name__}: {error}"
        return fail(description, "A file, disk or network failed; fix that and try again.", infrastructure=True)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return fail(
        f"{type(error).__name__}: {error}{where}",
        "Fix the code at that line: a recipe's code runs in the stages as it does here.",
    )


def _hushed(finding: Finding) -> Finding:
    """Remove secrets, which a server or an exception may have quoted."""
    return replace(
        finding,
        words=secrets.redact(finding.words),
        remedy=secrets.redact(finding.remedy),
        facts=secrets.redact_json(finding.facts),
    )


__all__ = ["CHECKS", "Check", "Finding", "examine", "exit_code", "left_behind"]
