"""The hours that the doctor names before a run, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft import config, threads
from rft.doctor import hours
from rft.doctor.capacity import rollouts_by_stage
from rft.doctor.hours import Speed, Typical
from tests.ladder import params

SPEED = Speed(decoded=50.0, learned=400.0)


@pytest.fixture
def settings(ladder_recipe: Path) -> config.Params:
    """4 steps of 4 x 4 rollouts; a turn has at most 24 tokens, a rollout 3 turns and 200 tokens."""
    return params(ladder_recipe)


def test_sampling_takes_the_tokens_that_the_policy_writes(settings: config.Params):
    counts = rollouts_by_stage(settings)
    found = hours.by_stage(settings, SPEED, Typical(own=10, whole=100))
    assert found.keys() == counts.keys() >= {"baseline", "prompt", "challenger"}
    for stage in ("baseline", "prompt", "challenger"):
        assert found[stage] == pytest.approx((counts[stage] * 10 / 50, counts[stage] * 3 * 24 / 50))


def test_training_also_takes_forward_and_backward_over_all_tokens(settings: config.Params):
    count = rollouts_by_stage(settings)["train"]
    typical, most = hours.by_stage(settings, SPEED, Typical(own=10, whole=100))["train"]
    assert typical == pytest.approx(count * 10 / 50 + 4 * 4 * 4 * 100 / 400)
    assert most == pytest.approx(count * 72 / 50 + 4 * 4 * 4 * 200 / 400)


def test_demonstrations_longer_than_the_limits_are_cut_at_them(settings: config.Params):
    for typical, most in hours.by_stage(settings, SPEED, Typical(own=9_000, whole=90_000)).values():
        assert typical == most


def test_a_server_has_its_own_speed(ladder_recipe: Path):
    server = {"kind": "vllm", "url": "http://127.0.0.1:1", "model": "m"}
    settings = params(ladder_recipe, policy={"model": "some/model", "server": server})
    assert hours.by_stage(settings, SPEED, Typical(10, 100)) == {}
    assert hours.describe({}) == ""


@pytest.mark.parametrize(
    ("pressure", "more"), [("0.00", ""), ("90.00", "; slowed by other work, which had the processors too")]
)
def test_both_answers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pressure: str, more: str):
    monkeypatch.setattr(threads, "PRESSURE", tmp_path / "cpu")
    threads.PRESSURE.write_text(f"some avg10=0.00 avg60={pressure} avg300=0.00 total=1\n")
    told = hours.describe({"train": (1200.0, 12_600.0)})
    assert told == f"; train about 20 min (at most 3.5 h), tools and graders not counted{more}"
