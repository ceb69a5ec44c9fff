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
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows import settings
from flows.cli.invent import CONVERSATIONS, DAYS, START
from flows.screen import print_line
from rft import bridges, commands, config, files, recipe
from rft.errors import UserError
from tasks.runs import agent_folder, clone, workspace
from tasks.runs.clone import Clone
from tasks.runs.git import GitError

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
    target, relative_path = _target(here.root, options.folder)
    if workspace.read(here.root) is not None:
        return _agent(here, options, target, relative_path)
    if options.source:
        return _import(here, options, target, relative_path)
    for name in ("files", "range", "chance", "pass_threshold"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for an import. Add --from KIND:FILE.")
    _copy(here, target, relative_path)
    print_line(f"{relative_path}/README.md says what each file is for. It works as it is; try in this order:")
    for verb, comment in NEXT.items():
        print_line(f"  {commands.command(verb)}    # {comment}")
    print_line(f"The traffic is invented: data/inbox/{target.name}/{INVENTED}. Put windows of your own beside it,")
    print_line(f"and name one in traffic.file of {relative_path}/params.yaml, or with --window.")
    print_line("On a schedule: give infra/schedule.yaml the lines")
    print_line(f"  params: {relative_path}/params.yaml")
    print_line(f"  window: data/inbox/{target.name}/*.jsonl")
    _print_commit(here, relative_path, target.name)
    return 0


# -- an agent of a workspace -----------------------------------------------------------------------
def _agent(here: Clone, options: argparse.Namespace, target: Path, relative_path: str) -> int:
    """Make a folder with settings, a recipe and what DVC needs, and write it into rft.yaml."""
    name = target.name
    if not re.fullmatch(config.AGENT_NAME, name):
        raise UserError(f"{relative_path}: an agent is named after its folder. Use letters, digits, - and _ alone.")
    if taken := next((agent for agent in workspace.agents(here.root) if agent.name == name), None):
        raise UserError(f"there is an agent named {name!r} already, in {taken.folder or '.'}. Name another folder.")
    try:
        here.git("check-ignore", "--quiet", "--no-index", "--", f"{relative_path}/params.yaml")
        raise UserError(f"{relative_path}: Git ignores it (.gitignore), so no run could record it. Name another.")
    except GitError:
        pass
    told: list[str] = []
    target.parent.mkdir(parents=True, exist_ok=True)
    with _whole(target) as part:
        if options.source:
            given = {"range": options.range, "chance": options.chance, "pass_threshold": options.pass_threshold}
            declared = {key: value for key, value in given.items() if value is not None}
            imported = bridges.read(options.source, options.files)
            told = bridges.write_agent(imported, part / "recipe", "recipe", name, declared)
            if imported.traffic:
                window = part / "data" / "inbox" / name / IMPORTED
                window.parent.mkdir(parents=True)
                files.write_text("".join(f"{line}\n" for line in imported.traffic), window)
        else:
            _fill_template(part / "recipe", name, "recipe")
            recipe.load(config.Recipe(path=str(part / "recipe"))).simulate(
                part / "data" / "inbox" / name / INVENTED,
                start=START,
                days=DAYS,
                conversations=CONVERSATIONS,
                drifted=False,
                seed=0,
            )
        text = (part / "recipe/params.yaml").read_text(encoding="utf-8")
        text = text.replace("rft run --params recipe/params.yaml", f"rft --agent {name} run")
        files.write_text(text.replace("recipe:\n", f"agent: {name}\n\nrecipe:\n", 1), part / "params.yaml")
        (part / "recipe/params.yaml").unlink()
        settings.of_import(part / "params.yaml", f"{relative_path}/params.yaml")
        agent_folder.lay(part)
    workspace.add(here.root, relative_path)
    for line in told:
        print_line(line)
    program = os.environ.get(commands.PROGRAM, "rft")
    commands.remember(program=f"{program} --agent {name}", settings=())
    print_line(f"Agent {name}: {relative_path}. {relative_path}/recipe/README.md says what each file is for.")
    print_line("It works as it is; try in this order:" if not told else "Fill in the margins of the gate, then:")
    for verb, comment in NEXT.items():
        print_line(f"  {commands.command(verb)}    # {comment}")
    print_line("Commit it once it is yours, because a run of uncommitted code is marked dirty:")
    git = f"git -C {shlex.quote(str(here.root))}"
    added = f"{shlex.quote(relative_path)} {workspace.FILE}"
    print_line(f"  {git} add {added} && {git} commit -m {shlex.quote(f'Agent {name}')}")
    return 0


# -- a recipe in a clone of agent-rft --------------------------------------------------------------
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


def _import(here: Clone, options: argparse.Namespace, target: Path, relative_path: str) -> int:
    given = {"range": options.range, "chance": options.chance, "pass_threshold": options.pass_threshold}
    declared = {key: value for key, value in given.items() if value is not None}
    imported = bridges.read(options.source, options.files)
    with _whole(target) as part:
        told = bridges.write_agent(imported, part, relative_path, target.name, declared)
        settings.of_import(part / "params.yaml", f"{relative_path}/params.yaml")
        if imported.traffic:
            _keep_traffic(here, target.name, imported.traffic)
    commands.remember(settings=commands.options(here.root, str(target / "params.yaml")))
    for line in told:
        print_line(line)
    print_line(
        f"To fill: {relative_path}/params.yaml: the model (policy) and the margins of the gate (gate), before a run"
    )
    print_line("See the grader refuse empty and generic answers:")
    print_line(f"  {commands.command('exploits')}")
    print_line("How good is an agent at it today? Any server of chat completions will do:")
    server = (
        "--set policy.server.kind=chat --set policy.server.url=http://127.0.0.1:8000 --set policy.server.model=NAME"
    )
    print_line(f"  {commands.command('baseline')} {server}")
    print_line("Before a run, check for what would go wrong:")
    print_line(f"  {commands.command('doctor')}")
    _print_commit(here, relative_path, target.name)
    return 0


def _keep_traffic(here: Clone, name: str, traffic: Sequence[str]) -> None:
    """Write logged conversations where a run of this agent looks for windows."""
    window = here.root / "data" / "inbox" / name / IMPORTED
    if window.exists():
        raise UserError(f"{window.relative_to(here.root)} exists already. Move it away, or name another folder.")
    window.parent.mkdir(parents=True, exist_ok=True)
    files.write_text("".join(f"{line}\n" for line in traffic), window)
    print_line(f"{window.relative_to(here.root)}: {len(traffic)} logged conversations, a window of traffic")


def _copy(here: Clone, target: Path, relative_path: str) -> None:
    with _whole(target) as part:
        _fill_template(part, target.name, relative_path)
    window = here.root / "data" / "inbox" / target.name / INVENTED
    if not window.exists():
        recipe.load(config.Recipe(path=str(target))).simulate(
            window, start=START, days=DAYS, conversations=CONVERSATIONS, drifted=False, seed=0
        )
    commands.remember(settings=commands.options(here.root, str(target / "params.yaml")))


def _fill_template(part: Path, name: str, relative_path: str) -> None:
    shutil.copytree(TEMPLATE, part, ignore=shutil.ignore_patterns("__pycache__"))
    settings = part / "params.yaml"
    settings.write_text(
        settings.read_text(encoding="utf-8").replace("RECIPE_FOLDER", relative_path).replace("RECIPE_NAME", name),
        encoding="utf-8",
    )


def _print_commit(here: Clone, relative_path: str, name: str) -> None:
    print_line("Commit the folder once it is yours, because a run of uncommitted code is marked dirty:")
    git = f"git -C {shlex.quote(str(here.root))}"
    print_line(f"  {git} add {shlex.quote(relative_path)} && {git} commit -m {shlex.quote(f'Recipe {name}')}")
