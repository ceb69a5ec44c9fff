"""Freed buffers go back to the machine while a large model learns, and only then."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from pathlib import Path
from rft.models import heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

heap.keep()
model = torch.nn.Linear({width}, 5000, device="meta")
before = resident()
with heap.for_learning(model):
    buffers = [torch.ones(1024, 512) for _ in range(100)]
    del buffers[::2]
    inside = resident() - before
del buffers
before = resident()
buffers = [torch.ones(1024, 512) for _ in range(100)]
del buffers[::2]
print(inside >> 20, resident() - before >> 20)
"""


def megabytes(width: int) -> tuple[int, int]:
    """Resident after half of 200 MB is freed, by a learner of 5,000 x `width` parameters and by a
    sampler after it."""
    command = [sys.executable, "-c", SCRIPT.format(width=width)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(said[0]), int(said[1])


def test_a_large_model_gives_back_what_it_frees_only_while_it_learns():
    learning, sampling = megabytes(5000)
    assert learning == pytest.approx(100, abs=20)
    assert sampling > 150


def test_a_small_model_keeps_what_it_frees():
    assert megabytes(1000)[0] == pytest.approx(200, abs=20)
