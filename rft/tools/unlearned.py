"""Refuse settings that show an embedded policy text which it never learned to read.

An embedded policy is built and warm-started on the recipe's own dialogues, with the schemas of the
recipe's own tools. Other settings add to the prompt of a run: tools of MCP servers, endpoints with
a schema of their own, and a form of the final answer. They add hundreds of tokens that the policy
has never seen (585 where the warm start had 21, in a refund desk). Each rollout then scores 0, and
nothing says why. So such settings are refused before the warm start.
"""

from __future__ import annotations

from collections.abc import Iterator

from rft import config
from rft.errors import ConfigError

_REMEDY = (
    "Name a policy.model or a policy.server, which can read such text. Or, to try the ladder without one, write a "
    "function in the recipe's tools.py that calls your tool."
)


def check(params: config.Params) -> None:
    """Raises ConfigError for settings that an embedded policy cannot follow."""
    if found := [*named(params)]:
        why = "the embedded policy would be shown text that its warm start does not hold, and could not read it"
        raise ConfigError(f"params.yaml: {'; '.join(found)}: {why}. {_REMEDY}")


def named(params: config.Params) -> Iterator[str]:
    """Name the settings that show an embedded policy what it has not learned."""
    if params.policy.model is not None or params.policy.server is not None:
        return
    if params.tools.mcp:
        yield f"tools.mcp = {', '.join(server.name for server in params.tools.mcp)}"
    for endpoint in params.tools.endpoints:
        if endpoint.parameters is not None:
            yield f"tools.endpoints: {endpoint.name} has parameters of its own"
    if params.rollout.response_format is not None:
        yield "rollout.response_format is set"
