"""On which conversations does a version rest? An exhaustive search for what an audit should answer.

Every revision of every run is read with `git` and readers of JSON, YAML and Parquet. None of our
code is used: no module of `rft` or `tasks` is imported here, and no hash is checked. An audit's
answers are compared with this (bench/audit_complete.py).

A run rests on the conversations of its window. If the challenger was promoted, the version's
weights come from its run. If only its prompt was, they come from the champion that the run began
with. Weights that were trained from the champion's weights rest on that champion. A champion
without weights of its own adds nothing, because it is the base model. So a version rests on its
run's window, and on everything that the versions behind its weights rest on.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pyarrow import parquet


@dataclass(frozen=True)
class Version:
    model: str
    number: int
    run: str
    conversations: frozenset[str]


@dataclass(frozen=True)
class Found:
    windows: dict[str, frozenset[str]]
    """Run -> the conversations of its window."""
    versions: list[Version]
    examples: dict[str, frozenset[str]]
    """Run -> the ids of its training examples."""

    def runs_with(self, conversation: str) -> set[str]:
        return {run for run, window in self.windows.items() if conversation in window}

    def versions_with(self, conversation: str) -> set[tuple[str, int]]:
        return {(each.model, each.number) for each in self.versions if conversation in each.conversations}


def search(root: Path) -> Found:
    refs = _git(root, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps").decode().split("\n")
    revisions = {ref.rsplit("/", 1)[1]: commit for commit, ref in (row.split(" ") for row in refs if row)}
    entries = [json.loads(_git(root, "show", f"{commit}:entry.json")) for commit in _chain(root)]
    windows = {run: _window(root, commit) for run, commit in revisions.items()}
    examples = {run: _ids(root, commit, "data/examples/train.jsonl", "id") for run, commit in revisions.items()}
    acts = {entry["number"]: entry["act"] for entry in entries}
    promotions = {number: act for number, act in acts.items() if act["kind"] == "promotion"}

    @cache
    def rests_on(number: int) -> frozenset[str]:
        asked = acts[promotions[number]["request"]]
        commit = asked["revision"]
        before = json.loads(_git(root, "show", f"{commit}:data/champion/champion.json"))
        began = before.get("version", 0) if before.get("weights", "none") != "none" else 0
        trained = yaml.load(_git(root, "show", f"{commit}:params.yaml"), yaml.CSafeLoader)["train"]["from"]
        is_from = asked["candidate"] != "challenger" or trained == "champion"
        return windows[asked["run"]] | (rests_on(began) if is_from and began else frozenset())

    versions = [
        Version(act["model"], number, acts[act["request"]]["run"], rests_on(number))
        for number, act in promotions.items()
    ]
    return Found(windows, versions, examples)


def _chain(root: Path) -> list[str]:
    commits = _git(root, "rev-list", "--first-parent", "--reverse", "refs/rft/ledger").decode().split()
    return [commit for commit in commits if b"entry.json" in _git(root, "ls-tree", "--name-only", commit)]


def _window(root: Path, commit: str) -> frozenset[str]:
    folder = _outs(root, commit).get("data/traffic/conversations")
    if folder is None:
        return frozenset()
    parts = [row["md5"] for row in json.loads(_cached(root, folder).read_text()) if row["relpath"].endswith(".parquet")]
    names = [parquet.read_table(_cached(root, md5), columns=["conversation_id"]).column(0) for md5 in parts]
    return frozenset(name for column in names for name in column.to_pylist())


def _ids(root: Path, commit: str, path: str, key: str) -> frozenset[str]:
    outs = _outs(root, commit)
    if path not in outs:
        return frozenset()
    return frozenset(json.loads(line)[key] for line in _cached(root, outs[path]).read_text().splitlines())


def _outs(root: Path, commit: str) -> dict[str, str]:
    lock: dict[str, Any] = yaml.load(_git(root, "show", f"{commit}:dvc.lock"), yaml.CSafeLoader)
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}


def _cached(root: Path, md5: str) -> Path:
    return root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout
