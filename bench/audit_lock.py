"""Writes what `dvc commit` writes, in a tenth of its time: objects of the cache, and dvc.lock.

The figures of audits need a year of runs, and DVC takes a second and a half for each. So the lock
is written here, byte for byte as DVC writes it: tests/bench/test_audit_world.py compares the two.
Hashes are those of DVC 3: the MD5 of a file's bytes, or for a folder the MD5 of a JSON list of its
files. Only `params` are formatted by DVC's own writer, because it is not worth repeating how YAML
breaks a long line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from tasks.runs.clone import Clone

_LEFT_OUT = ("__pycache__", ".rft", ".venv", ".git")


@dataclass(frozen=True)
class Hashed:
    path: str
    md5: str
    size: int
    num_files: int | None = None

    @property
    def text(self) -> str:
        rows = [f"    - path: {self.path}", "      hash: md5", f"      md5: {self.md5}", f"      size: {self.size}"]
        rows += [] if self.num_files is None else [f"      nfiles: {self.num_files}"]
        return "".join(f"{row}\n" for row in rows)


@dataclass
class Tree:
    """A worktree in which the stages' files lie."""

    clone: Clone
    root: Path
    _known: dict[str, Hashed] = field(default_factory=dict[str, Hashed])

    def hashed(self, path: str) -> Hashed:
        if path not in self._known:
            place = self.root / path
            self._known[path] = self._folder(path, place) if place.is_dir() else _file(path, place)
        return self._known[path]

    def _folder(self, path: str, place: Path) -> Hashed:
        files = {file.relative_to(place).as_posix(): _file("", file) for file in _files(place)}
        size = sum(each.size for each in files.values())
        return Hashed(path, f"{_md5(_listing(files))}.dir", size, len(files))

    def keep(self, path: str) -> Hashed:
        """Put an output into the cache."""
        found, place = self.hashed(path), self.root / path
        if place.is_dir():
            files = {file.relative_to(place).as_posix(): file for file in _files(place)}
            for file in files.values():
                _keep(self.clone, file.read_bytes())
            _keep(self.clone, _listing({name: _file("", file) for name, file in files.items()}), ".dir")
        else:
            _keep(self.clone, place.read_bytes())
        return found

    def lock(self) -> None:
        """Write dvc.lock of all stages that left something, and keep their outputs."""
        stages = yaml.load((self.root / "dvc.yaml").read_text(), yaml.CSafeLoader)["stages"]
        params = yaml.load((self.root / "params.yaml").read_text(), yaml.CSafeLoader)
        text = "schema: '2.0'\nstages:\n"
        for name, stage in stages.items():
            if not all((self.root / path).exists() for path in stage["outs"]):
                continue
            text += f"  {name}:\n    cmd: {stage['cmd']}\n"
            text += "    deps:\n" + "".join(
                self.hashed(path).text for path in sorted({_filled(dep, params) for dep in stage["deps"]})
            )
            text += _params({key: _told(params, key) for key in sorted(stage["params"])}, name)
            text += "    outs:\n" + "".join(self.keep(path).text for path in sorted(stage["outs"]))
        (self.root / "dvc.lock").write_text(text)


def _file(path: str, place: Path) -> Hashed:
    content = place.read_bytes()
    return Hashed(path, _md5(content), len(content))


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and not set(_LEFT_OUT) & set(path.relative_to(folder).parts):
            yield path


def _listing(files: dict[str, Hashed]) -> bytes:
    rows = [{"md5": each.md5, "relpath": name} for name, each in sorted(files.items())]
    return json.dumps(rows, sort_keys=True).encode()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cached(clone: Clone, md5: str) -> Path:
    return clone.dvc_cache / "files" / "md5" / md5[:2] / md5[2:]


def _keep(clone: Clone, content: bytes, ending: str = "") -> None:
    path = cached(clone, _md5(content) + ending)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o444)


def _filled(path: str, params: dict[str, Any]) -> str:
    for name in ("recipe.path", "traffic.file"):
        path = path.replace(f"${{{name}}}", _told(params, name))
    return path


def _told(params: dict[str, Any], name: str) -> Any:
    value: Any = params
    for key in name.split("."):
        value = value[key]
    return value


_PARAMS: dict[str, str] = {}
"""A cache: DVC's writer takes 10 ms for each stage, and most stages have the settings of the run
before."""


def _params(values: dict[str, Any], stage: str) -> str:
    """Write params as DVC does, at their place: the indent decides where long lines are broken."""
    from dvc.utils.serialize._yaml import _get_yaml  # pyright: ignore[reportPrivateUsage]

    key = json.dumps([stage, values], sort_keys=True)
    if key not in _PARAMS:
        text = StringIO()
        _get_yaml().dump({"stages": {stage: {"params": {"params.yaml": values}}}}, text)
        _PARAMS[key] = text.getvalue().partition(f"  {stage}:\n")[2]
    return _PARAMS[key]
