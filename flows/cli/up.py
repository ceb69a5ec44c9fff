"""Run the ladder on the schedule in infra/schedule.yaml, until Ctrl-C.

It prints the address of Prefect's pages, which only this machine can reach.
"""

from __future__ import annotations

import argparse

from flows import deploy


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=4200, help="port of Prefect's server (default: 4200)")


def run(options: argparse.Namespace) -> int:
    return deploy.up(options.port)
