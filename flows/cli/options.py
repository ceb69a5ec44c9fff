"""Options that several verbs take, and how their values are read."""

from __future__ import annotations

import argparse

from rft.errors import UserError


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


def add_person(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", required=True, metavar="NAME", help="who decides")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; the ledger keeps it")


def person(options: argparse.Namespace) -> tuple[str, str]:
    """Return who decides, and why. Raises UserError if either is empty."""
    who, why = options.by.strip(), options.reason.strip()
    if not who or not why:
        raise UserError("--by and --reason must not be empty: the ledger keeps them for whoever asks a year later.")
    return who, why


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose rollouts: where they are, and which of them."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="default: the newest run")
    parser.add_argument("--here", action="store_true", help="the shelves of this folder instead of a run's")
    which = parser.add_argument_group("which of them")
    which.add_argument("--stage", metavar="STAGE", help="baseline, prompt, train or challenger")
    which.add_argument("--arm", metavar="ARM", help="champion, challenger, a prompt's name")
    which.add_argument("--step", type=int, metavar="N", help="a step of training")
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
