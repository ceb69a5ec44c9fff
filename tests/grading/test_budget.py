"""What a budget may and may not do to a score."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import config
from rft.config import Budget, Rollout
from rft.errors import ConfigError
from rft.grading.budget import Use, check, contradictions, kept, never_exceeded, outcome, reward
from rft.types import Grade, GradeStatus, Scored, ToolCall, Turn, Unscored
from tests import tiny_recipe


def calling(num_calls: int, tokens: int = 0, turns: int = 0, seconds: float = 0.0) -> Use:
    return Use(("search",) * num_calls, tokens, turns, seconds)


scores = st.floats(-5, 5)
uses = st.builds(
    Use,
    st.lists(st.sampled_from(["search", "lookup", "archive"]), max_size=30).map(tuple),
    st.integers(0, 2000),
    st.integers(0, 20),
    st.floats(0, 600),
)
allowances = st.none() | st.builds(
    lambda free, weight: {"free": free, "weight": weight}, st.floats(0.5, 500), st.floats(0.01, 1)
)
counted = st.fixed_dictionaries(
    {
        "tool_calls": st.integers(0, 20),
        "weight": st.floats(0, 1),
        "tool_weights": st.dictionaries(st.sampled_from(["search", "archive"]), st.floats(0, 5)),
        "tokens": allowances,
        "turns": allowances,
        "latency_s": allowances,
    }
)


def budgets(*forms: str) -> st.SearchStrategy[Budget]:
    return st.builds(
        lambda section, form: Budget.model_validate({**section, "form": form}), counted, st.sampled_from(forms)
    )


any_budget = budgets("multiplied", "added")


@st.composite
def grades(draw: st.DrawFn, score: st.SearchStrategy[float] = scores) -> Grade:
    """With and without an outcome of its own, which may be on another scale than the score."""
    parts = draw(st.dictionaries(st.sampled_from(["outcome", "process", "style"]), st.floats(-2, 2)))
    return Scored(draw(score), components=parts)


@pytest.mark.parametrize(
    ("form", "num_calls", "expected"),
    [
        ("multiplied", 0, 0.8),
        ("multiplied", 4, 0.8),
        ("multiplied", 5, 0.8 * 0.875),
        ("multiplied", 6, 0.8 * 0.75),
        ("multiplied", 8, 0.4),
        ("multiplied", 40, 0.4),
        ("added", 4, 0.8),
        ("added", 6, 0.55),
        ("added", 40, 0.3),
    ],
)
def test_by_hand(form: str, num_calls: int, expected: float):
    budget = Budget.model_validate({"tool_calls": 4, "weight": 0.5, "form": form})
    assert reward(Scored(0.8), calling(num_calls), budget) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_calls", "tokens", "multiplied", "added_failed"),
    [(4, 150, 1, 0), (6, 150, 0.75, -0.25), (6, 300, 0.675, -0.325), (40, 9000, 0.4, -0.6)],
)
def test_two_budgets_multiply(num_calls: int, tokens: int, multiplied: float, added_failed: float):
    """The module's own table."""
    section = {"tool_calls": 4, "weight": 0.5, "tokens": {"free": 200, "weight": 0.2}}
    used = calling(num_calls, tokens)
    assert reward(Scored(1.0), used, Budget.model_validate(section)) == pytest.approx(multiplied)
    assert reward(Scored(0.0), used, Budget.model_validate(section)) == 0.0
    assert reward(Scored(0.0), used, Budget.model_validate({**section, "form": "added"})) == pytest.approx(added_failed)


@pytest.mark.parametrize(
    ("name", "used", "expected"),
    [
        ("tokens", calling(0, tokens=15), 0.8),
        ("turns", calling(0, turns=15), 0.8),
        ("latency_s", calling(0, seconds=15.0), 0.8),
    ],
)
def test_each_budget_reads_its_own_use(name: str, used: Use, expected: float):
    budget = Budget.model_validate({"tool_calls": None, name: {"free": 10, "weight": 0.4}})
    assert reward(Scored(1.0), used, budget) == pytest.approx(expected)


def test_tools_have_weights():
    budget = Budget(tool_calls=4, weight=0.5, tool_weights={"archive": 3, "lookup": 0})
    # 3 + 1 + 1 + 0 + 3 = 8: twice the budget
    used = Use(("archive", "search", "search", "lookup", "archive"), 0, 0, 0.0)
    assert reward(Scored(1.0), used, budget) == 0.5
    assert kept(Use(("lookup",) * 50, 0, 0, 0.0), budget) == 1


def test_no_calls_allowed():
    budget = Budget(tool_calls=0, weight=0.5)
    assert [reward(Scored(1.0), calling(n), budget) for n in range(3)] == [1.0, 0.5, 0.5]


def test_the_added_form_is_not_clamped():
    assert reward(Scored(0.0), calling(8), Budget(tool_calls=4, form="added")) == -0.5


def test_what_a_rollout_used():
    call = ToolCall("call_0_0", "search", "{}")
    turns = [
        Turn("", (call, ToolCall("call_0_1", "lookup", "{}")), token_ids=(1, 2, 3), prompt_ids=(9,) * 50),
        Turn("done", token_ids=(4,)),
    ]
    assert Use.from_turns(turns, 2.5) == Use(("search", "lookup"), 4, 2, 2.5)


# -- the outcome -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("grade", "expected"),
    [
        (Scored(0.7), 0.7),
        (Scored(0.7, components={"process": 1.0}), 0.7),
        (Scored(0.7, components={"outcome": 0.0, "style": 0.7}), 0.0),
        (Unscored(GradeStatus.grader_bad_reply), None),
        (Scored(0.0, GradeStatus.hack, components={"outcome": 1.0}), 0.0),
    ],
)
def test_the_outcome_is_the_graders_word_else_the_score(grade: Grade, expected: float | None):
    assert outcome(grade) == expected


def test_style_in_an_all_fail_group_is_not_scaled():
    """Scaled by what was used, the style of failures would be a reason to use less."""
    grade = Scored(0.3, components={"outcome": 0.0, "style": 0.3})
    assert {reward(grade, calling(n), Budget(tool_calls=4, weight=1.0)) for n in range(12)} == {0.3}
    solved = Scored(1.0, components={"outcome": 0.7, "style": 0.3})
    assert reward(solved, calling(8), Budget(tool_calls=4, weight=1.0)) == pytest.approx(0.3)


# -- a scale of its own ----------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("low", "high"), [(0, 5), (1, 5), (-2, 2)])
@given(st.lists(uses, min_size=2, max_size=8), budgets("multiplied"))
def test_a_group_at_the_low_end_of_its_scale_has_nothing_to_learn_from(
    low: float, high: float, group: list[Use], budget: Budget
):
    assert {reward(Scored(low), used, budget, low) for used in group} == {low}
    assert {
        reward(Scored(low, GradeStatus.hack, components={"outcome": high}), used, budget, low) for used in group
    } == {low}


@pytest.mark.parametrize(("low", "score", "expected"), [(0, 5, 2.5), (1, 5, 3.0), (-2, 2, 0.0), (-2, 0, -1.0)])
def test_what_was_earned_is_measured_from_the_low_end(low: float, score: float, expected: float):
    assert reward(Scored(score), calling(8), Budget(tool_calls=4, weight=0.5), low) == expected
    assert reward(Scored(score), calling(4), Budget(tool_calls=4, weight=0.5), low) == score


@pytest.mark.slow
@given(grades(st.floats(-2, 2)), uses, budgets("multiplied"))
def test_on_any_scale_a_budget_takes_no_more_than_was_earned(grade: Grade, used: Use, budget: Budget):
    value = reward(grade, used, budget, low=-2)
    assert value is not None
    assert grade.score is not None
    assert -2 - 1e-12 <= value <= grade.score


@given(st.floats(-2, 2), st.floats(-2, 2), uses, budgets("multiplied"))
def test_on_any_scale_a_better_score_never_earns_less(a: float, b: float, used: Use, budget: Budget):
    low, high = (reward(Scored(score), used, budget, low=-2) for score in sorted((a, b)))
    assert low is not None
    assert high is not None
    assert low <= high + 1e-12


# -- whatever the use ------------------------------------------------------------------------------
@given(uses, any_budget)
def test_unscored_stays_unscored(used: Use, budget: Budget):
    assert reward(Unscored(GradeStatus.infra_error), used, budget) is None


@pytest.mark.slow
@given(grades(), uses)
def test_without_a_budget_the_reward_is_the_score(grade: Grade, used: Use):
    assert reward(grade, used, Budget(tool_calls=None)) == grade.score


@given(grades(), uses, any_budget)
def test_a_budget_never_raises_the_score(grade: Grade, used: Use, budget: Budget):
    value = reward(grade, used, budget)
    assert value is not None
    assert grade.score is not None
    assert math.isfinite(value)
    assert value <= grade.score
    assert value >= (grade.score - 1 if budget.form == "added" else min(grade.score, 0.0)) - 1e-12


@given(grades(), any_budget)
def test_nothing_used_costs_nothing(grade: Grade, budget: Budget):
    assert reward(grade, Use((), 0, 0, 0.0), budget) == grade.score


@pytest.mark.slow
@given(grades(), uses, uses, any_budget)
def test_more_never_earns_more(grade: Grade, one: Use, other: Use, budget: Budget):
    both = Use(one.calls + other.calls, one.tokens + other.tokens, one.turns + other.turns, one.seconds + other.seconds)
    less, more = reward(grade, one, budget), reward(grade, both, budget)
    assert less is not None
    assert more is not None
    assert more <= less


@pytest.mark.slow
@given(
    st.lists(uses, min_size=2, max_size=8),
    budgets("multiplied"),
    grades(st.floats(-5, 1)).filter(lambda one: (outcome(one) or 0) <= 0),
)
def test_an_all_fail_group_has_nothing_to_learn_from(group: list[Use], budget: Budget, failed: Grade):
    """The multiplied form: whatever was used, all rewards are the score, so all advantages are
    0."""
    assert {reward(failed, used, budget) for used in group} == {failed.score}


@given(st.floats(0, 1), st.floats(0, 1), uses, any_budget)
def test_a_better_score_never_earns_less(a: float, b: float, used: Use, budget: Budget):
    low, high = sorted((a, b))
    one, other = reward(Scored(low), used, budget), reward(Scored(high), used, budget)
    assert one is not None
    assert other is not None
    assert one <= other


# -- what cannot be honoured -----------------------------------------------------------------------
def params(**sections: Any) -> config.Params:
    return tiny_recipe.params(Path("tiny"), **sections)


def test_the_form_of_today_is_read():
    section = params(rollout={"budget": {"tool_calls": 4, "weight": 0.5, "form": "multiplied"}}).rollout.budget
    assert section == Budget(tool_calls=4)


@pytest.mark.slow
@given(grades(), uses)
def test_nobody_who_asked_for_no_budget_has_one(grade: Grade, used: Use):
    unasked = params().rollout.budget
    assert reward(grade, used, unasked) == reward(grade, Use((), 0, 0, 0.0), unasked) == grade.score


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (
            {"tool_calls": None, "tool_weights": {"search": 2}},
            "tool_weights has no effect while tool_calls is null",
        ),
        ({"weight": 0.3}, "weight has no effect while tool_calls is null"),
        ({"tool_weights": {"search": -1}}, "rollout.budget.tool_weights.search' = -1"),
        ({"tool_weights": {"search": float("inf")}}, "finite number"),
        ({"tokens": {"free": 100}}, "rollout.budget.tokens.weight' is missing"),
        ({"tokens": 100}, "rollout.budget.tokens' = 100"),
        ({"turns": {"free": 0, "weight": 0.1}}, "rollout.budget.turns.free' = 0"),
        ({"turns": {"free": float("nan"), "weight": 0.1}}, "finite number"),
        ({"latency_s": {"free": 1, "weight": 1.1}}, "rollout.budget.latency_s.weight' = 1.1"),
        ({"latency": {"free": 1, "weight": 0.1}}, "Did you mean 'latency_s'?"),
    ],
)
def test_a_budget_without_meaning_is_refused(budget: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as refused:
        params(rollout={"budget": budget})
    assert says in str(refused.value)


def test_a_weight_of_no_tool_is_refused():
    budget = Budget(tool_calls=4, tool_weights={"search": 2, "lokup": 3})
    check(budget, ["search", "lokup", "archive"])
    with pytest.raises(
        ConfigError, match=r"tool_weights names 'lokup', and there is no such tool. Did you mean 'lookup'\?"
    ):
        check(budget, ["search", "lookup"])
    with pytest.raises(ConfigError, match="There are: none"):
        check(budget, [])


def test_what_a_run_cannot_keep():
    latency = params(rollout={"budget": {"latency_s": {"free": 5, "weight": 0.2}}})
    assert [what for what, _ in contradictions(latency, is_deterministic=False)] == []
    assert [
        "latency_s makes rewards depend on wall time" in what
        for what, _ in contradictions(latency, is_deterministic=True)
    ] == [True]
    chat = {"model": "served", "server": {"kind": "chat", "url": "http://127.0.0.1:1", "model": "served"}}
    tokens = params(policy=chat, rollout={"budget": {"tokens": {"free": 100, "weight": 0.2}}})
    assert ["gives none" in what for what, _ in contradictions(tokens, is_deterministic=True)] == [True]
    assert list(contradictions(params(), is_deterministic=True)) == []


def test_a_budget_behind_its_limit():
    names = {
        "tool_calls": 20,
        "tokens": {"free": 512, "weight": 0.1},
        "turns": {"free": 8, "weight": 0.1},
        "latency_s": {"free": 600, "weight": 0.1},
    }
    found = [what for what, _ in never_exceeded(Rollout.model_validate({"max_tokens": 512, "budget": names}))]
    assert (
        found[0] == "rollout.budget.tool_calls = 20 is never exceeded: rollout.max_tool_calls = 20 ends a rollout first"
    )
    assert len(found) == 4
    heavy = {"tool_calls": 20, "tool_weights": {"search": 2}, "turns": {"free": 7.5, "weight": 0.1}}
    assert list(never_exceeded(Rollout.model_validate({"budget": heavy}))) == []
    assert list(never_exceeded(Rollout())) == []
    unknown = Rollout.model_validate({"budget": {"tokens": {"free": 10**9, "weight": 0.1}}})
    assert list(never_exceeded(unknown)) == [], (
        "how many tokens a context holds is the server's word (rollout.max_tokens: null)"
    )
