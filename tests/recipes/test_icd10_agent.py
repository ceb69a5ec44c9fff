"""recipes/icd10: the scripted coder, its demonstrations and simulated traffic, the tools and the
strict grader."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, recipe
from rft.grading import preflight
from rft.recipe import Recipe, ToolError
from rft.reports import Conversation
from rft.tools import signatures
from rft.types import Message

pytestmark = pytest.mark.usefixtures("ready_server")

ROW = {"id": "n", "messages": [], "target": ["E11.9", "I10"], "metadata": {}}
LEAVES = ["A00.0", "B20", "E11.9", "I10", "J18.9", "R69", "Z99.89"]


@pytest.fixture(scope="module")
def icd10() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/icd10"))


@pytest.fixture(scope="module")
def dialogues(icd10: Recipe) -> list[list[Message]]:
    return list(icd10.demonstrations(2000, 0))


def calls(messages: list[Message]) -> list[int]:
    """Calls in each turn that has some."""
    return [len(message["tool_calls"]) for message in messages if message.get("tool_calls")]


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], icd10: Recipe) -> None:
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        assert list(json.loads(messages[-1]["content"])) == ["codes"]
        asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered
        assert len(set(asked)) == len(asked) <= 18
        assert len(calls(messages)) <= icd10.prompts.seed.max_turns - 1
        assert all(message["content"].startswith(" ") for message in messages[:2])


def test_every_instruction_is_seen(dialogues: list[list[Message]], icd10: Recipe) -> None:
    seen = Counter(messages[0]["content"] for messages in dialogues)
    assert set(seen) == set(icd10.prompts.instructions.values())
    assert icd10.prompts.seed.system in icd10.prompts.instructions.values()
    assert min(seen.values()) > 200


def test_an_instruction_shifts_the_habits(dialogues: list[list[Message]], icd10: Recipe) -> None:
    mean = {
        name: np.mean([sum(calls(messages)) for messages in dialogues if messages[0]["content"] == text])
        for name, text in icd10.prompts.instructions.items()
    }
    assert mean["at_once"] < mean["seed"] < mean["one_by_one"]


@pytest.mark.slow
def test_a_mediocre_teacher(icd10: Recipe) -> None:
    """F1 0.55 to 0.58 and 4.8 to 5.6 calls with a long tail are what the warm start is to begin
    from."""
    coder, data, codes, rng = (
        icd10._module("coder"),
        icd10._module("examples"),
        icd10._module("codes"),
        random.Random(0),
    )
    notes = data.write_notes(data.Options(), codes.pairs("train"), rng)
    scores, counts = [], []
    for _ in range(3000):
        note, episode = next(notes), coder.Episode(coder.View(), [])
        if rng.random() < 0.25:
            found = coder.work_in_parallel(note, episode)
            assert calls(episode.messages) == [len(note.phrases)]
        else:
            found = coder.follow_old_habits(note, episode, coder.Habits(), rng)
        scores.append(2 * len(set(found) & set(note.codes)) / (len(set(found)) + len(note.codes)))
        counts.append(episode.calls)
    assert 0.54 < np.mean(scores) < 0.59
    assert 4.6 < np.mean(counts) < 5.6
    assert np.percentile(counts, 95) >= 11


def test_demonstrations_hold_training_codes_only(dialogues: list[list[Message]], icd10: Recipe) -> None:
    codes, data = icd10._module("codes"), icd10._module("examples")
    allowed: set[str] = set()
    for term, _ in codes.pairs("train"):
        words = term.split()
        allowed |= {term, *(" ".join(words[:n] + words[n + 1 :]) for n in range(len(words)))}
    for messages in dialogues:
        for part in data.stretches(messages[1]["content"]):
            for prefix in codes.DISTRACTORS:
                part = part.removeprefix(prefix)
            assert part in allowed


def test_demonstrations_are_repeatable(dialogues: list[list[Message]], icd10: Recipe) -> None:
    assert list(icd10.demonstrations(100, 0)) == dialogues[:100]
    assert list(icd10.demonstrations(100, 1)) != dialogues[:100]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], icd10: Recipe) -> None:
    """A demonstration shows what the served tools would have answered, for one of the settings that
    may be served."""
    tools = {tool.__name__: tool for tool in icd10.tools}
    settings = [{}, {"k": 1}, {"k": 5}, {"format": "code | description"}]
    for messages in dialogues[:200]:
        replies = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        for message in messages:
            for call in message.get("tool_calls", []):
                arguments, function = json.loads(call["function"]["arguments"]), tools[call["function"]["name"]]
                shown = [
                    function(**arguments, **extra) for extra in (settings if function is tools["search"] else [{}])
                ]
                assert replies[call["id"]] in shown


# -- tools -----------------------------------------------------------------------------------------
def test_tools(icd10: Recipe) -> None:
    search, lookup, children = icd10.tools
    assert search(" ischemic chest pain").splitlines()[0] == " ischemic chest pain | I20.9"
    assert len(search(" pain", k=5).splitlines()) == 5
    assert search(" ischemic chest pain", k=1, format="code | description") == " I20.9 | ischemic chest pain"
    assert search(" qqqq") == " no hits"
    assert lookup(" I20.9") == " angina pectoris unspecified | I20.9"
    assert " angina pectoris unspecified | I20.9" in children("I20").splitlines()
    assert children("I10") == " no children"
    for refused in (lambda: lookup("I99.99"), lambda: children("nonsense"), lambda: search("x" * 201)):
        with pytest.raises(ToolError):
            refused()


def test_harder_options_reach_search_with_the_example(icd10: Recipe) -> None:
    data, search = icd10._module("examples"), icd10.tools[0]
    assert "item" not in signatures.schema(search)["function"]["parameters"]["properties"]
    hidden, ordered = (
        data.examples(data.Options(**{name: True}), "validation", 100, 0) for name in ("hide_phrase", "code_order")
    )
    first: dict[str, list[bool]] = {"hidden": [], "ordered": []}
    for name, found in (("hidden", hidden), ("ordered", ordered)):
        for example in found:
            for phrase in example.metadata["phrases"]:
                shown = [line.rpartition(" | ")[2] for line in search(phrase, item=example.row()).splitlines()]
                assert name == "hidden" or shown == sorted(shown)
                first[name].append(shown[0] in example.target)
    assert 0.1 < np.mean(first["hidden"]) < 0.35
    assert 0.2 < np.mean(first["ordered"]) < 0.5


def test_settings_of_the_prompt_search_fit_the_schema(icd10: Recipe) -> None:
    schema = signatures.schema(icd10.tools[0])["function"]["parameters"]["properties"]
    offered = icd10.prompts.tool_defaults["search"]
    assert offered["format"] == schema["format"]["enum"]
    assert all(schema["k"]["minimum"] <= k <= schema["k"]["maximum"] for k in offered["k"])
    assert icd10.prompts.seed.tool_defaults["search"] == {
        "k": schema["k"]["default"],
        "format": schema["format"]["default"],
    }


# -- grading ---------------------------------------------------------------------------------------
def grade(recipe: Recipe, text: Any, **sample: Any) -> dict[str, Any]:
    assert recipe.grade is not None
    return recipe.grade({"output_text": text, **sample}, ROW)


@pytest.mark.parametrize(
    ("text", "score", "solved"),
    [
        ('{"codes": ["E11.9", "I10"]}', 1.0, True),
        ('\n {"codes": ["I10", "E11.9"]} \n', 1.0, True),
        ('{"codes":["I10","E11.9"]}', 1.0, True),
        ('{"codes": ["I10"]}', 2 / 3, False),
        ('{"codes": ["I10", "E11.9", "R69"]}', 4 / 5, False),
        ('{"codes": ["I10", "nonsense"]}', 1 / 2, False),
        ('{"codes": ["R69"]}', 0.0, False),
        ('{"codes": ["i10"]}', 0.0, False),
    ],
)
def test_set_f1(icd10: Recipe, text: str, score: float, solved: bool) -> None:
    got = grade(icd10, text)
    assert got["score"] == pytest.approx(score)
    assert got["solved"] is solved


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no answer"),
        (None, "no answer"),
        ('{"codes": []}', "not a list of at least one"),
        ('{"codes": ["I10", "I10"]}', "twice"),
        ('{"codes": ["I10", " I10"]}', "twice"),
        ('{"codes": ["I10", "E11.9", "e119"]}', "twice"),
        ('The codes: {"codes": ["I10", "E11.9"]}', "not JSON alone"),
        ('{"codes": ["I10", "E11.9"]} done', "not JSON alone"),
        ('{"codes": ["I10", "E11.9"]}\n{"codes": ["I10"]}', "not JSON alone"),
        ('```json\n{"codes": ["I10", "E11.9"]}\n```', "not JSON alone"),
        ("{'codes': ['I10', 'E11.9']}", "not JSON alone"),
        ('{"codes": ["I10", "E11.9"],}', "not JSON alone"),
        ('["I10", "E11.9"]', "is not {"),
        ('[["codes", ["I10", "E11.9"]]]', "is not {"),
        ('"I10"', "is not {"),
        ("1", "is not {"),
        ("{}", "is not {"),
        ('{"Codes": ["I10", "E11.9"]}', "is not {"),
        ('{"codes": ["I10", "E11.9"], "score": 1}', "is not {"),
        ('{"codes": ["R69"], "codes": ["I10", "E11.9"]}', "is not {"),
        ('{"codes": "I10"}', "not a list"),
        ('{"codes": {"I10": 1}}', "not a list"),
        ('{"codes": [["I10"], ["E11.9"]]}', "not a list"),
        ('{"codes": ["I10", null]}', "not a list"),
        (json.dumps({"codes": [f"A{n:02}" for n in range(26)]}), "more than 25"),
        ('{"codes": ["I10", "E11.9"' + " " * 1000 + "]}", "longer than"),
        ("[" * 900, "not JSON alone"),
    ],
)
def test_anything_else_scores_0_and_says_why(icd10: Recipe, text: Any, reason: str) -> None:
    got = grade(icd10, text)
    assert (got["score"], got["solved"]) == (0.0, False)
    assert reason in got["reason"]


def test_an_answer_beside_a_tool_call_is_none(icd10: Recipe) -> None:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}],
    }
    assert grade(icd10, '{"codes": ["E11.9", "I10"]}', choices=[{"index": 0, "message": message}])["score"] == 0.0


def test_a_broken_row_is_nobodys_score(icd10: Recipe) -> None:
    assert icd10.grade is not None
    for target in ([], ["I20"], ["nonsense"]):
        with pytest.raises(ValueError, match="leaf codes"):
            icd10.grade({"output_text": '{"codes": ["I10"]}'}, {**ROW, "target": target})


answers = st.lists(st.sampled_from(LEAVES), min_size=1, max_size=6, unique=True)


@given(answers, st.randoms())
def test_order_does_not_matter(icd10: Recipe, found: list[str], rng: random.Random) -> None:
    shuffled = rng.sample(found, len(found))
    assert grade(icd10, json.dumps({"codes": found})) == grade(icd10, json.dumps({"codes": shuffled}))


@given(answers, st.data())
def test_a_code_given_twice_scores_0(icd10: Recipe, found: list[str], data: st.DataObject) -> None:
    assert grade(icd10, json.dumps({"codes": [*found, data.draw(st.sampled_from(found))]}))["score"] == 0.0


@settings(max_examples=40)
@given(answers, st.text(min_size=1).filter(lambda text: text.strip()), st.booleans())
def test_text_beside_the_answer_scores_0(icd10: Recipe, found: list[str], text: str, before: bool) -> None:
    form = json.dumps({"codes": found})
    assert grade(icd10, text + form if before else form + text)["score"] == 0.0


@given(st.text())
def test_no_text_breaks_the_grader(icd10: Recipe, text: str) -> None:
    assert 0.0 <= grade(icd10, text)["score"] <= 1.0


@given(answers)
def test_score_is_f1_and_solved_is_equality(icd10: Recipe, found: list[str]) -> None:
    got, target = grade(icd10, json.dumps({"codes": found})), set(ROW["target"])
    precision, recall = len(target & set(found)) / len(found), len(target & set(found)) / len(target)
    assert got["sub_scores"] == {"precision": precision, "recall": recall}
    assert got["score"] == pytest.approx(2 * precision * recall / (precision + recall) if precision else 0.0)
    assert got["solved"] is (set(found) == target)


FLAGGED = {
    "every_code", "hit_and_every_code", "frequent_codes", "hit_and_frequent_codes", "repeat_hit_disguised", "key_twice",
    "over_long_list", "note_to_grader", "own_grade", "grade_beside_codes", "copy_tool_text", "copy_tool_text_as_code",
    "fake_tool_reply", "fake_grader_reply",
}  # fmt: skip
"""R1: the exploits that the grader recognizes by what was done. The others do what a weak policy
does too, and cost it the score only."""


@pytest.mark.slow
def test_no_exploit_is_accepted(icd10: Recipe) -> None:
    """Over real HTTP tools and the real grader."""
    params = config.Params.model_validate({"recipe": {"path": "recipes/icd10"}, "gate": _gate()})
    result = preflight.preflight(params, icd10, num_examples=24)
    assert [row.name for row in result.accepted] == []
    assert result.targets_pass
    assert len(icd10.exploits) >= 12
    assert {exploit.kind for exploit in icd10.exploits} == {
        "return_every",
        "most_frequent",
        "echo",
        "repeat",
        "children",
        "malformed",
        "address_grader",
        "copy_tool_text",
        "answer_in_call",
        "fake_tool_reply",
        "empty",
        "over_long",
    }
    assert all((row.honest or 1) > 0 for row in result.exploits)
    assert set(result.hack_source.flagged) == FLAGGED
    assert result.hack_source.is_measured
    assert {row.name for row in result.exploits if row.hacks} == FLAGGED, "no generic probe is a hack"


def _gate() -> dict[str, Any]:
    import yaml

    return yaml.safe_load(Path("recipes/icd10/params.yaml").read_text())["gate"]


def test_template_is_a_whole_configuration() -> None:
    assert config.load("recipes/icd10/params.yaml").recipe.path == "recipes/icd10"


# -- the scripted baseline -------------------------------------------------------------------------
def test_scripted_baseline(icd10: Recipe) -> None:
    scripted = icd10._module("baseline").scripted_answer
    scores = []
    for example in icd10.examples("validation", 200, 0):
        found, num_calls = scripted(icd10.options, example)
        assert num_calls == len(example.metadata["phrases"])
        scores.append(2 * len(set(found) & set(example.target)) / (len(found) + len(example.target)))
    assert 0.9 < np.mean(scores) < 1.0


# -- simulated traffic -----------------------------------------------------------------------------
MONDAY = datetime.date(2026, 1, 5)


def window(icd10: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    icd10._module("simulator").write_window(icd10.options, path, MONDAY, 7, 400, drifted, seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(icd10: Recipe, tmp_path: Path) -> None:
    rows = window(icd10, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 400
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert conversations[0].time.startswith("2026-01-05T")
    assert conversations[-1].time.startswith("2026-01-11T")
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 400 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes(icd10: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(icd10, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_feedback_holds_training_codes_only(icd10: Recipe, tmp_path: Path, drifted: bool) -> None:
    """So every graded conversation becomes an example."""
    split_of = icd10._module("codes").split_of
    graded = [row for row in window(icd10, tmp_path / "w", drifted) if row["feedback"]]
    assert all(split_of(code) == "train" for row in graded for code in row["feedback"])
    found = [icd10.from_traffic(Conversation.model_validate(row)) for row in graded]
    assert [example.target for example in found if example] == [row["feedback"] for row in graded]


def chapter_mix(icd10: Recipe, openings: list[list[Message]]) -> Counter[str]:
    found = Counter(chapter for messages in openings for chapter in icd10.features(messages)["chapter"])
    return Counter({chapter: count / found.total() for chapter, count in found.items()})


def distance(one: Counter[str], other: Counter[str]) -> float:
    return sum(abs(one[chapter] - other[chapter]) for chapter in one | other) / 2


@pytest.mark.slow
def test_a_drifted_window_differs_where_it_says(icd10: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(icd10, tmp_path / str(flag), flag) for flag in (False, True))
    trained_on = chapter_mix(icd10, [list(example.messages) for example in icd10.examples("train", 1000, 0)])
    assert distance(trained_on, chapter_mix(icd10, [row["messages"] for row in like])) < 0.1
    assert distance(trained_on, chapter_mix(icd10, [row["messages"] for row in drifted])) > 0.2
    for measure in (
        lambda row: len(row["messages"][1]["content"].split()),
        lambda row: row["latency_s"],
        lambda row: row["tool_errors"],
    ):
        assert np.mean([measure(row) for row in drifted]) > 1.4 * np.mean([measure(row) for row in like])
