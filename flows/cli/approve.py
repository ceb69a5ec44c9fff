"""Make a run's challenger the champion.

Only a run that the gate would promote can be approved. Every hash is verified before anything
moves.
"""

from __future__ import annotations

import argparse
import importlib
import os
from typing import TYPE_CHECKING, Any

from flows.cli.options import add_person, person
from flows.screen import say, warn
from rft import commands
from tasks.runs import clone
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from tasks.promotion.ledger import Act


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--override-dirty", action="store_true", help="approve a run of uncommitted code; the ledger says so"
    )
    parser.add_argument("run", metavar="RUN")
    add_person(parser)


def run(options: argparse.Namespace) -> int:
    from tasks.promotion import registry
    from tasks.runs import champion, records

    here = clone.enter()
    record = records.find(here, options.run)
    act = move(here, "promote", record.name, *person(options), options.override_dirty)
    if act.own_run:
        warn(f"{act.who} started this run and approves it too. It is allowed, and the ledger says so.")
    if act.overrides:
        warn(f"overridden: {', '.join(act.overrides)}. The ledger says so.")
    assert act.before
    previous = champion.in_words(act.before)
    say(f"Run {act.run} is the champion: {act.model} version {act.after}. @previous is {previous}.")
    say(f"In the ledger: {act.when}, {act.who}: {act.why}")
    say(to_serve(here, act))
    say(f"To undo it: {registry.undo(act.model)}")
    return 0


def move(here: Clone, flow: str, *arguments: Any) -> Act:
    """Move the champion by a flow of flows/promotion.py; `rft rollback` moves it too."""
    from flows.server import prefect_server

    with prefect_server(here) as server:
        moving = getattr(importlib.import_module("flows.promotion"), flow)
        if server:
            server.ready()
        return moving(*arguments)


def to_serve(here: Clone, act: Act) -> str:
    """Say where the champion's bytes are, and which command exports them."""
    from tasks.promotion import registry

    found = registry.find(here, act.model, str(act.after))
    tags = found.tags if found else {}
    weights = f"weights {tags['dvc.path']} ({tags['weights']})" if tags.get("dvc.path") else "no weights of its own"
    prompt = f", prompt {tags['prompt']!r}" if tags.get("prompt") else ""
    where = f" of revision {tags['revision'][:10]}, in DVC's cache" if tags.get("revision") else ""
    named = [] if registry.models(here) == [act.model] else ["--model", act.model]
    target = os.path.relpath(here.root / "exports" / f"{act.model}-{act.after}")
    return (
        f"To serve: {weights}{prompt}{where}. Nothing changes for anyone until something serves it. "
        "To export it all, with the command that starts vLLM:\n"
        f"  {commands.command('export', str(act.after), target, *named)}"
    )
