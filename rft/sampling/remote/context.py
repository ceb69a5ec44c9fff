"""Asks a policy's server how long a context it takes.

Its `/v1/models` says so: `max_model_len` at vLLM and SGLang, `context_length` or `context_window`
at others; OpenAI's own says nothing.
"""

from __future__ import annotations

from rft import config
from rft.errors import ConfigError
from rft.sampling.remote.connection import Connection

FIELDS = ("max_model_len", "context_length", "context_window")


async def served(connection: Connection) -> dict[str, int | None]:
    """Return each model that the server lists, with its longest context; None if it does not
    say."""
    reply = await connection.get("/v1/models")
    models = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(models, list):
        return {}
    return {str(model.get("id")): _length(model) for model in models if isinstance(model, dict)}


def _length(model: dict[str, object]) -> int | None:
    lengths = [value for name in FIELDS if type(value := model.get(name)) is int and value > 0]
    return lengths[0] if lengths else None


def limit(configured: int | None, longest: int | None) -> int | None:
    """Return the limit of a whole context: `configured`, else the server's `longest`. Raises
    ConfigError if the server takes less."""
    if configured is None:
        return longest
    if longest is not None and configured > longest:
        raise ConfigError(
            f"params.yaml: rollout.max_tokens = {configured}, but the server takes {longest}. Lower it, or start the "
            "server with a longer context (vLLM: --max-model-len, SGLang: --context-length)."
        )
    return configured


def unknown(section: config.PolicyServer) -> ConfigError:
    return ConfigError(
        "params.yaml: rollout.max_tokens is not set, and the server's /v1/models does not say how long a context "
        f"{section.model!r} takes ({', '.join(FIELDS)}). Set rollout.max_tokens."
    )
