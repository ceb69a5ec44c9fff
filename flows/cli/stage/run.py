"""Run one stage alone, in this folder.

  rft stage run baseline
  rft stage run train --set train.steps=4

What the stage reads must be in data/ already. This is for trying things: nothing is recorded.
"""

from __future__ import annotations

import argparse

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line, watched
from rft.__main__ import STAGES
from rft.errors import UserError
from tasks.runs import by_hand, clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="STAGE", help="a stage of dvc.yaml, such as baseline")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    place, name = clone.enter(), options.name
    if name not in STAGES:
        raise UserError(f"no stage {name!r}. The stages: {', '.join(STAGES)}.")
    wanted = settings.resolve(place, options.params, options.overrides)
    with watched():
        by_hand.run_stage(place, wanted, name)
    settings_of = f"{options.params or 'params.yaml'}{' and of --set' if options.overrides else ''}"
    print_line(f"Its files: data/{name}, made with the settings of {settings_of}")
    return 0
