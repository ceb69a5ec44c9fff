"""Create an agent, or import one from another service.

  rft new agents/refunds      a small working agent, with invented traffic

Or import one from what you took out of another service: rows, tools, grader and settings as an
ordinary folder that runs without a line of Python being written. What cannot be taken over is
named (docs/from_openai.md):

  rft new agents/mine --from openai:job.json --files exported   a fine-tuning job; azure: likewise
  rft new agents/mine --from bedrock:job.json --files exported  with the Lambda function's source
  rft new agents/mine --from evals:exported                     an eval, its runs and output items
  rft new agents/mine --from grader:g.json --files exported     rows in exported/train.jsonl
  rft new agents/mine --from promptfoo:promptfooconfig.yaml     prompts, tests and assertions

Files that a job names by id lie in the folder of --files under that id: file-abc.jsonl. It needs a
workspace: rft init
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from flows import settings
from flows.cli.traffic.invent import CONVERSATIONS, DAYS, START
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
    "doctor exploits": "see the grader refuse every cheat",
    "run": "run the whole ladder",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="inside the repository, such as agents/refunds")
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
    target, relative_path = _target(here, options)
    told: list[str] = []
    with _whole(target) as part:
        if options.source:
            told = _import(part, options, target.name)
        else:
            _copy_template(part)
        _place_settings(part, target.name, relative_path)
        agent_folder.lay(part)
    workspace.add(here.root, relative_path)
    program = os.environ.get(commands.PROGRAM, "rft")
    commands.remember(program=f"{program} --agent {target.name}", settings=())
    for line in told:
        print_line(line)
    print_line(f"Agent {target.name}: {relative_path}. {relative_path}/recipe/README.md says what each file is for.")
    if told:
        _say_what_is_missing(relative_path)
    print_line("Then:" if told else "It works as it is; try in this order:")
    lines = {commands.command(verb): comment for verb, comment in NEXT.items()}
    for line, comment in lines.items():
        print_line(f"  {line:<{max(map(len, lines))}}    # {comment}")
    print_line("Commit it once it is yours, because a run of uncommitted code is marked dirty:")
    git = f"git -C {shlex.quote(str(here.root))}"
    added = f"{shlex.quote(relative_path)} {workspace.FILE}"
    print_line(f"  {git} add {added} && {git} commit -m {shlex.quote(f'Agent {target.name}')}")
    return 0


def _target(here: Clone, options: argparse.Namespace) -> tuple[Path, str]:
    """Return the folder to make, and its place in the repository. Raises UserError where no agent
    can be."""
    folder, target = options.folder, Path(options.folder).resolve()
    if workspace.read(here.root) is None:
        raise UserError(
            f"{here.root} is not a workspace yet: agents are listed in {workspace.FILE}. Make it one: rft init"
        )
    if target.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not, such as agents/refunds.")
    if not target.is_relative_to(here.root):
        raise UserError(
            f"{folder} lies outside the repository {here.root}, so no run could use it. "
            "Name a folder inside, such as agents/refunds."
        )
    for name in ("files", "range", "chance", "pass_threshold"):
        if not options.source and getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for an import. Add --from KIND:FILE.")
    relative_path = target.relative_to(here.root).as_posix()
    if not re.fullmatch(config.AGENT_NAME, target.name):
        raise UserError(f"{relative_path}: an agent is named after its folder. Use letters, digits, - and _ alone.")
    if taken := next((agent for agent in workspace.agents(here.root) if agent.name == target.name), None):
        raise UserError(
            f"there is an agent named {target.name!r} already, in {taken.folder or '.'}. Name another folder."
        )
    try:
        here.git("check-ignore", "--quiet", "--no-index", "--", f"{relative_path}/params.yaml")
    except GitError:
        return target, relative_path
    raise UserError(f"{relative_path}: Git ignores it (.gitignore), so no run could record it. Name another.")


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Make a folder that appears when it is complete, or not at all."""
    part, made = target.with_name(f".{target.name}.part"), not target.parent.exists()
    shutil.rmtree(part, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if made and not target.exists():
            target.parent.rmdir()


def _copy_template(part: Path) -> None:
    shutil.copytree(TEMPLATE, part / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    recipe.load(config.Recipe(path=str(part / "recipe"))).simulate(
        part / "data/inbox" / INVENTED,
        start=START,
        days=DAYS,
        conversations=CONVERSATIONS,
        drifted=False,
        seed=0,
    )


def _import(part: Path, options: argparse.Namespace, name: str) -> list[str]:
    """Write the agent's recipe and its traffic. Return what to tell."""
    given = {"range": options.range, "chance": options.chance, "pass_threshold": options.pass_threshold}
    declared = {key: value for key, value in given.items() if value is not None}
    imported = bridges.read(options.source, options.files)
    told = bridges.write_agent(imported, part / "recipe", "recipe", name, declared)
    if imported.traffic:
        window = part / "data/inbox" / name / IMPORTED
        window.parent.mkdir(parents=True)
        files.write_text("".join(f"{line}\n" for line in imported.traffic), window)
        told.append(f"data/inbox/{name}/{IMPORTED}: {len(imported.traffic)} logged conversations, a window of traffic")
    return told


def _place_settings(part: Path, name: str, relative_path: str) -> None:
    """Put the recipe's settings where the agent has them."""
    text = (part / "recipe/params.yaml").read_text(encoding="utf-8")
    text = text.replace("rft run --params recipe/params.yaml", f"rft --agent {name} run")
    files.write_text(text.replace("recipe:\n", f"agent: {name}\n\nrecipe:\n", 1), part / "params.yaml")
    (part / "recipe/params.yaml").unlink()
    settings.of_import(part / "params.yaml", f"{relative_path}/params.yaml")


def _say_what_is_missing(relative_path: str) -> None:
    print_line(
        f"To fill: {relative_path}/params.yaml: the model (policy) and the margins of the gate (gate), before a run"
    )
    print_line("How good is an agent at it today? Any server of chat completions will do:")
    server = (
        "--set policy.server.kind=chat --set policy.server.url=http://127.0.0.1:8000 --set policy.server.model=NAME"
    )
    print_line(f"  {commands.command('baseline')} {server}")
