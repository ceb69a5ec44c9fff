"""dvc.lock of a revision: what each stage read and wrote, by MD5. It is the lineage of a run.

`folder_md5` computes DVC's hash of a folder: the MD5 of a list of names and MD5s. With it, a folder
in Git can be compared with the folder that a stage read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rft.needs import NEEDS
from tasks.audit.graph import altered
from tasks.runs.artifacts import Out, read_yaml

PARAMS = "params.yaml"
_VARIABLE = re.compile(r"\$\{([^{}]+)\}")


@dataclass(frozen=True)
class Stage:
    name: str
    command: str
    deps: tuple[Out, ...]
    outs: tuple[Out, ...]
    params: Mapping[str, Any]
    """Section or key -> its value when the stage ran."""


def parse(content: bytes) -> dict[str, Stage]:
    """Return the stages in the order of the ladder. Raises Broken for what DVC did not write."""
    try:
        raw = read_yaml(content)["stages"]
        found = {str(name): _stage(str(name), row) for name, row in raw.items()}
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise altered(f"dvc.lock is not as DVC writes it ({what})") from None
    order = [*NEEDS, *sorted(found.keys() - NEEDS.keys())]
    return {name: found[name] for name in order if name in found}


def _stage(name: str, row: dict[str, Any]) -> Stage:
    params = {key: value for file in row.get("params", {}).values() for key, value in file.items()}
    return Stage(name, str(row["cmd"]), _outs(row.get("deps", [])), _outs(row.get("outs", [])), params)


def _outs(rows: Iterable[dict[str, Any]]) -> tuple[Out, ...]:
    return tuple(Out(row["path"], str(row["md5"]), row.get("size", 0), row.get("nfiles")) for row in rows)


@dataclass(frozen=True)
class Declared:
    """A stage of dvc.yaml, with its variables filled in."""

    command: str
    deps: frozenset[str]
    outs: frozenset[str]
    params: frozenset[str]


def declared(content: bytes, params: Mapping[str, Any]) -> dict[str, Declared]:
    """Return the stages of a dvc.yaml. Raises Broken if it is not one."""
    try:
        stages = read_yaml(content)["stages"]
        return {name: _declared(row, params) for name, row in stages.items()}
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise altered(f"dvc.yaml is not as agent-rft writes it ({what})") from None


def _declared(row: dict[str, Any], params: Mapping[str, Any]) -> Declared:
    def filled(text: object) -> str:
        name = next(iter(text)) if isinstance(text, dict) else text
        return _VARIABLE.sub(lambda found: str(value_of(params, found[1])), str(name))

    return Declared(
        filled(row["cmd"]),
        *(frozenset(filled(each) for each in row.get(key, [])) for key in ("deps", "outs", "params")),
    )


def value_of(params: Mapping[str, Any], name: str) -> Any:
    """Return the value of a section, or of `section.key`. Raises LookupError."""
    found: Any = params
    for part in name.split("."):
        found = found[part]
    return found


def folder_md5(files: Mapping[str, str]) -> str:
    """Return DVC's hash of a folder with these files: path in the folder -> MD5."""
    rows = sorted(({"md5": md5, "relpath": path} for path, md5 in files.items()), key=lambda row: row["relpath"])
    return hashlib.md5(json.dumps(rows).encode(), usedforsecurity=False).hexdigest() + ".dir"
