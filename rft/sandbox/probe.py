"""Find out what this machine can guarantee, by making one small sandbox.

The kernel's version and settings, a security module and the container around us decide whether the
kernel allows namespaces, an overlay or a filter. No file says it reliably. So the first use in a
process makes a small sandbox, and checks from inside what holds. The result is kept.

Each guarantee is held or not held. It says what holds it, or why it is not held and what to do. If
one is not held, `require` refuses to run code that nobody has read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rft.errors import InfrastructureError
from rft.sandbox import call, command, limits, programs, seccomp, workspace
from rft.sandbox.call import Call, Means
from rft.sandbox.limits import Limits
from rft.sandbox.workspace import Base, Mode, Workspace

INSTALL = "Install bubblewrap (Debian and Ubuntu: `apt-get install bubblewrap`; Fedora: `dnf install bubblewrap`)."
ALLOW = (
    "Allow user namespaces: set user.max_user_namespaces above 0 by sysctl, on Debian also "
    "kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0. "
    "A container must be started with the right to make them."
)
_REPORT = r"""
printf '{"capabilities": "%s", ' "$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)"
printf '"filter": "%s", ' "$(sed -n 's/^Seccomp:[[:space:]]*//p' /proc/self/status)"
printf '"interfaces": "%s", ' "$(sed -n 's/^ *\([^: ]*\):.*/\1/p' /proc/net/dev | tr '\n' ' ')"
printf '"folders": "%s"}' "$(ls / | tr '\n' ' ')"
"""
"""Reports, from inside, what a program sees of its rights, its network and its files."""
_REPLACE = 'rm -r folder; mkdir folder; [ -z "$(ls folder)" ]'
"""Replaces a folder of the base. That needs marks which not every file system can hold."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Something that a sandbox promises: `Guarantee("network", True, "loopback only")`."""

    name: str
    held: bool
    why: str
    """What holds it; or why it is not held, and what to do."""


@dataclass(frozen=True, slots=True)
class Info:
    """What a sandbox on this machine guarantees."""

    level: str
    """`bubblewrap`, or `none`: no sandbox can be made."""
    guarantees: tuple[Guarantee, ...]

    def missing(self) -> list[Guarantee]:
        return [guarantee for guarantee in self.guarantees if not guarantee.held]

    def require(self, allow_weaker: bool = False) -> None:
        """Raises InfrastructureError if a guarantee is not held. `allow_weaker` accepts that,
        unless no sandbox can be made at all."""
        missing = self.missing()
        if missing and (self.level == "none" or not allow_weaker):
            what = "; ".join(f"{guarantee.name}: {guarantee.why}" for guarantee in missing)
            raise InfrastructureError(f"A sandbox would not contain code that nobody has read. {what}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What works on this machine, and what it guarantees."""

    info: Info
    means: Means
    mode: Mode


_found: dict[int, Machine] = {}


async def machine() -> Machine:
    """Return what works on this machine. The first call in a process finds it out."""
    user = os.geteuid()
    if user not in _found:
        _found[user] = await _probe()
    return _found[user]


async def _probe() -> Machine:
    mode = workspace.mode_of_this_process()
    nothing = Means(limits.Watchdog())
    if missing := programs.missing():
        return Machine(_none(f"{', '.join(missing)}: not found. {INSTALL}"), nothing, mode)
    features = command.Features(disable_userns=_version() >= (0, 8))
    try:
        program = seccomp.program()
    except InfrastructureError:
        program = None
    means = Means(limits.best(), features, program)
    try:
        try:
            seen = await _reported(means, mode, _REPORT + _REPLACE)
        except InfrastructureError:
            mode = replace(mode, overlay=False)
            seen = await _reported(means, mode, _REPORT)
    except InfrastructureError as error:
        return Machine(_none(f"{error} {ALLOW}"), nothing, mode)
    return Machine(Info("bubblewrap", tuple(_judge(seen, means, mode))), means, mode)


async def _reported(means: Means, mode: Mode, script: str) -> dict[str, str]:
    """Run a script in a small sandbox and return what it reports. Raises InfrastructureError."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "folder").mkdir()
        (Path(name) / "folder" / "file").touch()
        base = await Base.of_folder(Path(name), mode=mode)
    place = None
    try:
        place = await Workspace.create(base, 2**20)
        outcome = await call.run(means, place, Limits(), Call(["/bin/sh", "-ec", script]))
    finally:
        base.close()
        if place is not None:
            place.close()
    if outcome.returncode:
        errors = outcome.stderr.decode("utf-8", "replace").strip()[-500:]
        raise InfrastructureError(f"A shell in a sandbox ended with {outcome.returncode}: {errors}")
    return json.loads(outcome.stdout)


def _version() -> tuple[int, ...]:
    """Return the version of bubblewrap, such as (0, 8, 0)."""
    text = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", text)))


def _judge(seen: dict[str, str], means: Means, mode: Mode) -> Iterator[Guarantee]:
    """Yield each guarantee, judged by what was seen inside."""
    folders = set(seen["folders"].split())
    strange = folders - {"usr", "etc", "proc", "dev", "tmp", "ws", *(name.strip("/") for name in command.SYSTEM)}
    yield Guarantee(
        "files", not strange, f"the host's {', '.join(sorted(strange))} are seen" if strange else "an empty root"
    )
    interfaces = seen["interfaces"].split()
    yield Guarantee("network", interfaces == ["lo"], f"the interfaces inside are {', '.join(interfaces)}")
    yield Guarantee(
        "rights",
        int(seen["capabilities"], 16) == 0,
        "no capabilities, no user namespaces inside, "
        + ("an ordinary user" if mode.user_namespace else f"user {mode.uid} instead of root"),
    )
    filtered = means.filter_program is not None and seen["filter"] == "2"
    why = "a filter that denies what no program needs" if filtered else "there is no filter for this machine"
    yield Guarantee("system calls", filtered, why)
    yield Guarantee("processes", True, f"their own numbers, counted per sandbox ({means.fence.name})")
    together = "counted together" if means.fence.counts_together else "each limited, their sum watched"
    yield Guarantee("memory", True, f"{means.fence.name}: {together}")
    files = "an overlay" if mode.overlay else "a copy of the base, because the kernel refuses an overlay"
    yield Guarantee("disk", True, f"{files} in a tmpfs of limited size")
    yield Guarantee("end", True, "all processes end with the call, at its deadline, and with this process")


def _none(why: str) -> Info:
    return Info("none", (Guarantee("sandbox", False, why),))
