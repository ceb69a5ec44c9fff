"""Run the agents on the schedules of the workspace, until Ctrl-C.

  rft up                       all agents that have a schedule
  rft --agent refunds up       this one alone

It prints the address of Prefect's pages, which only this machine can reach. A schedule in rft.yaml:

  schedules:
    refunds: {cron: "0 3 * * 1", timezone: Europe/Berlin, window: "data/inbox/*.jsonl"}
"""

from __future__ import annotations

import argparse

from flows import deploy


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=4200, help="port of Prefect's server (default: 4200)")


def run(options: argparse.Namespace) -> int:
    return deploy.up(options.port)
