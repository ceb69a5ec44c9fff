"""Write down with which engine the stages run.

  rft stage engine         then: dvc repro

Each stage depends on a file of hashes, data/engine/STAGE.json, and does not start with another
engine than it names. A run writes these files itself. For `dvc repro` by hand, write them here
first, and again after each upgrade or edit of the engine. DVC then repeats the stages that can load
what changed.
"""

from __future__ import annotations

import argparse

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line
from tasks.runs import clone, engine
from tasks.runs import run as runs


def add(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    place = clone.enter()
    params = settings.resolve(place, options.params, options.overrides)
    runs.refuse_missing_recipe(place, params)
    changed = engine.write(place.home, params.recipe, place.state)
    print_line(f"Engine: {engine.folder(place.root)}")
    print_line(f"Written: {', '.join(changed) if changed else 'nothing, it is that of data/engine already'}")
    return 0
