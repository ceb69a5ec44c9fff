"""The headers of a request, and the secrets among them that replies must not show.

    static     the headers of params.yaml or grader.json, verbatim. A value `env:NAME` is read from
               the environment here, and is a secret
    X-RFT-*    identify the rollout: Trace-Id, Job-Id, Step, Split, Attempt, and Retry when a call
               is made again
    webhook-*  a Standard-Webhooks signature, if tools.signing_secret is set.
               `client.webhooks.verify_signature` of the openai package checks it

A server may echo a key that it was sent. So `resolve` says which values to redact in replies
(rft/secrets.py). A value that cannot be a header is refused before anything is sent, and is not
shown.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from rft import config
from rft.errors import ConfigError
from rft.secrets import Secrets, names_a_secret
from rft.stopping import RUN
from rft.types import RolloutContext

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# a header may hold a tab; no text may hold a lone surrogate
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[\ud800-\udfff]")
_OURS = re.compile(r"content-length|transfer-encoding|x-rft-.*|webhook-(id|timestamp|signature)", re.IGNORECASE)
OF_THE_BODY = frozenset({"content-type", "webhook-id", "webhook-timestamp", "webhook-signature"})
"""Headers that a request without a body leaves out, in lower case."""
_WIRE_SPLIT = {"validation": "valid"}


def resolve(headers: Mapping[str, str], where: str) -> tuple[dict[str, str], Secrets]:
    """Return the values to send, and the secret ones among them. Raises ConfigError, naming `where`
    and the header."""
    values = {name: config.secret(value) for name, value in headers.items()}
    check(values, where)
    return values, Secrets(
        values[name] for name, value in headers.items() if value.startswith("env:") or names_a_secret(name)
    )


def check(headers: Mapping[str, str], where: str) -> None:
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} is not a header name. Use letters, digits and hyphens.")
        if _OURS.fullmatch(name):
            raise ConfigError(f"{where}: {name} is set by agent-rft itself. Remove it.")
        if _CONTROL.search(value):
            raise ConfigError(f"{where}: the value of {name} holds a newline or a control character. Remove it.")


def of_rollout(context: RolloutContext) -> dict[str, str]:
    """Return a rollout's headers. Raises ValueError for a value that cannot be a header."""
    given = {
        "X-RFT-Trace-Id": context.trace_id,
        "X-RFT-Job-Id": os.environ.get(RUN, ""),
        "X-RFT-Step": str(context.step),
        "X-RFT-Split": _WIRE_SPLIT.get(context.split, context.split),
        "X-RFT-Attempt": str(context.attempt),
    }
    if bad := [name for name, value in given.items() if not (value.isascii() and value.isprintable())]:
        names = ", ".join(bad)
        raise ValueError(f"{names}: a header's value must be ASCII, without newlines or other control characters")
    return {name: value for name, value in given.items() if value}


class Signer:
    """Signs by Standard Webhooks. A message's id is derived from its name, so a retry has the same
    id."""

    def __init__(self, secret: str, where: str = "tools.signing_secret") -> None:
        """`secret`: `env:NAME`, or the value itself, as in params.yaml. `where`: its key there."""
        from standardwebhooks import Webhook

        value = config.secret(secret)
        try:
            key = base64.b64decode(value.removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not value.startswith("whsec_") or not key:
            raise ConfigError(
                f"params.yaml: {where}: a Standard-Webhooks secret is whsec_ followed by base64. "
                "Make one, such as whsec_$(openssl rand -base64 32)."
            )
        self._webhook = Webhook(value)
        self.secrets = Secrets([value])

    def sign(self, message: str, payload: bytes) -> dict[str, str]:
        now = datetime.now(UTC)
        message_id = f"msg_{uuid.uuid5(uuid.NAMESPACE_OID, message)}"
        signature = self._webhook.sign(message_id, now, payload.decode())
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signature,
        }


def signer(section: config.Tools) -> Signer | None:
    return None if section.signing_secret is None else Signer(section.signing_secret)


__all__ = ["OF_THE_BODY", "Signer", "check", "of_rollout", "resolve", "signer"]
