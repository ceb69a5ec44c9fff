"""What a message about an unknown name proposes."""

from __future__ import annotations

import pytest

from rft.config import graders
from rft.errors import did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("answer", ["case", "id", "reference_answer"], "reference_answer"),
        ("Answer", ["messages", "referenceAnswer"], "referenceAnswer"),
        ("tools_timeout_s", ["timeout", "trials"], "timeout"),
        ("max_turn", ["max", "max_turns"], "max_turns"),  # a typing error comes first
        ("group_sise", ["group", "group_size"], "group_size"),
        ("answer", ["answers", "reference_answer"], "answers"),
    ],
)
def test_the_nearest_name_is_proposed(name: str, known: list[str], meant: str) -> None:
    assert did_you_mean(name, known) == f"Did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("answer", ["case", "level"]),
        ("exact_match", sorted(graders.TYPES)),
        ("top_k", ["k", "lr"]),
        ("anything", []),
    ],
)
def test_what_resembles_nothing_is_told_all_that_there_is(name: str, known: list[str]) -> None:
    assert did_you_mean(name, known) == f"There are: {', '.join(known) or 'none'}."
