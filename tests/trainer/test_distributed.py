"""Two processes for real: the same step as one, and what happens when one of them is lost."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rft import config
from rft.errors import ConfigError, InfrastructureError
from rft.trainer import distributed, sharding
from rft.trainer.packing import Counted
from tests.small_learner import all_of, learner, samples, weights

ROOT = Path(__file__).resolve().parents[2]
SECTION: dict[str, Any] = {"algorithm": "ppo", "kl": {"beta": 0.1}, "updates": 2, "lr": 1e-4}

LEADER = """
import sys, time
from rft import config
from rft.trainer import distributed as processes
from tests.small_learner import all_of, learner, samples
with processes.launch(config.Train(processes=2)) as team:
    one = learner(team=team, processes=2)
    given = samples(policy=one.model)
    one.update(given, all_of(given, 12))
    print("learned", flush=True)
    time.sleep(600)
"""


def followers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "rft.trainer.distributed" in one.cmdline()]


def test_one_process_is_a_team_that_sends_nothing():
    with distributed.launch(config.Train()) as team:
        assert (team.rank, team.size, team.gather(3)) == (0, 1, [3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "more"),
    [
        pytest.param(False, {"weights": "full"}, id="whole"),
        pytest.param(False, {"weights": "full", "algorithm": "cispo", "packing": True}, id="dull groups"),
        pytest.param(True, {"weights": "lora", "packing": True}, id="shards", marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_what_one_does(shards: bool, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """PPO with KL and two updates: gradients of policy and critic, reference, values and old
    log-probabilities all cross the cut. CISPO: most groups are dull, some of their rollouts are no
    samples, and all are counted (R19).
    """
    if shards:  # as `accelerate launch --config_file infra/fsdp2.yaml` says it
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        monkeypatch.setenv("FSDP_VERSION", "2")
        monkeypatch.setenv("FSDP_RESHARD_AFTER_FORWARD", "true")
    section = SECTION | more
    alone = learner(**section)
    given = samples(groups=5, policy=alone.model)
    if section["algorithm"] == "cispo":
        given = [replace(one, advantage=one.advantage * (n < 4)) for n, one in enumerate(given)]
    counted = Counted(24, sum(one.num_own for one in given) + 100)
    steps = [alone.update(given, counted), alone.update(given[:1], counted)]  # in the second one process has no share
    with distributed.launch(config.Train(processes=2)) as team:
        one = learner(team=team, processes=2, **section)
        found = [one.update(given, counted)]
        kept = one.state()
        one.load(copy.deepcopy(kept))
        found.append(one.update(given[:1], counted))
        assert one.update([], Counted()) == {"samples/trained": 0}
        assert one.seconds["exchange"] > 0
        after = torch.cat([tensor.flatten() for tensor in one.state()["parameters"].values()])
        assert hasattr(one.parameters[0], "full_tensor") == shards
    for theirs, mine in zip(steps, found, strict=True):
        # a group may be cut
        assert mine.pop("packing/shared_share", 0.0) == pytest.approx(theirs.pop("packing/shared_share", 0.0), abs=0.2)
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert found[0]["loss"] == pytest.approx(steps[0]["loss"], rel=1e-5)
    torch.testing.assert_close(after, weights(alone), rtol=0, atol=2e-5)
    assert not followers()


@pytest.mark.slow
def test_a_follower_that_is_lost_ends_the_stage_with_its_name():
    with pytest.raises(InfrastructureError, match="process 1 of 2 ended with code -9"):
        _learn_without_the_follower()


def _learn_without_the_follower() -> None:
    with distributed.launch(config.Train(processes=2)) as team:
        one = learner(team=team, processes=2)
        for follower in followers():
            follower.kill()
        given = samples(policy=one.model)
        one.update(given, all_of(given, 12))


@pytest.mark.slow
@pytest.mark.story
def test_a_leader_that_is_killed_leaves_no_orphan():
    leader = subprocess.Popen([sys.executable, "-c", LEADER], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"learned\n"
        orphans = psutil.Process(leader.pid).children(recursive=True)
        assert orphans
        os.kill(leader.pid, signal.SIGKILL)
        leader.wait()
        _, left = psutil.wait_procs(orphans, timeout=20)
        assert not left
    finally:
        leader.kill()
        leader.wait()
        assert leader.stdout is not None
        leader.stdout.close()


def test_a_launcher_that_started_another_number_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"'train.processes' = 2, but the launcher started 4"):
        distributed.launch(config.Train(processes=2))


def test_more_processes_than_gpus_are_refused():
    num = torch.cuda.device_count()
    most = max(2, num + 1)
    with pytest.raises(ConfigError, match=f"'train.processes' = {most}: each learns on a GPU .* sees {num} here"):
        distributed.launch(config.Train(processes=most), "cuda")


@pytest.mark.slow
@pytest.mark.story
def test_every_process_of_a_launcher_runs_the_same_command():
    """As `accelerate launch` starts them: the first leads, the others follow and exit with 0."""
    program = LEADER.replace("time.sleep(600)", "pass")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    outputs = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert outputs == [b"learned\n", b""]


def test_the_configuration_for_gpus_is_one_that_accelerate_reads():
    from accelerate.commands.config.config_args import load_config_from_file

    found = load_config_from_file(str(ROOT / "infra" / "fsdp2.yaml"))
    assert found.distributed_type == "FSDP"
    assert found.fsdp_config["fsdp_version"] == 2


def test_the_first_version_of_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"fsdp_version: 1.*infra/fsdp2.yaml"):
        sharding.wanted()
