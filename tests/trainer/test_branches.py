"""Attention a branch at a time is attention under the row's mask, gradients included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from rft.trainer.branches import Branches
from rft.trainer.packing import TrainingSample, layout
from tests.small_learner import CPU

HEADS, DIM = 2, 4
ROWS = st.lists(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=24), min_size=1, max_size=5), min_size=1)


def sample(ids: list[int]) -> TrainingSample:
    return TrainingSample(ids, [False] + [True] * (len(ids) - 1), [0.0] * (len(ids) - 1), 1.0)


@pytest.mark.slow
@given(ROWS.filter(lambda rows: any(len(row) > 1 for row in rows)), st.booleans())
@settings(deadline=None)
def test_outputs_and_gradients_are_those_under_the_mask(rows: list[list[list[int]]], all_of_it: bool):
    planned = layout([[sample(ids) for ids in row] for row in rows], CPU)
    assert planned.end_RT is not None
    assert planned.mask_RTT is not None
    size = (*planned.ids_RT.shape, HEADS, DIM)
    q, k, v = (torch.randn(size, dtype=torch.float64, requires_grad=True) for _ in range(3))
    read_M = torch.arange(planned.ids_RT.numel()) if all_of_it else torch.unique(planned.predictor_N)

    asked = q.flatten(0, 1)[read_M]
    found = Branches(planned.end_RT, None if all_of_it else read_M)(asked, k, v)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    whole = functional.scaled_dot_product_attention(*turned[:3], attn_mask=planned.mask_RTT[:, None])
    expected = whole.transpose(1, 2).flatten(0, 1)[read_M].flatten(1)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    mine = torch.autograd.grad((found * weight).sum(), (q, k, v), retain_graph=True)
    theirs = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("completion", [40, 200])
def test_a_shared_prompt_is_no_key_of_another_completions_queries(completion: int):
    """What attention reads grows with the completions, not with the row's square."""
    prompt = list(range(3, 400))
    group = [sample([*prompt, n, *[1] * completion]) for n in range(8)]
    planned = layout([group], CPU)
    assert planned.end_RT is not None
    held = Branches(planned.end_RT)._alike
    pairs = sum(alike.asks_BQ.numel() * alike.path_BK.shape[1] for alike in held)
    assert pairs == len(prompt) ** 2 + 8 * completion * (len(prompt) + completion)
