"""Time of each reader against the length of its worst texts, and that the figure would see a slow
one.

Nothing here rests on an idle machine: processor seconds at two lengths are compared, and eight
times the text may cost thirty times as much, where a square would cost 64.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest

from bench import slow_logs, slow_readers, slow_text, slow_users
from bench.slow_text import Found, Reader, Text, measure, searched, slope, took

FEW_S = 0.04
"""Below it a quotient is the clock's."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    [slow_readers.of_policies, slow_readers.of_graders, slow_readers.of_tools, slow_logs.of_logs,
     slow_users.of_users],
)  # fmt: skip
def test_time_grows_as_the_text(group: Callable[[], Iterator[Reader]]):
    for reader in group():
        for text in reader.worst:
            if took(reader.read, text.sized(8_000), 1) > FEW_S:
                assert took(reader.read, text.sized(8_000)) < 30 * took(reader.read, text.sized(1_000)), (
                    reader.name,
                    text,
                )


def test_a_text_has_as_many_bytes_as_asked():
    assert Text("<", " ", ">").sized(1000) == "<" + " " * 998 + ">"
    assert len(Text("", "\ufdfa").sized(3000)) == 1000


def slow(text: str) -> object:
    return re.search(r"<\s*/?\s*answer", text)


@pytest.mark.slow
def test_a_slow_reader_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slow_text, "SIZES", (1_000, 2_000, 4_000, 8_000))
    found = measure(Reader("slow", slow, [Text("<", " ")], ("a", "b")))
    assert found.exponent > 1.6
    assert not slow_text.within(found)
    assert found.texts["exponent"] == Text("<", " ")


def test_the_search_finds_what_nobody_thought_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slow_text, "SEARCHED", 500)
    best = searched(Reader("slow", slow, [], ("<", " ", "a")), seed=0)[0]
    assert best.unit.isspace(), "blanks, which the pattern knows twice"


def test_a_loop_that_is_held_is_seen():
    def busy(text: str) -> int:
        return sum(hash(text[n:]) for n in range(len(text)))

    async def held(text: str) -> object:
        return busy(text)

    async def elsewhere(text: str) -> object:
        return await asyncio.to_thread(busy, text)

    text = "a" * 40_000  # held for 130 ms; another thread lets go after 5
    assert slow_text.held(held, text) > 4 * slow_text.held(elsewhere, text)


def test_a_slope_is_the_power_of_the_length():
    assert slope({10: 0.1, 20: 0.4, 40: 1.6}) == pytest.approx(2)
    assert slope({10: 1e-5, 20: 1e-4, 40: 1e-3}) == 0, "too short to matter"


def test_one_slow_reader_spoils_the_figure():
    good = {f"reader {n}": Found(1.0, 0.1, 0.01) for n in range(30)}
    assert slow_text.figure(good).holds
    for bad in (Found(1.3, 0.1, 0.01), Found(1.0, 0.3, 0.01), Found(1.0, 0.1, 0.06)):
        figure = slow_text.figure({**good, "bad": bad})
        assert figure.holds is False
        assert figure.parts[0].value == 1
    assert slow_text.figure(dict(list(good.items())[:29])).holds is False, "too few readers"
