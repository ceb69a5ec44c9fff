"""Show one rollout as a transcript, with its grade.

  rft rollouts show 3f2a               of the newest run
  rft rollouts show 3f2a RUN --tokens  every token with its log-probability

The beginning of a rollout's id is enough.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer

from flows import rollouts
from flows.cli.options import add_open_test, add_place, check_open_test
from flows.rollouts import STYLES, Logs, bare, read_bytes
from rft import reports, stage_files
from rft.errors import UserError
from rft.rollouts import log as rollout_log
from rft.rollouts import transcript
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rollout", metavar="ROLLOUT", help="the beginning of its id is enough")
    add_place(parser)
    add_open_test(parser)
    parser.add_argument(
        "--tokens", action="store_true", help="every sampled token with its log-probability, unlikely ones marked"
    )


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    logs = rollouts.find(clone.enter(), options)
    return _show(Console(highlight=False), logs, options.rollout, options.tokens)


def _show(console: Console, logs: Logs, prefix: str, tokens: bool) -> int:
    ids = logs.table["rollout_id"].to_pylist()
    hits = [n for n, name in enumerate(ids) if name.startswith(prefix) or bare(name).startswith(prefix)]
    known = list(dict.fromkeys(ids[n] for n in hits))
    if not known:
        raise UserError(
            f"ROLLOUT {prefix}: no rollout of {logs.description} has an id that begins with it. {logs.listed}"
        )
    if len(known) > 1:
        some = ", ".join(map(bare, known[:4]))
        raise UserError(f"ROLLOUT {prefix}: {len(known)} rollouts begin with it ({some} ...). Write more of the id.")
    for row in rollout_log.rows_of(logs.table.take(hits)):
        lines: Iterator[transcript.Line] = transcript.lines(row)
        if tokens:
            lines = itertools.chain(
                lines, [transcript.Line("tokens", "role")], transcript.token_lines(row, _decoder(logs))
            )
        for line in lines:
            console.print(Text(line.text, STYLES[line.kind]), soft_wrap=True)
    return 0


def _decoder(logs: Logs) -> Callable[[list[int]], str] | None:
    """Load the run's own tokenizer with the light library. None: its folder is not at hand."""
    path = str(stage_files.path(reports.PolicyReport))
    found = logs.read(path)
    if found is None:
        return None
    model = Path(reports.parse(reports.PolicyReport, found, path).model)
    content = (
        logs.read(str(model / "tokenizer.json")) if not model.is_absolute() else read_bytes(model / "tokenizer.json")
    )
    if content is None:
        return None
    tokenizer = Tokenizer.from_str(content.decode())
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
