"""The command `rft`: the table of its verbs, and what all of them have in common.

Each verb is a module of this package: its docstring is its help (the first line also stands in the
list of verbs, and indented lines keep their breaks), `add` adds its options, and `run` does it,
prints what there is to say, and returns the exit code. Options that several verbs take are in
`options`.

All of them are loaded for `rft --help`, so none imports anything heavy at its top: not Prefect or
torch, nor even the settings. Functions import what they need.

What goes wrong is one message behind `error: ` and an exit code that says whose it is: 2 the
user's, 3 the world's, 130 Ctrl-C. A traceback is ours: a bug; like all that is printed here it
holds no secret (`rft.secrets`). A run that stopped in order before its end (run.max_hours, `rft
cancel`) says `stopped: `, with exit code 4. A ladder that stops with its numbers, or a gate that
says no, is a success: 0.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rft import commands, secrets
from rft.errors import RftError, Stopped

VERBS = (
    *(
        "run",
        "runs",
        "doctor",
        "stage",
        "exploits",
        "serve-tools",
        "report",
        "cancel",
        "gc",
        "approve",
        "reject",
        "rollback",
    ),
    *("export", "play", "rollouts", "replay", "up", "new", "drift", "demo"),
)
"""In the order of `rft --help`."""
ABOUT = """\
Retrains a tool-using agent on your own hardware, rung by rung: drift, baseline, prompt, RFT, gate, approval.

  rft demo                     the whole ladder on the example recipe
  rft new recipes/mine         a recipe of your own to start from
  rft doctor                   what would go wrong, told in a minute
  rft run                      the ladder, as params.yaml says
  rft runs                     what ran, and how it ended
  rft report RUN               the page of a run
  rft cancel RUN               end a run before its end
  rft approve RUN --by NAME --reason TEXT
  rft play                     a word with the champion
  rft export champion FOLDER   what is needed to serve it elsewhere
"""
EPILOG = (
    "Run it in a clone of agent-rft. RUN is a name from `rft runs`, or any part of one that is unique. `rft VERB "
    "--help` says more."
)


def main(argv: Sequence[str] | None = None) -> int:
    secrets.guard()
    options = parser().parse_args(argv)
    commands.remember(program=_program(), settings=())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return options.verb(options)
    except Stopped as stop:
        return _fail(str(stop), stop.exit_code, "stopped")
    except RftError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted. What was finished is kept: the same command goes on from there.", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if not (full := _full_disk(error)):
            raise
        return _fail(f"the disk is full ({full}). Free some space, then give the same command: it goes on.", 3)


def _full_disk(error: BaseException | None) -> str:
    """What says so in the chain of causes: the file system itself, or a database on it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return str(error.filename or error.strerror)
        if "database or disk is full" in str(error):
            return "a database"
        error = error.__cause__ or error.__context__
    return ""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="rft", description=ABOUT, epilog=EPILOG, formatter_class=_VerbsFormatter)
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for name in VERBS:
        verb = importlib.import_module(f"flows.cli.{name.replace('-', '_')}")
        told = (verb.__doc__ or "").strip()
        first = told.partition("\n")[0].rstrip(".")
        form = _VerbFormatter if "\n  " in told else argparse.HelpFormatter
        own = verbs.add_parser(name, help=first[:1].lower() + first[1:], description=told, formatter_class=form)
        own.set_defaults(verb=verb.run)
        verb.add(own)
    return top


class _VerbFormatter(argparse.RawDescriptionHelpFormatter):
    """Wrap paragraphs to the terminal. Indented ones are examples, and stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if part.startswith("  ") else textwrap.fill(part, width) for part in parts)


class _VerbsFormatter(argparse.RawDescriptionHelpFormatter):
    """Leave room for the indentation of the verbs, which Python 3.11 forgets: the longest would get
    its own line."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        self._action_max_length = max(self._action_max_length, 4 + max(map(len, VERBS)))


def _program() -> str:
    """How this user starts us, quoted: `rft` where the shell would find this very one, else what
    was typed, or the one beside our Python."""
    typed = Path(sys.argv[0])
    if typed.parts[-2:] == ("cli", "__main__.py"):
        return shlex.join([sys.executable, "-m", "flows.cli"])
    ours = typed.absolute() if typed.name == "rft" and typed.is_file() else Path(sys.executable).with_name("rft")
    found = shutil.which("rft")
    if found and ours.exists() and Path(found).samefile(ours):
        return "rft"
    here = Path.cwd()
    return shlex.quote(
        f"./{ours.relative_to(here)}"
        if ours.parent == here
        else str(ours.relative_to(here) if ours.is_relative_to(here) else ours)
    )


def _fail(message: str, code: int, word: str = "error") -> int:
    sys.stdout.flush()
    print(f"{word}: {message}", file=sys.stderr, flush=True)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    """`kill` and a container's stop are a Ctrl-C: the stage is ended, the run recorded as
    interrupted."""
    raise KeyboardInterrupt
