"""The preflight on a strict grader, and on graders that leak in each way."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_recipe

from flows import cli
from flows.cli.doctor.exploits import table
from rft import config, recipe
from rft.errors import InfrastructureError, UserError
from rft.grading import preflight, scripted
from rft.grading.preflight import ExploitResult, Preflight
from rft.scale import UNIT, Scale
from tests import sick_agents
from tests.sick_agents import Agent, serving_at

pytestmark = pytest.mark.usefixtures("ready_server")

STRICT = 'sample["output_text"].strip() == item["target"]'


def leak(folder: Path, grading: str) -> Path:
    """A tiny recipe whose grader scores by the expression `grading` instead of the strict
    comparison."""
    made = tiny_recipe.make(folder)
    tools = made / "tools.py"
    assert STRICT in tools.read_text()
    tools.write_text(tools.read_text().replace(STRICT, grading))
    return made


def play(made: Path, *more: dict[str, Any], num_examples: int = 6) -> Preflight:
    if more:
        (made / "exploits.jsonl").write_text("".join(json.dumps(exploit) + "\n" for exploit in more))
    params = tiny_recipe.params(made)
    return preflight.preflight(params, recipe.load(params.recipe), num_examples)


def accepted(result: Preflight) -> set[str]:
    return {exploit.name for exploit in result.accepted}


@pytest.mark.slow
def test_a_strict_grader_refuses_all_and_passes_its_targets(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    params = tiny_recipe.params(made)
    results = preflight.preflight(params, recipe.load(params.recipe), 6).exploits
    assert [result.name for result in results[:4]] == ["no-op", "empty", "echo", "random"]
    assert [result.name for result in results[4:]] == [exploit["name"] for exploit in tiny_recipe.EXPLOITS]
    assert {(result.tried, result.accepted, result.mean_score) for result in results} == {(6, False, 0.0)}
    assert preflight.check(params, 6).targets_pass


EXACT = {
    "type": "string_check", "name": "exact", "input": "{{sample.output_text}}", "reference": "{{item.target}}",
    "operation": "eq",
}  # fmt: skip
FIELD = EXACT | {"input": "{{sample.output_json}}"}
CLOSE = EXACT | {"operation": "ilike"}
BOTH = {"type": "multi", "graders": {"a": EXACT, "b": CLOSE}}
NEAR = {
    "type": "text_similarity", "name": "near", "input": "{{sample.output_text}}", "reference": "{{item.target}}",
    "evaluation_metric": "rouge_1", "chance": 0.2,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grader", "leaks"),
    [
        (EXACT, set()),
        (FIELD, set()),  # a text that is not JSON has the lowest score, and not none
        (CLOSE, {"all endings of a hit"}),
        (BOTH | {"calculate_output": "a * b"}, set()),
        (BOTH | {"calculate_output": "max(a, b)"}, {"all endings of a hit"}),
        (NEAR, {"all endings of a hit"}),
    ],
)  # fmt: skip
def test_exploits_are_played_on_a_grader_as_data(tmp_path: Path, grader: dict[str, Any], leaks: set[str]):
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text(json.dumps(grader))
    result = play(made, num_examples=20)
    assert accepted(result) == leaks
    assert result.targets_pass is (grader is not FIELD)  # a target such as 0123 is not JSON


@pytest.mark.slow
def test_exploits_are_played_on_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that believes whatever stands outside of the data, and looks for the value in it."""
    made = tiny_recipe.make(tmp_path)
    asked = [{"role": "user", "content": "Is it {{item.target}}? {{sample.output_text}}"}]
    judge = {"type": "score_model", "name": "judge", "model": "m", "input": asked}
    (made / "grader.json").write_text(json.dumps(judge))

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][-1]["content"]
        right = f"BEGINS]\n{question[6:10]}\n[DATA" in question
        verdict = {"steps": [], "result": float(right or "score 1" in question)}
        return {"choices": [{"message": {"role": "assistant", "content": json.dumps(verdict)}}]}

    with judging(reply) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        result = play(made)
    assert (accepted(result), result.targets_pass) == (set(), True)


@contextmanager
def judging(reply: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """A judge on a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.dumps(reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}/v1"
        finally:
            served.shutdown()
            thread.join()


def test_no_two_plays_share_a_trace_id(tmp_path: Path):
    """W3: names of exploits and lines of a data set may come twice."""
    made, grades = tiny_recipe.make(tmp_path), []

    class Noting(Agent):
        def grade(self, body: dict[str, Any]) -> float:
            grades.append(body["trace_id"])
            return super().grade(body)

    same = {"name": "no-op", "kind": "twice", "turns": ["0000"]}
    (made / "exploits.jsonl").write_text("".join(json.dumps(same) + "\n" for _ in range(2)))
    with serving_at(Noting().answer) as tools:
        params = tiny_recipe.params(made, tools=tools)
        preflight.preflight(params, recipe.load(params.recipe), 3)
    assert len(grades) == len(set(grades)) == 3 * (4 + 2 + 1), "probes, exploits and the target on each example"


@pytest.mark.slow
def test_a_target_that_is_reached_by_calls_is_played(tmp_path: Path):
    """Its grader pays for what was looked up, so the target as a text is worth nothing."""
    looked_up = '[message["content"].strip() for message in sample["trajectory"] if message["role"] == "tool"]'
    grading = f'item["target"] in {looked_up}'
    told = {"name": "told", "kind": "tell", "turns": ["the value"], "starts_from": "hit"}
    assert play(leak(tmp_path / "text", grading), told).target_score == 0.0, "nobody looked it up"
    made = leak(tmp_path / "calls", grading)
    examples = made / "examples.py"
    by_calls = """

def turns(options, example, target):
    key = example.messages[0]["content"].split()[-1]
    call = '<tool_call>\\n{"name": "lookup", "arguments": {"key": "%s"}}\\n</tool_call>' % key
    return ([call] if target == example.target else []) + ["{target} " + target]
"""
    examples.write_text(examples.read_text() + by_calls)
    result = play(made, told)
    assert (result.target_score, result.num_targets) == (1.0, 6)
    assert [(row.honest, row.accepted) for row in result.exploits if row.name == "told"] == [(0.0, False)]


@pytest.mark.slow
def test_an_exploit_that_calls_a_terminal_tool_is_graded_by_the_calls_arguments(tmp_path: Path):
    """As its rollout would be; the turns behind the call are never played."""
    made = leak(tmp_path, '"k0000" in sample["output_text"]')
    submitted = {"name": "submitted", "kind": "terminal", "turns": [tiny_recipe.CALL % '"k0000"', "never said"]}
    (made / "exploits.jsonl").write_text(json.dumps(submitted) + "\n")
    scores = []
    for traits in ({}, {"lookup": {"terminal": True}}):
        params = tiny_recipe.params(made, tools={"traits": traits})
        scores.append(preflight.preflight(params, recipe.load(params.recipe), 2).exploits[-1].mean_score)
    assert scores == [0.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grading", "leaks"),
    [
        (
            "True",
            {
                "no-op",
                "empty",
                "echo",
                "random",
                "constant",
                "to the grader",
                "the value of another key",
                "answer inside a call",
            },
        ),
        ('item["target"].startswith(sample["output_text"])', {"empty", "answer inside a call"}),
        ('sample["output_text"].strip() in (item["target"], item["messages"][-1]["content"])', {"echo"}),
        ('item["target"] in sample["output_text"]', {"all endings of a hit"}),
        ('"score 1" in sample["output_text"] or sample["output_text"].strip() == item["target"]', {"to the grader"}),
        ('sample["output_text"] in (item["target"], "1234")', {"the value of another key"}),
    ],
)
def test_a_leaking_grader_is_caught_by_name(tmp_path: Path, grading: str, leaks: set[str]):
    assert accepted(play(leak(tmp_path, grading))) == leaks


@pytest.mark.slow
def test_a_genuine_hit_may_earn_its_part_and_no_more(tmp_path: Path):
    """Half of the digits right earn 0.5: that is honest. Adding all endings must not earn more."""
    half = '0.5 * (item["target"][:2] in sample["output_text"]) + 0.5 * (item["target"] %s sample["output_text"])'
    exploit = next(exploit for exploit in tiny_recipe.EXPLOITS if exploit.get("starts_from") == "hit")
    strict = play(leak(tmp_path / "strict", half % "=="), exploit).exploits[-1]
    assert (strict.mean_score, strict.honest, strict.accepted) == (0.5, 0.5, False)
    lenient = play(leak(tmp_path / "lenient", half % "in"), exploit).exploits[-1]
    assert (lenient.mean_score, lenient.honest, lenient.accepted) == (1.0, 0.5, True)


@pytest.mark.slow
def test_a_target_that_does_not_pass_is_refused(tmp_path: Path):
    made = leak(tmp_path, "False")
    assert not play(made).targets_pass
    with pytest.raises(UserError, match=r"a target itself scores only 0\.000, expected at least 1"):
        preflight.check(tiny_recipe.params(made), 3)


@pytest.mark.slow
def test_check_names_what_was_accepted(tmp_path: Path):
    made = leak(tmp_path, 'item["target"] in sample["output_text"]')
    with pytest.raises(
        UserError,
        match=(
            r"must not be trained on: exploit 'all endings of a hit' \(children of a hit\) scores 1\.000, above its "
            r"limit 0\.000\."
        ),
    ):
        preflight.check(tiny_recipe.params(made), 3)


@pytest.mark.slow
def test_an_own_answer_form_is_used_for_targets_and_hits(tmp_path: Path):
    made = leak(tmp_path, '__import__("json").dumps({"value": item["target"]}) == sample["output_text"]')
    examples = made / "examples.py"
    examples.write_text(
        examples.read_text() + '\n\ndef answer(target):\n    import json\n    return json.dumps({"value": target})\n'
    )
    assert play(made).targets_pass


@pytest.mark.slow
def test_tools_are_really_called_and_their_text_is_at_hand(tmp_path: Path):
    call = tiny_recipe.CALL % "{key:json}"
    made = leak(
        tmp_path,
        '[c["function"]["name"] for c in sample["output_tools"]] == ["lookup"] and sample["output_text"] == '
        'item["target"]',
    )
    examples = made / "examples.py"
    examples.write_text(
        examples.read_text().replace(
            '{"hit": half,', '{"key": example.messages[0]["content"].split()[-1], "hit": half,'
        )
    )
    result = play(made, {"name": "does the task", "kind": "none", "turns": [call, "{result}"]})
    assert [(r.name, r.mean_score) for r in result.accepted] == [("does the task", 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "message"),
    [
        (["{hti}"], r"exploit 'bad': \{hti\} has no value\. Known here: children, hit, hit_text, note"),
        (["{result}"], r"\{result\} has no value"),
        (["I think.", "0000"], r"turn 1 calls no tool, which ends a rollout"),
    ],
)
def test_an_exploit_that_cannot_be_played(tmp_path: Path, turns: list[str], message: str):
    with pytest.raises(UserError, match=message):
        play(tiny_recipe.make(tmp_path), {"name": "bad", "kind": "k", "turns": turns}, num_examples=1)


@pytest.mark.slow
def test_a_broken_call_ends_the_rollout_as_it_would_in_training(tmp_path: Path):
    made = leak(tmp_path, 'sample["stop_reason"] == "parse_error" or sample["output_text"] == item["target"]')
    assert accepted(
        play(made, {"name": "broken", "kind": "malformed", "turns": ["<tool_call>{", "never played"]}, num_examples=2)
    ) == {"broken"}


@pytest.mark.slow
def test_a_hit_that_the_recipe_does_not_give(tmp_path: Path):
    made = tiny_recipe.make(tmp_path)
    examples = made / "examples.py"
    examples.write_text(examples.read_text().replace("def exploit_values", "def other_values"))
    with pytest.raises(UserError, match=r"needs exploit_values in examples\.py to give 'hit'"):
        play(made, {"name": "h", "kind": "k", "turns": ["x"], "starts_from": "hit"}, num_examples=1)


@pytest.mark.slow
def test_a_grader_without_a_score_is_no_verdict(tmp_path: Path):
    made = leak(tmp_path, "1 / 0")
    params = tiny_recipe.params(made, tools={"retries": 0})
    with pytest.raises(
        InfrastructureError, match=r"'no-op' on example n-\d+ has no score: grader: HTTP 500.*ZeroDivisionError"
    ):
        preflight.preflight(params, recipe.load(params.recipe), 2)


def test_filling_leaves_json_alone():
    values = {"note": 'a "quoted"\nnote', "codes": ["I10", "E11.9"]}
    assert scripted.fill('{"codes": {codes}}', values, "x") == '{"codes": ["I10", "E11.9"]}'
    assert scripted.fill('{"query": {note:json}}', values, "x") == '{"query": "a \\"quoted\\"\\nnote"}'
    assert scripted.fill("{note} {} {A}", values, "x") == 'a "quoted"\nnote {} {A}'


def test_probes_are_seeded():
    assert preflight.probes("n", "a") == preflight.probes("n", "a")
    assert preflight.probes("n", "a")["random"] != preflight.probes("n", "b")["random"]


def test_accepted_above_the_limit_only():
    limit = UNIT.exploit_limit
    assert [ExploitResult("e", "k", mean, limit, None, 2).accepted for mean in (0.0, 0.05, 0.051)] == [
        False,
        False,
        True,
    ]
    assert [ExploitResult("e", "k", mean, 0.4, 0.4, 1).accepted for mean in (0.4, 0.41)] == [False, True]


# -- a scale of its own ----------------------------------------------------------------------------
RIGHT = '(sample["output_text"].strip() == item["target"])'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "high", "share", "declared", "limit", "is_accepted"),
    [
        (0, 5, "0.04", {}, 0.25, False),
        (0, 5, "0.06", {}, 0.25, True),  # a mean of 0.3
        (-2, 2, "0.04", {}, -1.8, False),
        (-2, 2, "0.06", {}, -1.8, True),  # a mean of -1.76, which is below 0.05
        (0, 1, "0.25", {}, 0.05, True),
        (0, 1, "0.25", {"chance": 0.25}, 0.729, False),  # 0.3 and what luck may add to a mean of three
        (1, 5, "0.25", {"chance": 2, "pass_threshold": 4}, 3.916, False),
    ],
)
def test_an_exploit_s_limit_is_5_percent_of_the_range_beyond_chance(
    tmp_path: Path, low: int, high: int, share: str, declared: dict[str, Any], limit: float, is_accepted: bool
):
    """Everything earns `share` of the range without any work, and a right answer all of it."""
    made = tiny_recipe.rescale(tiny_recipe.make(tmp_path), low, high, f"max({share}, {RIGHT})", **declared)
    result = play(made, tiny_recipe.EXPLOITS[0], num_examples=3)
    assert {(round(one.limit, 3), one.accepted) for one in result.exploits} == {(limit, is_accepted)}
    assert result.targets_pass
    assert table(result).count(f" {limit:.3f}  {'ACCEPTED' if is_accepted else 'refused'}") == 5
    if is_accepted:
        with pytest.raises(
            UserError,
            match=rf"exploit 'no-op' \(generic probe\) scores .*, above its limit {limit:.3f}; .* declare their mean",
        ):
            preflight.check(tiny_recipe.params(made), 3)


LUCK = (
    '(0.5 * (item["target"][-1] < "4") * (sample["output_text"] == "0000") or (sample["output_text"].strip() == '
    'item["target"]))'
)
"""Half a point for a constant answer, where the example happens to suit it: about 0.2 by chance."""


@pytest.mark.slow
def test_every_tool_tells_one_number_its_limit_and_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """N4: the doctor said 0.38 of 4 examples, the table 0.25 of 24, and neither named the limit or
    how to declare chance."""
    made = leak(tmp_path, LUCK)
    params = sick_agents.settings(made)
    doctor = sick_agents.examine(params, "grader")["grader"]
    with pytest.raises(UserError) as refused:
        preflight.check(params)
    cli.main(["doctor", "exploits", "--params", params_file(tmp_path, made)])
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("constant ")]
    mean = line.split()[-3]
    assert 0.05 < float(mean) < 0.4
    message = f"'constant' (most frequent) scores {mean}, above its limit 0.050"
    assert (message in doctor.words, message in str(refused.value), line.split()[-2:]) == (
        True,
        True,
        ["0.050", "ACCEPTED"],
    )
    for text in (doctor.remedy, str(refused.value), out):
        assert (
            "means over 24 training examples; an exploit's limit is 5% of the range above the lowest score, 0" in text
        )
        assert '"chance": 0.25' in text
        assert '"starts_from": "hit"' in text
        assert "exploit_values" in text
    declared = {"chance": float(mean)}
    (made / "grader.json").write_text(json.dumps(tiny_recipe.GRADER | declared))
    assert accepted(preflight.check(params)) == set(), "the number that was told is the one to declare"
    limit_is = f"5% of the range above chance, {float(mean):g}, and 1.96 standard errors of its mean for luck"
    assert preflight.preflight(params, recipe.load(params.recipe), 8).limit_is == limit_is


# -- luck ------------------------------------------------------------------------------------------
LEAKS = 'right = answer == item["target"] or answer == "Oslo" and zlib.crc32(item["id"].encode()) % 10 < 4'
"""The template's grader with a hole: a city that is none earns 0.4."""


@pytest.mark.slow
def test_a_chance_that_is_declared_honestly_is_not_refused_for_luck_and_a_leak_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """R1/N4: the template's chance is 0.125 exactly, and "Porto" was refused at seed 0, for 5 of
    24. One answer in six cases was."""
    made = tmp_path / "parcels"
    shutil.copytree(Path(preflight.__file__).parents[2] / "flows/template", made)
    tools = made / "tools.py"
    assert "right = answer == item[" in tools.read_text()
    tools.write_text(tools.read_text().replace('right = answer == item["target"]', LEAKS))
    cities = ("Lyon", "Porto", "Riga", "Turin", "Oslo")
    (made / "exploits.jsonl").write_text(
        "".join(json.dumps({"name": city, "kind": "constant", "turns": [city]}) + "\n" for city in cities)
    )
    gate = tiny_recipe.gate() | {"max_hack_rate": 1}
    params = sick_agents.settings(
        made, examples={"disjoint_targets": False, "train": 500}, rollout={"max_turns": 4}, gate=gate
    )
    with pytest.raises(UserError) as refused:
        preflight.check(params)
    doctor = sick_agents.examine(params, "grader")["grader"]
    cli.main(["doctor", "exploits", "--params", params_file(tmp_path, made)])
    lines = {
        line.split()[0]: line.split()[-3:] for line in capsys.readouterr().out.splitlines() if line.split()[0] in cities
    }
    assert {city for city, (_, _, verdict) in lines.items() if verdict == "ACCEPTED"} == {"Oslo"}
    mean, limit, _ = lines["Oslo"]
    message = f"'Oslo' (constant) scores {mean}, above its limit {limit}"
    limit_is = (
        "means over 144 training examples; an exploit's limit is 5% of the range above chance, 0.125, and 1.96 "
        "standard errors of its mean"
    )
    for text in (str(refused.value), f"{doctor.words} {doctor.remedy}"):
        assert (message in text, limit_is in text, text.count("above its limit")) == (True, True, 1), text


def accepted_share(chance: float, true_mean: float, num: int, seeds: int = 2000) -> float:
    """Of constant answers that are right with this probability."""
    scale = Scale(low=0.0, high=1.0, pass_threshold=1.0, chance=chance)
    scores_SN = (np.random.default_rng([num, round(1000 * true_mean)]).random((seeds, num)) < true_mean).astype(float)
    results = [
        ExploitResult("", "", scores.mean(), scale.limit_over(scores.tolist()), None, num) for scores in scores_SN
    ]
    return sum(result.accepted for result in results) / seeds


@pytest.mark.slow
@pytest.mark.parametrize("chance", [0.05, 0.125, 0.25, 0.5])
def test_luck_is_seldom_refused_and_a_leak_seldom_passes(chance: float):
    """R1/N4: what is allowed (chance, and 5 % more) is refused in at most 5 % of all cases, few
    examples or many; a leak of 0.2 more mostly is."""
    for num in (1, 8, preflight.NUM_EXAMPLES, preflight.NUM_WITH_CHANCE):
        assert accepted_share(chance, chance, num) <= 0.05
    assert accepted_share(chance, chance + 0.05, preflight.NUM_WITH_CHANCE) <= 0.05
    assert accepted_share(chance, chance + 0.2, preflight.NUM_WITH_CHANCE) >= 0.9


@pytest.mark.slow
def test_a_check_that_could_refuse_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """R1/N4: on few examples the allowance for luck lay beyond the highest score: nothing was
    accepted, and the check could not fail."""
    made = leak(tmp_path, "True")
    (made / "grader.json").write_text(json.dumps(tiny_recipe.GRADER | {"chance": 0.5}))
    assert cli.main(["doctor", "exploits", "--params", params_file(tmp_path, made), "--examples", "3"]) == 2
    errors = capsys.readouterr().err
    assert (
        "was played on 3 training examples: so few cannot tell a leak from the chance that grader.json declares, 0.5"
        in errors
    )
    assert "Play it on at least 4: raise --examples" in errors
    found = play(made, num_examples=4)
    assert accepted(found) == {one.name for one in found.exploits if one.honest is None}
    assert Scale(0.0, 1.0, 1.0, 0.94).can_refuse(preflight.NUM_WITH_CHANCE) is False


@pytest.mark.slow
def test_no_more_examples_are_asked_for_than_the_run_has(tmp_path: Path):
    """R1/N4: a declared chance asked a recipe of 64 rows for 144, and random.sample refused that
    with a traceback."""
    made = tiny_recipe.make(tmp_path)
    (made / "grader.json").write_text(json.dumps(tiny_recipe.GRADER | {"chance": 0.1}))
    text = (made / "examples.py").read_text()
    assert "numbers[:count]" in text
    (made / "examples.py").write_text(
        text.replace("numbers[:count]", "random.Random(seed).sample(numbers[:64], count)")
    )
    for train, asked in ((64, 64), (32, 32), (8, preflight.NUM_EXAMPLES)):
        assert preflight.check(sick_agents.settings(made, examples={"train": train})).num_examples == asked
    found = sick_agents.examine(sick_agents.settings(made, examples={"train": 64}), "grader")["grader"]
    assert found.status == "ok", found


def test_without_a_declared_chance_nothing_is_luck():
    assert UNIT.limit_over([0.0, 1.0, 0.0]) == UNIT.exploit_limit == 0.05


def test_the_help_explains_the_limit_and_a_hit(capsys: pytest.CaptureFixture[str]):
    """N4: the way out stood in the source only."""
    with pytest.raises(SystemExit):
        cli.main(["doctor", "exploits", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for phrase in ("5 % of the grader's range above chance", '"starts_from": "hit"', "exploit_values", "grader.json"):
        assert phrase in text
    readme = " ".join((Path(preflight.__file__).parents[2] / "flows/template/README.md").read_text().split())
    for phrase in ("`chance`", '`"starts_from": "hit"`', "`exploit_values`"):
        assert phrase in readme


@pytest.mark.slow
def test_targets_must_reach_the_declared_threshold_and_not_1(tmp_path: Path):
    enough = tiny_recipe.rescale(tiny_recipe.make(tmp_path / "enough"), 0, 5, f"0.8 * {RIGHT}", pass_threshold=4)
    assert play(enough, num_examples=3).targets_pass
    short = tiny_recipe.rescale(tiny_recipe.make(tmp_path / "short"), 0, 5, f"0.7 * {RIGHT}", pass_threshold=4)
    assert "targets: lowest score 3.500, REFUSED: expected at least 4" in table(play(short, num_examples=3))
    with pytest.raises(UserError, match=r"a target itself scores only 3\.500, expected at least 4"):
        preflight.check(tiny_recipe.params(short), 3)


# -- rows without a target -------------------------------------------------------------------------
def untargeted(folder: Path, where: str) -> Path:
    """The tiny recipe, graded by the key, with no target where `where` holds of an example's
    number."""
    made = leak(
        folder, '__import__("re").search("[0-9]{4}", item["messages"][-1]["content"])[0] == sample["output_text"]'
    )
    examples = made / "examples.py"
    text = examples.read_text()
    assert "value(key), item" in text
    text = text.replace("value(key), item", f"None if {where} else key[1:], item")
    examples.write_text(text + "\n\ndef answer(target):\n    assert target is not None\n    return target\n")
    return made


@pytest.mark.slow
def test_without_targets_they_are_not_measured_and_what_needs_none_is_played(tmp_path: Path):
    made = untargeted(tmp_path, "True")
    result = preflight.check(tiny_recipe.params(made), 4)
    assert (result.target_score, result.num_targets, result.targets_pass) == (None, 0, True)
    assert [one.name for one in result.exploits] == [
        "no-op", "empty", "echo", "random", "constant", "to the grader", "the value of another key",
        "answer inside a call"
    ]  # fmt: skip
    assert result.not_played == ("all endings of a hit",)
    shown = table(result)
    assert "targets: not measured" in shown
    assert "all endings of a hit               not played: no example has a target" in shown


@pytest.mark.slow
def test_a_leak_is_seen_without_targets_too(tmp_path: Path):
    made = untargeted(tmp_path, "True")
    tools = made / "tools.py"
    tools.write_text(tools.read_text().replace('== sample["output_text"]', 'in sample["output_text"]'))
    with pytest.raises(UserError, match="exploit 'echo'"):
        preflight.check(tiny_recipe.params(made), 4)


@pytest.mark.slow
def test_the_examples_with_a_target_are_measured_and_counted(tmp_path: Path):
    made = untargeted(tmp_path, "number % 2")
    result = play(made, num_examples=8)
    assert 0 < result.num_targets < 8
    assert (result.target_score, result.num_examples) == (1.0, 8)
    assert f"targets: lowest score 1.000, pass ({result.num_targets} of 8 examples have a target)" in table(result)
    tried = {one.name: one.tried for one in result.exploits}
    assert (tried["constant"], tried["all endings of a hit"]) == (8, result.num_targets)


# -- the command -----------------------------------------------------------------------------------
def params_file(tmp_path: Path, made: Path) -> str:
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps({"recipe": {"path": str(made)}, "gate": tiny_recipe.gate()}))
    assert config.load(path).recipe.path == str(made)
    return str(path)


@pytest.mark.slow
def test_the_command_prints_a_table_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        cli.main(
            ["doctor", "exploits", "--params", params_file(tmp_path, tiny_recipe.make(tmp_path)), "--examples", "2"]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "exploits accepted / tried = 0 / 9" in shown
    assert "targets: lowest score 1.000, pass" in shown


@pytest.mark.slow
def test_the_command_fails_for_a_leak(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        cli.main(["doctor", "exploits", "--params", params_file(tmp_path, leak(tmp_path, "True")), "--examples", "2"])
        == 2
    )
    assert "ACCEPTED" in capsys.readouterr().out


def test_the_command_shows_a_wrong_file_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor", "exploits", "--params", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: missing" in capsys.readouterr().err


def test_a_result_is_a_record():
    assert Preflight([ExploitResult("e", "k", 0.2, 0.05, None, 3)], 1.0, 1.0, 3, 3).accepted[0].name == "e"
