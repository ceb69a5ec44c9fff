"""Export rollouts for other programs: as chat JSONL, or as traces in MLflow.

  rft rollouts export --out chat.jsonl           OpenAI's chat format: messages, reward, metadata
  rft rollouts export RUN --worst 20 --traces    MLflow traces, beside the run's metrics

Those of the test set are left out, unless --open-test opens it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from flows import rollouts
from flows.cli.options import add_open_test, add_place, add_selection, check_open_test
from flows.rollouts import Logs, counter, whole
from flows.screen import print_line
from rft.errors import UserError
from rft.formatting import counted
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from tasks.display import traces
from tasks.runs import clone
from tasks.runs.clone import Clone


def add(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--out", metavar="FILE", help="OpenAI chat JSONL: messages, reward, metadata")
    way.add_argument("--traces", action="store_true", help="MLflow traces, beside the run's metrics")
    add_selection(parser)
    add_open_test(parser)


def run(options: argparse.Namespace) -> int:
    check_open_test(options)
    place = clone.enter()
    logs = rollouts.find(place, options)
    if logs.closed:
        rollouts.aside(logs.closed)
    rows = rollout_log.rows_of(rollouts.chosen(logs.table, options))
    return _traces(place, logs, rows) if options.traces else _chat(rows, Path(options.out))


def _chat(rows: Sequence[LogRow], path: Path) -> int:
    names = ("rollout_id", "stage", "arm", "step", "example_id", "sample", "attempt", "split", "slice", "stop_reason")
    more = ("score", "solved", "status", "trained", "left_out")
    with whole(path) as part, part.open("w", encoding="utf-8") as file:
        for row in rows:
            tools = json.loads(row.item).get("tools")
            chat = {"messages": json.loads(row.messages)} | ({"tools": tools} if tools else {}) | {"reward": row.reward}
            chat["metadata"] = {name: getattr(row, name) for name in (*names, *more)}
            file.write(json.dumps(chat, ensure_ascii=False) + "\n")
    print_line(f"{counted(len(rows), 'rollout')} in {path}")
    return 0


def _traces(place: Clone, logs: Logs, rows: Sequence[LogRow]) -> int:
    if logs.record is None:
        raise UserError("--traces: traces belong to a run in MLflow, and these rollouts to none. Name a RUN.")
    experiment = traces.export(place, logs.record, rows, counter("traces", len(rows)))
    many = f"{counted(len(rows), 'trace')} of run {logs.record.name} {'is' if len(rows) == 1 else 'are'}"
    print_line(f"{many} in MLflow's experiment {experiment!r}; another export adds none twice.")
    return 0
