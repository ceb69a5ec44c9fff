"""The size of a tile on each chip: fixed, chosen by shared memory, not measured at run time.

Triton's autotuner chooses by measured time. Another choice adds in another order, so two runs of
the same step would differ in their last bits. It also measures again for each N, which changes with
every microbatch. So the choice is a table; `make figure NAME=kernel_time ARGS=tiles` times the
alternatives on the GPU at hand.

Shared memory holds `stages` tiles of hidden states (n x d) and as many of the head (v x d). The
registers of `warps` x 32 threads hold n x v float32 sums. The larger n and v are, the fewer bytes
an operation needs: with 128 x 256, one byte serves 85 operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch


@dataclass(frozen=True, slots=True)
class Tiles:
    n: int
    v: int
    d: int
    warps: int
    stages: int

    def shared_bytes(self, itemsize: int) -> int:
        return self.stages * (self.n + self.v) * self.d * itemsize


SMALLEST = Tiles(n=16, v=16, d=16, warps=4, stages=1)
"""For Triton's interpreter, which has no chip: many tiles even for small inputs."""
TABLE: dict[torch.dtype, dict[int, Tiles]] = {
    torch.bfloat16: {
        220_000: Tiles(128, 256, 64, warps=8, stages=3),  # Hopper and the large Blackwells: 227 KB
        160_000: Tiles(128, 128, 64, warps=8, stages=4),  # A100: 163 KB
        96_000: Tiles(128, 128, 32, warps=8, stages=4),  # consumer chips and L4: 99 KB
        0: Tiles(64, 64, 32, warps=4, stages=2),
    },
    torch.float32: {
        220_000: Tiles(128, 128, 32, warps=8, stages=3),  # an A100 would spill registers
        0: Tiles(64, 64, 32, warps=4, stages=2),
    },
}
assert all(a > b for table in TABLE.values() for a, b in pairwise(table))


def tiles_for(dtype: torch.dtype, shared_memory: int) -> Tiles:
    """Choose tiles. `shared_memory`: bytes that one block may use."""
    return next(tiles for at_least, tiles in TABLE[dtype].items() if shared_memory >= at_least)
