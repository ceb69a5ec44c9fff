"""Make this Git repository a workspace for your agents.

  rft init                 then: rft new agents/refunds

It writes rft.yaml at the top, which lists the agents' folders; lines of .gitignore for what a run
leaves; and .dvc/ unless DVC is in use here already. Nothing else is touched, and nothing is
committed. Run again, it changes nothing.
"""

from __future__ import annotations

import argparse

from flows.screen import print_line
from rft import commands
from tasks.runs import beginning, workspace


def add(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> int:
    root, written = beginning.begin()
    print_line(f"Workspace: {root}")
    for name, what in written.items():
        print_line(f"  {name:<12} {what}")
    if not written:
        print_line("  nothing to write, it is one already")
    agents = workspace.agents(root)
    if agents:
        print_line(f"Agents: {', '.join(agent.shown for agent in agents)}")
    else:
        print_line(f"Make an agent: {commands.command('new', 'agents/NAME')}")
    if written:
        print_line(f"Commit it once you like it: git add {' '.join(sorted(written))} && git commit -m 'Workspace'")
    return 0
