"""The lock of `make setup`: the versions of constraints.txt, each with hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks import pins

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("lock-*.txt"))


def test_there_is_one_for_the_python_that_ci_runs() -> None:
    assert ROOT / "lock-cp311-linux-x86_64.txt" in LOCKS


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_it_has_the_pinned_versions_and_a_hash_of_each(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    ours = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    found = pins.versions(text)
    assert {name: version for name, version in found.items() if name != "setuptools"} == ours, "make lock"
    entries = [entry for entry in re.split(r"\n(?=\S)", text.strip()) if not entry.startswith("#")]
    assert len(entries) == len(found)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
