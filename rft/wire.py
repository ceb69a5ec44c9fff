"""The bodies that cross between trainer, tools and grader, and the one way of posting them.

The wire is OpenAI's Agent RFT contract: a tool receives a `function_call` whose arguments are a JSON string, and answers with a
`function_call_output`; the grader receives `sample` (the graded view of a trajectory) and `item` (the whole dataset row). One
`trace_id` runs through all calls of a rollout. Reading is lenient, for servers in the field differ: only `output` matters.

`Line.post` decides who is to blame. What the policy can have caused (4xx, an oversized reply) comes back to the caller. What it
cannot have caused (5xx, no connection, the deadline, a reply that is no reply, 408 and 429) is retried under the same call_id and
then raised as `NoReply`, which leaves the rollout unscored. A dead server of ours or a refused key stops the stage instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import aiohttp

from rft import config
from rft.errors import InfrastructureError
from rft.types import StopReason, ToolCall, Turn

BACKOFF_S = 0.1  # doubled at each retry; no jitter, so that equal runs stay equal
TRANSIENT = frozenset({408, 429})  # 4xx by number, but the server's trouble: the policy cannot mend them


def _nothing() -> None:
    """Of a server that somebody else runs we know nothing."""


@dataclass(frozen=True)
class ToolEndpoint:
    """Where the tools are, and what to send along. `raise_if_dead` tells whether a process of ours has ended."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # holds the key
    raise_if_dead: Callable[[], None] = field(default=_nothing, repr=False)


class NoReply(Exception):
    """Retries spent. `malformed`: the last answer came, and was none."""

    def __init__(self, reason: str, malformed: bool = False) -> None:
        super().__init__(reason)
        self.malformed = malformed


class Malformed(ValueError):
    """A 2xx whose body is not what the contract says."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    oversized: bool = False  # cut at tools.max_reply_bytes


# -- bodies ----------------------------------------------------------------------------------------------------------------
def call_body(call: ToolCall, arguments: str, trace_id: str, item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call.call_id}",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": arguments,
        "trace_id": trace_id,
        "item": item,
    }


def read_output(body: bytes) -> str:
    """The text of a tool's reply; other values as JSON. Raises Malformed without an `output`."""
    value = read_json(body)
    if isinstance(value, dict) and "output" not in value and isinstance(value.get("result"), dict):
        value = value["result"]
    if not isinstance(value, dict) or "output" not in value:
        raise Malformed(f"the reply has no 'output': {clip(body)}")
    return as_text(value["output"])


def read_refusal(body: bytes) -> str:
    """The text of a 4xx: its `output` if it has one, else the payload itself."""
    try:
        return read_output(body)
    except Malformed:
        return body.decode("utf-8", "replace")


def sample(turns: Iterable[Turn], stop_reason: StopReason) -> dict[str, Any]:
    """The graded view of a trajectory. A last turn that calls tools is no answer: its text is markup, and is not graded."""
    turns = list(turns)
    last = turns[-1] if turns else Turn("")
    text = "" if last.calls else last.text
    finish_reason = "tool_calls" if last.calls else "length" if stop_reason is StopReason.max_tokens else "stop"
    message = {"role": "assistant", "content": text, "tool_calls": [_tool_call(call) for call in last.calls]}
    calls = [_tool_call(call) for turn in turns for call in turn.calls]
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "output_text": text,
        "output_json": None,  # the contract fills it with a response_format only
        "output_tools": calls,
        "output_audio": None,
        "num_tool_calls": len(calls),
        "stop_reason": str(stop_reason),
    }


def grader_body(turns: Iterable[Turn], stop_reason: StopReason, trace_id: str, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"sample": sample(turns, stop_reason), "item": item, "trace_id": trace_id}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def as_text(value: Any) -> str:
    """Lone surrogates, which JSON can hold and UTF-8 cannot, become '?'."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode("utf-8")


def read_json(body: bytes) -> Any:
    """Raises Malformed. NaN and Infinity parse: their reader judges them."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed(f"the reply is not JSON: {clip(body)}") from None


def clip(body: bytes, limit: int = 200) -> str:
    """The beginning of a body on one line, for a message."""
    text = " ".join(body[: limit * 4].decode("utf-8", "replace").split())
    return text[:limit] + ("..." if len(text) > limit else "")


# -- posting ---------------------------------------------------------------------------------------------------------------
T = TypeVar("T")


class Line:
    """One session with its static headers, its deadline and its retries. Open it with `async with`."""

    def __init__(self, section: config.Tools, headers: Mapping[str, str], raise_if_dead: Callable[[], None] = _nothing) -> None:
        self._section = section
        self._headers = dict(headers)
        self._raise_if_dead = raise_if_dead
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Both belong to the running event loop, so a line may be opened again in another."""
        self._slots = asyncio.Semaphore(self._section.concurrency)
        # No cookies (rollouts must not see one another), no proxies from the environment.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._section.timeout_s),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: Mapping[str, Any], trace_id: str, read: Callable[[Reply], T]) -> T:
        """`read`'s value. Raises NoReply when the retries are spent, InfrastructureError when going on is pointless."""
        payload = json.dumps(body).encode()
        for attempt in range(self._section.retries + 1):
            if attempt:
                await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                return read(await self._once(url, payload, trace_id))
            except Malformed as error:
                failure = NoReply(str(error), malformed=True)
            except TimeoutError:
                failure = NoReply(f"no reply within tools.timeout_s = {self._section.timeout_s:g} s")
            except (aiohttp.ClientError, OSError) as error:
                self._raise_if_dead()
                failure = NoReply(f"{type(error).__name__}: {error}")
            except NoReply as error:
                failure = error
        tries = self._section.retries + 1
        raise NoReply(f"{failure} ({tries} {'try' if tries == 1 else 'tries'})", failure.malformed)

    async def _once(self, url: str, payload: bytes, trace_id: str) -> Reply:
        if self._session is None:
            raise RuntimeError("open the line with `async with`")
        headers = {**self._headers, "Content-Type": "application/json", "X-RFT-Trace-Id": trace_id}
        async with self._slots, self._session.post(url, data=payload, headers=headers, allow_redirects=False) as response:
            reply = await self._read(response)
        if reply.status == 401:
            raise InfrastructureError(
                f"the server refuses our key (HTTP 401: {clip(reply.body)}). Mend the headers in params.yaml (tools.headers) or grader.json."
            )
        if 300 <= reply.status < 400:
            raise NoReply(f"HTTP {reply.status} redirects to {response.headers.get('Location', '?')}; redirects are not followed")
        if reply.status >= 500 or reply.status in TRANSIENT:
            raise NoReply(f"HTTP {reply.status}: {clip(reply.body)}")
        return reply

    async def _read(self, response: aiohttp.ClientResponse) -> Reply:
        """At most max_reply_bytes: a larger one is cut off unread."""
        body = bytearray()
        async for chunk in response.content.iter_chunked(65536):
            body += chunk
            if len(body) > self._section.max_reply_bytes:
                response.close()
                return Reply(response.status, bytes(body[: self._section.max_reply_bytes]), oversized=True)
        return Reply(response.status, bytes(body))
