"""Policies on servers: vLLM and SGLang by tokens, any chat-completions endpoint by messages.

    policy_for(params.policy.server, tools, chat) -> a rollout.Policy, by `kind`
      vllm, sglang   TokenPolicy    tokens in, tokens out: does all that the in-process engine does
      chat           ChatPolicy     messages in, tool calls out: evaluation and prompt search

The parts: `connection` posts, retries and says who is to blame. `context` asks how long a context
the server takes. `routes` knows the token routes' bodies and reads their replies strictly. `tokens`
and `chat` are the policies. A server that does not answer leaves a rollout unscored
(PolicyFailed), never at zero; one that refuses, or lacks a field, stops the stage with the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rft import config
from rft.chat.renderer import Chat
from rft.sampling.remote.chat import ChatPolicy
from rft.sampling.remote.tokens import TokenPolicy


def policy_for(
    section: config.PolicyServer, tools: Sequence[Mapping[str, Any]], chat: Callable[[], Chat]
) -> TokenPolicy | ChatPolicy:
    """Make the policy of a server. `chat` is called for the token kinds only: a chat endpoint needs
    no tokenizer here."""
    if section.kind == "chat":
        return ChatPolicy(section, tools)
    ours = chat()
    return TokenPolicy(section, ours, ours.end_ids)


__all__ = ["ChatPolicy", "TokenPolicy", "policy_for"]
