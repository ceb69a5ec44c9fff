"""Grading stored rollouts anew: the same grader says the same, another one is compared, what has no
score stays out of every mean."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boxes
import pytest

from rft import config
from rft.config import graders
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.reports import PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts import replay
from rft.rollouts.log import LogRow
from rft.types import Example, Grade, GradeStatus, Scored, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored
from tests import tiny_recipe

PROMPT = PromptSettings(name="seed", system="Look it up.")


def value(number: int) -> str:
    return f"{(number * 7919 + 1234) % 9973:04d}"


def row(
    number: int, answer: str | None = None, stop: StopReason = StopReason.completed, grade: Grade | None = None
) -> LogRow:
    """A rollout of the tiny recipe that looked its key up and answered; graded as that recipe does
    unless told otherwise."""
    answer = value(number) if answer is None else answer
    example = Example(
        f"n-{number:04d}", ({"role": "user", "content": f"value of k{number:04d}"},), value(number), {"slice": "all"}
    )
    call = ToolCall("call_0_0", "lookup", json.dumps({"key": f"k{number:04d}"}))
    turns = (
        Turn("<tool_call>", (call,), (ToolResult("call_0_0", value(number)),), content="", reasoning="hm"),
        Turn(answer),
    )
    grade = grade or Scored(float(answer == value(number)), solved=answer == value(number))
    done = Trajectory(f"trace_{number}", example.id, turns, stop, grade, grade.score)
    return rollout_log.row(done, example, 0, PROMPT, "baseline", "champion", split="validation")


UNSCORED = Unscored(GradeStatus.grader_bad_reply, "was down")
LOG = [
    row(1),
    row(2),
    row(3, "0000"),
    row(4, grade=UNSCORED),
    row(5, stop=StopReason.tool_error, grade=Unscored(GradeStatus.infra_error)),
]


@contextmanager
def server(answer: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A grader of somebody else's, on a thread: `answer(body)` is a JSON value, or an HTTP
    status."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            answered = answer(body)
            status, content = (
                (answered, b"{}")
                if isinstance(answered, int) and answered >= 400
                else (200, json.dumps(answered).encode())
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}/grade", bodies
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def params(tmp_path: Path) -> config.Params:
    return tiny_recipe.params(tiny_recipe.make(tmp_path), tools={"retries": 0})


def regrade(
    rows: list[LogRow], grader: dict[str, Any], settings: config.Params
) -> tuple[list[replay.Regraded], list[int]]:
    told: list[int] = []
    found = replay.regrade(
        rows, graders.read({"type": "endpoint", "name": "new", **grader}, "grader.json"), settings, told.append
    )
    return found, told


@pytest.mark.slow
def test_the_same_grader_says_the_same(tmp_path: Path):
    """The recipe's own server is started for it. What ended in an outage is not sent; a grader's
    failure of then is mended."""
    found, told = regrade(LOG, {"url": "{tool_server}/grade"}, params(tmp_path))
    assert [one.row for one in found] == LOG
    assert [one.grade.score for one in found] == [1.0, 1.0, 0.0, 1.0, None]
    assert found[4].grade.explanation == "not sent: the rollout ended with tool_error"
    assert told == [1, 2, 3, 4, 5]
    comparison = replay.compare(found)
    assert (comparison.both, comparison.old_mean, comparison.new_mean, comparison.changed) == (3, 2 / 3, 2 / 3, 0)
    assert (comparison.only_old, comparison.only_new, comparison.neither, comparison.unscored) == (0, 1, 1, 1)
    assert replay.disagreements(found) == []


def test_another_grader_sees_what_the_first_one_saw(tmp_path: Path):
    with server(lambda body: {"score": 0.25, "sub_scores": {"style": 0.5}, "reason": "strict"}) as (url, bodies):
        found, _ = regrade(LOG[:3], {"url": url}, params(tmp_path))
    assert len({body["trace_id"] for body in bodies} - {"trace_1", "trace_2", "trace_3"}) == 3, (
        "a grader may hold state by an id that it knows"
    )
    body = next(body for body in bodies if body["item"] == json.loads(LOG[0].item))
    assert [one["role"] for one in body["sample"]["trajectory"]] == ["assistant", "tool", "assistant"]
    assert body["item"] == json.loads(LOG[0].item)
    assert (body["sample"]["output_text"], body["sample"]["num_tool_calls"], body["sample"]["stop_reason"]) == (
        value(1),
        1,
        "completed",
    )
    assert body["sample"]["output_tools"][0]["function"] == {"name": "lookup", "arguments": '{"key": "k0001"}'}
    comparison = replay.compare(found)
    assert (comparison.new_mean, comparison.changed, comparison.up, comparison.down) == (0.25, 3, 1, 2)
    assert [one.row.rollout_id for one in replay.disagreements(found)] == ["trace_1", "trace_2", "trace_3"]
    record = replay.record(found[0])
    assert (record["old_score"], record["new_score"], record["change"], record["new_explanation"]) == (
        1.0,
        0.25,
        -0.75,
        "strict",
    )
    assert record["new_components"] == '{"style": 0.5}'


STRING = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.target}}", "operation": "eq"}
NEAR = {
    "type": "text_similarity", "input": "{{sample.output_text}}", "reference": "{{item.target}}",
    "evaluation_metric": "fuzzy_match",
}  # fmt: skip
ASKED = [{"role": "user", "content": "{{item.target}}? {{sample.output_text}}"}]
JUDGE = {"type": "score_model", "model": "m", "input": ASKED, "prices": {"input": 2, "output": 10}}
LABEL = {"type": "label_model", "model": "m", "input": ASKED, "labels": ["yes", "no"], "passing_labels": ["yes"]}


@pytest.mark.parametrize(
    ("grader", "scores"),
    [
        (STRING, [1, 1, 0]),
        (STRING | {"reference": "{{sample.output_tools[0].function.name}}"}, [0, 0, 0]),
        (STRING | {"input": "{{sample.trajectory[1].content}}"}, [1, 1, 1]),  # what the tool said
        (NEAR, [1, 1, 0.25]),
        (JUDGE, [1, 1, 0]),
        (LABEL, [1, 1, 0]),
        (
            {"type": "multi", "graders": {"a": STRING, "b": NEAR}, "calculate_output": "(a + b) / 2"},
            [1, 1, 0.125],
        ),
        ({"type": "multi", "graders": {"a": STRING, "j": JUDGE}, "calculate_output": "a * j"}, [1, 1, 0]),
        pytest.param(
            {
                "type": "python",
                "source": "def grade(sample, item): return float(sample['output_text'] == item['target'])",
            },
            [1, 1, 0],
            marks=boxes.needs_sandbox,
        ),
    ],
)
def test_a_grader_as_data_needs_no_tool_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: dict[str, Any], scores: list[float]
):
    """Of any type. The recipe would not even load."""

    def judge(body: dict[str, Any]) -> dict[str, Any]:
        target, answer = body["messages"][-1]["content"].split("?")
        right = f"\n{target}\n" in answer
        labels = body["response_format"]["json_schema"]["schema"]["properties"]["result"].get("enum")
        verdict = {"steps": [], "result": float(right) if labels is None else labels[0 if right else 1]}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return {"choices": [{"message": {"content": json.dumps(verdict)}}], "usage": usage}

    settings = params(tmp_path)
    (tmp_path / "tiny" / "tools.py").write_text("raise RuntimeError")
    spent: replay.Spent = {}
    with server(judge) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url.removesuffix("/grade"))
        read = graders.read({"name": "new", **grader}, "grader.json")
        found = replay.regrade(LOG[:3], read, settings, lambda done: None, spent.update)
    assert [one.grade.score for one in found] == pytest.approx(scores)
    asks = "prices" in str(grader) or grader["type"] == "label_model"
    assert {model: (used.calls, used.prompt, used.completion) for model, used in spent.items()} == (
        {"m": (3, 300, 30)} if asks else {}
    )
    if "prices" in str(grader):
        assert replay.cost(read, "m", spent["m"]) == pytest.approx((300 * 2 + 30 * 10) / 1e6)


def test_no_score_is_no_zero(tmp_path: Path):
    with server(lambda body: 500 if body["item"] == json.loads(LOG[0].item) else 1.0) as (url, _):
        found, _ = regrade(LOG[:3], {"url": url}, params(tmp_path))
    comparison = replay.compare(found)
    assert (comparison.both, comparison.old_mean, comparison.new_mean, comparison.only_old) == (2, 0.5, 1.0, 1)
    assert found[0].change is None
    assert replay.compare(found[:1]).new_mean is None


def test_the_new_grader_s_range_holds(tmp_path: Path):
    """Declared, a score outside of it is unscored; forgotten, the first such score stops the
    replay."""
    with server(lambda body: 7 if body["item"]["id"] == "n-0002" else 4) as (url, _):
        found, _ = regrade(LOG[:3], {"url": url, "range": [0, 5], "pass_threshold": 4}, params(tmp_path))
        assert [(one.grade.score, one.grade.solved) for one in found] == [(4.0, True), (None, False), (4.0, True)]
        assert "'score' is 7, outside of the range 0 to 5" in found[1].grade.explanation
        with pytest.raises(ConfigError, match="declares no range, which means 0 to 1, and the grader gave the score"):
            regrade(LOG[:3], {"url": url}, params(tmp_path / "again"))


def test_what_stops_a_replay_is_one_error(tmp_path: Path):
    with server(lambda body: 401) as (url, _), pytest.raises(InfrastructureError, match="refuses our key"):
        regrade(LOG[:3], {"url": url}, params(tmp_path))
    with pytest.raises(
        UserError, match=r"column `item`: has no messages\. Without the example's whole row it cannot be graded again"
    ):
        regrade([replace(LOG[0], item="{}")], {"url": "http://127.0.0.1:9/grade"}, params(tmp_path / "again"))


def test_a_grade_that_looks_at_state_cannot_be_given_again(tmp_path: Path):
    settings = params(tmp_path)
    path = Path(settings.recipe.path) / "tools.py"
    kept = "def setup(rollout):\n    pass\n\n\ndef grade(sample, item, rollout)"
    path.write_text(path.read_text().replace("def grade(sample, item)", kept))
    with pytest.raises(UserError, match="looks at the rollout's state, which a log does not hold"):
        regrade(LOG[:3], {"url": "{tool_server}/grade"}, settings)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, UserError, "grader.json: cannot be read"),
        ("{", UserError, "grader.json: is not JSON"),
        ("[]", UserError, "grader.json: holds no JSON object"),
        ('{"type": "endpoint", "name": "x"}', ConfigError, "grader.json: 'url'"),
        ('{"type": "endpoint", "name": "x", "url": "http://h/g", "urll": 1}', ConfigError, "unknown key 'urll'"),
        ('{"type": "no_such_kind", "name": "x", "url": "http://h/g"}', ConfigError, "grader.json: 'type"),
    ],
)
def test_a_wrong_grader_file_is_said(tmp_path: Path, content: str | None, error: type[Exception], message: str):
    path = tmp_path / "grader.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message.replace("(", r"\(")):
        replay.load_grader(path)
