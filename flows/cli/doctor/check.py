"""Check for what would go wrong, before any compute is spent.

  rft doctor check
  rft doctor check --no-model          without the checks that load the model: quick
  rft doctor check --only tools        this one, and those that it needs
  rft doctor check --show-resolved     print all settings, with their defaults and meanings

It checks the settings, the recipe, its tools and grader, the chat template, and the memory that a
run needs. It also checks one optimizer step, the margins of the gate, the ledger and its remote. It
pushes a scratch branch to the remote, and removes it. Exit code 0: ready. 2: the settings need a
change. 3: a server, a disk or the network failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line
from rft import commands, config, stage_files
from rft.config import reference
from rft.errors import RftError
from tasks.runs import artifacts, clone, records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

if TYPE_CHECKING:
    from rft.doctor import Finding

SIGNS = {"ok": "✓", "warn": "!", "fail": "✗", "skipped": "-"}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", metavar="CHECK", action="append", default=[], help="this check and those that it needs; repeatable"
    )
    parser.add_argument("--no-model", action="store_true", help="skip the checks that need the policy's model: quick")
    parser.add_argument("--json", action="store_true", help="one JSON object for scripts: checks and ok")
    parser.add_argument(
        "--show-resolved", action="store_true", help="print all settings, defaults included, and check nothing"
    )
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    return _show_resolved(options) if options.show_resolved else _examine(options)


def _examine(options: argparse.Namespace) -> int:
    """Run the checks, and return the exit code. Their own output goes to stderr.

    What a check left behind at its deadline ends with the process (rft/doctor/__init__.py).
    """
    from rft import doctor
    from rft.doctor.finding import ok
    from tasks.ledger import checks

    here, params = clone.enter(), options.params
    if params and Path(params).exists():
        params = str(Path(params).absolute())  # the checks run in the clone's root, as stages do

    # needed even if no check reads the settings: the last lines that are printed are about them
    commands.remember(settings=commands.options(here.home, params, tuple(options.overrides)))

    def load() -> config.Params:
        return settings.ungated(here, params, options.overrides)

    def margins(_: object) -> Finding:
        gate = settings.resolve(here, params, options.overrides).gate
        return ok(
            f"margins are declared; noise is promoted in at most {gate.alpha:.1%} of histories of {gate.looks} looks"
        )

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(contextlib.chdir(here.home))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        begin = stack.enter_context(_progress())
        found = list(
            doctor.examine(
                load,
                options.only,
                not options.no_model,
                begin,
                (*doctor.CHECKS, doctor.Check("gate", margins, 20), *checks.checks(here)),
                announce=_announce,
                find_policy=lambda params: policy_of_a_run(here, params, scratch),
            )
        )
    code = doctor.exit_code(found)
    if options.json:
        result = {"checks": [asdict(finding) for finding in found], "ok": code == 0}
        print_line(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        draw(found, options.only)
    if doctor.left_behind():
        sys.stdout.flush()
        os._exit(code)  # an ordinary end would wait for what does not end
    return code


def _show_resolved(options: argparse.Namespace) -> int:
    """Print all settings, defaults included, in the order of rft/config. For people, also print
    what each means, and which are set."""
    from rft.doctor import configuration

    found = settings.resolve(clone.enter(), options.params, options.overrides)
    if options.json:
        print_line(json.dumps(configuration.resolved(found), ensure_ascii=False))
    else:
        print_line(reference.commented(found, configuration.written(found)))
    return 0


def draw(found: Sequence[Finding], only: Sequence[str] = (), console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "what was seen", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", no_wrap=column != "what was seen")
    for check in found:
        seconds = f"{check.seconds:.1f}" if check.seconds else ""
        table.add_row(SIGNS[check.status], check.name, escape(check.words), seconds)
    console.print(table)
    for check in found:
        if check.remedy and check.status != "ok":
            console.print(f"\n{SIGNS[check.status]} {check.name}: {check.remedy}", markup=False, soft_wrap=True)
    failed = [check.name for check in found if check.status == "fail"]
    warned = [check.name for check in found if check.status == "warn"]
    but = f", but look at {', '.join(warned)}" if warned else ""
    ready = f"Ready{but}: {commands.command('run')}"
    if only:
        ready = f"In order{but}: {', '.join(only)}. To look at the rest: {commands.command('doctor')}"
    last = f"Not ready: {', '.join(failed)}." if failed else ready
    console.print(f"\n{last}", markup=False, soft_wrap=True)


def policy_of_a_run(here: Clone, params: config.Params, scratch: Path) -> Path | None:
    """Restore from the cache what stage `policy` made in the newest run of the same settings and
    recipe."""
    stage_folder = str(stage_files.folder("policy"))
    for record in reversed(records.of_agent(here)):
        if record.revision is None or record.bytes_removed:
            continue
        at = artifacts.Revision(here, record.revision)
        with contextlib.suppress(RftError):  # bytes that are gone; settings of another version
            if stage_folder in at.outs and _made_alike(at, params):
                folder = scratch / record.name  # a run's own folder: parts of two runs must not mix
                at.lay(stage_folder, folder)
                _announce(f"the policy is that of run {record.name}: same recipe, same settings")
                return folder
    return None


def _made_alike(at: Revision, params: config.Params) -> bool:
    then: config.Params = config.parse(
        config.of_then(yaml.safe_load(at.file("params.yaml") or b"") or {}), "params.yaml"
    )
    same = (then.recipe, then.policy) == (params.recipe, params.policy)
    return same and at.has_same(params.recipe.path)


def _announce(message: str) -> None:
    """Say what is about to happen, such as how many calls will go to which server."""
    print(f"[doctor] {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show which check runs: a spinner on a terminal, a line elsewhere."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda name: print(f"[doctor] {name}", file=sys.stderr, flush=True)
        return
    with console.status("doctor") as status:
        yield lambda name: status.update(f"doctor: {name}")
