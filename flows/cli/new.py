"""Create a recipe to start from.

It is a small working agent, with invented traffic.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from pathlib import Path

from flows.cli.invent import CONVERSATIONS, DAYS, START
from flows.screen import say
from rft import commands
from rft.errors import UserError
from tasks.runs import clone

TEMPLATE = Path(__file__).parents[1] / "template"
INVENTED = "0000-invented.jsonl"
"""Sorts before every window that is named by its date, because a pattern takes the last."""
NEXT = {
    "doctor": "check for what would go wrong, in a minute",
    "exploits": "see the grader refuse every cheat",
    "run": "run the whole ladder",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="inside the clone, such as recipes/mine")


def run(options: argparse.Namespace) -> int:
    from rft import config, recipe

    here, folder = clone.find(), options.folder
    target = Path(folder).resolve()
    if target.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not, such as recipes/mine.")
    if not target.is_relative_to(here.root):
        raise UserError(
            f"{folder} lies outside the clone {here.root}, so no run could use it. "
            "Name a folder inside, such as recipes/mine."
        )
    inside = target.relative_to(here.root).as_posix()
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(TEMPLATE, part, ignore=shutil.ignore_patterns("__pycache__"))
    settings = part / "params.yaml"
    settings.write_text(
        settings.read_text(encoding="utf-8").replace("RECIPE_FOLDER", inside).replace("RECIPE_NAME", target.name),
        encoding="utf-8",
    )
    os.replace(part, target)
    window = here.root / "data" / "inbox" / target.name / INVENTED
    if not window.exists():
        recipe.load(config.Recipe(path=str(target))).simulate(
            window, start=START, days=DAYS, conversations=CONVERSATIONS, drifted=False, seed=0
        )
    commands.remember(settings=commands.options(here.root, str(target / "params.yaml")))
    say(f"{inside}/README.md says what each file is for. It works as it is; try in this order:")
    for verb, words in NEXT.items():
        say(f"  {commands.command(verb)}    # {words}")
    say(f"The traffic is invented: {window.relative_to(here.root)}. Put windows of your own beside it,")
    say(f"and name one in traffic.file of {inside}/params.yaml, or with --window.")
    say("On a schedule: give infra/schedule.yaml the lines")
    say(f"  params: {inside}/params.yaml")
    say(f"  window: data/inbox/{target.name}/*.jsonl")
    say("Commit the folder once it is yours, because a run of uncommitted code is marked dirty:")
    git = f"git -C {shlex.quote(str(here.root))}"
    say(f"  {git} add {shlex.quote(inside)} && {git} commit -m {shlex.quote(f'Recipe {target.name}')}")
    return 0
