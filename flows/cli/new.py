"""Create an agent to start from.

  rft new recipes/mine      a small working agent, with invented traffic

Or import one from what you took out of another service: rows, tools, grader and settings as an
ordinary folder that runs without a line of Python being written. What cannot be taken over is
named (docs/from_openai.md):

  rft new recipes/mine --from openai:job.json --files exported   a fine-tuning job; azure: likewise
  rft new recipes/mine --from bedrock:job.json --files exported  with the Lambda function's source
  rft new recipes/mine --from evals:exported                     an eval, its runs and output items
  rft new recipes/mine --from grader:g.json --files exported     rows in exported/train.jsonl
  rft new recipes/mine --from promptfoo:promptfooconfig.yaml     prompts, tests and assertions

Files that a job names by id lie in the folder of --files under that id: file-abc.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows import settings
from flows.cli.invent import CONVERSATIONS, DAYS, START
from flows.screen import say
from rft import bridges, commands, config, files, recipe
from rft.errors import UserError
from tasks.runs import clone
from tasks.runs.clone import Clone

TEMPLATE = Path(__file__).parents[1] / "template"
INVENTED = "0000-invented.jsonl"
"""Sorts before every window that is named by its date, because a pattern takes the last."""
IMPORTED = "0000-imported.jsonl"
NEXT = {
    "doctor": "check for what would go wrong, in a minute",
    "exploits": "see the grader refuse every cheat",
    "run": "run the whole ladder",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="inside the clone, such as recipes/mine")
    source = parser.add_argument_group("import")
    source.add_argument("--from", dest="source", metavar="KIND:FILE", help="what to import, such as openai:job.json")
    source.add_argument("--files", metavar="FOLDER", type=Path, help="the files that it names; for a grader, its rows")
    source.add_argument(
        "--range", nargs=2, type=float, metavar=("LOW", "HIGH"), help="the lowest and the highest score of its grader"
    )
    source.add_argument("--chance", type=float, metavar="SCORE", help="mean score of answers without any work")
    source.add_argument("--pass-threshold", type=float, metavar="SCORE", help="scores from here on have passed")


def run(options: argparse.Namespace) -> int:
    here = clone.find()
    target, inside = _target(here.root, options.folder)
    if options.source:
        return _import(here, options, target, inside)
    for name in ("files", "range", "chance", "pass_threshold"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for an import. Add --from KIND:FILE.")
    _copy(here, target, inside)
    say(f"{inside}/README.md says what each file is for. It works as it is; try in this order:")
    for verb, words in NEXT.items():
        say(f"  {commands.command(verb)}    # {words}")
    say(f"The traffic is invented: data/inbox/{target.name}/{INVENTED}. Put windows of your own beside it,")
    say(f"and name one in traffic.file of {inside}/params.yaml, or with --window.")
    say("On a schedule: give infra/schedule.yaml the lines")
    say(f"  params: {inside}/params.yaml")
    say(f"  window: data/inbox/{target.name}/*.jsonl")
    _say_commit(here, inside, target.name)
    return 0


def _target(root: Path, folder: str) -> tuple[Path, str]:
    """Return the folder to make, and its place in the clone."""
    target = Path(folder).resolve()
    if target.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not, such as recipes/mine.")
    if not target.is_relative_to(root):
        raise UserError(
            f"{folder} lies outside the clone {root}, so no run could use it. "
            "Name a folder inside, such as recipes/mine."
        )
    return target, target.relative_to(root).as_posix()


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Make a folder that appears when it is complete, or not at all."""
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _import(here: Clone, options: argparse.Namespace, target: Path, inside: str) -> int:
    given = {"range": options.range, "chance": options.chance, "pass_threshold": options.pass_threshold}
    declared = {key: value for key, value in given.items() if value is not None}
    imported = bridges.read(options.source, options.files)
    with _whole(target) as part:
        told = bridges.written(imported, part, inside, target.name, declared)
        settings.of_import(part / "params.yaml", f"{inside}/params.yaml")
        if imported.traffic:
            _keep_traffic(here, target.name, imported.traffic)
    commands.remember(settings=commands.options(here.root, str(target / "params.yaml")))
    for line in told:
        say(line)
    say(f"To fill: {inside}/params.yaml: the model (policy) and the margins of the gate (gate), before a run")
    say("See the grader refuse empty and generic answers:")
    say(f"  {commands.command('exploits')}")
    say("How good is an agent at it today? Any server of chat completions will do:")
    server = (
        "--set policy.server.kind=chat --set policy.server.url=http://127.0.0.1:8000 --set policy.server.model=NAME"
    )
    say(f"  {commands.command('baseline')} {server}")
    say("Before a run, check for what would go wrong:")
    say(f"  {commands.command('doctor')}")
    _say_commit(here, inside, target.name)
    return 0


def _keep_traffic(here: Clone, name: str, traffic: Sequence[str]) -> None:
    """Write logged conversations where a run of this agent looks for windows."""
    window = here.root / "data" / "inbox" / name / IMPORTED
    if window.exists():
        raise UserError(f"{window.relative_to(here.root)} exists already. Move it away, or name another folder.")
    window.parent.mkdir(parents=True, exist_ok=True)
    files.write_text("".join(f"{line}\n" for line in traffic), window)
    say(f"{window.relative_to(here.root)}: {len(traffic)} logged conversations, a window of traffic")


def _copy(here: Clone, target: Path, inside: str) -> None:
    with _whole(target) as part:
        _fill_template(part, target.name, inside)
    window = here.root / "data" / "inbox" / target.name / INVENTED
    if not window.exists():
        recipe.load(config.Recipe(path=str(target))).simulate(
            window, start=START, days=DAYS, conversations=CONVERSATIONS, drifted=False, seed=0
        )
    commands.remember(settings=commands.options(here.root, str(target / "params.yaml")))


def _fill_template(part: Path, name: str, inside: str) -> None:
    shutil.copytree(TEMPLATE, part, ignore=shutil.ignore_patterns("__pycache__"))
    settings = part / "params.yaml"
    settings.write_text(
        settings.read_text(encoding="utf-8").replace("RECIPE_FOLDER", inside).replace("RECIPE_NAME", name),
        encoding="utf-8",
    )


def _say_commit(here: Clone, inside: str, name: str) -> None:
    say("Commit the folder once it is yours, because a run of uncommitted code is marked dirty:")
    git = f"git -C {shlex.quote(str(here.root))}"
    say(f"  {git} add {shlex.quote(inside)} && {git} commit -m {shlex.quote(f'Recipe {name}')}")
