"""`rft new FOLDER`: a small working recipe to change piece by piece, and invented traffic, so that the ladder runs at once."""

from __future__ import annotations

import datetime
import os
import shutil
from pathlib import Path

from flows.results import command
from flows.screen import say
from rft import config, recipe
from rft.errors import UserError
from tasks import clone

TEMPLATE = Path(__file__).parent / "template"
START = datetime.date(2026, 3, 2)


def write(folder: str) -> int:
    here = clone.find()
    target = Path(folder).resolve()
    if target.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not, such as recipes/mine.")
    if not target.is_relative_to(here.root):
        raise UserError(f"{folder} lies outside the clone {here.root}, where no run could take it along. Name a folder inside, such as recipes/mine.")
    inside = target.relative_to(here.root).as_posix()
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(TEMPLATE, part, ignore=shutil.ignore_patterns("__pycache__"))
    settings = part / "params.yaml"
    settings.write_text(settings.read_text(encoding="utf-8").replace("RECIPE_FOLDER", inside).replace("RECIPE_NAME", target.name), encoding="utf-8")
    os.replace(part, target)
    window = here.root / "data" / "inbox" / f"{target.name}.jsonl"
    if not window.exists():
        recipe.load(config.Recipe(path=str(target))).simulate(window, start=START, days=7, conversations=600, drifted=False, seed=0)
    say(f"{inside}/README.md says what each file is for. It works as it is:")
    say(f"  python -m rft.exploits --params {inside}/params.yaml     the grader refuses every cheat")
    say(f"  {command()} run --params {inside}/params.yaml     the whole ladder, on invented traffic ({window.relative_to(here.root)})")
    say(f"Commit the folder when it is yours (git add {inside}): a run of uncommitted code is marked dirty.")
    return 0
