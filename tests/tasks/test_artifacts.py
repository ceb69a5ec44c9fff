"""YAML that somebody else committed is read, or refused before it costs anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rft.errors import UserError
from tasks.runs.artifacts import DEEPEST, LOADER, Revision
from tasks.runs.clone import Clone
from tasks.runs.git import git


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


@pytest.mark.parametrize("content", [b"recipe: {path: x}\n  gate: [", b"- a list\n", b"recipe: \xff"])
def test_settings_that_no_run_wrote_are_named_with_their_revision(tmp_path: Path, content: bytes):
    """An audit finds other bytes under the object's name. It ended in the reader's ScannerError."""
    (tmp_path / "params.yaml").write_bytes(content)
    for command in (["init", "-q"], ["add", "params.yaml"]):
        git(tmp_path, *command)
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    commit = git(tmp_path, *identity, "commit-tree", "-m", "a run", git(tmp_path, "write-tree").strip()).strip()
    with pytest.raises(UserError, match=f"params.yaml of revision {commit[:10]} is not as a run records it"):
        _ = Revision(Clone(tmp_path), commit).settings
