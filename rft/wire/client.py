"""The HTTP client of tools and graders: addresses, limits, retries and redirects.

`HttpClient.post` decides who is to blame:

    the policy may be       an oversized reply, or a 4xx that is not below. The caller gets it
    the policy cannot be    5xx, 408, 429, no connection, the deadline, a malformed reply. The
                            request is retried under the same call_id (`retrying`). Then `NoReply`
                            is raised, which leaves the rollout unscored
    it is our setup         our own server is dead, or our key is refused (401). The stage stops

A 303 says where the reply will be. A platform may answer with it while a slow tool still runs. We
follow it by GET on the same host, within the try's deadline. Whatever fails there, the request
itself is never posted again. No other redirect is followed.

We use aiohttp because it made 1,650 to 1,860 calls per second here, and httpx made 47 to 383.
Bodies are in rft/wire/contract.py; headers and signatures are in rft/wire/headers.py.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Self, TypeVar
from urllib.parse import urljoin, urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from rft import config
from rft.errors import ConfigError, InfrastructureError
from rft.secrets import Secrets, redact
from rft.wire import headers
from rft.wire.contract import Envelope, Malformed, clip

BACKOFF_S = 0.1  # doubled at each retry, and spread by half of itself
LONGEST_RETRY_AFTER_S = 30.0  # a server may ask for a pause, but not for a long one
TRANSIENT = frozenset({408, 429, *range(500, 1000)})  # failures of the server that may pass
UNREACHED = re.compile(r"\b(ClientConnector(DNS)?Error|ConnectError|ConnectionRefusedError)\b")
"""Errors in a failure's reason: nothing listens at the address, or the host is unknown."""
LONGEST_HOP_S = 10.0  # between two requests for the reply that a 303 promised; the first is at once


def _nothing() -> None:
    """Stand in for `raise_if_dead` if somebody else runs the server."""


@dataclass(frozen=True)
class ToolEndpoint:
    """The address of the tools, and what to send with each call. `raise_if_dead` raises if our own
    server has ended; `last_output` returns what it printed last."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # holds the key
    raise_if_dead: Callable[[], None] = field(default=_nothing, repr=False)
    secrets: Secrets = field(default_factory=Secrets, repr=False, compare=False)
    last_output: Callable[[], str] = field(default=str, repr=False, compare=False)
    keeps_state: bool = False
    """Whether it keeps state for each rollout, and must be told of the rollout's end at /end."""


class NoReply(Exception):
    """One failed try; if `retry` raises it, all tries failed. `malformed`: the last reply could not
    be read. `late`: it did not come in time. `lasting`: another try cannot help."""

    def __init__(
        self,
        reason: str,
        malformed: bool = False,
        retry_after_s: float = 0.0,
        retries: int = 0,
        lasting: bool = False,
        late: bool = False,
    ) -> None:
        super().__init__(redact(reason))
        self.malformed = malformed
        self.late = late
        self.lasting = lasting
        self.retry_after_s = retry_after_s
        self.retries = retries


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    oversized: bool = False  # cut at max_reply_bytes


# -- limits ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one tool of any kind. `timeout_key`: the key in params.yaml for its
    deadline."""

    timeout_s: float
    retries: int
    max_request_bytes: int
    max_reply_bytes: int
    timeout_key: str = "tools.timeout_s"

    @classmethod
    def from_params(cls, section: config.Tools, own: config.Endpoint | None = None) -> Limits:
        common = cls(section.timeout_s, section.retries, section.max_request_bytes, section.max_reply_bytes)
        if own is None:
            return common
        limits = replace(common, max_reply_bytes=own.max_reply_bytes or common.max_reply_bytes)
        if own.timeout_s is None:
            return limits
        return replace(limits, timeout_s=own.timeout_s, timeout_key=f"tools.endpoints.{own.name}.timeout_s")


class RateLimiter:
    """Limits the requests to one tool: at most `rate` per second, evenly spaced, first come first
    served. Each takes one of the slots that all tools share."""

    def __init__(self, slots: asyncio.Semaphore, rate: float | None) -> None:
        self._slots = slots
        self._gap_s = 1 / rate if rate else 0.0
        self._next = 0.0
        self._queue = asyncio.Lock()

    def __aenter__(self) -> Awaitable[object]:
        return self._take_turn() if self._gap_s else self._slots.acquire()

    async def _take_turn(self) -> None:
        async with self._queue:  # a request that waits for the clock holds no slot
            await asyncio.sleep(self._next - time.monotonic())
            await self._slots.acquire()
            self._next = time.monotonic() + self._gap_s

    async def __aexit__(self, *exc: object) -> None:
        self._slots.release()


T = TypeVar("T")
_Try = Callable[[int], Awaitable[T]]


async def retry(
    once: _Try[T], retries: int, pause_s: Callable[[int], float], overrun: str, ends: float = math.inf
) -> tuple[T, int]:
    """Call `once(number of the try)` until it gives a value; return it and the number of retries.

    `pause_s(number)`: the wait before a retry, in addition to the pause that the server asked for.
    `overrun`: the message for a TimeoutError. No try begins after `ends`. Raises NoReply when all
    tries failed.
    """
    failure, tries = None, 0
    for attempt in range(retries + 1):
        wait_s = min(failure.retry_after_s, LONGEST_RETRY_AFTER_S) + pause_s(attempt) if failure else 0.0
        if time.monotonic() + wait_s >= ends:
            break
        if attempt:
            await asyncio.sleep(wait_s)
        tries += 1
        try:
            return await once(attempt), attempt
        except Malformed as error:
            failure = NoReply(str(error), malformed=True)
        except TimeoutError:
            failure = NoReply(overrun, late=True)
        except NoReply as error:
            failure = error
        if failure.lasting:
            break
    failure = failure or NoReply("")  # the time was up before the first try
    message = f"{failure} ({tries} {'try' if tries == 1 else 'tries'})"
    raise NoReply(message, failure.malformed, 0.0, max(0, tries - 1), failure.lasting, failure.late)


def retrying(limits: Limits, message: str, once: _Try[T]) -> Coroutine[Any, Any, tuple[T, int]]:
    """Retry as tools and graders do; await the result. Jitter is derived from `message`, so equal
    runs pause equally, but neighbors do not."""

    def pause_s(attempt: int) -> float:
        return BACKOFF_S * 2 ** (attempt - 1) * random.Random(f"{message} {attempt}").uniform(0.5, 1.5)

    return retry(once, limits.retries, pause_s, f"no reply within {limits.timeout_key} = {limits.timeout_s:g} s")


def retry_after(value: str | None) -> float:
    """Return the header's seconds, or the seconds until its date; 0 for anything else."""
    if value is None:
        return 0.0
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


# -- posting ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Target:
    """An address with its headers and limits. `where`: the setting to fix if it refuses our key."""

    url: str
    headers: dict[str, str] = field(repr=False)
    secrets: Secrets = field(repr=False)
    limits: Limits
    rate_limiter: RateLimiter = field(repr=False)
    where: str
    raise_if_dead: Callable[[], None] = field(default=_nothing, repr=False)


def http_address(url: str, where: str, like: str = "http://host:8000") -> str:
    if not re.match(r"https?://[^/\s]+(?:/\S*)?$", url):
        raise ConfigError(f"{where} = {url!r} is not an HTTP address. Write it like {like}.")
    return url


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[aiohttp.TCPConnector, int]] = WeakKeyDictionary()
"""For each event loop: its connections, and how many clients share them. Tools and grader are often
one server, and 500 more connections cost a third of the time."""


@dataclass(slots=True)
class _Message:
    """One message, kept across tries, so that a message that a server has accepted is not posted
    again."""

    target: Target
    payload: bytes
    headers: dict[str, str]
    name: str
    """The rollout's trace id and the message's key."""
    url: str
    """The address of the reply: the target's, until a 303 names another one."""
    moved: bool = False


class HttpClient:
    """A session with its slots and signatures. Open it with `async with`. It may be opened again,
    also in another event loop."""

    def __init__(self, section: config.Tools) -> None:
        self._section = section
        self._signer = headers.signer(section)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._slots = asyncio.Semaphore(self._section.concurrency)
        loop = asyncio.get_running_loop()
        pool, num_clients = _pools.get(loop) or (aiohttp.TCPConnector(limit=0), 0)
        _pools[loop] = pool, num_clients + 1
        self._session = aiohttp.ClientSession(
            connector=pool,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # rollouts must not see one another
            # trust_env stays False: no proxies from the environment
            timeout=aiohttp.ClientTimeout(total=None),  # our own timeout is around each try
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is None:
            return
        await self._session.close()
        self._session = None
        loop = asyncio.get_running_loop()
        pool, num_clients = _pools.pop(loop)
        if num_clients > 1:
            _pools[loop] = pool, num_clients - 1
        else:
            await pool.close()

    def rate_limiter(self, rate: float | None) -> RateLimiter:
        return RateLimiter(self._slots, rate)

    def target(
        self,
        url: str,
        static: Mapping[str, str],
        where: str,
        secrets: Secrets,
        own: config.Endpoint | None = None,
        rate: float | None = None,
        raise_if_dead: Callable[[], None] | None = None,
    ) -> Target:
        """Make a target. Raises ConfigError for a header that cannot be sent."""
        headers.check(static, where)
        given = {name.lower() for name in static}
        sent = {**({} if "content-type" in given else {"Content-Type": "application/json"}), **static}
        return Target(
            url=url,
            headers=sent,
            secrets=secrets | self._signer.secrets if self._signer else secrets,
            limits=Limits.from_params(self._section, own),
            rate_limiter=self.rate_limiter(rate),
            where=where,
            raise_if_dead=raise_if_dead or _nothing,
        )

    def post(
        self, target: Target, payload: bytes, envelope: Envelope, key: str, read: Callable[[Reply], T]
    ) -> Coroutine[Any, Any, tuple[T, int]]:
        """Post the payload; await the result of `read` for the reply, and the number of retries.
        `key` names the message within its rollout: the call_id, or grade, start, end.

        Raises NoReply after the last retry, InfrastructureError when going on is pointless.
        """
        name = f"{envelope.context.trace_id} {key}"
        message = _Message(target, payload, {**target.headers, **envelope.headers}, name, target.url)
        return retrying(target.limits, name, lambda attempt: self._try(message, attempt, read))

    async def _try(self, message: _Message, attempt: int, read: Callable[[Reply], T]) -> T:
        target, sent = message.target, message.headers
        async with target.rate_limiter:
            if attempt:
                sent = {**sent, "X-RFT-Retry": str(attempt)}
            if self._signer:
                sent = sent | self._signer.sign(message.name, message.payload)
            try:
                async with asyncio.timeout(target.limits.timeout_s):
                    return read(await self._reply(message, sent))
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error, TimeoutError):
                    raise
                target.raise_if_dead()
                raise NoReply(target.secrets.redact(f"{type(error).__name__}: {error}")) from None

    async def _reply(self, message: _Message, sent: Mapping[str, str]) -> Reply:
        target, hops = message.target, 0
        while True:  # until the try's deadline
            async with self._request(message, sent) as response:
                reply = await _read(response, target)
            if reply.status < 300:
                return reply
            pause_s = retry_after(response.headers.get("Retry-After"))
            if reply.status == 401:
                why = f"HTTP 401: {clip(reply.body)}"
                raise InfrastructureError(f"the server refuses our key ({why}). Fix the headers in {target.where}.")
            if reply.status in TRANSIENT:
                raise NoReply(f"HTTP {reply.status}: {clip(reply.body)}", retry_after_s=pause_s)
            if reply.status >= 400:
                return reply
            message.url = _next_address(reply.status, response.headers.get("Location", ""), message.url, target.secrets)
            message.moved = True
            patience_s = min(BACKOFF_S * 2 ** min(hops - 1, 10), LONGEST_HOP_S) if hops else 0.0
            await asyncio.sleep(max(min(pause_s, LONGEST_RETRY_AFTER_S), patience_s))
            hops += 1

    def _request(
        self, message: _Message, sent: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("open the client with `async with`")
        if message.moved:
            without_body = {name: value for name, value in sent.items() if name.lower() not in headers.OF_THE_BODY}
            return self._session.get(message.url, headers=without_body, allow_redirects=False)
        return self._session.post(message.url, data=message.payload, headers=sent, allow_redirects=False)


def _next_address(status: int, location: str, url: str, secrets: Secrets) -> str:
    """Resolve the Location of a 303 on the same host. Raises NoReply for any other redirect,
    because our keys are only for this host."""
    try:
        following = urljoin(url, location)
        if status == 303 and location and _origin(following) == _origin(url):
            return following
    except ValueError:
        pass  # not an address, which is reported below
    target = clip(secrets.redact(location or "?").encode("utf-8", "replace"))
    raise NoReply(f"HTTP {status} redirects to {target}; only a 303 on the same host is followed", lasting=True)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port. Raises ValueError."""
    parts = urlsplit(url)
    if parts.username is not None:
        raise ValueError("an address with a user name")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


async def _read(response: aiohttp.ClientResponse, target: Target) -> Reply:
    """Read at most max_reply_bytes of the body. The rest of a larger body is not read."""
    limit, body = target.limits.max_reply_bytes, bytearray()
    while chunk := await response.content.readany():
        body += chunk
        if len(body) > limit:
            response.close()
            return Reply(response.status, target.secrets.redact_bytes(bytes(body[:limit])), oversized=True)
    return Reply(response.status, target.secrets.redact_bytes(bytes(body)))
