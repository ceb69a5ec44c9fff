"""Run the ladder on the example agent, with invented traffic.

  rft demo                 ten minutes on two cores
  rft demo --small         four minutes: it learns less, on fewer examples

It needs a clone of agent-rft. Run again, it skips what has not changed.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flows import results, settings
from flows.cli.run import run_ladder
from flows.cli.traffic import drift
from flows.cli.traffic.invent import CONVERSATIONS, DAYS, START
from flows.drift import brief
from flows.screen import print_line
from rft import commands, config, recipe
from rft.errors import UserError
from rft.reports import DriftReport
from tasks.runs import clone

DRIFTED = "data/inbox/drifted.jsonl"
SMALL = (
    "examples.train=200",
    "examples.validation=32",
    "examples.test=48",
    "policy.warm_start.demonstrations=2400",
    "policy.warm_start.steps=300",
    "baseline.examples=16",
    "baseline.k=4",
    "prompt.rounds=2",
    "prompt.first_examples=4",
    "prompt.k=1",
    "prompt.confirm_k=1",
    "train.steps=16",
    "train.examples_per_step=4",
    "train.group_size=8",
    "train.validate_every=2",
    "train.validation_examples=8",
    "challenger.k=1",
    "gate.num_bootstrap=500",
    # one hacked example of 48 passes: the exact upper limit of its rate is 11.1 %; without one it
    # is 7.4 %, and 48 examples cannot show less
    "gate.max_hack_rate=0.12",
    # 10 % of the champion's rollouts have an unreadable call: with 48 rollouts, the interval is 21
    # points wide
    "gate.max_unreadable_increase=0.1",
    # each of the three slices has 16 examples, and five looks at so few would settle nothing
    "gate.min_slice=10",
    "gate.looks=1",
)
"""Enough to see every stage at work and the agent learn, in four minutes on two free cores."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--small", action="store_true", help="four minutes instead of ten: it learns less, on fewer examples"
    )


def run(options: argparse.Namespace) -> int:
    """Run the ladder on one window of invented traffic, and `drift` alone on a drifted one.

    Git ignores everything that is written, or DVC keeps it.
    """
    here = clone.enter()
    if here.folder:
        remedy = f"Run this one: {commands.command('traffic invent')} && {commands.command('run')}"
        raise UserError(f"rft demo shows the agent at the top of a clone of agent-rft. {remedy}")
    overrides = SMALL if options.small else ()
    params = settings.resolve(here, overrides=overrides)
    like, drifted = here.home / params.traffic.file, here.home / DRIFTED
    print_line("1/3  traffic: two invented weeks, one like the reference and one drifted")
    _invent(params, like, START, drifted=False)
    _invent(params, drifted, START + datetime.timedelta(days=7), drifted=True)
    print_line("2/3  the ladder, on the first week")
    record = run_ladder(overrides=overrides)
    print_line("3/3  drift alone, on the second week")
    report, made = drift.check(here, params, drifted)
    if not made:
        print_line("     (nothing changed since it was judged)")
    _tell(report, [setting for setting in overrides if setting.startswith("examples.")])
    print_line()
    results.show(here, record)
    return 0


def _tell(report: DriftReport, changed: Sequence[str]) -> None:
    """Print the verdict and what moved the most. `changed`: settings that drift depends on."""
    console = Console(highlight=False)
    settings = [word for setting in changed for word in ("--set", setting)]
    for line in brief(report, commands.command("traffic drift", DRIFTED, settings=settings), console.width):
        console.print(line, soft_wrap=True)


def _invent(params: config.Params, path: Path, start: datetime.date, drifted: bool) -> None:
    if path.exists():
        print_line(f"     {path.name} is there already")
        return
    recipe.load(params.recipe).simulate(
        path, start=start, days=DAYS, conversations=CONVERSATIONS, drifted=drifted, seed=0
    )
    print_line(f"     {path.name}: {CONVERSATIONS} conversations")
