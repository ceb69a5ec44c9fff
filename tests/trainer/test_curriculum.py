"""Which examples a step takes: all of them in epochs; with pass rates, more often those that teach;
and a state that goes on exactly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config
from rft.errors import UserError
from rft.trainer.curriculum import Curriculum

IDS = [f"n-{n}" for n in range(10)]


def make(kind: str = "pass_rate", **more: float) -> Curriculum:
    return Curriculum(IDS, config.Curriculum.model_validate({"kind": kind, **more}), seed=3)


@given(st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_an_epoch_takes_every_example_once(count: int):
    one = make("epochs")
    taken = [index for _ in range(10) for index in one.take(count)]
    for start in range(0, len(taken) - 9, 10):
        assert sorted(taken[start : start + 10]) == list(range(10))


@pytest.mark.parametrize("kind", ["epochs", "pass_rate"])
def test_a_saved_state_goes_on_as_if_nothing_had_happened(kind: str):
    first, second = make(kind), make(kind)
    for n in range(5):
        for index in first.take(3):
            first.saw(IDS[index], [n % 2 == 0, True])
    second.load(first.state())
    assert [second.take(4) for _ in range(6)] == [first.take(4) for _ in range(6)]


def test_examples_that_teach_are_taken_more_often():
    one = make(solved_share=0.1, failed_share=0.2)
    for n, name in enumerate(IDS):
        one.saw(name, {0: [True] * 4, 1: [False] * 4}.get(n, [True, False, True, False]))
    counts = Counter(index for _ in range(2000) for index in one.take(1))
    mixed = sum(counts[n] for n in range(2, 10)) / 8
    assert counts[0] / mixed == pytest.approx(0.1, rel=0.4)
    assert counts[1] / mixed == pytest.approx(0.2, rel=0.4)


def test_a_pass_rate_forgets():
    one = make(half_life=1.0)
    one.saw("n-0", [False] * 4)
    assert one.pass_rate("n-0") == 0
    for _ in range(6):
        one.saw("n-0", [True] * 4)
    assert one.pass_rate("n-0") == pytest.approx(1, abs=0.02)
    assert [one.pass_rate(f"n-{n}") for n in range(1, 10)] == [None] * 9


def test_a_refill_takes_none_twice_as_long_as_there_are_others():
    one = make()
    taken = one.take(6)
    assert not set(one.take(4, taken)) & set(taken)
    assert len(set(one.take(10))) == 10


def test_a_group_without_scores_says_nothing():
    one = make()
    one.saw("n-0", [])
    assert one.pass_rate("n-0") is None


def test_the_state_of_other_examples_is_refused():
    with pytest.raises(UserError, match="'n-77'"):
        make().load({"place": 3, "seen": {"n-77": [1.0, 1.0]}})
