"""The settings of a run, and the window that it reads.

They come from params.yaml or another file, and from single keys on the command line. The window may
be the newest one that matches a pattern."""

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

TEMPLATE = Path(__file__).parent / "template"
"""What `rft new` copies."""


def resolve(clone: Clone, file: str | None = None, overrides: Iterable[str] = ()) -> config.Params:
    """Read the settings. `overrides` are like `train.steps=40`, with values in YAML.

    Commands that are printed later, by stages too, repeat these settings (rft/commands.py). Raises
    ConfigError, which names file, key, value and remedy.
    """
    overrides = tuple(overrides)
    commands.remember(settings=commands.options(clone.home, file, overrides))
    return of_file(_place(clone, file), overrides, _named(clone, file))


def ungated(
    clone: Clone, file: str | None = None, overrides: Iterable[str] = (), recipe: str | None = None
) -> config.Params:
    """Read settings for a command that decides nothing: margins of the gate may be missing.
    `recipe`: its folder, for use without a file; every other setting then has its default.

    Raises ConfigError like `resolve`.
    """
    overrides = tuple(overrides)
    commands.remember(settings=commands.options(clone.home, file, overrides))
    if file is None and recipe is not None:
        raw: dict[str, Any] = {}
    else:
        raw = config.read_sections(_place(clone, file), _named(clone, file))
    if recipe is not None:
        raw["recipe"] = {"path": recipe}
    raw.setdefault("gate", config.read_sections(TEMPLATE / "params.yaml", "params.yaml")["gate"])
    for override in overrides:
        _set(raw, override)
    return config.parse(raw, "--set" if file is None and recipe is not None else _named(clone, file))


def of_import(path: Path, where: str) -> config.Params:
    """Read the settings of an agent that was just imported, whose margins are not filled in yet."""
    raw = config.read_sections(path, where)
    raw.setdefault("gate", config.read_sections(TEMPLATE / "params.yaml", "params.yaml")["gate"])
    return config.parse(raw, where)


def of_file(path: Path, overrides: Iterable[str] = (), where: str = "") -> config.Params:
    """Read one file. `where` is its name in messages."""
    raw = config.read_sections(path, where or str(path))
    for override in overrides:
        _set(raw, override)
    return config.parse(raw, where or str(path))


def of_run(clone: Clone, record: RunRecord, overrides: Iterable[str] = ()) -> config.Params:
    """Read a run's own settings, changed by `overrides`. Commands that are printed later repeat
    them."""
    raw = _recorded(clone, record)
    overrides = tuple(overrides)
    for override in overrides:
        _set(raw, override)
    commands.remember(settings=[*record.settings, *commands.options(clone.home, None, overrides)])
    return config.parse(config.of_then(raw), f"params.yaml of run {record.name}")


def _recorded(clone: Clone, record: RunRecord) -> dict[str, Any]:
    """Return the params.yaml of a run; while it runs, that of its worktree."""
    if record.revision is None:
        path = clone.worktrees / record.name / record.inside("params.yaml")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    return yaml.safe_load(Revision(clone, record.revision).file("params.yaml") or b"")


def newest(clone: Clone, window: str | None, recipe: str) -> str | Path | None:
    """Return a named file, folder or address, or the last match by name of a pattern such as
    `data/inbox/*.jsonl`.

    A pattern must not match another agent's traffic. A recipe's own traffic is in
    data/inbox/RECIPE. If there is no such folder, it may be anywhere but in another recipe's
    folder. Raises UserError if nothing matches.
    """
    if window is None or "://" in window:
        return window
    if not any(letter in window for letter in "*?["):
        return given(clone, window)
    if found := sorted(clone.home.glob(window)):
        _refuse_foreign(clone, window, found[-1], Path(recipe).name)
        return found[-1]
    raise UserError(
        f"no file matches the pattern {window!r} in {clone.home}. "
        "Put a window of traffic there, or name another with --window."
    )


def given(clone: Clone, log: str | None) -> str | Path | None:
    """Find a log that the user named, in the current folder or else in the agent's."""
    if log is None or "://" in log:
        return log
    return Path(log).absolute() if Path(log).exists() else clone.home / log


def _refuse_foreign(clone: Clone, pattern: str, found: Path, recipe: str) -> None:
    inbox = clone.home / "data" / "inbox"
    own = (inbox / recipe).is_dir()
    folder = found.relative_to(inbox).parts[0] if found.is_relative_to(inbox) and found.parent != inbox else None
    if folder != recipe and (own or (folder and (clone.root / "recipes" / folder).is_dir())):
        whose = f"is traffic of recipe {folder}" if folder else "is in no recipe's folder"
        remedy = f"data/inbox/{recipe}/*.jsonl" if own else f"a pattern that matches only windows of {recipe}"
        raise UserError(
            f"the window pattern {pattern!r} matches {found.relative_to(clone.home)}, which {whose}; "
            f"this recipe is {recipe}. Use {remedy}."
        )


def _place(clone: Clone, file: str | None) -> Path:
    """Find a file that the user named, in the current folder or else in the agent's."""
    path = Path(file) if file else clone.home / "params.yaml"
    return path if path.is_absolute() or path.exists() else clone.home / path


def _named(clone: Clone, file: str | None) -> str:
    """Return its name in messages."""
    path = _place(clone, file)
    return str(path.relative_to(clone.home) if path.is_relative_to(clone.home) else path)


def _set(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not sections:
        raise ConfigError(f"--set {override}: write it as section.key=value, such as --set train.steps=40")
    place = raw
    for section in sections:
        inner = place.get(section)
        if not isinstance(inner, dict | None):
            holds = type(inner).__name__
            raise ConfigError(f"--set {override}: {section!r} is not a section, it holds {holds}. Set it as a whole.")
        place[section] = place = dict(inner or {})
    place[last] = config.yaml_value(value, f"--set {override}")
