"""How long a context a policy's server takes.

Its `/v1/models` says so: `max_model_len` at vLLM and SGLang, `context_length` or `context_window`
at others; OpenAI's own says nothing.
"""

from __future__ import annotations

from rft import config
from rft.errors import ConfigError
from rft.sampling.remote.connection import Connection

FIELDS = ("max_model_len", "context_length", "context_window")


async def served(connection: Connection) -> dict[str, int | None]:
    """Each model that the server lists, with its longest context; None where it does not say."""
    reply = await connection.get("/v1/models")
    models = reply.get("data") if isinstance(reply, dict) else None
    return (
        {str(one.get("id")): _length(one) for one in models if isinstance(one, dict)}
        if isinstance(models, list)
        else {}
    )


def _length(model: dict[str, object]) -> int | None:
    said = [value for name in FIELDS if type(value := model.get(name)) is int and value > 0]
    return said[0] if said else None


def limit(configured: int | None, longest: int | None) -> int | None:
    """The bound of a whole context: `configured`, else the server's `longest`. Raises ConfigError
    where the server takes less."""
    if configured is None:
        return longest
    if longest is not None and configured > longest:
        raise ConfigError(
            f"params.yaml: rollout.max_tokens = {configured}, but the server takes {longest}. Lower it, or start the "
            "server with a longer context "
            "(vLLM: --max-model-len, SGLang: --context-length)."
        )
    return configured


def unknown(section: config.PolicyServer) -> ConfigError:
    return ConfigError(
        "params.yaml: rollout.max_tokens is not set, and the server's /v1/models does not say how long a context "
        f"{section.model!r} takes "
        f"({', '.join(FIELDS)}). Set rollout.max_tokens."
    )
