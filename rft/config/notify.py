"""`run.notify`: who is told that a request waits for approval, and that a scheduled run failed.

A message goes to a webhook, by mail, to both or to nobody. As everywhere, the file names a secret
(`env:NAME`) and never holds it. Mistakes that can be seen here are errors before a run begins. At
the run's end, days later, a message that cannot be sent is only a warning.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rft import secrets
from rft.config.section import Section

_ADDRESS = r"^[^\s@<>,;:\"()\[\]\\]+@[^\s@<>,;:\"()\[\]\\]+$"
_SERVER = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/@\[\]]+))(?::(?P<port>\d{1,5}))?")
_PORTS = {"starttls": 587, "tls": 465, "none": 25}

MailAddress = Annotated[str, Field(pattern=_ADDRESS)]


class Webhook(Section):
    """A server that receives each message as a signed POST (Standard Webhooks)."""

    url: str
    """Address to which messages are posted; `env:NAME` where the address itself is secret."""
    signing_secret: str
    """`env:NAME` of a Standard-Webhooks secret (whsec_...). The receiver verifies messages with
    it."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not secrets.VARIABLE.fullmatch(value):
            check_url(value)
        return value


class Mail(Section):
    """A mail server that takes each message as plain text (SMTP)."""

    to: list[MailAddress] = Field(min_length=1)
    """Addresses of the receivers, without names."""
    from_: MailAddress = Field(alias="from")
    """Address of the sender."""
    server: str
    """HOST or HOST:PORT. The port is 587 for starttls, 465 for tls, 25 for none."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted. starttls: after the first commands. tls: from the start.
    none: not at all."""
    user: str | None = None
    """Login name, or its `env:NAME`. null: no login."""
    password: str | None = None
    """`env:NAME` of the password for `user`."""

    @field_validator("server")
    @classmethod
    def _server(cls, value: str) -> str:
        found = _SERVER.fullmatch(value)
        if found is None or not 0 < int(found["port"] or 1) < 65536:
            raise ValueError("write HOST or HOST:PORT, such as smtp.example.com:587")
        return value

    @model_validator(mode="after")
    def _login(self) -> Mail:
        if (self.user is None) != (self.password is None):
            raise ValueError("set both user and password, or neither")
        if self.user and self.tls == "none" and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError("with tls: none the password would cross the network in clear. Set tls: starttls or tls")
        return self

    @property
    def host(self) -> str:
        found = _SERVER.fullmatch(self.server)
        assert found is not None
        return found["six"] or found["name"]

    @property
    def port(self) -> int:
        found = _SERVER.fullmatch(self.server)
        assert found is not None
        return int(found["port"] or _PORTS[self.tls])


class Notify(Section):
    """Who is told that a request waits for approval, and that a scheduled run failed. A message
    that cannot be delivered is a warning, and never fails a run."""

    webhook: Webhook | None = None
    """A server that receives each message as a signed POST (Standard Webhooks). null: none."""
    mail: Mail | None = None
    """A mail server that takes each message as plain text (SMTP). null: none."""


def check_url(value: str) -> None:
    """Raise ValueError for an address to which nothing can be posted."""
    try:
        parts = urlsplit(value)
        works = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"\s", value)
    except ValueError:  # an impossible port, brackets
        works = False
    if not works:
        raise ValueError("write an address such as https://hooks.example.com/agent")
