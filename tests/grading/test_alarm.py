"""The alarm: failures that depend on what the policy does are named, those that strike at random
are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.grading.alarm import Alarm, CallRecord, calls_of, find
from rft.types import GradeStatus, Scored, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored

Breaks = Callable[[str, str, dict[str, object], int], bool]
"""rollout, tool, arguments, calls in the turn -> this call fails."""


def batch(seed: int, breaks: Breaks, examples: int = 8, group_size: int = 8) -> list[CallRecord]:
    """64 rollouts as an agent makes them: a search, perhaps several at once, then lookups; a
    failure ends the rollout."""
    rng = random.Random(seed)
    calls: list[CallRecord] = []
    for n in range(examples * group_size):
        example, trace_id = f"n-{n // group_size}", f"trace_{n:03d}"
        for turn in range(rng.choice((2, 3, 4))):
            made: list[tuple[str, dict[str, object]]] = []
            for _ in range(rng.choice((1, 1, 2, 3))):
                if turn == 0 or rng.random() < 0.3:
                    query: dict[str, object] = {"query": f"word{n // group_size}" + " more" * rng.choice((0, 0, 1, 4))}
                    made.append(("search", query | ({"k": rng.choice((5, 10, 50))} if rng.random() < 0.6 else {})))
                else:
                    made.append(("lookup", {"code": f"I{rng.randrange(30)}", "deep": rng.random() < 0.3}))
            ends = [breaks(trace_id, tool, arguments, len(made)) for tool, arguments in made]
            calls += [
                CallRecord(trace_id, example, turn, tool, json.dumps(arguments), failed, len(made))
                for (tool, arguments), failed in zip(made, ends, strict=True)
            ]
            if any(ends):
                break
    return calls


def at_random(seed: int, share: float) -> Breaks:
    rng = random.Random(f"calls {seed}")
    return lambda trace_id, tool, arguments, calls: rng.random() < share


def by_rollout(seed: int, share: float) -> Breaks:
    """The environment of some rollouts is gone: all that they call fails."""
    return lambda trace_id, tool, arguments, calls: random.Random(f"{seed} {trace_id}").random() < share


def when(
    cause: Callable[[str, dict[str, object], int], bool], seed: int, share: float = 1.0, noise: float = 0.02
) -> Breaks:
    rng = random.Random(f"cause {seed}")
    return lambda trace_id, tool, arguments, calls: rng.random() < (share if cause(tool, arguments, calls) else noise)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.3, 0.916])
@pytest.mark.parametrize("kind", [at_random, by_rollout])
def test_random_failures_do_not_alarm(kind: Callable[[int, float], Breaks], share: float):
    false = [alarms[0].text for seed in range(60) if (alarms := find(batch(seed, kind(seed, share))))]
    assert len(false) <= 1, false


CAUSES: dict[str, tuple[Callable[[str, dict[str, object], int], bool], str]] = {
    "value": (lambda tool, arguments, calls: arguments.get("k") == 50, "search: k = 50 fails"),
    "given": (lambda tool, arguments, calls: "k" in arguments, "search: k is given fails"),
    "size": (
        lambda tool, arguments, calls: len(str(arguments.get("query", ""))) >= 16,
        "search: query of at least 16 fails",
    ),
    "tool": (lambda tool, arguments, calls: tool == "lookup", "the tool lookup fails"),
    "calls": (lambda tool, arguments, calls: calls > 1, "2 calls or more in a turn fails"),
    "one example's own words": (
        lambda tool, arguments, calls: arguments.get("query") == "word3",
        'search: query = "word3" fails',
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_in_the_arguments_is_named_first(cause: str):
    """In 64 rollouts, beside 2 % of random failures."""
    breaks, text = CAUSES[cause]
    found = [find(batch(seed, when(breaks, seed))) for seed in range(20)]
    assert sum(bool(alarms) and alarms[0].text.startswith(text) for alarms in found) >= 19, [
        alarms[0].text if alarms else "" for alarms in found
    ]


@pytest.mark.slow
def test_a_cause_that_strikes_half_of_the_time_is_named_too():
    found = [find(batch(seed, when(CAUSES["value"][0], seed, share=0.5))) for seed in range(20)]
    assert sum(bool(alarms) and alarms[0].feature == "k = 50" for alarms in found) >= 18


def test_one_cause_is_one_alarm_and_two_causes_are_two():
    one = [find(batch(seed, when(CAUSES["value"][0], seed))) for seed in range(10)]
    assert [len(alarms) for alarms in one] == [1] * 10
    both = find(
        batch(0, when(lambda tool, arguments, calls: arguments.get("k") == 50 or bool(arguments.get("deep")), 0))
    )
    assert {alarm.feature for alarm in both} == {"k = 50", "deep = true"}


def test_an_alarm_speaks_in_numbers():
    """Twelve rollouts of three examples; the long query fails."""
    calls = [
        CallRecord(f"t{n}", f"n-{n % 3}", 0, "search", json.dumps({"query": "long " * 9 if n < 6 else "short"}), n < 6)
        for n in range(12)
    ]
    (alarm,) = find(calls)
    assert (alarm.tool, alarm.num_with, alarm.failed_with, alarm.num_without, alarm.failed_without, alarm.examples) == (
        "search",
        6,
        6,
        6,
        0,
        3,
    )
    # 1 of C(12, 6), for two features: short and long; what the same turns have is tested once
    assert alarm.p == pytest.approx(2 / 924)
    assert alarm.text.endswith("fails 6 of 6, without it 0 of 6 (p = 0.002, in 3 examples)")


def test_turns_are_strata_of_one_exact_test():
    """Three of three against none of three, in first turns and in second turns: (1 / C(6, 3))
    squared, for two features."""
    calls = [
        CallRecord(f"t{turn}{n}", "n", turn, "search", json.dumps({"k": 50 if n < 3 else 5}), n < 3)
        for turn in (0, 1)
        for n in range(6)
    ]
    (alarm,) = find(calls)
    assert (alarm.feature, alarm.p) == ("k = 50", pytest.approx(2 / 400))


def test_first_turns_fail_more_in_any_outage_and_that_is_no_cause():
    """Every rollout begins with a search; half of the rollouts have no environment and end
    there."""
    calls = [CallRecord(f"t{n}", "n", 0, "search", '{"query": "a"}', n % 2 == 0) for n in range(60)]
    calls += [CallRecord(f"t{n}", "n", 1, "lookup", '{"code": "b"}', False) for n in range(60) if n % 2]
    assert find(calls) == []


def test_few_calls_are_no_evidence():
    calls = [CallRecord(f"t{n}", "n", 0, "search", json.dumps({"k": 50 if n < 3 else 5}), n < 3) for n in range(60)]
    assert find(calls) == []
    assert find([]) == []


@pytest.mark.slow
@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rollouts_does_not_matter(rng: random.Random):
    calls = batch(3, when(CAUSES["value"][0], 3))
    turns: dict[tuple[str, int], list[CallRecord]] = {}
    for call in calls:
        turns.setdefault((call.rollout_id, call.turn), []).append(call)
    keys = list(turns)
    rng.shuffle(keys)
    assert find([call for key in keys for call in turns[key]]) == find(calls)


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())),
        min_size=8,
        max_size=40,
    )
)
def test_any_arguments_are_read(values: list[object]):
    calls = [
        CallRecord(f"t{n}", "n", 0, "search", json.dumps({"x": value}), n % 2 == 0) for n, value in enumerate(values)
    ]
    assert all(isinstance(alarm, Alarm) for alarm in find(calls))
    assert find([replace(call, arguments=call.arguments[1:]) for call in calls if not call.failed]) == []


# -- from trajectories -----------------------------------------------------------------------------
def test_calls_are_read_from_trajectories():
    calls = (
        ToolCall("call_0_0", "search", '{"q": 1}'),
        ToolCall("call_0_1", "search", "{"),
        ToolCall("call_0_2", "lookup", "{}"),
    )
    results = (
        ToolResult("call_0_0", "no reply", failed=True, latency_s=1.0),
        ToolResult("call_0_1", "Error: not JSON", is_error=True),
        ToolResult("call_0_2", "no such code", is_error=True, latency_s=0.1),
    )
    one = Trajectory(
        "t", "n", (Turn("", calls, results),), StopReason.tool_error, Unscored(GradeStatus.infra_error), None
    )
    assert [(call.tool, call.failed, call.num_in_turn) for call in calls_of([one])] == [
        ("search", True, 2),
        ("lookup", False, 2),
    ]


def test_an_answer_that_the_grader_cannot_bear_is_an_exit_too():
    def ended(n: int) -> Trajectory:
        bad = n % 4 == 0
        grade = Unscored(GradeStatus.grader_bad_reply, "HTTP 500") if bad else Scored(0.0)
        return Trajectory(
            f"t{n}", f"n-{n}", (Turn("NaN" if bad else f"I{n}"),), StopReason.completed, grade, grade.score
        )

    (alarm,) = find(calls_of([ended(n) for n in range(64)]))
    assert (alarm.tool, alarm.feature, alarm.failed_with) == ("grader", 'answer = "NaN"', 16)
