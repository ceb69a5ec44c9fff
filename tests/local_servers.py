"""A webhook receiver and a mail server on sockets of this machine, for tests of what is told.

Both keep what they took. The receiver verifies each signature with the library of Standard
Webhooks before it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiohttp import web
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from standardwebhooks import Webhook

SECRET = "whsec_c2VjcmV0IG9mIHRoZSBub3RpZmllcg=="
PASSWORD = "correct horse battery"


class Hooks:
    """What a webhook receiver took, or refused."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[int] = []
        """Status codes of the next replies; 200 when there are none left."""
        self.silent = threading.Event()
        """Set: no request is answered."""
        self.headers: list[dict[str, str]] = []
        self.taken: list[dict[str, Any]] = []

    @property
    def ids(self) -> list[str]:
        return [one["webhook-id"] for one in self.headers]


@contextlib.contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """Serve an application on a free port, in a thread; yield its address."""
    loop, runner = asyncio.new_event_loop(), web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(runner.cleanup())
        loop.close()


@contextlib.contextmanager
def hooks() -> Iterator[Hooks]:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            given = {name.lower(): value for name, value in self.headers.items()}
            here.headers.append(given)
            if here.silent.is_set():
                over.wait()
                return
            status = here.answers.pop(0) if here.answers else 200
            try:
                found = Webhook(SECRET).verify(body, given)
            except Exception:
                status = 401
            else:
                if status == 200:
                    here.taken.append(found)
            self.send_response(status)
            if status == 302:
                self.send_header("location", f"{here.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        here = Hooks(f"http://127.0.0.1:{server.server_port}/hook")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield here
        over.set()
        server.shutdown()


class Mailbox:
    """What a mail server took."""

    def __init__(self) -> None:
        self.port = 0
        self.taken: list[EmailMessage] = []
        self.to: list[list[str]] = []
        self.answers: list[str] = []
        """What the next messages are answered with."""
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("nobody@"):
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.answers:
            return self.answers.pop(0)
        self.taken.append(message_from_bytes(envelope.content, policy=policy.default))
        self.to.append(envelope.rcpt_tos)
        return "250 taken"

    def login(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


@contextlib.contextmanager
def mailbox(certificate: Path | None = None) -> Iterator[Mailbox]:
    """With a certificate, the server demands STARTTLS and a login."""
    box = Mailbox()
    tls: dict[str, Any] = {}
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        tls = {"tls_context": context, "require_starttls": True, "auth_required": True, "authenticator": box.login}
    box.port = dead_port()  # the controller knocks at its own port, so it must know it
    controller = Controller(box, hostname="127.0.0.1", port=box.port, **tls)
    controller.start()
    try:
        yield box
    finally:
        controller.stop()


def certificate(path: Path) -> Path:
    """A key and its own certificate for 127.0.0.1, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def dead_port() -> int:
    """A port where nothing listens."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


__all__ = ["PASSWORD", "SECRET", "Hooks", "Mailbox", "certificate", "dead_port", "hooks", "mailbox"]
