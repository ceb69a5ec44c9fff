"""Finds records that are older than the code that they measure.

A figure's code is its module and all modules of ours that it imports, anywhere in it. Its record
names the commit that was measured, so Git knows what has changed since. This is only a hint to
measure again: most changes move no figure, and commands that a figure starts are not seen.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import grimp

OURS = ("bench", "flows", "rft", "tasks")


def mark(root: Path, name: str, module: str) -> str:
    """Say whether a figure has a record, and how much of its code has changed since. `module` is
    the figure's, such as bench.gate_null."""
    record = root / "bench" / "results" / f"{name}.json"
    if not record.exists():
        return "no record"
    commit = json.loads(record.read_text(encoding="utf-8"))["commit"].removesuffix("+edits")
    if (changed := _changed(root, commit)) is None:
        return f"recorded at {commit}, which is not in this clone"
    code = _code(module)
    num = len(code & changed)
    return f"older than {num} of its {len(code)} files" if num else ""


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS, cache_dir=None)


@cache
def _code(module: str) -> set[str]:
    """Return the paths of the figure's module and of all that it imports."""
    found = {module, *_graph().find_upstream_modules(module)}
    packages = {name for name in found if _graph().find_children(name)}
    return {f"{name.replace('.', '/')}{'/__init__' if name in packages else ''}.py" for name in found}


def _changed(root: Path, commit: str) -> set[str] | None:
    """Return the paths that differ from a commit, in the working tree, too. None: it is unknown."""
    done = subprocess.run(["git", "diff", "--name-only", commit, "--"], cwd=root, capture_output=True, text=True)
    return set(done.stdout.splitlines()) if done.returncode == 0 else None
