"""The loop between two products of a decoding step computes what PyTorch's operations do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from rft.kernels import decoding

needs_the_loop = pytest.mark.skipif(bool(decoding.why_not()), reason=decoding.why_not())


@dataclass
class World:
    """Random rows, and what attention needs of them."""

    rows: int = 5
    heads: int = 2
    group: int = 3
    dim: int = 8
    length: int = 20
    normed: bool = True
    seed: int = 0
    size: float = 1.0
    slots: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        shape = (self.rows + 2, self.heads, self.length, self.dim)
        self.slots = [random(*shape), random(*shape)]
        self.qkv = random(self.rows, (self.group + 2) * self.heads * self.dim) * self.size
        self.positions = torch.randint(self.length, (self.rows,), generator=generator)
        self.seats = torch.randperm(self.rows + 2, generator=generator)[: self.rows]
        self.places = torch.randperm(2 * self.rows, generator=generator)[: self.rows]
        self.tables = random(self.length, self.dim), random(self.length, self.dim)
        self.norms = random(2, self.dim) if self.normed else None

    def played(self, attend: object) -> list[torch.Tensor]:
        """The output, and both slots after it."""
        keys, values = (one.clone() for one in self.slots)
        rest = self.seats, self.positions, *self.tables, self.norms, 1e-6
        out = attend(self.qkv, keys, values, *rest)  # type: ignore[operator]
        return [out, keys, values]

    def laid(self, lay: object, placed: bool = True, queries: bool = True) -> list[torch.Tensor]:
        """What is in the places, and both slots after it."""
        keys, values = (one.clone() for one in self.slots)
        q, kv = (
            torch.zeros(2 * self.rows, self.heads * self.group, self.dim),
            torch.zeros(2, 2 * self.rows, self.heads, self.dim),
        )
        into = decoding.Placed(self.places, q, kv) if placed else None
        qkv = self.qkv if queries else self.qkv[:, self.heads * self.group * self.dim :].contiguous()
        lay(qkv, keys, values, self.seats, self.positions, *self.tables, self.norms, 1e-6, into)  # type: ignore[operator]
        return [q, kv, keys, values]


@needs_the_loop
@settings(max_examples=60, deadline=None)
@given(
    rows=some.integers(1, 9),
    heads=some.integers(1, 3),
    group=some.integers(1, 5),
    half=some.integers(1, 33),
    length=some.integers(1, 70),
    normed=some.booleans(),
    seed=some.integers(0, 99),
)
def test_the_loop_computes_what_pytorchs_operations_do(
    rows: int, heads: int, group: int, half: int, length: int, normed: bool, seed: int
):
    world = World(rows, heads, group, 2 * half, length, normed, seed)
    for found, expected in zip(world.played(decoding.attend), world.played(decoding.attend_reference), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for found, expected in zip(world.laid(decoding.lay), world.laid(decoding.lay_reference), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_the_loop
@pytest.mark.parametrize("queries", [True, False])
def test_without_places_keys_and_values_go_into_their_slots_alone(queries: bool):
    world = World()
    q, kv, *slots = world.laid(decoding.lay, placed=False, queries=queries)
    assert not q.any()
    assert not kv.any()
    assert all(map(torch.equal, slots, world.laid(decoding.lay)[2:]))
    assert not torch.equal(slots[0], world.slots[0])


@needs_the_loop
def test_a_token_laid_and_a_token_attended_with_have_the_same_keys_and_values():
    world = World()
    assert all(map(torch.equal, world.laid(decoding.lay)[2:], world.played(decoding.attend)[1:]))


@needs_the_loop
def test_scores_far_apart_neither_overflow_nor_vanish():
    world = World(normed=False, size=40.0, length=50)
    for found, expected in zip(world.played(decoding.attend), world.played(decoding.attend_reference), strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@needs_the_loop
def test_only_a_rows_own_tokens_are_read_and_only_its_place_is_written():
    world = World()
    clean = world.played(decoding.attend)
    seen = torch.arange(world.length) <= world.positions[:, None]
    for slots in world.slots:
        kept = slots[world.seats].masked_fill(~seen[:, None, :, None], float("nan"))
        slots.fill_(float("nan"))[world.seats] = kept
    out, keys, _ = world.played(decoding.attend)
    assert torch.equal(out, clean[0])
    written = ~torch.isclose(keys, world.slots[0], equal_nan=True).all(-1).all(1)
    expected = torch.zeros_like(written)
    expected[world.seats, world.positions] = True
    assert torch.equal(written, expected)


@needs_the_loop
@pytest.mark.parametrize("threads", [1, 3, 16])
def test_the_number_of_threads_changes_no_bit(threads: int):
    world, before = World(), torch.get_num_threads()
    expected = world.played(decoding.attend) + world.laid(decoding.lay)
    try:
        torch.set_num_threads(threads)
        found = world.played(decoding.attend) + world.laid(decoding.lay)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, found, expected))


@needs_the_loop
def test_nan_stays_nan_and_nothing_raises():
    """Damaged weights must be seen in what they give."""
    world = World()
    world.qkv[2, 3] = float("nan")
    out, keys, _ = world.played(decoding.attend)
    assert out[2].isnan().any()
    assert out[[0, 1, 3, 4]].isfinite().all()
    world.qkv[:] = 0.0  # norms of nothing
    assert world.played(decoding.attend)[0].isfinite().all()
    assert keys.isfinite().any()


ALONE = """
import torch
from rft.kernels import decoding
from tests.kernels.test_decoding import World
torch.set_num_threads(4)
why = decoding.why_not()
found = World().played(decoding.attend) + World().laid(decoding.lay)
expected = World().played(decoding.attend_reference) + World().laid(decoding.lay_reference)
print(why or all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(found, expected)))
"""


def _alone(**environment: str) -> str:
    """What a process says that begins anew."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
@needs_the_loop
@pytest.mark.parametrize("limit", [{"OMP_THREAD_LIMIT": "1"}, {"OMP_THREAD_LIMIT": "3"}, {"OMP_DYNAMIC": "true"}])
def test_a_team_that_is_smaller_than_asked_for_does_all_of_the_work(limit: dict[str, str]):
    assert _alone(**limit) == "True"


@pytest.mark.slow
@needs_the_loop
def test_where_nothing_can_be_compiled_the_reason_is_told(tmp_path: Path):
    """A package that cannot be written to, and no home."""
    package = tmp_path / "rft"
    shutil.copytree(Path(decoding.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "kernels" / "compiled.py").write_text("raise RuntimeError('cannot cache function: no locator')")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from rft.kernels import decoding; print(decoding.why_not())"
    done = subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "RuntimeError: cannot cache function: no locator"
