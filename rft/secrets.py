"""Keep secrets out of every text that comes in or goes out.

params.yaml and grader.json name secrets by their variables (`env:TOOL_KEY`), so no file of ours
holds one. But a tool may echo our headers in its reply, a library may put them into an exception, a
proxy may quote them in an error page. From there they would reach the policy's context, the rollout
log, a report, and with it a Git revision that is kept forever. There are two redactions.

    Secrets     replaces what was sent to one server by `[secret]` in all that comes back from it,
                as bytes, before anything is parsed. It also knows values that settings hold
                literally: the header's name (`names_a_secret`) tells that they are secret
    the rest    one registry per process, for every other text: `[secret NAME]`

        config.parse, config.secret    add the value of each variable that a file of ours names;
                                       rft/tools/lifetime.py adds the key of our own tool server
        redact, redact_json, dumps     clear what a tool or grader says before the policy sees it,
                                       and what is written
        guard                          clears all that Python prints or logs in this process, with
                                       tracebacks of bugs

The registry knows a value in the forms in which programs repeat it: as it is, without its scheme
(`Bearer`), URL-encoded, or escaped for JSON or HTML. It also knows base64 of any alignment, and
hexadecimal digits. It does not know a value that was cut in half, reversed or encrypted. Numbers
are not text and stay. Without secrets, each function returns the very object that it was given.

The standard library has a `secrets` too. Our imports are absolute: `import secrets` means that one.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast
from urllib.parse import quote, quote_plus

VARIABLE = re.compile(r"env:(\w+)")
"""How settings name a secret: by its variable."""
MIN_CHARS = 6
"""config.secret refuses a shorter value, which ordinary text may contain by chance."""

_values: dict[str, str] = {}
_forms: dict[str, str] = {}
"""Each form of a value -> its name, the longest form first."""


def add(name: str, value: str) -> None:
    """Write `value` as `[secret NAME]` from now on. A name has one value, the latest. Raises
    ValueError for a value that is too short."""
    global _forms
    if _values.get(name) == value:
        return
    if len(value) < MIN_CHARS:
        raise ValueError(f"{name} has fewer than {MIN_CHARS} characters")
    _values[name] = value
    found = {form: name for name in sorted(_values, reverse=True) for form in _forms_of(_values[name])}
    _forms = dict(sorted(found.items(), key=lambda pair: (-len(pair[0]), pair[0])))


def forget() -> None:
    """Forget all values, in a process that continues with other settings."""
    global _forms
    _values.clear()
    _forms = {}


def holds(text: str) -> bool:
    return any(form in text for form in _forms)


def redact(text: str) -> str:
    """Replace each registered secret. Idempotent: marks that are already in `text` stay."""
    # searching by `in` for each of some thirty forms is faster than one pattern of all: 1 MB takes
    # 8 ms, 500 letters 2 us
    forms = _forms
    found = [form for form in forms if form in text]
    if not found:
        return text
    marks = {f"[secret {name}]" for name in _values}
    pattern = "|".join(map(re.escape, [*sorted(marks), *found]))
    return re.sub(pattern, lambda hit: hit[0] if hit[0] in marks else f"[secret {forms[hit[0]]}]", text)


def redact_json(value: Any) -> Any:
    """Redact each string in a JSON value, keys included."""
    if not _forms:
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact_json(key): redact_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(inner) for inner in value]
    return value


def dumps(value: Any, **options: Any) -> str:
    """Do what json.dumps does, without secrets. Searching the result is enough, because the
    registry also holds each form as JSON escapes it."""
    result = json.dumps(value, **options)
    return json.dumps(redact_json(value), **options) if holds(result) else result


# -- what was sent to one server -------------------------------------------------------------------
class Secrets:
    """Redacts its values in what a server sent."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        # both "Bearer <key>" and the key alone
        parts = {part for value in values for part in (value, value.partition(" ")[2])}
        self._values = sorted((part for part in parts if len(part) >= MIN_CHARS), key=len, reverse=True)

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets([*self._values, *other._values])

    def redact(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, "[secret]")
        return text

    def redact_bytes(self, body: bytes) -> bytes:
        for value in self._values:
            body = body.replace(value.encode(), b"[secret]")
        return body


# -- what is a secret ------------------------------------------------------------------------------
_NAMES_A_SECRET = re.compile(r"(?i)(authorization|cookie|token|secret|password|signature|(?<!idempotency[-_])key)$")
_IS_A_KEY = re.compile(r"(?i)(bearer|basic) +\S|whsec_|sk-\w")


def variables(value: Any) -> Iterator[str]:
    """Yield NAME of each `env:NAME` in a value."""
    if isinstance(value, str) and (found := VARIABLE.fullmatch(value)):
        yield found[1]
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from variables(inner)


def names_a_secret(name: str) -> bool:
    """Tell whether a header or variable of this name holds a secret: X-Functions-Key,
    Authorization, GITHUB_TOKEN.

    A file must not hold the value of one, and a reply must not show it. An Idempotency-Key is
    random, not secret.
    """
    return _NAMES_A_SECRET.search(name) is not None


def is_a_key(value: str) -> bool:
    """Tell whether a value is a secret by its looks, whatever its name: `Bearer ...`, `sk-...`."""
    return _IS_A_KEY.match(value) is not None


# -- the forms of a value --------------------------------------------------------------------------
def _forms_of(secret: str) -> set[str]:
    found = {part for part in (secret, *_parts(secret)) if len(part) >= MIN_CHARS}
    for part in list(found):
        raw = part.encode("utf-8", "surrogateescape")
        found |= {quote(raw, safe=""), quote(raw), quote_plus(raw), html.escape(part), raw.hex(), *_base64(raw)}
    found |= {re.sub("%..", lambda escape: escape[0].lower(), form) for form in found}
    return found | {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in found for ascii_only in (True, False)}


def _parts(secret: str) -> Iterator[str]:
    """Yield what a server may quote of a header: the token after its scheme, a password, a cookie's
    value."""
    scheme, _, token = secret.partition(" ")
    if " " not in token:
        yield token
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            pair = base64.b64decode(token, validate=True).decode()
            yield from (pair, pair.partition(":")[2])
    yield from (cookie.partition("=")[2] for cookie in secret.split("; "))
    yield secret.removeprefix("whsec_")


def _base64(raw: bytes) -> Iterator[str]:
    """Yield a value in both alphabets of base64. Inside a longer text, the bytes before the value
    shift it by 0, 1 or 2 bytes."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode()
        for shift in range(3):
            shared = (shift + len(raw)) % 3 > 0  # the last letter holds bits of what follows
            yield encode(bytes(shift) + raw).decode().rstrip("=")[(0, 2, 3)[shift] : -1 if shared else None]


# -- all that a process says -----------------------------------------------------------------------
def guard() -> None:
    """Redact whatever Python prints or logs in this process from now on, but not what a child
    process writes to our terminal by itself."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Guarded):
            setattr(sys, name, cast(TextIO, _Guarded(stream)))
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Records):
        logging.setLogRecordFactory(_Records(make))


class _Guarded:
    """A text stream whose writes are redacted. Tracebacks, warnings and most log handlers use it
    too."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Records:
    """Makes redacted log records, for handlers that write elsewhere: to a file, to Prefect's
    store."""

    def __init__(self, make: Any):
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        if not _forms:
            return record
        with contextlib.suppress(Exception):  # a message that does not fit its arguments: logging says so itself
            if holds(message := record.getMessage()):
                record.msg, record.args = redact(message), None
        if record.exc_info and holds(trace := logging.Formatter().formatException(record.exc_info)):
            record.exc_text = redact(trace)  # formatters take it as it stands
        return record
