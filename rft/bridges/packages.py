"""Says which packages a source needs that are not installed.

A grader written for another service found them there. Without them no rollout gets a score.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator


def missing(source: str, what: str) -> Iterator[str]:
    """Yield a line for each package that the source imports at its top level and that is not
    installed. `what` names the source."""
    for name in dict.fromkeys(_imported(source)):
        if not _is_here(name):
            yield f"pip install what has the module {name}, which is not here: {what} imports it"


def _imported(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # the code that reads the source reports it
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
