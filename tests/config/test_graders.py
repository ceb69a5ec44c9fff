"""grader.json of each type: what is accepted as published, and what is refused, by file and key."""

from __future__ import annotations

from typing import Any

import pytest

from bench import grader_cases
from bench.grader_cases import ANSWER, ASKED, ENDPOINT, LABEL, multi, score_model, similar, string_check
from rft.config import graders
from rft.errors import ConfigError
from rft.scale import Scale


def read(raw: Any) -> graders.Grader:
    return graders.read(raw, "grader.json")


@pytest.mark.parametrize("name", grader_cases.OBJECTS)
def test_a_published_object_is_accepted(name: str):
    grader = read(grader_cases.OBJECTS[name])
    assert grader.name
    assert 0 <= grader.scale.chance < grader.scale.pass_threshold <= grader.scale.high


def test_every_type_is_known_and_has_an_object():
    published = {read(raw).type for raw in grader_cases.OBJECTS.values()}
    assert published == set(graders.TYPES) == {case.grader["type"] for case in grader_cases.CASES} | {"python"}


PYTHON = {"type": "python", "source": "def grade(sample, item):\n    return 1.0\n"}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ([], "grader.json: holds list, expected a grader"),
        ({}, "grader.json: 'type' is missing. It is one of string_check, "),
        ({"type": 3}, "grader.json: 'type' = 3 is not a grader. There are: endpoint, "),
        ({"type": "scoremodel"}, "Did you mean 'score_model'?"),
        (string_check("eq") | {"inptu": ""}, "grader.json: unknown key 'inptu'. Did you mean 'input'?"),
        ({"type": "string_check", "name": "x"}, "grader.json: 'reference' is missing, and has no default"),
        (string_check("eq") | {"name": ""}, "grader.json: 'name' = ''"),
        (string_check("equals"), "grader.json: 'operation' = 'equals'"),
        (string_check("eq", "{{target}}"), "'reference' = '{{target}}': {{target}} at character 1 names neither"),
        (string_check("eq") | {"range": [0, 5]}, "'range': [0, 5]: the scores of this type are 0 to 1. Remove it"),
        (similar("cosine"), "compares embeddings, which the contract has in evaluations and not in RFT. Take one of"),
        (similar("rouge_6"), "'evaluation_metric' = 'rouge_6': is not a metric. Take one of fuzzy_match"),
        (similar("bleu") | {"pass_threshold": 0.01}, "'pass_threshold' = 0.01: is too close to the lowest score"),
        (score_model(input=[]), "grader.json: 'input'"),
        (score_model(input=[{"role": "judge", "content": ""}]), "grader.json: 'input.0.role' = 'judge'"),
        (score_model(input=[{"role": "user", "content": {"type": "input_image"}}]), "a part of type 'input_image'"),
        (score_model(input=[{"role": "user", "content": "{{sample..x}}"}]), "'input.0.content'"),
        (score_model(sampling_params={"temprature": 0}), "unknown key 'sampling_params.temprature'"),
        (score_model(range=[5, 0]), "'range': [5, 0]: low must be below high"),
        (LABEL | {"passing_labels": ["good"]}, "passing_labels names 'good', which is not in labels"),
        (LABEL | {"passing_labels": LABEL["labels"]}, "every answer passes"),
        (LABEL | {"labels": ["a", "a"], "passing_labels": ["a"]}, "holds 'a' twice"),
        ({"type": "model", "model": "m", "prompt": "x", "input": ASKED}, "'prompt' must be a text, and stand without"),
        (PYTHON | {"source": "def grade(sample, item:"}, "is not Python: line 1"),
        (PYTHON | {"source": "def judge(sample, item): return 1"}, "defines no function grade(sample, item)"),
        (PYTHON | {"source": PYTHON["source"] + "# " + "x" * 256_000}, "must have less than 256,000"),
        (PYTHON | {"source": f"def grade(s, i): return '{ANSWER}'"}, "holds the template {{sample.output_text}}"),
        (multi("exact") | {"graders": {}}, "grader.json: 'graders': is empty"),
        (multi("exact") | {"graders": 3}, "is neither an object of graders nor a list of them"),
        (multi("exact") | {"graders": {"exact": 3}}, "grader.json: graders.exact: holds int, expected a grader"),
        (multi("exact") | {"graders": {"exact": string_check("no")}}, "graders.exact: 'operation' = 'no'"),
        (multi("exact") | {"graders": {"exact": multi("exact")}}, "graders.exact: a multi inside a multi"),
        (multi("exact") | {"graders": {"the exact": string_check("eq")}}, "'the exact' cannot stand in a formula"),
        (multi("exact") | {"graders": {"min": string_check("eq")}}, "'min' cannot stand in a formula"),
        (multi("exact") | {"graders": [LABEL, LABEL]}, "two graders with the name 'label'. Rename one"),
        (multi("exact") | {"calculate_output": "exact + foo"}, "names 'foo', which is not a key of graders: exact"),
        (multi("exact") | {"calculate_output": "exact.x"}, "'calculate_output' = 'exact.x': 'exact.x' at character 1"),
        (ENDPOINT | {"rate_limit": 0}, "grader.json: 'rate_limit' = 0"),
        (ENDPOINT | {"pass_threshold": 8}, "'pass_threshold' = 8: is outside range, 0 to 1"),
    ],
)
def test_what_is_refused_names_the_key_and_a_remedy(raw: Any, says: str):
    with pytest.raises(ConfigError, match=r"^grader\.json: ") as caught:
        read(raw)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1500  # a source is not shown whole


def test_all_that_is_wrong_in_the_parts_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        read(multi("exact") | {"graders": {"one": string_check("no"), "two": {"type": "x"}}})
    assert [line.split(":")[1] for line in str(caught.value).split("\n")] == [" graders.one", " graders.two"]


def test_a_threshold_that_no_score_reaches_is_the_highest_score_with_a_remark():
    grader = read(PYTHON | {"pass_threshold": 8})
    assert grader.scale == Scale(0, 1, 1, 0)
    assert grader.remarks == [
        "pass_threshold = 8 lies above the range, 0 to 1: what reaches 1 passes. Declare the range of its scores."
    ]
    assert read(PYTHON | {"pass_threshold": 8, "range": [0, 10]}).remarks == []


def test_chance_holds_for_every_type():
    for raw in (string_check("eq"), similar("bleu"), score_model(), LABEL, PYTHON, multi("exact"), ENDPOINT):
        assert read(raw | {"pass_threshold": 0.6, "chance": 0.25}).scale == Scale(0, 1, 0.6, 0.25)


def test_the_forms_of_graders():
    one = string_check("eq") | {"name": "Exact match!"}
    for graders_of in ({"exact_match": one}, [one], one):
        grader = read({"type": "multi", "graders": graders_of, "calculate_output": "exact_match"})
        assert isinstance(grader, graders.Multi)
        assert list(grader.graders) == ["exact_match"]
    nameless = {key: value for key, value in one.items() if key != "name"}
    grader = read({"type": "multi", "graders": {"k": nameless}, "calculate_output": "k"})
    assert isinstance(grader, graders.Multi)
    assert grader.graders["k"].name == "k"


def test_a_part_that_the_formula_leaves_out_is_remarked():
    raw = multi("exact + near") | {"calculate_output": "exact"}
    assert read(raw).remarks == ["calculate_output does not use near, graded all the same. Remove it, or use it."]


def test_a_judge_that_never_sees_the_answer_is_remarked():
    (remark,) = read(score_model(input=[{"role": "user", "content": "{{item.answer}}?"}])).remarks
    assert "never sees the answer" in remark


@pytest.mark.parametrize("raw", [string_check("eq"), similar("bleu")], ids=["string_check", "text_similarity"])
def test_a_comparison_that_never_sees_the_answer_is_remarked(raw: dict[str, Any]):
    assert read(raw).remarks == []
    (remark,) = read(raw | {"input": "{{item.answer}}", "reference": "yes"}).remarks
    assert "all answers score alike" in remark


def test_the_older_spelling_of_a_judge():
    grader = read(grader_cases.OBJECTS["a judge by another name"])
    assert isinstance(grader, graders.ScoreModel)
    assert grader.input[0].content == (
        "Ground truth: {{item.ground_truth}}\nAgent answer: {{sample.output_text}}\nScore 0-1."
    )


def test_who_lives_on_the_tool_server():
    there = {"type": "endpoint", "url": "{tool_server}/grade"}
    assert read(there).needs_tool_server
    assert not read(ENDPOINT).needs_tool_server
    assert read({"type": "multi", "graders": {"a": there}, "calculate_output": "a"}).needs_tool_server
    assert not read(multi("exact")).needs_tool_server
