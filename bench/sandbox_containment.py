"""The figure of the sandbox: how many of the attacks escape from it?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench.measure import Figure, Part, failed
from bench.sandbox_attacks import ATTACKS
from bench.sandbox_scene import ROOT, Played, as_plain_user

MIN_ATTACKS = 25
"""Every row of the matrix, and at least ten more."""


def sandbox_containment(args: list[str]) -> Figure:
    """Escapes from the sandbox, as root and as a plain user. If that is safe, each attack is shown
    to succeed without it."""
    ways = {_user(): ([sys.executable, "-m", "bench.sandbox_scene"], {**os.environ})}
    if os.geteuid() == 0 and (plain := as_plain_user("-m", "bench.sandbox_scene")):
        ways["a plain user"] = plain
    parts: list[Part] = []
    for user, (argv, environment) in ways.items():
        done = subprocess.run(argv, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return failed("escapes", f"the attacks as {user} ended with {done.returncode}")
        parts += _parts(user, [Played(**json.loads(line)) for line in done.stdout.splitlines()])
    for user in {"root", "a plain user"} - ways.keys():
        why = "this is not root" if user == "root" else "no Python here can be run by a plain user"
        parts.append(Part(f"escapes as {user}", None, "attacks", at_most=0, n=0, reason=why))
    whole = [part for part in parts if part.name.startswith("escapes") and part.value is not None]
    total = Part("escapes", sum(part.value or 0 for part in whole), "attacks", at_most=0, n=sum(p.n for p in whole))
    rows = sum(attack.row for attack in ATTACKS)
    return Figure((total, *parts), {"rows of the matrix among the attacks": rows})


def _parts(user: str, results: list[Played]) -> list[Part]:
    for played in results:
        mark = "ESCAPED" if played.escaped else "held"
        control = {True: "succeeds without", False: "fails without", None: "not tried without"}[played.control]
        print(f"{user:13} {mark:8} {control:18} {played.name}: {played.says}", file=sys.stderr)
    escaped = [played.name for played in results if played.escaped]
    blunt = [played.name for played in results if played.needs_control and not played.control]
    return [
        Part(f"escapes as {user}", len(escaped), "attacks", at_most=0, n=len(results), reason=", ".join(escaped)),
        Part(f"attacks as {user}", len(results), "attacks", at_least=MIN_ATTACKS),
        Part(
            f"attacks as {user} that fail without a sandbox too",
            len(blunt),
            "attacks",
            at_most=0,
            n=sum(played.needs_control for played in results),
            reason=", ".join(blunt),
        ),
    ]


def _user() -> str:
    return "root" if os.geteuid() == 0 else "a plain user"


FIGURES = {"sandbox_containment": sandbox_containment}
