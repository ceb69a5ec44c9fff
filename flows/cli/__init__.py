"""The command `rft`: from the words that were typed to the verb that does the work.

`table` lists the verbs, and `parsing` makes a parser of them. Each verb is a module of this
package, or of the package of the word above it. Its docstring is its help: the first line stands on
the first screen, and indented lines keep their breaks. `add` adds its options. `run` does the work,
prints the output and returns the exit code. `options` has the options that several verbs take,
`page` writes docs/cli.md, and `completion` writes what a shell needs to complete a command.

Only the verb that was typed is loaded. None imports torch, Prefect or MLflow at the top: most verbs
need none of them, and they take seconds.

An error is one message after `error: `, and the exit code says whose it is: 2 the user's, 3 the
world's, 130 Ctrl-C. A traceback is a bug of ours. Nothing that is printed here holds a secret
(`rft.secrets`). A run that was stopped in order (run.max_hours, `rft runs cancel`) says `stopped: `
and exits with 4. A ladder that stops with its numbers, or a gate that says no, is a success: 0.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from flows.cli import parsing, table
from rft import commands, secrets
from rft.errors import RftError, Stopped, UserError


def main(argv: Sequence[str] | None = None) -> int:
    secrets.guard()
    where, words = parsing.which().parse_known_args(sys.argv[1:] if argv is None else argv)
    commands.remember(program=_program(), settings=())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        words = table.understood(words)
        options, unknown = parsing.parser(words).parse_known_args(words)
        if unknown:
            options.parser.refuse(unknown[0])
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
"""A part of Git's or DVC's message -> the remedy that the message does not name."""


def _remedy(message: str) -> str:
    known = next((remedy for part, remedy in _REMEDIES.items() if part in message), None)
    return f"\n{known}, then run the same command: it goes on." if known and "same command" not in message else ""


def _full_disk(error: BaseException | None) -> str:
    """Name what ran out of space, from the chain of causes. Empty: the disk is not full."""
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
    """Say which file or folder the system refused to this user. Empty: it was something else."""
    if not isinstance(error, OSError) or error.filename is None:
        return ""
    if error.errno == errno.EROFS:
        return f"{error.filename}: {error.strerror}. Mount it writable, or work in a clone that lies elsewhere."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
        return f"{error.filename}: {error.strerror}. Work as the user who owns it, or let this one read and write it."
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"{error.filename}: {error.strerror}, and something else is needed there. Move it away, or restore it."
    return ""


def _go(where: argparse.Namespace) -> None:
    if where.folder is not None:
        try:
            os.chdir(where.folder)
        except OSError as error:
            raise UserError(f"-C {where.folder}: {error.strerror}. Name a folder that exists.") from None
    if where.agent is not None:
        os.environ[commands.AGENT] = where.agent


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
