"""Bring the agents to the installed version of agent-rft.

  rft upgrade --check     which version made the last runs, which stages would run again, and why
  rft upgrade             write dvc.yaml and our lines of .gitignore anew

First install the version: pipx upgrade agent-rft. The ledger, runs and champions stay as they are.
Only the stages that can load what changed run again, and those that read what they write. Without
--agent it is for all agents of the workspace.
"""

from __future__ import annotations

import argparse
import os
from importlib import metadata

from flows import settings
from flows.screen import print_line
from rft import commands
from rft.process import ROOT
from tasks.runs import clone, upgrade, workspace
from tasks.runs.clone import Clone

_SHOWN = 3


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing, and say what would change")


def run(options: argparse.Namespace) -> int:
    here, wanted = clone.enter(), os.environ.get(commands.AGENT)
    print_line(f"agent-rft {metadata.version('agent-rft')}, {ROOT}")
    for agent in workspace.agents(here.root):
        if wanted in (None, agent.name):
            print_line(agent.shown)
            _say(Clone(here.root, agent.folder), options.check)
    return 0


def _say(agent: Clone, check: bool) -> None:
    if check:
        for name in upgrade.stale(agent):
            print_line(f"  {name:<12} would be written anew")
    for name, kept in [] if check else upgrade.rewrite(agent):
        print_line(f"  {name:<12} written{f'; it was edited by hand, and {kept} keeps that' if kept else ''}")
    found = upgrade.outlook(agent, settings.resolve(agent))
    if found.run is None:
        print_line("  last run     none yet")
        return
    print_line(f"  last run     {found.run}, by agent-rft {found.version or 'of an unknown version'}")
    if not found.changed:
        print_line("  stages       none runs again because of the version")
    for stage, names in found.changed.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        print_line(f"  {stage:<12} would run again: {', '.join(names[:_SHOWN])}{more}")
    if found.changed:
        print_line("               and the stages that read what these leave, where that changes")
