"""Reads a reinforcement fine-tuning job of OpenAI or Azure, with the files that it names.

The job is the body that created it, or the job object that the service returns.

    grader             grader.json, as it is. Type lambda is a function of AWS (lambda_grader.py)
    training_file, validation_file
                       rows by split. The files of these ids are in the folder of --files. A test
                       split is cut from the rows
    tools              tools.endpoints: name, address, headers. Schemas stay in the rows, or come
                       from the job if it has them
    response_format    rollout.response_format
    max_episode_steps  rollout.max_tool_calls, and rollout.max_turns with one more for the answer
    hyperparameters    batch_size, n_epochs, compute_multiplier, eval_interval -> train;
                       "auto" is our default
    seed               train.seed

Spellings of earlier previews are read too (`rft`, `url` for `server_url`), as the contract's
reference lists them. Any other key becomes a note. Values of headers never reach a file: an
environment variable replaces each of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rft import rows
from rft.bridges import foreign, headers, lambda_grader, places
from rft.bridges.imported import Imported, Note
from rft.config import graders
from rft.errors import UserError
from rft.rows import Line
from rft.types import Split

_METHODS = ("rft", "reinforcement")
_RECORD = frozenset(
    {"object", "id", "created_at", "estimated_finish", "finished_at", "error", "status", "organization_id"}
    | {"result_files", "trained_tokens", "usage_metrics", "shared_with_openai", "eval_id"}
    | {"fine_tuned_model", "eval"}
)
"""Keys that a service writes about its own job."""
_AUTO = (None, "auto", "default", -1)
"""Values that leave the choice to the service. Azure answers -1 where it was sent nothing."""
_WHY: dict[str, str] = {
    "model": "that model is not served elsewhere. Name one in policy.model of params.yaml",
    "suffix": "models are named by their run here",
    "user_provided_suffix": "models are named by their run here",
    "metadata": "is not kept with a run; bridge.json names the job",
    "integrations": "metrics go to MLflow",
    "learning_rate_multiplier": "multiplies a rate that is not published; train.lr has a default of its own",
    "reasoning_effort": "is the hosted model's; a model's own switch is in policy.template_arguments",
    "eval_samples": "one greedy rollout of each validation example is played in training",
    "trainingType": "is Azure's choice of a region",
}
_OTHER = "is not known here, and has no effect"


def read(path: Path, files: Path | None) -> Imported:
    """Read a job. Raises UserError and ConfigError naming file, line, key and remedy."""
    job, where = foreign.json_object(path), path.name
    method = _reinforcement(job, where)
    if "grader" not in method:
        raise UserError(f"{where}: method.reinforcement.grader is missing. A job without a grader cannot be imported.")
    secrets: list[str] = []
    grader, function = _grader(method["grader"], f"{where}: grader", files, secrets)
    found = dict(_rows(job, where, files))
    given = method.get("tools") or []
    if not isinstance(given, list):
        raise UserError(f"{where}: tools is {given!r}, expected a list of {{name, server_url, headers}}.")
    tools = [_endpoint(tool, f"{where}: tools[{n}]", secrets) for n, tool in enumerate(given)]
    _check_tools({tool["name"]: "parameters" in tool for tool in tools}, found)
    settings, epochs, notes = _settings(method, where)
    if tools:
        settings["tools"] = {"endpoints": tools}
    if job.get("seed") is not None:
        settings.setdefault("train", {})["seed"] = int(foreign.number(job["seed"], f"{where}: seed", 0))
    known = {"training_file", "validation_file", "method", "seed", *_METHODS, "hyperparameters"}
    every = [line for lines in found.values() for line in lines]
    has_format = "response_format" in settings.get("rollout", {})
    place = f"{where}: grader"
    notes = [*_notes(job, known | _RECORD, where), *notes]
    notes += places.check(graders.read(grader, place), every, has_format, place)
    return Imported(
        origin=f"Job {job.get('id') or path.name} of {_named(job)}",
        rows=found,
        grader=grader,
        settings=settings,
        epochs=epochs,
        tools=lambda_grader.TOOLS if function else None,
        extra_files={"lambda_function.py": function.source} if function else {},
        notes=(*notes, *(function.notes if function else ())),
        to_fill=function.to_fill if function else (),
        secrets=tuple(secrets),
    )


def _named(job: Mapping[str, Any]) -> str:
    model = job.get("model")
    return model if isinstance(model, str) else "an unnamed model"


def _reinforcement(job: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of the method, in any spelling of the previews."""
    method = job.get("method")
    kind = method.get("type") if isinstance(method, Mapping) else method
    block = job.get("rft") or job.get("reinforcement")
    if kind is None and not block:
        raise UserError(
            f"{where}: names no method. Save one job of reinforcement fine-tuning, as its address returns it. A grader "
            "alone is imported by --from grader:FILE."
        )
    if kind not in (*_METHODS, None):
        raise UserError(
            f"{where}: method.type is {kind!r}. Only a job of reinforcement fine-tuning can be imported. For "
            "demonstrations, see train.algorithm: supervised in docs/params.md."
        )
    inner = (method.get("reinforcement") or method.get("rft")) if isinstance(method, Mapping) else None
    found = inner or block
    if not isinstance(found, dict):
        raise UserError(f"{where}: method.reinforcement is missing. It holds the grader.")
    if isinstance(job.get("hyperparameters"), dict):  # where early clients wrote them
        found = {"hyperparameters": job["hyperparameters"]} | found
    return found


# -- rows ------------------------------------------------------------------------------------------
def _rows(job: Mapping[str, Any], where: str, files: Path | None) -> Iterator[tuple[Split, list[Line]]]:
    files_of: dict[str, Split] = {"training_file": "train", "validation_file": "validation"}
    for key, split in files_of.items():
        named = job.get(key)
        if named is None and split != "train":
            continue
        if not isinstance(named, str) or not named:
            raise UserError(f"{where}: {key} is {named!r}, expected the id of a file.")
        file = foreign.file_of(named, key, files, where)
        lines = rows.lines(file)
        if not lines:
            raise UserError(f"{file}: has no rows. A row is a JSON object with `messages`.")
        yield split, lines


def _check_tools(endpoints: Mapping[str, bool], found: Mapping[Split, list[Line]]) -> None:
    """Raises UserError for a tool that a row offers and for which the job has no address.

    `endpoints`: name -> whether the job has its schema.
    """
    for line in (line for lines in found.values() for line in lines):
        try:
            row = json.loads(line.text)
        except ValueError:
            continue  # rows.read names it
        for tool in row.get("tools") or [] if isinstance(row, dict) else []:
            name = _name_of(tool)
            if name not in endpoints:
                raise UserError(
                    f"{line.where}: offers the tool {name!r}, and the job has no address of it. Add it to tools of the "
                    f"job, or take it out of the row. {_known(endpoints)}"
                )


def _known(endpoints: Mapping[str, bool]) -> str:
    return f"The job's tools are {', '.join(endpoints)}." if endpoints else "The job has no tools."


def _name_of(tool: Any) -> str:
    inner = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(inner.get("name")) if isinstance(inner, dict) else ""


# -- tools and grader ------------------------------------------------------------------------------
def _endpoint(tool: Any, where: str, secrets: list[str]) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise UserError(f"{where}: has no name. A tool is {{name, server_url, headers}}.")
    address = tool.get("server_url") or tool.get("url")
    if not isinstance(address, str):
        raise UserError(f"{where}: {tool['name']} has no server_url. Write the address to which calls are posted.")
    found: dict[str, Any] = {"name": tool["name"], "server_url": address}
    if sent := headers.hidden(tool.get("headers"), tool["name"], where, secrets):
        found["headers"] = sent
    nested = tool.get("function")
    inner: dict[str, Any] = nested if isinstance(nested, dict) else tool
    for key in ("description", "parameters"):
        if key in inner:
            found[key] = inner[key]
    unknown = set(tool) - {
        "name",
        "server_url",
        "url",
        "headers",
        "description",
        "parameters",
        "function",
        "type",
        "strict",
    }
    if unknown:
        raise UserError(
            f"{where}: {sorted(unknown)[0]!r} is not sent by our client. Remove it, or send it as a header."
        )
    return found


def _grader(
    raw: Any, where: str, files: Path | None, secrets: list[str]
) -> tuple[dict[str, Any], lambda_grader.Handler | None]:
    """Return the grader with hidden header values. For type lambda, which Bedrock has, return an
    endpoint instead, and the function. Raises ConfigError for an unusable grader."""
    if isinstance(raw, dict) and raw.get("type") == "lambda":
        arn = raw["lambda"].get("function") if isinstance(raw.get("lambda"), dict) else None
        if not isinstance(arn, str):
            raise UserError(f"{where}: lambda.function is missing. It names the function.")
        return dict(lambda_grader.GRADER), lambda_grader.handler(arn, files, where)
    raw = headers.of_grader(raw, where, secrets)
    graders.read(raw, where)
    return raw, None


# -- settings --------------------------------------------------------------------------------------
def _settings(method: Mapping[str, Any], where: str) -> tuple[dict[str, Any], float | None, list[Note]]:
    """Return sections of params.yaml, the number of epochs, and what has no counterpart."""
    train: dict[str, Any] = {}
    rollout: dict[str, Any] = {}
    if method.get("response_format") is not None:
        rollout["response_format"] = method["response_format"]
    if (steps := method.get("max_episode_steps")) is not None:
        most = foreign.number(steps, f"{where}: max_episode_steps", 1)
        rollout |= {"max_tool_calls": int(most), "max_turns": int(most) + 1}
    given = method.get("hyperparameters") or {}
    if not isinstance(given, dict):
        raise UserError(f"{where}: hyperparameters is {type(given).__name__}, expected names with values.")
    known = {key: value for key, value in given.items() if value not in _AUTO}
    place = f"{where}: hyperparameters"
    if "batch_size" in known:
        train["examples_per_step"] = int(foreign.number(known.pop("batch_size"), f"{place}.batch_size", 1))
    epochs = foreign.number(known.pop("n_epochs"), f"{place}.n_epochs", 1) if "n_epochs" in known else None
    if "compute_multiplier" in known:
        train["compute_multiplier"] = foreign.number(
            known.pop("compute_multiplier"), f"{place}.compute_multiplier", 1e-5
        )
    if "eval_interval" in known:
        train["validate_every"] = int(foreign.number(known.pop("eval_interval"), f"{place}.eval_interval", 1))
    notes = _notes(known, set(), place)
    notes += _notes(
        method,
        {"grader", "tools", "response_format", "max_episode_steps", "hyperparameters"},
        f"{where}: reinforcement",
    )
    sections = {"rollout": rollout, "train": train}
    return {name: values for name, values in sections.items() if values}, epochs, notes


def _notes(given: Mapping[str, Any], known: set[str] | frozenset[str], where: str) -> list[Note]:
    return [
        Note(
            f"{where}.{key}" if ": " in where else f"{where}: {key}",
            f"{json.dumps(value)[:80]} {_WHY.get(key, _OTHER)}",
        )
        for key, value in given.items()
        if key not in known and value is not None
    ]
