"""The connection to a server that samples: session, slots, retries, and who is to blame.

    200 and what `read` expects             the value
    no connection, a hang, 408, 429, 5xx,   passing trouble: retried with growing, jittered pauses,
    a reply that breaks off or is           at most `policy.server.retries` times and never past the
    malformed                               turn's deadline; then PolicyFailed, which leaves one
                                            rollout unscored
    any other status, 501 too               Refused: the next request would be refused too, so the
                                            stage stops with the remedy

The deadline bounds everything, the wait for a slot included. The session belongs to the event loop
that first needs it. It is closed by `close`, or when that loop ends: asyncio then closes the loop's
async generators. In another loop it is opened again.

The client is aiohttp: it made 1,650 to 1,860 small calls per second against one server here, and
httpx 47 to 383. Keys are redacted in everything that comes back (rft/secrets.py).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp

from rft import config, progress
from rft.errors import ConfigError, InfrastructureError
from rft.rollouts.policy import PolicyFailed
from rft.wire import headers
from rft.wire.client import TRANSIENT, NoReply, retry
from rft.wire.contract import Malformed

BACKOFF_S = 0.2  # doubled at each retry, and jittered: rollouts that failed together do not return together
LONGEST_BACKOFF_S = 20.0
NOT_IMPLEMENTED = 501  # the one 5xx that will not pass
LONGEST_HEALTH_S = 10.0
QUIET_S = 10.0  # a wait for a first reply is printed after this time
MAX_SHOWN_CHARS = 300

_OTHER_DIALECT = re.compile(
    r"(?i)\b(max_tokens|temperature)\b.*(unsupported|not support|not allowed|only (the default|1\b))"
    r"|unsupported.*\b(max_tokens|temperature)\b"
)
"""How endpoints of reasoning models refuse `max_tokens`, or a temperature other than their own."""

T = TypeVar("T")


class Refused(InfrastructureError):
    """The server says no, and would say so again."""

    def __init__(self, message: str, status: int, body: str) -> None:
        super().__init__(message)
        self.status, self.body = status, body


class Connection:
    def __init__(self, section: config.PolicyServer) -> None:
        self.url = _address(section.url)
        self._section = section
        self._headers, self._secrets = headers.resolve(section.headers, "params.yaml: policy.server.headers")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._known: set[str] = set()
        """Paths that have replied once, or whose long wait was printed."""

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._session_lifetime.aclose()

    async def post(self, path: str, body: dict[str, Any], deadline_s: float, read: Callable[[bytes], T]) -> T:
        """Post a body and return what `read` makes of the reply; Malformed is retried. Raises
        PolicyFailed or Refused."""
        payload = json.dumps(body).encode()
        ends = time.monotonic() + deadline_s

        async def once(attempt: int) -> T:
            try:
                return read(await self._once("POST", path, payload, ends - time.monotonic()))
            except TimeoutError:
                raise
            except (Malformed, NoReply, aiohttp.ClientError, OSError) as error:
                raise NoReply(self._explain(error)) from None

        overrun = (
            f"no reply in time (policy.server.timeout_s = {self._section.timeout_s:g}, {deadline_s:g} s for the turn)"
        )
        try:
            return (await retry(once, self._section.retries, _pause_s, overrun, ends))[0]
        except NoReply as failure:
            raise PolicyFailed(f"policy.server: {self.url}{path}: {failure}") from None

    async def get(self, path: str) -> Any:
        """Get JSON, without retries. Raises Refused or InfrastructureError."""
        try:
            return parsed(await self._once("GET", path, None, self._section.timeout_s))
        except (Malformed, NoReply, aiohttp.ClientError, OSError) as error:
            raise InfrastructureError(
                f"policy.server.url = {self.url!r}: {path}: {self._explain(error)}. Is that server running?"
                f"{'' if self._headers else _NO_KEY}"
            ) from None

    async def is_up(self) -> bool:
        """Return whether the server says that it is well. vLLM and SGLang have /health for that."""
        try:
            await self._once("GET", "/health", None, min(self._section.timeout_s, LONGEST_HEALTH_S))
        except (InfrastructureError, NoReply, aiohttp.ClientError, OSError):
            return False
        return True

    async def _once(self, method: str, path: str, payload: bytes | None, left_s: float) -> bytes:
        session = await self._session()
        sent = {**self._headers, "Content-Type": "application/json"}
        async with (
            asyncio.timeout(left_s),
            self._slots,
            asyncio.timeout(self._section.timeout_s),
            self._reporting_wait(path, left_s),
            # A redirect would carry the key to an address that nobody declared.
            session.request(method, self.url + path, data=payload, headers=sent, allow_redirects=False) as response,
        ):
            body = self._secrets.redact_bytes(await response.read())
        if response.status == 200:
            return body
        shown = self._shown(body.decode("utf-8", "replace"))
        if response.status in TRANSIENT and response.status != NOT_IMPLEMENTED:
            raise NoReply(f"HTTP {response.status}: {shown}")
        raise self.refusal(path, response.status, shown)

    @asynccontextmanager
    async def _reporting_wait(self, path: str, left_s: float) -> AsyncGenerator[None]:
        """If a path's first reply takes long, print once which one is awaited, and for how long."""
        notice = asyncio.get_running_loop().call_later(QUIET_S, self._report_wait, path, left_s)
        try:
            yield
            self._known.add(path)
        finally:
            notice.cancel()

    def _report_wait(self, path: str, left_s: float) -> None:
        if path not in self._known:
            self._known.add(path)
            limits = {"policy.server.timeout_s": self._section.timeout_s, "the turn's deadline": left_s}
            key, limit_s = min(limits.items(), key=lambda each: round(each[1], 1))
            progress.print_line(
                "server", f"waits for a first reply from {self.url}{path}, for up to {limit_s:.0f} s ({key})"
            )

    def refusal(self, path: str, status: int, why: str) -> Refused:
        why = self._shown(why)
        remedy = _remedy(status, why, self._section)
        return Refused(f"policy.server: {self.url}{path} refuses with HTTP {status}: {why}. {remedy}", status, why)

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Nothing here yields to another coroutine, so no two sessions are opened.
            self._loop = loop
            self._slots = asyncio.Semaphore(self._section.concurrency)
            self._open = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
            self._session_lifetime = _until_the_loop_ends(self._open)
            await anext(self._session_lifetime)
        return self._open

    def _explain(self, error: Exception) -> str:
        return self._shown(str(error) if isinstance(error, Malformed | NoReply) else f"{type(error).__name__}: {error}")

    def _shown(self, text: str) -> str:
        """Put text on one line, redacted and then clipped: clipped first, half a key could stay."""
        text = " ".join(self._secrets.redact(text).split())
        return text[:MAX_SHOWN_CHARS] + ("..." if len(text) > MAX_SHOWN_CHARS else "")


def _pause_s(attempt: int) -> float:
    return min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.5)


_OPEN_SESSIONS: set[aiohttp.ClientSession] = set()
"""Keeps a session whose policy was dropped. So its loop closes it, and not the garbage collector,
which would complain."""


async def _until_the_loop_ends(session: aiohttp.ClientSession) -> AsyncGenerator[None]:
    _OPEN_SESSIONS.add(session)
    try:
        yield
    finally:
        await session.close()
        _OPEN_SESSIONS.discard(session)


def parsed(body: bytes) -> Any:
    """Parse JSON. Raises Malformed."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed(f"the reply is not JSON: {body[:4000].decode('utf-8', 'replace')}") from None


def _address(url: str) -> str:
    if not re.match(r"https?://[^/@?#\s]+(/[^@?#\s]*)?$", url):
        raise ConfigError(
            "params.yaml: policy.server.url is not a plain HTTP address. Write it like http://127.0.0.1:8000; a key "
            "goes into policy.server.headers."
        )
    return url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1").rstrip("/")


_NO_KEY = " If it asks for a key: policy.server.headers, such as {Authorization: env:NAME}."


def _remedy(status: int, why: str, section: config.PolicyServer) -> str:
    if "--enable-scale-out" in why:  # vLLM's own words: its token route is closed by default
        return "Start vLLM with --enable-scale-out: it opens /inference/v1/generate, which samples by tokens."
    if status in (401, 403):
        return (
            "Fix policy.server.headers, such as {Authorization: env:NAME}: the value, `Bearer ...`, is read from that "
            "variable."
        )
    if 300 <= status < 400:
        return "Redirects are not followed: write the final address into policy.server.url."
    if status == 404:
        return (
            f"Does it serve policy.server.model = {section.model!r} (see its /v1/models), and is policy.server.url "
            "its base address?"
        )
    if status in (400, 422) and section.kind == "chat" and section.dialect == "openai" and _OTHER_DIALECT.search(why):
        return "It wants what reasoning models want: set policy.server.dialect: openai_reasoning."
    if status in (400, 422) and "model name" in why:  # LiteLLM's words
        return f"Name another policy.server.model than {section.model!r}: its /v1/models lists them."
    if status in (400, 422):
        return "Is its context (--max-model-len) at least rollout.max_tokens, and does its version know these fields?"
    return "Fix the server, or policy.server in params.yaml."
