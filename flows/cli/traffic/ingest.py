"""Read a log of traffic as a run would, and say what is in it.

  rft traffic ingest data/inbox/2026-W14.jsonl
  rft traffic ingest logs/april --set traffic.unit=user_id

LOG is a file, a folder, a pattern of which all matches are one window, or an address such as
s3://bucket/logs. The format is recognized by the content: our own, OpenAI's chat completions and
Responses, OpenTelemetry spans, MLflow traces; compressed or not. Nothing is dropped silently: lines
that are not a conversation are counted, and the first ones are named.

The snapshot is placed in data/window, which `dvc repro` reads. A run makes its own.
"""

from __future__ import annotations

import argparse
import shutil

from rich.console import Console
from rich.table import Table

from flows import settings
from flows.cli.options import add_settings
from flows.screen import print_line
from rft import files, stage_files
from rft.formatting import counted
from rft.reports import Manifest
from rft.traffic import reading
from tasks.runs import clone, windows

SHOWN = 10
"""Sources and unreadable rows that are named."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", nargs="?", help="default: traffic.file of the settings")
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    here = clone.enter()
    wanted = settings.resolve(here, options.params, options.overrides)
    log = settings.given(here, options.log)
    _, inputs = windows.take_in(here, wanted, log, print_line)
    (snapshot,) = inputs.values()
    place = here.home / stage_files.SNAPSHOT
    files.delete(place)
    shutil.copytree(snapshot, place)
    tell(reading.manifest(snapshot))
    print_line(f"The snapshot: {stage_files.SNAPSHOT}")
    return 0


def tell(manifest: Manifest, console: Console | None = None) -> None:
    """Print what the log holds, and which part of it was not taken."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("file", "format", "rows", "bytes"):
        table.add_column(column, justify="right" if column in ("rows", "bytes") else "left")
    for source in manifest.sources[:SHOWN]:
        table.add_row(source.name, source.format, f"{source.num_rows:,}", f"{source.num_bytes:,}")
    console.print(table)
    if (more := len(manifest.sources) - SHOWN) > 0:
        print_line(f"... and {counted(more, 'file')} more")
    graded = f"{manifest.num_with_feedback:,} graded"
    print_line(
        f"{counted(manifest.num_conversations, 'conversation')} from {manifest.first} to {manifest.last}, {graded}"
    )
    lost = {reason: count for reason, count in manifest.rejected.items() if not reason.startswith(reading.KEPT)}
    kept = {reason: count for reason, count in manifest.rejected.items() if reason not in lost}
    for what, counts in (
        ("not taken", lost),
        ("taken, though there is", kept),
        ("keys without a meaning", manifest.ignored_keys),
        ("redacted", manifest.redacted),
    ):
        if counts:
            print_line(f"{what}: {', '.join(f'{name} {count:,}' for name, count in counts.items())}")
    for row in manifest.unread[:SHOWN]:
        print_line(f"  {row.source}:{row.line}: {row.why}")
