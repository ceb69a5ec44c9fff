"""What each type of grader must say: a table of cases, and published grader objects.

A case has a grader, an answer of the policy, a row, and what a judge or address replies. It also
has the score, status and flags that the contract documents. Cases of python need a sandbox.
bench/grader_semantics.py counts the cases that differ, and tests/grading plays the same table.

The objects are written from descriptions of published ones: an integrator's endpoints, and the
guide's and a cloud's graders. There are also an F1 as a formula, a countdown game graded 0 to 5
with a pass_threshold of 8, and the forms of `graders` in SDK and specification.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

ANSWER, TARGET = "{{sample.output_text}}", "{{item.answer}}"
ASKED = [{"role": "user", "content": "Is {{sample.output_text}} right? It is {{item.answer}}."}]
HERE = "{here}"
"""Stands for the server that plays judge and endpoint."""
UNREAD = ("invalid_variable_error", "sample_parse_error")


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    grader: dict[str, Any]
    answer: str
    score: float | None
    item: dict[str, Any] = field(default_factory=dict)
    status: str = "ok"
    flags: tuple[str, ...] = ()
    reply: Any = None
    """What the judge's or endpoint's server sends. An int is an HTTP status."""

    def __str__(self) -> str:
        return f"{self.grader['type']}: {self.name}"


# -- graders ---------------------------------------------------------------------------------------
def string_check(operation: str, reference: str = TARGET, text: str = ANSWER) -> dict[str, Any]:
    return {
        "type": "string_check", "name": "check", "input": text, "reference": reference, "operation": operation,
    }  # fmt: skip


def similar(metric: str) -> dict[str, Any]:
    return {
        "type": "text_similarity", "name": "near", "input": ANSWER, "reference": TARGET, "evaluation_metric": metric,
    }  # fmt: skip


def score_model(**more: Any) -> dict[str, Any]:
    return {"type": "score_model", "name": "judge", "model": "m", "input": ASKED, **more}


LABEL = {
    "type": "label_model", "name": "label", "model": "m", "input": ASKED, "labels": ["right", "near", "wrong"],
    "passing_labels": ["right", "near"],
}  # fmt: skip


def multi(formula: str, **more: Any) -> dict[str, Any]:
    graders = {"exact": string_check("eq"), "near": similar("fuzzy_match"), "named": string_check("ilike")}
    return {
        "type": "multi", "graders": {key: graders[key] for key in graders if key in formula},
        "calculate_output": formula, **more,
    }  # fmt: skip


ENDPOINT = {"type": "endpoint", "url": f"{HERE}/grade"}


def judged(result: Any, **message: Any) -> dict[str, Any]:
    """Make a judge's reply."""
    verdict = {"steps": [{"description": "compare", "conclusion": "compared"}], "result": result}
    return chat(json.dumps(verdict), **message)


def chat(content: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    spoken = {"role": "assistant", "content": content, **message}
    usage = {"prompt_tokens": 190, "completion_tokens": 134, "total_tokens": 324}
    return {"choices": [{"index": 0, "message": spoken, "finish_reason": finish}], "usage": usage}


# -- cases -----------------------------------------------------------------------------------------
PARIS = {"answer": "Paris"}
OUTPUT_JSON = string_check("eq", text="{{sample.output_json.city}}")
DEEP = string_check("eq", reference='{{ item.all[1]["the city"] }}')
CAT = {"answer": "the cat sat on the mat"}
STRINGS = [
    Case("eq, the same", string_check("eq"), "Paris", 1, PARIS),
    Case("eq, another case", string_check("eq"), "paris", 0, PARIS),
    Case("eq, blanks around", string_check("eq"), " Paris", 0, PARIS),
    Case("ne, the same", string_check("ne"), "Paris", 0, PARIS),
    Case("ne, another", string_check("ne"), "Rome", 1, PARIS),
    Case("neq is ne", string_check("neq"), "Rome", 1, PARIS),
    Case("like, contains", string_check("like"), "It is Paris.", 1, PARIS),
    Case("like, another case", string_check("like"), "It is paris.", 0, PARIS),
    Case("like, the other way round", string_check("like"), "Par", 0, PARIS),
    Case("ilike, another case", string_check("ilike"), "It is PARIS.", 1, PARIS),
    Case("ilike, not there", string_check("ilike"), "It is Rome.", 0, PARIS),
    Case("output_json", OUTPUT_JSON, '{"city": "Paris"}', 1, PARIS),
    Case("output_json, a number", OUTPUT_JSON, '{"city": 1.5}', 1, {"answer": 1.5}),
    Case("output_json, a list", OUTPUT_JSON, '{"city": ["a", 1]}', 1, {"answer": ["a", 1]}),
    Case("no JSON in the answer", OUTPUT_JSON, "Paris", 0, PARIS, "unjudgeable_answer", UNREAD),
    Case("the answer lacks the key", OUTPUT_JSON, '{"town": 1}', 0, PARIS, "unjudgeable_answer", UNREAD),
    Case("the row lacks a key", string_check("eq"), "Paris", None, {}, "grader_bad_reply", ("invalid_variable_error",)),
    Case("a path of keys and positions", DEEP, "Paris", 1, {"all": [0, {"the city": "Paris"}]}),
    Case("a place that is not there", DEEP, "x", None, {"all": [0]}, "grader_bad_reply", ("invalid_variable_error",)),
    Case("a template in the answer stays text", string_check("eq"), TARGET, 0, PARIS),
    Case("an empty reference in everything", string_check("like"), "x", None, {"answer": ""}, "grader_bad_reply",
         ("other_error",)),
    Case("calls of tools", string_check("eq", text="{{sample.output_tools[0].function.name}}"), "", 1,
         {"answer": "search"}),
]  # fmt: skip
SIMILAR = [
    *(Case(f"{metric}, the same", similar(metric), "the cat sat on the mat", 1, CAT)
      for metric in ("fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l")),
    *(Case(f"{metric}, nothing shared", similar(metric), "QQQ", 0, CAT)
      for metric in ("fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_5", "rouge_l")),
    *(Case(f"{metric}, empty", similar(metric), "", 0, CAT) for metric in ("fuzzy_match", "bleu", "gleu", "rouge_l")),
    # one of the 11 letters of both words is inserted: 1 - 1/11
    Case("fuzzy_match, a letter more", similar("fuzzy_match"), "Pairis", 1 - 1 / 11, PARIS),
    # five of six words shared on both sides
    Case("rouge_1, five of six words", similar("rouge_1"), "the cat is on the mat", 5 / 6, CAT),
    # three of five pairs: the cat, on the, the mat
    Case("rouge_2, three of five pairs", similar("rouge_2"), "the cat is on the mat", 3 / 5, CAT),
    # one of four: on the mat
    Case("rouge_3, one of four", similar("rouge_3"), "the cat is on the mat", 1 / 4, CAT),
    Case("rouge_l, five words in order", similar("rouge_l"), "the cat is on the mat", 5 / 6, CAT),
    Case("rouge_l, half of the words", similar("rouge_l"), "cat mat sat", 2 * (2 / 3) * (2 / 6) / (2 / 3 + 2 / 6), CAT),
    # runs of 1 to 4 shared: 5 of 6, 3 of 5, 1 of 4, 0 of 3
    Case("gleu, nine of eighteen runs", similar("gleu"), "the cat is on the mat", 9 / 18, CAT),
    # (5/6 * 3/5 * 1/4 * 1/6)^(1/4): no run of 4 is shared, which counts as 0.5 of 3
    Case("bleu, smoothed", similar("bleu"), "the cat is on the mat", (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25, CAT),
    Case("bleu, one word", similar("bleu"), "Paris", 1, PARIS),
    Case("an empty reference", similar("fuzzy_match"), "", None, {"answer": " "}, "grader_bad_reply", ("other_error",)),
    Case("words that rouge does not know", similar("rouge_l"), "巴黎", None, {"answer": "巴黎"}, "grader_bad_reply",
         ("other_error",)),
    Case("an endless text", similar("rouge_l"), "a " * 60_000, 0, PARIS, "unjudgeable_answer", ("sample_parse_error",)),
]  # fmt: skip
JUDGED = [
    Case("a number", score_model(), "Paris", 0.7, PARIS, reply=judged(0.7)),
    Case("clipped from above", score_model(range=[0, 5]), "Paris", 5, PARIS, reply=judged(7)),
    Case("clipped from below", score_model(range=[0, 5]), "Paris", 0, PARIS, reply=judged(-1)),
    Case("a text", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",), judged("0.7")),
    Case("true", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",), judged(True)),
    Case("NaN", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",),
         chat('{"steps": [], "result": NaN}')),
    Case("prose", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",), chat("Good.")),
    Case("no result", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",), chat("{}")),
    Case("cut off", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",),
         chat('{"steps": [{"desc', finish="length")),
    Case("empty", score_model(), "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",), {"choices": []}),
    Case("refuses", score_model(), "x", None, PARIS, "judge_error", ("model_grader_refusal_error",),
         chat(None, refusal="I cannot help with that")),
    Case("filters", score_model(), "x", None, PARIS, "judge_error", ("model_grader_refusal_error",),
         chat("", finish="content_filter")),
    Case("HTTP 400", score_model(), "x", None, PARIS, "judge_error", ("model_grader_server_error",), 400),
    Case("HTTP 500", score_model(), "x", None, PARIS, "infra_error", ("model_grader_server_error",), 500),
    Case("none in time", score_model(), "x", None, PARIS, "grader_timeout", ("model_grader_server_error",), "late"),
    Case("a key is missing", score_model(), "x", None, {}, "grader_bad_reply", ("invalid_variable_error",), judged(1)),
    Case("the answer lacks the key", score_model(input=[{"role": "user", "content": "{{sample.output_json.a}}"}]),
         "x", 0, PARIS, "unjudgeable_answer", UNREAD, judged(1)),
    Case("a passing label", LABEL, "Paris", 1, PARIS, reply=judged("near")),
    Case("another label", LABEL, "Rome", 0, PARIS, reply=judged("wrong")),
    Case("no such label", LABEL, "x", None, PARIS, "grader_bad_reply", ("model_grader_parse_error",), judged("Right")),
    Case("refuses", LABEL, "x", None, PARIS, "judge_error", ("model_grader_refusal_error",), chat(None, refusal="no")),
]  # fmt: skip
JUDGE_INSIDE = {
    "type": "multi", "graders": {"exact": string_check("eq"), "judge": score_model()},
    "calculate_output": "exact * judge",
}  # fmt: skip
JSON_INSIDE = {
    "type": "multi", "graders": {"field": OUTPUT_JSON, "text": string_check("eq")},
    "calculate_output": "max(field, text)",
}  # fmt: skip
HACK_INSIDE = {
    "type": "multi", "graders": {"exact": string_check("eq"), "there": ENDPOINT}, "calculate_output": "exact + there",
    "range": [0, 2],
}  # fmt: skip
FORMULA = ("formula_parse_error",)
MULTI = [
    Case("a weighted sum", multi("0.7 * exact + 0.3 * near"), "Paris", 1, PARIS),
    Case("a weighted sum of parts", multi("0.7 * exact + 0.3 * named"), "It is paris", 0.3, PARIS),
    Case("^ is a power", multi("2 ^ (exact + 1)", range=[0, 8]), "Paris", 4, PARIS),
    Case("- before ^", multi("-2 ^ 2 + 5 * exact"), "Paris", 1, PARIS),
    Case("functions", multi("min(exact, 1) * max(0, 0.5, near) + abs(floor(-0.5)) - ceil(0.2)"), "Paris", 1, PARIS),
    Case("exp, log, sqrt", multi("sqrt(exp(log(0.25))) * exact"), "Paris", 0.5, PARIS),
    Case("F1 with 1e-9", multi("2 * exact * named / max(exact + named, 1e-9)"), "Rome", 0, PARIS),
    Case("a division by zero", multi("exact / named"), "Rome", None, PARIS, "grader_bad_reply", FORMULA),
    Case("a root of less than zero", multi("sqrt(exact - 1)"), "Rome", None, PARIS, "grader_bad_reply", FORMULA),
    Case("a power without a real value", multi("(exact - 1) ^ 0.5"), "Rome", None, PARIS, "grader_bad_reply", FORMULA),
    Case("a number too large", multi("exp(exact * 1000)"), "Paris", None, PARIS, "grader_bad_reply", FORMULA),
    Case("beyond the range", multi("3 * exact", range=[0, 2]), "Paris", None, PARIS, "grader_bad_reply", FORMULA),
    Case("a judge inside", JUDGE_INSIDE, "Paris", 0.7, PARIS, reply=judged(0.7)),
    Case("a judge inside is down", JUDGE_INSIDE, "Paris", None, PARIS, "infra_error", ("model_grader_server_error",),
         500),
    Case("one part cannot read the answer", JSON_INSIDE, "Paris", 1, PARIS, flags=UNREAD),
    Case("a part names a hack", HACK_INSIDE, "Paris", 0, PARIS, "hack", reply={"score": 1, "hack": "reads the key"}),
    Case("the row lacks a part's key", multi("exact"), "x", None, {}, "grader_bad_reply", ("invalid_variable_error",)),
]  # fmt: skip
ADDRESSED = [
    Case("a score", ENDPOINT, "Paris", 0.5, PARIS, reply={"score": 0.5}),
    Case("a bare number", ENDPOINT, "Paris", 0.5, PARIS, reply=0.5),
    Case("a hack", ENDPOINT, "Paris", 0, PARIS, "hack", reply={"score": 1, "hack": True}),
    Case("a text", ENDPOINT, "Paris", None, PARIS, "grader_bad_reply", reply={"score": "1"}),
    Case("HTTP 500", ENDPOINT, "Paris", None, PARIS, "infra_error", reply=500),
    Case("no answer in time", ENDPOINT, "Paris", None, PARIS, "grader_timeout", reply="late"),
]


def python(*lines: str, **more: Any) -> dict[str, Any]:
    """`python("return 1.0")`: source with a function of these lines."""
    return {"type": "python", "source": "\n    ".join(["def grade(sample, item):", *lines]), **more}


RUNTIME = ("python_grader_runtime_error",)
FORKS = "import os, time", "while True:", "    if os.fork() == 0:", "        time.sleep(100)"
WRITES = "import os", "os.write(1, b'{\"score\": 1.0}')", "print('{\"score\": 1.0}')", "return 0.25"
FLOAT = "class F:", "    def __float__(self):", "        return 1.0", "return F()"
SUBCLASS = "class F(float):", "    def __float__(self):", "        return 1.0", "return F(0.25)"
PYTHON = [
    Case("a float", python("return float(sample['output_text'] == item['answer'])"), "Paris", 1, PARIS),
    Case("a whole number", python("return 0"), "x", 0, PARIS),
    Case("numpy's float", python("import numpy", "return numpy.mean([0, 1])"), "x", 0.5, PARIS),
    Case("calls of tools", python("return 0.5 * (sample['output_tools'][0]['function']['name'] == 'search')"), "", 0.5),
    Case("prints a verdict", python(*WRITES), "x", 0.25),
    Case("a child returns too", python("import os", "return 0.25 if os.fork() else 1.0"), "x", 0.25),
    Case("a subclass of float", python(*SUBCLASS), "x", 0.25),
    Case("beyond the declared range", python("return 3", range=[0, 2]), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("NaN", python("return float('nan')"), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("too large for a float", python("return 10 ** 400"), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("a text", python("return '1'"), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("true", python("return True"), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("nothing", python("return"), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("an object with __float__", python(*FLOAT), "x", None, {}, "grader_bad_reply", RUNTIME),
    Case("raises", python("return item['price']"), "x", None, {}, "infra_error", RUNTIME),
    Case("exits", python("import sys", "sys.exit(0)"), "x", None, {}, "infra_error", RUNTIME),
    Case("ends at once", python("import os", "os._exit(0)"), "x", None, {}, "infra_error", RUNTIME),
    Case("forks without end", python(*FORKS), "x", None, {}, "infra_error", RUNTIME),
    Case("prints 100 MB", python("print('x' * 100_000_000)", "return 1.0"), "x", None, {}, "infra_error", RUNTIME),
    Case("uses 3 GB", python("return len(bytearray(b'x' * 3 * 2 ** 30)) / 1e12"), "x", None, {}, "infra_error",
         RUNTIME),
    Case("connects", python("import socket", "socket.create_connection(('127.0.0.1', 80), 1)", "return 1.0"), "x", None,
         {}, "infra_error", RUNTIME),
]  # fmt: skip
CASES = [*STRINGS, *SIMILAR, *JUDGED, *MULTI, *PYTHON, *ADDRESSED]

# -- published objects -----------------------------------------------------------------------------
COUNTDOWN = """
import re

def grade(sample, item) -> float:
    found = re.search(r"<answer>(.*?)</answer>", sample["output_text"])
    if not found:
        return 0
    try:
        return 5.0 if abs(eval(found[1]) - item["target"]) < 1e-5 else 1.0
    except Exception:
        return 1.0
"""
OBJECTS: dict[str, dict[str, Any]] = {
    "an integrator's endpoint": {"type": "endpoint", "name": "plan_f1", "url": "https://grader.example/grade",
                                 "headers": {"X-Env": "train"}},
    "an endpoint without a name": {"type": "endpoint", "url": "https://grader.example/grade"},
    "a cloud's endpoint": {"type": "endpoint", "name": "remote", "url": "https://grader.example/grade",
                           "rate_limit": 50, "pass_threshold": 0.8},
    "the guide's string_check": string_check("neq"),
    "the guide's text_similarity": similar("fuzzy_match") | {"pass_threshold": 0.8},
    "the guide's score_model": score_model(
        range=[0, 10], pass_threshold=5,
        input=[{"role": "developer", "content": "Grade from 0 to 10."},
               {"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "{{ sample.output_text }} against {{ item.answer }}"}]}],
        sampling_params={"seed": 42, "temperature": 0, "top_p": 1, "max_completions_tokens": 2048,
                         "reasoning_effort": "low"},
    ),
    "a cloud's label_model": LABEL,
    "a countdown game, 0 to 5": {"type": "python", "name": "countdown", "source": COUNTDOWN,
                                 "image_tag": "2025-05-08", "pass_threshold": 8},
    "an F1 of two parts": {"type": "multi",
                           "graders": {"precision": similar("rouge_1"), "recall": string_check("like")},
                           "calculate_output": "2 * precision * recall / max(precision + recall, 1e-9)"},
    "a list of graders": {"type": "multi", "name": "both",
                          "graders": [string_check("eq") | {"name": "Exact match"}, LABEL],
                          "calculate_output": "0.5 * exact_match + 0.5 * label"},
    "a single grader": {"type": "multi", "name": "one", "graders": string_check("eq"), "calculate_output": "check",
                        "invalid_grade": -1.0},
    "a judge by another name": {"type": "model", "model": "gpt-4o",
                                "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": {}}},
                                "prompt": "Ground truth: {ground_truth}\nAgent answer: {final_answer}\nScore 0-1."},
}  # fmt: skip


# -- playing them ----------------------------------------------------------------------------------
async def play(case: Case) -> tuple[Any, list[dict[str, Any]]]:
    """Return the grade, and what was sent to the judge's or endpoint's server."""
    from rft import config
    from rft.config import graders
    from rft.grading.grader import grader_of
    from rft.wire.client import ToolEndpoint

    section = config.Tools(timeout_s=0.2 if case.reply == "late" else 10, retries=0)
    async with Server(case.reply) as server:
        with environment(OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY=""):
            raw = json.loads(json.dumps(case.grader).replace(HERE, server.url))
            unopened = grader_of(graders.read(raw, "grader.json"), ToolEndpoint(server.url), section)
            async with unopened as grader:
                return await grader.grade(*rollout(case)), server.bodies


def rollout(case: Case) -> tuple[Any, ...]:
    """Make what a grader is given: the example, the turns, why it stopped, and the context."""
    from rft.types import Example, RolloutContext, StopReason, ToolCall, ToolResult, Turn

    row = {"id": "r-1", "messages": [{"role": "user", "content": "Which city?"}], **case.item}
    example = Example("r-1", ({"role": "user", "content": "Which city?"},), line=json.dumps(row))
    call = ToolCall("call_0_0", "search", '{"query": "city"}')
    turns = (Turn("", (call,), (ToolResult("call_0_0", "found"),), content=""), Turn(case.answer))
    return example, turns, StopReason.completed, RolloutContext("trace_1", example, "train")


class Server:
    """Plays judge and endpoint."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.bodies: list[dict[str, Any]] = []

    async def __aenter__(self) -> Server:
        import asyncio

        async def handle(request: web.Request) -> web.StreamResponse:
            self.bodies.append(await request.json())
            if self._reply == "late":
                await asyncio.sleep(1)
            if isinstance(self._reply, int) and self._reply >= 100:
                return web.json_response({"error": {"message": "no"}}, status=self._reply)
            return web.json_response(self._reply)

        app = web.Application()
        app.router.add_post("/{path:.*}", handle)
        self._server = TestServer(app)
        await self._server.start_server()
        self.url = str(self._server.make_url("")).rstrip("/")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close()


@contextmanager
def environment(**changes: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def differences(case: Case, grade: Any) -> list[str]:
    """Return how a grade differs from what is documented."""
    wrong: list[str] = []
    alike = grade.score is not None and case.score is not None and abs(grade.score - case.score) < 1e-9
    if not alike and (grade.score, case.score) != (None, None):
        wrong.append(f"score {grade.score}, expected {case.score}")
    if str(grade.status) != case.status:
        wrong.append(f"status {grade.status}, expected {case.status}")
    if sorted(grade.flags) != sorted(case.flags):
        wrong.append(f"flags {list(grade.flags)}, expected {list(case.flags)}")
    return [*wrong, f"said: {grade.explanation}"] if wrong else []
