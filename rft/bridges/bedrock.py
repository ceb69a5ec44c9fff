"""Reads a reinforcement fine-tuning job of Amazon Bedrock.

The job is the request of CreateModelCustomizationJob or the answer of GetModelCustomizationJob
(shapes: botocore's service model). The folder of --files holds what it names:

    trainingDataConfig.s3Uri, validationDataConfig.validators[].s3Uri
                        files of the same name: rows with `messages` and keys of their own
    graderConfig.lambdaGrader.lambdaArn
                        the source of that function (lambda_grader.py)
    rftConfig.hyperParameters
                        batchSize, epochCount, trainingSamplePerPrompt, evalInterval -> train;
                        inferenceMaxTokens -> rollout

A job for an open-weights model has OpenAI's form, with a grader of type `lambda`. openai.py reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rft import rows
from rft.bridges import foreign, openai
from rft.bridges.imported import Imported, Note
from rft.bridges.lambda_grader import GRADER, TOOLS, handler
from rft.errors import UserError
from rft.rows import Line
from rft.types import Split

_KNOWN = {"customizationType", "customizationConfig", "trainingDataConfig", "validationDataConfig"}
_RECORD = (
    {"jobArn", "jobName", "outputModelName", "outputModelArn", "clientRequestToken", "roleArn", "status"}
    | {"statusDetails", "failureMessage", "creationTime", "lastModifiedTime", "endTime", "outputDataConfig"}
    | {"outputModelKmsKeyArn", "trainingMetrics", "validationMetrics", "customModelName", "customModelKmsKeyId"}
    | {"jobTags", "customModelTags", "ResponseMetadata"}
)
"""Keys that belong to the account, or that record how the job went."""
_WHY = {
    "baseModelIdentifier": "name a model of your own in policy.model of params.yaml",
    "baseModelArn": "name a model of your own in policy.model of params.yaml",
    "learningRate": "belongs to another model; train.lr has a default by the model's width",
    "reasoningEffort": "is the hosted model's; a model's own switch is in policy.template_arguments",
    "maxPromptLength": "no row is left out for its length; rollout.max_tokens is the limit of the whole context",
    "vpcConfig": "there is no network of the service",
}


def read(path: Path, files: Path | None) -> Imported:
    """Read a job. Raises UserError naming file, line, key and remedy."""
    job, where = foreign.json_object(path), path.name
    if "customizationType" not in job and "method" in job:
        return openai.read(path, files)
    if job.get("customizationType") != "REINFORCEMENT_FINE_TUNING":
        raise UserError(
            f"{where}: customizationType is {job.get('customizationType')!r}. Only REINFORCEMENT_FINE_TUNING can be "
            "imported."
        )
    tuning = _inner(job, where, "customizationConfig", "rftConfig")
    arn = _inner(tuning, where, "graderConfig", "lambdaGrader").get("lambdaArn")
    if not isinstance(arn, str):
        raise UserError(f"{where}: rftConfig.graderConfig.lambdaGrader.lambdaArn is missing. It names the grader.")
    if files is None:
        raise UserError(f"{where}: names files in S3 and a Lambda function. Add --files FOLDER with both.")
    found: dict[Split, list[Line]] = {"train": _rows(job.get("trainingDataConfig"), "trainingDataConfig", files, where)}
    given = job.get("validationDataConfig")
    validators = given.get("validators") or [] if isinstance(given, dict) else []
    if not isinstance(validators, list) or (given and not isinstance(given, dict)):
        raise UserError(f"{where}: validationDataConfig is {str(given)[:80]}, expected an object with validators.")
    if len(validators) > 1:
        raise UserError(f"{where}: validationDataConfig has {len(validators)} validators. Leave one of them.")
    if validators:
        found["validation"] = _rows(validators[0], "validationDataConfig.validators[0]", files, where)
    hyper = _inner(tuning, where, "hyperParameters") if tuning.get("hyperParameters") else {}
    settings, notes = _settings(hyper, where)
    function = handler(arn, files, where)
    epochs = hyper.get("epochCount")
    if epochs is not None:
        epochs = foreign.number(epochs, f"{where}: hyperParameters.epochCount", 1)
    notes = [
        *(_note(where, key, value) for key, value in job.items() if key not in _KNOWN | _RECORD and value),
        *notes,
        *function.notes,
    ]
    return Imported(
        origin=f"Bedrock job {job.get('jobName') or path.name}",
        rows=found,
        grader=dict(GRADER),
        settings=settings,
        epochs=epochs,
        tools=TOOLS,
        extra_files={"lambda_function.py": function.source},
        notes=tuple(notes),
        to_fill=function.to_fill,
    )


def _inner(value: Mapping[str, Any], where: str, *keys: str) -> dict[str, Any]:
    found: Any = value
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, dict):
        raise UserError(f"{where}: {'.'.join(keys)} is missing. A job of reinforcement fine-tuning has it.")
    return found


def _rows(source: Any, key: str, files: Path, where: str) -> list[Line]:
    address = source.get("s3Uri") if isinstance(source, dict) else None
    if not isinstance(address, str):
        raise UserError(f"{where}: {key}.s3Uri is missing. Rows from invocation logs cannot be imported: write a file.")
    file = files / address.rpartition("/")[2]
    if not file.is_file():
        raise UserError(f"{where}: {key}.s3Uri is {address!r}, and {files} has no {file.name}. Copy it there.")
    found = rows.lines(file)
    if not found:
        raise UserError(f"{file}: has no rows. A row is a JSON object with `messages`.")
    return found


def _settings(given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Note]]:
    train: dict[str, Any] = {}
    settings: dict[str, Any] = {"train": train}
    notes: list[Note] = []
    for key, value in given.items():
        match key:
            case "batchSize":
                train["examples_per_step"] = int(foreign.number(value, f"{where}: hyperParameters.{key}", 1))
            case "epochCount":
                pass
            case "trainingSamplePerPrompt":
                train["group_size"] = int(foreign.number(value, f"{where}: hyperParameters.{key}", 1))
            case "evalInterval":
                train["validate_every"] = int(foreign.number(value, f"{where}: hyperParameters.{key}", 1))
            case "inferenceMaxTokens":
                settings["rollout"] = {
                    "max_turn_tokens": int(foreign.number(value, f"{where}: hyperParameters.{key}", 1))
                }
            case _:
                notes.append(_note(where, key, value))
    return settings, notes


def _note(where: str, key: str, value: Any) -> Note:
    return Note(f"{where}: {key}", f"{str(value)[:80]!r} {_WHY.get(key, 'is not known here, and has no effect')}")
