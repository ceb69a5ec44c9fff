"""Say how many processors we may use, and how many threads a model's arithmetic takes.

PyTorch's helper threads meet at a barrier after each small operation, thousands of times a second,
and spin there until the last one comes. Beside another busy program, that last thread may not be
scheduled for milliseconds. Meanwhile the others burn the very time that it waits for. On two cores
the demo's warm start made 9.1 steps a second alone, and 2.7, 1.2 and 0.25 beside one, two and three
busy programs. Two things keep the loss near what the other program takes:

    a short spin     GOMP_SPINCOUNT, which rft/__init__.py sets before PyTorch is loaded: 9.4, 5.0
                     and 4.7 steps
    few threads      as many as a model of that size can use, and no more than the machine has for
                     us. The number follows from these two alone. Nothing is measured while another
                     program runs, because the number of threads decides the last digits

`policy.threads` wins over this number, and OMP_NUM_THREADS comes next.
"""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

SPIN = "GOMP_SPINCOUNT", "1000"
"""Turns of a waiting thread before it sleeps. libgomp's own number is 300,000."""
OF_A_MILLION = 4
"""Threads for a model of a million parameters. Each doubling needs four times the parameters. The
rule was derived from the width of the products that threads share, and measured only on two
cores."""
PRESSURE, MUCH_PRESSURE = Path("/proc/pressure/cpu"), 40.0
"""The second is in percent of the time. It was 90 beside two busy programs on two cores."""
GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
GIVEN = "OMP_NUM_THREADS"


def spin_briefly() -> None:
    """Set how long helper threads spin, unless the user did. It must happen before PyTorch is
    imported."""
    name, count = SPIN
    if not os.environ.keys() & {name, "OMP_WAIT_POLICY"}:
        os.environ[name] = count


def cores() -> int:
    """Count the processors that this process may use: its affinity, and its cgroup's share, rounded
    up."""
    import joblib

    share = _share()  # joblib knows a container's share, but not that of a systemd unit
    return min(joblib.cpu_count(), math.ceil(share) if math.isfinite(share) else sys.maxsize)


def _share() -> float:
    """Return how many processors' time our cgroup, and each group around it, may take. Infinity
    where nobody set a limit.

    Source: the Linux kernel's cgroup-v1 and cgroup-v2 documents, and cgroups(7) on the lines of
    /proc/self/cgroup: `number:controllers:path`, without controllers for version 2.
    """
    quotas = [math.inf]
    for line in GROUP.read_text().splitlines() if GROUP.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = GROUPS / "cpu" if controllers else GROUPS
        place = top / path.lstrip("/")
        quotas += [_quota(group) for group in (place, *place.parents) if group.is_relative_to(top)]
    return min(quotas)


def _quota(group: Path) -> float:
    """Return a group's quota: microseconds of processor time in each period, divided by the
    period."""
    try:
        if (both := group / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota, period = (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()
    except OSError:
        return math.inf
    return math.inf if quota.strip() in ("max", "-1") else int(quota) / int(period)


def of_model(parameters: int, cores: int) -> int:
    """Return how many threads a model of that size takes on so many cores."""
    return max(1, min(cores, math.ceil(OF_A_MILLION * math.sqrt(parameters / 1e6))))


def are_held_up() -> bool:
    """Return whether work that was ready to run often waited for a processor in the last minute, as
    the kernel counts it. False where the kernel does not count it."""
    try:
        found = re.match(r"some .*avg60=([0-9.]+)", PRESSURE.read_text())
    except OSError:
        return False
    return found is not None and float(found[1]) > MUCH_PRESSURE


def used() -> int | None:
    """Return how many threads PyTorch's arithmetic takes in this process, None where it is not
    loaded. They decide the last digits, so a stage records their number."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else None


def use(network: Any, threads: int | None) -> None:
    """Set PyTorch's threads for a network. `threads`: what the user asked for."""
    import torch

    if threads is None and GIVEN not in os.environ:
        threads = of_model(sum(one.numel() for one in network.parameters()), cores())
    if threads is not None:
        torch.set_num_threads(threads)
