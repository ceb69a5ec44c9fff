"""Reads the Lambda function that grades a Bedrock job, and writes the tools.py that calls it.

    NAME.py or lambda_function.py   its source, in the folder of --files
    lambda_handler(event, context)  gets a list of one rollout. A row's keys are beside `messages`,
                                    as for open-weights models, and also in `metadata`, as for
                                    Amazon Nova, so that Amazon's sample functions find them
    aggregate_reward_score          the score; metrics_list and reward_components are sub-scores

The function is the owner's own code, so it runs where a recipe's tools run. An error that it raises
leaves the rollout unscored. If it catches an error and returns 0, nobody can tell.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from rft.bridges import foreign, packages
from rft.bridges.imported import Note
from rft.errors import UserError

GRADER = {"type": "endpoint", "name": "lambda", "url": "{tool_server}/grade"}
TOOLS = '''\
"""Grades by the Lambda function that came with the job: lambda_function.py, called in this process
with the event that Bedrock sends."""

from __future__ import annotations

import json
from typing import Any

from . import lambda_function

TOOLS = []


def grade(sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return the aggregate score, and the metrics as sub-scores."""
    own = {key: value for key, value in item.items() if key != "messages"}
    given = own.get("metadata")
    metadata = own | (given if isinstance(given, dict) else {})
    answer = {"role": "assistant", "content": sample["output_text"]}
    event = {"id": "rollout", **own, "metadata": metadata, "messages": [*item["messages"], answer]}
    [found] = read(lambda_function.lambda_handler([event], None))
    return {"score": found["aggregate_reward_score"], "sub_scores": sub_scores(found)}


def read(reply: Any) -> list[dict[str, Any]]:
    """Return the list of results, also out of the reply of a function with an address."""
    if isinstance(reply, dict) and reply.get("statusCode", 200) == 200 and "body" in reply:
        reply = json.loads(reply["body"]) if isinstance(reply["body"], str) else reply["body"]
    if not isinstance(reply, list):
        raise ValueError(f"lambda_handler returned {str(reply)[:300]}, expected a list of results")
    return reply


def sub_scores(found: dict[str, Any]) -> dict[str, float]:
    """Name the numbers beside the score. Amazon's samples have them in three ways."""
    listed = found.get("metrics_list") or []
    metrics = {metric.get("name", metric.get("metric")): metric.get("value") for metric in listed}
    named = (found.get("reward_components") or {}) | metrics
    return {str(name): float(value) for name, value in named.items() if isinstance(value, int | float)}
'''
_NOTES = (
    Note("lambda_function.py", "an error that it turns into 0 stays a 0: let it raise, and the rollout is unscored"),
    Note(
        "lambda_function.py",
        "runs in the tool server's process, not in Lambda's sandbox: code of a model that it runs may do what you may",
    ),
)


class Handler(NamedTuple):
    source: bytes
    notes: tuple[Note, ...]
    to_fill: tuple[str, ...]


def handler(arn: str, files: Path | None, where: str) -> Handler:
    """Find the source of a function. Raises UserError naming the missing file, or the line that is
    not Python."""
    if files is None:
        raise UserError(f"{where}: the grader is {arn}. Add --files FOLDER with the function's source.")
    name = arn.split(":function:")[-1].split(":")[0]
    for file in (files / f"{name}.py", files / "lambda_function.py"):
        if file.is_file():
            source = foreign.text(file)
            _check(source, file)
            return Handler(source.encode(), _NOTES, tuple(packages.missing(source, "lambda_function.py")))
    raise UserError(
        f"{where}: the grader is {arn}, and {files} has no {name}.py or lambda_function.py. Copy its source there."
    )


def _check(source: str, file: Path) -> None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UserError(f"{file}:{line}: is not Python ({error}). Download it again.") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "lambda_handler" for node in tree.body):
        raise UserError(f"{file}: defines no lambda_handler(event, context), which Bedrock calls. Add it.")
