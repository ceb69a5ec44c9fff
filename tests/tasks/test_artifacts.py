"""YAML that somebody else committed is read, or refused before it costs anything."""

from __future__ import annotations

import pytest
import yaml

from tasks.runs.artifacts import DEEPEST, LOADER


@pytest.mark.parametrize("unit", ["[", "{", "- ", "? ", "- ? ", "[a, ", ": "])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_lists_in_one_another_are_refused(unit: str, as_bytes: bool):
    """40,000 `- ` overflowed libyaml's stack, which ended the process; `[` took ten seconds."""
    text = unit * 40_000
    with pytest.raises(yaml.YAMLError, match=f"more than {DEEPEST} lists in one another"):
        yaml.load(text.encode() if as_bytes else text, LOADER)


def test_what_people_write_is_read():
    text = "stages:\n" + "".join(f"  s{n}: {{deps: [a, b], outs: [{{path: c}}]}}\n" for n in range(1000))
    assert len(yaml.load(text, LOADER)["stages"]) == 1000
    assert yaml.load("- - - [[1]]\n", LOADER) == [[[[[1]]]]]
