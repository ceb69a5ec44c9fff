"""The files that the figure `import_formats` imports, and those that must be refused.

They have the published shapes, with their oddities. A case names its format, writes its files into
a folder, and says which score the original grader gives to an answer. These scores are written down
here again, from the publisher's documentation or as the source itself, and share nothing with
rft/grading. None means that the original has no score.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Direct = Callable[[str, Row], float | None]
"""(answer, row) -> the original grader's score."""
HERE = "http://here"
"""Stands for the server of the measurement, with its tools, endpoint grader and judge."""
ROWS = 60


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    write: Callable[[Path], str]
    """Writes the files, and returns the name of the one to import."""
    direct: Direct | None = None
    refused: str = ""
    """Words of the refusal. Empty: the file is imported."""
    answers: tuple[str, ...] = ()
    """What the agent says. Empty: it says what it says about items (import_formats.py)."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


# -- rows ------------------------------------------------------------------------------------------
def reference(number: int) -> str:
    return f"SKU-{number % 7:03d}"


def row(number: int, **more: Any) -> Row:
    question = {"role": "user", "content": f"Which item has the number {number} ?"}
    return {"messages": [question], "reference_answer": reference(number), "price": 1.50} | more


def rows(first: int = 0, **more: Any) -> list[Row]:
    return [row(number, **more) for number in range(first, first + ROWS)]


def lines(found: Iterable[Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)


TOOL = {
    "type": "function",
    "function": {
        "name": "find_item",
        "description": "Find an item.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
PARTS = [{"type": "text", "text": "Which item has "}, {"type": "text", "text": "the number 7 ?"}]


# -- graders, and what they say --------------------------------------------------------------------
def check(operation: str, told: str = "{{sample.output_text}}") -> dict[str, Any]:
    asked = {"input": told, "reference": "{{item.reference_answer}}", "operation": operation}
    return {"type": "string_check", "name": operation, **asked}


def says(operation: str) -> Direct:
    def direct(answer: str, item: Row) -> float:
        right = str(item["reference_answer"])
        compared = {
            "eq": answer == right,
            "ne": answer != right,
            "neq": answer != right,
            "like": right in answer,
            "ilike": right.lower() in answer.lower(),
        }
        return float(compared[operation])

    return direct


def fuzzy(answer: str, item: Row) -> float:
    from rapidfuzz import fuzz

    return fuzz.ratio(answer, item["reference_answer"]) / 100


FUZZY = {
    "type": "text_similarity",
    "name": "near",
    "input": "{{sample.output_text}}",
    "reference": "{{item.reference_answer}}",
    "evaluation_metric": "fuzzy_match",
}
SOURCES = {
    "as in the guide": """
from rapidfuzz import fuzz, utils

def grade(sample, item) -> float:
    return fuzz.WRatio(sample["output_text"], item["reference_answer"], processor=utils.default_process) / 100.0
""",
    "a dataclass": """
from __future__ import annotations
from dataclasses import dataclass, field

@dataclass
class Turn:
    text: str
    words: list[str] = field(default_factory=list)

def grade(sample, item):
    turn = Turn(sample["output_text"], sample["output_text"].split())
    return 1.0 if item["reference_answer"] in turn.words else 0.25 * bool(turn.words)
""",
    "a pydantic model": """
from __future__ import annotations
from pydantic import BaseModel

class Answer(BaseModel):
    text: str
    item: Row

class Row(BaseModel):
    reference_answer: str

Answer.model_rebuild()

def grade(sample, item):
    answer = Answer(text=sample["output_text"], item={"reference_answer": item["reference_answer"]})
    return float(answer.text.strip() == answer.item.reference_answer)
""",
    "a number of its own range": """
def grade(sample, item):
    return 5.0 if sample["output_text"] == item["reference_answer"] else -2.0
""",
    "one that raises": """
def grade(sample, item):
    if not sample["output_text"].startswith("SKU"):
        raise ValueError("no SKU in the answer")
    return float(sample["output_text"] == item["reference_answer"])
""",
    "calls of tools": """
def grade(sample, item):
    return min(1.0, 0.5 * len(sample["output_tools"]))
""",
}


def python(name: str) -> dict[str, Any]:
    return {"type": "python", "name": "own", "source": SOURCES[name], "image_tag": "2025-05-08"}


def runs(name: str) -> Direct:
    """Run the source as a module file, as its author would. An exception is not a score."""

    def direct(answer: str, item: Row) -> float | None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "own_grader.py")
            file.write_text(SOURCES[name])
            spec = importlib.util.spec_from_file_location("own_grader", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["own_grader"] = module
            spec.loader.exec_module(module)
            try:
                return float(module.grade({"output_text": answer, "output_tools": [], "choices": []}, item))
            except ValueError:
                return None

    return direct


def graded_there(answer: str, item: Row) -> float:
    """Return what the endpoint grader of the measurement says."""
    return 1.0 if answer == item["reference_answer"] else round(len(answer) % 7 / 10, 1)


def judged(answer: str) -> float:
    """Return what the judge of the measurement says about an answer, from 0 to 10."""
    return float(len(answer) % 11)


ENDPOINT = {"type": "endpoint", "name": "theirs", "url": f"{HERE}/grade", "headers": {"Authorization": "Bearer a-key"}}
ASK = [{"role": "developer", "content": "Grade."}, {"role": "user", "content": "ANSWER[{{sample.output_text}}]"}]
SCORE_MODEL = {"type": "score_model", "name": "judge", "model": "judge", "input": ASK, "range": [0, 10]}
LABEL_MODEL = {"type": "label_model", "name": "label", "model": "judge", "input": ASK}
LABEL_MODEL |= {"labels": ["good", "bad"], "passing_labels": ["good"]}
MULTI = {
    "type": "multi",
    "name": "both",
    "graders": {"exact": check("eq"), "near": FUZZY},
    "calculate_output": "0.7 * exact + 0.3 * near",
}
AS_LIST = MULTI | {"graders": [check("eq") | {"name": "exact"}, FUZZY]}
DEEP = MULTI | {"graders": {"exact": check("eq"), "own": python("a dataclass"), "near": FUZZY}}
DEEP["calculate_output"] = "max(exact, min(own, near) ^ 2)"


def both(answer: str, item: Row) -> float:
    return 0.7 * says("eq")(answer, item) + 0.3 * fuzzy(answer, item)  # type: ignore[operator]


def deep(answer: str, item: Row) -> float:
    own = runs("a dataclass")(answer, item) or 0.0
    return max(says("eq")(answer, item) or 0.0, min(own, fuzzy(answer, item)) ** 2)


# -- jobs ------------------------------------------------------------------------------------------
def job(grader: Any, change: dict[str, Any] | None = None, found: list[Row] | None = None, **more: Any) -> Any:
    """Return a function that writes a job and its files. `more`: keys of method.reinforcement."""

    def write(folder: Path) -> str:
        method = {"type": "reinforcement", "reinforcement": {"grader": grader} | more}
        body: dict[str, Any] = {"object": "fine_tuning.job", "id": "ftjob-1", "model": "o4-mini-2025-04-16"}
        body |= {"training_file": "file-train", "validation_file": "file-valid", "seed": 3, "status": "succeeded"}
        body |= {"method": method} | (change or {})
        (folder / "file-train.jsonl").write_text(lines(rows() if found is None else found))
        (folder / "file-valid.jsonl").write_text(lines(rows(500) if found is None else found[:0] + rows(500)))
        (folder / "job.json").write_text(json.dumps({key: value for key, value in body.items() if value is not None}))
        return "job.json"

    return write


def with_tools(folder: Path) -> str:
    tools = [{"name": "find_item", "server_url": f"{HERE}/find", "headers": {"X-Key": "a-key"}}]
    name = job(check("eq"), tools=tools, max_episode_steps=4)(folder)
    (folder / "file-train.jsonl").write_text(lines(rows(tools=[TOOL])))
    (folder / "file-valid.jsonl").write_text(lines(rows(500, tools=[TOOL])))
    return name


def with_developer(folder: Path) -> str:
    name = job(check("eq"), {"trainingType": "globalStandard"})(folder)
    for file, first in (("file-train.jsonl", 0), ("file-valid.jsonl", 500)):
        told = {"role": "developer", "content": "Answer with the SKU alone."}
        found = [each | {"messages": [told, *each["messages"]]} for each in rows(first)]
        (folder / file).write_text(lines(found))
    return name


def with_parts(folder: Path) -> str:
    name = job(check("ilike"))(folder)
    for file, first in (("file-train.jsonl", 0), ("file-valid.jsonl", 500)):
        found = rows(first)
        for each in found:
            text = each["messages"][0]["content"]
            each["messages"][0]["content"] = [{"type": "text", "text": text[:6]}, {"type": "text", "text": text[6:]}]
        (folder / file).write_text("\ufeff" + lines(found).replace("\n", "\r\n"))
    return name


FORMAT = {"type": "json_schema", "name": "answer", "strict": True, "schema": {"type": "object"}}
HYPER = {"batch_size": 4, "n_epochs": 2, "compute_multiplier": 0.5, "eval_interval": 5, "learning_rate_multiplier": 2}
ALIASED = {"method": "rft", "rft": {"grader": check("eq"), "tools": [{"name": "f", "url": f"{HERE}/find"}]}}
JOBS = [
    *(Case(f"string_check {each}", "openai", job(check(each)), says(each)) for each in ("eq", "ne", "like", "ilike")),
    Case("string_check neq", "openai", job(check("neq")), says("ne")),
    Case("text_similarity", "openai", job(FUZZY), fuzzy),
    *(
        Case(f"python, {each}", "openai", job(python(each)), runs(each))
        for each in SOURCES
        if each not in ("a number of its own range", "calls of tools")
    ),
    Case("python beyond 0 to 1", "openai", job(python("a number of its own range") | {"range": [-2, 5]}),
         runs("a number of its own range")),
    Case("score_model", "openai", job(SCORE_MODEL), lambda answer, item: judged(answer)),
    Case("label_model", "openai", job(LABEL_MODEL), lambda answer, item: float(judged(answer) > 5)),
    Case("endpoint", "openai", job(ENDPOINT), graded_there),
    Case("multi", "openai", job(MULTI), both),
    Case("multi with a list", "openai", job(AS_LIST), both),
    Case("multi of three, with a formula", "openai", job(DEEP), deep),
    Case("tools in rows", "openai", with_tools, says("eq")),
    Case("spellings of a preview", "openai", job(check("eq"), ALIASED), says("eq")),
    Case("response_format of the Responses form", "openai", job(check("like"), response_format=FORMAT), says("like")),
    Case("hyperparameters", "openai", job(check("eq"), hyperparameters=HYPER), says("eq")),
    Case("no validation file", "openai", job(check("eq"), {"validation_file": None}), says("eq")),
    Case("parts, a byte order mark, CRLF", "openai", with_parts, says("ilike")),
    Case("a developer's message", "azure", with_developer, says("eq")),
    Case("an endpoint grader", "azure", job(ENDPOINT | {"rate_limit": 50, "pass_threshold": 0.8}), graded_there),
]  # fmt: skip


# -- Bedrock, a grader alone -----------------------------------------------------------------------
HANDLER = """
def lambda_handler(event, context):
    found = []
    for one in event:
        answer = one["messages"][-1]["content"]
        if answer == "no":
            raise RuntimeError("no answer")
        score = 1.0 if answer == one["reference_answer"] else 0.01
        metrics = [{"name": "length", "value": len(answer), "type": "Metric"}]
        found.append({"id": one["id"], "aggregate_reward_score": score, "metrics_list": metrics})
    return found
"""


def bedrock(folder: Path) -> str:
    arn = "arn:aws:lambda:us-east-1:1:function:theirs"
    tuning = {
        "graderConfig": {"lambdaGrader": {"lambdaArn": arn}},
        "hyperParameters": {"batchSize": 16, "epochCount": 1, "trainingSamplePerPrompt": 4},
    }
    body = {"jobName": "a-job", "customizationType": "REINFORCEMENT_FINE_TUNING", "baseModelIdentifier": "nova"}
    body |= {"trainingDataConfig": {"s3Uri": "s3://bucket/train.jsonl"}, "customizationConfig": {"rftConfig": tuning}}
    (folder / "train.jsonl").write_text(lines(rows()))
    (folder / "theirs.py").write_text(HANDLER)
    (folder / "job.json").write_text(json.dumps(body))
    return "job.json"


def by_lambda(answer: str, item: Row) -> float | None:
    if answer == "no":
        return None
    return 1.0 if answer == item["reference_answer"] else 0.01


def alone(grader: Any) -> Any:
    def write(folder: Path) -> str:
        (folder / "train.jsonl").write_text(lines(rows()))
        (folder / "g.json").write_text(json.dumps(grader))
        return "g.json"

    return write


OTHERS = [
    Case("a Lambda that raises on one answer", "bedrock", bedrock, by_lambda),
    Case("string_check", "grader", alone(check("ilike")), says("ilike")),
    Case("multi", "grader", alone(MULTI), both),
]


# -- Evals -----------------------------------------------------------------------------------------
def evals(criteria: list[Any], pages: bool = False, system: str = "developer") -> Any:
    def write(folder: Path) -> str:
        template = [
            {"role": system, "content": "Answer with the SKU alone."},
            {"role": "user", "content": "Which item has the number {{item.number}} ?"},
        ]
        made = [{"item": {"number": n, "reference_answer": reference(n)}} for n in range(ROWS)]
        source = {"type": "file_content", "content": made}
        messages = {"type": "template", "template": template}
        run = {"object": "eval.run", "id": "evalrun_1", "eval_id": "eval_1", "status": "completed", "model": "gpt-4.1"}
        run["data_source"] = {"type": "completions", "input_messages": messages, "source": source}  # type: ignore[assignment]
        found = {"object": "eval", "id": "eval_1", "name": "items", "data_source_config": {"type": "custom"}}
        found["testing_criteria"] = criteria
        (folder / "eval.json").write_text(json.dumps(found))
        listed: Any = {"object": "list", "data": [run], "has_more": False} if pages else [run]
        (folder / "runs.json").write_text(json.dumps(listed))
        return "."

    return write


def mean_of(*parts: Direct) -> Direct:
    def direct(answer: str, item: Row) -> float:
        return sum(part(answer, item) or 0.0 for part in parts) / len(parts)

    return direct


EVALS = [
    Case("string_check", "evals", evals([check("eq")]), says("eq")),
    Case("several string_checks, in pages", "evals",
         evals([check("eq"), check("ilike") | {"name": "loose"}], pages=True), mean_of(says("eq"), says("ilike"))),
    Case("score_model", "evals", evals([SCORE_MODEL]), lambda answer, item: judged(answer)),
    Case("text_similarity with a threshold", "evals", evals([FUZZY | {"pass_threshold": 0.8}]), fuzzy),
    Case("python with a dataclass", "evals", evals([python("a dataclass")], system="system"), runs("a dataclass")),
    Case("string_check and score_model", "evals", evals([check("eq"), SCORE_MODEL]),
         mean_of(says("eq"), lambda answer, item: judged(answer) / 10)),
]  # fmt: skip


# -- Promptfoo -------------------------------------------------------------------------------------
def promptfoo(assertions: Callable[[str], list[Any]], **more: Any) -> Any:
    def write(folder: Path) -> str:
        tests = [{"vars": {"number": n}, "assert": assertions(reference(n))} for n in range(ROWS)]
        config = {"prompts": ["Which item has the number {{number}} ?"], "providers": ["openai:gpt-4.1"]}
        (folder / "promptfooconfig.yaml").write_text(json.dumps(config | {"tests": tests} | more))  # YAML holds JSON
        return "promptfooconfig.yaml"

    return write


def plays(*checks: tuple[float, Callable[[str, str], float]]) -> Direct:
    """Return the weighted mean that Promptfoo documents. A check is (weight, (answer, reference) ->
    score)."""

    def direct(answer: str, item: Row) -> float:
        right = reference(int(re.findall(r"\d+", item["messages"][-1]["content"])[-1]))
        return sum(weight * one(answer, right) for weight, one in checks) / sum(weight for weight, _ in checks)

    return direct


def is_json(answer: str) -> bool:
    try:
        json.loads(answer)
    except ValueError:
        return False
    return True


PROMPTFOO = [
    Case("equals 3, contains 1", "promptfoo",
         promptfoo(lambda right: [{"type": "equals", "value": right, "weight": 3}, {"type": "contains", "value": "x"}]),
         plays((3, lambda a, r: a == r), (1, lambda a, r: "x" in a))),
    Case("icontains, not-contains", "promptfoo",
         promptfoo(lambda right: [{"type": "icontains", "value": right}, {"type": "not-contains", "value": "sorry"}]),
         plays((1, lambda a, r: r.lower() in a.lower()), (1, lambda a, r: "sorry" not in a))),
    Case("starts-with, regex", "promptfoo",
         promptfoo(lambda right: [{"type": "starts-with", "value": "SKU"}, {"type": "regex", "value": "^SKU-\\d+$"}]),
         plays((1, lambda a, r: a.startswith("SKU")), (1, lambda a, r: bool(re.search("^SKU-[0-9]+$", a))))),
    Case("is-json", "promptfoo", promptfoo(lambda right: [{"type": "is-json"}]), plays((1, lambda a, r: is_json(a)))),
    Case("contains-all, contains-any", "promptfoo",
         promptfoo(lambda right: [{"type": "contains-all", "value": ["SKU", right[-1]]},
                                  {"type": "contains-any", "value": ["no", right]}]),
         plays((1, lambda a, r: "SKU" in a and r[-1] in a), (1, lambda a, r: "no" in a or r in a))),
    Case("word-count", "promptfoo", promptfoo(lambda right: [{"type": "word-count", "value": {"min": 1, "max": 2}}]),
         plays((1, lambda a, r: 1 <= len(a.split()) <= 2))),
    Case("python", "promptfoo", promptfoo(lambda right: [{"type": "python", "value": f"output.strip() == '{right}'"}]),
         plays((1, lambda a, r: a.strip() == r))),
]  # fmt: skip


# -- what must be refused --------------------------------------------------------------------------
def broken(write: Any, file: str, change: Callable[[str], str]) -> Any:
    def then(folder: Path) -> str:
        name = write(folder)
        (folder / file).write_text(change((folder / file).read_text()))
        return name

    return then


def without(write: Any, file: str) -> Any:
    def then(folder: Path) -> str:
        name = write(folder)
        (folder / file).unlink()
        return name

    return then


PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
IMAGE = [row(n) | {"messages": [PICTURE]} for n in range(9)]
NESTED = MULTI | {"graders": {"inner": MULTI}, "calculate_output": "inner"}
COSINE = FUZZY | {"evaluation_metric": "cosine"}
REFUSED = [
    Case("another method", "openai", job(None, {"method": {"type": "dpo", "dpo": {}}}), refused="method.type is 'dpo'"),
    Case("a file id without its file", "openai", without(job(check("eq")), "file-valid.jsonl"), refused="file-valid"),
    Case("rows with images", "openai", job(check("eq"), found=IMAGE), refused="file-train.jsonl:1"),
    Case("a multi in a multi", "openai", job(NESTED), refused="a multi inside a multi"),
    Case("a tool without an address", "openai", job(check("eq"), found=rows(tools=[TOOL])), refused="'find_item'"),
    Case("a job that is cut off", "openai", broken(job(check("eq")), "job.json", lambda text: text[:-30]),
         refused="cut off in the middle"),
    Case("a row that is cut off", "openai", broken(job(check("eq")), "file-train.jsonl", lambda text: text[:-30]),
         refused=f"file-train.jsonl:{ROWS}"),
    Case("cosine", "evals", evals([COSINE]), refused="cosine"),
    Case("an export that is cut off", "evals", broken(evals([check("eq")]), "runs.json", lambda text: text[:-30]),
         refused="cut off"),
    Case("JavaScript", "promptfoo", promptfoo(lambda right: [{"type": "javascript", "value": "true"}]),
         refused="JavaScript"),
    Case("similar", "promptfoo", promptfoo(lambda right: [{"type": "similar", "value": right}]), refused="embeddings"),
    Case("rouge-n", "promptfoo", promptfoo(lambda right: [{"type": "rouge-n", "value": right}]), refused="rouge-n"),
    Case("no handler", "bedrock", broken(bedrock, "theirs.py", lambda text: "x = 1\n"), refused="lambda_handler"),
]  # fmt: skip
CASES = [*JOBS, *OTHERS, *EVALS, *PROMPTFOO, *REFUSED]
