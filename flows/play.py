"""`rft play`: one conversation with an agent, at the terminal. Its tools are served as in a stage, and nothing is recorded."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from flows import settings
from flows.screen import say, warn
from rft import config, examples, model, play, policies, recipe, transcript
from rft.errors import RftError, UserError
from rft.play import Exchange, Table
from rft.served import champion_prompt
from rft.types import Example, Turn
from rft.workbench import workbench
from tasks import agents, clone, registry
from tasks.agents import Agent

_EXAMPLES = tuple(str(examples.SHELF / name) for name in (*(f"{split}.jsonl" for split in examples.SPLITS), examples.KEYS))
QUIT = "/quit"


def run(
    name: str | None, params: str | None, overrides: tuple[str, ...], example: str | None, once: str | None,
    temperature: float | None, seed: int, show_tools: bool,
) -> int:  # fmt: skip
    here = clone.enter()
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"--temperature {temperature:g}: write a number from 0 (greedy) on.")
    which = name or registry.CHAMPION
    if agents.is_a_run(which):
        if params is not None:
            raise UserError("--params says of which recipe the champion is, and RUN has settings of its own. Leave one of them out.")
        agent = agents.find(here, which)
    else:
        agent = agents.find(here, which, registry.model_name(settings.resolve(here, params)))
    with agents.laid_out(agent, *_EXAMPLES) as tree, contextlib.chdir(tree):
        _converse(agent, settings.of_file(Path("params.yaml"), overrides), example, once, temperature, seed, show_tools)
    return 0


def _converse(
    agent: Agent, params: config.Params, example: str | None, once: str | None, temperature: float | None, seed: int, show_tools: bool
) -> None:
    ours = recipe.load(params.recipe)
    opening = None if example is None else _example(example)
    heat = params.challenger.temperature if temperature is None else temperature
    server = params.policy.server
    if server is not None and server.dialect == "openai_reasoning" and heat != 1:
        raise UserError(f"--temperature {heat:g}: {server.model} takes none (policy.server.dialect = openai_reasoning). Leave it out.")
    prompt = champion_prompt(ours)
    device = model.prepare_process(params.policy)
    with workbench(params, ours) as bench:
        table = Table(bench, policies.of(bench, "champion", device).policy, prompt, heat, seed)
        if once is None:
            say(f"{agent.words} ({agent.standing}), prompt {prompt.name!r}, temperature {heat:g}. {QUIT} or the end of input ends it.")
        if show_tools:
            for tool in bench.schemas:
                function = tool["function"]
                say(f"  {function['name']}({', '.join(function.get('parameters', {}).get('properties', {}))})  {function.get('description', '')}")
        if opening is not None:
            for message in opening.messages:
                say(f"{message['role']}> {message.get('content') or ''}")
            _show(table.begin(opening))
        if once is not None:
            _show(table.say(once))
            return
        for text in _lines():
            try:
                _show(table.say(text))
            except RftError as error:  # the talk goes on: what was said before still stands
                warn(str(error))


def _lines() -> Iterator[str]:
    """What a person says, until /quit or the end of input."""
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
        say(f"grade> {score} ({grade.status}){f': {grade.explanation}' if grade.explanation else ''}")


def _show_turn(turn: Turn) -> None:
    if turn.answer or not turn.calls:
        say(f"agent> {turn.answer}")
    results = {result.call_id: result for result in turn.results}
    for call in turn.calls:
        say(f"  → {transcript.signature({'function': {'name': call.name or 'unreadable', 'arguments': call.arguments}})}")
        result = results.get(call.call_id)
        say(f"  ← {result.output if result else 'never sent'}")


def _example(name: str) -> Example:
    if not (examples.SHELF / "validation.jsonl").exists():
        raise UserError(f"--example {name}: this run came to no examples. Leave it out, or name a later run.")
    others = {split: examples.load(split) for split in ("test", "train")}
    return play.example_named(name, examples.load("validation"), others)
