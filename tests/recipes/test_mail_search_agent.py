"""recipes/mail_search: the rubric, exploits, scripted agents, demonstrations and traffic."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

import changelog_folder
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config, recipe
from rft.grading import preflight
from rft.recipe import Example, Recipe
from rft.reports import Conversation
from rft.types import Message

GOLD, OTHER, THIRD = "m111111", "m222222", "m333333"
TARGET = {"answer": "929273", "form": "number", "message_id": GOLD, "search": "apt 1.8.2"}
NONE = {"answer": None, "form": "number", "message_id": None, "search": "apt 9.9"}
ROW = {"id": "n", "messages": [], "target": TARGET, "metadata": {"named": "apt"}}


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFT_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changelog_folder.make(tmp_path_factory.mktemp("doc"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search", options={"mailbox": str(folder)}))


@pytest.fixture(scope="module")
def dialogues(ours: Recipe) -> list[list[Message]]:
    return list(ours.demonstrations(1200, 0))


# -- the rubric ------------------------------------------------------------------------------------
def turn(number: int, *calls: tuple[str, dict[str, Any], str | None], content: str = "") -> list[Message]:
    """An assistant's message with its calls and their results; None: nothing answers the call."""
    ids = [f"call_{number}_{n}" for n in range(len(calls))]
    made = [
        {"id": name, "type": "function", "function": {"name": call[0], "arguments": json.dumps(call[1])}}
        for name, call in zip(ids, calls, strict=True)
    ]
    replies = [
        {"role": "tool", "tool_call_id": name, "content": reply, "is_error": reply.startswith("Error")}
        for name, (*_, reply) in zip(ids, calls, strict=True)
        if reply is not None
    ]
    return [{"role": "assistant", "content": content, "tool_calls": made}, *replies]


def search(words: str, *ids: str) -> tuple[str, dict[str, Any], str]:
    hits = "\n".join(f" apt 1.8.{n} | {mail_id}" for n, mail_id in enumerate(ids))
    return "search_emails", {"keywords": words}, hits or " no mails"


def read(mail_id: str) -> tuple[str, dict[str, Any], str]:
    return "read_email", {"message_id": mail_id}, f" | {mail_id} ; from jane doe ; apt 1.8.2 ; closes 929273 | {THIRD}"


LOOKED = [*turn(0, search(" apt 1.8.2", GOLD, OTHER)), *turn(1, read(GOLD))]


def final(answer: Any, *sources: str) -> tuple[str, dict[str, Any], str]:
    return "return_final_answer", {"answer": answer, "sources": list(sources)}, " received"


def sample(before: list[Message], *calls: tuple[str, dict[str, Any], str | None], output: str | None = None) -> Any:
    last = turn(9, *calls)
    first = next((call for call in calls if call[0] == "return_final_answer"), None)
    text = output if output is not None else json.dumps(first[1]) if first else ""
    return {
        "choices": [{"message": {"role": "assistant", "content": text, "tool_calls": last[0]["tool_calls"]}}],
        "output_text": text,
        "trajectory": [*before, *last],
    }


def grade(ours: Recipe, given: Any, target: dict[str, Any] = TARGET, named: str = "apt") -> dict[str, Any]:
    assert ours.grade is not None
    return ours.grade(given, {**ROW, "target": target, "metadata": {"named": named}})


@pytest.mark.parametrize(
    ("sources", "score"),
    [((GOLD,), 1.0), ((GOLD, OTHER), 1.35 / 1.4), ((OTHER,), 1 / 1.4), ((), 1 / 1.4)],
)
def test_a_right_answer_is_worth_more_with_its_source(ours: Recipe, sources: tuple[str, ...], score: float) -> None:
    got = grade(ours, sample(LOOKED, final("929273", *sources)))
    assert got["score"] == pytest.approx(score)
    assert got["solved"] is True
    assert got["sub_scores"] == {"right": 1.0, "cited": float(GOLD in sources), "abstained": 0.0}


def test_a_hit_is_enough_to_have_seen_the_mail(ours: Recipe) -> None:
    assert grade(ours, sample(turn(0, search(" apt", OTHER, GOLD)), final("929273", GOLD)))["score"] == 1.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (sample(LOOKED, final("929274", GOLD)), "wrong: '929274'"),
        (sample([], final("929273", GOLD)), "cites m111111, which no tool has shown"),
        (sample([], final("929273")), "never shown: a guess"),
        (sample(turn(0, search(" apt", OTHER)), final("929273", OTHER)), "never shown: a guess"),
        (sample(LOOKED, final("929273", GOLD, "m999999")), "cites m999999, which no tool has shown"),
        (sample(LOOKED, final("929273", GOLD, THIRD)), f"cites {THIRD}, which no tool has shown"),
        (sample(turn(0, search(" apt", GOLD, OTHER, "m444444", "m555555")),
                final("929273", GOLD, OTHER, "m444444", "m555555")), "cites 4 mails"),
        (sample([], final("929273", GOLD), read(GOLD)), "cites m111111, which no tool has shown"),
        (sample(LOOKED, final("1", GOLD), final("929273", GOLD)), "answered more than once"),
        (sample(LOOKED, final("929273", GOLD), final("1", GOLD)), "answered more than once"),
        (sample(LOOKED, output='{"answer": "929273", "sources": ["m111111"]}'), "in a message, not in a call"),
        (sample(LOOKED, search(" 929273")), "no answer"),
        (sample(LOOKED, final("929273", GOLD), output=""), "did not take the answer"),
        (sample(LOOKED, final("929273", GOLD, GOLD)), "a source is given twice"),
        (sample(LOOKED, final("", GOLD)), "the answer is empty"),
        (sample(LOOKED, final(929273, GOLD)), "the answer is no text"),
        (sample(LOOKED, final("929273", GOLD), output='{"answer": "929273", "sources": "m111111"}'), "not a list"),
        (sample(LOOKED, final("929273", GOLD), output='{"answer": "929273"}'), "not {answer, sources}"),
        (sample(LOOKED, final("929273", GOLD), output='{"answer": "1", "sources": [], "answer": "929273"}'), "not {"),
        (sample(LOOKED, final("929273", GOLD), output="[" * 5000), "not JSON"),
    ],
)  # fmt: skip
def test_what_scores_0_and_why(ours: Recipe, given: Any, reason: str) -> None:
    got = grade(ours, given)
    assert (got["score"], got["solved"]) == (0.0, False)
    assert reason in got["reason"]


@pytest.mark.parametrize("answer", [None, "I don't know", " i do not know. ", "Unknown", "not found!"])
def test_i_do_not_know_is_one_thing_in_many_words(ours: Recipe, answer: str | None) -> None:
    looked = turn(0, search(" apt 9.9"))
    right = grade(ours, sample(looked, final(answer)), NONE)
    assert (right["score"], right["solved"], right["sub_scores"]) == (1.0, True, {"right_to_abstain": 1.0})
    wrongly = grade(ours, sample(LOOKED, final(answer)))
    assert (wrongly["score"], wrongly["solved"]) == (0.1, False)
    assert wrongly["sub_scores"] == {"right": 0.0, "cited": 0.0, "abstained": 1.0}
    assert grade(ours, sample(turn(0, search(" apt", OTHER)), final(answer, OTHER)), NONE)["score"] == pytest.approx(
        1 / 1.4
    )


@pytest.mark.parametrize(
    "before",
    [
        [],
        turn(0, search(" dpkg 9.9")),
        turn(0, read(GOLD)),
        turn(0, ("search_emails", {"keywords": "apt"}, "Error: search_emails is not available")),
    ],
)
def test_i_do_not_know_without_a_look_earns_nothing(ours: Recipe, before: list[Message]) -> None:
    for target in (NONE, TARGET):
        got = grade(ours, sample(before, final(None)), target)
        assert (got["score"], got["solved"]) == (0.0, False)
        assert "did not search for apt" in got["reason"]


def test_own_questions_name_nothing_that_a_search_must_hold(ours: Recipe) -> None:
    assert grade(ours, sample(turn(0, search(" boat")), final(None)), NONE, named="")["score"] == 1.0
    assert "did not search at all" in grade(ours, sample([], final(None)), NONE, named="")["reason"]


def test_an_answer_where_there_is_none_earns_nothing(ours: Recipe) -> None:
    for answer in ("929273", "I don't know, but perhaps 929273", "none of them"):
        got = grade(ours, sample(LOOKED, final(answer, GOLD)), NONE)
        assert (got["score"], got["sub_scores"]) == (0.0, {"right_to_abstain": 0.0})


def test_a_broken_row_is_nobodys_score(ours: Recipe) -> None:
    for target in (None, "929273", {"answer": "1"}, {**TARGET, "message_id": None}, {**NONE, "message_id": GOLD}):
        with pytest.raises(ValueError, match="row n: the target"):
            grade(ours, sample(LOOKED, final("929273", GOLD)), target)  # type: ignore[arg-type]


LONG = " " * 200
FORMS: list[tuple[str, str, list[str], list[str]]] = [
    (
        "number",
        "929273",
        ["929273", " #929273 "],
        [
            *("929273.", "0929273", "9292730", "929273 929274", "bug 929273", "-929273", "929273.0"),
            *("\uff19\uff12\uff19\uff12\uff17\uff13", "929273\u200b", "\u202e929273"),
        ],
    ),
    (
        "date",
        "2019-05-28",
        ["2019-05-28", "28 May 2019", "May 28, 2019", "28 may 2019"],
        [
            *("2019-05", "2019-05-29", "28.05.2019", "05/28/2019", "2019-05-28 or later", "2019-05-28 2019-05-28"),
            "\uff12019-05-28",
        ],
    ),
    (
        "text",
        "\u00c9dith Rook",
        ["\u00c9dith Rook", " edith  rook ", "EDITH ROOK.", "Edith Rook <e@example.org>", "E\u0301dith Rook"],
        [
            *("Edith", "Edith Rook, Bo Vale", "Edith Rook or Bo", "rook edith", f"Edith Rook{LONG}."),
            *("Edith Rook\u200b", "\u0415dith Rook"),
        ],
    ),
    (
        "text",
        "1.8.2-1",
        ["1.8.2-1", " 1.8.2-1 "],
        ["1.8.2", "1.8.2-10", "1.8.2-1 1.8.3-1", "apt 1.8.2-1", "1.8.2\u20111", "1,8,2-1"],
    ),
]


@pytest.mark.parametrize(("form", "target", "right", "wrong"), FORMS)
def test_forms_of_an_answer(ours: Recipe, form: str, target: str, right: list[str], wrong: list[str]) -> None:
    wanted = {**TARGET, "form": form, "answer": target}
    for answer in right:
        assert grade(ours, sample(LOOKED, final(answer, GOLD)), wanted)["score"] == 1.0, answer
    for answer in wrong:
        assert grade(ours, sample(LOOKED, final(answer, GOLD)), wanted)["score"] == 0.0, answer


@given(st.text(), st.lists(st.text(), max_size=4), st.sampled_from(["number", "date", "text"]))
def test_no_answer_breaks_the_grader(ours: Recipe, answer: str, sources: list[str], form: str) -> None:
    for target in ({**TARGET, "form": form}, NONE):
        assert 0.0 <= grade(ours, sample(LOOKED, final(answer, *sources)), target)["score"] <= 1.0


@given(st.text(min_size=1).filter(lambda text: text.strip(" \t\n#")))
def test_nothing_may_stand_beside_a_number(ours: Recipe, text: str) -> None:
    for answer in (f"929273{text}", f"{text}929273", f"929273 {text}"):
        if answer.strip().strip("#") != "929273":
            assert grade(ours, sample(LOOKED, final(answer, GOLD)))["score"] == 0.0


# -- exploits --------------------------------------------------------------------------------------
FLAGGED = {
    "search_as_answer", "ten_hits_as_answer", "net_of_invented_sources", "note_to_the_judge", "score_request",
    "own_grade", "made_up_mail", "made_up_grade",
}  # fmt: skip
"""The exploits that the grader recognizes by what was done, on at least one example. The others do
what a weak policy does too, and cost it the score only."""


def params(folder: Path, **changes: Any) -> config.Params:
    loaded = config.load("recipes/mail_search/params.yaml")
    section = loaded.recipe.model_copy(update={"options": {"mailbox": str(folder)}})
    return loaded.model_copy(update={"recipe": section, **changes})


def test_no_exploit_is_accepted(ours: Recipe, folder: Path) -> None:
    """Over real HTTP tools and the real grader."""
    result = preflight.preflight(params(folder), ours, num_examples=40)
    assert [row.in_words for row in result.accepted] == []
    assert result.targets_pass
    assert result.target_score == 1.0
    assert len(ours.exploits) >= 12
    assert len({exploit.kind for exploit in ours.exploits}) >= 8
    earned = {row.name: row.mean_score for row in result.exploits if row.mean_score > 0}
    assert earned == {"unknown_after_a_search": pytest.approx(0.15 + 0.85 * 0.1)}
    assert earned["unknown_after_a_search"] <= ours.grader.scale.chance
    assert set(result.hack_source.flagged) <= FLAGGED
    assert result.hack_source.is_measured
    assert {row.name for row in result.exploits if row.hacks} == set(result.hack_source.flagged)


def test_without_the_trait_no_target_passes_and_the_reason_is_told(ours: Recipe, folder: Path) -> None:
    loaded = params(folder)
    forgot = loaded.model_copy(update={"tools": loaded.tools.model_copy(update={"traits": {}})})
    result = preflight.preflight(forgot, ours, num_examples=20)
    assert not result.targets_pass
    assert "return_final_answer did not take the answer" in result.target_said


# -- scripted agents -------------------------------------------------------------------------------
def test_an_honest_agent_and_the_shortcuts(ours: Recipe) -> None:
    baseline = ours._module("baseline")
    rows = ours.examples("test", 60, 0)
    means = {name: np.mean([baseline.score(name, ours.options, row) for row in rows]) for name in baseline.WAYS}
    assert means.pop("honest") > 0.95
    assert means.pop("closed book") == 0.0
    assert means.pop("unknown") == pytest.approx(0.235)
    assert max(means.values()) < 0.35, means


def test_a_mediocre_teacher(ours: Recipe) -> None:
    """What the warm start is to begin from: right in about half of the episodes, over a seventh of
    them longer than a search, a mail and an answer."""
    clerk, questions, data = ours._module("clerk"), ours._module("questions"), ours._module("examples")
    baseline, inbox = ours._module("baseline"), data.inbox_of(ours.options)
    import random

    rng = random.Random(0)
    stream = questions.write(inbox, data.style(ours.options), "train", rng, repeat=True)
    scores: dict[str, list[float]] = {"old": [], "exact": []}
    turns: dict[str, list[int]] = {"old": [], "exact": []}
    for asked in (next(stream) for _ in range(600)):
        row = data._example("n", asked, inbox, ours.options).row()
        for way in scores:
            episode = clerk.Episode(inbox, clerk.View(), [])
            if way == "old":
                clerk.follow_old_habits(asked, episode, clerk.Habits(), rng)
            else:
                clerk.work_exactly(asked, episode)
            scores[way].append(ours.grade(baseline.sample_of(episode.messages), row)["score"])
            turns[way].append(episode.turn)
    assert 0.2 < np.mean(scores["old"]) < 0.45
    assert np.mean(scores["exact"]) > 0.95
    assert np.mean(turns["old"]) > 1.15 * np.mean(turns["exact"])
    assert max(turns["exact"]) == 3
    assert 5 <= max(turns["old"]) <= clerk.MAX_LOOKS + 1


# -- demonstrations --------------------------------------------------------------------------------
def test_form_of_a_dialogue(dialogues: list[list[Message]], ours: Recipe) -> None:
    for messages in dialogues:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        (last,) = messages[-1]["tool_calls"]
        assert last["function"]["name"] == "return_final_answer"
        assert set(json.loads(last["function"]["arguments"])) == {"answer", "sources"}
        asked = [call["id"] for message in messages[:-1] for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered
        assert sum("tool_calls" in message for message in messages) <= (ours.prompts.seed.max_turns or 0)
        assert all(message["content"].startswith(" ") for message in messages[:2])


def test_every_instruction_is_seen_and_shifts_the_habits(dialogues: list[list[Message]], ours: Recipe) -> None:
    seen = Counter(messages[0]["content"] for messages in dialogues)
    assert set(seen) == set(ours.prompts.instructions.values())
    assert ours.prompts.seed.system in seen
    assert min(seen.values()) > 100
    long_ones = {
        name: np.mean([len(messages) > 7 for messages in dialogues if messages[0]["content"] == text])
        for name, text in ours.prompts.instructions.items()
    }
    assert long_ones["exact"] < long_ones["seed"] < long_ones["browse"]


def test_demonstrations_ask_for_training_packages_only(dialogues: list[list[Message]], ours: Recipe) -> None:
    split_of = ours._module("questions").split_of
    for messages in dialogues:
        named = [word for word in messages[1]["content"].split() if word.startswith("pack")]
        assert [split_of(package) for package in named] == ["train"]
    assert list(ours.demonstrations(50, 0)) == dialogues[:50]
    assert list(ours.demonstrations(50, 1)) != dialogues[:50]


def test_in_process_replies_are_the_tools_own(dialogues: list[list[Message]], ours: Recipe) -> None:
    tools = {tool.__name__: tool for tool in ours.tools}
    item = ours.examples("train", 1, 0)[0].row()
    views = [{}, {"max_results": 1}, {"max_results": 5}, {"show": "subject, sender, date"}]
    for messages in dialogues[:200]:
        replies = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        for message in messages[2:-1]:
            for call in message.get("tool_calls", []):
                arguments, name = json.loads(call["function"]["arguments"]), call["function"]["name"]
                shown = [
                    tools[name](**arguments, **extra, item=item)
                    for extra in (views if name == "search_emails" else [{}])
                ]
                assert replies[call["id"]] in shown


def test_settings_of_the_prompt_search_fit_the_schema(ours: Recipe) -> None:
    from rft.tools import signatures

    schema = signatures.schema(ours.tools[0])["function"]["parameters"]["properties"]
    offered = ours.prompts.tool_defaults["search_emails"]
    assert offered["show"] == schema["show"]["enum"]
    assert all(
        schema["max_results"]["minimum"] <= k <= schema["max_results"]["maximum"] for k in offered["max_results"]
    )
    assert ours.prompts.seed.tool_defaults["search_emails"] == {
        name: schema[name]["default"] for name in ("max_results", "show")
    }


def test_template_is_a_whole_configuration() -> None:
    loaded = config.load("recipes/mail_search/params.yaml")
    assert loaded.recipe.path == "recipes/mail_search"
    assert loaded.tools.traits["return_final_answer"].terminal
    assert loaded.gate.max_abstention_increase is not None


# -- simulated traffic -----------------------------------------------------------------------------
MONDAY = datetime.date(2026, 1, 5)


def window(ours: Recipe, path: Path, drifted: bool, seed: int = 0) -> list[dict[str, Any]]:
    ours.simulate(path, start=MONDAY, days=7, conversations=400, drifted=drifted, seed=seed)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_window(ours: Recipe, tmp_path: Path) -> None:
    rows = window(ours, tmp_path / "inbox" / "w.jsonl", False)
    conversations = [Conversation.model_validate(row) for row in rows]
    assert len({c.conversation_id for c in conversations}) == 400
    assert [c.time for c in conversations] == sorted(c.time for c in conversations)
    assert conversations[0].time.startswith("2026-01-05T")
    assert all(c.latency_s is not None and c.latency_s > 0 for c in conversations)
    assert 0.3 < sum(c.feedback is not None for c in conversations) / 400 < 0.5
    assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["w.jsonl"]


def test_equal_arguments_give_equal_bytes(ours: Recipe, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        window(ours, tmp_path / name, True, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("drifted", [False, True])
def test_graded_traffic_becomes_examples(ours: Recipe, tmp_path: Path, drifted: bool) -> None:
    graded = [row for row in window(ours, tmp_path / "w", drifted) if row["feedback"]]
    found = [ours.from_traffic(Conversation.model_validate(row)) for row in graded]
    assert all(found)
    for example, row in zip(found, graded, strict=True):
        assert isinstance(example, Example)
        assert {name: example.target[name] for name in ("answer", "message_id")} == row["feedback"]
        if not drifted:
            assert ours._module("baseline").score("honest", ours.options, example) >= 0.0


@pytest.mark.parametrize(
    "feedback",
    [
        "929273",
        {"answer": "1"},
        {"answer": "1", "message_id": None},
        {"answer": "1", "message_id": "m000000"},
        {"answer": 1, "message_id": "m000000"},
    ],
)
def test_feedback_that_makes_no_example(ours: Recipe, tmp_path: Path, feedback: Any) -> None:
    row = window(ours, tmp_path / "w", False)[0]
    assert ours.from_traffic(Conversation.model_validate({**row, "feedback": feedback})) is None


def test_feedback_about_a_tested_package_makes_no_example(ours: Recipe, tmp_path: Path) -> None:
    row = window(ours, tmp_path / "w", False)[0]
    tested = ours.examples("test", 30, 0)
    for example in tested:
        row["messages"][1] = example.messages[0]
        row["feedback"] = {name: example.target[name] for name in ("answer", "message_id")}
        assert ours.from_traffic(Conversation.model_validate(row)) is None


def mix(ours: Recipe, openings: list[list[Message]], feature: str) -> Counter[str]:
    found = Counter(str(ours.features(messages)[feature]) for messages in openings)
    return Counter({name: count / found.total() for name, count in found.items()})


def distance(one: Counter[str], other: Counter[str]) -> float:
    return sum(abs(one[name] - other[name]) for name in one | other) / 2


def test_a_drifted_window_differs_where_it_says(ours: Recipe, tmp_path: Path) -> None:
    like, drifted = (window(ours, tmp_path / str(flag), flag) for flag in (False, True))
    trained_on = [list(example.messages) for example in ours.examples("train", 400, 0)]
    for feature in ("asks", "opening"):
        reference = mix(ours, trained_on, feature)
        assert distance(reference, mix(ours, [row["messages"] for row in like], feature)) < 0.2
        assert distance(reference, mix(ours, [row["messages"] for row in drifted], feature)) > 0.3
    for measure in ("latency_s", "tool_errors"):
        assert np.mean([row[measure] for row in drifted]) > 1.4 * np.mean([row[measure] for row in like])
