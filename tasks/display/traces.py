"""Rollouts as MLflow traces: a span for the rollout, for each turn, and for each tool call.

Traces are built from the rollout log, so nothing in the loop knows of MLflow. A trace's id is a
function of the run and the rollout. So exporting twice writes the same trace again, and the next
export completes one that was cut off. The log holds no wall times, so spans are a millisecond
apart, from the start of the run: their order is true, but their length means nothing.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rft.errors import InfrastructureError, UserError
from rft.rollouts import transcript
from rft.rollouts.log import LogRow
from tasks.display import tracking
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

TICK_NS = 1_000_000


def export(clone: Clone, record: RunRecord, rows: Sequence[LogRow], report: Callable[[int], None]) -> str:
    """Write traces into the MLflow run that shows this run; return the experiment's name."""
    client = tracking.client(clone)
    from mlflow.exceptions import MlflowException
    from mlflow.tracing.client import TracingClient

    if record.mlflow_run_id is None:
        raise UserError(f"run {record.name} is not in MLflow, so its traces have no place there.")
    began = int(datetime.fromisoformat(record.started).timestamp() * 1e9)
    try:
        experiment = client.get_experiment(client.get_run(record.mlflow_run_id).info.experiment_id)
        traces = TracingClient(tracking_uri=tracking.address(clone))
        for number, row in enumerate(rows, 1):
            spans = list(_spans(row, record.name, began + number * TICK_NS))
            traces.start_trace(_info(row, record, experiment.experiment_id, spans))
            traces.log_spans(experiment.experiment_id, spans)
            report(number)
    except MlflowException as error:
        raise InfrastructureError(
            f"MLflow did not take a trace: {error}. What was exported stays; the same command goes on."
        ) from None
    return experiment.name


def trace_id(run: str, row: LogRow) -> str:
    return f"tr-{_hex(run, row)}"


def _hex(run: str, row: LogRow, *place: object) -> str:
    """Return the id of a rollout, or of a place in it. It depends on the run, because a repeated
    run has equal rollouts."""
    parts = (run, row.stage, row.arm, row.step, row.sample, row.attempt, row.rollout_id, *place)
    return uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(parts)).hex


def _base64(digits: str) -> str:
    """Return an id in the form of OpenTelemetry's JSON."""
    return base64.b64encode(bytes.fromhex(digits)).decode()


def _info(row: LogRow, record: RunRecord, experiment_id: str, spans: Sequence[Span]) -> TraceInfo:
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    tags = {
        "mlflow.traceName": f"{row.stage}/{row.arm}",
        "run": record.name,
        "rollout": row.rollout_id,
        "stage": row.stage,
        "arm": row.arm,
        "step": row.step,
        "example": row.example_id,
        "sample": row.sample,
        "attempt": row.attempt,
        "stop_reason": row.stop_reason,
        "status": row.status,
        "reward": transcript.number(row.reward),
        "score": transcript.number(row.score),
        "training": transcript.use(row),
    }
    root = spans[0]
    return TraceInfo(
        trace_id=trace_id(record.name, row),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=root.start_time_ns // 1_000_000,
        execution_duration=((root.end_time_ns or 0) - root.start_time_ns) // 1_000_000,
        state=TraceState.OK if row.reward is not None else TraceState.ERROR,
        request_preview=_last(row),
        response_preview=_answer(row),
        tags={name: str(value) for name, value in tags.items()},
        trace_metadata={"mlflow.sourceRun": record.mlflow_run_id or ""},
    )


def _last(row: LogRow) -> str:
    """Return the last message that the policy was given."""
    opening = transcript.dialogue(row).opening
    return str(opening[-1].get("content", ""))[:1000] if opening else ""


def _answer(row: LogRow) -> str:
    turns = transcript.dialogue(row).turns
    return str(turns[-1].message.get("content", ""))[:1000] if turns else ""


def _spans(row: LogRow, run: str, start: int) -> Iterator[Span]:
    """Yield the spans, the root first. Times are ticks: a call takes one, and a span ends after
    those inside it."""
    dialogue = transcript.dialogue(row)
    failed = row.reward is None
    ends = sum(1 + len(turn.calls) for turn in dialogue.turns) + 1
    outcome = {
        "answer": _answer(row),
        "stop_reason": row.stop_reason,
        "score": row.score,
        "reward": row.reward,
        "solved": row.solved,
    }
    graded = {"components": json.loads(row.components), "explanation": row.explanation, "training": transcript.use(row)}
    root = _Place(run, row, start)
    yield root.span("rollout", "AGENT", (), 0, ends, {"messages": list(dialogue.opening)}, outcome | graded, failed)
    tick, given = 0, list(dialogue.opening)
    for n, turn in enumerate(dialogue.turns):
        until = tick + 1 + len(turn.calls)
        yield root.span(f"turn {n + 1}", "CHAT_MODEL", (n,), tick, until, {"messages": given}, turn.message, False)
        for m, call in enumerate(turn.calls):
            result = turn.result(call["id"])
            name, begin = call["function"]["name"] or "?", tick + m
            yield root.span(name, "TOOL", (n, m), begin, begin + 1, _arguments(call), result, result is None)
        tick, given = until, list(turn.results)


def _arguments(call: dict[str, Any]) -> Any:
    try:
        return json.loads(call["function"]["arguments"])
    except ValueError:
        return {"arguments": call["function"]["arguments"]}


class _Place:
    """Makes the spans of one trace. A place is `()` the rollout, `(n,)` a turn, `(n, m)` a call."""

    def __init__(self, run: str, row: LogRow, start: int):
        self._run, self._row, self._start = run, row, start

    def span(
        self,
        name: str,
        kind: str,
        place: tuple[int, ...],
        begin: int,
        end: int,
        inputs: Any,
        outputs: Any,
        failed: bool,
    ) -> Span:
        from mlflow.entities import Span

        attributes = {
            "mlflow.traceRequestId": trace_id(self._run, self._row),
            "mlflow.spanType": kind,
            "mlflow.spanInputs": inputs,
            "mlflow.spanOutputs": outputs,
        }
        return Span.from_dict(
            {
                "trace_id": _base64(_hex(self._run, self._row)),
                "span_id": self._id(place),
                "parent_span_id": self._id(place[:-1]) if place else "",
                "name": name,
                "start_time_unix_nano": self._start + begin * TICK_NS,
                "end_time_unix_nano": self._start + end * TICK_NS,
                "status": {
                    "code": "STATUS_CODE_ERROR" if failed else "STATUS_CODE_OK",
                    "message": self._row.explanation if failed else "",
                },
                "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in attributes.items()},
                "events": [],
            }
        )

    def _id(self, place: tuple[int, ...]) -> str:
        return _base64(_hex(self._run, self._row, "span", *place)[:16])
