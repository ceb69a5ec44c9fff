"""A job of OpenAI, Azure or Bedrock becomes an agent folder that our own readers take; what cannot
is refused in a sentence, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import EXACT, FIND, exported, job, row, written

from rft import bridges, config, recipe
from rft.bridges.imported import SPLITS
from rft.config import graders
from rft.errors import RftError
from rft.types import Split


def imported(source: str, files: Path | None, folder: Path, **declared: Any) -> list[str]:
    return bridges.write_agent(bridges.read(source, files), folder, "recipes/mine", "mine", declared)


def settings(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "params.yaml").read_text())


def loaded(folder: Path) -> recipe.Recipe:
    return recipe.load(config.Recipe(path=str(folder)), config.Keys(**settings(folder)["examples"].get("keys", {})))


def test_a_job_becomes_an_agent(tmp_path: Path) -> None:
    tools = [{"name": "find_item", "server_url": "http://127.0.0.1:1/find", "headers": {"X-Key": "s3cret"}}]
    hyper = {
        "batch_size": 4,
        "n_epochs": 2,
        "eval_interval": 5,
        "compute_multiplier": "auto",
        "reasoning_effort": "low",
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {"type": "object"}}}
    found = job(tools=tools, hyperparameters=hyper, max_episode_steps=9, response_format=form)
    path = exported(tmp_path / "out", found, tools=[FIND])
    told = imported(f"openai:{path}", tmp_path / "out", tmp_path / "mine")
    mine = loaded(tmp_path / "mine")
    train, valid, test = (mine.examples(split, 1000, 0) for split in ("train", "validation", "test"))
    assert (len(train) + len(test), len(valid)) == (40, 10)
    assert f"train: {len(train)} of 40 rows are left" in told
    given = (tmp_path / "out/file-train.jsonl").read_text().splitlines()
    assert sorted(one.line for one in [*train, *test]) == sorted(given), "byte for byte"
    assert (tmp_path / "mine/rows/validation.jsonl").read_bytes() == (tmp_path / "out/file-valid.jsonl").read_bytes()
    assert {one.target for one in valid} == {f"SKU-{n}" for n in range(5)}
    made = settings(tmp_path / "mine")
    assert made["rollout"] == {"max_turn_tokens": 1024, "max_tool_calls": 9, "max_turns": 10, "response_format": form}
    steps = -(-2 * len(train) // 4)
    per_step = {"validation_examples": 10, "examples_per_step": 4}
    assert made["train"] == per_step | {"steps": steps, "validate_every": 5, "seed": 7}
    [endpoint] = made["tools"]["endpoints"]
    assert endpoint["headers"] == {"X-Key": "env:FIND_ITEM_X_KEY"}
    assert "To fill: export FIND_ITEM_X_KEY=... (a header that held a secret)" in told
    assert not [file for file in (tmp_path / "mine").rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()]
    assert mine.grader.scale.chance == pytest.approx(0.2)
    assert {one.name for one in mine.exploits} >= {"empty", "I do not know"}
    noted = [line for line in told if line.startswith("Not taken over: ")]
    assert [line.split(": ")[2].partition(" ")[0] for line in noted] == ["model", "hyperparameters.reasoning_effort"]
    assert "gate" not in made, "margins are a person's"


def inputs(folder: Path, split: Split) -> set[str]:
    return {json.dumps(one.messages) for one in loaded(folder).examples(split, 1000, 0)}


def test_the_cut_follows_the_input_alone(tmp_path: Path) -> None:
    """Rows of one input are in one split, and a row stays where it is when others come."""
    out = tmp_path / "out"
    exported(out, job() | {"validation_file": None})
    twice = [row(n) for n in range(40)] + [row(n, price=2) for n in range(40)]
    written(twice, out / "file-train.jsonl")
    told = imported(f"azure:{out / 'job.json'}", out, tmp_path / "one")
    of_split = {split: inputs(tmp_path / "one", split) for split in SPLITS}
    assert not of_split["train"] & of_split["test"]
    assert not of_split["train"] & of_split["validation"]
    assert sum("were cut" in line for line in told) == 2
    written([*twice, *(row(n) for n in range(200, 260))], out / "file-train.jsonl")
    imported(f"azure:{out / 'job.json'}", out, tmp_path / "two")
    more = inputs(tmp_path / "two", "test")
    assert of_split["test"] <= more


def test_a_split_has_two_examples_at_least(tmp_path: Path) -> None:
    exported(tmp_path, job() | {"validation_file": None})
    for num in (5, 8, 12):
        written([row(n) for n in range(num)], tmp_path / "file-train.jsonl")
        imported(f"openai:{tmp_path / 'job.json'}", tmp_path, tmp_path / f"mine{num}")
        made = settings(tmp_path / f"mine{num}")
        assert min(made["examples"]["validation"], made["examples"]["test"], made["baseline"]["examples"]) >= 2
        assert made["examples"]["train"] >= 1


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ("a bare method", {"method": "rft", "rft": {"grader": EXACT}}),
        ("an early spelling", {"method": {"type": "rft", "rft": {"grader": EXACT}}}),
        ("a list in a multi", {"method": {"type": "reinforcement", "reinforcement": {"grader": {
            "type": "multi", "graders": [EXACT], "calculate_output": "exact"}}}}),
        ("neq", {"method": {"type": "reinforcement", "reinforcement": {"grader": EXACT | {"operation": "neq"}}}}),
    ],
)  # fmt: skip
def test_spellings_that_clients_send(body: str, change: dict[str, Any], tmp_path: Path) -> None:
    path = exported(tmp_path, job() | change)
    imported(f"openai:{path}", tmp_path, tmp_path / "mine")
    assert loaded(tmp_path / "mine").grader


@pytest.mark.parametrize(
    ("grader", "expected"),
    [
        ({"type": "multi", "name": "m", "graders": {"a": EXACT, "b": EXACT}, "calculate_output": "2 * a - b"}, (-1, 2)),
        ({"type": "multi", "name": "m", "graders": {"a": EXACT}, "calculate_output": "a * a"}, None),
        ({"type": "python", "source": "def grade(sample, item):\n    return 3.0"}, None),
        ({"type": "endpoint", "url": "http://127.0.0.1:1/grade"}, None),
        (EXACT, (0, 1)),
    ],
)
def test_a_range_is_declared_where_it_follows_and_else_asked_for(
    grader: dict[str, Any], expected: tuple[float, float] | None, tmp_path: Path
) -> None:
    path = exported(tmp_path, job(grader))
    told = imported(f"openai:{path}", tmp_path, tmp_path / "mine")
    assert any("Add --range LOW HIGH" in line for line in told) == (expected is None)
    if expected is not None:
        assert loaded(tmp_path / "mine").grader.range == expected
    told = imported(f"openai:{path}", tmp_path, tmp_path / "mine", range=[0.0, 5.0]) if expected is None else told
    if expected is None:
        assert loaded(tmp_path / "mine").grader.range == (0.0, 5.0)
        assert not any("--range" in line for line in told)


def test_a_judge_is_somebody_to_name(tmp_path: Path) -> None:
    ask = [{"role": "user", "content": "Is {{sample.output_text}} right?"}]
    judge = {"type": "score_model", "name": "j", "model": "gpt-4.1", "input": ask, "range": [0, 10]}
    told = imported(f"openai:{exported(tmp_path, job(judge))}", tmp_path, tmp_path / "mine")
    assert "To fill: export OPENAI_BASE_URL=... and OPENAI_API_KEY=...: where the judge gpt-4.1 answers" in told
    assert loaded(tmp_path / "mine").grader.range == (0, 10)


def test_what_a_judge_reads_is_no_target(tmp_path: Path) -> None:
    ask = [{"role": "user", "content": "Price {{item.price}}: is {{sample.output_text}} right?"}]
    judge = {"type": "score_model", "name": "j", "model": "gpt-4.1", "input": ask}
    imported(f"openai:{exported(tmp_path, job(judge))}", tmp_path, tmp_path / "mine")
    assert settings(tmp_path / "mine")["examples"]["keys"] == {"target": "reference_answer"}


GRADE = """
def lambda_handler(event, context):
    return [graded(**one) for one in event]

def graded(id, messages, reference_answer, **more):
    score = float(messages[-1]["content"] == reference_answer)
    metrics = [{"name": "length", "value": len(messages), "type": "Metric"}]
    return {"id": id, "aggregate_reward_score": score, "metrics_list": metrics}
"""


def bedrock(folder: Path, **change: Any) -> Path:
    lambda_grader = {"lambdaArn": "arn:aws:lambda:us-east-1:1:function:my-grader:3"}
    found = {
        "jobName": "a-job",
        "customizationType": "REINFORCEMENT_FINE_TUNING",
        "baseModelIdentifier": "amazon.nova-2-lite",
        "trainingDataConfig": {"s3Uri": "s3://bucket/a/train.jsonl"},
        "customizationConfig": {"rftConfig": {
            "graderConfig": {"lambdaGrader": lambda_grader},
            "hyperParameters": {"batchSize": 16, "epochCount": 2, "trainingSamplePerPrompt": 4, "learningRate": 1e-5},
        }},
    }  # fmt: skip
    written([row(n) for n in range(40)], folder / "train.jsonl")
    (folder / "my-grader.py").write_text(GRADE)
    (folder / "job.json").write_text(json.dumps(found | change))
    return folder / "job.json"


def test_a_job_of_bedrock_grades_by_its_own_function(tmp_path: Path) -> None:
    told = imported(f"bedrock:{bedrock(tmp_path)}", tmp_path, tmp_path / "mine")
    mine = loaded(tmp_path / "mine")
    assert mine.grade is not None
    item = mine.examples("train", 1, 0)[0].row()
    right = mine.grade({"output_text": item["reference_answer"]}, item)
    assert right == {"score": 1.0, "sub_scores": {"length": 3.0}}
    assert mine.grade({"output_text": "no"}, item)["score"] == 0.0
    with pytest.raises(TypeError):  # unscored: nothing here makes a 0 of it
        mine.grade({"output_text": "no"}, {key: value for key, value in item.items() if key != "reference_answer"})
    made = settings(tmp_path / "mine")["train"]
    assert (made["examples_per_step"], made["group_size"]) == (16, 4)
    assert any("learningRate" in line for line in told)
    assert any("baseModelIdentifier" in line for line in told)


def test_a_grader_alone(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(EXACT))
    written([row(n) for n in range(40)], tmp_path / "train.jsonl")
    imported(f"grader:{tmp_path / 'g.json'}", tmp_path, tmp_path / "mine")
    assert isinstance(loaded(tmp_path / "mine").grader, graders.StringCheck)


def test_a_grader_as_it_was_tried(tmp_path: Path) -> None:
    """What the services take to validate and to run a grader holds it under a key."""
    told = alone({"grader": EXACT, "model_sample": "SKU-1"}, tmp_path)
    assert isinstance(loaded(tmp_path / "mine").grader, graders.StringCheck)
    assert "Not taken over: g.json: model_sample: is of a trial, not a row" in told
    with pytest.raises(RftError, match=r"holds a job\. Write --from openai:"):
        alone(job(), tmp_path / "job")


def alone(grader: dict[str, Any], folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "g.json").write_text(json.dumps(grader))
    written([row(n) for n in range(40)], folder / "train.jsonl")
    return imported(f"grader:{folder / 'g.json'}", folder, folder / "mine")


def test_azures_automatic_numbers_are_our_defaults(tmp_path: Path) -> None:
    """Azure answers with -1 what it chose itself."""
    path = exported(tmp_path, job(hyperparameters={"batch_size": -1, "n_epochs": -1, "eval_interval": 5}))
    told = imported(f"azure:{path}", tmp_path, tmp_path / "mine")
    assert settings(tmp_path / "mine")["train"] == {"validation_examples": 10, "validate_every": 5, "seed": 7}
    assert not any("batch_size" in line or "n_epochs" in line for line in told)


PLACES = {
    "{{item.refrence_answer}}": "is in no row, so no rollout could be graded. Did you mean 'reference_answer'",
    "{{sample.output_txt}}": "is not in a sample. Did you mean 'output_text'",
    "{{sample.output_tools[0].function.arguments.query}}": "reads inside the arguments of a call",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_template_that_finds_nothing_is_refused(place: str, tmp_path: Path) -> None:
    """Every answer would score alike, without a word."""
    grader = EXACT | {"reference": place}
    path = exported(tmp_path, job({"type": "multi", "graders": {"a": EXACT, "b": grader}, "calculate_output": "a + b"}))
    with pytest.raises(RftError, match=re.escape(f"job.json: grader: {place} {PLACES[place]}")):
        imported(f"openai:{path}", tmp_path, tmp_path / "mine")
    with pytest.raises(RftError, match=re.escape(f"g.json: {place} {PLACES[place]}")):
        alone(grader, tmp_path / "alone")


def test_json_that_nothing_asks_for_is_told(tmp_path: Path) -> None:
    grader = EXACT | {"input": "{{sample.output_json.answer}}"}
    message = "job.json: grader: {{sample.output_json.answer}}: nothing asks for JSON"
    told = imported(f"openai:{exported(tmp_path, job(grader))}", tmp_path, tmp_path / "free")
    assert any(message in line for line in told)
    form = {"type": "json_object"}
    told = imported(f"openai:{exported(tmp_path, job(grader, response_format=form))}", tmp_path, tmp_path / "asked")
    assert not any(message in line for line in told)
    told = imported(f"openai:{exported(tmp_path, job(grader), response_format=form)}", tmp_path, tmp_path / "in_rows")
    assert not any(message in line for line in told)


def test_rows_of_one_target_are_told_and_not_refused(tmp_path: Path) -> None:
    path = exported(tmp_path, job(), reference_answer="yes")
    told = imported(f"openai:{path}", tmp_path, tmp_path / "mine")
    assert "To fill: rows: 100% of them have one target, so always giving that answer passes. Add others" in told
    assert loaded(tmp_path / "mine").grader.scale.chance == 0


def test_a_grader_alone_hides_its_keys(tmp_path: Path) -> None:
    headers = {"X-Key": "s3cret", "Authorization": "env:MINE"}
    endpoint = {"type": "endpoint", "name": "theirs", "url": "http://127.0.0.1:1/grade", "headers": headers}
    told = alone(endpoint, tmp_path)
    found = json.loads((tmp_path / "mine/grader.json").read_text())["headers"]
    assert found == {"X-Key": "env:THEIRS_X_KEY", "Authorization": "env:MINE"}
    assert [line for line in told if "export" in line] == [
        "To fill: export THEIRS_X_KEY=... (a header that held a secret)"
    ]


def test_what_a_source_imports_must_be_here(tmp_path: Path) -> None:
    source = "import json\ntry:\n    import no_such_one\nexcept ImportError:\n    pass\n"
    source += "from no_such_package.inside import x\n\ndef grade(sample, item):\n    return 1.0\n"
    told = alone({"type": "python", "name": "own", "source": source}, tmp_path)
    [note] = [line for line in told if "pip" in line]
    assert "module no_such_package, which is not here: the source of own in grader.json imports it" in note


def changed(path: Path, **change: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def cut_off(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


BAD = {
    "another method": (lambda out: changed(out / "job.json", method={"type": "dpo"}), "method.type is 'dpo'"),
    "no grader": (
        lambda out: changed(out / "job.json", method={"type": "reinforcement", "reinforcement": {}}),
        "method.reinforcement is missing",
    ),
    "an id without its file": (lambda out: (out / "file-valid.jsonl").unlink(), "validation_file is 'file-valid'"),
    "two files of one id": (lambda out: (out / "file-train.txt").write_text("x"), "file-train.jsonl, file-train.txt"),
    "a name without its file": (
        lambda out: changed(out / "job.json", training_file="rows.jsonl"), "/rows.jsonl (docs/from_openai.md)"
    ),
    "a grader and no job": (lambda out: (out / "job.json").write_text(json.dumps(EXACT)), "--from grader:FILE"),
    "a list of jobs": (
        lambda out: (out / "job.json").write_text(json.dumps({"object": "list", "data": [job()]})), "Save one job"
    ),
    "a job that is cut off": (lambda out: cut_off(out / "job.json"), "cut off in the middle"),
    "rows that are cut off": (lambda out: cut_off(out / "file-train.jsonl"), "file-train.jsonl:40"),
    "an image": (
        lambda out: written([row(1, messages=[{"role": "user", "content": [{"type": "image_url"}]}])] * 3,
                            out / "file-train.jsonl"),
        "policies here read text",
    ),
    "a tool without an address": (
        lambda out: written([row(n, tools=[FIND]) for n in range(9)], out / "file-train.jsonl"),
        "file-train.jsonl:1: offers the tool 'find_item', and the job has no address of it",
    ),
    "one input in two files": (
        lambda out: written([row(n) for n in range(100, 130)], out / "file-train.jsonl"),
        "which is a row of",
    ),
    "an empty file": (lambda out: (out / "file-train.jsonl").write_text("\n"), "has no rows"),
    "a nested multi": (
        lambda out: changed(out / "job.json", method={"type": "reinforcement", "reinforcement": {"grader": {
            "type": "multi", "calculate_output": "a", "graders": {"a": {
                "type": "multi", "calculate_output": "b", "graders": {"b": EXACT}}}}}}),
        "a multi inside a multi",
    ),
    "a batch of none": (
        lambda out: changed(out / "job.json", method={"type": "reinforcement", "reinforcement": {
            "grader": EXACT, "hyperparameters": {"batch_size": 0}}}),
        "hyperparameters.batch_size is 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("value", [True, 0, "", "x", [], [1], {"a": 1}, [None], float("nan")])
@pytest.mark.parametrize("kind", ["openai", "bedrock"])
def test_whatever_a_value_is_the_answer_is_a_sentence(kind: str, value: Any, tmp_path: Path) -> None:
    """Each value of a job in turn: it is imported, or refused, and never a traceback."""
    if kind == "openai":
        tools = [{"name": "find_item", "server_url": "http://127.0.0.1:1/", "headers": {"K": "v"}}]
        path = exported(tmp_path, job(tools=tools, max_episode_steps=4, hyperparameters={"n_epochs": 2}))
    else:
        path = bedrock(tmp_path)
    whole = path.read_text()
    for place in places(json.loads(whole)):
        body = json.loads(whole)
        inner = body
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        path.write_text(json.dumps(body))
        with contextlib.suppress(RftError):
            imported(f"{kind}:{path}", tmp_path, tmp_path / "mine")


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    each = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in each:
        yield (*above, key)
        yield from places(inner, (*above, key))


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_said_in_a_sentence(what: str, tmp_path: Path) -> None:
    exported(tmp_path, job())
    change, message = BAD[what]
    change(tmp_path)
    with pytest.raises(RftError) as refused:
        imported(f"openai:{tmp_path / 'job.json'}", tmp_path, tmp_path / "mine")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_format_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(RftError, match="Did you mean 'openai'"):
        bridges.read("openia:job.json", None)
    with pytest.raises(RftError, match=r"Add --files FOLDER with file-train\.jsonl"):
        imported(f"openai:{exported(tmp_path, job())}", None, tmp_path / "mine")


def test_a_part_of_an_answer_is_no_target(tmp_path: Path) -> None:
    """Played as an answer, it was refused by its own grader, and so were all exploits."""
    for field, key in (("output_text", "reference_answer"), ("output_json.sku", None)):
        grader = EXACT | {"input": f"{{{{sample.{field}}}}}"}
        place = tmp_path / field
        path = exported(place / "out", job(grader, response_format={"type": "json_object"}))
        told = imported(f"openai:{path}", place / "out", place / "mine")
        assert settings(place / "mine")["examples"].get("keys", {}).get("target") == key
        assert any(line.startswith("examples.keys.target: reference_answer, which is given") for line in told) == (
            key is not None
        )


def test_few_rows_are_cut_fairly_and_told_to_be_few(tmp_path: Path) -> None:
    for count in (10, 20, 60, 100):
        place = tmp_path / str(count)
        told = imported(f"openai:{exported(place / 'out', job(), train=count)}", place / "out", place / "mine")
        num = len((place / "mine/rows/test.jsonl").read_text().splitlines())
        assert num >= max(2, count // 10)
        assert (f"test: {num} rows cannot settle a gain of a few percent: bring 24 or more" in told) == (num < 24)


def test_what_a_grader_alone_leaves_out_is_to_be_filled(tmp_path: Path) -> None:
    written([row(n, tools=[FIND]) for n in range(30)], tmp_path / "rows.jsonl")
    (tmp_path / "g.json").write_text(json.dumps(EXACT))
    told = imported(f"grader:{tmp_path / 'g.json'}", tmp_path / "rows.jsonl", tmp_path / "mine")
    assert "To fill: tools: the rows offer find_item; give each an address in tools.endpoints" in told
    path = exported(tmp_path / "out", job() | {"user_provided_suffix": "parts"})
    told = imported(f"openai:{path}", tmp_path / "out", tmp_path / "other")
    assert 'Not taken over: job.json: user_provided_suffix: "parts" models are named by their run here' in told
