"""With what a run worked: Python, agent-rft and every installed package, at each of its starts."""

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
    """`data/environment.json`, written by the flow: a run that was cut off may go on in another
    environment, and then has several starts."""

    starts: list[Start]
