"""Serve the schedule of infra/schedule.yaml until Ctrl-C.

Prefect's pages are at the address that it prints, for this machine only.
"""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=4200, help="of Prefect's server (default: 4200)")


def run(options: argparse.Namespace) -> int:
    from flows import deploy

    return deploy.up(options.port)
