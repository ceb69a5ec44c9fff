"""The structured initialization does what it is for, and building is a function of the seed."""

from __future__ import annotations

import torch

from rft import config
from rft.models import embedded, weights
from tests import small_policy, tiny_recipe


def copying(structured: bool) -> float:
    """Share of right next tokens in the second half of a random string said twice, before any
    training."""
    tokenizer = embedded.build_tokenizer(["a b c"], [], [f"w{n:03d}" for n in range(700)], 10)
    network = embedded.build_model(config.Architecture(structured_init=structured), tokenizer, seed=0)
    ids = torch.randint(3, len(tokenizer), (8, 30), generator=torch.Generator().manual_seed(0))
    twice = torch.cat([ids, ids], 1)
    with torch.no_grad():
        guessed = network(twice).logits[:, 31:-1].argmax(-1)
    return (guessed == twice[:, 32:]).float().mean().item()


def test_copying_is_there_from_the_start():
    assert copying(structured=True) > 0.9
    assert copying(structured=False) < 0.1


def test_building_is_a_function_of_the_seed(tmp_path):
    recipe = tiny_recipe.make(tmp_path)
    (one, chat), (two, again), (other, _) = (
        small_policy.build(recipe),
        small_policy.build(recipe),
        small_policy.build(recipe, seed=1),
    )
    assert chat.tokenizer.backend_tokenizer.to_str() == again.tokenizer.backend_tokenizer.to_str()
    assert weights.weights_sha256(one) == weights.weights_sha256(two) != weights.weights_sha256(other)
