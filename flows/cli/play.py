"""Talk to an agent that uses its tools; nothing is recorded.

  rft play                                       write a line, read the answer; /quit ends it
  rft play RUN --temperature 0                   talk to what a run's gate judged
  rft play --example ID                          begin with a validation example, and see the grade
  rft play --once "value of k0001"               one exchange, for scripts

Without RUN it is the champion. Its tools are served as in a stage, with the settings of the run
that made it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line, warn
from rft import config, recipe, stage_files
from rft.errors import RftError, UserError
from rft.rollouts import play, transcript
from rft.rollouts.play import Exchange, Table
from rft.rollouts.prompting import champion_prompt
from rft.rollouts.runner import rollout_runner
from rft.types import SPLITS, Example, Turn
from tasks.promotion import agents, champions
from tasks.promotion.agents import Agent
from tasks.promotion.mlflow_registry import CHAMPION
from tasks.runs import clone

QUIT = "/quit"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="a run, or the number of a champion (default: the champion)"
    )
    parser.add_argument("--example", metavar="ID", help="begin with this validation example, and show its grade")
    parser.add_argument("--once", metavar="TEXT", help="say this, show the answer, and end")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 is greedy (default: challenger.temperature, at which it was judged)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    parser.add_argument("--show-tools", action="store_true", help="list its tools first")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    temperature = options.temperature
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"--temperature {temperature:g}: write 0 (greedy) or a larger number.")
    which = options.run or CHAMPION
    if agents.is_a_run(which):
        if options.params is not None:
            raise UserError(
                "--params chooses the recipe of the champion, but RUN has its own settings. Leave one of them out."
            )
        agent = agents.find(here, which)
    else:
        agent = agents.find(here, which, champions.model_name(settings.resolve(here, options.params)))
    files = (*(stage_files.examples_file(split) for split in SPLITS), stage_files.KEYS)
    with agents.laid_out(agent, *map(str, files)) as tree, contextlib.chdir(tree):
        _converse(agent, settings.of_file(Path("params.yaml"), options.overrides), options)
    return 0


def _converse(agent: Agent, params: config.Params, options: argparse.Namespace) -> None:
    from rft.models import weights
    from rft.sampling import policies

    agents_recipe = recipe.load(params.recipe)
    opening = None if options.example is None else _example(options.example)
    temperature = params.challenger.temperature if options.temperature is None else options.temperature
    server = params.policy.server
    if server is not None and server.dialect == "openai_reasoning" and temperature != 1:
        why = f"{server.model} takes none (policy.server.dialect = openai_reasoning)"
        raise UserError(f"--temperature {temperature:g}: {why}. Leave it out.")
    prompt = champion_prompt(agents_recipe)
    device = weights.prepare_process(params.policy)
    with rollout_runner(params, agents_recipe) as runner:
        table = Table(
            runner, policies.load_policy(runner, "champion", device).policy, prompt, temperature, options.seed
        )
        if options.once is None:
            who = f"{agent.description} ({agent.standing})"
            print_line(
                f"{who}, prompt {prompt.name!r}, temperature {temperature:g}. {QUIT} or the end of input ends it."
            )
        if options.show_tools:
            for tool in runner.schemas:
                function = tool["function"]
                arguments = ", ".join(function.get("parameters", {}).get("properties", {}))
                print_line(f"  {function['name']}({arguments})  {function.get('description', '')}")
        if opening is not None:
            for message in opening.messages:
                print_line(f"{message['role']}> {message.get('content') or ''}")
            _show(table.begin(opening))
        if options.once is not None:
            _show(table.send(options.once))
            return
        for text in _lines():
            try:
                _show(table.send(text))
            except RftError as error:  # the conversation goes on without this exchange
                warn(str(error))


def _lines() -> Iterator[str]:
    """Yield what a person says, until /quit or the end of input."""
    asks = sys.stdin.isatty()
    while True:
        if asks:
            print("you> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == QUIT:
            return
        if line.strip():
            yield line.rstrip("\r\n")


def _show(exchange: Exchange) -> None:
    trajectory = exchange.trajectory
    for turn in trajectory.turns:
        _show_turn(turn)
    if not exchange.is_kept:
        warn(f"no answer: {trajectory.stop_reason}. The conversation goes on without this exchange.")
    if exchange.is_graded:
        grade = trajectory.grade
        score = "none" if grade.score is None else f"{grade.score:g}, {'solved' if grade.solved else 'not solved'}"
        print_line(f"grade> {score} ({grade.status}){f': {grade.explanation}' if grade.explanation else ''}")


def _show_turn(turn: Turn) -> None:
    if turn.answer or not turn.calls:
        print_line(f"agent> {turn.answer}")
    results = {result.call_id: result for result in turn.results}
    for call in turn.calls:
        function = {"name": call.name or "unreadable", "arguments": call.arguments}
        print_line(f"  → {transcript.signature({'function': function})}")
        result = results.get(call.call_id)
        print_line(f"  ← {result.output if result else 'never sent'}")


def _example(name: str) -> Example:
    if not stage_files.examples_file("validation").exists():
        raise UserError(f"--example {name}: this run ended before it had examples. Leave it out, or name another run.")
    others = {split: stage_files.load_examples(split) for split in ("test", "train")}
    return play.example_named(name, stage_files.load_examples("validation"), others)
