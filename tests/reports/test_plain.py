"""The checks as sentences: true to the numbers, whatever they are, and without their jargon."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import reports
from rft.reports import Check, Decision, plain, wording
from tests import sample_reports
from tests.sample_reports import Scenario


def check(name: str, kind: Any, value: float | None, low: float | None, high: float | None, **more: Any) -> Check:
    good = {"passed": None, "margin": 0.0, "n": 72, "unit": "reward"} | more
    return Check(name=name, kind=kind, value=value, low=low, high=high, **good)


def decision(scenario: Scenario) -> Decision:
    return reports.read(Decision, sample_reports.stage_files(scenario) / "data/gate/decision.json")


def test_the_question_is_told_as_a_person_would() -> None:
    asked = check("mean reward", "superiority", 0.08, 0.06, 0.1, passed=True, margin=0.05, detectable=0.03)
    assert plain.sentence(asked, "challenger") == (
        "The challenger earns 0.080 more per example than the champion; a gain of more than 0.050 was asked for, and "
        "the interval, 0.060 to 0.100 more, lies above that."
    )
    assert plain.could_see(asked) == "Could have seen: a gain of 0.080."
    assert plain.protects(asked) == "so that noise is not taken for progress"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            check("P95 tool calls", "non_inferiority", 1, -1, 2, unit="calls"),
            "To finish 19 of 20 rollouts, the new prompt alone needs 1 more tool call than the champion; none more "
            "are allowed, and the interval, 1 fewer to 2 more, reaches beyond that: it could be either.",
        ),
        (
            check("P95 turns", "non_inferiority", 0, 0, 0, unit="turns", passed=True, margin=2),
            "To finish 19 of 20 rollouts, the new prompt alone needs as many turns as the champion; up to 2 more are "
            "allowed, and the interval, none at either end, lies within that.",
        ),
        (
            check("token cost", "non_inferiority", 0.6, 0.4, 0.9, unit="relative", passed=False, margin=-0.1),
            "A rollout of the new prompt alone costs 60.0 % more in tokens, read and written, than one of the "
            "champion; at least 10.0 % less was asked for, and the interval, 40.0 % to 90.0 % more, lies beyond that.",
        ),
        (
            check("slice fax", "veto", -0.2, -0.3, -0.1, passed=False, margin=-0.05, n=40, unit="reward of the range"),
            "On the 40 examples of slice fax the new prompt alone earns 0.200 of the range less per example than the "
            "champion; a loss of up to 0.050 of the range is allowed, and a larger one is shown: the interval, 0.100 "
            "of the range to 0.300 of the range less, lies beyond that.",
        ),
        (
            check("greedy score", "non_inferiority", -0.0001, -0.02, 0.01, unit="score"),
            "The new prompt alone scores as much as the champion when it always takes its likeliest word; no loss is "
            "allowed, and the interval, 0.020 less to 0.010 more, reaches beyond that: it could be either.",
        ),
        (
            check("unscored share", "state", 0.04, None, None, unit="share", passed=False, margin=0.02),
            "4.00 % of the rollouts ended without a score, in the arm that lost more of them; at most 2.00 % is "
            "allowed, and that is not kept.",
        ),
    ],
)  # fmt: skip
def test_each_kind_of_number_has_its_words(given: Check, told: str) -> None:
    assert plain.sentence(given, "champion_new_prompt") == told


def test_a_check_without_a_number_says_why() -> None:
    blind = check(
        wording.HACK_RATE, "non_inferiority", None, None, None, passed=False, detail="not measured: no source"
    )
    assert plain.sentence(blind, "challenger") == "Not measured: no source."
    state = Check(name="drift", kind="state", passed=False, value=None, detail="verdict 'stop', allowed: continue")
    assert plain.sentence(state, "challenger").endswith("allowed: continue, and that is not as it must be.")


def test_a_small_slice_says_what_it_would_not_have_seen() -> None:
    small = check(
        "slice a", "veto", -0.1, -0.4, 0.2, margin=-0.05, n=12, level=0.025, detectable=0.25, needed_for_veto=300
    )
    assert plain.could_see(small) == (
        "Too small to protect: a loss under 0.300 would not have been seen; a loss of twice the limit takes "
        "300 examples."
    )
    hopeless = small.model_copy(update={"detectable": None, "needed_for_veto": None})
    assert plain.could_see(hopeless) == "Too small to protect: even a loss of everything might have gone unseen."
    large = small.model_copy(update={"n": 400, "detectable": 0.04})
    assert plain.could_see(large) == "Could have seen: a loss of 0.090."


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [name for name in get_args(Scenario) if name != "drift_stop"])
def test_every_check_is_in_one_group_and_in_plain_words(scenario: Scenario) -> None:
    found = decision(scenario)
    groups = plain.groups(found)
    assert sorted(one.name for group in groups for one in group.checks) == sorted(one.name for one in found.checks)
    for one in (one for group in groups for one in group.checks):
        told = plain.sentence(one, found.candidate)
        assert told.count(". ") == 0, "one sentence"
        assert not re.search(r"P95|superior|non-infer|confidence|bootstrap|p-value|\{", told)
        assert plain.protects(one)
    stopped = [one.name for group in groups if group.title == plain.STOPPED for one in group.checks]
    if found.decision == "promote":
        assert not stopped
    if found.decision == "reject" and found.candidate != "none":
        assert stopped == [one.name for one in found.checks if one.passed is False and one.decides]
    if found.decision == "inconclusive":
        assert stopped == [one.name for one in found.checks if one.is_unsettled]


Unit = Literal["reward", "score of the range", "calls", "turns", "points", "relative"]


@given(
    st.floats(-3, 3),
    st.floats(0, 2),
    st.floats(0, 2),
    st.floats(-2, 2),
    st.sampled_from(get_args(Unit)),
    st.sampled_from(["superiority", "non_inferiority", "veto"]),
)
def test_a_sentence_agrees_with_the_signs_of_its_numbers(
    value: float, down: float, up: float, margin: float, unit: Unit, kind: Any
) -> None:
    """Any name, such as one of an older version."""
    one = check("some check", kind, value, value - down, value + up, margin=margin, unit=unit, detectable=0.1)
    told = plain.sentence(one, "challenger")
    first = told.partition(";")[0]
    assert ("more" in first) <= (value > 0)
    assert ("less" in first) <= (value < 0)
    assert not re.search(r"[+-]\d", told), "a difference has a word, and no sign"
    assert told.endswith(".")
    plain.could_see(one)


def test_a_pool_names_its_slices_however_they_are_called() -> None:
    pool = check("small slices", "veto", 0.1, -0.1, 0.3, margin=-0.05, n=20, level=0.025, needed_for_veto=10)
    pool = pool.model_copy(
        update={"detail": "together a; b (12), c (8); 20 examples x 4 rollouts at temperature 1; p 1"}
    )
    found = decision("promote").model_copy(update={"checks": [pool]})
    assert plain.unseen(found) == [
        "small slices: too small to be judged one by one, so they were judged together: a; b (12), c (8)."
    ]
