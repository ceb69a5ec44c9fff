"""Learning on several processes: one leads, the others follow its orders and hold the same weights.

    with launch(section) as team:        starts train.processes - 1 followers, or joins those that a
                                         launcher started
        learner = Learner(..., team)     every follower builds the same one
        learner.update(samples, ...)     each takes a share of the samples; gradients are summed;
                                         the same update everywhere

Only the leader samples rollouts, grades, logs and saves. A follower waits for an order, does its
share, and answers with its sums. The algorithms divide by the totals of the whole step, so
gradients are summed, not averaged. Shares may differ in number and in length, and the result is
that of one process to float tolerance (`make figure NAME=two_processes`). Weights stay equal bit
for bit on all processes: they start as the leader's, and every update has the same sum.

Followers that we start on one machine live as long as the leader: they read a pipe from it and end
when it ends, even after a kill -9. Under a launcher (`accelerate launch ... -m rft train`, on one
machine or several) all processes run the same command, and `launch` turns all but the first into
followers. A follower that fails ends the stage with its message.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import IO, Any

import torch
import torch.distributed as dist

from rft import config
from rft.errors import ConfigError, InfrastructureError, RftError
from rft.models import weights
from rft.process import last_output, module_command, tail
from rft.trainer import sharding
from rft.trainer.learner import Learner
from rft.trainer.processes import Processes

TCPStore: Any = getattr(dist, "TCPStore")  # noqa: B009 - public, and not declared so
BETWEEN_ORDERS = timedelta(days=30)
"""Sampling a step may take hours, while followers wait."""
WITHIN_ORDERS = timedelta(minutes=30)
STOP_S = 10.0


class Team(Processes):
    """Several processes, joined in a process group."""

    def __init__(self, followers: Sequence[_Follower] = ()):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._followers = followers
        self._orders: Any = dist.new_group(backend="gloo", timeout=BETWEEN_ORDERS)
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.shards = sharding.wanted()
        self._threads = max(1, torch.get_num_threads() // here)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.order("stop")
        finally:
            for follower in self._followers:
                follower.end(wait=error is None)
            dist.destroy_process_group()

    def order(self, what: str, *values: Any) -> None:
        with self._together():
            dist.broadcast_object_list([pickle.dumps((what, values))], src=0, group=self._orders)

    def next_order(self) -> tuple[str, tuple[Any, ...]]:
        found: list[Any] = [None]
        dist.broadcast_object_list(found, src=0, group=self._orders)
        return pickle.loads(found[0])

    def same(self, tensors: Sequence[torch.Tensor]) -> None:
        with self._together():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum in one collective for all: a small model has many small tensors."""
        if not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self._together():
            dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def gather(self, mine: Any) -> list[Any]:
        found = [None] * self.size if self.rank == 0 else None
        with self._together():
            dist.gather_object(mine, found, dst=0, group=self._orders)
        return found or []

    def most(self, mine: int) -> int:
        largest = torch.tensor(mine)
        with self._together():
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._orders)
        return int(largest)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Divide the threads: the leader samples with all, and shares them while all learn."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """If a process was lost, report what happened to it, not how that looks from here."""
        try:
            yield
        except RuntimeError as error:
            for follower in self._followers:
                follower.raise_if_dead()
            what = f"process {self.rank} of {self.size} lost the others: {str(error).splitlines()[0]}"
            raise InfrastructureError(f"{what}. Run the stage again.") from error


class _Follower:
    """A process that we started. What it prints goes into a file without a name."""

    def __init__(self, rank: int, size: int, address: str, port: int):
        self.rank, self.size = rank, size
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        self._process = subprocess.Popen(
            module_command("rft.trainer.distributed"),
            env=os.environ | {name: str(value) for name, value in place.items()},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            process_group=0,  # Ctrl-C is for the leader
        )

    def raise_if_dead(self) -> None:
        try:
            code = self._process.wait(STOP_S / 2)
        except subprocess.TimeoutExpired:
            return
        printed = last_output(tail(self._output))
        raise InfrastructureError(f"process {self.rank} of {self.size} ended with code {code}. {printed}")

    def end(self, wait: bool) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S if wait else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._output.close()


def launch(section: config.Train, device: str = "cpu") -> Processes:
    """Return the leader's team. In a process that a launcher made a follower, follow and exit.
    Raises ConfigError if the launcher started another number of processes, and on `device` cuda if
    there are more processes than GPUs."""
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if started and (size := int(os.environ["WORLD_SIZE"])) != section.processes:
        raise ConfigError(
            f"params.yaml: 'train.processes' = {section.processes}, but the launcher started {size}. Make them equal."
        )
    if section.processes == 1:
        return Processes()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", section.processes))
    if device == "cuda" and here > (num := torch.cuda.device_count()):
        raise ConfigError(
            f"params.yaml: 'train.processes' = {section.processes}: each learns on a GPU of its own, and PyTorch sees "
            f"{num} here, for {here} of them. Lower it, or set policy.device: cpu."
        )
    if not started:
        return _start(section.processes)
    _join()
    team = Team()
    if team.rank:
        _follow(team)
        sys.exit(0)
    return team


def _start(size: int) -> Team:
    address = "127.0.0.1"
    store = TCPStore(address, 0, size, is_master=True, wait_for_workers=False, timeout=WITHIN_ORDERS)
    followers = [_Follower(rank, size, address, store.port) for rank in range(1, size)]
    try:
        _join(store=store, rank=0, world_size=size)
    except RuntimeError:
        for follower in followers:
            follower.raise_if_dead()
        raise
    return Team(followers)


def _join(**place: Any) -> None:
    """Join the group: tensors travel by their device's backend, orders by gloo."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=WITHIN_ORDERS, **place)


def _follow(team: Team) -> None:
    """Carry out the leader's orders, until the last."""
    learner: Learner | None = None
    while True:
        what, values = team.next_order()
        if what == "stop":
            dist.destroy_process_group()
            return
        if what == "learner":
            network, section, norm_length, kind = values
            device = weights.prepare_process(config.Policy(device=kind))
            if kind == "cuda":
                device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
                torch.cuda.set_device(device)
            learner = Learner(network.to(device), section, norm_length, device, team)
        else:
            assert learner is not None, "the first order is the learner"
            getattr(learner, f"do_{what}")(*values)


def _end_with_leader() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    threading.Thread(target=_end_with_leader, daemon=True).start()
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    try:
        _join(store=TCPStore(os.environ["MASTER_ADDR"], port, size, timeout=WITHIN_ORDERS), rank=rank, world_size=size)
        _follow(Team())
    except RftError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
