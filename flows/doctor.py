"""`rft doctor` on a screen: a line a check while it works, a table, and what to do; or one JSON object for scripts.

The checks are rft/doctor's. Here is only drawn. What they print on the way goes to the standard error, so that JSON stays JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from flows import settings
from flows.screen import say
from rft import commands, config, doctor
from rft.config import reference
from rft.doctor import Finding, configuration
from rft.errors import RftError
from tasks import artifacts, clone, records
from tasks.clone import Clone

SHELF = "data/policy"
SIGNS = {"ok": "✓", "warn": "!", "fail": "✗", "skipped": "-"}


def show(params: str | None, overrides: tuple[str, ...], only: tuple[str, ...], use_model: bool, as_json: bool) -> int:
    """The exit code. What a check left behind at its deadline ends with the process (rft/doctor/__init__.py)."""
    here = clone.enter()
    if params and Path(params).exists():
        params = str(Path(params).absolute())  # the checks run in the clone's root, as stages do

    def load() -> config.Params:
        return settings.resolve(here, params, overrides)

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(contextlib.chdir(here.root))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        begin = stack.enter_context(_progress())
        found = list(doctor.examine(load, only, use_model, begin, announce=_announce, find_policy=lambda params: _policy(here, params, scratch)))
    code = doctor.exit_code(found)
    if as_json:
        say(json.dumps({"checks": [asdict(one) for one in found], "ok": code == 0}, ensure_ascii=False, allow_nan=False))
    else:
        draw(found)
    if doctor.left_behind():
        sys.stdout.flush()
        os._exit(code)  # an ordinary end would wait for what does not end
    return code


def play(params: str | None, overrides: tuple[str, ...], examples: int | None) -> int:
    """`rft exploits`: the grader's own part of it, on more examples and in a table."""
    from rft import exploits, recipe

    here = clone.enter()
    found = settings.resolve(here, params, overrides)
    with contextlib.chdir(here.root):  # recipe.path is relative to it
        result = exploits.preflight(found, recipe.load(found.recipe, found.examples.keys), examples)
    say(exploits.table(result))
    return 2 if result.accepted or not result.targets_pass else 0


def show_resolved(params: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """All settings, defaults included, in the order of rft/config; for people with their meaning, and which of them are set."""
    found = settings.resolve(clone.enter(), params, overrides)
    say(json.dumps(configuration.resolved(found), ensure_ascii=False) if as_json else reference.commented(found, configuration.written(found)))
    return 0


def draw(found: Sequence[Finding], console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "what was seen", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", no_wrap=column != "what was seen")
    for one in found:
        table.add_row(SIGNS[one.status], one.name, _plain(one.words), f"{one.seconds:.1f}" if one.seconds else "")
    console.print(table)
    todo = [one for one in found if one.remedy and one.status != "ok"]
    for one in todo:
        console.print(f"\n{SIGNS[one.status]} {one.name}: {one.remedy}", markup=False, soft_wrap=True)
    failed = [one.name for one in found if one.status == "fail"]
    warned = [one.name for one in found if one.status == "warn"]
    but = f", but look at {', '.join(warned)}" if warned else ""
    last = f"Not ready: {', '.join(failed)}." if failed else f"Ready{but}: {commands.command('run')}"
    console.print(f"\n{last}", markup=False, soft_wrap=True)


def _policy(here: Clone, params: config.Params, scratch: Path) -> Path | None:
    """What stage `policy` made of these settings and this recipe in the newest run that came so far, taken out of the cache."""
    for record in reversed(records.load_all(here)):
        if record.revision is None or record.bytes_removed:
            continue
        at = artifacts.Revision(here, record.revision)
        with contextlib.suppress(RftError):  # bytes that are gone; settings of another version
            if SHELF in at.outs and _made_alike(at, params):
                folder = scratch / record.name  # its own: what one run has in part must not lie under another's
                artifacts.restore_folder(at, SHELF, folder)
                _announce(f"the policy is that of run {record.name}: same recipe, same settings")
                return folder
    return None


def _made_alike(at: artifacts.Revision, params: config.Params) -> bool:
    then: config.Params = config.parse(yaml.safe_load(at.file("params.yaml") or b"") or {}, "params.yaml")
    same = (then.recipe, then.policy) == (params.recipe, params.policy)
    return same and at.has_same(params.recipe.path)


def _announce(words: str) -> None:
    """Before calls go out to servers, which may be somebody else's: how many, and where."""
    print(f"[doctor] {words}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Which check works now: a spinner on a terminal, a line elsewhere."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda name: print(f"[doctor] {name}", file=sys.stderr, flush=True)
        return
    with console.status("doctor") as status:
        yield lambda name: status.update(f"doctor: {name}")


def _plain(words: str) -> str:
    return words.replace("[", "\\[")
