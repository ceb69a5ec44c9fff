"""A workspace: one mutated copy of a package, and all that an agent's tools may see of it.

A workspace is one file in the cache, keyed by the package, its version, a hash of its sources and
the number of the world. It is written whole or not at all, and read whole. The tools know a path
only if it names a text in this file, so a path cannot lead to any other file.

The file also holds the rows: each site as it is now, and as it was in the installed package. A row
is a *fact* if its value has changed, so that knowing the package does not help.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rft import files
from rft.errors import InfrastructureError

from . import packages
from .index import Index, words
from .mutation import Mutated, mutate
from .sites import Kind, Site, first_of_each

FORMAT = 1
"""Raise it when a cached file's content changes its meaning."""
CLIP = 48
"""Characters of a value that a tool shows."""


class Row(NamedTuple):
    """One site of a workspace. `true_*`: what it is in the installed package."""

    kind: Kind
    symbol: str
    path: str
    line: int
    value: str
    is_fact: bool
    true_path: str
    true_symbol: str
    true_value: str

    def shown(self, with_value: bool = True) -> str:
        """Write one line of a tool's reply: a fact in the order in which an answer names it."""
        value = f" {_clipped(self.value)}" if with_value and self.value else ""
        return f"{self.symbol} | {self.path} | {self.kind}{value} | line {self.line}"


@dataclass(frozen=True, eq=False)
class Workspace:
    package: str
    world: int
    key: str
    texts: dict[str, str]
    rows: list[Row]
    left_out: list[str]
    """Files of the package that could not be read or mutated."""

    @functools.cached_property
    def index(self) -> Index:
        """Count symbols twice: a search for a class first shows the class, then its users."""
        return Index([[row.kind, *words(row.symbol) * 2, *words(row.value), *words(row.path)] for row in self.rows])

    @functools.cached_property
    def outlines(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {path: [] for path in self.texts}
        for row in self.rows:
            found[row.path].append(row)
        return found


@functools.lru_cache(maxsize=128)
def load(package: str, world: int) -> Workspace:
    """Read a workspace. If it is missing, make it first. Raises UserError for a package without
    sources."""
    key = _key(packages.source(package), world)
    path = files.state() / "cache" / f"code_research-{key}.json"
    files.kept(path, lambda part: _write(part, packages.source(package), world))
    try:
        found = json.loads(path.read_bytes())
        rows = [Row(*row) for row in found["rows"]]
        return Workspace(package, world, key, found["texts"], rows, found["left_out"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}). Delete it: it will be made again.") from None


def of_item(item: dict[str, Any]) -> Workspace:
    """Return the workspace that a row asks about."""
    settings = item["metadata"]
    found = load(settings["package"], settings["world"])
    if settings["workspace"] != found.key:
        raise InfrastructureError(
            f"row {item.get('id')} asks about {settings['workspace']}, but {found.key} is installed. Make the examples "
            "again: run the stage `examples`."
        )
    return found


def key_of(package: str, world: int) -> str:
    return _key(packages.source(package), world)


def _key(source: packages.Source, world: int) -> str:
    return f"{source.package}-{source.version}-{source.digest}-{world}-{FORMAT}"


def _write(path: Path, source: packages.Source, world: int) -> None:
    path.write_text(json.dumps(_made(source, world), separators=(",", ":")), encoding="utf-8")


def _made(source: packages.Source, world: int) -> dict[str, Any]:
    found, left_out = mutate(source, world)
    rows = [row for file in found for row in _rows(file)]
    return {"texts": {file.path: file.text for file in found}, "rows": rows, "left_out": [*source.left_out, *left_out]}


def _rows(file: Mutated) -> Iterator[Row]:
    for n in first_of_each([now for now, _ in file.sites]):
        now, before = file.sites[n]
        if now.kind == "calls" and now.value == before.value:
            continue  # not the package's own
        here = now.kind, now.symbol, file.path, now.line, now.value
        yield Row(*here, _is_fact(now, before), file.true_path, before.symbol, before.value)


def _is_fact(now: Site, before: Site) -> bool:
    """Whether the value can be asked for: it differs from the installed package's, and the symbol
    does not give it away."""
    if now.kind in ("default", "constant") and now.literal is None:
        return False
    is_asked = now.kind in ("default", "constant", "base", "raises", "calls")
    return is_asked and now.value != before.value and now.value not in now.symbol.split(".")


def _clipped(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= CLIP else flat[: CLIP - 3] + "..."
