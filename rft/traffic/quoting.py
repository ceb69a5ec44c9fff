"""Quote a log in a message, without what nobody may store.

What could not be read is named with the value that was in the way, and the manifest keeps that. So
what `traffic.redact` replaces in texts (rft/traffic/redact.py) must not stand in a quotation
either. A rule would not know half a card number, so values are cleaned before they are cut.

    shown(value)      the beginning of a value
    cleaning(clean)   all that is quoted meanwhile goes through `clean` first
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
    """Send through `clean` whatever is quoted in this context."""
    before = _clean.set(clean)
    try:
        yield
    finally:
        _clean.reset(before)
