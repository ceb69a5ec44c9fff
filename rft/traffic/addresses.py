"""Read files at addresses, such as s3://bucket/logs, through fsspec's drivers.

**An object store that fails** is asked again, a few times, from the byte that was reached. After
that, an InfrastructureError names the address. A UserError is raised instead if the address does
not exist, may not be read, or if its driver is not installed.

Names show no user, password or query: they may be secrets, and names go into reports.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from rft.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

TRIES = 3
PAUSE_S = 0.5
"""Seconds before an object store is asked a second time; doubled before the third."""
TIMEOUT_S = 60.0
"""Seconds that an HTTP server may be silent."""
REMEDY = "Set traffic.file to a file, a folder, a pattern or an address with traffic in it."
_CHUNK = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A file at an address. `address` may hold secrets, `name` does not."""

    name: str
    address: str
    num_bytes: int


def is_address(spec: str) -> bool:
    return "://" in spec


def shown(address: str) -> str:
    """Show an address without user, password and query, which may be secrets."""
    if not is_address(address):
        return address
    scheme, rest = address.split("://", 1)
    if scheme in ("http", "https"):  # in other schemes, a question mark is part of a name
        rest = rest.split("?", 1)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rsplit('@', 1)[-1]}{slash}{path}"


def _message(error: Exception) -> str:
    """Return what a driver says, without the secrets of an address that it quotes."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"\?[^\s'\")]*|(?<=//)[^/@\s]+@", "", text)[:200]


class Remote:
    """The file system of an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.scheme = address.split(":", 1)[0].split("::", 1)[0].lower()
        self.files, self.path = self._connect()

    def _connect(self) -> tuple[AbstractFileSystem, str]:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations

        options: dict[str, Any] = {"use_listings_cache": False}
        if self.scheme in ("http", "https"):
            import aiohttp

            options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)}
        try:
            return url_to_fs(self.address, **options)
        except ImportError as error:
            remedy = known_implementations.get(self.scheme, {}).get("err") or str(error)
            raise UserError(f"{shown(self.address)}: a driver for {self.scheme} is missing. {remedy}.") from None
        except ValueError as error:
            known = "such as s3, gs, abfs, https or memory"
            raise UserError(
                f"{shown(self.address)}: {error}. Use an address that fsspec has a driver for, {known}."
            ) from None

    def found(self) -> list[Found]:
        """Find the files: by a pattern, in a folder, or a single file."""
        is_web = self.scheme in ("http", "https")
        if "*" in self.path or ("[" in self.path and not is_web):
            infos: Any = self.asked(lambda: self.files.glob(self.path, detail=True))
        elif not self.path.endswith("/") and (is_web or self.asked(lambda: self.files.isfile(self.path))):
            return [self._file(self.path, self.asked(lambda: self.files.info(self.path)))]
        else:
            infos = self.asked(lambda: self.files.find(self.path, detail=True))
        parts = self.path.rstrip("/").split("/")
        top = next((n for n, part in enumerate(parts) if "*" in part or "[" in part), len(parts))
        return [
            self._file(path, info)
            for path, info in infos.items()
            if info.get("type") != "directory" and not any(part.startswith(".") for part in path.split("/")[top:])
        ]

    def _file(self, path: str, info: dict[str, Any]) -> Found:
        address = path if "://" in path else str(self.files.unstrip_protocol(path))
        if urlsplit(self.address).query and "?" not in address:
            address = self.address
        size = info.get("size")
        return Found(shown(address), address, size if isinstance(size, int) else _count(address))

    def asked(self, ask: Callable[[], T]) -> T:
        return _asked(self.address, ask)


def _count(address: str) -> int:
    """Count the bytes of a file whose server does not give the size."""
    with Steady(address, -1) as raw:
        return sum(len(chunk) for chunk in iter(lambda: raw.read(_CHUNK), b""))


def _asked(address: str, ask: Callable[[], T]) -> T:
    """Ask an object store, a few times. Raises UserError for what is missing or not allowed."""
    last: Exception = InfrastructureError(address)
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            return ask()
        except (UserError, InfrastructureError):
            raise
        except Exception as error:  # each driver has errors of its own
            last = _origin(error)
        status = getattr(last, "status", None)
        if isinstance(last, FileNotFoundError) or status in (404, 410):
            raise UserError(f"{shown(address)}: there is no such file. {REMEDY}") from None
        if isinstance(last, PermissionError) or status in (401, 403) or _has_no_key(last):
            raise _forbidden(address, last) from None
    raise InfrastructureError(
        f"{shown(address)}: cannot be read, after {TRIES} tries ({_message(last)}). Is it reachable?"
    )


def _origin(error: Exception) -> Exception:
    """Return the real error. The HTTP driver reports every problem as a missing file, and gives the
    problem as the cause."""
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error


def _has_no_key(error: Exception) -> bool:
    return "NoCredentials" in type(error).__name__


def _forbidden(address: str, error: Exception) -> UserError:
    remedy = "Set the credentials of its driver in the environment, as fsspec's driver for it documents."
    return UserError(f"{shown(address)}: may not be read ({_message(error)}). {remedy}")


class Steady(io.RawIOBase):
    """Bytes at an address, from first to last. When reading fails, it goes on from where it was."""

    def __init__(self, address: str, num_bytes: int) -> None:
        super().__init__()
        self._remote = Remote(address)
        self._num_bytes = num_bytes
        self._file: Any = None
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        chunk = _asked(self._remote.address, lambda: self._read(size))
        self._at += len(chunk)
        return chunk

    def _read(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._remote.files.open(self._remote.path, "rb", cache_type="readahead")
                self._skip()
            chunk = self._file.read(size)
            if size and not chunk and self._at < self._num_bytes:
                raise OSError(f"it ended after {self._at} of {self._num_bytes} bytes")
            return chunk
        except BaseException:
            self._forget()
            raise

    def _skip(self) -> None:
        """Skip to where reading stopped, because a server without ranges sends the beginning
        again."""
        try:
            if self._at:
                self._file.seek(self._at)
        except (ValueError, OSError):
            left = self._at
            while left and (chunk := self._file.read(min(left, _CHUNK))):
                left -= len(chunk)

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        if not self.closed:
            self._forget()
        super().close()
