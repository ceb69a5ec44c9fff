"""Freed buffers of a large model go back to the machine while it learns, unless there is room."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rft.errors import UserError
from rft.models import heap

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
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [int(one) for one in output]


@pytest.mark.slow
def test_a_large_model_gives_back_what_it_frees_only_while_it_learns():
    learning, sampling = megabytes(5000)
    assert learning == pytest.approx(100, abs=20)
    assert sampling > 150


@pytest.mark.slow
def test_with_room_it_keeps_from_the_second_step_on():
    """A step needs 200 MB or more here, so 500 are too little."""
    assert megabytes(5000, free=(500, 500), steps=3)[:3] == pytest.approx([100, 100, 100], abs=20)
    assert megabytes(5000, free=(2000,), steps=3)[:2] == pytest.approx([100, 200], abs=20)


@pytest.mark.slow
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
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert output == ["False", "True", "True", "False", "True"]


@pytest.mark.slow
def test_a_small_model_keeps_what_it_frees():
    assert megabytes(1000)[0] == pytest.approx(200, abs=20)


# -- out of memory ---------------------------------------------------------------------------------
LIMITED = """
import os, resource, sys, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from rft import config
from rft.errors import UserError
from rft.sampling.engine import Engine, Session
from rft.trainer.learner import Learner
from rft.trainer.packing import Counted, TrainingSample

cpu = torch.device("cpu")
torch.set_num_threads(1)
told = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                   num_key_value_heads=2, vocab_size=60_000, max_position_embeddings=8192)
network = AutoModelForCausalLM.from_config(told)

class Endless:
    end_ids = frozenset()

def limit(megabytes):
    taken = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (taken + (megabytes << 20), resource.RLIM_INFINITY))

def sample():
    engine = Engine(network, Endless(), cpu)
    session = Session(engine, [[n] * 4000 for n in range(64)], [(0, n) for n in range(64)], 1.0, 8192)
    for row in range(64):
        session.begin(row, 2)
    session.advance()

def learn(rows):
    section = config.Train.model_validate({"weights": "full", "microbatch_tokens": 4096})
    learner = Learner(network, section, 64, cpu)
    samples = [TrainingSample([n] * 1024, [False] + [True] * 1023, [], 1.0) for n in range(rows)]
    limit(100)
    learner.update(samples, Counted(rows, rows * 1023))

for what in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            exec(what)
        except UserError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
OUT = {
    "limit(100); sample()": "sampling 64 rollouts side by side. Lower rollout.batch to 32.",
    "learn(4)": "learning from a microbatch of 4 x 1023 tokens. Lower train.microbatch_tokens from 4096 to 2046, or "
    "set train.gradient_checkpointing: true.",
    "learn(1)": "learning from a microbatch of 1 x 1023 tokens. It is one rollout. Lower rollout.max_tokens to 512, or "
    "set train.gradient_checkpointing: true.",
}
"""Each in a process of its own, whose imports were made once."""


@pytest.mark.slow
def test_whoever_runs_out_of_memory_hears_what_to_lower():
    done = subprocess.run([sys.executable, "-c", LIMITED, *OUT], capture_output=True, text=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("out of memory")]
    assert told == [f"out of memory: {message}" for message in OUT.values()], done.stderr[-2000:]


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes"), heap.told("a", "b"):
        raise RuntimeError("shapes cannot be multiplied")
    with pytest.raises(UserError, match=r"^out of memory: a\. b$"), heap.told("a", "b"):
        raise MemoryError
