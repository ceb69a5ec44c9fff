"""Can a text stop the engine? Measures time against length, for each reader of foreign text.

A policy, a tool, a judge, a log or a user writes a text, and our code reads it: a pattern, a
parser, a template. If the time grows faster than the text, the author of the text decides how long
the engine stands still. 5,000 blanks after a `<` once took eleven seconds.

    texts     `start + unit * n + end`: each reader's worst texts that we could think of, and those
              of a search. It repeats one to three fragments of the reader's own alphabet, and keeps
              the slowest (bench/slow_readers.py has both)
    time      processor seconds of one call at 10, 20, 40 and 80 kB, the least of three. The slope
              of log time over log length is the exponent. Times below FLAT_S count as flat, because
              their slope is noise of the clock
    the loop  for calls that the engine awaits: a task ticks beside the call, and the largest gap
              between two ticks counts, in processor time of the whole process. A busy machine adds
              nothing to it, and a thread that holds the interpreter is noticed

A reader that looks at no more than a declared number of characters is measured like the others.
Beyond that number its time does not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from bench import slow_readers
from bench.measure import Figure, Part
from bench.slow_logs import of_logs
from bench.slow_readers import Reader, Text
from bench.slow_users import of_users

SIZES = (10_000, 20_000, 40_000, 80_000)
MOST_EXPONENT, MOST_S, MOST_HELD_S = 1.2, 0.2, 0.05
FLAT_S = 0.004
"""If the time at 80 kB is below this, the slope says nothing: the first kilobytes cost as much as
the rest."""
SEARCHED, SEARCH_AT, KEPT = 60, 2_500, 2
"""How many repeats the search tries, at which length, and how many of the slowest are measured."""
GIVEN_UP_S = 2.0
"""A text that takes so long is not made longer."""
TIMES = 3


@dataclass(slots=True)
class Found:
    """The worst results of one reader."""

    exponent: float = 0.0
    seconds: float = 0.0
    held_s: float = 0.0
    texts: dict[str, Text] = field(default_factory=dict)
    """Measure -> the text with the worst result."""


# -- one reader ------------------------------------------------------------------------------------
def measure(reader: Reader, seed: int = 0) -> Found:
    """Measure a reader on its own worst texts and on those that the search finds."""
    found, spent = Found(), dict[Text, float]()
    for text in [*reader.worst, *searched(reader, seed)]:
        seconds = grown(reader.read, text)
        exponent = slope(seconds)
        if exponent > found.exponent:
            found.exponent, found.texts["exponent"] = exponent, text
        if max(seconds.values()) > found.seconds:
            found.seconds, found.texts["seconds"] = max(seconds.values()), text
        spent[text] = max(seconds.values())
    slowest = sorted(spent, key=lambda text: -spent[text])[:KEPT]
    for text in slowest if reader.awaited is not None and found.seconds < GIVEN_UP_S else ():
        assert reader.awaited is not None
        gap = held(reader.awaited, text.sized(SIZES[-1]))
        if gap > found.held_s:
            found.held_s, found.texts["held"] = gap, text
    return found


def grown(read: Callable[[str], object], text: Text) -> dict[int, float]:
    """Measure the seconds at each size, up to the first that takes longer than GIVEN_UP_S."""
    seconds: dict[int, float] = {}
    for size in (SIZES[0] // 8, SIZES[0] // 4, *SIZES):
        seconds[size] = took(read, text.sized(size))
        if seconds[size] > GIVEN_UP_S:
            break
    return {size: spent for size, spent in seconds.items() if size in SIZES} or seconds


def took(read: Callable[[str], object], text: str, times: int = TIMES) -> float:
    """Return the processor seconds of one call, the least of several."""
    least = math.inf
    for _ in range(times):
        began = time.process_time()
        _read(read, text)
        least = min(least, time.process_time() - began)
        if least > GIVEN_UP_S / 4:
            break
    return least


def _read(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except (AttributeError, NameError, TypeError):  # the call itself is wrong: no text causes that
        raise
    except Exception:  # other tests check what it says about the text
        return


def slope(seconds: dict[int, float]) -> float:
    """Fit log time to log size. Return 0 if the time is flat."""
    if max(seconds.values()) < FLAT_S or len(seconds) < 2:
        return 0.0 if max(seconds.values()) < GIVEN_UP_S else math.inf
    points = [(math.log(size), math.log(max(spent, FLAT_S / 8))) for size, spent in seconds.items()]
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def searched(reader: Reader, seed: int) -> list[Text]:
    """Return the slowest repeats of one to three fragments, with one or none before and after."""
    rng = random.Random(f"{seed} {reader.name}")
    units = ["".join(some) for n in (1, 2, 3) for some in itertools.product(reader.alphabet, repeat=n)]
    before, behind = reader.frame
    timed: list[tuple[float, Text]] = []
    ends = ["", *reader.alphabet]
    for _ in range(SEARCHED):
        text = Text(before + rng.choice(ends), rng.choice(units), rng.choice(ends) + behind)
        if took(reader.read, text.sized(SEARCH_AT // 8), 1) < GIVEN_UP_S / 8:
            timed.append((took(reader.read, text.sized(SEARCH_AT), 1), text))
        else:
            timed.append((math.inf, text))
    return [text for _, text in sorted(timed, key=lambda pair: -pair[0])[:KEPT]]


# -- the loop --------------------------------------------------------------------------------------
def held(call: Callable[[str], Awaitable[object]], text: str) -> float:
    """Return the processor seconds for which the loop ran nothing else, the least of several."""
    return min(asyncio.run(_held(call, text)) for _ in range(TIMES))


async def _held(call: Callable[[str], Awaitable[object]], text: str) -> float:
    gaps: list[float] = []

    async def tick() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    with contextlib.suppress(Exception):  # what it says of the text is tested elsewhere
        await call(text)
    await asyncio.sleep(0)
    ticking.cancel()
    return max(gaps)


def readers() -> Iterator[Reader]:
    yield from slow_readers.of_policies()
    yield from slow_readers.of_graders()
    yield from slow_readers.of_tools()
    yield from of_logs()
    yield from of_users()


# -- the figure ------------------------------------------------------------------------------------
def slow_text(args: list[str]) -> Figure:
    """No text can stop the engine: time of each reader against the length of its worst text."""
    found: dict[str, Found] = {}
    known = [reader for reader in readers() if not args or reader.name in args]
    gc.collect()
    gc.freeze()  # so that the collector skips loaded objects while a reader is timed
    for reader in known:
        found[reader.name] = one = measure(reader)
        line = f"{reader.name:28}{one.exponent:6.2f}{one.seconds * 1e3:9.1f} ms{one.held_s * 1e3:9.1f} ms held"
        print(line, {key: tuple(part[:40] for part in text) for key, text in one.texts.items()}, file=sys.stderr)
    return figure(found)


def figure(found: dict[str, Found]) -> Figure:
    """Make the parts: the worst results, each with its reader's name. The notes have them all."""

    def worst(key: Callable[[Found], float]) -> tuple[str, float]:
        name = max(found, key=lambda name: key(found[name]))
        return name, key(found[name])

    (grows, exponent), (slow, seconds), (holds, held_s) = (
        worst(key) for key in (lambda one: one.exponent, lambda one: one.seconds, lambda one: one.held_s)
    )
    missed = sum(not within(one) for one in found.values())
    notes = {
        name: {
            "exponent": round(one.exponent, 2),
            "ms": round(one.seconds * 1e3, 1),
            "held_ms": round(one.held_s * 1e3, 1),
        }
        for name, one in found.items()
    }
    return Figure(
        (
            Part("readers that a text slows down", missed, at_most=0, n=len(found)),
            Part("readers", len(found), at_least=30),
            Part(f"largest exponent: {grows}", exponent, at_most=MOST_EXPONENT, n=len(found)),
            Part(f"longest: {slow}", seconds, "s", at_most=MOST_S, n=len(found)),
            Part(f"event loop held: {holds}", held_s, "s", at_most=MOST_HELD_S, n=len(found)),
        ),
        notes,
    )


def within(one: Found) -> bool:
    return one.exponent <= MOST_EXPONENT and one.seconds <= MOST_S and one.held_s <= MOST_HELD_S


FIGURES = {"slow_text": slow_text}
