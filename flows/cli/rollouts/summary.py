"""Count rollouts: sampled = trained + left out with a reason, by stage and step.

  rft rollouts summary
  rft rollouts summary RUN --stage train

The rollouts of the test set are counted, too, unless single examples are chosen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import rollouts
from flows.cli.options import add_open_test, add_place, add_selection, check_open_test
from flows.rollouts import Logs
from flows.screen import print_line
from rft import stage_files
from rft.errors import RftError
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from tasks.runs import clone


def add(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    add_selection(parser)
    add_open_test(parser)


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    logs = rollouts.find(clone.enter(), options)
    picks = (options.example, options.reward, options.where, options.worst, options.best, options.n)
    table = logs.table if logs.whole is None or any(pick is not None for pick in picks) else logs.whole
    chosen = rollouts.chosen(table, options)
    every = (logs.table if logs.whole is None else logs.whole).num_rows
    return _summary(logs, rollout_log.rows_of(chosen), whole=chosen.num_rows == every)


def _summary(logs: Logs, rows: Sequence[LogRow], whole: bool) -> int:
    """Check that sampled = trained + left out, also against what the training itself counted."""
    tallies = rollout_log.tally(rows)
    if whole:
        _against_metrics(tallies, logs.read(str(stage_files.METRICS)))
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("stage/arm", "step", "sampled", "trained", "compared", "left out"):
        table.add_column(name, justify="left" if name in ("stage/arm", "left out") else "right", overflow="fold")
    for tally in tallies:
        out = "\n".join(f"{count} {reason}" for reason, count in sorted(tally.left_out.items()))
        counts = (str(tally.sampled), str(tally.trained or ""), str(tally.compared or ""))
        table.add_row(*map(Text, (f"{tally.stage}/{tally.arm}", str(tally.step or ""), *counts, out)))
    Console(highlight=False).print(table)
    sampled, trained, compared, left = (
        sum(tally.sampled for tally in tallies),
        sum(tally.trained for tally in tallies),
        sum(tally.compared for tally in tallies),
        sum(tally.left_out.total() for tally in tallies),
    )
    parts = f"{trained} trained on + {compared} compared (stages that train nothing) + {left} left out"
    print_line(f"{sampled} sampled = {parts}. It adds up.")
    return 0


def _against_metrics(tallies: Sequence[rollout_log.Tally], metrics: bytes | None) -> None:
    """Raise RftError if the log and the training's own metrics differ."""
    for line in (metrics or b"").splitlines():
        step = json.loads(line)
        if "samples/sampled" not in step:
            continue
        own = [tally for tally in tallies if tally.stage == "train" and tally.step == step["step"]]
        # held-out examples are not samples of the step
        sampled = sum(tally.sampled - tally.left_out["validation"] for tally in own)
        for key, found in (("samples/sampled", sampled), ("samples/trained", sum(tally.trained for tally in own))):
            if found != step.get(key, 0):
                raise RftError(
                    f"the log does not add up: step {step['step']} of training says {key} = {step.get(key, 0)}, "
                    f"its log holds {counted(found, 'rollout')}."
                )
