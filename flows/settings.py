"""Which settings a run gets: the clone's params.yaml or another file, single keys set on the command line, the newest window of a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rft import config
from rft.errors import ConfigError, UserError
from tasks.clone import Clone


def resolve(clone: Clone, file: str | None = None, overrides: Iterable[str] = ()) -> config.Params:
    """Raises ConfigError naming file, key, value and remedy. `overrides` are like `train.steps=40`; values are YAML."""
    path = Path(file) if file else clone.root / "params.yaml"
    if not path.is_absolute() and not path.exists():
        path = clone.root / path
    return of_file(path, overrides, str(path.relative_to(clone.root) if path.is_relative_to(clone.root) else path))


def of_file(path: Path, overrides: Iterable[str] = (), where: str = "") -> config.Params:
    """`where`: what messages call the file."""
    raw = config.read_sections(path, where or str(path))
    for override in overrides:
        _set(raw, override)
    return config.parse(raw, where or str(path))


def newest(clone: Clone, window: str | None) -> Path | None:
    """A file as it is; of a pattern such as `data/inbox/*.jsonl` the last by name. Raises UserError when nothing fits."""
    if window is None:
        return None
    if not any(letter in window for letter in "*?["):
        return Path(window) if Path(window).exists() else clone.root / window
    if found := sorted(clone.root.glob(window)):
        return found[-1]
    raise UserError(f"no file fits the pattern {window!r} in {clone.root}. Put a window of traffic there, or name another by --window.")


def _set(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not sections:
        raise ConfigError(f"--set {override}: write it as section.key=value, such as --set train.steps=40")
    place = raw
    for section in sections:
        inner = place.get(section)
        if not isinstance(inner, dict | None):
            raise ConfigError(f"--set {override}: {section!r} is no section in that file, it holds {type(inner).__name__}. Set it as a whole.")
        place[section] = place = dict(inner or {})
    place[last] = config.yaml_value(value, f"--set {override}")
