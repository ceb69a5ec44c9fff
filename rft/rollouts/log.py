"""The rollout log: a Parquet file with one row per rollout, and one schema for all stages.

DuckDB and pandas read it. Every row says whether it was trained on and, if not, why: sampled =
trained + left out with a reason. Token ids and log-probabilities are flat over turns. `ids` is the
whole sequence, `loss_mask` marks the tokens that the policy sampled, and `logprobs` has a value for
those alone. Wall times are in `timing.json`, so that equal runs leave equal bytes here. `messages`
and `item` are complete. So a person can read a row (rft/rollouts/transcript.py), and it can be
graded again without sampling (rft/rollouts/replay.py).

While a stage runs, its rows wait under `.rft/` in a store that survives any kill
(rft/rollouts/store.py); `write` turns them into the stage's file. The store keeps beside each row
what the row lacks of its turns (`turns_json`). From both, `restored` rebuilds the trajectory, and a
killed stage goes on with it.
"""

from __future__ import annotations

import io
import json
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rft import commands, files, secrets
from rft.chat.dialogue import messages_of
from rft.errors import RftError, UserError
from rft.reports import PromptSettings
from rft.types import (
    EARLIER_STATUSES,
    EARLIER_STOP_REASONS,
    Example,
    Grade,
    GradeStatus,
    Scored,
    ScoredStatus,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Unscored,
    UnscoredStatus,
    Usage,
)

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 512
"""Rows per row group. A log is written in pieces, so that only the disk limits its length."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One rollout. `reward`, `score` and `solved` are None when it is unscored. `left_out` is empty
    if it was `trained`, and in a stage that trains nothing. The counts of tokens are
    rft.types.Usage, added up over the turns; context and cached are None for a policy that does not
    count them."""

    stage: str
    arm: str
    step: int
    example_id: str
    sample: int
    attempt: int  # 0, or the number of the refill
    rollout_id: str
    split: str
    slice: str
    stop_reason: str
    reward: float | None
    score: float | None
    solved: bool | None
    status: str
    num_turns: int
    num_tool_calls: int
    num_tool_errors: int
    num_tokens: int
    num_forks: int
    components: str  # JSON object: the grade's parts
    explanation: str
    item: str  # the user's row, byte for byte, so that a log can be graded again
    messages: str  # JSON: the dialogue in OpenAI's form
    ids: list[int]
    loss_mask: list[bool]
    logprobs: list[float]
    trained: bool = False
    left_out: str = ""
    temperature: float | None = None  # 0: greedy. None: not on record
    num_context_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_unreadable_calls: int | None = None  # None: not on record
    flags: str | None = None  # JSON list: the wire's error keys that the grade raised. None: not on record
    evidence: str | None = None  # JSON list of texts. None: not on record


COLUMNS = tuple(column.name for column in fields(LogRow))
_COUNTED_LATER = ("num_context_tokens", "num_cached_tokens", "num_unreadable_calls")
_SAID_LATER = ("flags", "evidence")
_LATER = (*_COUNTED_LATER, *_SAID_LATER)
"""Columns that files of 0.1.0 may lack. A missing value is then not on record."""
_RENAMED = {
    "stop_reason": EARLIER_STOP_REASONS,
    "status": EARLIER_STATUSES,
    "left_out": {
        f"{why}: {old}": f"{why}: {new}" for why in ("unscored", "replaced") for old, new in EARLIER_STATUSES.items()
    },
}
"""Column -> a word of 0.1.0 -> today's word."""


# -- a row -----------------------------------------------------------------------------------------
def row(
    trajectory: Trajectory,
    example: Example,
    sample: int,
    prompt: PromptSettings,
    stage: str,
    arm: str,
    step: int = 0,
    split: str = "",
    temperature: float | None = None,
) -> LogRow:
    """Make the row of a rollout. Log-probabilities are rounded to the 32 bits that the file has."""
    ids, loss_mask, logprobs = trajectory.flat()
    usage = trajectory.usage
    return LogRow(
        stage=stage,
        arm=arm,
        step=step,
        example_id=example.id,
        sample=sample,
        attempt=trajectory.attempt,
        rollout_id=trajectory.rollout_id,
        split=split,
        slice=example.slice,
        stop_reason=str(trajectory.stop_reason),
        reward=trajectory.reward,
        score=trajectory.grade.score,
        solved=None if trajectory.grade.score is None else trajectory.grade.solved,
        status=str(trajectory.grade.status),
        num_turns=len(trajectory.turns),
        num_tool_calls=trajectory.num_tool_calls,
        num_tool_errors=sum(result.is_error for turn in trajectory.turns for result in turn.results),
        num_tokens=trajectory.num_tokens if usage is None else usage.sampled,
        num_forks=trajectory.num_forks,
        components=json.dumps(trajectory.grade.components, sort_keys=True),
        item=secrets.redact(example.line),
        explanation=secrets.redact(trajectory.grade.explanation),
        messages=_json(messages_of(trajectory, example, prompt)),
        ids=ids,
        loss_mask=loss_mask,
        logprobs=array("f", logprobs).tolist(),
        temperature=temperature,
        num_context_tokens=None if usage is None else usage.context,
        num_cached_tokens=None if usage is None else usage.cached,
        num_unreadable_calls=trajectory.num_unreadable_calls,
        flags=json.dumps(trajectory.grade.flags),
        evidence=_json(trajectory.grade.evidence),
    )


def turns_json(trajectory: Trajectory, word: str = "") -> str:
    """Return as JSON what a rollout's row lacks: the word of its repetition (recovery.Play), and
    its turns. The turns have only the number of their tokens, because the row has the tokens."""
    turns = [
        {
            "text": turn.text,
            "content": turn.content,
            "reasoning": turn.reasoning,
            "forked": turn.forked,
            "submitted": turn.submitted,
            "calls": [asdict(call) for call in turn.calls],
            "results": [asdict(result) for result in turn.results],
            "tokens": [len(turn.prompt_ids), len(turn.token_ids)],
            "usage": None if turn.usage is None else asdict(turn.usage),
        }
        for turn in trajectory.turns
    ]
    return _json({"word": word, "turns": turns})


def restored(row: LogRow, turns_json: str, wall_s: float) -> tuple[str, Trajectory]:
    """Rebuild the word and the rollout's trajectory, with log-probabilities of 32 bits."""
    found = json.loads(turns_json)
    ids, logprobs = iter(row.ids), iter(row.logprobs)
    turns: list[Turn] = []
    for turn in found["turns"]:
        given, own = turn["tokens"]
        turns.append(
            Turn(
                text=turn["text"],
                calls=tuple(ToolCall(**call) for call in turn["calls"]),
                results=tuple(ToolResult(**result) for result in turn["results"]),
                prompt_ids=tuple(islice(ids, given)),
                token_ids=tuple(islice(ids, own)),
                logprobs=tuple(islice(logprobs, own)),
                content=turn["content"],
                reasoning=turn["reasoning"],
                forked=turn["forked"],
                submitted=turn.get("submitted"),
                usage=None if turn["usage"] is None else Usage(**turn["usage"]),
            )
        )
    return found["word"], Trajectory(
        rollout_id=row.rollout_id,
        example_id=row.example_id,
        turns=tuple(turns),
        stop_reason=StopReason(row.stop_reason),
        grade=_grade(row),
        reward=row.reward,
        wall_s=wall_s,
        attempt=row.attempt,
    )


def _grade(row: LogRow) -> Grade:
    status = GradeStatus(row.status)
    flags, evidence = (tuple(json.loads(text or "[]")) for text in (row.flags, row.evidence))
    if row.score is None:
        return Unscored(cast(UnscoredStatus, status), row.explanation, flags, evidence)
    parts = json.loads(row.components)
    return Scored(row.score, cast(ScoredStatus, status), bool(row.solved), parts, row.explanation, flags, evidence)


def cells(row: LogRow) -> dict[str, Any]:
    """Return a row's values by column. Unlike `asdict`, it copies no list, because there are many
    tokens."""
    return {name: getattr(row, name) for name in COLUMNS}


def _json(value: Any) -> str:
    """Write JSON with readable letters. If a text has a lone surrogate, which UTF-8 cannot hold,
    all letters beyond ASCII are escaped."""
    text = secrets.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return secrets.dumps(value)
    return text


# -- a file ----------------------------------------------------------------------------------------
def schema() -> pa.Schema:
    """Return the columns of every rollouts.parquet, in order."""
    import pyarrow as pa

    return pa.schema(
        [(name, pa.string()) for name in ("stage", "arm")]
        + [("step", pa.int32()), ("example_id", pa.string()), ("sample", pa.int32()), ("attempt", pa.int32())]
        + [(name, pa.string()) for name in ("rollout_id", "split", "slice", "stop_reason")]
        + [("reward", pa.float64()), ("score", pa.float64()), ("solved", pa.bool_()), ("status", pa.string())]
        + [(name, pa.int32()) for name in ("num_turns", "num_tool_calls", "num_tool_errors", "num_tokens", "num_forks")]
        + [(name, pa.string()) for name in ("components", "explanation", "item", "messages")]
        + [("ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.bool_())), ("logprobs", pa.list_(pa.float32()))]
        + [("trained", pa.bool_()), ("left_out", pa.string()), ("temperature", pa.float64())]
        + [(name, pa.int32()) for name in _COUNTED_LATER]
        + [(name, pa.string()) for name in _SAID_LATER]
    )


def write(rows: Iterable[LogRow], path: Path) -> None:
    """Write the stage's file, whole or not at all. It is on the disk when this returns. Equal rows
    give equal bytes."""
    import pyarrow.parquet as pq

    waiting = iter(rows)
    with files.replacing(path, durable=True) as part, pq.ParquetWriter(part, schema(), compression="zstd") as writer:
        while chunk := list(islice(waiting, CHUNK)):
            writer.write_table(table_of(chunk))


def table(source: Path | bytes, name: str = "") -> pa.Table:
    """Read a log as a table with exactly our columns and today's words. Raises UserError, with
    `name`, for a file that is not a rollout log of this version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = name or str(source if isinstance(source, Path) else "the log")
    try:
        found = pq.read_table(io.BytesIO(source) if isinstance(source, bytes) else source)
    except pa.ArrowInvalid as error:
        what = f"{name} is not a Parquet file ({str(error).splitlines()[0]})"
        raise UserError(f"{what}. Make the stage's files again: {commands.command('run')}") from None
    for column in _LATER:
        if column not in found.column_names:
            found = found.append_column(column, pa.nulls(len(found), pa.int32()))
    if missing := [column for column in COLUMNS if column not in found.column_names]:
        what = f"{name} has no column {', '.join(missing)}: another version of agent-rft wrote it"
        raise UserError(f"{what}. Run the stage again to read it here.")
    found = found.select(COLUMNS).cast(schema())
    for column, words in _RENAMED.items():
        today = pa.array([words.get(value, value) for value in found[column].to_pylist()], pa.string())
        found = found.set_column(COLUMNS.index(column), found.schema.field(column), today)
    return found


def table_of(rows: Iterable[LogRow]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist([cells(row) for row in rows], schema=schema())


def rows_of(found: pa.Table) -> list[LogRow]:
    return [LogRow(**{name: row[name] for name in COLUMNS}) for row in found.to_pylist()]


def read(source: Path | bytes, name: str = "") -> list[LogRow]:
    return rows_of(table(source, name))


# -- sampled = trained + left out ------------------------------------------------------------------
@dataclass(slots=True)
class Tally:
    """Counts what happened to the rollouts of one stage, arm and step. Each rollout counts exactly
    once."""

    stage: str
    arm: str
    step: int
    sampled: int = 0
    trained: int = 0
    compared: int = 0  # scored, in a stage that trains nothing
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def adds_up(self) -> bool:
        return self.sampled == self.trained + self.compared + self.left_out.total()


def tally(rows: Iterable[LogRow]) -> list[Tally]:
    """Count rows, in order of appearance. Raises RftError if a row contradicts itself, because then
    nobody knows what was trained on."""
    found: dict[tuple[str, str, int], Tally] = {}
    for row in rows:
        counts = found.setdefault((row.stage, row.arm, row.step), Tally(row.stage, row.arm, row.step))
        counts.sampled += 1
        if fault := _fault(row):
            where = f"rollout {row.rollout_id} of {row.stage}/{row.arm}, step {row.step}"
            raise RftError(f"the log does not add up: {where}, {fault}.")
        if row.left_out:
            counts.left_out[row.left_out] += 1
        elif row.trained:
            counts.trained += 1
        elif row.reward is None:
            counts.left_out[f"unscored: {row.status}"] += 1
        else:
            counts.compared += 1
    assert all(counts.adds_up for counts in found.values())
    return list(found.values())


def _fault(row: LogRow) -> str:
    if row.trained and row.left_out:
        return f"was trained on, and left out ({row.left_out})"
    if row.trained and row.reward is None:
        return "was trained on without a score"
    if row.trained and row.stage != "train":
        return "was trained on outside of training"
    if row.stage == "train" and not row.trained and not row.left_out:
        return "was neither trained on nor left out with a reason"
    return ""
