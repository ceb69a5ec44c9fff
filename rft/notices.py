"""Send one message to the webhook and the mail server that `run.notify` names.

Servers that nobody watches are slow, down or misconfigured, and the run that waits here is finished
already. So three rules hold:

    bounded      each channel has its own thread, and all of them together have DEADLINE_S seconds,
                 even if a name does not resolve or a reply comes byte by byte. A thread that is not
                 done by then is left behind, and ends with the process
    repeatable   a failure that may pass (no connection, 5xx, 4xx of SMTP) is tried again after
                 PAUSES_S. Each try carries the same webhook-id or Message-ID, so that a receiver
                 can drop a message that it took before, where only the reply was lost
    harmless     nothing is raised: `deliver` returns for each channel what went wrong, if anything,
                 without secrets

A webhook message is signed as Standard Webhooks say, by the signer of tool requests. For
`rft doctor`, `reach` opens the same connections as far as it can without sending anything.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rft import config, secrets
from rft.config.notify import check_url
from rft.errors import ConfigError
from rft.wire import headers

DEADLINE_S = 20.0
"""Seconds for one message, with its pauses and further tries."""
TRY_S = 8.0
"""Seconds for one answer of a server."""
PAUSES_S = (0.5, 2.0, 4.0)
"""Seconds before each further try."""
_GOODBYE_S = 1.0
_LONGEST = 300
_PASSES = (408, 429)


@dataclass(frozen=True, slots=True)
class Notice:
    """One message, in the two forms in which it goes out."""

    key: str
    """Names the message: two with the same key are the same to a receiver."""
    time: datetime
    subject: str
    text: str
    body: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Outcome:
    setting: str
    """`run.notify.webhook` or `run.notify.mail`."""
    server: str
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.setting} ({self.server})" + (f": {self.problem}" if self.problem else "")


def deliver(settings: config.Notify, notice: Notice) -> list[Outcome]:
    """Send the message to every channel, within DEADLINE_S."""
    return _all(settings, lambda channel, until: _persist(lambda left: channel.send(notice, left), until))


def reach(settings: config.Notify) -> list[Outcome]:
    """Connect to every channel, and log in, without sending anything."""
    return _all(settings, lambda channel, until: channel.reach(_left(until)))


class _Channel(Protocol):
    setting: str

    @property
    def server(self) -> str: ...

    def send(self, notice: Notice, timeout_s: float) -> None: ...

    def reach(self, timeout_s: float) -> None: ...


class _Failed(Exception):
    """The message was not taken. `passes`: a further try may succeed."""

    def __init__(self, message: str, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


# -- within the deadline ---------------------------------------------------------------------------
def _all(settings: config.Notify, act: Callable[[_Channel, float], None]) -> list[Outcome]:
    channels: list[_Channel] = []
    channels += [_Webhook(settings.webhook)] if settings.webhook else []
    channels += [_Mail(settings.mail)] if settings.mail else []
    until = time.monotonic() + DEADLINE_S
    found: dict[str, Outcome] = {}

    def work(channel: _Channel) -> None:
        try:
            act(channel, until)
            found[channel.setting] = Outcome(channel.setting, channel.server)
        except Exception as error:
            found[channel.setting] = Outcome(channel.setting, channel.server, _describe(error))

    threads = [
        threading.Thread(target=work, args=(channel,), name=channel.setting, daemon=True) for channel in channels
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + 0.1 - time.monotonic()))
    late = f"no answer within {DEADLINE_S:g} s; it is not known whether it arrived"
    return [found.get(each.setting) or Outcome(each.setting, each.server, late) for each in channels]


def _persist(attempt: Callable[[float], None], until: float) -> None:
    """Try again what may pass, until it is too late for another try."""
    for number, pause in enumerate((*PAUSES_S, None), 1):
        try:
            attempt(_left(until))
            return
        except _Failed as failed:
            if not failed.passes or pause is None or time.monotonic() + pause >= until:
                tries = f" (tried {number} times)" if number > 1 else ""
                raise _Failed(f"{failed}{tries}") from None
            time.sleep(pause)


def _left(until: float) -> float:
    return max(0.1, min(TRY_S, until - time.monotonic()))


def _describe(error: Exception) -> str:
    text = str(error) if isinstance(error, _Failed | ConfigError) else f"{type(error).__name__}: {error}"
    return secrets.redact(" ".join(text.split()))[:_LONGEST]


# -- the webhook -----------------------------------------------------------------------------------
class _Webhook:
    setting = "run.notify.webhook"

    def __init__(self, section: config.Webhook) -> None:
        self._section = section

    @property
    def server(self) -> str:
        """Return the host alone: the rest of the address may be what keeps strangers out."""
        try:
            return urlsplit(config.secret(self._section.url)).netloc.rpartition("@")[2] or self._section.url
        except (ConfigError, ValueError):
            return self._section.url

    def send(self, notice: Notice, timeout_s: float) -> None:
        import httpx

        body = notice.body.encode()
        signed = headers.Signer(self._section.signing_secret, f"{self.setting}.signing_secret").sign(notice.key, body)
        given = {"content-type": "application/json", "user-agent": "agent-rft", **signed}
        try:
            # the reply's body is not read: the status says all
            with httpx.stream("POST", self._url(), content=body, headers=given, timeout=timeout_s) as reply:
                status = reply.status_code
        except httpx.TimeoutException:
            raise _Failed("no answer in time", passes=True) from None
        except httpx.TransportError as error:
            raise _Failed(f"no connection: {error}", passes=True) from None
        if 300 <= status < 400:
            raise _Failed(f"HTTP {status}: the webhook has moved, and redirects are not followed. Set its new address.")
        if status >= 400:
            raise _Failed(f"HTTP {status}", passes=status >= 500 or status in _PASSES)

    def reach(self, timeout_s: float) -> None:
        headers.Signer(self._section.signing_secret, f"{self.setting}.signing_secret")
        parts = urlsplit(self._url())
        if (proxy := getproxies().get(parts.scheme)) and not proxy_bypass(parts.hostname or ""):
            parts = urlsplit(
                proxy if "//" in proxy else f"http://{proxy}"
            )  # behind a proxy, only the connection to it can be seen
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with socket.create_connection((parts.hostname or "", port), timeout_s) as plain:
                if parts.scheme == "https":
                    ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname).close()
        except OSError as error:
            raise _Failed(f"no connection: {error}") from None

    def _url(self) -> str:
        url = config.secret(self._section.url)
        try:
            check_url(url)
        except ValueError as wrong:
            raise ConfigError(f"params.yaml: {self.setting}.url: {wrong}.") from None
        return url


# -- the mail server -------------------------------------------------------------------------------
class _Mail:
    setting = "run.notify.mail"

    def __init__(self, section: config.Mail) -> None:
        self._section = section

    @property
    def server(self) -> str:
        return f"{self._section.host}:{self._section.port}"

    def send(self, notice: Notice, timeout_s: float) -> None:
        message = self._message(notice)
        with _told_by_smtp(), self._open(timeout_s) as smtp:
            refused = smtp.send_message(message, self._section.from_, self._section.to)
        if refused:
            raise _Failed(f"the server accepted the message for the other recipients, but {_refusals(refused)}")

    def reach(self, timeout_s: float) -> None:
        with _told_by_smtp(), self._open(timeout_s) as smtp:
            smtp.noop()

    @contextmanager
    def _open(self, timeout_s: float) -> Iterator[smtplib.SMTP]:
        section, context = self._section, ssl.create_default_context()
        user, password = (value and config.secret(value) for value in (section.user, section.password))
        if section.tls == "tls":
            opened = smtplib.SMTP_SSL(section.host, section.port, timeout=timeout_s, context=context)
        else:
            opened = smtplib.SMTP(section.host, section.port, timeout=timeout_s)
        try:
            if section.tls == "starttls":
                opened.starttls(context=context)
            if user and password:
                opened.login(user, password)
            yield opened
        finally:
            with suppress(OSError):  # the goodbye does not change whether the message was taken
                if opened.sock:
                    opened.sock.settimeout(_GOODBYE_S)
                    opened.quit()
            opened.close()

    def _message(self, notice: Notice) -> EmailMessage:
        section, message = self._section, EmailMessage()
        message["Subject"] = " ".join(notice.subject.split())
        message["From"], message["To"] = section.from_, ", ".join(section.to)
        message["Date"] = format_datetime(notice.time)
        # not email.utils.make_msgid: a further try needs the same id, and this machine's name must
        # stay here
        message["Message-ID"] = f"<{uuid.uuid5(uuid.NAMESPACE_OID, notice.key)}@{section.from_.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(notice.text)
        return message


@contextmanager
def _told_by_smtp() -> Iterator[None]:
    """Turn what smtplib raises into the server's words, and say whether the failure may pass."""
    try:
        yield
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        raise _Failed(_refusals(error.recipients), passes=all(400 <= code < 500 for code in codes)) from None
    except smtplib.SMTPResponseException as error:
        message = f"the server said {error.smtp_code} {_text(error.smtp_error)}"
        raise _Failed(message, passes=400 <= error.smtp_code < 500 or error.smtp_code < 0) from None
    except smtplib.SMTPServerDisconnected as error:  # smtplib raises this for a time-out too
        late = "timed out" in str(error)
        raise _Failed("no answer in time" if late else "the server closed the connection", passes=True) from None
    except smtplib.SMTPNotSupportedError as error:
        raise _Failed(f"the server cannot do what run.notify.mail asks for: {error}") from None
    except smtplib.SMTPException as error:  # which is an OSError too
        raise _Failed(str(error)) from None
    except TimeoutError:
        raise _Failed("no answer in time", passes=True) from None
    except OSError as error:
        raise _Failed(f"no connection: {error}", passes=not isinstance(error, ssl.SSLCertVerificationError)) from None


def _refusals(refused: dict[str, tuple[int, bytes]]) -> str:
    refusals = (f"{address} ({code} {_text(reply)})" for address, (code, reply) in refused.items())
    return f"the server refused {', '.join(refusals)}"


def _text(reply: bytes | str) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply


__all__ = ["DEADLINE_S", "Notice", "Outcome", "deliver", "reach"]
