"""The garbage collector's setting while rollouts are played, and after."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from rft.rollouts.garbage import seldom_collected

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    found = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*found)


@seldom_collected()
async def batch(seconds: float, seen: list[int], fails: bool = False) -> None:
    seen.append(gc.get_threshold()[0])
    await asyncio.sleep(seconds)
    seen.append(gc.get_threshold()[0])
    if fails:
        raise RuntimeError("a dead server")


def test_a_batch_is_seldom_collected_and_the_setting_comes_back():
    seen: list[int] = []
    asyncio.run(batch(0, seen))
    assert (seen, gc.get_threshold()) == ([10_000, 10_000], USUAL)


def test_the_setting_comes_back_when_a_batch_raises():
    with pytest.raises(RuntimeError, match="dead"):
        asyncio.run(batch(0, [], fails=True))
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("lasting", [(0.02, 0.0), (0.0, 0.02)])
def test_batches_at_once_hold_it_until_the_last_has_ended(lasting: tuple[float, float]):
    seen: list[int] = []

    async def both() -> None:
        await asyncio.gather(*(batch(seconds, seen) for seconds in lasting))

    asyncio.run(both())
    assert (seen, gc.get_threshold()) == ([10_000] * 4, USUAL)


@pytest.mark.parametrize("own", [0, 50_000])
def test_a_higher_setting_of_the_users_own_stays(own: int):
    gc.set_threshold(own, 5, 5)
    seen: list[int] = []
    asyncio.run(batch(0, seen))
    assert (seen, gc.get_threshold()) == ([own, own], (own, 5, 5))
