"""Samples in one row: each sees itself only, and what two begin with is computed once. Exactly
equal to each sample alone, gradients included."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rft.trainer.logprobs import own_logprobs
from rft.trainer.packing import (
    TrainingSample,
    bundles,
    layout,
    microbatches,
    num_sharing,
    share,
    trees,
    why_none,
    widest,
    width,
)
from tests.small_learner import CPU, network, samples

some_ids = st.lists(st.integers(0, 3), min_size=2, max_size=8)


def sample(ids: list[int], pair: int = -1) -> TrainingSample:
    return TrainingSample(ids, [False] + [True] * (len(ids) - 1), [0.0] * (len(ids) - 1), 1.0, pair=pair)


@pytest.mark.parametrize("shape", ["one row", "rows of trees", "side by side"])
def test_log_probabilities_and_gradients_are_those_of_each_sample_alone(shape: str):
    policy, given_samples = network(), samples(groups=3, size=4)
    given_samples.append(replace(given_samples[0]))  # one that is there twice
    given_samples.append(sample([3, 4]))  # one that shares nothing
    rows = {
        "one row": [given_samples],
        "rows of trees": trees(given_samples, 40, 64),
        "side by side": [[one] for one in given_samples],
    }[shape]
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
    prompt = group[0].loss_mask.index(True)
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
    given_samples = [
        sample(ids, pair=n // 2 if n % 4 < 2 and n // 2 * 2 + 1 < len(all_ids) else -1) for n, ids in enumerate(all_ids)
    ]
    batches = microbatches(given_samples, most, 64 if packed else None)
    flat = [[one for row in rows for one in row] for rows in batches]
    assert sorted(id(one) for one in chain(*flat)) == sorted(map(id, given_samples))
    for batch in flat:
        for bundle in bundles(given_samples):
            assert sum(any(one is other for other in batch) for one in bundle) in (0, len(bundle))
    for rows in batches:
        assert len(bundles([one for row in rows for one in row])) == 1 or max(map(width, rows)) * len(rows) <= most


@given(st.lists(some_ids, min_size=1, max_size=12), st.integers(1, 4))
def test_shares_of_processes_are_a_partition(all_ids: list[list[int]], size: int):
    given_samples = [
        sample(ids, pair=n // 2 if 2 * (n // 2) + 1 < len(all_ids) else -1) for n, ids in enumerate(all_ids)
    ]
    parts = [share(given_samples, rank, size) for rank in range(size)]
    assert sorted(id(one) for one in chain(*parts)) == sorted(map(id, given_samples))
    assert all(
        len(one) == len(other)
        for part in parts
        for one in bundles(part)
        for other in bundles(given_samples)
        if one[0] in other
    )


def test_shares_are_about_equal_in_tokens():
    given_samples = samples(groups=6, size=4)
    parts = [sum(len(one.ids) for one in share(given_samples, rank, 3)) for rank in range(3)]
    assert max(parts) - min(parts) <= 2 * max(len(one.ids) for one in given_samples)


def alike(prompt: int, rest: int, count: int = 4) -> list[TrainingSample]:
    """Rollouts with one prompt."""
    draw = np.random.default_rng(0)
    begin = draw.integers(2, 40, prompt).tolist()
    return [
        TrainingSample(begin + draw.integers(2, 40, rest).tolist(), [False] * prompt + [True] * rest, [0.0] * rest, 1.0)
        for _ in range(count)
    ]


def lengths(given_samples: list[TrainingSample], most: int, hidden: float) -> list[int]:
    """Samples in each row."""
    return sorted(len(row) for rows in microbatches(given_samples, most, hidden) for row in rows)


def test_a_long_prompt_is_shared_too():
    """R21: nothing was, once a row would pass 350 tokens. Now a row is as wide as pays in this
    model, and as microbatch_tokens allows."""
    long, very_long = alike(900, 60), alike(6000, 300)
    assert [lengths(long, 4096, hidden) for hidden in (128, 1024)] == [[4], [4]]
    assert lengths(long, 1024, 1024) == [2, 2]
    assert [lengths(very_long, 8192, hidden) for hidden in (128, 2560)] == [[4], [4]]
    assert lengths(very_long, 4096, 2560) == [1, 1, 1, 1]


@given(st.integers(1, 4000), st.integers(1, 100), st.integers(2, 8))
def test_where_attention_is_computed_by_branches_a_group_computes_its_prompt_once(prompt: int, rest: int, count: int):
    group = alike(prompt, rest, count)
    one = prompt + count * rest
    assert lengths(group, one, math.inf) == [count]
    others = [replace(sample, ids=sample.ids[::-1]) for sample in group]
    for rows in microbatches([*group, *others], one, math.inf):
        for row in rows:
            assert sum(any(sample is mine for mine in group) for sample in row) in (0, count), "a group is not cut"


def test_short_prompts_share_rows_of_350_tokens_in_the_embedded_policy():
    """As measured, and as the published runs were learned; a larger model's rows are wider."""
    short = alike(85, 60, 8)
    assert [widest(prompt, hidden) for prompt, hidden in ((0, 64), (85, 128), (175, 128), (85, 1024), (85, 2560))] == [
        350,
        350,
        350,
        2800,
        7000,
    ]
    assert lengths(short, 4096, 128) == [4, 4]
    assert lengths(short, 4096, 1024) == [8]


def test_rows_beyond_the_usual_width_hold_one_prompt():
    """What shares nothing gains nothing in a wide row."""
    one, other = alike(900, 60), [replace(sample, ids=sample.ids[::-1]) for sample in alike(900, 60)]
    assert lengths([*one, *other], 4096, 128) == [1, 1, 1, 1, 4]


def test_who_shares_is_counted():
    """A prompt in full, with another sample of the same row; not the few tokens that all prompts
    begin with."""
    group, other = alike(20, 5), replace(alike(20, 5, 1)[0], ids=[*alike(20, 5)[0].ids[:8], *range(17)])
    assert num_sharing([group]) == 4
    assert num_sharing([[*group[:2], other], group[2:3], group[3:]]) == 2
    assert num_sharing([[one] for one in group]) == num_sharing([]) == 0
    one, other = samples(groups=2, size=1)
    assert num_sharing([[one, other]]) == 0
    assert num_sharing([[group[0], replace(group[0])]]) == 2


@pytest.mark.parametrize(
    ("given_samples", "most", "hidden", "message"),
    [
        (alike(20, 400), 4096, 128, "take 818 tokens in a row, and here a row beyond 350 costs more"),
        (alike(900, 60), 512, 128, "train.microbatch_tokens is 512. Raise it to at least 1017"),
        (samples(groups=3, size=1), 4096, 128, "no two of them have the same prompt"),
        (alike(20, 5, 2), 4096, 128, "different rows or processes"),
    ],
)
def test_why_nothing_was_shared_is_said_with_the_remedy(
    given_samples: list[TrainingSample], most: int, hidden: int, message: str
):
    why = why_none(given_samples, most, hidden)
    assert message in why
    assert "train.packing: false" in why


def test_rows_are_bounded():
    assert all(width(row) <= 40 or len(row) == 1 for row in trees(samples(groups=4), 40, 64))
