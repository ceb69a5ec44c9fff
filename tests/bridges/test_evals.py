"""An eval of OpenAI's Evals API becomes an agent folder: rows, grader, settings and traffic.
Objects are in the shapes that the API returns, with its ids, nulls and parts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rft import bridges, config, recipe
from rft.bridges import Imported
from rft.config import graders
from rft.errors import ConfigError, UserError
from rft.grading.grader import grader_of
from rft.traffic import ingest, reading
from rft.types import Example, RolloutContext, StopReason, Turn
from rft.wire.client import ToolEndpoint

HEADLINES = [
    "Shares rise",
    "New phone",
    "Cup final",
    "Rates fall",
    "Vote held",
    "Robot walks",
    "Team wins",
    "Bank fails",
]
TOPIC = {
    "id": "String check-a2486074",
    "name": "String check",
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.ground_truth }}",
    "operation": "eq",
}
NEAR = {
    "id": "x",
    "name": "Near",
    "type": "text_similarity",
    "input": "{{sample.output_text}}",
    "reference": "{{item.ground_truth}}",
    "evaluation_metric": "fuzzy_match",
    "pass_threshold": 0.8,
}
JUDGE = {
    "name": "Tone",
    "type": "score_model",
    "model": "o3-mini",
    "range": [1, 7],
    "pass_threshold": 5.0,
    "sampling_params": None,
    "input": [
        {"type": "message", "role": "developer", "content": {"type": "input_text", "text": "Grade from 1 to 7."}},
        {"type": "message", "role": "user", "content": {"type": "input_text", "text": "{{sample.output_text}}"}},
    ],
}
LABEL = {
    "name": "Summary Grader",
    "type": "label_model",
    "model": "o3-mini",
    "input": [{"role": "user", "content": "{{item.input}}: {{sample.output_text}}"}],
    "labels": ["correct", "incorrect"],
    "passing_labels": ["correct"],
}
PYTHON = {
    "name": "min",  # a function of formulas
    "type": "python",
    "image_tag": None,
    "source": "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Seen:\n"
    "    text: str\n\n\ndef grade(sample, item):\n"
    "    return float(Seen(sample['output_text']).text == item['ground_truth'])\n",
}
TEMPLATE = [
    {"type": "message", "role": "developer", "content": {"type": "input_text", "text": "Name the topic."}},
    {"role": "user", "content": [{"type": "input_text", "text": "Headline: "}, "{{ item.input }}"]},
]


# -- the objects of the API ------------------------------------------------------------------------
def an_eval(*criteria: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "object": "eval",
        "id": "eval_1",
        "name": "News",
        "created_at": 1743092000,
        "metadata": {"team": "news"},
        "data_source_config": {"type": "custom", "schema": {"type": "object"}},
        "testing_criteria": list(criteria or [TOPIC]),
    } | more


def a_run(number: int = 1, **more: Any) -> dict[str, Any]:
    source = {
        "type": "completions",
        "model": "gpt-4o-mini",
        "input_messages": {"type": "template", "template": TEMPLATE},
        "sampling_params": {"temperature": 0.5, "max_completion_tokens": 256, "seed": None},
        "source": {"type": "file_content", "content": [{"item": an_item(n)} for n in range(len(HEADLINES))]},
    }
    return {
        "object": "eval.run",
        "id": f"evalrun_{number}",
        "eval_id": "eval_1",
        "created_at": 1743092000 + number,
        "name": "first",
        "model": "gpt-4o-mini",
        "status": "completed",
        "error": None,
        "report_url": "https://platform.example/evaluations",
        "metadata": {},
        "per_model_usage": None,
        "per_testing_criteria_results": None,
        "result_counts": {"total": len(HEADLINES), "passed": 8, "failed": 0, "errored": 0},
        "data_source": source | more,
    }


def an_item(number: int) -> dict[str, Any]:
    return {"input": HEADLINES[number], "ground_truth": "Markets" if number % 3 == 0 else "World", "weight": 1.10}


def an_output(number: int, run: int = 1, **more: Any) -> dict[str, Any]:
    empty = {"tool_calls": None, "tool_call_id": None, "function_call": None}
    asked = [
        {"role": "developer", "content": "Name the topic."},
        {"role": "user", "content": f"Headline: {HEADLINES[number]}"},
    ]
    return {
        "object": "eval.run.output_item",
        "id": f"outputitem_{run}_{number}",
        "created_at": 1743092076,
        "run_id": f"evalrun_{run}",
        "eval_id": "eval_1",
        "status": "pass",
        "datasource_item_id": number,
        "datasource_item": an_item(number),
        "results": [{"name": "String check-a2486074", "sample": None, "passed": True, "score": 1.0}],
        "sample": {
            "input": [message | empty for message in asked],
            "output": [{"role": "assistant", "content": "Markets", **empty}],
            "finish_reason": "stop",
            "model": "gpt-4o-mini-2024-07-18",
            "error": None,
            "seed": 42,
        },
    } | more


def outputs(run: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [an_output(number, run, **more) for number in range(len(HEADLINES))]


def whole(**parts: Any) -> dict[str, Any]:
    return {"eval": an_eval(), "runs": [a_run()], "output_items": outputs()} | parts


def read(tmp_path: Path, value: Any, files: Path | None = None, name: str = "export.json") -> Imported:
    (tmp_path / name).write_text(json.dumps(value, indent=1))
    return bridges.read(f"evals:{tmp_path / name}", files)


def parsed(found: Imported) -> list[dict[str, Any]]:
    return [json.loads(line.text) for line in found.rows["train"]]


def noted(found: Imported) -> str:
    return "\n".join(f"{place}: {text}" for place, text in found.notes)


def lines(values: list[Any]) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


# -- the whole way ---------------------------------------------------------------------------------
class TestTheFolder:
    def test_it_loads_as_any_recipe_and_its_grader_grades(self, tmp_path: Path):
        found = read(tmp_path, whole())
        folder = tmp_path / "agent"
        told = bridges.write_agent(found, folder, "recipes/agent", "agent", {})
        loaded = recipe.load(config.Recipe(path=str(folder)))
        examples = loaded.examples("train", 100, 0)
        assert told[0] == "Eval eval_1 (News)"
        assert len(examples) + len(loaded.examples("validation", 9, 0)) + len(loaded.examples("test", 9, 0)) == 8
        assert {example.row()["ground_truth"] for example in examples} <= {"Markets", "World"}
        assert isinstance(loaded.grader, graders.StringCheck)
        right = examples[0].row()["ground_truth"]
        assert [scored(loaded.grader, examples[0], answer) for answer in (right, "Sports")] == [1.0, 0.0]

    def test_a_row_has_the_messages_of_the_run_and_the_keys_of_its_item(self, tmp_path: Path):
        found = read(tmp_path, whole())
        assert parsed(found)[0] == {
            "messages": [
                {"role": "developer", "content": "Name the topic."},
                {"role": "user", "content": "Headline: Shares rise"},
            ],
            **an_item(0),
        }
        assert "1.1" in found.rows["train"][0].text
        assert found.settings == {"rollout": {"max_turn_tokens": 256}}

    def test_what_has_no_counterpart_is_named(self, tmp_path: Path):
        notes = noted(read(tmp_path, whole(eval=an_eval(), runs=[a_run() | {"metadata": {"team": "a"}, "novel": 1}])))
        for phrase in (
            'eval: metadata: {"team": "news"} is not kept',
            "runs: temperature: 0.5",
            'runs: model: "gpt-4o-mini" is not served elsewhere',
            'runs: metadata: {"team": "a"}',
            "runs: novel: 1 is not known here",
            "results: the verdicts on 8 output items are not taken over",
        ):
            assert phrase in notes
        assert "status" not in notes
        assert str(tmp_path) not in notes


def scored(settings: graders.Grader, example: Example, answer: str) -> float:
    async def graded() -> Any:
        async with grader_of(settings, ToolEndpoint("http://127.0.0.1:1"), config.Tools()) as opened:
            context = RolloutContext("trace_1", example)
            return await opened.grade(example, [Turn(answer)], StopReason.completed, context)

    return asyncio.run(graded()).score


# -- files -----------------------------------------------------------------------------------------
class TestFiles:
    def test_a_folder_of_objects_pages_and_lines_is_the_same(self, tmp_path: Path):
        folder = tmp_path / "export"
        folder.mkdir()
        (folder / "eval.json").write_text(json.dumps(an_eval(), indent=2))
        (folder / "runs.json").write_text(json.dumps({"object": "list", "data": [a_run()], "has_more": False}))
        half = {"object": "list", "data": outputs()[:4], "has_more": True, "last_id": "outputitem_1_3"}
        (folder / "page1.json").write_text(json.dumps(half))
        (folder / "page2.json").write_text(json.dumps({"object": "list", "data": outputs()[4:6], "has_more": False}))
        (folder / "items.jsonl").write_text("\ufeff" + lines(outputs()[5:]))
        found = bridges.read(f"evals:{folder}", None)
        assert sorted(parsed(found), key=str) == sorted(parsed(read(tmp_path, whole())), key=str)
        assert len(found.traffic) == 8  # one stands in two files

    def test_the_body_that_created_an_eval_and_a_run(self, tmp_path: Path):
        created = {key: an_eval()[key] for key in ("name", "testing_criteria")}
        created["data_source_config"] = {"type": "custom", "item_schema": {}, "include_sample_schema": True}
        found = read(tmp_path, [created, {"eval_id": "eval_1", "data_source": a_run()["data_source"]}])
        assert len(found.rows["train"]) == 8
        assert found.grader == {key: value for key, value in TOPIC.items() if key != "id"}

    @pytest.mark.parametrize("is_lines", [False, True])
    def test_a_file_that_is_cut_off_is_named_with_its_line(self, tmp_path: Path, is_lines: bool):
        path = tmp_path / "export.jsonl"
        text = lines([an_eval(), a_run(), *outputs()]) if is_lines else json.dumps(whole(), indent=1)
        path.write_text(text[: len(text) - 300])
        number = "10" if is_lines else "[0-9]{3}"
        with pytest.raises(UserError, match=rf"export.jsonl:{number}: cut off in the middle\. Export it again"):
            bridges.read(f"evals:{path}", None)

    def test_a_page_with_more_behind_it_is_refused(self, tmp_path: Path):
        page = {"object": "list", "data": outputs()[:4], "has_more": True}
        with pytest.raises(UserError, match=r"export.json: a page with has_more.*after=outputitem_1_3, or set"):
            read(tmp_path, whole(output_items=page))

    def test_items_that_are_missing_are_counted(self, tmp_path: Path):
        run = a_run()
        run["data_source"]["source"] = {"type": "file_id", "id": "file-1"}
        found = read(tmp_path, whole(runs=[run], output_items=outputs()[:5]))
        assert "has 8 output items, and 5 of them are here" in noted(found)
        assert "file-1" in noted(found)
        assert len(found.rows["train"]) == 5

    def test_two_evals_are_refused_with_their_ids(self, tmp_path: Path):
        with pytest.raises(UserError, match=r"more than one eval.*eval_1, eval_2.*each into a folder of its own"):
            read(tmp_path, [an_eval(), an_eval(id="eval_2"), a_run()])
        with pytest.raises(UserError, match=r"eval_1, eval_9"):
            read(tmp_path, whole(runs=[a_run() | {"eval_id": "eval_9"}]))

    def test_what_is_no_eval(self, tmp_path: Path):
        with pytest.raises(UserError, match=r"holds no eval.*GET /v1/evals/ID"):
            read(tmp_path, {"runs": [a_run()]})
        with pytest.raises(UserError, match="has no items"):
            read(tmp_path, an_eval())
        with pytest.raises(UserError, match=r"outputitem_1_0 than export.json"):
            read(tmp_path, whole(output_items=[an_output(0), an_output(0, status="fail")]))
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError, match=r"has no .json"):
            bridges.read(f"evals:{tmp_path / 'empty'}", None)

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ({"eval": an_eval(testing_criteria={})}, "testing_criteria is dict, expected a list"),
            ({"eval": an_eval(testing_criteria=[3])}, r"testing_criteria\[0\]: holds int"),
            ({"eval": an_eval({"type": "azure_ai_evaluator"})}, "'azure_ai_evaluator' is not a grader"),
            ({"runs": [a_run(input_messages="x")]}, r"outputitem_1_0\): input_messages of its run is \"x\""),
            ({"runs": [a_run(sampling_params={"response_format": 3})]}, r"evalrun_1\): response_format: 3 is not"),
            (
                {"runs": [a_run(sampling_params={"max_completion_tokens": True})]},
                "is True, expected a number of tokens",
            ),
            ({"output_items": [an_output(0, datasource_item=None)]}, r"outputitem_1_0\): datasource_item is None"),
        ],
    )
    def test_what_is_no_object_of_the_api_is_named(self, tmp_path: Path, parts: dict[str, Any], message: str):
        with pytest.raises((UserError, ConfigError), match=message):
            read(tmp_path, whole(**parts))

    def test_odd_records_of_the_service_do_no_harm(self, tmp_path: Path):
        run = a_run(sampling_params={"tools": ["x", {"type": "function"}]}) | {
            "result_counts": "8",
            "created_at": "now",
        }
        found = read(tmp_path, whole(runs=[run], output_items=outputs(results=None, sample=[])))
        assert len(found.rows["train"]) == 8
        assert "8 are left out: no answer" in noted(found)
        assert "the hosted tool 'x' is not served here" in noted(found)

    def test_unknown_objects_are_counted(self, tmp_path: Path):
        found = read(tmp_path, [*whole().values(), {"object": "vector_store"}, {"object": "vector_store"}, {"a": 1}, 7])
        assert "export.json: 2 x object 'vector_store': not part of an eval" in noted(found)
        assert "export.json: 1 x an object with a" in noted(found)
        assert "export.json: 1 x int" in noted(found)


# -- items -----------------------------------------------------------------------------------------
class TestItems:
    def named(self, item_file: str, tmp_path: Path) -> Imported:
        files = tmp_path / "files"
        files.mkdir()
        (files / "file-1.jsonl").write_text(item_file)
        run = a_run(source={"type": "file_id", "id": "file-1"})
        return read(tmp_path, {"eval": an_eval(), "runs": [run]}, files)

    def test_those_of_a_data_file(self, tmp_path: Path):
        found = self.named(lines([{"item": an_item(n)} for n in range(4)]), tmp_path)
        assert [row["input"] for row in parsed(found)] == HEADLINES[:4]
        assert found.rows["train"][2].where.endswith("file-1.jsonl:3")

    def test_a_line_that_is_a_row_stays_byte_for_byte(self, tmp_path: Path):
        line = '{"ground_truth": "World",  "price": 1.10, "messages": [{"role":"user","content":"Vote"}]}'
        found = self.named(f"{line}\n", tmp_path)
        assert found.rows["train"][0].text == line

    def test_a_data_file_is_asked_for(self, tmp_path: Path):
        run = a_run(source={"type": "file_id", "id": "file-1"})
        with pytest.raises(UserError, match=r"evalrun_1.*'file-1'.*Add --files FOLDER"):
            read(tmp_path, {"eval": an_eval(), "runs": [run]})

    def test_a_data_file_may_lie_in_the_export(self, tmp_path: Path):
        folder = tmp_path / "export"
        folder.mkdir()
        (folder / "file-1.jsonl").write_text(lines([{"item": an_item(n)} for n in range(4)]))
        run = a_run(source={"type": "file_id", "id": "file-1"}) | {"result_counts": {"total": 0}}  # queued
        (folder / "export.json").write_text(json.dumps({"eval": an_eval(), "runs": [run]}))
        found = bridges.read(f"evals:{folder}", None)
        assert len(found.rows["train"]) == 4
        assert "file-1" not in noted(found)

    @pytest.mark.parametrize("line", ['{"input": "x"}', '{"item": "x"}', "[]"])
    def test_a_line_without_an_item_is_refused(self, tmp_path: Path, line: str):
        with pytest.raises(UserError, match=r"file-1.jsonl:1: has no `item`"):
            self.named(f"{line}\n", tmp_path)

    def test_a_reference_names_the_messages(self, tmp_path: Path):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{{item.input}}"}]
        items = [
            {"item": an_item(n) | {"past": {"messages": [*messages, {"role": "user", "content": str(n)}]}}}
            for n in range(4)
        ]
        run = a_run(
            input_messages={"type": "item_reference", "item_reference": "item.past.messages"},
            source={"type": "file_content", "content": items},
        )
        found = read(tmp_path, {"eval": an_eval(), "runs": [run]})
        assert parsed(found)[3]["messages"][1:] == [
            messages[1],
            {"role": "user", "content": "3"},
        ]  # no template in a value
        run["data_source"]["input_messages"]["item_reference"] = "item.other"
        with pytest.raises(UserError, match=r"evalrun_1\): source.content\[0\]: has no item.other"):
            read(tmp_path, {"eval": an_eval(), "runs": [run]})

    def test_an_item_of_two_runs_is_one_row_with_the_newest_prompt(self, tmp_path: Path):
        newest = a_run(
            2, input_messages={"type": "template", "template": [{"role": "user", "content": "{{item.input}}?"}]}
        )
        found = read(tmp_path, whole(runs=[a_run(), newest], output_items=[*outputs(), *outputs(2)]))
        assert [row["messages"][0]["content"] for row in parsed(found)] == [f"{text}?" for text in HEADLINES]
        assert "8 items were sent with another prompt" in noted(found)

    def test_a_template_that_reads_what_an_item_lacks(self, tmp_path: Path):
        run = a_run(input_messages={"type": "template", "template": [{"role": "user", "content": "{{item.headline}}"}]})
        with pytest.raises(
            UserError, match=r"outputitem_1_0\): .*template\[0\] reads {{item.headline}}, which the item"
        ):
            read(tmp_path, whole(runs=[run]))

    def test_a_reference_may_name_the_messages_of_the_row(self, tmp_path: Path):
        messages = [{"role": "user", "content": "\ud83d half a pair", "name": None}]
        item = an_output(0, datasource_item={"messages": messages, "ground_truth": "World"})
        run = a_run(input_messages={"type": "item_reference", "item_reference": "item.messages"}, source={})
        found = read(tmp_path, whole(runs=[run], output_items=[item]))
        assert parsed(found)[0]["messages"] == [{"role": "user", "content": "\ud83d half a pair"}]
        assert found.rows["train"][0].text.encode()  # as UTF-8 can hold it

    def test_an_answer_beside_an_item_is_told(self, tmp_path: Path):
        content = [{"item": an_item(n), "sample": {"output_text": "World"}} for n in range(3)]
        found = read(
            tmp_path, {"eval": an_eval(), "runs": [a_run(source={"type": "file_content", "content": content})]}
        )
        assert "3 items have a `sample` beside them" in noted(found)
        assert "sample" not in parsed(found)[0]

    def test_the_developer_last_is_refused(self, tmp_path: Path):
        found = read(tmp_path, whole(runs=[a_run(input_messages={"type": "template", "template": TEMPLATE[:1]})]))
        with pytest.raises(UserError, match=r"outputitem_1_0\): the last message is the developer's"):
            bridges.write_agent(found, tmp_path / "agent", "recipes/agent", "agent", {})

    def test_an_image_is_refused_with_its_place(self, tmp_path: Path):
        part = {"type": "input_image", "image_url": "https://images.example/1.png"}
        run = a_run(input_messages={"type": "template", "template": [{"role": "user", "content": ["See", part]}]})
        with pytest.raises(
            UserError, match=r"outputitem_1_0\): .*template\[0\].content holds 'input_image'.*read text"
        ):
            read(tmp_path, whole(runs=[run]))

    @pytest.mark.parametrize("key", ["messages", "tools", "response_format"])
    def test_a_key_that_means_something_in_a_row(self, tmp_path: Path, key: str):
        item = an_output(0, datasource_item=an_item(0) | {key: "mine"})
        with pytest.raises(UserError, match=rf"outputitem_1_0\): the item has a key '{key}'.*Rename it"):
            read(tmp_path, whole(output_items=[item]))

    def test_nothing_says_what_the_model_was_told(self, tmp_path: Path):
        run = a_run(type="jsonl", input_messages=None)
        bare = [an_output(n) | {"sample": None} for n in range(8)]
        with pytest.raises(UserError, match=r"outputitem_1_0\): its run sampled no model.*7 more items"):
            read(tmp_path, whole(runs=[run], output_items=bare))

    def test_output_items_alone_have_the_messages_that_were_sent(self, tmp_path: Path):
        found = read(tmp_path, whole(runs=[]))
        assert parsed(found)[1]["messages"][1] == {"role": "user", "content": "Headline: New phone"}

    def test_functions_are_offered_and_hosted_tools_are_not(self, tmp_path: Path):
        function = {"name": "find", "parameters": {"type": "object", "properties": {}}}
        for tool in ({"type": "function", "function": function}, {"type": "function", **function}):
            params = {"tools": [tool, {"type": "web_search"}]}
            found = read(tmp_path, whole(runs=[a_run(sampling_params=params)]))
            assert parsed(found)[0]["tools"] == [{"type": "function", "function": function}]
            assert any("the address of find" in line for line in found.to_fill)
            assert noted(found).count("the hosted tool 'web_search' is not served here") == 1


# -- criteria --------------------------------------------------------------------------------------
class TestCriteria:
    def grader(self, tmp_path: Path, *criteria: dict[str, Any], **parts: Any) -> tuple[Imported, dict[str, Any]]:
        found = read(tmp_path, whole(eval=an_eval(*criteria), **parts))
        folder = tmp_path / "agent"
        bridges.write_agent(found, folder, "recipes/agent", "agent", {})
        return found, json.loads((folder / "grader.json").read_text())

    def test_several_that_pass_or_fail_pass_together(self, tmp_path: Path):
        found, raw = self.grader(tmp_path, TOPIC, TOPIC | {"operation": "ilike"}, LABEL)
        read_back = graders.read(raw, "grader.json")
        assert isinstance(read_back, graders.Multi)
        assert list(read_back.graders) == ["string_check", "criterion_2", "summary_grader"]
        assert read_back.scale.pass_threshold == 1.0
        values = dict.fromkeys(read_back.graders, 1.0)
        assert read_back.formula.value(values) == 1.0
        assert read_back.formula.value(values | {"criterion_2": 0.0}) < 1.0
        assert "which is when all of them pass" in noted(found)

    def test_each_counts_on_its_own_scale(self, tmp_path: Path):
        found, raw = self.grader(tmp_path, TOPIC, NEAR, JUDGE)
        read_back = graders.read(raw, "grader.json")
        assert isinstance(read_back, graders.Multi)
        low, high = {"string_check": 0.0, "near": 0.0, "tone": 1.0}, {"string_check": 1.0, "near": 1.0, "tone": 7.0}
        assert (read_back.formula.value(low), read_back.formula.value(high)) == (0.0, 1.0)
        just = {"string_check": 1.0, "near": 0.8, "tone": 5.0}
        assert read_back.formula.value(just) >= read_back.scale.pass_threshold > 0.82
        assert read_back.range == (0.0, 1.0)
        assert "a high one can make up for a low one" in noted(found)

    def test_source_is_taken_as_it_is_and_its_range_is_asked_for(self, tmp_path: Path):
        found, raw = self.grader(tmp_path, PYTHON, TOPIC)
        assert raw["graders"]["criterion_1"]["source"] == PYTHON["source"]
        told = bridges.write_agent(found, tmp_path / "again", "recipes/agent", "agent", {})
        assert any("Add --range LOW HIGH" in line for line in told)

    def test_a_judge_is_to_be_named(self, tmp_path: Path):
        found, raw = self.grader(tmp_path, JUDGE)
        assert raw["range"] == [1, 7]
        assert graders.read(raw, "grader.json").scale.pass_threshold == 5.0
        assert any("OPENAI_BASE_URL" in line and "'o3-mini'" in line for line in found.to_fill)
        assert "Tone: the judge 'o3-mini' is that of the service" in noted(found)

    def test_cosine_is_refused_with_its_place(self, tmp_path: Path):
        with pytest.raises(ConfigError, match=r"export.json: testing_criteria\[1\].*'cosine'"):
            self.grader(tmp_path, TOPIC, NEAR | {"evaluation_metric": "cosine"})

    def test_none_leaves_the_grader_to_its_owner(self, tmp_path: Path):
        found = read(tmp_path, whole(eval=an_eval(testing_criteria=[])))
        assert found.grader is None
        assert "nothing says what an answer is worth" in noted(found)

    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("{{item.truth}}", "is in no row.*Did you mean 'ground_truth'"),
            ("{{sample.output_txt}}", "is not in a sample. Did you mean 'output_text'"),
            ("{{sample.output_tools[0].function.arguments.topic}}", "reads inside the arguments of a call"),
        ],
    )
    def test_a_template_that_finds_nothing_is_refused(self, tmp_path: Path, place: str, message: str):
        judge = JUDGE | {"input": [{"role": "user", "content": [f"Judge {place}", "{{sample.output_text}}"]}]}
        for criterion in (TOPIC | {"reference": place}, judge):
            with pytest.raises(UserError, match=message):
                self.grader(tmp_path, NEAR, criterion)

    def test_a_template_that_finds_something_in_some_is_told(self, tmp_path: Path):
        some = [an_output(0, datasource_item={"input": "x"}), *outputs()[1:]]
        assert "is not in 1 of 8 rows, such as export.json (outputitem_1_0)" in noted(
            self.grader(tmp_path, output_items=some)[0]
        )

    def test_a_key_of_an_endpoint_reaches_no_file(self, tmp_path: Path):
        headers = {"X-Functions-Key": "s3cret"}
        endpoint = {"type": "endpoint", "name": "Remote grader", "url": "http://127.0.0.1:1/", "headers": headers}
        found, raw = self.grader(tmp_path, TOPIC, endpoint)
        assert found.secrets == ("REMOTE_GRADER_X_FUNCTIONS_KEY",)
        assert "s3cret" not in json.dumps(raw)

    def test_json_that_nothing_asks_for_is_told(self, tmp_path: Path):
        criterion = TOPIC | {"input": "{{sample.output_json.topic}}"}
        assert "nothing asks for JSON" in noted(read(tmp_path, whole(eval=an_eval(criterion))))
        schema = {"type": "json_schema", "name": "topic", "schema": {"type": "object"}}
        run = a_run(type="responses", sampling_params={"text": {"format": schema}})
        found = read(tmp_path, whole(eval=an_eval(criterion), runs=[run]))
        assert found.settings["rollout"]["response_format"] == schema
        assert "asks for JSON" not in noted(found)

    def test_one_form_of_the_answer_in_two_spellings_is_one(self, tmp_path: Path):
        form = {"name": "topic", "schema": {"type": "object"}}
        asked = {"response_format": {"type": "json_schema", "json_schema": form}}
        runs = [a_run(1, type="responses", sampling_params={"text": {"format": {"type": "json_schema", **form}}})]
        assert "different forms" not in noted(read(tmp_path, whole(runs=[*runs, a_run(2, sampling_params=asked)])))
        asked["response_format"] |= {"json_schema": form | {"name": "another"}}
        assert "different forms" in noted(read(tmp_path, whole(runs=[*runs, a_run(2, sampling_params=asked)])))


# -- results and traffic ---------------------------------------------------------------------------
class TestTraffic:
    def ingested(self, found: Imported, tmp_path: Path) -> list[Any]:
        window = tmp_path / "window.jsonl"
        window.write_text("".join(f"{line}\n" for line in found.traffic), encoding="utf-8")
        section = config.Traffic(min_conversations=1, processes=1)
        folder = ingest.ingest(str(window), section, tmp_path, tmp_path / "snapshots")
        assert reading.num_rejected(reading.manifest(folder)) == 0
        return list(reading.conversations(folder))

    def test_our_own_reader_reads_the_samples(self, tmp_path: Path):
        found = self.ingested(read(tmp_path, whole()), tmp_path)
        assert [one.conversation_id for one in found] == [f"outputitem_1_{n}" for n in range(8)]
        assert [message["role"] for message in found[0].messages] == ["developer", "user", "assistant"]
        assert found[0].feedback is None  # a verdict of the service is not a person's

    def test_an_error_is_no_score_and_no_conversation(self, tmp_path: Path):
        sample = an_output(0)["sample"]
        failed = an_output(
            1, results=[], sample=sample | {"error": {"code": "server_error", "message": "x"}, "output": []}
        )
        silent = an_output(2, results=[{"name": "a", "passed": True}], sample=sample | {"output": []})
        seen = an_output(3, sample=sample | {"input": [{"role": "user", "content": [{"type": "input_image"}]}]})
        empty = an_output(4, sample=sample | {"error": {"code": "", "message": ""}})
        found = read(tmp_path, whole(output_items=[an_output(0), failed, silent, seen, empty]))
        assert len(found.traffic) == 2
        notes = noted(found)
        for phrase in (
            "1 output items had sample.error: no score",
            "1 output items have a result without `passed` or `score`: no score",
            "conversations: 1 are left out: sample.error",
            "conversations: 1 are left out: no answer",
            "conversations: 1 are left out: not text",
        ):
            assert phrase in notes
        assert not any({"score", "passed", "results"} & row.keys() for row in parsed(found))

    @pytest.mark.parametrize("kind", ["stored_completions", "logs"])
    def test_stored_requests_are_rows_and_traffic_once(self, tmp_path: Path, kind: str):
        messages = [[{"role": "user", "content": headline}] for headline in HEADLINES]
        runs = [a_run(number, input_messages=None, source={"type": kind, "metadata": {"v": "1"}}) for number in (1, 2)]
        items = [
            an_output(n, run, datasource_item={"input": messages[n]}) for run in (1, 2) for n in range(len(HEADLINES))
        ]
        for item in items:
            item["sample"]["input"] = item["datasource_item"]["input"]
        config_ = {"type": kind, "schema": {}, "metadata": {"usecase": "news"}}
        found = read(
            tmp_path, {"eval": an_eval(LABEL, data_source_config=config_), "runs": runs, "output_items": items}
        )
        assert [row["messages"] for row in parsed(found)] == messages
        assert parsed(found)[0]["input"] == messages[0]
        assert len(self.ingested(found, tmp_path)) == 8
        assert "8 are left out: the same in another run" in noted(found)

    def test_completions_and_responses_beside_it_are_traffic(self, tmp_path: Path):
        completion = {
            "object": "chat.completion",
            "id": "chatcmpl-1",
            "created": 1743092000,
            "messages": [{"role": "user", "content": "Vote"}],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "World"}}],
        }
        response = {
            "object": "response",
            "id": "resp_1",
            "created_at": 1743092001,
            "input": [{"role": "user", "content": "Vote"}],
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "World"}]}],
        }
        bare = {key: value for key, value in completion.items() if key != "messages"} | {"id": "chatcmpl-2"}
        found = read(
            tmp_path, [*whole(output_items=[]).values(), {"object": "list", "data": [completion, response, bare]}]
        )
        assert [one.conversation_id for one in self.ingested(found, tmp_path)] == ["chatcmpl-1", "resp_1"]
        assert "1 are left out: no request" in noted(found)
