"""A policy behind plain chat completions: messages in, structured tool calls out.

This is for any OpenAI-compatible endpoint, in evaluation and prompt search. Its turns cannot be
trained on, because the endpoint renders the messages itself and returns text. A server that also
returns token ids (vLLM's `return_token_ids`) may be asked for them. Then each turn has the ids, the
log-probabilities and the whole context that it was sampled from. The loop marks a turn as forked if
its context does not continue ours.

The endpoint decides whether a tool's result that contains `<|im_end|>` ends a turn:
rft/chat/control.py keeps such text apart only where we render the prompt ourselves.

An assistant message goes back as it came, with its reasoning and its calls' own ids. If params.yaml
or the endpoint's list of models sets a limit, the endpoint's latest `usage` is counted against it.
Otherwise a dialogue is too long when the endpoint refuses it.

Reasoning models need another dialect (`policy.server.dialect: openai_reasoning`):
`max_completion_tokens`, and no temperature.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

from rft import config, progress
from rft.chat.renderer import no_room
from rft.errors import InfrastructureError, UserError
from rft.rollouts.policy import PolicyFailed
from rft.sampling.remote import context
from rft.sampling.remote.connection import Connection, Refused, parsed
from rft.sampling.remote.routes import cached_tokens, field, only_choice, token_ids, tokens
from rft.sampling.remote.tokens import fold
from rft.types import Message, Opening, Reading, Sampled, ToolCall, ToolResult, Usage
from rft.wire.contract import Malformed

ENDED = {"stop": True, "tool_calls": True, "function_call": True, "length": False}
REASONING = ("reasoning_content", "reasoning")
TOO_LONG = ("context_length_exceeded", "maximum context length")  # OpenAI's code, vLLM's words
ABSENT = (404, 405, 501)


class ChatPolicy:
    """`tools`: Chat-Completions functions for openings without their own. `with_ids`: ask for token
    ids, and fail without them."""

    blocks = False

    def __init__(
        self, section: config.PolicyServer, tools: Sequence[Mapping[str, Any]], with_ids: bool = False
    ) -> None:
        self.trainable = with_ids
        self.tools, self.model, self.connection = list(tools), section.model, Connection(section)
        self.is_reasoning = section.dialect == "openai_reasoning"
        self.longest: int | None = None
        """The endpoint's longest context, once `fetch_context_limit` has asked; None: unknown."""
        self._timeout_s = section.timeout_s
        self._longest_tried = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.connection.close()

    def open(
        self,
        openings: Sequence[Opening],
        seeds: Sequence[Sequence[int]],
        temperature: float,
        max_context_tokens: int | None,
    ) -> list[ChatDialogue]:
        if self.is_reasoning and temperature == 0:
            _warn_not_greedy(self.connection.url, self.model)
        limit = self.limit(max_context_tokens)
        pairs = zip(openings, seeds, strict=True)
        return [ChatDialogue(self, opening, seed, temperature, limit) for opening, seed in pairs]

    # -- before the first batch --------------------------------------------------------------------
    def limit(self, configured: int | None) -> int | None:
        """Return the limit of a whole context; None if we know of none. Raises ConfigError if the
        endpoint takes less."""
        return context.limit(configured, self.longest)

    async def fetch_context_limit(self, max_context_tokens: int | None) -> None:
        """Ask once how long a context the endpoint takes. If it does not list our model, we do not
        know."""
        try:
            self.longest = (await context.served(self.connection)).get(self.model)
        except Refused as refused:
            if refused.status not in ABSENT:
                raise
        self.limit(max_context_tokens)

    async def check_openings(self, openings: Sequence[Opening], max_context_tokens: int | None) -> None:
        """Let the server count tokens if it can; else try the opening with the most characters,
        with a turn of one token."""
        if not openings:
            return
        sizes = [len(json.dumps(self.asked(opening))) for opening in openings]
        longest, limit = openings[sizes.index(max(sizes))], self.limit(max_context_tokens)
        if limit is not None and await self._count(longest) is not None:
            counts = await asyncio.gather(*map(self._count, openings))
            for opening, count in zip(openings, counts, strict=True):
                if count is not None and count >= limit:
                    raise no_room(opening, count, limit)
        elif max(sizes) > self._longest_tried:
            await self._try(longest, limit)
            self._longest_tried = max(sizes)

    async def _count(self, opening: Opening) -> int | None:
        """Count an opening's tokens by vLLM's /tokenize. None if the server cannot count a chat."""
        try:
            reply = await self.connection.post("/tokenize", self.asked(opening), self._timeout_s, parsed)
        except (Refused, PolicyFailed):
            return None  # `_try` asks the route that rollouts use, and reports the server's own trouble
        count = reply.get("count") if isinstance(reply, dict) else None
        return count if type(count) is int else None

    async def _try(self, opening: Opening, limit: int | None) -> None:
        body = ChatDialogue(self, opening, (0,), 1.0, limit).body(1)
        try:
            used = await self.connection.post(
                "/v1/chat/completions", body, self._timeout_s, lambda text: _prompt_tokens(parsed(text))
            )
        except Refused as refused:
            if is_too_long(refused):
                raise too_long(opening, refused) from None
            if self.is_reasoning and refused.status == 400:
                return  # OpenAI's reasoning models refuse one token as too few, but only if the prompt fits
            raise
        except PolicyFailed as failure:
            raise InfrastructureError(str(failure)) from None
        if limit is not None and used >= limit:
            raise no_room(opening, used, limit)

    def asked(self, opening: Opening) -> dict[str, Any]:
        """Return model, messages and tools, as in every body."""
        tools = self.tools if opening.tools is None else list(opening.tools)
        body: dict[str, Any] = {"model": self.model, "messages": list(opening.messages)}
        return {**body, "tools": tools} if tools else body


def is_too_long(refused: Refused) -> bool:
    return refused.status == 400 and any(part in refused.body for part in TOO_LONG)


def too_long(opening: Opening, refused: Refused) -> UserError:
    return UserError(
        f"example {opening.example_id!r}: its opening does not fit into the endpoint's context: {refused.body}. "
        "Shorten the prompt, the row's messages or its tools, lower rollout.max_turn_tokens, or choose a model with "
        "a longer context."
    )


@cache
def _warn_not_greedy(url: str, model: str) -> None:
    progress.print_line(
        "server",
        f"{model} at {url} takes no temperature (dialect openai_reasoning): its greedy rollouts are sampled as "
        "it likes",
    )


class ChatDialogue:
    """One rollout's messages, as sent and as sampled."""

    prompt_ids: tuple[int, ...] = ()

    def __init__(
        self, policy: ChatPolicy, opening: Opening, seed: Sequence[int], temperature: float, limit: int | None
    ) -> None:
        self._policy, self._opening, self._seed, self._temperature = policy, opening, seed, temperature
        self._limit = self._room = math.inf if limit is None else limit
        self._messages: list[Message] = list(opening.messages)
        self._turn = 0

    async def sample(self, max_new: int, deadline_s: float) -> Sampled:
        post = self._policy.connection.post
        try:
            sampled, message, used = await post("/v1/chat/completions", self.body(max_new), deadline_s, self._read)
        except Refused as refused:
            if not is_too_long(refused):
                raise
            if not self._turn:
                raise too_long(self._opening, refused) from None
            # the dialogue outgrew the endpoint: the policy's fault, as with our own limit
            return Sampled("", Reading(""), ended=False, usage=Usage())
        self._messages.append(message)
        self._room = self._limit - used
        self._turn += 1
        return sampled

    def append(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[int, ...] | None:
        """Append results; None if the context is full. Only the endpoint can count their tokens."""
        if self._room <= 0:
            return None
        self._messages += [
            {"role": "tool", "tool_call_id": result.call_id, "content": result.output} for result in results
        ]
        return ()

    def close(self) -> None:
        """The endpoint holds nothing for us."""

    def body(self, max_new: int) -> dict[str, Any]:
        """Make the body of the next turn's request."""
        most = min(max_new, self._room)
        body = {**self._policy.asked(self._opening), "messages": self._messages, "seed": fold(self._seed, self._turn)}
        if self._policy.is_reasoning:
            body["max_completion_tokens"] = most
        else:
            body |= {"max_tokens": most, "temperature": self._temperature}
        if self._opening.response_format is not None:
            body["response_format"] = self._opening.response_format
        if self._policy.trainable:
            body |= {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
        return body

    def _read(self, text: bytes) -> tuple[Sampled, Message, int]:
        """Read the turn, the message that goes back with the next one, and the context's length.
        Raises Malformed."""
        reply = parsed(text)
        choice = only_choice(reply)
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or finish not in ENDED:
            raise Malformed(f"finish_reason is {finish!r}, expected one of {', '.join(ENDED)}")
        message = field(choice, "message", dict)
        content = _text(message, "content") or _text(message, "refusal")
        calls = _calls(message.get("tool_calls") or [], self._turn)
        reasoning = {name: _text(message, name) for name in REASONING if message.get(name)}
        reading = Reading(content, calls, next(iter(reasoning.values()), ""))
        ids, logprobs = self._tokens(choice)
        context_ids = self._context(reply)
        usage = _usage(reply.get("usage"))
        sampled = Sampled(content, reading, ids, logprobs, ENDED[finish], context_ids, usage=usage)
        return sampled, _sent_back(content, calls, reasoning), _used(reply.get("usage"))

    def _tokens(self, choice: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
        if not self._policy.trainable:
            return (), ()
        scores = [field(entry, "logprob") for entry in field(choice, "logprobs.content", list)]
        return tokens(field(choice, "token_ids", list), scores)

    def _context(self, reply: Any) -> tuple[int, ...] | None:
        return token_ids(field(reply, "prompt_token_ids", list)) if self._policy.trainable else None


def _usage(usage: Any) -> Usage | None:
    """Return what the turn cost; None if the endpoint does not count. Some endpoints then write
    zeros."""
    known = usage if isinstance(usage, dict) else {}
    read, written = known.get("prompt_tokens"), known.get("completion_tokens")
    if type(read) is not int or type(written) is not int or read < 1 or written < 0:
        return None
    return Usage(read, cached_tokens(known), written)


def _used(usage: Any) -> int:
    """Return the tokens of context and turn; 0 if the endpoint does not count."""
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    return sum(count for count in counts if type(count) is int)


def _prompt_tokens(reply: Any) -> int:
    """Return the prompt's tokens; 0 if the endpoint does not count."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int else 0


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if value is not None and not isinstance(value, str):
        raise Malformed(f"message.{key} is {type(value).__name__}, expected text")
    return value or ""


def _calls(calls: Any, turn: int) -> tuple[ToolCall, ...]:
    """Read calls with the server's ids. A missing or repeated id is replaced: results need them."""
    if not isinstance(calls, list):
        raise Malformed("message.tool_calls is not a list")
    read: dict[str, ToolCall] = {}
    for number, call in enumerate(calls):
        given = call.get("id") if isinstance(call, dict) else None
        call_id = given if isinstance(given, str) and given else f"call_{turn}_{number}"
        while call_id in read:
            call_id += "_"
        read[call_id] = _call(call, call_id)
    return tuple(read.values())


def _call(call: Any, call_id: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        return ToolCall(call_id, "", "", "a tool call without a function's name")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # some servers give the object itself
        return ToolCall(call_id, name, json.dumps(arguments, ensure_ascii=False))
    if not isinstance(arguments, str):
        return ToolCall(call_id, name, "", f"the arguments of {name} are not JSON text")
    if not arguments:  # some servers write nothing for a tool without parameters
        return ToolCall(call_id, name, "{}")
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return ToolCall(call_id, name, arguments, f"the arguments of {name} are not JSON")
    problem = "" if isinstance(value, dict) else f"the arguments of {name} must be a JSON object"
    return ToolCall(call_id, name, arguments, problem)


def _sent_back(content: str, calls: Sequence[ToolCall], reasoning: Mapping[str, str]) -> Message:
    """Make the message that goes back. Servers answer 400 if a call's arguments are not an object,
    so an unreadable call goes without them; its result says what was wrong."""
    message: Message = {"role": "assistant", "content": content, **reasoning}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name or "unknown", "arguments": "{}" if call.problem else call.arguments},
            }
            for call in calls
        ]
    return message
