"""A tool behind an HTTP address, and who is to blame for its answer.

A 403, 404, 405, 407 or 410 without an `output` is the server's fault, and is not retried. No
argument of the policy can make an address exist or a permission appear. By the contract, the policy
would see the body, and the rollout would be scored. Then a mistyped address would look like a
policy that cannot do the task, and neither the circuit breaker nor the alarm would count it. With
an `output` the tool itself has answered, and the contract holds. A tool whose bare 404 means "no
such record" declares `client_errors: policy`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from rft.errors import ConfigError
from rft.types import ToolCall
from rft.wire.client import HttpClient, Limits, NoReply, Reply, Target
from rft.wire.contract import (
    SERVERS_OWN,
    Envelope,
    Malformed,
    Outcome,
    call_payload,
    clip,
    read_output,
    read_refusal,
    too_large,
)


@dataclass(frozen=True, slots=True)
class HttpTool:
    """A tool that is called with a POST."""

    http: HttpClient
    target: Target
    client_errors: str = "infrastructure"
    """See config.Traits."""

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        payload = call_payload(call, arguments, envelope)
        limits = self.target.limits
        if len(payload) > limits.max_request_bytes:
            check_row(len(payload) - len(json.dumps(arguments)), limits, envelope)
            return request_too_large(limits)

        def read(reply: Reply) -> Outcome:
            if reply.status in SERVERS_OWN and self.client_errors == "infrastructure":
                return Outcome(_tool_output(reply, call.name), is_error=True)
            if reply.oversized:
                return too_large(limits.max_reply_bytes)
            if reply.status >= 400:
                return Outcome(read_refusal(reply.body), is_error=True)
            return Outcome(read_output(reply.body))

        outcome, retries = await self.http.post(self.target, payload, envelope, call.call_id, read)
        return replace(outcome, retries=retries) if retries else outcome


def _tool_output(reply: Reply, name: str) -> str:
    """Return the `output` of a 403, 404, 405, 407 or 410. Raises NoReply if there is none, without
    retries, because a wrong address stays wrong."""
    try:
        return read_output(reply.body)
    except Malformed:
        raise NoReply(
            f"HTTP {reply.status} without an 'output': {clip(reply.body)}. Fix the tool's address or key; or, if the "
            f"policy's arguments cause it, declare client_errors: policy for {name}",
            lasting=True,
        ) from None


def check_row(num_bytes: int, limits: Limits, envelope: Envelope) -> None:
    """Raises ConfigError if a request is too large even without the policy's arguments."""
    if num_bytes > limits.max_request_bytes:
        raise ConfigError(
            f"example {envelope.context.example.id!r}: a request with its row takes {num_bytes} bytes, "
            f"and tools.max_request_bytes is {limits.max_request_bytes}. Make the row smaller."
        )


def request_too_large(limits: Limits) -> Outcome:
    return Outcome(f"Error 413: the request is larger than {limits.max_request_bytes} bytes. Send less.", is_error=True)


__all__ = ["HttpTool", "check_row", "request_too_large"]
