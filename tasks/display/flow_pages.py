"""What Prefect shows of a run: its name, the lines of its stages, its result.

Prefect gives a flow run a random name of two words. When our run begins, the flow run gets our
name. A stage's lines go to the log pages through a logger of our own: Prefect's loggers are silent
at a terminal, and would print each line twice under `rft up`. Prefect's handler sends the lines in
batches from a thread, so no stage waits for it. A server may live only as long as the command, so
`end` sends what is left before the server stops. The result, in Markdown, is an artifact.

Outside a flow nothing is sent. A page that fails does not fail the run: where Prefect does not
answer, one line says so, and Prefect itself decides what becomes of the flow.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from rft import secrets
from tasks.runs.console import Lines

_UNFIT = re.compile(r"[^a-z0-9-]+")
_given_up: set[str] = set()
"""The flow runs whose pages did not take something. Trying again would cost each stage a minute."""
_LEVELS = {"error: ": logging.ERROR, "warning: ": logging.WARNING}


class FlowLines(Lines):
    """A stage's lines, for the log page of the task that runs now. Numbers that count up are
    thinned out, as on any page that only grows."""

    def print_line(self, text: str) -> None:
        log(text)


def also_on_page(report_line: Callable[[str], None]) -> Callable[[str], None]:
    """Return a `report_line` that also writes to the log page."""

    def both(text: str) -> None:
        report_line(text)
        log(text)

    return both


def log(text: str) -> None:
    if _context() is not None:
        level = next((level for start, level in _LEVELS.items() if text.startswith(start)), logging.INFO)
        _logger().log(level, "%s", secrets.redact(text))


def rename(name: str, report_line: Callable[[str], None]) -> None:
    """Name the flow run that runs now."""
    with _page(report_line) as page:
        if page is not None:
            page.client.update_flow_run(page.flow_run_id, name=name)


def artifact(markdown: str, report_line: Callable[[str], None], key: str | None = None, about: str = "") -> None:
    """Show a text on the page of the flow run or task run that runs now. With a key, it is also on
    Prefect's page of artifacts.

    The request is the one that Prefect's functions send, but on the connection that is open
    already. Those functions open a connection for each artifact, and emit an event. If an event is
    still on its way when the flow ends, Prefect warns on the terminal.
    """
    with _page(report_line) as page:
        if page is not None:
            shown = {
                "type": "markdown",
                "key": key and slug(key),
                "description": about,
                "data": secrets.redact(markdown),
                "flow_run_id": page.flow_run_id,
                "task_run_id": page.task_run_id,
            }
            page.client.request("POST", "/artifacts/", json=shown)


def end() -> None:
    """Send the lines that still wait."""
    if _context() is not None:
        for handler in _logger().handlers:
            handler.flush()


def slug(key: str) -> str:
    """Make a key that Prefect takes: letters, digits and dashes."""
    return _UNFIT.sub("-", key.lower()).strip("-")


@dataclass(frozen=True)
class _Page:
    client: Any
    flow_run_id: str
    task_run_id: str | None


@contextlib.contextmanager
def _page(report_line: Callable[[str], None]) -> Iterator[_Page | None]:
    """Yield the page of what runs now; None where nothing is to be sent."""
    context = _context()
    if context is None:
        yield None
        return
    flow, task = getattr(context, "flow_run", None), getattr(context, "task_run", None)
    one: Any = flow or task
    flow_run_id = str(flow.id if flow else one.flow_run_id)
    page = _Page(context.client, flow_run_id, str(task.id) if task else None)
    try:
        yield None if page.flow_run_id in _given_up else page
    except Exception as error:
        _given_up.add(page.flow_run_id)
        why = str(error).splitlines()[0] if str(error) else ""
        report_line(f"[prefect] its pages show less of this run: {type(error).__name__}: {why}")


def _context() -> Any:
    """Return the context of the task or flow that runs now in this thread; None outside a flow,
    such as in a process that never imported Prefect."""
    known = sys.modules.get("prefect.context")
    return known and (known.TaskRunContext.get() or known.FlowRunContext.get())


@cache
def _logger() -> logging.Logger:
    from prefect.logging.handlers import APILogHandler

    logger = logging.getLogger("rft.stages")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(APILogHandler())
    return logger
