"""recipes/mail_search: the rubric, and cheats played against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import changelog_folder
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config, recipe
from rft.grading import preflight
from rft.recipe import Recipe
from rft.types import Message

pytestmark = pytest.mark.usefixtures("ready_server")

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
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe", options={"mailbox": str(folder)}))


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


def search(keywords: str, *ids: str) -> tuple[str, dict[str, Any], str]:
    hits = "\n".join(f" apt 1.8.{n} | {mail_id}" for n, mail_id in enumerate(ids))
    return "search_emails", {"keywords": keywords}, hits or " no mails"


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
        (sample(LOOKED, final(929273, GOLD)), "the answer is not a text"),
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


def test_a_search_for_the_bug_alone_is_a_look(ours: Recipe) -> None:
    """Its mail is about another package, so there is no answer, and the agent has seen it."""
    none = {**NONE, "search": "apt 777777"}
    assert grade(ours, sample(turn(0, search(" #777777", OTHER)), final(None)), none)["score"] == 1.0
    assert grade(ours, sample(turn(0, search(" 777778", OTHER)), final(None)), none)["score"] == 0.0


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
            *("\uff12019-05-28", "28\tMay 2019", "2019-05-28?"),
        ],
    ),
    (
        "text",
        "\u00c9dith Rook",
        ["\u00c9dith Rook", " edith  rook ", "EDITH ROOK.", '"Edith Rook"', "E\u0301dith Rook"],
        [
            *("Edith", "Edith Rook, Bo Vale", "Edith Rook or Bo", "rook edith", f"Edith Rook{LONG}."),
            *("Edith Rook\u200b", "Edith Rook\x1f", "\u0415dith Rook", "Edith Roo\u212a\u0338", "\uff25dith Rook"),
            *("Edith Rook <bo@example.org>", "Edith Rook ?", "!Edith Rook", "Edith Rook / Bo", "edith rook #"),
        ],
    ),
    (
        "text",
        "1.8.2-1",
        ["1.8.2-1", " 1.8.2-1 "],
        [
            *("1.8.2", "1.8.2-10", "1.8.2-1 1.8.3-1", "apt 1.8.2-1", "1.8.2\u20111", "\uff11.8.2-1", "1,8,2-1"),
            *(">= 1.8.2-1", "<1.8.2-1", "~1.8.2-1", "1.8.2-1 ?", "1.8.2-1*"),
        ],
    ),
]


@pytest.mark.parametrize(("form", "target", "right", "wrong"), FORMS)
def test_forms_of_an_answer(ours: Recipe, form: str, target: str, right: list[str], wrong: list[str]) -> None:
    wanted = {**TARGET, "form": form, "answer": target}
    for answer in right:
        assert grade(ours, sample(LOOKED, final(answer, GOLD)), wanted)["score"] == 1.0, answer
    for answer in wrong:
        assert grade(ours, sample(LOOKED, final(answer, GOLD)), wanted)["score"] == 0.0, answer


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_exploit_is_accepted(ours: Recipe, folder: Path) -> None:
    """Over real HTTP tools and the real grader."""
    result = preflight.preflight(params(folder), ours, num_examples=20)
    assert [row.description for row in result.accepted] == []
    assert result.targets_pass
    assert result.target_score == 1.0
    assert len(ours.exploits) >= 12
    assert len({exploit.kind for exploit in ours.exploits}) >= 8
    earned = {row.name: row.mean_score for row in result.exploits if row.mean_score > 0}
    unknown = pytest.approx(0.15 + 0.85 * 0.1)
    assert earned == {"unknown_after_a_search": unknown, "unknown_after_an_empty_search": unknown}
    assert earned["unknown_after_a_search"] <= ours.grader.scale.chance
    assert set(result.hack_source.flagged) <= FLAGGED
    assert result.hack_source.is_measured
    assert {row.name for row in result.exploits if row.hacks} == set(result.hack_source.flagged)


@pytest.mark.slow
def test_without_the_trait_no_target_passes_and_the_reason_is_told(ours: Recipe, folder: Path) -> None:
    loaded = params(folder)
    forgot = loaded.model_copy(update={"tools": loaded.tools.model_copy(update={"traits": {}})})
    result = preflight.preflight(forgot, ours, num_examples=4)
    assert not result.targets_pass
    assert "return_final_answer did not take the answer" in result.target_explanation
