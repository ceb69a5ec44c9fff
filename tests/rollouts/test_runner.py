"""A stage that is cut off between two rollouts: what was finished stays, and only what is missing
is rolled out when it is started again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rft import config, recipe
from rft.rollouts import log as rollout_log
from rft.rollouts import recovery
from rft.rollouts.loop import Conditions, Request
from rft.rollouts.policy import PolicyFailed
from rft.rollouts.recovery import Played
from rft.rollouts.runner import Plan, RolloutRunner, Times, Waiting, rollout_runner
from rft.rollouts.store import RolloutStore, read
from rft.types import Sampled, Trajectory
from tests import tiny_recipe
from tests.rollouts.test_log import DONE, EXAMPLE, UNSCORED
from tests.rollouts.test_loop import PROMPT
from tests.scripted_policy import CALL, Scripted, ScriptedTurn

PLAN = Plan("baseline", "champion", PROMPT, 1.0, 2, 0)
ANSWER = (CALL % " {key}", "0000")


class CutOff(Exception):
    """Stands for a kill: it stops the batch at once."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutRunner]:
    params = tiny_recipe.params(
        tiny_recipe.make(tmp_path_factory.mktemp("recipe")), rollout={"batch": 6, "max_turns": 4}
    )
    with rollout_runner(params, recipe.load(params.recipe)) as one:
        yield one


def policy(cut: int | None = None, blocks: bool = False) -> Scripted:
    """Its `cut`-th dialogue ends the stage, well after its neighbours have their grades."""
    return Scripted(
        ANSWER, blocks=blocks, choose=lambda n: (ScriptedTurn("", takes_s=0.0, fails=CutOff()),) if n == cut else ANSWER
    )


class Patient(Scripted):
    """Cuts off when so many rollouts are on the disk: no clock is asked."""

    def __init__(self, folder: Path, after: int):
        super().__init__(ANSWER)
        self.folder, self.after = folder, after

    def open(self, *given: Any) -> list[Any]:
        dialogues = super().open(*given)
        dialogues[-1].sample = self._cut  # type: ignore[method-assign]
        return dialogues

    async def _cut(self, max_new: int, deadline_s: float) -> Sampled:
        while len(read(self.folder)) < self.after:
            await asyncio.sleep(0.01)
        raise CutOff


def measure(runner: RolloutRunner, folder: Path, policy: Scripted) -> list[rollout_log.LogRow]:
    with RolloutStore(folder) as store:
        return runner.measure(
            policy, runner.recipe.examples("validation", 6, 0), PLAN, store, lambda done, message: None
        )


def bare(rows: Sequence[rollout_log.LogRow]) -> list[tuple[Any, ...]]:
    return [(row.example_id, row.sample, row.rollout_id, row.reward, row.messages, row.left_out) for row in rows]


def test_without_a_barrier_each_finished_rollout_stays(runner: RolloutRunner, tmp_path: Path):
    whole = measure(runner, tmp_path / "whole", undisturbed := policy())
    assert undisturbed.opened == 12
    with pytest.raises(CutOff):
        measure(runner, tmp_path / "cut", Patient(tmp_path / "cut", after=5))
    there = read(tmp_path / "cut")
    assert [row.left_out for row in there] == ["in progress"] * 5
    rows = measure(runner, tmp_path / "cut", again := policy())
    assert again.opened == 12 - 5
    assert bare(rows) == bare(read(tmp_path / "cut")) == bare(whole)
    assert {row.temperature for row in rows} == {1.0}
    rows = measure(runner, tmp_path / "cut", once_more := policy())
    assert (bare(rows), once_more.opened) == (bare(whole), 0)


def test_a_row_is_made_once(runner: RolloutRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    real = rollout_log.row

    def row(trajectory: Trajectory, *more: Any, **named: Any) -> rollout_log.LogRow:
        made.append(trajectory.rollout_id)
        return real(trajectory, *more, **named)

    monkeypatch.setattr(rollout_log, "row", row)
    rows = measure(runner, tmp_path, policy())
    assert sorted(made) == sorted(one.rollout_id for one in rows)


def test_how_long_an_outage_held_a_rollout_up_is_in_no_latency(tmp_path: Path):
    """R14: the gate's P95 latency and the page's seconds read these."""
    times = Times()
    rows = [
        rollout_log.row(one, EXAMPLE, n, PROMPT, "challenger", "champion")
        for n, one in enumerate([DONE, UNSCORED, DONE])
    ]
    times.add("challenger/champion/sampled", rows, [1.0, 600.0, 2.0])
    times.add("challenger/champion/greedy", rows[1:2], [600.0])
    times.write(tmp_path / "timing.json")
    told = json.loads((tmp_path / "timing.json").read_text())
    assert told["rollout_s"] == {"challenger/champion/sampled": {"p50": 1.0, "p95": 2.0, "n": 2}}
    assert told["threads"] == torch.get_num_threads(), "they decide the last digits"


def test_behind_the_barrier_a_batch_is_the_unit(runner: RolloutRunner, tmp_path: Path):
    whole = measure(runner, tmp_path / "whole", policy(blocks=True))
    with pytest.raises(CutOff):
        measure(runner, tmp_path / "cut", policy(cut=8, blocks=True))
    assert len(read(tmp_path / "cut")) == 6, "the first batch"
    rows = measure(runner, tmp_path / "cut", again := policy(blocks=True))
    assert again.opened == 6
    assert bare(rows) == bare(whole)


def steps(
    runner: RolloutRunner, store: RolloutStore, policy: Scripted, whole: Callable[[int], bool] = lambda step: True
) -> list[Played]:
    """As training does: two batches a step, whose rows are known at its end."""
    played: list[Played] = []
    for step in (1, 2):
        conditions = Conditions(PROMPT, 1.0, (0, 1, step), runner.params.rollout, "train", "train", step)
        requests = [
            Request(example, sample) for example in runner.recipe.examples("train", 4, step) for sample in range(3)
        ]
        waiting = Waiting(store, f"step {step}", "challenger")
        mine = [runner.run(policy, requests[start : start + 6], conditions, "train", waiting) for start in (0, 6)]
        played += mine
        pairs = list(zip(requests, [one for batch in mine for one in batch.trajectories], strict=True))
        rows = [
            rollout_log.row(one, given.example, given.sample, PROMPT, "train", "challenger", step, "train")
            for given, one in pairs
        ]
        if whole(step):
            store.add_all(
                [replace(row, trained=True) for row in rows], [one.wall_s for _, one in pairs], f"step {step}"
            )
    return played


@pytest.mark.parametrize("blocks", [False, True])
def test_a_step_that_was_not_over_goes_on_with_the_same_trajectories(
    runner: RolloutRunner, tmp_path: Path, blocks: bool
):
    with RolloutStore(tmp_path) as store:
        first = steps(runner, store, policy(blocks=blocks), whole=lambda step: step == 1)
        assert (len(store), len(store.held("step 2"))) == (12, 12)
    with RolloutStore(tmp_path) as store:
        store.reopen(lambda row: row.step > 0)  # there was no checkpoint
        assert len(store) == 0
        again = steps(runner, store, nobody := policy(blocks=blocks))
        assert nobody.opened == 0
        assert again == first
        assert [row.left_out for row in store] == [""] * 24
    assert len({row.rollout_id for row in read(tmp_path)}) == 24


def test_the_disk_is_no_business_of_the_event_loop(
    runner: RolloutRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rollouts that finish while one write is under way share the next; a write that fails ends the
    stage."""
    held: list[int] = []
    free = threading.Event()
    real = RolloutStore.hold

    def slow(store: RolloutStore, rows: Sequence[rollout_log.LogRow], *more: Any) -> None:
        held.append(len(rows))
        assert free.wait(30)
        real(store, rows, *more)

    monkeypatch.setattr(RolloutStore, "hold", slow)
    original = runner._grader.grade
    graded = 0

    async def grade(*given: Any) -> Any:
        nonlocal graded
        found = await original(*given)
        graded += 1
        if graded == 6:
            free.set()
        return found

    monkeypatch.setattr(runner._grader, "grade", grade)
    with RolloutStore(tmp_path / "a") as store:
        runner.run(
            policy(),
            [Request(one, 0) for one in runner.recipe.examples("train", 6, 0)],
            _conditions(runner),
            "train",
            Waiting(store, "b", "x"),
        )
        assert len(store.held("b")) == 6
    assert sum(held) == 6
    assert len(held) <= 3, "five of six were graded while the first write was under way"

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RolloutStore, "hold", full)
    with RolloutStore(tmp_path / "b") as store, pytest.raises(OSError, match="No space left"):
        runner.run(
            policy(),
            [Request(one, 0) for one in runner.recipe.examples("train", 6, 0)],
            _conditions(runner),
            "train",
            Waiting(store, "b", "x"),
        )


def test_a_rollout_opens_with_the_format_of_its_answer(runner: RolloutRunner):
    seen: list[tuple[str, Any]] = []

    class Seeing(Scripted):
        def open(self, openings: Any, *given: Any) -> list[Any]:
            seen.extend((one.example_id, one.response_format) for one in openings)
            return super().open(openings, *given)

    configured, own = {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
    first, second = runner.recipe.examples("train", 2, 0)
    requests = [Request(first, 0), Request(replace(second, response_format=own), 0)]
    runner.run(
        Seeing(ANSWER),
        requests,
        replace(_conditions(runner), limits=config.Rollout(response_format=configured)),
        "train",
    )
    assert seen == [(first.id, configured), (second.id, own)]


@pytest.mark.parametrize(
    ("failing", "share", "again"),
    [
        (range(1), 0.5, 1),  # a refill
        (range(6), 0.1, 12),  # an outage: six are tried, then all six
    ],
)
def test_what_is_played_again_is_counted_apart(
    runner: RolloutRunner, monkeypatch: pytest.MonkeyPatch, failing: range, share: float, again: int
):
    """Progress once said: 112 of 64 rollouts."""
    monkeypatch.setattr(recovery, "FIRST_PAUSE_S", 0.01)
    told: list[str] = []
    monkeypatch.setattr("rft.progress.within", lambda stage, message: told.append(message))
    down = (ScriptedTurn("", fails=PolicyFailed("down")),)
    ill = Scripted(ANSWER, choose=lambda n: down if n in failing else ANSWER)
    limits = config.Rollout(max_turns=4, max_unscored_share=share)
    requests = [Request(one, 0) for one in runner.recipe.examples("train", 6, 0)]
    runner.run(ill, requests, replace(_conditions(runner), limits=limits), "train")
    assert told[-1].startswith(f"sampling: 6 of 6 rollouts and {again} played again, ")


def _conditions(runner: RolloutRunner) -> Conditions:
    return Conditions(PROMPT, 1.0, (0,), config.Rollout(max_turns=4), "train", "train", 1)
