"""The command `rft`: the table of its verbs, and what all of them have in common.

Each verb is a module of this package. Its docstring is its help (the first line is also shown in
the list of verbs, and indented lines keep their breaks). `add` adds its options; `run` does the
work, prints the output and returns the exit code. Options of several verbs are in `options`.

Only the verb that was typed is loaded; of the others `rft --help` reads the docstring. None imports
torch, Prefect or MLflow at the top: most verbs need none of them, and they take seconds.

An error is one message after `error: `, and the exit code says whose it is: 2 the user's, 3 the
world's, 130 Ctrl-C. A traceback is a bug of ours. Nothing that is printed here holds a secret
(`rft.secrets`). A run that was stopped in order (run.max_hours, `rft cancel`) says `stopped: ` and
exits with 4. A ladder that stops with its numbers, or a gate that says no, is a success: 0.
"""

from __future__ import annotations

import argparse
import ast
import errno
import importlib
import os
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType

from rft import commands, secrets
from rft.errors import RftError, Stopped, UserError
from rft.process import ROOT

VERBS = (
    "run", "runs", "extend", "baseline", "doctor", "bench", "stage", "engine", "exploits", "serve-tools", "report",
    "cancel", "gc", "approve", "reject", "rollback", "champion", "audit", "ledger", "people", "policy", "export",
    "play", "rollouts", "replay", "up", "init", "new", "agents", "upgrade", "invent", "model", "ingest", "drift",
    "demo", "backup", "restore",
)  # fmt: skip
"""In the order of `rft --help`."""
ABOUT = """\
Retrain a tool-using agent on your own hardware, stage by stage: drift, baseline, prompt, RFT, gate, approval.

  rft demo                     run the whole ladder on the example recipe, in a clone of agent-rft
  rft init                     make a repository of your own a workspace
  rft new agents/mine          create an agent of your own to start from
  rft baseline                 how good is the agent today? Rows, tools and a grader are enough
  rft doctor                   check for what would go wrong, in a minute
  rft run                      run the ladder with the settings in params.yaml
  rft runs                     list the runs, and how they ended
  rft runs compare A B         show two runs side by side
  rft report RUN               print where the report of a run is
  rft cancel RUN               stop a run in order
  rft approve RUN --reason TEXT
  rft play                     talk to the champion
  rft export champion FOLDER   export what is needed to serve it elsewhere
"""
EPILOG = (
    "Run it in a workspace (`rft init`) or in a clone of agent-rft. RUN is a name from `rft runs`, or any unique part "
    "of one. "
    "`rft VERB --help` says more."
)


def main(argv: Sequence[str] | None = None) -> int:
    secrets.guard()
    where, argv = _which().parse_known_args(sys.argv[1:] if argv is None else argv)
    options = parser(next((word for word in argv if not word.startswith("-")), "")).parse_args(argv)
    commands.remember(program=_program(), settings=())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _go(where)
        return options.verb(options)
    except Stopped as stop:
        return _fail(str(stop), stop.exit_code, "stopped")
    except RftError as error:
        return _fail(str(error) + _remedy(str(error)), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted. Finished work is kept: the same command goes on from there.", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if full := _full_disk(error):
            return _fail(f"the disk is full ({full}). Free some space, then run the same command: it goes on.", 3)
        if not (refused := _refused(error)):
            raise
        return _fail(refused, 3)


_REMEDIES = {
    "No space left on device": "Free some space",
    "Read-only file system": "Make it writable again",
    "Operation not permitted": "Let this user write there",
    "Permission denied": "Let this user write there",
}
"""What Git's and DVC's own words do not say."""


def _remedy(message: str) -> str:
    known = next((remedy for part, remedy in _REMEDIES.items() if part in message), None)
    return f"\n{known}, then run the same command: it goes on." if known and "same command" not in message else ""


def _full_disk(error: BaseException | None) -> str:
    """Name what ran out of space, from the chain of causes; empty if the disk is not full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return str(error.filename or error.strerror)
        if "database or disk is full" in str(error):
            return "a database"
        if isinstance(error, shutil.Error) and f"[Errno {errno.ENOSPC}]" in str(error):
            return "while a folder was copied"
        error = error.__cause__ or error.__context__
    return ""


def _refused(error: Exception) -> str:
    """Say which file or folder the system refused to this user; empty if it was something else."""
    if not isinstance(error, OSError) or error.filename is None:
        return ""
    if error.errno == errno.EROFS:
        return f"{error.filename}: {error.strerror}. Mount it writable, or work in a clone that lies elsewhere."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
        return f"{error.filename}: {error.strerror}. Work as the user whose it is, or let this one read and write it."
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"{error.filename}: {error.strerror}, and something else is needed there. Move it away, or restore it."
    return ""


def _which() -> argparse.ArgumentParser:
    """Return the parser of what says where a verb works; it may stand before or after the verb."""
    which = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    which.add_argument("-C", dest="folder", metavar="FOLDER", help="work as if started in this folder")
    which.add_argument("--agent", metavar="NAME", help="the agent to work on (default: that of the current folder)")
    return which


def _go(where: argparse.Namespace) -> None:
    if where.folder is not None:
        try:
            os.chdir(where.folder)
        except OSError as error:
            raise UserError(f"-C {where.folder}: {error.strerror}. Name a folder that is there.") from None
    if where.agent is not None:
        os.environ[commands.AGENT] = where.agent


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"agent-rft {metadata.version('agent-rft')}, {ROOT}")
        parser.exit()


def parser(typed: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all verbs, with the options of the one that was typed alone. None: of
    all."""
    top = argparse.ArgumentParser(
        prog="rft", description=ABOUT, epilog=EPILOG, formatter_class=_VerbsFormatter, parents=[_which()]
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version, and where it is installed")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for name in VERBS:
        module = name.replace("-", "_")
        text = _docstring(Path(__file__).with_name(f"{module}.py"))
        first = text.partition("\n")[0].rstrip(".")
        form = _VerbFormatter if "\n  " in text else argparse.HelpFormatter
        own = verbs.add_parser(name, help=first[:1].lower() + first[1:], description=text, formatter_class=form)
        if typed in (name, None):
            verb = importlib.import_module(f"flows.cli.{module}")
            own.set_defaults(verb=verb.run)
            verb.add(own)
    return top


def _docstring(file: Path) -> str:
    """Return a verb's help without loading it. It stands at the top of its file."""
    _, quotes, text = file.read_text(encoding="utf-8").partition('"""')
    return ast.literal_eval(f'"""{text.partition(quotes)[0]}"""').strip()


class _VerbFormatter(argparse.RawDescriptionHelpFormatter):
    """Wrap paragraphs to the terminal. Indented ones are examples, and stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if part.startswith("  ") else textwrap.fill(part, width) for part in parts)


class _VerbsFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves room for the verbs' indentation, which Python 3.11 forgets: the longest verb would get
    a line of its own."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        self._action_max_length = max(self._action_max_length, 4 + max(map(len, VERBS)))


def _program() -> str:
    """Return how this user starts us, quoted: `rft` if the shell finds this very one, else what was
    typed, or the one beside our Python."""
    typed = Path(sys.argv[0])
    if typed.parts[-2:] == ("cli", "__main__.py"):
        return shlex.join([sys.executable, "-m", "flows.cli"])
    ours = typed.absolute() if typed.name == "rft" and typed.is_file() else Path(sys.executable).with_name("rft")
    found = shutil.which("rft")
    if found and ours.exists() and Path(found).samefile(ours):
        return "rft"
    here = Path.cwd()
    if ours.parent == here:
        return shlex.quote(f"./{ours.name}")
    return shlex.quote(str(ours.relative_to(here) if ours.is_relative_to(here) else ours))


def _fail(message: str, code: int, word: str = "error") -> int:
    sys.stdout.flush()
    print(f"{word}: {message}", file=sys.stderr, flush=True)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    """Treat `kill` and a container's stop as Ctrl-C: the stage ends, the run is interrupted."""
    raise KeyboardInterrupt
