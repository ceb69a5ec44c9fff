"""SFT samples: in which order they come, what their tokens weigh, and that the learner's loss is
the weighted mean that the formula says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rft import config, files
from rft.trainer.learner import Learner
from rft.trainer.packing import TrainingSample
from rft.trainer.sft_samples import STRIDE, Order, SftSample, samples
from rft.trainer.supervised import counted
from tests import small_learner

ROOT = Path(__file__).parents[2]


def some(count: int, seed: int = 0) -> list[SftSample]:
    draw = np.random.default_rng(seed)
    found: list[SftSample] = []
    for _ in range(count):
        length = int(draw.integers(8, 40))
        ids = draw.integers(2, small_learner.VOCABULARY, length).tolist()
        loss_mask = (draw.random(length) < 0.4).tolist()
        loss_mask[0], loss_mask[-1] = False, True
        found.append(SftSample(ids, loss_mask))
    return found


def test_any_step_of_an_order_is_the_same_as_in_sequence():
    sft_samples = some(50)
    in_order = Order(sft_samples, 4, 40, seed=3, short_first=True)
    sequence = [in_order.at(step) for step in range(1, 41)]
    assert [Order(sft_samples, 4, 40, seed=3, short_first=True).at(step) for step in range(1, 41)] == sequence
    assert in_order.at(7) == sequence[6]
    assert [Order(sft_samples, 4, 40, seed=4, short_first=True).at(step) for step in range(1, 41)] != sequence


def test_the_first_quarter_sees_the_shortest_third():
    sft_samples = some(60)
    order = Order(sft_samples, 4, 40, seed=0, short_first=True)
    longest = sorted(len(sft_sample.ids) for sft_sample in sft_samples)[19]
    early = [sft_sample for step in range(1, 11) for sft_sample in order.at(step)]
    late = [sft_sample for step in range(11, 41) for sft_sample in order.at(step)]
    assert max(len(sft_sample.ids) for sft_sample in early) <= longest < max(len(sft_sample.ids) for sft_sample in late)
    assert {id(sft_sample) for sft_sample in late} == {id(sft_sample) for sft_sample in sft_samples}


@pytest.mark.parametrize("short_first", [False, True])
def test_a_batch_holds_all_lengths(short_first: bool):
    """Dialogues of one length are of one kind: the last batches would decide what is learned."""
    short, long = [SftSample([1] * 8, [False] * 7 + [True])] * 100, [SftSample([1] * 30, [False] * 29 + [True])] * 100
    first = 13 if short_first else 1  # the quarter of 48 steps that sees the shortest third ends here
    order = Order([*short, *long], 10, 48, seed=0, short_first=short_first)
    epoch = [order.at(step) for step in range(first, first + 20)]
    assert sum(len(sft_sample.ids) == 8 for batch in epoch for sft_sample in batch) == 100
    assert all(1 <= sum(len(sft_sample.ids) == 8 for sft_sample in batch) <= 9 for batch in epoch)


def test_every_other_token_is_learned_once_in_four_steps():
    [sft_sample] = some(1)
    given = [samples([sft_sample], step, 0.1)[0] for step in range(1, STRIDE + 1)]
    places = [place for sample in given for place in sample.others]
    assert sorted(places) == [n for n in range(1, len(sft_sample.ids) - 1) if not sft_sample.loss_mask[n]]
    assert {sample.other_weight for sample in given} == {0.4}
    assert samples([sft_sample], 1, 0.0)[0].others == ()


def direct(network: torch.nn.Module, given: list[TrainingSample]) -> tuple[float, float]:
    """The weighted mean over all tokens, and the mean over completion tokens, one by one."""
    total = weight = own = 0.0
    for sample in given:
        with torch.no_grad():
            logprobs = torch.log_softmax(network(torch.tensor([sample.ids])).logits[0].float(), -1)
        for place in range(1, len(sample.ids)):
            value = -logprobs[place - 1, sample.ids[place]].item()
            share = 1.0 if sample.loss_mask[place] else sample.other_weight * (place in sample.others)
            total, weight = total + share * value, weight + share
            own += value * sample.loss_mask[place]
    return total / weight, own / sum(sample.num_own for sample in given)


@pytest.mark.parametrize("changes", [{}, {"microbatch_tokens": 64}, {"packing": True}])
def test_the_loss_is_the_weighted_mean_however_it_is_cut(changes: dict[str, int]):
    section = {"algorithm": "supervised", "source": "demonstrations", "weights": "full", "lr": 1e-4} | changes
    learner = Learner(small_learner.network(), config.Train(**section), 8, small_learner.CPU)
    given = samples(some(12), 2, 0.1)
    loss, nll = direct(small_learner.network(), given)
    told = learner.update(given, counted(given))
    assert told["loss"] == pytest.approx(loss, rel=1e-4)
    assert told["nll"] == pytest.approx(nll, rel=1e-4)
    assert not {"logprob_mismatch", "mismatch_kl"} & set(told)
    assert learner.update(given, counted(given))["loss"] < told["loss"]


DIES = """
import os, signal, sys
from pathlib import Path
from rft.trainer.learner import Learner
from tests import ladder
update = Learner.update
def dies(self, *given):
    if self.num_updates == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, *given)
Learner.update = dies
warm = {"demonstrations": 32, "steps": 12, "batch": 4, "checkpoint_every": 5}
policy = {"architecture": ladder.SECTIONS["policy"]["architecture"], "warm_start": warm}
ladder.run("policy", ladder.params(Path(sys.argv[1]), policy=policy))
"""


@pytest.mark.slow
def test_a_warm_start_that_is_killed_with_9_ends_with_the_same_bytes(tmp_path: Path, ladder_recipe: Path):
    def run(name: str, dies_at: int) -> int:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", DIES, str(ladder_recipe), str(dies_at)]
        return subprocess.run(command, cwd=folder, env=environment, check=False, stdout=subprocess.DEVNULL).returncode

    assert run("whole", -1) == 0
    assert [run("killed", 8), run("killed", -1)] == [-signal.SIGKILL, 0]
    assert files.tree_sha256(tmp_path / "killed/data/policy") == files.tree_sha256(tmp_path / "whole/data/policy")
