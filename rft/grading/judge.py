"""Ask another model for a verdict, on any server with OpenAI's chat completions.

    OPENAI_BASE_URL    its address, such as http://127.0.0.1:8000/v1. There is no default, because
                       nobody should pay for a judge by accident
    OPENAI_API_KEY     its key. If it is not set, no key is sent

The judge must answer in JSON by a schema: the steps of its reasoning, and a result. What the policy
wrote reaches it only through rft/grading/neutralize.py. A failed verdict is not a zero:

    refuses                      judge_error         model_grader_refusal_error
    answers 4xx                  judge_error         model_grader_server_error
    answers prose, or JSON       grader_bad_reply    model_grader_parse_error
    of another schema
    does not answer in time      grader_timeout      model_grader_server_error
    cannot be reached, 5xx       infra_error         model_grader_server_error

All but the first two are retried up to tools.retries times, and each try may take tools.timeout_s.
The stage stops when the key is refused or the server does not know the model. Tokens are counted,
also those of failed tries.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import httpx

from rft import config, secrets
from rft.config.judges import JudgePrices, ModelGrader
from rft.config.templates import Place, Scope, Template
from rft.errors import ConfigError, InfrastructureError
from rft.grading.neutralize import RULE, neutralize
from rft.types import GradeStatus, RolloutContext, Unscored
from rft.wire.client import TRANSIENT, Limits, NoReply, http_address, retry_after, retrying
from rft.wire.contract import Malformed, clip, read_json

BASE_URL, API_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
REFUSED, UNREADABLE, SERVER = "model_grader_refusal_error", "model_grader_parse_error", "model_grader_server_error"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of a judge's verdicts, as its server counted them. `calls`: all replies, also
    those without a count."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    calls: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cached + other.cached,
            self.calls + other.calls,
        )

    def cost(self, prices: JudgePrices) -> float:
        cached = prices.input if prices.cached_input is None else prices.cached_input
        fresh = (self.prompt - self.cached) * prices.input
        return (fresh + self.cached * cached + self.completion * prices.output) / 1e6


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """The judge's result, or why there is none. `evidence`: what was suspicious in the text that it
    read."""

    result: T | Unscored
    explanation: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(slots=True)
class _Sent:
    """Collects what was suspicious in the texts that went into one request."""

    evidence: list[str] = field(default_factory=list)
    quotes: bool = False

    def shown(self, place: Place, value: str) -> str:
        """Return the policy's text neutralized, and the row's text as it is: the user wrote
        that."""
        if place.namespace != "sample":
            return value
        neutral = neutralize(value)
        self.quotes = True
        self.evidence += [f"{place.text}: {secrets.redact(suspicion)}" for suspicion in neutral.evidence]
        return neutral.block


class Judge(Generic[T]):
    """`async with Judge(settings, section, schema, read) as judge: await judge.verdict(...)`.

    `schema`: the schema of the result. `read`: turns the result into what the grader needs, or
    raises Malformed.
    """

    def __init__(
        self, settings: ModelGrader, section: config.Tools, schema: Mapping[str, Any], read: Callable[[Any], T]
    ) -> None:
        """Raises ConfigError if the address is missing or is not one."""
        self._settings, self._section, self._read = settings, section, read
        self._limits = Limits.from_params(section)
        self._url = f"{address(settings.name).rstrip('/')}/chat/completions"
        self._headers = _authorization()
        self._input = [(message.role, Template.read(message.content)) for message in settings.input]
        self._asked = _request(settings, schema)
        self._client: httpx.AsyncClient | None = None
        self.usage = TokenUsage()

    async def __aenter__(self) -> Self:
        self._slots = asyncio.Semaphore(self._section.concurrency)
        self._client = httpx.AsyncClient(timeout=None, trust_env=False, limits=httpx.Limits())  # our own slots limit it
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def verdict(self, scope: Scope, context: RolloutContext) -> Verdict[T]:
        """Raises Missing for a template whose place does not exist. Other errors stop the stage."""
        sent = _Sent()

        def rendered() -> list[dict[str, str]]:
            return [{"role": role, "content": text.render(scope, sent.shown)} for role, text in self._input]

        messages = await asyncio.to_thread(rendered)  # 40 kB take up to 0.3 s, and other rollouts wait for this loop
        body = {**self._asked, "messages": _with_rule(messages) if sent.quotes else messages}
        payload = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")

        async def once(attempt: int) -> Verdict[T]:
            async with self._slots, asyncio.timeout(self._limits.timeout_s):
                return self._verdict(await self._post(payload))

        try:
            found, _ = await retrying(self._limits, f"{context.trace_id} judge {self._settings.name}", once)
        except NoReply as failure:
            return Verdict(self._failed(failure), evidence=tuple(sent.evidence))
        return Verdict(found.result, found.explanation, tuple(sent.evidence))

    def _failed(self, failure: NoReply) -> Unscored:
        message = f"judge {self._settings.model}: {failure}"
        if failure.malformed:
            return Unscored(GradeStatus.grader_bad_reply, message, (UNREADABLE,))
        return Unscored(GradeStatus.grader_timeout if failure.late else GradeStatus.infra_error, message, (SERVER,))

    # -- one try -----------------------------------------------------------------------------------
    async def _post(self, payload: bytes) -> tuple[int, bytes]:
        if self._client is None:
            raise RuntimeError("open the judge with `async with`")
        try:
            async with self._client.stream("POST", self._url, content=payload, headers=self._headers) as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > self._limits.max_reply_bytes:
                        raise Malformed("the reply is larger than tools.max_reply_bytes")
                pause_s = retry_after(response.headers.get("Retry-After"))
        except httpx.HTTPError as error:
            raise NoReply(f"{type(error).__name__}: {error}") from None
        if response.status_code in TRANSIENT:
            raise NoReply(f"HTTP {response.status_code}: {clip(bytes(body))}", retry_after_s=pause_s)
        return response.status_code, bytes(body)

    def _verdict(self, reply: tuple[int, bytes]) -> Verdict[T]:
        """Raises Malformed. Other errors stop the stage."""
        status, body = reply
        model = self._settings.model
        if status in (401, 403):
            why = f"HTTP {status}: {clip(body)}"
            raise InfrastructureError(f"the judge {model!r} refuses our key ({why}). Export {API_KEY}.")
        if status == 404:
            remedy = f"Check {BASE_URL} = {self._url.removesuffix('/chat/completions')}, and model in grader.json."
            raise ConfigError(f"grader.json: the judge {model!r} is not there (HTTP 404: {clip(body)}). {remedy}")
        if status >= 300:
            return Verdict(Unscored(GradeStatus.judge_error, f"judge {model}: HTTP {status}: {clip(body)}", (SERVER,)))
        value = read_json(body)
        self.usage += _usage(value)
        message, finish = _choice(value, body)
        refusal = message.get("refusal")
        if refusal or finish == "content_filter":
            shown = clip(str(refusal or "its server filtered the content").encode("utf-8", "replace"))
            return Verdict(Unscored(GradeStatus.judge_error, f"judge {model} refused: {shown}", (REFUSED,)))
        content = message.get("content")
        if not isinstance(content, str):
            raise Malformed(f"the judge's message has no text: {clip(body)}")
        verdict = _object(content)
        return Verdict(self._read(verdict["result"]), _steps(verdict.get("steps")))


def address(name: str) -> str:
    """Return the address of judges. Raises ConfigError where the environment does not set it."""
    url = os.environ.get(BASE_URL, "")
    like = "http://127.0.0.1:8000/v1"
    if not url:
        raise ConfigError(
            f"grader.json: {name!r} asks a judge, and the environment variable {BASE_URL} is not set. Export the "
            f"judge's address, such as {like}."
        )
    return http_address(url, BASE_URL, like)


def _authorization() -> dict[str, str]:
    found = {"Content-Type": "application/json"}
    key = os.environ.get(API_KEY, "")
    if len(key) >= secrets.MIN_CHARS:  # a shorter one is a stand-in for servers that need no key
        config.secret(f"env:{API_KEY}")
    return found | ({"Authorization": f"Bearer {key}"} if key else {})


def _request(settings: ModelGrader, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make the part that is the same in every request."""
    step = {
        "type": "object",
        "properties": {"description": {"type": "string"}, "conclusion": {"type": "string"}},
        "required": ["description", "conclusion"],
        "additionalProperties": False,
    }
    whole = {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": step}, "result": dict(schema)},
        "required": ["steps", "result"],
        "additionalProperties": False,
    }
    sampling = settings.sampling_params.model_dump(exclude_none=True)
    if "max_completions_tokens" in sampling:
        sampling["max_completion_tokens"] = sampling.pop("max_completions_tokens")
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": whole}}
    return {"model": settings.model, "response_format": form, **sampling}


def _with_rule(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Explain the blocks first. An existing system message is extended, because some servers accept
    only one."""
    first = messages[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{RULE}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": RULE}, *messages]


# -- what it said ----------------------------------------------------------------------------------
def _choice(value: Any, body: bytes) -> tuple[dict[str, Any], Any]:
    try:
        choice = value["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Malformed(f"the judge's reply has no message: {clip(body)}") from None
    if not isinstance(message, dict):
        raise Malformed(f"the judge's reply has no message: {clip(body)}")
    return message, finish


def _object(content: str) -> dict[str, Any]:
    shown = clip(content.encode("utf-8", "replace"))
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise Malformed(f"the judge's answer is not JSON: {shown}") from None
    if not isinstance(value, dict) or "result" not in value:
        raise Malformed(f"the judge's answer has no 'result': {shown}")
    return value


def _steps(value: Any) -> str:
    """Join the judge's conclusions into a text for people."""
    steps = value if isinstance(value, list) else []
    conclusions = [str(step.get("conclusion", "")) for step in steps if isinstance(step, dict)]
    return clip("; ".join(filter(None, conclusions)).encode("utf-8", "replace"), 500)


def _usage(value: Any) -> TokenUsage:
    counted = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(counted, dict):
        return TokenUsage(calls=1)
    details = counted.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return TokenUsage(_count(counted.get("prompt_tokens")), _count(counted.get("completion_tokens")), _count(cached), 1)


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
