"""The figure `newcomer`: can somebody bring their own agent with README and two more pages?

A script plays the newcomer in a fresh clone. It sets up, and writes a recipe with `rft new`. The
recorded patch beside this file turns the parcel agent into a ticket router (other tools, another
target, partial credit). Then the script goes from the doctor to a promotion, an export, a second
week and a rollback. It may type a command only if one of these pages or an earlier output holds it,
word for word. It fills in what stands there in capitals (a name, a reason, a run). So a printed
command that cannot be pasted fails here, and so does a step that is written nowhere.

Two things replace the newcomer's own work: the patch, and windows of traffic, which the patched
recipe's simulator invents.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Figure, Part, failed

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "newcomer"
PATCH = Path(__file__).with_suffix(".patch")
AGENT = "agents/mine"
PAGES = ("README.md", "docs/first_agent.md", "docs/cli.md")
"""What the newcomer has read."""
LIMIT_S = 2400.0
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.com"))
}
WINDOW = """
import datetime, sys
from pathlib import Path
from rft import config, recipe
params, path, day, drifted = sys.argv[1:]
ours = recipe.load(config.load(params).recipe)
start = datetime.date.fromisoformat(day)
ours.simulate(Path(path), start=start, days=7, conversations=600, drifted=drifted == "yes", seed=0)
"""


class Untold(Exception):
    """A command that neither README nor the program has shown."""


@dataclass
class Newcomer:
    """Types commands in `clone`, and remembers all that was read."""

    clone: Path
    log: Path
    read: str
    typed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def type(self, told: str, fill: Mapping[str, str] | None = None) -> str:
        """Run a command that was shown, with `fill` in place of its words in capitals. Returns its
        output. Raises Untold."""
        if _plain(told) not in _plain(self.read):
            raise Untold(told)
        command = told
        for word, value in (fill or {}).items():
            if word not in command:
                raise Untold(f"{told}: it has no {word} to fill in")
            command = command.replace(word, value)
        _print_line(f"$ {command}")
        self.typed.append(command)
        env = {**os.environ, **IDENTITY, "PATH": f"{self.clone / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}
        env |= _signing(self.clone.parent / "newcomer_key")
        env.pop("PYTHONPATH", None)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.clone,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        output = done.stdout + done.stderr
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {command}\n{output}[exit code {done.returncode}]\n")
        if done.returncode:
            self.failures.append(f"{command}: exit code {done.returncode}")
            _print_line(output[-2000:])
        self.read += "\n" + output
        return output

    def shown(self, output: str, pattern: str) -> str:
        """Return the command that an output shows: the only group of `pattern`. Raises Untold."""
        if not (found := re.search(pattern, output)):
            raise Untold(f"no output shows {pattern}")
        return found[1].strip()


def newcomer(args: list[str]) -> Figure:
    """Minutes from a clone to one's own agent, promoted and rolled back, and commands that failed
    on the way."""
    began = time.monotonic()
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    clone = PLACE / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    who = Newcomer(clone, PLACE / "newcomer.log", _told(clone))
    try:
        _story(who)
    except (Untold, subprocess.SubprocessError) as error:
        return failed("newcomer", f"{type(error).__name__}: {error}. See {who.log.relative_to(ROOT)}")
    parts = (
        Part("from a clone to the end of the story", (time.monotonic() - began) / 60, "min"),
        Part(
            "commands that failed",
            len(who.failures),
            "commands",
            at_most=0,
            n=len(who.typed),
            reason="; ".join(who.failures),
        ),
    )
    return Figure(parts, {"typed": [command.replace(str(clone), "CLONE") for command in who.typed]})


def _told(clone: Path) -> str:
    return "\n".join((clone / page).read_text(encoding="utf-8") for page in PAGES)


def _signing(key: Path) -> dict[str, str]:
    """Return Git's settings of a user who signs with an SSH key."""
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    wanted = {"gpg.format": "ssh", "user.signingkey": str(key)}
    rows = {f"GIT_CONFIG_KEY_{n}": name for n, name in enumerate(wanted)}
    rows |= {f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(wanted.values())}
    return {"GIT_CONFIG_COUNT": str(len(wanted)), **rows}


def _story(who: Newcomer) -> None:
    who.type("make setup")
    begun = who.type(f"rft new {AGENT}")
    subprocess.run(["git", "apply", str(PATCH)], cwd=who.clone, check=True)
    _window(who.clone, "2026-03-08", "2026-03-02", drifted=False)
    commit = who.shown(begun, r"(git -C .* commit .*)")
    who.type(commit)
    for verb in ("doctor", "doctor exploits"):
        who.type(who.shown(begun, rf"(rft --agent mine {verb} [^#\n]*)"))
    run_command = who.shown(begun, r"(rft --agent mine run [^#\n]*)")
    ended = who.type(run_command)
    run = who.shown(ended, r"Run +(\S+) \(finished\)")
    who.type("rft runs report RUN", {"RUN": run})
    who.type("rft play RUN", {"RUN": run})
    person = {"TEXT": "'right on more tickets'"}
    approved = who.type(who.shown(ended, r"Approve +(rft .*approve .*)"), person)
    who.type(who.shown(approved, r"(rft .*export .*)"))

    settings = who.clone / AGENT / "params.yaml"
    settings.write_text(settings.read_text(encoding="utf-8").replace("2026-03-08", "2026-03-15"), encoding="utf-8")
    _window(who.clone, "2026-03-15", "2026-03-09", drifted=True)
    who.type(commit)
    who.type(run_command)
    who.type("rft runs")
    who.type(who.shown(approved, r"(rft .*rollback .*)"), person)


def _window(clone: Path, ends: str, begins: str, drifted: bool) -> None:
    """Write a week of production traffic. No command does this."""
    arguments = ["params.yaml", f"data/inbox/{ends}.jsonl", begins, "yes" if drifted else "no"]
    subprocess.run([str(clone / ".venv/bin/python"), "-c", WINDOW, *arguments], cwd=clone / AGENT, check=True)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _print_line(message: str) -> None:
    print(f"[figure] {message}", file=sys.stderr, flush=True)


FIGURES = {"newcomer": newcomer}
