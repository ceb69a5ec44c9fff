"""Reads an eval of OpenAI's Evals API with its runs and their output items, from file or folder.

The eval is what GET /v1/evals/ID returns, or the body that created it.

    testing_criteria       grader.json: one as it is, several as their mean (criteria.py)
    output items, and the  rows: the messages that the run's input_messages describe, and the
    sources of runs        item's own keys (items.py). Splits are cut from these rows
    samples of runs, and
    stored completions     traffic for `rft traffic ingest` (samples.py)
    sampling_params        response_format and max_completion_tokens -> rollout; functions -> rows
    results                are not imported, because rows are graded anew here. A note counts those
                           without a score and those of a model that did not answer

`export.py` sorts the files. Any other key becomes a note.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rft.bridges import places
from rft.bridges.evals import criteria, items, samples
from rft.bridges.evals.export import ITEM, Export, Found, load
from rft.bridges.imported import Imported, Note
from rft.config import graders, response_format
from rft.errors import UserError

_RECORD = frozenset(
    {"object", "id", "created_at", "eval_id", "status", "error", "report_url", "result_counts", "per_model_usage"}
    | {"per_testing_criteria_results", "shared_with_openai", "created_by", "modified_at"}
)
"""Keys that the service writes about its own objects."""
_WHY = {
    "metadata": "is not kept with a run",
    "name": "is the name of a run there, and has no effect",
    "data_source_config": "is the form of items; rows are taken as they are",
    "model": "is not served elsewhere. Name one in policy.model of params.yaml",
    "temperature": "was the run's; baseline, train and challenger have their own",
    "top_p": "was the run's; the policy samples from its whole distribution",
    "seed": "was the run's; each stage has its own",
    "reasoning_effort": "is the hosted model's; a model's own switch is in policy.template_arguments",
}
_OTHER = "is not known here, and has no effect"
_LIMITS = ("max_completion_tokens", "max_completions_tokens")


def read(path: Path, files: Path | None) -> Imported:
    """Read an export. `files`: the folder with the data files that runs name. Without it, the
    folder of the export is searched.

    Raises UserError and ConfigError naming file, line or id, key and remedy.
    """
    export = load(path)
    where = f"{export.eval.where}: testing_criteria"
    secrets: list[str] = []
    grader, notes, to_fill = criteria.grader_of(export.eval.get("testing_criteria"), where, secrets)
    made = items.made(export, files or (path if path.is_dir() else None))
    lines = list(made.lines.values())
    if made.without:
        raise UserError(
            f"{made.without[0]}: its run sampled no model, so nothing says what the model was told; the same holds "
            f"for {len(made.without) - 1} more items. Add input_messages to data_source of the run."
        )
    if not lines:
        raise UserError(f"{path}: has no items. Add the output items of a run, or the run with its data_source.")
    settings = _settings(export.runs)
    if grader is not None:
        has_format = "response_format" in settings.get("rollout", {})
        notes += places.check(graders.read(grader, where), lines, has_format, where)
    conversations, left = samples.traffic(export)
    name = export.eval.get("name")
    return Imported(
        origin=f"Eval {export.eval.id or path.name}" + (f" ({name})" if name else ""),
        rows={"train": lines},
        grader=grader,
        settings=settings,
        notes=(
            *export.notes(),
            *_eval_notes(export.eval),
            *_run_notes(export.runs),
            *notes,
            *made.notes,
            *_item_notes(export, made),
            *left,
        ),
        to_fill=(*to_fill, *_addresses(made.tools)),
        secrets=tuple(secrets),
        traffic=tuple(conversations),
    )


# -- settings --------------------------------------------------------------------------------------
def _params(run: Found) -> dict[str, Any]:
    return run.inner("data_source", "sampling_params")


def _format(run: Found) -> Any:
    """Return the response format, under the key of either API; None where any text is allowed."""
    text = _params(run).get("text")
    form = _params(run).get("response_format") or (text.get("format") if isinstance(text, dict) else None)
    return None if isinstance(form, dict) and form.get("type") == "text" else form


def _settings(runs: Sequence[Found]) -> dict[str, Any]:
    """Take the settings of the newest run that has them."""
    rollout: dict[str, Any] = {}
    for run in runs:
        if _format(run) is not None:
            response_format.read(_format(run), run.place)
            rollout.setdefault("response_format", _format(run))
        for key in _LIMITS:
            limit = _params(run).get(key)
            if limit is not None and (type(limit) is not int or limit < 1):
                raise UserError(f"{run.place}: {key} is {limit!r}, expected a number of tokens.")
            if limit:
                rollout.setdefault("max_turn_tokens", limit)
    return {"rollout": rollout} if rollout else {}


def _addresses(tools: Mapping[str, None]) -> Iterator[str]:
    """Ask for the address of each tool. Evals needs none: a call ends the sample there, and nobody
    answers it."""
    for name in tools:
        yield f"params.yaml: tools.endpoints: the address of {name}, which the rows offer (docs/params.md)"


# -- notes -----------------------------------------------------------------------------------------
def _eval_notes(found: Found) -> Iterator[Note]:
    for key, value in found.value.items():
        if key not in _RECORD | {"testing_criteria", "name"} and value not in (None, {}, ""):
            yield _note("eval", key, [value])


def _run_notes(runs: Sequence[Found]) -> Iterator[Note]:
    """Yield one note for each key that a run has, with its different values."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        source = run.inner("data_source")
        params = {key: value for key, value in _params(run).items() if key not in (*_LIMITS, "tools")}
        own = {key: value for key, value in run.value.items() if key not in _RECORD | {"data_source"}}
        rest = {key: source[key] for key in source if key not in ("type", "source", "input_messages", "model")}
        rest.pop("sampling_params", None)
        model = {"model": run.get("model") or source.get("model")}
        for key, value in (own | rest | params | model).items():
            if value not in (None, {}, "") and value not in found.setdefault(key, []):
                found[key].append(value)
    formats = [value for value in (_format(run) for run in runs) if value is not None]
    for key, values in found.items():
        if key in ("response_format", "text"):
            if any(response_format.normalized(value) != response_format.normalized(formats[0]) for value in formats):
                yield Note(f"runs: {key}", "runs ask for different forms of the answer; that of the newest is taken")
        elif values:
            yield _note("runs", key, values)


def _note(where: str, key: str, values: Sequence[Any]) -> Note:
    shown = ", ".join(json.dumps(value, ensure_ascii=False)[:80] for value in values[:5])
    return Note(f"{where}: {key}", f"{shown} {_WHY.get(key, _OTHER)}")


def _item_notes(export: Export, made: items.Made) -> Iterator[Note]:
    outputs = export.of_kind(ITEM)
    failed = sum(map(samples.has_error, outputs))
    bare = sum(not samples.has_error(item) and not _has_scores(item) for item in outputs)
    if outputs:
        yield Note("results", f"the verdicts on {len(outputs)} output items are not taken over: rows are graded anew")
    if failed:
        yield Note("results", f"{failed} output items had sample.error: no score, and the model did not fail")
    if bare:
        yield Note("results", f"{bare} output items have a result without `passed` or `score`: no score")
    if made.sampled:
        yield Note(
            "rows", f"{made.sampled} items have a `sample` beside them: an earlier answer, which is not taken over"
        )
    if made.unlike:
        text = "items were sent with another prompt by an older run; the newest run's is taken"
        yield Note("rows", f"{len(made.unlike)} {text}")


def _has_scores(item: Found) -> bool:
    results = item.get("results")
    return isinstance(results, list) and all(
        isinstance(one, dict) and one.get("passed") is not None and one.get("score") is not None for one in results
    )
