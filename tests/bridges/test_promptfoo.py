"""Configs of Promptfoo, and what its version 0.123.1 scored, recorded with its `echo` provider: an
answer is the filled prompt. Without Node, the same answers must get the same scores here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rft import bridges, config, recipe
from rft.bridges import splits
from rft.config import graders
from rft.errors import ConfigError, UserError
from rft.grading import python_inside

RECORDED = json.loads((Path(__file__).parent / "recorded" / "promptfoo.json").read_text(encoding="utf-8"))
CAPITAL = """\
prompts: ["Name the capital of {{country}}."]
tests:
  - vars: {country: [France, Gaul, Frankia, Gallia, Francia]}
    assert:
      - {type: equals, value: Paris, weight: 3}
      - {type: contains, value: London}
"""


def imported(folder: Path, text: str = CAPITAL, name: str = "promptfooconfig.yaml", **files: str) -> bridges.Imported:
    for each, written in {name: text, **files}.items():
        (folder / each).write_text(written, encoding="utf-8")
    return bridges.read(f"promptfoo:{folder / name}", None)


def rows(found: bridges.Imported) -> list[dict[str, Any]]:
    return [json.loads(line.text) for line in found.rows["train"]]


def source(found: bridges.Imported) -> str:
    assert found.grader is not None
    return found.grader["source"]


def played(found: bridges.Imported, row: dict[str, Any], answer: str) -> dict[str, Any]:
    """Grade an answer as the sandbox does."""
    return python_inside.graded(source(found), {"sample": {"output_text": answer}, "item": row})


def differing(found: bridges.Imported, results: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield what the recorded program scored in another way."""
    space: dict[str, Any] = {"__name__": "grader"}
    exec(source(found), space)
    for row, recorded in zip(rows(found), results, strict=True):
        score, passed = space["verdict"](recorded["output"], row)
        if abs(score - recorded["score"]) > 1e-9 or passed != recorded["pass"]:
            yield row["assert"], recorded, score, passed


# -- the recorded program --------------------------------------------------------------------------
def test_every_assertion_scores_as_promptfoo_does(tmp_path: Path):
    recorded = RECORDED["assertions"]
    told = {key: recorded[key] for key in ("prompts", "defaultTest")}
    chosen = [one for one in recorded["cases"] if not one["output"].lstrip().startswith(("[", "{"))]
    read = imported(tmp_path, json.dumps(told | {"tests": [one["test"] for one in chosen]}), "config.json")
    assert list(differing(read, chosen)) == []
    assert [row["messages"][0]["content"] for row in rows(read)] == [one["output"] for one in chosen]
    assert sum(one["pass"] for one in chosen) > 100 < sum(not one["pass"] for one in chosen)


def test_an_answer_that_is_json_scores_as_there(tmp_path: Path):
    """Such an answer cannot be echoed by a prompt here, because a prompt that is JSON is a chat."""
    recorded = RECORDED["assertions"]
    chosen = [one for one in recorded["cases"] if one["output"].lstrip().startswith(("[", "{"))]
    tests = [one["test"] | {"vars": {"out": "x"}} for one in chosen]
    told = {key: recorded[key] for key in ("prompts", "defaultTest")}
    read = imported(tmp_path, json.dumps(told | {"tests": tests}), "config.json")
    assert list(differing(read, chosen)) == []
    assert len(chosen) > 30


@pytest.mark.parametrize("kind", ["yaml", "csv"])
def test_prompts_and_tests_are_multiplied_as_there(tmp_path: Path, kind: str):
    """Lists of variables, defaultTest, files of prompts and tests, chats, prefixes, assert-sets."""
    read = imported(tmp_path, RECORDED[kind]["files"]["promptfooconfig.yaml"], **RECORDED[kind]["files"])
    results = RECORDED[kind]["results"]
    assert list(differing(read, results)) == []
    for row, recorded in zip(rows(read), results, strict=True):
        try:
            chat = json.loads(recorded["output"])
        except ValueError:
            chat = None
        expected = chat if isinstance(chat, list) else [{"role": "user", "content": recorded["output"]}]
        assert row["messages"] == expected


def test_weight_three_met_and_one_not_is_three_quarters_and_not_passed(tmp_path: Path):
    read = imported(tmp_path)
    row = rows(read)[0]
    assert played(read, row, "Paris") == {"score": 0.75}
    assert played(read, row, "London") == {"score": 0.25}
    assert read.grader is not None
    assert graders.read(read.grader, "grader.json").scale.pass_threshold == 1.0


def test_yaml_is_that_of_javascript(tmp_path: Path):
    """PyYAML reads `yes` as true and 010 as 8; a recorded config has only values that hide it."""
    for written, text in (("yes", "yes"), ("010", "10"), ("1_0", "1_0"), ("1.50", "1.5"), ("true", "true")):
        found = rows(imported(tmp_path, CAPITAL.replace("Paris", written)))
        assert found[0]["reference_answer"] == text


# -- what is not a score ---------------------------------------------------------------------------
def test_no_assertions_is_no_score(tmp_path: Path):
    read = imported(tmp_path)
    assert "no assertion" in played(read, rows(read)[0] | {"assert": []}, "Paris")["raised"]


def test_an_assertion_that_raises_is_no_score(tmp_path: Path):
    text = CAPITAL.replace("equals, value: Paris", "python, value: 'output[99]'")
    read = imported(tmp_path, text)
    assert "IndexError" in played(read, rows(read)[0], "Paris")["raised"]
    read = imported(tmp_path, CAPITAL.replace("equals, value: Paris", "python, value: 'None'"))
    assert "expected true, false or a number" in played(read, rows(read)[0], "Paris")["raised"]


# -- the folder ------------------------------------------------------------------------------------
def test_the_folder_is_an_agent_like_any_other(tmp_path: Path):
    names = ", ".join(f"France {n}" for n in range(20))
    read = imported(tmp_path, CAPITAL.replace("France, Gaul, Frankia, Gallia, Francia", names))
    made = tmp_path / "capital"
    told = bridges.write_agent(read, made, "capital", "capital", {})
    loaded = recipe.load(config.Recipe(path=str(made)))
    examples = [example for split in ("train", "validation", "test") for example in loaded.examples(split, 20, 0)]  # type: ignore[arg-type]
    assert len(examples) == 20
    assert {example.row()["reference_answer"] for example in examples} == {"Paris"}
    assert "target: reference_answer" in (made / "params.yaml").read_text(encoding="utf-8")
    assert json.loads((made / "grader.json").read_text(encoding="utf-8"))["range"] == [0, 1]
    assert not any("'range'" in line for line in told)


def test_prompts_are_slices(tmp_path: Path):
    text = CAPITAL.replace("prompts: [", 'prompts: [{label: short, raw: "{{country}}?"}, ')
    found = [row["metadata"]["slice"] for row in rows(imported(tmp_path, text))]
    assert found == ["short", "prompt 2"] * 5


def test_a_test_stays_in_one_split_under_every_prompt(tmp_path: Path):
    countries = json.dumps([f"country {n}" for n in range(40)])
    text = f"""\
prompts: ["Name the capital of {{{{country}}}}.", "Capital of {{{{country}}}}?", "What do you know?"]
tests:
  - vars: {{country: {countries}}}
    assert: [{{type: contains, value: Paris}}]
"""
    found = imported(tmp_path, text.replace(', "What do you know?"', ""))
    split, _ = splits.cut(found.rows, found.same_test_key)
    asked = {name: {json.loads(line.text)["vars"]["country"] for line in lines} for name, lines in split.items()}
    assert sum(map(len, asked.values())) == 40
    assert all(len(split[name]) == 2 * len(asked[name]) > 0 for name in split)
    same = imported(tmp_path, text)  # the third prompt is one question for all of them
    with pytest.raises(UserError, match="120 rows with 1 different inputs"):
        splits.cut(same.rows, same.same_test_key)


def test_what_has_no_counterpart_is_said_with_its_line(tmp_path: Path):
    text = "providers: [openai:gpt-4o]\nenv: {KEY: s3cret}\n" + CAPITAL + "      - {type: latency, threshold: 900}\n"
    notes = imported(tmp_path, text).notes
    assert [note.place for note in notes] == [
        "promptfooconfig.yaml:1: providers",
        "promptfooconfig.yaml:2: env",
        "promptfooconfig.yaml:9: latency",
    ]
    assert "rollout.budget.latency_s" in notes[2].consequence
    assert "s3cret" not in str(notes)


# -- judges ----------------------------------------------------------------------------------------
RUBRIC = CAPITAL + '      - {type: llm-rubric, value: "is {{country}}", weight: 4, provider: "openai:chat:judge-1"}\n'


def test_a_judge_stands_beside_the_assertions_with_its_weight(tmp_path: Path):
    read = imported(tmp_path, RUBRIC)
    grader = graders.read(read.grader, "grader.json")
    assert isinstance(grader, graders.Multi)
    assert grader.formula.value({"assertions": 0.75, "judge": 0.5}) == 0.625
    assert grader.graders["judge"].type == "score_model"
    assert read.grader is not None
    assert read.grader["graders"]["judge"]["model"] == "judge-1"
    assert rows(read)[1]["judged"] == [{"type": "llm-rubric", "value": "is Gaul"}]
    assert any("OPENAI_BASE_URL" in line for line in read.to_fill)


@pytest.mark.parametrize(("kind", "passing"), [("factuality", "ABCE"), ("model-graded-closedqa", "Y")])
def test_labels(tmp_path: Path, kind: str, passing: str):
    read = imported(tmp_path, RUBRIC.replace("llm-rubric", kind).replace("openai:chat:judge-1", "bedrock:x"))
    assert read.grader is not None
    judge = graders.read(read.grader, "grader.json").graders["judge"]  # type: ignore[attr-defined]
    assert judge.passing_labels == list(passing)
    assert read.to_fill[0].startswith("grader.json: model: replace JUDGE with the judge's name.")


def test_tests_that_ask_differently_are_refused(tmp_path: Path):
    text = RUBRIC + "  - {vars: {country: Spain}, assert: [{type: equals, value: Madrid}]}\n"
    with pytest.raises(UserError, match=r"yaml:8: asks no judge, and .*yaml:7 asks a judge of openai:chat:judge-1"):
        imported(tmp_path, text)


# -- bad input -------------------------------------------------------------------------------------
EQUALS = "      - {type: equals, value: Paris, weight: 3}\n"
BAD = {
    "javascript": (EQUALS, "      - {type: javascript, value: output.length}\n", r":5: the assertion javascript .*py"),
    "a script": (EQUALS, "      - {type: python, value: file://a.js}\n", r":5: the value 'file://a.js' is JavaScript"),
    "unknown": (EQUALS, "      - {type: equal, value: Paris}\n", r":5: the assertion 'equal' is not known.*equals"),
    "similar": (EQUALS, "      - {type: similar, value: Paris}\n", r":5: the assertion similar compares embeddings"),
    "rouge": (EQUALS, "      - {type: not-rouge-n, value: Paris}\n", r":5: the assertion not-rouge-n .*other numbers"),
    "a judge's own": (EQUALS, "      - {type: context-recall}\n", r":5: the assertion context-recall asks a judge"),
    "refusals": (EQUALS, "      - {type: not-is-refusal}\n", r":5: the assertion not-is-refusal knows .* python"),
    "braces": (EQUALS, "      - {type: contains-json}\n", r":5: the assertion contains-json takes .*is-json"),
    "no type": (EQUALS, "      - {value: Paris}\n", r":5: assert\[0\] has no type"),
    "no value": (EQUALS, "      - {type: equals}\n", r":5: equals has no value"),
    "a key": (EQUALS, "      - {type: equals, value: a, threshhold: 1}\n", r":5: 'threshhold' is not a key"),
    "a weight": (EQUALS, "      - {type: equals, value: a, weight: -1}\n", r":5: weight is -1. Write 0 or more"),
    "transform": (EQUALS, "      - {type: equals, value: a, transform: x}\n", r":5: transform changes what is graded"),
    "a flag": (EQUALS, "      - {type: regex, value: '(?i)paris'}\n", r":5: regex '\(\?i\)paris' has a group"),
    "a reference": (EQUALS, "      - {type: regex, value: '(a)\\1'}\n", r":5: regex .* has \\1"),
    "a format": (EQUALS, "      - {type: is-json, value: {format: date}}\n", r":5: value.format is not read alike"),
    "a filter": ("Paris", "'{{country | upper}}'", r":5: value: the template '\{\{country \| upper\}\}.*not plain"),
    "a variable": ("Paris", "'{{town}}'", r":5: value: \{\{town\}\} names no variable"),
    "a block": ("Name the", "{% if x %}", r":1: the template '\{% if x %\}.* is not plain"),
    "only latency": ("equals, value: Paris", "latency, threshold: 9", None),
    "a date": ("Paris", "2024-01-02", r":5: 2024-01-02 is neither a text"),
    "a file": ("value: London", "value: file://gone.txt", r"gone.txt: cannot be read.*Name a file that exists"),
    "a prompt": ('["Name the capital of {{country}}."]', "[file://gone.txt]", r"gone.txt: cannot be read"),
    "tests": ("tests:\n", "tests: file://gone.yaml\nx:\n", r"gone.yaml: cannot be read"),
    "code": ("tests:\n", "tests: file://made.py\nx:\n", r":2: tests 'file://made.py' are made elsewhere"),
    "scenarios": ("tests:\n", "scenarios: [{}]\ntests:\n", r":2: scenarios are not multiplied here"),
    "twice": ("tests:\n", "prompts: [a]\ntests:\n", r":2: 'prompts' is written twice"),
    "no tests": (CAPITAL[CAPITAL.index("tests") :], "", r"promptfooconfig.yaml:1: tests is missing or empty"),
    "no assert": (CAPITAL[CAPITAL.index("    assert") :], "", r":3: assert is missing or empty, so nothing grades"),
    "weights": ("weight: 3", "weight: 0", None),
    "scoring": ("    assert:\n", "    assertScoringFunction: file://s.js\n    assert:\n", r":4: assertScoring"),
    "options": ("    assert:\n", "    options: {transform: x}\n    assert:\n", r":4: options.transform changes the"),
    "a typo": ("    assert:\n", "    asert: []\n    assert:\n", r":4: 'asert' is not a key of a test"),
    "cut": ("value: London}", 'value: "Lon', r":6: cut off in the middle"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path: Path, case: str):
    old, new, message = BAD[case]
    assert old in CAPITAL
    if message is None:  # the other assertion still grades
        imported(tmp_path, CAPITAL.replace(old, new))
        text = CAPITAL.replace(old, new).replace("      - {type: contains, value: London}\n", "")
        message = r":3: (assert is missing or empty|every assertion has the weight 0)"
    else:
        text = CAPITAL.replace(old, new)
    with pytest.raises((UserError, ConfigError), match=message) as caught:
        imported(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_what_a_script_imports_must_be_here(tmp_path: Path):
    (tmp_path / "score.py").write_text("import no_such_package\n\ndef get_assert(output, context):\n    return 1\n")
    found = imported(tmp_path, CAPITAL.replace(EQUALS, "      - {type: python, value: file://score.py}\n"))
    assert any("no_such_package, which is not here: score.py imports it" in note.consequence for note in found.notes)


def test_a_json_config_that_ends_early(tmp_path: Path):
    with pytest.raises(UserError, match=r"config.json:2: cut off in the middle"):
        imported(tmp_path, '{"prompts": ["a"],\n"tests": [{"vars": ', "config.json")


def test_results_are_no_config(tmp_path: Path):
    """A result without `passes` would else count as passed."""
    text = json.dumps({"evalId": "x", "results": {"results": [{"score": 1}]}, "config": {}})
    with pytest.raises(UserError, match=r"output.json:1: results of an evaluation, not a config"):
        imported(tmp_path, text, "output.json")


def test_files_are_named_by_the_config(tmp_path: Path):
    with pytest.raises(UserError, match="Leave out --files"):
        bridges.read(f"promptfoo:{tmp_path / 'a.yaml'}", tmp_path)
