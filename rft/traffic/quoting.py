"""Quote a log in a message, without what nobody may store.

A message about a row that could not be read quotes the bad value, and the manifest keeps the
message. So what `traffic.redact` replaces in texts (rft/traffic/redact.py) must not be in a
quotation either. A rule would not recognize half a card number, so values are cleaned before they
are cut.

    shown(value)      the beginning of a value
    cleaning(clean)   applies `clean` to all that is quoted in the context
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Clean = Callable[[Any], Any]
_LONGEST = 60
_clean: ContextVar[Clean | None] = ContextVar("_clean", default=None)


def shown(value: Any, longest: int = _LONGEST) -> str:
    """Show the beginning of a value as JSON."""
    return "missing" if value is None else json.dumps(cleaned(value), ensure_ascii=False, default=str)[:longest]


def cleaned(value: Any) -> Any:
    """Return a value without what nobody may store."""
    clean = _clean.get()
    return value if clean is None else clean(value)


@contextmanager
def cleaning(clean: Clean | None) -> Iterator[None]:
    """Apply `clean` to whatever is quoted in this context."""
    before = _clean.set(clean)
    try:
        yield
    finally:
        _clean.reset(before)
