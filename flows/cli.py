"""The command `rft`. Nothing heavy is imported before a verb needs it, so that `rft --help` answers at once.

What goes wrong is one message behind `error: ` and an exit code that says whose it is: 2 the user's, 3 the world's, 130 Ctrl-C. A traceback is ours:
a bug; like all that is printed here it holds no secret (`rft.secrets`). A run that stopped in order before its end (run.max_hours, `rft cancel`) says
`stopped: `, with exit code 4. A ladder that stops with its numbers, or a gate that says no, is a success: 0.
"""

from __future__ import annotations

import argparse
import errno
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from rft import commands, secrets
from rft.errors import RftError, Stopped

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
ROLLOUTS = """

Every stage with a policy keeps all its rollouts: whole dialogues, grades, tokens.

  rft rollouts                                   the newest run's
  rft rollouts RUN --stage train --worst 5       what went wrong most
  rft rollouts --where "stop_reason = 'max_tokens' AND num_turns > 3"
  rft rollouts --show 3f2a --tokens              one dialogue, with grade and tokens
  rft rollouts --group n-0007 --stage train      one example's rollouts side by side
  rft rollouts --summary                         what was trained on, and why the rest was not
  rft rollouts --live                            while a stage works
"""
REPLAY = """

The scores of then beside those of now. What ended in an outage stays unscored; nothing in the run changes. The settings are the run's own, with
--set; --params names others.

  rft replay --grader recipes/mine/grader.json
  rft replay RUN --stage challenger --grader stricter.json --out both.parquet
"""
EXPORT = """

FOLDER must not exist yet. VERSION is a number of the registry, champion or previous; RUN is what a run's gate judged, approved or not.

  rft export champion exports/today              the adapter as trained, and its base model or its name
  rft export 2 exports/v2 --merge                one whole model, in the dtype that it was judged in
  rft export RUN exports/look --merge --dtype float32
"""
PLAY = """

Without RUN: with the champion of the recipe that params.yaml names. Its tools are served as in a stage, by the settings of its own run.

  rft play                                       a line is what you say; /quit or the end of input ends it
  rft play RUN --temperature 0                   with what a run's gate judged
  rft play --example ID                          begin with a validation example, and see the grade
  rft play --once "value of k0001"               one exchange, for scripts
"""
EPILOG = "Run it in a clone of agent-rft. RUN is a name from `rft runs`, or any part of one that is unique. `rft VERB --help` says more."


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
    runs.add_argument("--all", action="store_true", help="each attempt in a row of its own, also those that a later one went on with")
    runs.add_argument("-n", type=int, default=20, metavar="N", help="how many (default: 20)")

    doctor = verb(
        "doctor",
        _doctor,
        "look for what would go wrong, before any compute is spent",
        "Settings, recipe, tools, grader, template, memory, one optimizer step. Exit code 0: go on; 2: mend the settings; 3: the world failed.",
    )
    doctor.add_argument("--only", metavar="CHECK", action="append", default=[], help="this check and those that it needs; repeatable")
    doctor.add_argument("--no-model", action="store_true", help="leave out what looks at the policy's model: a quick look")
    doctor.add_argument("--json", action="store_true", help="one JSON object for scripts: checks and ok")
    doctor.add_argument("--show-resolved", action="store_true", help="print all settings as they hold, defaults included, and look at nothing")
    _settings(doctor)

    stage = verb(
        "stage", _stage, "run one stage alone, in this folder", "What it reads must lie in data/ already. For trying things: nothing is recorded."
    )
    stage.add_argument("name", metavar="STAGE", help="a stage of dvc.yaml, such as baseline")
    _settings(stage)

    exploits = verb(
        "exploits",
        _exploits,
        "play the recipe's cheats, and some of ours, against its grader",
        "Exit code 2 when the grader accepts one, or refuses a target. Training makes the same check, and would refuse to start.",
    )
    exploits.add_argument(
        "--examples",
        type=_count,
        metavar="N",
        help="training examples to play each cheat on (default: 24; up to 144 where grader.json declares chance, to tell luck from a leak)",
    )
    _settings(exploits)

    report = verb("report", _report, "say where the page of a run is")
    report.add_argument("run", metavar="RUN")
    report.add_argument("--open", action="store_true", help="open it in the browser")

    cancel = verb(
        "cancel",
        _cancel,
        "end a run before its end, in order, and for good",
        "It stops at its next checkpoint and is recorded. A new run takes up what it did.",
    )
    cancel.add_argument("run", metavar="RUN")
    cancel.add_argument("--now", action="store_true", help="do not wait for the checkpoint: end its stage at once")
    cancel.add_argument("--wait", type=_seconds, default=600.0, metavar="SECONDS", help="how long to wait for its end (default: 600)")

    gc = verb(
        "gc",
        _gc,
        "remove what is past its retention: worktrees, unfinished work, logs, pages, bytes of old runs",
        "Section run.retention of params.yaml says how old. Without --yes it says what it would remove, and asks. Revisions, the ledger, and what a "
        "champion, a request or an unfinished run needs stay.",
    )
    gc.add_argument("--yes", action="store_true", help="remove it without asking")
    _settings(gc)

    approve = verb(
        "approve", _approve, "make a run's challenger the champion", "Only what the gate would promote. Every hash is verified before anything moves."
    )
    approve.add_argument("--override-dirty", action="store_true", help="take the responsibility for code that is in no branch")
    reject = verb("reject", _reject, "say no to what the gate would promote", "It cannot be approved any more.")
    rollback = verb(
        "rollback",
        _rollback,
        "make the previous champion the champion again",
        "Of the model that you name; if you name none, of the only one that was ever promoted here.",
    )
    rollback.add_argument("--model", metavar="NAME", help="a registered model: the name of its recipe's folder")
    for one in (approve, reject):
        one.add_argument("run", metavar="RUN")
    for one in (approve, reject, rollback):
        one.add_argument("--by", required=True, metavar="NAME", help="who decides")
        one.add_argument("--reason", required=True, metavar="TEXT", help="why; it stands in the ledger")
    _settings(rollback)

    export = verb("export", _export, "take out what is needed to serve an agent elsewhere", EXPORT)
    export.formatter_class = argparse.RawDescriptionHelpFormatter
    export.add_argument("which", metavar="VERSION|RUN")
    export.add_argument("folder", metavar="FOLDER")
    export.add_argument("--model", metavar="NAME", help="of which recipe, where the clone has run several (default: its only one)")
    export.add_argument("--merge", action="store_true", help="one whole model instead of adapter and base: merged in float32, cast once at the end")
    export.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="of the whole model (default: policy.dtype of its run, in which it was judged)"
    )

    play = verb("play", _play, "talk to an agent, its tools at work; nothing is recorded", PLAY)
    play.formatter_class = argparse.RawDescriptionHelpFormatter
    play.add_argument("run", metavar="RUN", nargs="?", help="a run, or a version of the registry (default: the champion)")
    play.add_argument("--example", metavar="ID", help="begin with this validation example, and show its grade")
    play.add_argument("--once", metavar="TEXT", help="say this, show the answer, and end")
    play.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: challenger.temperature, under which it was judged)")
    play.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampling (default: 0)")
    play.add_argument("--show-tools", action="store_true", help="first say which tools it has")
    _settings(play)

    rollouts = verb("rollouts", _rollouts, "look at what the agent did, and what it earned", ROLLOUTS)
    rollouts.formatter_class = argparse.RawDescriptionHelpFormatter
    _rollouts_options(rollouts)

    replay = verb("replay", _replay, "grade stored rollouts with another grader, without sampling", REPLAY)
    replay.formatter_class = argparse.RawDescriptionHelpFormatter
    replay.add_argument(
        "--grader", required=True, metavar="FILE", help="a grader's JSON; {tool_server} in its url: the recipe's own server is started"
    )
    replay.add_argument("--out", metavar="FILE", help="both grades of every rollout, as .parquet or .jsonl")
    _selection(replay)
    _settings(replay)

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
    demo.add_argument("--small", action="store_true", help="three minutes instead of ten: it learns less, on fewer examples")
    return top


def _rollouts_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="of stages that are still working")
    _selection(parser)
    what = parser.add_argument_group("instead of the list").add_mutually_exclusive_group()
    what.add_argument("--show", metavar="ROLLOUT", help="one rollout as a transcript; the beginning of its id is enough")
    what.add_argument("--group", metavar="EXAMPLE", help="the rollouts of one example side by side")
    what.add_argument("--summary", action="store_true", help="sampled = trained + left out with a reason, by stage and step")
    what.add_argument("--json", action="store_true", help="a JSON object a line")
    what.add_argument("--export", metavar="FILE", help="OpenAI chat JSONL: messages, reward, metadata")
    what.add_argument("--export-traces", action="store_true", help="MLflow traces, beside the run's metrics")
    parser.add_argument("--tokens", action="store_true", help="with --show: every sampled token, its log-probability, the unlikely ones marked")


def _selection(parser: argparse.ArgumentParser) -> None:
    """Which rollouts: of one place, and of those some."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="default: the newest run")
    parser.add_argument("--here", action="store_true", help="the shelves of this folder instead of a run's")
    which = parser.add_argument_group("which of them")
    which.add_argument("--stage", metavar="STAGE", help="baseline, prompt, train or challenger")
    which.add_argument("--arm", metavar="ARM", help="champion, challenger, a prompt's name")
    which.add_argument("--step", type=int, metavar="N", help="of training")
    which.add_argument("--example", metavar="ID")
    which.add_argument("--stop", metavar="REASON", help="such as completed, max_tokens, parse_error, tool_error")
    which.add_argument("--reward", metavar="BOUND", help="such as '<0.2' or '>=1'; none: the unscored")
    which.add_argument("--where", metavar="SQL", help="a DuckDB expression over the columns, such as 'num_tool_calls > 5 AND NOT solved'")
    order = which.add_mutually_exclusive_group()
    order.add_argument("--worst", type=_count, metavar="N", help="the N lowest rewards, lowest first")
    order.add_argument("--best", type=_count, metavar="N", help="the N highest rewards, highest first")
    which.add_argument("-n", type=_count, metavar="N", help="the first N of what is left; without it a terminal shows 20")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rollouts")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number


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

    return listing.show(options.n, options.all)


def _doctor(options: argparse.Namespace) -> int:
    from flows import doctor

    if options.show_resolved:
        return doctor.show_resolved(options.params, tuple(options.overrides), options.json)
    return doctor.show(options.params, tuple(options.overrides), tuple(options.only), not options.no_model, options.json)


def _stage(options: argparse.Namespace) -> int:
    from flows import running

    return running.one_stage(options.name, options.params, tuple(options.overrides))


def _exploits(options: argparse.Namespace) -> int:
    from flows import doctor

    return doctor.play(options.params, tuple(options.overrides), options.examples)


def _report(options: argparse.Namespace) -> int:
    from flows import running

    return running.report(options.run, options.open)


def _cancel(options: argparse.Namespace) -> int:
    from flows import cancel

    return cancel.show(options.run, options.now, options.wait)


def _gc(options: argparse.Namespace) -> int:
    from flows import gc

    return gc.show(options.yes, options.params, tuple(options.overrides))


def _approve(options: argparse.Namespace) -> int:
    from flows import deciding

    return deciding.approve(options.run, options.by, options.reason, options.override_dirty)


def _reject(options: argparse.Namespace) -> int:
    from flows import deciding

    return deciding.reject(options.run, options.by, options.reason)


def _rollback(options: argparse.Namespace) -> int:
    from flows import deciding

    return deciding.rollback(options.by, options.reason, options.model, options.params, tuple(options.overrides))


def _export(options: argparse.Namespace) -> int:
    from flows import export

    return export.write(options.which, options.folder, options.model, options.merge, options.dtype)


def _play(options: argparse.Namespace) -> int:
    from flows import play

    return play.run(
        options.run,
        options.params,
        tuple(options.overrides),
        example=options.example,
        once=options.once,
        temperature=options.temperature,
        seed=options.seed,
        show_tools=options.show_tools,
    )


def _rollouts(options: argparse.Namespace) -> int:
    from flows import rollouts

    return rollouts.show(options)


def _replay(options: argparse.Namespace) -> int:
    from flows import rollouts

    return rollouts.replay(options)


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


def _program() -> str:
    """How this user starts us, quoted: `rft` where the shell would find this very one, else what was typed, or the one beside our Python."""
    typed = Path(sys.argv[0])
    if typed.name == "cli.py":
        return shlex.join([sys.executable, "-m", "flows.cli"])
    ours = typed.absolute() if typed.name == "rft" and typed.is_file() else Path(sys.executable).with_name("rft")
    found = shutil.which("rft")
    if found and ours.exists() and Path(found).samefile(ours):
        return "rft"
    here = Path.cwd()
    return shlex.quote(f"./{ours.relative_to(here)}" if ours.parent == here else str(ours.relative_to(here) if ours.is_relative_to(here) else ours))


def _fail(message: str, code: int, word: str = "error") -> int:
    sys.stdout.flush()
    print(f"{word}: {message}", file=sys.stderr, flush=True)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    """`kill` and a container's stop are a Ctrl-C: the stage is ended, the run recorded as interrupted."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
