"""The figure `renamed`: did the renaming change names, and nothing else?

The table is bench/names.tsv, and the renaming is the commit after the last one that touched it.

    by the table   the script runs on the commit before. Each file must come out as it was committed
    code           each file is parsed before and after. Without imports, text, names of tests and
                   names of the table, the trees must be equal
    workspace      what earlier code wrote still verifies, is audited, finds its look known and is
                   promoted: tests/tasks/test_stored_workspace.py
    demo           the small demo at both commits. Each stage's files must have equal bytes, except
                   for times and installed packages; `opening.json` names a ledger entry

    make figure NAME=renamed
    make figure NAME=renamed ARGS=code      without the two demos, which take some minutes each
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from bench import rename
from bench.measure import Figure, Part, failed

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".rft" / "bench" / "renamed"
DEMO = "import sys; from flows.cli import main; sys.exit(main())"
NOT_COMPARED = ("timing.json", "environment.json", "opening.json", "README.md")


def renamed(args: list[str]) -> Figure:
    """Files that differ from what the table alone makes of the commit before the renaming (0)."""
    if unknown := set(args) - {"code"}:
        sys.exit(f"renamed: {', '.join(sorted(unknown))} means nothing here. Known: code.")
    table = _git(ROOT, "log", "-1", "--format=%H", "--", "bench/names.tsv")
    later = _git(ROOT, "rev-list", "--reverse", "--first-parent", f"{table}..HEAD").split()
    if not later:
        return failed("renamed", "the table of names is in the last commit: nothing is renamed by it yet")
    before, after = _clone("before", table), _clone("after", later[0])
    rows = rename.read((before / "bench/names.tsv").read_text(encoding="utf-8"))
    parts = [
        Part("code that differs otherwise", len(differing := otherwise(before, after, rows)), "files", 0),
        Part("stored workspace, tests that fail", _stored_workspace(), "runs", 0),
    ]
    notes: dict[str, Any] = {"code": differing, "rows": len(rows)}
    if "code" not in args:
        locks = [_demo(clone) for clone in (before, after)]
        notes["demo"] = sorted(
            path for path in locks[0].keys() | locks[1].keys() if locks[0].get(path) != locks[1].get(path)
        )
        parts.append(Part("small demo, files that differ", len(notes["demo"]), "files", 0, n=len(locks[0])))
    made = _by_the_table(before, after)
    return Figure(
        (Part("files that the table does not explain", len(made), "files", 0), *parts), notes | {"made": made}
    )


FIGURES = {"renamed": renamed}


# -- code ------------------------------------------------------------------------------------------
def otherwise(before: Path, after: Path, rows: list[rename.Row]) -> list[str]:
    """Return the files whose code differs by more than the names of the table."""
    names = {one for row in rows for side in (row.old, row.new) for one in _identifiers(side)}
    found = []
    for path in _git(before, "ls-files", "*.py").split():
        there = after / _moved(path, rows)
        if not there.exists() or _shape(before / path, names) != _shape(there, names):
            found.append(path)
    return found


def _identifiers(text: str) -> list[str]:
    pieces = (piece for word in text.split() for piece in word.replace("/", ".").replace("`", ".").split("."))
    return [name for piece in pieces if (name := piece.strip("()[]{},:;\"'=")).isidentifier()]


def _moved(path: str, rows: list[rename.Row]) -> str:
    for row in rows:
        if row.kind == "move" and (path == row.old or path.startswith(f"{row.old}/")):
            path = row.new + path[len(row.old) :]
    return path


def _shape(path: Path, names: set[str]) -> str:
    """Write a file's syntax tree down, without imports, text, and these names."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, str) and (value in names or isinstance(node, ast.Constant) or _is_prose(value)):
                setattr(node, field, "")
            elif isinstance(value, list):
                kept = [one for one in value if not isinstance(one, ast.Import | ast.ImportFrom)]
                setattr(node, field, ["" if isinstance(one, str) and one in names else one for one in kept])
    return ast.dump(tree)


def _is_prose(name: str) -> bool:
    """Whether a name is a test's: it is a sentence, where a row for text may change a word."""
    return name.startswith("test_")


# -- the two commits -------------------------------------------------------------------------------
def _by_the_table(before: Path, after: Path) -> list[str]:
    """Rename in the clone of before. Return the files that then differ from those of after."""
    subprocess.run([sys.executable, "-m", "bench.rename"], cwd=before, env=_environment(before), check=True)
    _git(before, "add", "--all")
    tree = _git(before, "write-tree")
    return _git(before, "diff", "--name-only", tree, _git(after, "rev-parse", "HEAD^{tree}")).split()


def _stored_workspace() -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tasks/test_stored_workspace.py"]
    return int(subprocess.run(command, cwd=ROOT, env=_environment(ROOT), stdout=sys.stderr).returncode != 0)


def _demo(clone: Path) -> dict[str, str]:
    """Run the small demo, and return path -> hash of what its stages left."""
    log = clone.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        command = [sys.executable, "-c", DEMO, "demo", "--small"]
        done = subprocess.run(command, cwd=clone, env=_environment(clone), stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"renamed: the small demo failed at {_git(clone, 'rev-parse', 'HEAD')}: see {log}")
    (record,) = (clone / ".rft/runs").glob("*.json")
    revision = json.loads(record.read_text(encoding="utf-8"))["revision"]
    stages = yaml.safe_load(_git(clone, "show", f"{revision}:dvc.lock"))["stages"].values()
    found = {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", [])}
    for line in _git(clone, "ls-tree", "-r", revision, "data/").splitlines():
        about, path = line.split("\t")
        found[path] = about.split()[2]
    return {path: value for path, value in found.items() if not path.endswith(NOT_COMPARED)}


def _clone(name: str, commit: str) -> Path:
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    _git(ROOT, "clone", "--quiet", str(ROOT), str(folder))
    _git(folder, "checkout", "--quiet", commit)
    return folder


def _environment(clone: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(clone)}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
