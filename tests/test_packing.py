"""Samples in one row: each sees itself only, and what two begin with is computed once. Exactly equal to each sample alone, gradients included."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rft.trainer import samples as packing
from rft.trainer.samples import TrainingSample, bundles, layout, microbatches, share, trees, width
from rft.trainer.scoring import own_logprobs
from tests.small_learner import CPU, network, samples

some_ids = st.lists(st.integers(0, 3), min_size=2, max_size=8)


def sample(ids: list[int], pair: int = -1) -> TrainingSample:
    return TrainingSample(ids, [False] + [True] * (len(ids) - 1), [0.0] * (len(ids) - 1), 1.0, pair=pair)


@pytest.mark.parametrize("shape", ["one row", "rows of trees", "side by side"])
def test_log_probabilities_and_gradients_are_those_of_each_sample_alone(shape: str):
    policy, given_samples = network(), samples(groups=3, size=4)
    given_samples.append(replace(given_samples[0]))  # one that is there twice
    given_samples.append(sample([3, 4]))  # one that shares nothing
    rows = {"one row": [given_samples], "rows of trees": trees(given_samples, 40), "side by side": [[one] for one in given_samples]}[shape]
    planned = layout(rows, CPU)
    weight_N = torch.linspace(-1, 1, len(planned.ids_N))

    together = own_logprobs(policy, planned, 0.7).logprobs_N
    (together * weight_N).sum().backward()
    found = [parameter.grad.clone() for parameter in policy.parameters()]

    policy.zero_grad()
    apart = [own_logprobs(policy, layout([[one]], CPU), 0.7).logprobs_N for one in planned.samples]
    (torch.cat(apart) * weight_N).sum().backward()
    torch.testing.assert_close(together, torch.cat(apart), rtol=0, atol=1e-5)
    for mine, parameter in zip(found, policy.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-5, atol=1e-5)


def test_a_group_in_a_row_holds_its_prompt_once():
    group = samples(groups=1, size=4)
    prompt = group[0].mine.index(True)
    rest = sum(len(one.ids) - 1 - prompt for one in group)
    assert width(group) <= prompt + rest < sum(len(one.read) for one in group)


@given(st.lists(some_ids, min_size=1, max_size=6))
def test_a_token_sees_its_own_past_and_nothing_else(all_ids: list[list[int]]):
    row = [sample(ids) for ids in all_ids]
    planned = layout([row], CPU)
    ids, seen = planned.ids_RT[0], planned.mask_RTT
    for n, one in enumerate(row):
        for place, predictor in enumerate(planned.predictor_N[planned.row_N == n].tolist()):
            past = torch.arange(predictor + 1) if seen is None else seen[0, predictor].nonzero().squeeze(1)
            assert ids[past].tolist() == one.ids[: place + 1]
            assert planned.positions_RT[0, past].tolist() == list(range(place + 1))


@given(st.lists(some_ids, min_size=1, max_size=12), st.integers(8, 40), st.booleans())
def test_every_sample_is_in_one_microbatch_and_pairs_stay_together(all_ids: list[list[int]], most: int, packed: bool):
    given_samples = [sample(ids, pair=n // 2 if n % 4 < 2 and n // 2 * 2 + 1 < len(all_ids) else -1) for n, ids in enumerate(all_ids)]
    batches = microbatches(given_samples, most, packed)
    flat = [[one for row in rows for one in row] for rows in batches]
    assert sorted(id(one) for one in chain(*flat)) == sorted(map(id, given_samples))
    for batch in flat:
        for bundle in bundles(given_samples):
            assert sum(any(one is other for other in batch) for one in bundle) in (0, len(bundle))
    for rows in batches:
        assert len(bundles([one for row in rows for one in row])) == 1 or max(map(width, rows)) * len(rows) <= most


@given(st.lists(some_ids, min_size=1, max_size=12), st.integers(1, 4))
def test_shares_of_processes_are_a_partition(all_ids: list[list[int]], size: int):
    given_samples = [sample(ids, pair=n // 2 if 2 * (n // 2) + 1 < len(all_ids) else -1) for n, ids in enumerate(all_ids)]
    parts = [share(given_samples, rank, size) for rank in range(size)]
    assert sorted(id(one) for one in chain(*parts)) == sorted(map(id, given_samples))
    assert all(len(one) == len(other) for part in parts for one in bundles(part) for other in bundles(given_samples) if one[0] in other)


def test_shares_are_about_equal_in_tokens():
    given_samples = samples(groups=6, size=4)
    parts = [sum(len(one.ids) for one in share(given_samples, rank, 3)) for rank in range(3)]
    assert max(parts) - min(parts) <= 2 * max(len(one.ids) for one in given_samples)


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "ROW_TOKENS", 40)
    assert all(width(row) <= 40 or len(row) == 1 for row in trees(samples(groups=4), 4096))
