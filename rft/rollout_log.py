"""One schema of rollout log for all stages: a row a rollout, in Parquet, that DuckDB and pandas read.

Every row says whether it was trained on and, if not, why; sampled = trained + left out with a reason. Token ids and log-probabilities are
flat over turns: `ids` is the whole sequence, `mine` marks what the policy sampled, `logprobs` runs over those alone. No wall times: they lie
in `timing.json`, so that equal runs leave equal bytes here.

While a stage runs, its rows wait as JSON lines under `.rft/` (rft/progress.py); `write` turns them into the shelf's file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rft.reports import PromptSettings
from rft.rollout import messages_of
from rft.types import Example, Trajectory


@dataclass(frozen=True, slots=True)
class LogRow:
    """One rollout. `reward` and `score` are None when unscored; `left_out` is empty when `trained`, or in a stage that trains nothing."""

    stage: str
    arm: str
    step: int
    example_id: str
    sample: int
    trace_id: str
    slice: str
    stop_reason: str
    reward: float | None
    score: float | None
    solved: bool
    status: str
    num_turns: int
    num_tool_calls: int
    num_tool_errors: int
    num_tokens: int
    explanation: str
    messages: str
    ids: list[int]
    mine: list[bool]
    logprobs: list[float]
    trained: bool = False
    left_out: str = ""


def row(trajectory: Trajectory, example: Example, sample: int, prompt: PromptSettings, stage: str, arm: str, step: int = 0) -> LogRow:
    ids, mine, logprobs = flat(trajectory)
    return LogRow(
        stage=stage,
        arm=arm,
        step=step,
        example_id=example.id,
        sample=sample,
        trace_id=trajectory.trace_id,
        slice=example.slice,
        stop_reason=str(trajectory.stop_reason),
        reward=trajectory.reward,
        score=trajectory.grade.score,
        solved=trajectory.grade.solved,
        status=str(trajectory.grade.status),
        num_turns=len(trajectory.turns),
        num_tool_calls=trajectory.num_tool_calls,
        num_tool_errors=sum(result.is_error for turn in trajectory.turns for result in turn.results),
        num_tokens=trajectory.num_tokens,
        explanation=trajectory.grade.explanation,
        messages=json.dumps(messages_of(trajectory, example, prompt), ensure_ascii=False),
        ids=ids,
        mine=mine,
        logprobs=logprobs,
    )


def flat(trajectory: Trajectory) -> tuple[list[int], list[bool], list[float]]:
    """The sequence as the sampler saw it, which of it is the policy's own, and those tokens' log-probabilities."""
    ids: list[int] = []
    mine: list[bool] = []
    logprobs: list[float] = []
    for turn in trajectory.turns:
        ids += [*turn.prompt_ids, *turn.token_ids]
        mine += [False] * len(turn.prompt_ids) + [True] * len(turn.token_ids)
        logprobs += turn.logprobs
    return ids, mine, logprobs


def write(rows: Iterable[LogRow], path: Path) -> None:
    """Whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [asdict(one) for one in rows]
    schema = pa.schema(
        [(name, pa.string()) for name in ("stage", "arm")]
        + [("step", pa.int32()), ("example_id", pa.string()), ("sample", pa.int32())]
        + [(name, pa.string()) for name in ("trace_id", "slice", "stop_reason")]
        + [("reward", pa.float64()), ("score", pa.float64()), ("solved", pa.bool_()), ("status", pa.string())]
        + [(name, pa.int32()) for name in ("num_turns", "num_tool_calls", "num_tool_errors", "num_tokens")]
        + [("explanation", pa.string()), ("messages", pa.string())]
        + [("ids", pa.list_(pa.int32())), ("mine", pa.list_(pa.bool_())), ("logprobs", pa.list_(pa.float32()))]
        + [("trained", pa.bool_()), ("left_out", pa.string())]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(columns, schema=schema), part, compression="zstd")
    os.replace(part, path)


def append_lines(rows: Iterable[LogRow], path: Path) -> None:
    with path.open("a", encoding="utf-8") as handle:
        for one in rows:
            handle.write(json.dumps(asdict(one), ensure_ascii=False) + "\n")


def read_lines(path: Path) -> list[LogRow]:
    """Rows that were written whole; a last line that a kill cut off is not one."""
    rows: list[LogRow] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(LogRow(**json.loads(line)))
            except json.JSONDecodeError:
                break
    return rows
