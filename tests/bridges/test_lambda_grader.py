"""The Lambda function of a job of Bedrock grades as it did there: it finds a row's keys where
Amazon's samples look for them, and its result is read in each of their forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import row, written

from rft import bridges, config, recipe
from rft.errors import UserError

READS = {
    "beside the messages": 'one["reference_answer"]',
    "in metadata": 'one["metadata"]["reference_answer"]',
    "in the row's own metadata": '(one["metadata"]["level"] and one["reference_answer"])',
}
RESULT = '{"id": one["id"], "aggregate_reward_score": score'
REPLIES = {
    "a metric with a name": (f'[{RESULT}, "metrics_list": [{{"name": "length", "value": 2}}]}}]', {"length": 2.0}),
    "a metric called metric": (f'[{RESULT}, "metrics_list": [{{"metric": "length", "value": 2}}]}}]', {"length": 2.0}),
    "components": (f'[{RESULT}, "reward_components": {{"right": score}}}}]', {"right": 1.0}),
    "no list": (f'[{RESULT}, "metrics_list": None}}]', {}),
    "no number": (f'[{RESULT}, "metrics_list": [{{"name": "said", "value": "much"}}]}}]', {}),
    "a body": (f'{{"statusCode": 200, "body": json.dumps([{RESULT}}}])}}', {}),
}


def source(truth: str = READS["beside the messages"], reply: str = f"[{RESULT}}}]") -> str:
    return f"""
import json

def lambda_handler(event, context):
    [one] = event
    score = float(one["messages"][-1]["content"] == {truth})
    return {reply}
"""


def job(folder: Path, text: str, name: str = "theirs.py") -> Path:
    """A job for a model of open weights: OpenAI's form, with Bedrock's grader."""
    written([row(n, metadata={"level": 1}) for n in range(40)], folder / "file-train.jsonl")
    (folder / name).write_text(text)
    function = {"type": "lambda", "lambda": {"function": "arn:aws:lambda:us-west-2:1:function:theirs"}}
    method = {"type": "reinforcement", "reinforcement": {"grader": function, "hyperparameters": {"batch_size": 4}}}
    body = {"model": "qwen.qwen3-32b-v1:0", "training_file": "file-train", "method": method}
    (folder / "job.json").write_text(json.dumps(body))
    return folder / "job.json"


def imported(path: Path, folder: Path, kind: str = "bedrock") -> list[str]:
    return bridges.write_agent(bridges.read(f"{kind}:{path}", path.parent), folder, "recipes/mine", "mine", {})


def grade(folder: Path, answer: str | None = None) -> dict[str, Any]:
    """Grade the right answer to a row, or the given one."""
    mine = recipe.load(config.Recipe(path=str(folder)))
    assert mine.grade is not None
    item = mine.examples("train", 1, 0)[0].row()
    return mine.grade({"output_text": item["reference_answer"] if answer is None else answer}, item)


@pytest.mark.parametrize("place", READS)
def test_it_finds_the_keys_of_a_row(place: str, tmp_path: Path) -> None:
    imported(job(tmp_path, source(READS[place])), tmp_path / "mine")
    assert grade(tmp_path / "mine")["score"] == 1.0
    assert grade(tmp_path / "mine", "no")["score"] == 0.0


@pytest.mark.parametrize("form", REPLIES)
def test_its_reply_is_read_in_each_form(form: str, tmp_path: Path) -> None:
    reply, parts = REPLIES[form]
    imported(job(tmp_path, source(reply=reply)), tmp_path / "mine")
    assert grade(tmp_path / "mine") == {"score": 1.0, "sub_scores": parts}


@pytest.mark.parametrize("reply", ['{"statusCode": 500, "body": "out of order"}', '{"error": "out of order"}', "None"])
def test_an_error_in_a_reply_is_no_score(reply: str, tmp_path: Path) -> None:
    imported(job(tmp_path, source(reply=reply)), tmp_path / "mine")
    with pytest.raises(ValueError, match=r"lambda_handler returned .*(out of order|None)"):
        grade(tmp_path / "mine")


@pytest.mark.parametrize("kind", ["bedrock", "openai"])
def test_a_job_in_openais_form(kind: str, tmp_path: Path) -> None:
    told = imported(job(tmp_path, source(), "lambda_function.py"), tmp_path / "mine", kind)
    assert json.loads((tmp_path / "mine/grader.json").read_text())["url"] == "{tool_server}/grade"
    assert grade(tmp_path / "mine")["score"] == 1.0
    assert any("not in Lambda's sandbox" in line for line in told)


def test_what_it_imports_must_be_here(tmp_path: Path) -> None:
    told = imported(job(tmp_path, f"import no_such_package.inside\n{source()}"), tmp_path / "mine")
    message = "pip install what has the module no_such_package, which is not here: lambda_function.py imports it"
    assert f"To fill: {message}" in told
    assert not any("json" in line for line in told if line.startswith("To fill: pip"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def lambda_handler(event, context:\n    return []\n", r"theirs\.py:1: is not Python"),
        ("# def lambda_handler\nx = 1\n", r"theirs\.py: defines no lambda_handler"),
    ],
)
def test_a_source_that_cannot_grade(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as refused:
        imported(job(tmp_path, text), tmp_path / "mine")
    assert "\n" not in str(refused.value)


def test_a_function_without_its_name_or_source(tmp_path: Path) -> None:
    path = job(tmp_path, source())
    (tmp_path / "theirs.py").rename(tmp_path / "reward.py")
    with pytest.raises(UserError, match=r"has no theirs\.py or lambda_function\.py. Copy its source there"):
        imported(path, tmp_path / "mine")
    path.write_text(path.read_text().replace('"function"', '"name"'))
    with pytest.raises(UserError, match=r"job\.json: grader: lambda\.function is missing"):
        imported(path, tmp_path / "mine")
