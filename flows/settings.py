"""Which settings a run gets: the clone's params.yaml or another file, single keys set on the
command line, the newest window of a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from rft import commands, config
from rft.errors import ConfigError, UserError
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


def resolve(clone: Clone, file: str | None = None, overrides: Iterable[str] = ()) -> config.Params:
    """Raises ConfigError naming file, key, value and remedy. `overrides` are like `train.steps=40`;
    values are YAML.

    Commands that are printed from here on, by stages too, ask for the same settings again
    (rft/commands.py).
    """
    overrides = tuple(overrides)
    commands.remember(settings=commands.options(clone.root, file, overrides))
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


def of_run(clone: Clone, record: RunRecord, overrides: Iterable[str] = ()) -> config.Params:
    """A run's own settings, single keys changed by `overrides`. Commands that are printed from here
    on ask for the same."""
    raw = _recorded(clone, record)
    overrides = tuple(overrides)
    for override in overrides:
        _set(raw, override)
    commands.remember(settings=[*record.settings, *commands.options(clone.root, None, overrides)])
    return config.parse(raw, f"params.yaml of run {record.name}")


def _recorded(clone: Clone, record: RunRecord) -> dict[str, Any]:
    """The params.yaml of a run; while it is going on, that of its worktree."""
    if record.revision is None:
        return yaml.safe_load((clone.worktrees / record.name / "params.yaml").read_text(encoding="utf-8"))
    return yaml.safe_load(Revision(clone, record.revision).file("params.yaml") or b"")


def newest(clone: Clone, window: str | None, recipe: str) -> Path | None:
    """A file as it is; of a pattern such as `data/inbox/*.jsonl` the last by name. Raises UserError
    when nothing fits.

    A pattern takes what it finds, so it must not find another agent's traffic: that of a recipe
    lies in data/inbox/RECIPE, or, where there is no such folder, in no other recipe's.
    """
    if window is None:
        return None
    if not any(letter in window for letter in "*?["):
        return Path(window) if Path(window).exists() else clone.root / window
    if found := sorted(clone.root.glob(window)):
        _refuse_foreign(clone, window, found[-1], Path(recipe).name)
        return found[-1]
    raise UserError(
        f"no file fits the pattern {window!r} in {clone.root}. Put a window of traffic there, or name another by "
        "--window."
    )


def _refuse_foreign(clone: Clone, pattern: str, found: Path, recipe: str) -> None:
    inbox = clone.root / "data" / "inbox"
    own = (inbox / recipe).is_dir()
    folder = found.relative_to(inbox).parts[0] if found.is_relative_to(inbox) and found.parent != inbox else None
    if folder != recipe and (own or (folder and (clone.root / "recipes" / folder).is_dir())):
        whose = f"traffic of recipe {folder}" if folder else "no traffic of that recipe"
        remedy = f"data/inbox/{recipe}/*.jsonl" if own else f"a pattern for {recipe}'s own windows"
        raise UserError(
            f"the window pattern {pattern!r} finds {found.relative_to(clone.root)}, {whose}; the recipe is {recipe}. "
            f"Write {remedy}."
        )


def _set(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not sections:
        raise ConfigError(f"--set {override}: write it as section.key=value, such as --set train.steps=40")
    place = raw
    for section in sections:
        inner = place.get(section)
        if not isinstance(inner, dict | None):
            raise ConfigError(
                f"--set {override}: {section!r} is no section in that file, it holds {type(inner).__name__}. Set it "
                "as a whole."
            )
        place[section] = place = dict(inner or {})
    place[last] = config.yaml_value(value, f"--set {override}")
