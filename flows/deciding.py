"""The verbs by which a person decides: approve, reject, rollback. Promotion and its undoing are flows of their own."""

from __future__ import annotations

import importlib
import os
from typing import Any

from flows import settings
from flows.screen import say, warn
from flows.server import prefect_server
from rft import commands
from rft.errors import UserError
from tasks import champion, clone, records
from tasks.clone import Clone
from tasks.ledger import Act


def approve(run: str, who: str, why: str, override_dirty: bool) -> int:
    from tasks import registry

    here = clone.enter()
    record = records.find(here, run)
    act = _flow(here, "promote", record.name, *_named(who, why), override_dirty)
    if act.own_run:
        warn(f"{act.who} started this run and approves it too. It is allowed, and the ledger says so.")
    if act.overrides:
        warn(f"overridden: {', '.join(act.overrides)}. The ledger says so.")
    assert act.before
    say(f"Run {act.run} is the champion: {act.model} version {act.after}. @previous is {champion.in_words(act.before)}.")
    say(f"In the ledger: {act.when}, {act.who}: {act.why}")
    say(_to_serve(here, act))
    say(f"To undo it: {registry.undo(act.model)}")
    return 0


def reject(run: str, who: str, why: str) -> int:
    from tasks import registry

    here = clone.enter()
    act = registry.reject(here, records.find(here, run), *_named(who, why))
    say(f"Run {act.run} is rejected. In the ledger: {act.when}, {act.who}: {act.why}")
    return 0


def rollback(who: str, why: str, model: str | None, params: str | None, overrides: tuple[str, ...]) -> int:
    """`model`, or that of the settings named; without either the only one that was ever promoted here."""
    from tasks import registry

    here = clone.enter()
    who, why = _named(who, why)
    if model and (params or overrides):
        raise UserError("--model names the model, and so do --params and --set: give one of them.")
    if params or overrides:
        model = registry.model_name(settings.resolve(here, params, overrides))
    act = _flow(here, "rollback", model or registry.only_model(here), who, why)
    served = f"run {act.run}" if act.run else "the beginning: the base policy with the seed prompt"
    say(f"The champion is version {act.after} of {act.model} again ({served}); version {act.before} is not the champion any more.")
    say(f"In the ledger: {act.when}, {act.who}: {act.why}")
    say(_to_serve(here, act))
    return 0


def _to_serve(here: Clone, act: Act) -> str:
    """Where the champion's bytes are, and the command that takes them out."""
    from tasks import registry

    found = registry.find(here, act.model, str(act.after))
    tags = found.tags if found else {}
    weights = f"weights {tags['dvc.path']} ({tags['weights']})" if tags.get("dvc.path") else "no weights of its own"
    prompt = f", prompt {tags['prompt']!r}" if tags.get("prompt") else ""
    where = f" of revision {tags['revision'][:10]}, in DVC's cache" if tags.get("revision") else ""
    named = [] if registry.models(here) == [act.model] else ["--model", act.model]
    target = os.path.relpath(here.root / "exports" / f"{act.model}-{act.after}")
    return (
        f"To serve: {weights}{prompt}{where}. Until something serves it, nothing has changed for anyone. All of it, with the line that starts vLLM:\n"
        f"  {commands.command('export', str(act.after), target, *named)}"
    )


def _flow(here: Clone, name: str, *arguments: Any) -> Act:
    with prefect_server(here) as server:
        flow = getattr(importlib.import_module("flows.promotion"), name)
        if server:
            server.ready()
        return flow(*arguments)


def _named(who: str, why: str) -> tuple[str, str]:
    if not who.strip() or not why.strip():
        raise UserError("--by and --reason must say something: they stand in the ledger for the one who asks a year later.")
    return who.strip(), why.strip()
