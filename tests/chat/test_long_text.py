"""No text of a policy holds its reader up: time is in proportion to the text's length."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from rft.chat import formats
from rft.chat.renderer import parse_calls

READERS: dict[str, Callable[[str], object]] = {
    "hermes": parse_calls,
    "llama3": lambda text: formats.FAMILIES["llama3"].read(text, 0),
    "mistral": lambda text: formats.FAMILIES["mistral"].read(text, 0),
    "named": lambda text: formats.Mistral(named=True).read(text, 0),
    "harmony": lambda text: formats.Harmony().read(text, 0),
}
WORST = (
    "<tool_call>\n",
    '<tool_call>\n{"name": ',
    "\n</tool_call>",
    '{"name":',
    '{"name": {}} ',
    "[TOOL_CALLS]",
    "[ARGS]",
    "a[CALL_ID]",
    "<|channel|>",
    "<|start|>assistant",
    "<|channel|>commentary to=functions.a <|message|>",
    "<think>",
    "[",
    "{",
    '"',
    "\\",
    " ",
    "\n",
    "a",
    "; ",
)


@pytest.mark.parametrize("reader", READERS)
def test_a_long_text_takes_no_time(reader: str):
    """80 kB of `<tool_call>` took 4.6 s. Whatever comes before a beginning changes nothing."""
    for unit in WORST:
        for start in ("", "x "):
            began = time.perf_counter()
            with contextlib.suppress(ValueError):  # what it says of the text is tested elsewhere
                READERS[reader](start + unit * (80_000 // len(unit)))
            assert time.perf_counter() - began < 2, (reader, unit, start)
