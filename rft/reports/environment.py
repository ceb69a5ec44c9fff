"""The environment of a run at each start: Python, agent-rft and every installed package."""

from __future__ import annotations

from rft.reports.base import Report


class Start(Report):
    started: str
    python: str
    platform: str
    tool: str
    """The version of agent-rft that drove the run; its stages ran the code of the revision."""
    packages: dict[str, str]
    """Name, as PyPI writes it, -> version."""


class Environment(Report):
    """`data/environment.json`, written by the flow. A run that was interrupted may continue in
    another environment, and then has several starts."""

    starts: list[Start]
