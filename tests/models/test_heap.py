"""Freed buffers of a large model go back to the machine while it learns, unless there is room."""

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

def buffers():
    made = [torch.ones(1024, 512) for _ in range(100)]
    del made[::2]
    return made

heap.keep()
free = {free}
heap.free_memory = lambda: free.pop(0) << 20
steps = heap.Steps(torch.nn.Linear({width}, 5000, device="meta"))
told = []
for _ in range({steps}):
    before = resident()
    with steps.one():
        held = buffers()
        told.append(resident() - before >> 20)
    del held
    if steps.keeps or {width} < 5000:
        break
before = resident()
held = buffers()
told.append(resident() - before >> 20)
print(*told)
"""


def megabytes(width: int, free: tuple[int, ...] = (), steps: int = 1) -> list[int]:
    """Resident after half of 200 MB is freed, by each step of a learner of 5,000 x `width`
    parameters, and by a sampler after them. `free`: megabytes from the second step on."""
    command = [sys.executable, "-c", SCRIPT.format(width=width, free=list(free), steps=steps)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [int(one) for one in said]


def test_a_large_model_gives_back_what_it_frees_only_while_it_learns():
    learning, sampling = megabytes(5000)
    assert learning == pytest.approx(100, abs=20)
    assert sampling > 150


def test_with_room_it_keeps_from_the_second_step_on():
    """A step needs 200 MB or more here, so 500 are too little."""
    assert megabytes(5000, free=(500, 500), steps=3)[:3] == pytest.approx([100, 100, 100], abs=20)
    assert megabytes(5000, free=(2000,), steps=3)[:2] == pytest.approx([100, 200], abs=20)


def test_it_stops_when_little_is_left():
    script = """
import torch
from rft.models import heap
free = [10_000, 200, 10, 10_000]
heap.free_memory = lambda: free.pop(0) << 20
steps = heap.Steps(torch.nn.Linear(5000, 5000, device="meta"))
told = []
for _ in range(5):
    with steps.one():
        torch.ones(1024, 512 * 100)
    told.append(steps.keeps)
print(*told)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["False", "True", "True", "False", "True"]


def test_a_small_model_keeps_what_it_frees():
    assert megabytes(1000)[0] == pytest.approx(200, abs=20)
