"""Add noise of 1e-6 to the first weights of each policy that is built from scratch, where
RFT_TEST_DISTURB is set.

Another processor adds in another order, and the last digits differ: by 3e-6 of the numbers of a
training's first step, as tests/trainer/test_loss_curve.py measured. A test that passes only with
the digits of one processor rests on luck, and noise of that size finds it on any. Weights stay a
function of the number, the architecture and the seed, so equal builds are equal.

Loaded in two ways: by tests/conftest.py, and by Python itself in the processes that tests start,
because conftest.py puts this folder into their PYTHONPATH. Out of reach are processes whose test
gives them a PYTHONPATH of their own.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from typing import Any

NAME = "rft.models.embedded"
SCALE = 1e-6


def disturb(model: Any, seed: int) -> Any:
    import torch

    if not (number := os.environ.get("RFT_TEST_DISTURB")):  # a test may want none
        return model
    generator = torch.Generator().manual_seed(int(number) * 1_000_003 + seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = SCALE * torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (parameter != 0))  # no processor makes anything of a zero
    return model


class _Disturbed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self.real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        build = module.build_model
        module.build_model = lambda architecture, tokenizer, seed: disturb(build(architecture, tokenizer, seed), seed)


def _is_there() -> bool:
    """A worker of pytest-xdist comes here twice, in both ways. Noise that is added twice is other
    noise."""
    return any(type(one).__name__ == _Disturbed.__name__ for one in sys.meta_path)


if os.environ.get("RFT_TEST_DISTURB") and NAME not in sys.modules and not _is_there():
    sys.meta_path.insert(0, _Disturbed())
