"""When a training counts as collapsed, and when it only learns slowly."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rft import config, reports
from rft.trainer import collapse
from rft.trainer.collapse import Guard, Level, Start
from rft.trainer.collect import Group
from rft.types import Example, GradeStatus, Scored, StopReason, Trajectory, Unscored

START = Start(Level(0.6, 0.35), Level(0.9, 0.3), Level(0.7, 0.45))
NUM, SIZE = 8, 8


def group(rewards: list[float | None], ended: bool = True) -> Group:
    """A group whose rollouts ended by themselves, or at a limit."""
    reason = StopReason.completed if ended else StopReason.max_turns
    played = [
        Trajectory(f"r-{n}", "e", (), reason, Scored(reward), reward)
        if reward is not None
        else Trajectory(f"r-{n}", "e", (), StopReason.tool_error, Unscored(GradeStatus.infra_error), None)
        for n, reward in enumerate(rewards)
    ]
    return Group(Example("e", (), None), tuple(played))


def step(mean: float, num: int = NUM, ended: bool = True) -> list[Group]:
    return [group([mean] * SIZE, ended) for _ in range(num)]


def drawn(rng: np.random.Generator, mean: float, num: int = NUM) -> list[Group]:
    """Groups of examples that are solved sometimes, with a spread between them of about 0.35."""
    odds = rng.beta(mean, 1 - mean, num) if 0 < mean < 1 else [mean] * num
    return [group((rng.random(SIZE) < share).astype(float).tolist()) for share in odds]


def test_a_reward_far_below_the_baseline_is_a_collapse():
    """What a newcomer saw: 0.618 before, 0.066 within six steps."""
    guard = Guard(0.0, START)
    assert guard.saw(step(0.5), 0) == ""
    messages = [guard.saw(step(0.066), n) for n in (1, 2, 3)]
    assert messages[0] == "", "one step of eight groups may be unlucky"
    assert messages[1] == "the mean reward of the last 2 steps is 0.066; before training it was 0.600"


def test_a_reward_far_below_its_own_best_is_a_collapse():
    guard = Guard(0.0, Start(Level(0.2, 0.2), Level(1.0, 0.0), None))
    assert not any(guard.saw(step(0.9), n) for n in range(5))
    assert "at its best it was 0.900" in guard.saw(step(0.2), 5)


def test_a_policy_that_no_longer_ends_by_itself_has_collapsed():
    """Where little is earned, rewards alone would take long to tell."""
    low = Start(Level(0.05, 0.1), Level(0.95, 0.2), None)
    guard = Guard(0.0, low)
    assert "ended 0% of the rollouts of the last step by itself; before training, 95%" in guard.saw(
        step(0.0, ended=False), 0
    )
    assert Guard(0.0, low).saw(step(0.4, ended=False), 0) == "", "it earns more: it learned to play on"


@pytest.mark.parametrize("low", [-1.0, 0.0, 10.0])
def test_rewards_count_from_the_low_end_of_the_range(low: float):
    guard = Guard(low, START)
    assert not any(guard.saw(step(low + 0.5), n) for n in range(20))
    assert guard.saw(step(low), 20) or guard.saw(step(low), 21)


def test_unscored_rollouts_say_nothing():
    guard = Guard(0.0, START)
    assert guard.saw([group([None] * SIZE)] * NUM, 0) == ""
    assert guard.steps == []


def test_without_a_baseline_the_first_step_is_the_reference():
    guard = Guard(0.0, None)
    rng = np.random.default_rng(0)
    assert guard.saw(drawn(rng, 0.6), 0) == ""
    assert guard.start is not None
    assert any(guard.saw(step(0.0), n) for n in range(1, 6))


@pytest.mark.parametrize("start", [None, START])
def test_one_hard_example_after_easy_ones_is_not_a_collapse(start: Start | None):
    """With one example a step, a step says little, and five easy ones have no spread."""
    guard = Guard(0.0, start)
    assert not any(guard.saw(step(1.0, num=1), n) for n in range(12))
    assert not any(guard.saw(step(0.0, num=1), n) for n in (12, 13))
    assert guard.checked([1.0] * 4) == guard.checked([0.0] * 4) == ""
    assert any(guard.saw(step(0.0, num=1), n) for n in range(14, 24)), "ten in a row are one"


def test_a_validation_far_below_the_greedy_baseline_is_a_collapse():
    guard = Guard(0.0, START)
    assert guard.checked([1.0] * 16 + [0.0] * 16) == ""
    assert guard.checked([0.0] * 32) == "the validation reward is 0.000; it was 0.700"


def test_what_was_sampled_by_weights_that_are_given_up_says_nothing():
    """With a lag, batches of the old weights still arrive."""
    guard = Guard(0.0, START)
    guard.fall(reports.Fall(step=7, reason="", back_to=0, lr=1e-4))
    assert guard.saw(step(0.0), 6) == ""
    assert guard.steps == []
    assert guard.saw(step(0.0), 7)


@pytest.mark.parametrize("mean", [0.05, 0.2, 0.5, 0.8])
def test_a_policy_that_learns_nothing_is_hardly_ever_taken_for_one_that_collapsed(mean: float):
    """100 trainings of 80 steps that stay where they began: none is stopped."""
    rng = np.random.default_rng(1)
    level = Level(mean, float(np.sqrt(mean * (1 - mean) * (0.5 + 0.5 / SIZE))))
    stopped = 0
    for _ in range(100):
        guard = Guard(0.0, Start(level, Level(1.0, 0.0), None))
        odds = rng.beta(mean, 1 - mean, (80, NUM))
        means = rng.binomial(SIZE, odds) / SIZE
        for rewards in means:
            guard.steps = [*guard.steps, collapse.Seen(rewards.tolist(), [1.0] * NUM)][-collapse.REMEMBERED :]
            if guard.fallen():
                stopped += 1
                break
    assert stopped == 0


@pytest.mark.parametrize("mean", [0.3, 0.5, 0.8])
def test_a_collapse_is_noticed_within_ten_steps(mean: float):
    rng = np.random.default_rng(2)
    level = Level(mean, float(np.sqrt(mean * (1 - mean) * (0.5 + 0.5 / SIZE))))
    for _ in range(20):
        guard = Guard(0.0, Start(level, Level(1.0, 0.0), None))
        assert any(guard.saw(drawn(rng, mean / 20), n) for n in range(10))


def test_its_state_goes_through_a_file():
    guard = Guard(0.0, START)
    for n in range(6):
        guard.saw(step(0.7), n)
    guard.checked([0.5] * 8)
    guard.fall(reports.Fall(step=6, reason="fell", back_to=2, lr=1e-4))
    guard.saw(step(0.7), 6)
    again = Guard(0.0, None)
    again.load(json.loads(json.dumps(guard.state())))
    assert again == guard
    assert again.scale == 0.1
    fresh = Guard(0.0, START)
    fresh.load({})
    assert fresh == Guard(0.0, START), "a checkpoint of an earlier version has no state of it"


def test_the_best_checkpoint_is_the_one_whose_weights_earned_most():
    curve = [0.3, 0.4, 0.5, 0.8, 0.9, 0.7, 0.1, 0.0]
    rows = [{"step": n, "lag": 0, "reward/mean": reward} for n, reward in enumerate(curve, 1)]
    assert collapse.best(rows, [2, 4, 6]) == 2  # steps 3, 4, 5 earned 0.73; 5, 6, 7 earned 0.57
    assert collapse.best(rows, [6]) == 0
    assert collapse.best([], [2, 4]) == 0


def test_the_words_name_the_learning_rate_first():
    section = config.Train(lr=3e-2)
    falls = [reports.Fall(step=2, reason="a", back_to=0, lr=3e-3)]
    text = collapse.describe(section, 5, "the mean reward fell", falls)
    assert "with train.lr lowered from 0.03 to 0.003: the mean reward fell" in text
    assert text.index("--set train.lr=0.0003") < text.index("train.examples_per_step is 8") < text.index("kl.beta")
