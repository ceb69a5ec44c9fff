"""Options that several verbs take, and how their values are read."""

from __future__ import annotations

import argparse
import sys

from rft.errors import UserError
from tasks.ledger import keys
from tasks.promotion.acts import Signer
from tasks.runs.clone import Clone
from tasks.runs.run import user


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--params", metavar="FILE", help="settings other than the clone's params.yaml")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="one setting, such as train.steps=40; repeatable",
    )


def add_person(parser: argparse.ArgumentParser, reason: bool = True) -> None:
    parser.add_argument("--reason", required=reason, metavar="TEXT", help="why; the ledger keeps it")
    parser.add_argument(
        "--key",
        metavar="FILE",
        help="the SSH key that signs (default: Git's user.signingkey if gpg.format is ssh, else ~/.ssh/id_ed25519)",
    )


def signer(clone: Clone, options: argparse.Namespace) -> Signer:
    """Return who decides, with their key. On a terminal, offer to make one where there is none."""
    try:
        key = keys.person(clone, options.key)
    except keys.NoKey as error:
        if not sys.stdin.isatty():
            raise
        print(f"{error}\nMake ~/.ssh/id_ed25519 now? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
            raise
        keys.make_person()
        key = keys.person(clone)
    return Signer(key, user(clone))


def add_open_test(parser: argparse.ArgumentParser) -> None:
    closed = parser.add_argument_group("the test set")
    help_text = (
        "show its rollouts, too. An entry in the ledger says so, and no later run can be judged on these examples"
    )
    closed.add_argument("--open-test", action="store_true", help=help_text)
    closed.add_argument("--reason", metavar="TEXT", help="with --open-test: why; the ledger keeps it")


def check_open_test(options: argparse.Namespace) -> None:
    """Refuse a reason without what it is a reason for."""
    if options.reason is not None and not options.open_test:
        raise UserError("--reason says why the test set is opened. Add --open-test, or leave it out.")


def add_place(parser: argparse.ArgumentParser, live: bool = True) -> None:
    """Add the options that say where rollouts are."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="default: the newest run")
    parser.add_argument("--here", action="store_true", help="the stages' files in this folder instead of a run's")
    if live:
        parser.add_argument("--live", action="store_true", help="the rollouts of stages in progress")
    else:
        parser.set_defaults(live=False, open_test=False)


def add_selection(parser: argparse.ArgumentParser, example: bool = True) -> None:
    """Add the options that choose among rollouts."""
    which = parser.add_argument_group("which of them")
    which.add_argument("--stage", metavar="STAGE", help="baseline, prompt, train or challenger")
    which.add_argument("--arm", metavar="ARM", help="champion, challenger, a prompt's name")
    which.add_argument("--step", type=int, metavar="N", help="a step of training")
    if example:
        which.add_argument("--example", metavar="ID", help="the id of an example")
    which.add_argument("--stop", metavar="REASON", help="such as completed, max_tokens, parse_error, tool_error")
    which.add_argument("--reward", metavar="BOUND", help="such as '<0.2' or '>=1', or none for the unscored")
    which.add_argument(
        "--where",
        metavar="SQL",
        help="a DuckDB expression over the columns, such as 'num_tool_calls > 5 AND NOT solved'",
    )
    order = which.add_mutually_exclusive_group()
    order.add_argument("--worst", type=count, metavar="N", help="the N lowest rewards, lowest first")
    order.add_argument("--best", type=count, metavar="N", help="the N highest rewards, highest first")
    first = "the first N of what is left (default: all; a table on a terminal shows 20)"
    which.add_argument("-n", type=count, metavar="N", help=first)


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few: give 1 or more")
    return number
