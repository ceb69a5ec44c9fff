"""The command `rft`. Nothing heavy is imported before a verb needs it, so that `rft --help` answers at once.

What goes wrong is one message behind `error: ` and an exit code that says whose it is: 2 the user's, 3 the world's, 130 Ctrl-C. A traceback is ours:
a bug. A ladder that stops with its numbers, or a gate that says no, is a success: 0.
"""

from __future__ import annotations

import argparse
import errno
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from rft.errors import RftError

ABOUT = """\
Retrains a tool-using agent on your own hardware, rung by rung: drift, baseline, prompt, RFT, gate, approval.

  rft demo                     the whole ladder on the example recipe
  rft new recipes/mine         a recipe of your own to start from
  rft run                      the ladder, as params.yaml says
  rft runs                     what ran, and how it ended
  rft report RUN               the page of a run
  rft approve RUN --by NAME --reason TEXT
"""
EPILOG = "Run it in a clone of agent-rft. RUN is a name from `rft runs`, or any part of one that is unique. `rft VERB --help` says more."


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return options.verb(options)
    except RftError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted. What was finished is kept: the same command goes on from there.", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _fail(f"the disk is full ({error.filename or error.strerror}). Free some space, then give the same command: it goes on.", 3)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="rft", description=ABOUT, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = top.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, function: Callable[[argparse.Namespace], int], words: str, more: str = "") -> argparse.ArgumentParser:
        found = verbs.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}. {more}".strip())
        found.set_defaults(verb=function)
        return found

    run = verb(
        "run", _run, "run the ladder", "An unfinished run of the same code, settings and window is adopted and goes on. Unchanged stages are skipped."
    )
    run.add_argument("--window", metavar="FILE", help="the window of traffic; of a pattern such as 'data/inbox/*.jsonl' the last by name")
    run.add_argument("--clean-only", action="store_true", help="refuse uncommitted work instead of taking it along")
    _settings(run)

    runs = verb("runs", _runs, "list the runs of this clone, newest first")
    runs.add_argument("-n", type=int, default=20, metavar="N", help="how many (default: 20)")

    stage = verb(
        "stage", _stage, "run one stage alone, in this folder", "What it reads must lie in data/ already. For trying things: nothing is recorded."
    )
    stage.add_argument("name", metavar="STAGE", help="a stage of dvc.yaml, such as baseline")

    report = verb("report", _report, "say where the page of a run is")
    report.add_argument("run", metavar="RUN")
    report.add_argument("--open", action="store_true", help="open it in the browser")

    approve = verb(
        "approve", _approve, "make a run's challenger the champion", "Only what the gate would promote. Every hash is verified before anything moves."
    )
    approve.add_argument("--override-dirty", action="store_true", help="take the responsibility for code that is in no branch")
    reject = verb("reject", _reject, "say no to what the gate would promote", "It cannot be approved any more.")
    rollback = verb("rollback", _rollback, "make the previous champion the champion again")
    for one in (approve, reject):
        one.add_argument("run", metavar="RUN")
    for one in (approve, reject, rollback):
        one.add_argument("--by", required=True, metavar="NAME", help="who decides")
        one.add_argument("--reason", required=True, metavar="TEXT", help="why; it stands in the ledger")
    _settings(rollback)

    up = verb(
        "up",
        _up,
        "serve the schedule of infra/schedule.yaml until Ctrl-C",
        "Prefect's pages are at the address that it prints, for this machine only.",
    )
    up.add_argument("--port", type=int, default=4200, help="of Prefect's server (default: 4200)")

    new = verb("new", _new, "write a recipe to start from", "A small working agent, and invented traffic for it.")
    new.add_argument("folder", metavar="FOLDER", help="inside the clone, such as recipes/mine")

    drift = verb("drift", _drift, "compare one window of traffic with what the champion knows", "Nothing else runs, and nothing is recorded.")
    drift.add_argument("window", metavar="FILE")
    _settings(drift)

    demo = verb("demo", _demo, "run the ladder on the example recipe and invented traffic", "Run again, it skips what has not changed.")
    demo.add_argument("--small", action="store_true", help="a few minutes instead of a quarter of an hour: too little to learn much")
    return top


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--params", metavar="FILE", help="settings other than the clone's params.yaml")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="one setting, such as train.steps=40; repeatable"
    )


def _run(options: argparse.Namespace) -> int:
    from flows import results, running

    record = running.climb(options.window, options.params, tuple(options.overrides), options.clean_only)
    results.show(running.here(), record)
    return 0


def _runs(options: argparse.Namespace) -> int:
    from flows import listing

    return listing.show(options.n)


def _stage(options: argparse.Namespace) -> int:
    from flows import running

    return running.one_stage(options.name)


def _report(options: argparse.Namespace) -> int:
    from flows import running

    return running.report(options.run, options.open)


def _approve(options: argparse.Namespace) -> int:
    from flows import deciding

    return deciding.approve(options.run, options.by, options.reason, options.override_dirty)


def _reject(options: argparse.Namespace) -> int:
    from flows import deciding

    return deciding.reject(options.run, options.by, options.reason)


def _rollback(options: argparse.Namespace) -> int:
    from flows import deciding

    return deciding.rollback(options.by, options.reason, options.params, tuple(options.overrides))


def _up(options: argparse.Namespace) -> int:
    from flows import deploy

    return deploy.up(options.port)


def _new(options: argparse.Namespace) -> int:
    from flows import new

    return new.write(options.folder)


def _drift(options: argparse.Namespace) -> int:
    from flows import lookout

    return lookout.show(options.window, options.params, tuple(options.overrides))


def _demo(options: argparse.Namespace) -> int:
    from flows import demo

    return demo.run(options.small)


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    """`kill` and a container's stop are a Ctrl-C: the stage is ended, the run recorded as interrupted."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
