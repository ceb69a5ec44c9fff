"""The doctor's calls: what it sends to tools and grader, what it says before, and what it makes of
the answers. Real servers on a socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import boxes
import pytest
from aiohttp import web

from rft import config, doctor
from rft.doctor import grader, wire
from rft.doctor.setup import Setup
from rft.grading import preflight
from rft.recipe import load
from tests import tiny_recipe
from tests.scripted_server import Answer, says, writes
from tests.sick_agents import (
    Agent,
    Blind,
    Countdown,
    Counting,
    Current,
    Diary,
    Down,
    Formal,
    Generous,
    Harsh,
    Leaky,
    Mute,
    Noisy,
    Remembering,
    Severe,
    examine,
    serving_at,
    settings,
)

pytestmark = pytest.mark.usefixtures("ready_server")

WIRE = ("configuration", "recipe", "tools", "grader", "isolation")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recipe.make(tmp_path_factory.mktemp("doctor"))


# -- tools and grader ------------------------------------------------------------------------------
def test_a_dead_server_is_infrastructure(recipe: Path):
    found = examine(settings(recipe, tools={"server_url": "http://127.0.0.1:9", "version": "1"}), *WIRE)
    assert {name: (one.status, one.infrastructure) for name, one in found.items() if one.status == "fail"} == {
        "tools": ("fail", True)
    }
    assert (found["grader"].status, found["grader"].words) == ("skipped", "ended as tools did"), "once is enough"
    assert "does not answer" in found["tools"].words
    assert doctor.exit_code(list(found.values())) == 3


def test_a_tool_slower_than_its_deadline(recipe: Path):
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(1.0 if body else 0)
        return web.json_response({"output": "late"})

    with serving_at(slow) as tools:
        found = examine(settings(recipe, tools=tools | {"timeout_s": 0.2}), "tools")["tools"]
    assert (found.status, found.infrastructure) == ("fail", True)
    assert (
        "12 of 12 calls failed (12 x no reply in time), which would leave up to 100% of the rollouts unscored"
        in found.words
    )
    assert "tools.timeout_s = 0.2 s" in found.remedy


def test_failures_that_retries_hide_are_a_warning_with_their_kinds(recipe: Path):
    numbers = iter(range(1000))

    class Flaky(Agent):
        def tool(self, body: dict[str, Any]) -> str:
            if next(numbers) % 12 == 0:
                raise web.HTTPServiceUnavailable
            return super().tool(body)

    with serving_at(Flaky().answer) as tools:
        found = examine(settings(recipe, tools=tools), "tools")["tools"]
    assert found.status == "warn"
    assert "1 of 12 calls failed (1 x HTTP 503); retries would hide it" in found.words
    assert found.facts["tools"]["lookup"]["failed"] == {"HTTP 503": 1}


class Strict(Agent):
    """Refuses every call."""

    def tool(self, body: dict[str, Any]) -> str:
        raise web.HTTPBadRequest(text=json.dumps({"output": f"no such key under {body['trace_id']}"}))


WEIGH = {
    "name": "weigh",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
}


@pytest.mark.slow
def test_a_refusal_of_arguments_made_from_the_schema_proves_a_tool_alive(recipe: Path):
    with serving_at(Strict().answer) as tools:
        endpoint = {**WEIGH, "server_url": tools["server_url"] + "/tools/weigh"}
        found = examine(settings(recipe, tools={"concurrency": 4, "endpoints": [endpoint]}), "tools")["tools"]
    assert found.status == "warn"
    assert "weigh is alive, but refuses arguments made from its schema: no such key" in found.words
    assert found.facts["tools"]["weigh"]["refused"] == 4


def test_a_refusal_of_all_that_an_exploit_asks_is_a_warning(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    (made / "demonstrations.py").unlink()
    with serving_at(Strict().answer) as tools:
        found = examine(settings(made, policy={"model": "m"}, tools=tools), "tools")["tools"]
    assert (found.status, "refuses the recipe's own arguments" in found.words) == ("warn", True)


def test_a_refusal_of_all_that_a_demonstration_asks_is_a_failure(recipe: Path):
    with serving_at(Strict().answer) as tools:
        found = examine(settings(recipe, tools=tools), "tools")["tools"]
    assert (found.status, found.infrastructure) == ("fail", False)
    assert "lookup refuses a demonstration's call, 12 of 12 times" in found.words
    assert f"lookup is at {tools['server_url']}/tools/lookup; the first call, for example n-" in found.words


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (writes('{"detail": "Not Found"}', 404), "12 x HTTP 404"),
        (writes("", 307, headers={"Location": "/login"}), "12 x HTTP 307"),
        (writes("<h1>Sign in</h1>"), "12 x the reply is not JSON: <h1>Sign in</h1>"),
        (says({"answer": 1}), "12 x the reply has no 'output'"),
    ],
)
@pytest.mark.parametrize("max_unscored_share", [0.1, 1.0])
def test_a_tool_that_is_not_there_is_a_failure_with_its_address(
    recipe: Path, answer: Answer, message: str, max_unscored_share: float
):
    with serving_at(answer) as tools:
        params = settings(recipe, tools=tools, rollout={"max_unscored_share": max_unscored_share})
        found = examine(params, "tools")["tools"]
    assert (found.status, found.infrastructure) == ("fail", True)
    assert message in found.words
    assert f"lookup is at {tools['server_url']}/tools/lookup; the first call, for example n-" in found.words
    assert tools["server_url"] + "/tools/lookup" in found.remedy
    assert "rate_limit" not in found.remedy


def test_a_tool_under_load_may_be_asked_more_gently(recipe: Path):
    with serving_at(says({}, 503)) as tools:
        found = examine(settings(recipe, tools=tools), "tools")["tools"]
    assert (found.status, "tools.rate_limit" in found.remedy) == ("fail", True)


def test_a_reply_that_no_context_can_hold_is_told(recipe: Path):
    class Talkative(Agent):
        def tool(self, body: dict[str, Any]) -> str:
            return "word " * 2000

    with serving_at(Talkative().answer) as tools:
        found = examine(settings(recipe, tools=tools, rollout={"max_tokens": 512}), "tools")["tools"]
    assert found.status == "warn"
    assert "lookup: a reply of 10000 characters does not fit into a context of 512 tokens" in found.words


@pytest.mark.slow
def test_a_reply_over_the_limit_of_bytes_is_no_refusal(recipe: Path):
    class Endless(Agent):
        def tool(self, body: dict[str, Any]) -> str:
            return "word " * 2000

    with serving_at(Endless().answer) as tools:
        endpoint = {**WEIGH, "server_url": tools["server_url"] + "/tools/weigh", "max_reply_bytes": 1000}
        found = examine(settings(recipe, tools={"concurrency": 4, "endpoints": [endpoint]}), "tools")["tools"]
        judged = examine(settings(recipe, tools=tools | {"max_reply_bytes": 1000}), "tools")["tools"]
    assert (found.status, judged.status) == ("warn", "fail"), "a demonstration's call must work"
    assert "weigh is alive, but 4 of 4 replies are too large" in found.words
    assert "larger than 1000 bytes" in found.words
    assert "refuses" not in found.words + judged.words
    assert found.remedy == "Let the tool return less, such as the first entries or a summary."


@pytest.mark.slow
def test_a_server_that_is_down_is_not_asked_more_gently(recipe: Path):
    endpoint = {**WEIGH, "server_url": "http://127.0.0.1:9/weigh"}
    found = examine(settings(recipe, tools={"concurrency": 4, "endpoints": [endpoint]}), "tools")["tools"]
    assert (found.status, found.infrastructure) == ("fail", True)
    assert "weigh: 4 of 4 calls failed (4 x ClientConnectorError" in found.words
    assert found.remedy == "Is it running, at that address? http://127.0.0.1:9/weigh"


@pytest.mark.slow
def test_a_name_that_models_cannot_write_is_told(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    text = (made / "tools.py").read_text(encoding="utf-8")
    odd = "def wäge(key: str) -> str:\n    return key\n\n\nTOOLS = [lookup, wäge]"
    (made / "tools.py").write_text(text.replace("TOOLS = [lookup]", odd), encoding="utf-8")
    found = examine(settings(made), "tools")["tools"]
    assert (found.status, "at most 64: not wäge" in found.words) == ("warn", True), found.words


@pytest.mark.slow
def test_an_address_is_shown_without_its_query(recipe: Path):
    with serving_at(says({}, 404)) as tools:
        endpoint = {**WEIGH, "server_url": tools["server_url"] + "/weigh?code=canary"}
        found = examine(settings(recipe, tools={"concurrency": 4, "endpoints": [endpoint]}), "tools")["tools"]
    assert (f"weigh is at {tools['server_url']}/weigh;" in found.words, "canary" in repr(found)) == (True, False)


@pytest.mark.parametrize(
    ("tools", "own", "calls"),
    [
        ({"concurrency": 64}, None, 50),
        ({"concurrency": 8}, None, 8),
        ({"rate_limit": 2.5}, None, 3),
        ({"rate_limit": 2.5}, 7, 7),
        ({"concurrency": 64}, 2, 2),
    ],
)
def test_the_burst_is_the_declared_one(tools: dict[str, Any], own: float | None, calls: int):
    assert wire.burst_size(config.Tools(**tools), own) == calls


# -- what is called, and said before ---------------------------------------------------------------
class Recording(Agent):
    def __init__(self) -> None:
        self.events: list[str] = []

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.events.append(request.path)
        return (
            web.json_response({"output": "light"})
            if request.path == "/tools/weigh"
            else await super().answer(request, body)
        )


@pytest.mark.slow
def test_a_tool_that_must_not_be_probed_is_never_called(recipe: Path):
    agent = Recording()
    with serving_at(agent.answer) as tools:
        weigh = {**WEIGH, "server_url": tools["server_url"] + "/tools/weigh"}
        params = settings(recipe, tools=tools | {"endpoints": [weigh], "traits": {"lookup": {"probe": False}}})
        found = examine(params, *WIRE)
        asked, agent.events = agent.events, []
        preflight.preflight(params, load(params.recipe), 2)
    assert {name: found[name].status for name in WIRE} == dict.fromkeys(WIRE, "ok")
    assert (asked.count("/tools/lookup"), asked.count("/tools/weigh")) == (0, 12 + 12 + 2 * 3 * 2)
    assert found["tools"].words.endswith("not called (probe: false): lookup")
    assert list(found["tools"].facts["tools"]) == ["weigh"]
    assert found["grader"].words.endswith(
        "7 exploits refused, 2 not played because they call lookup (probe: false); train plays them before it starts"
    )
    assert agent.events.count("/tools/lookup") == 4, "the preflight of training does play them"


def test_an_endpoint_may_ask_not_to_be_probed(recipe: Path):
    agent = Recording()
    with serving_at(agent.answer) as tools:
        weigh = {**WEIGH, "server_url": tools["server_url"] + "/tools/weigh", "probe": False}
        found = examine(settings(recipe, tools=tools | {"endpoints": [weigh]}), *WIRE)
    assert (found["isolation"].status, "/tools/weigh" in agent.events, "/tools/lookup" in agent.events) == (
        "ok",
        False,
        True,
    )


def test_without_a_tool_to_probe_nothing_is_called(recipe: Path):
    agent = Recording()
    with serving_at(agent.answer) as tools:
        found = examine(settings(recipe, tools=tools | {"traits": {"lookup": {"probe": False}}}), "isolation")
    assert ([path for path in agent.events if path != "/"], found["isolation"].status) == ([], "ok")
    assert found["tools"].words == "not called (probe: false): lookup"


@pytest.mark.slow
def test_what_will_be_sent_is_announced_before(recipe: Path):
    agent = Recording()
    with serving_at(agent.answer) as tools:
        weigh = {**WEIGH, "server_url": tools["server_url"] + "/tools/weigh", "rate_limit": 3}
        examine(settings(recipe, tools=tools | {"endpoints": [weigh]}), *WIRE, announce=agent.events.append)
    host = tools["server_url"].removeprefix("http://")
    lines = [event for event in agent.events if not event.startswith("/")]
    assert lines == [
        f"tools: calls the tools, 12 to lookup at {host}, 3 to weigh at {host}",
        f"tools, do they tell the target: calls the tools, 12 to lookup at {host}, 12 to weigh at {host}",
        f"grader: asks for up to 68 grades, 12 of them at once at {host}",
        "grader: plays 5 exploits and 4 probes on 24 examples, and grades targets and hits alone: up to 264 grades "
        f"at {host} and up to 48 tool calls; what fails is sent again, up to 3 times",
        f"isolation: calls the tools, 12 to lookup at {host}, 12 to weigh at {host}",
    ]
    places = [agent.events.index(line) for line in lines]
    assert [event for event in agent.events[: places[0]] if event != "/"] == []
    sent = [Counter(agent.events[start + 1 : stop]) for start, stop in zip(places, [*places[1:], None], strict=True)]
    assert [one["/tools/lookup"] for one in sent] == [12, 12, 0, 48, 12]
    assert [one["/tools/weigh"] for one in sent] == [3, 12, 0, 0, 12]
    assert [one["/grade"] for one in sent] == [0, 0, 68, 264, 0]


def test_what_a_rollout_s_life_costs_is_announced_with_its_hosts(recipe: Path):
    agent, life = Recording(), Recording()
    with serving_at(agent.answer) as tools, serving_at(life.answer) as other:
        url = other["server_url"]
        params = settings(
            recipe, tools=tools | {"lifecycle": {"start_url": f"{url}/start", "end_url": f"{url}/end?code=canary"}}
        )
        examine(params, *WIRE, announce=life.events.append)
    host = url.removeprefix("http://")
    lines = [event for event in life.events if not event.startswith("/")]
    assert [line.partition("; ")[2] for line in (lines[0], lines[-1])] == [
        f"{n} to start_url at {host}, {n} to end_url at {host}" for n in (12, 6)
    ]
    first, second, last = (life.events.index(line) for line in (lines[0], lines[1], lines[-1]))
    for sent, number in ((life.events[first:second], 12), (life.events[second:last], 12), (life.events[last:], 6)):
        assert (sent.count("/start"), sent.count("/end")) == (number, number)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_sick_server_is_not_sent_more_than_was_announced(recipe: Path, retries: int):
    class Sick(Recording):
        async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            answer = await super().answer(request, body)
            exploits_are_played = any("exploits" in event for event in self.events)
            return web.Response(status=503) if exploits_are_played and self.events.count("/grade") % 2 else answer

    agent = Sick()
    with serving_at(agent.answer) as tools:
        examine(settings(recipe, tools=tools | {"retries": retries}), "grader", announce=agent.events.append)
    place = next(n for n, event in enumerate(agent.events) if "exploits" in event)
    assert ("what fails is sent again, up to 2 times" in agent.events[place]) == (retries > 0)
    assert 0 < agent.events[place:].count("/grade") <= 264 * (retries + 1)


def test_no_call_is_announced_of_an_exploit_that_is_spared(recipe: Path):
    agent = Recording()
    with serving_at(agent.answer) as tools:
        params = settings(recipe, tools=tools | {"retries": 0, "traits": {"lookup": {"probe": False}}})
        examine(params, "grader", announce=agent.events.append)
    line = next(event for event in agent.events if "exploits" in event)
    assert (line.endswith("and up to 0 tool calls"), agent.events.count("/tools/lookup")) == (True, 0)


@pytest.mark.parametrize(
    "call", ['{"key": {result:json}}', '{"key": "{result}"}', '{"key": "k0000", "spaces": {result}}']
)
def test_calls_made_of_a_result_are_announced(tmp_path: Path, call: str):
    made = tiny_recipe.make(tmp_path)
    turns = [
        tiny_recipe.CALL % '"k0000"',
        '<tool_call>\n{"name": "lookup", "arguments": ' + call + "}\n</tool_call>",
        "{result}",
    ]
    (made / "exploits.jsonl").write_text(json.dumps({"name": "twice", "kind": "copied", "turns": turns}) + "\n")
    agent = Recording()
    with serving_at(agent.answer) as tools:
        examine(settings(made, tools=tools | {"retries": 0}), "grader", announce=agent.events.append)
    place = next(n for n, event in enumerate(agent.events) if "exploits" in event)
    assert "up to 48 tool calls" in agent.events[place]
    assert 24 <= agent.events[place:].count("/tools/lookup") <= 48


@pytest.mark.parametrize(
    ("agent", "message", "infrastructure"),
    [
        (Noisy, "the body for example n-", False),
        (Harsh, "itself scores 0.9, expected at least 1", False),
        (Blind, "every answer scores the same, 1: targets, empty, no-op and random ones. First: example n-", False),
        (Severe, "every answer scores the same, 0: targets, empty, no-op and random ones. First: example n-", False),
        (Generous, "the empty answer to example n-", False),
        (
            Leaky,
            "accepts answers that do not do the task: 'to the grader' (injection) scores 1.000, above its limit 0.050",
            False,
        ),
        (Mute, "12 of 12 grades have no score: grader: the reply has no 'score'", False),
        (Down, "12 of 12 grades have no score: grader: HTTP 502", True),
    ],
)
def test_a_grader_that_must_not_be_trained_on(recipe: Path, agent: type[Agent], message: str, infrastructure: bool):
    with serving_at(agent().answer) as tools:
        found = examine(settings(recipe, tools=tools | {"retries": 0}), "grader")["grader"]
    assert (found.status, found.infrastructure) == ("fail", infrastructure)
    assert message in found.words
    assert found.remedy


@pytest.mark.slow
def test_what_a_slow_grader_means_for_a_run_is_said(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    with serving_at(Agent().answer) as tools:
        quick = examine(settings(recipe, tools=tools), "grader")["grader"]
        long = settings(recipe, tools=tools, train={"steps": 10_000_000})
        found = examine(long, "grader")["grader"]
        monkeypatch.setattr(grader, "_LONGEST_PLAY_S", 0.0)
        left = examine(settings(recipe, tools=tools), "grader")["grader"]
    assert (quick.status, quick.remedy) == ("ok", "")
    assert re.search(r"at this rate a run of 16\d,\d+,\d+ rollouts grades for \d+\.\d h$", found.words)
    assert (found.status, found.remedy) == ("warn", "A grader at an endpoint can be given more machines.")
    assert "exploits not played, because up to" in left.words
    assert (left.status, left.remedy) == ("warn", "Play them alone: rft doctor exploits")


def test_a_target_that_is_no_answer_is_named_with_what_makes_one(tmp_path: Path):
    made, told = tiny_recipe.make(tmp_path / "a"), tiny_recipe.make(tmp_path / "b")
    with serving_at(Countdown().answer) as tools:
        found = examine(settings(made, tools=tools | {"retries": 0}), "grader")["grader"]
        assert (found.status, found.infrastructure) == ("fail", False)
        assert "the target of example n-" in found.words
        assert "has no score" in found.words
        assert "answer(target)" in found.remedy
        assert "turns(options, example, target)" in found.remedy
        with (told / "examples.py").open("a", encoding="utf-8") as file:
            file.write("\n\ndef answer(target):\n    return None\n")
        (told / "exploits.jsonl").unlink()
        found = examine(settings(told, tools=tools | {"retries": 0}), "grader")["grader"]
    assert (found.status, "targets: not measured" in found.words) == ("ok", True), found.words


def test_a_grader_that_raises_on_an_answer_in_a_wrong_form_is_at_fault(recipe: Path):
    with serving_at(Formal().answer) as tools:
        found = examine(settings(recipe, tools=tools | {"retries": 0}), "grader")["grader"]
    assert (found.status, found.infrastructure) == ("fail", False)
    assert "the answer '' to example n-" in found.words
    assert "has no score, while its target has one: grader: HTTP 500" in found.words
    assert "an answer in a wrong form gets its lowest score" in found.remedy


@pytest.mark.parametrize("status", [307, 403, 404, 405, 407, 410])
def test_a_grader_that_is_not_there_is_looked_for_at_its_address(tmp_path: Path, status: int):
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text(json.dumps(tiny_recipe.GRADER | {"url": "{tool_server}/verdict?code=canary"}))
    with serving_at(writes("no HTTP 200 here", status, headers={"Location": "/login"})) as tools:
        found = examine(settings(made, tools=tools), "grader")["grader"]
    assert (found.status, f"12 of 12 grades have no score: grader: HTTP {status}" in found.words) == ("fail", True)
    assert (
        found.remedy
        == f"Check the address, the method (POST) and the key. grader.json: url = {tools['server_url']}/verdict"
    )
    assert "canary" not in repr(found)


@pytest.mark.parametrize("answer", [says({"detail": "HTTP 404"}), writes("HTTP 404"), says({"detail": "no"}, 422)])
def test_a_grader_that_is_there_and_gives_no_score_is_told_what_to_answer(recipe: Path, answer: Answer):
    with serving_at(answer) as tools:
        found = examine(settings(recipe, tools=tools), "grader")["grader"]
    assert (found.status, found.remedy.startswith('It must answer {"score": number}')) == ("fail", True)


@pytest.mark.slow
def test_a_grader_on_a_scale_of_its_own_is_judged_on_it(tmp_path: Path):
    right = '(sample["output_text"].strip() == item["target"])'
    good = tiny_recipe.rescale(tiny_recipe.make(tmp_path / "good"), 0, 5, f"0.8 * {right}", pass_threshold=4)
    found = examine(settings(good), "grader")["grader"]
    assert found.status == "ok", found
    assert "; targets score 4 or more; three times the same" in found.words
    for name, grading, message in (
        ("short", f"0.7 * {right}", "itself scores 3.5, expected at least 4: as declared"),
        ("partial", f"max(0.6 * (not sample['output_text']), 0.8 * {right})", "scores 3.000, above its limit 0.250"),
        ("empty", f"max(0.8 * (not sample['output_text']), 0.8 * {right})", "scores 4, which passes"),
    ):
        sick = tiny_recipe.rescale(tiny_recipe.make(tmp_path / name), 0, 5, grading, pass_threshold=4)
        found = examine(settings(sick), "grader")["grader"]
        assert (found.status, message in found.words) == ("fail", True), found
        assert found.remedy


@pytest.mark.slow
def test_a_forgotten_range_is_named_by_the_doctor(tmp_path: Path):
    made = tiny_recipe.rescale(tiny_recipe.make(tmp_path), 0, 5)
    (made / "grader.json").write_text(json.dumps(tiny_recipe.GRADER))
    found = examine(settings(made), "grader")["grader"]
    assert (found.status, found.infrastructure) == ("fail", False)
    assert "grader.json: declares no range, which means 0 to 1, and the grader gave the score 5" in found.words


@pytest.mark.slow
def test_rows_without_a_target_are_asked_with_answers_that_need_none(tmp_path: Path):
    made = tiny_recipe.rescale(
        tiny_recipe.make(tmp_path), 0, 1, 'sample["output_text"] in item["messages"][-1]["content"].split()[-1:]'
    )
    text = (made / "examples.py").read_text()
    assert "value(key), item)" in text
    (made / "examples.py").write_text(
        text.replace("value(key), item)", "None, item)") + "\n\ndef answer(target):\n    assert target is not None\n"
    )
    setup = Setup(lambda: settings(made))
    found = grader.grader(setup)
    assert found.status == "ok", found
    assert (
        "; targets: not measured; three times the same; 8 exploits refused, 1 not played for lack of a target"
        in found.words
    )


# -- isolation -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("agent", "status"), [(Counting, "fail"), (Remembering, "fail"), (Current, "fail"), (Diary, "ok")]
)
def test_two_trace_ids_must_not_see_each_other(recipe: Path, agent: type[Agent], status: str):
    with serving_at(agent().answer) as tools:
        params = settings(recipe, tools=tools)
        found = examine(params, "isolation")["isolation"]
        if status == "ok":  # nor does what the server keeps of the first visit spoil a second one
            assert examine(params, "isolation")["isolation"].status == "ok"
    assert found.status == status, found
    if status == "fail":
        assert "under one trace id" in found.words
        assert found.remedy.startswith("Keep a tool's state per trace_id")


@pytest.mark.slow
def test_a_grader_that_raises_says_where_and_where_its_log_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """N13: the line of the recipe, the end of the traceback, and a file; before this "look at the
    grader's own log"."""
    monkeypatch.setenv("RFT_STATE", str(tmp_path / ".rft"))
    made = tiny_recipe.make(tmp_path)
    tools = made / "tools.py"
    tools.write_text(
        tools.read_text().replace("def grade(sample, item):\n", "def grade(sample, item):\n    item['answer']\n")
    )
    line = tools.read_text().splitlines().index("    item['answer']") + 1
    found = examine(settings(made), "grader")["grader"]
    log = tmp_path / ".rft" / "logs" / "tool-server-tiny.log"
    assert found.status == "fail"
    assert f"KeyError: 'answer' (tools.py, line {line}, in grade)" in found.words
    assert found.remedy.startswith(f"grade raised: fix it in {tools}. Its server's log: {log}\nTraceback")
    assert found.remedy.rstrip().endswith("KeyError: 'answer'")
    assert "KeyError: 'answer'" in log.read_text()


# -- graders as data -------------------------------------------------------------------------------
EXACT = {
    "type": "string_check", "name": "exact", "input": "{{sample.output_text}}", "reference": "{{item.target}}",
    "operation": "eq",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grader", "status", "message", "remedy"),
    [
        (EXACT, "ok", "exploits refused", ""),
        (EXACT | {"reference": "{{item.answer}}"}, "fail", "{{item.answer}} names nothing that is there",
         "Fix grader.json, or the rows that it reads"),
        (EXACT | {"operation": "ne"}, "fail", "the target of example", "Fix the grader"),
        ({"type": "multi", "graders": {"a": EXACT}, "calculate_output": "a", "pass_threshold": 8}, "warn",
         "pass_threshold = 8 lies above the range", ""),
        pytest.param({"type": "python", "source": "def grade(sample, item): return 1"}, "fail",
                     "every answer scores the same, 1", "", marks=boxes.needs_sandbox),
    ],
)  # fmt: skip
def test_a_grader_as_data(tmp_path: Path, grader: dict[str, Any], status: str, message: str, remedy: str):
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text(json.dumps(grader))
    found = examine(settings(made), "grader")["grader"]
    assert found.status == status
    assert message in found.words
    assert remedy in found.remedy
