"""Use a sandbox on another machine, over HTTP.

Where a machine's kernel refuses a sandbox, or where a virtual machine per rollout is wanted, the
program can run elsewhere. The routes and bodies are those of SWE-ReX, for which servers exist
(Docker, Modal, AWS): `/execute`, `/write_file`, `/is_alive`, `/close`. They carry text, and have no
input; so bytes travel as base64, and a program's input comes from a file.

What such a server contains cannot be seen from here, so `info` names no guarantee as held.
Snapshots and branches are not part of these routes.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx

from rft.errors import InfrastructureError, UserError
from rft.sandbox import reading
from rft.sandbox.call import Outcome
from rft.sandbox.limits import Limits
from rft.sandbox.probe import Guarantee, Info
from rft.sandbox.reading import Entry, Refusal

GRACE_S = 10.0
"""How much longer than the program's deadline an answer may take."""
_FAILED = 511
"""The status by which SWE-ReX hands an exception on."""
_KEYS = (401, 403)
"""The statuses of a wrong key."""
CARRIERS = "/tmp"
_FED = 'base64 -d "$0" > "$0.in" && exec < "$0.in" && rm "$0" "$0.in" && exec "$@"'
_READ = 'test -h "$0" && exit 12; test -d "$0" && exit 13; test -f "$0" || exit 14; head -c "$1" "$0" | base64 -w0'
_WRITE = 'mkdir -p "$(dirname "$0")" && rm -f "$0" && base64 -d "$1" > "$0"; code=$?; rm -f "$1"; exit $code'
_LIST = 'cd "$0" && find . -mindepth 1 -printf "%y %s %P\\0" | base64 -w0'
_WHY = {12: "is a link, which is not followed", 13: "is a folder, not a regular file", 14: "does not exist"}


class RemoteSandbox:
    """A sandbox behind an address: `async with RemoteSandbox("http://host:8000", token) as it`."""

    def __init__(self, url: str, token: str, folder: str = "/ws", limits: Limits | None = None) -> None:
        """`folder`: the workspace on the other machine."""
        self._limits, self._folder = limits or Limits(), folder.rstrip("/")
        # after an exception of its own, such a server closes a connection without saying so
        single_use = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=url, headers={"X-API-Key": token}, limits=single_use)
        self._closed = False

    async def __aenter__(self) -> Self:
        """Raises InfrastructureError when nobody answers."""
        try:
            reply = await self._client.get("/is_alive", timeout=GRACE_S)
        except httpx.HTTPError as error:
            await self._client.aclose()
            raise InfrastructureError(f"{self._client.base_url}: no sandbox answers: {error!r}") from None
        if reply.status_code in _KEYS:
            await self._client.aclose()
            raise UserError(self._wrong_key())
        if reply.status_code != 200 or not reply.json().get("is_alive"):
            await self._client.aclose()
            raise InfrastructureError(f"{self._client.base_url}: the sandbox is not ready: {reply.text[:200]}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def exec(
        self,
        cmd: Sequence[str],
        input: bytes = b"",
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        output_bytes: int | None = None,
    ) -> Outcome:
        """Run a program to its end, as Sandbox.exec does."""
        limits = self._limits
        deadline_s = min(limits.wall_s, timeout or limits.wall_s)
        kept = min(limits.output_bytes, limits.output_bytes if output_bytes is None else output_bytes)
        where = self._path(cwd)
        argv = ["env", "-C", where, *(f"{name}={value}" for name, value in (env or {}).items()), *cmd]
        if input:
            argv = ["sh", "-c", _FED, await self._carry(input), *argv]
        started = time.monotonic()
        reply = await self._execute(argv, deadline_s)
        wall_s = time.monotonic() - started
        if reply is None:
            return Outcome(137, b"", b"", timed_out=True, wall_s=wall_s)
        out, err = (str(reply.get(name) or "").encode("utf-8", "surrogateescape") for name in ("stdout", "stderr"))
        cut = max(len(out), len(err)) > kept
        code = int(reply["exit_code"])
        # Python counts a signal as a negative code
        return Outcome(128 - code if code < 0 else code, out[:kept], err[:kept], truncated=cut, wall_s=wall_s)

    async def read_file(self, path: str, max_bytes: int = reading.MAX_READ_BYTES) -> bytes:
        """Read a regular file of the workspace. Raises reading.Refusal for anything else."""
        where = self._path("/".join(reading.parts(path)))
        reply = await self._shell(_READ, where, str(max_bytes + 1))
        if reply["exit_code"] in _WHY:
            raise Refusal(f"{path!r} {_WHY[reply['exit_code']]}.")
        content = base64.b64decode(reply["stdout"])
        if len(content) > max_bytes:
            raise Refusal(f"{path!r} has more than {max_bytes:,} bytes.")
        return content

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file, with the folders above it."""
        where = self._path("/".join(reading.parts(path)))
        reply = await self._shell(_WRITE, where, await self._carry(content))
        if reply["exit_code"] != 0:
            raise Refusal(f"{path!r} cannot be written: {reply.get('stderr', '')[:200]}")

    async def list_files(self, path: str = ".") -> list[Entry]:
        """List all below a folder, sorted."""
        reply = await self._shell(_LIST, self._path(path))
        if reply["exit_code"] != 0:
            raise Refusal(f"{path!r} is no folder.")
        kinds: dict[str, reading.Kind] = {"f": "file", "d": "folder", "l": "link"}
        found: list[Entry] = []
        prefix = "" if path in ("", ".") else "/".join(reading.parts(path)) + "/"
        for line in base64.b64decode(reply["stdout"]).decode("utf-8", "surrogateescape").split("\0")[:-1]:
            letter, size, name = line.split(" ", 2)
            kind = kinds.get(letter, "other")
            found.append(Entry(prefix + name, kind, int(size) if kind == "file" else 0))
        return sorted(found, key=lambda entry: entry.path)

    async def close(self) -> None:
        """End it. Idempotent; a server that is gone already has ended."""
        if not self._closed:
            self._closed = True
            try:
                await self._client.post("/close", timeout=GRACE_S)
            except httpx.HTTPError:
                pass
            finally:
                await self._client.aclose()

    def info(self) -> Info:
        """Say that what holds elsewhere cannot be seen from here."""
        why = f"{self._client.base_url} contains the program; what it guarantees cannot be seen from here."
        return Info("remote", (Guarantee("sandbox", False, why),))

    async def _carry(self, content: bytes) -> str:
        """Bring bytes over, and return the file that holds them in base64."""
        carrier = f"{CARRIERS}/rft-{os.urandom(8).hex()}"
        await self._post("/write_file", {"path": carrier, "content": base64.b64encode(content).decode()}, GRACE_S)
        return carrier

    def _wrong_key(self) -> str:
        return f"{self._client.base_url}: the sandbox refuses the key. Give the server's token."

    def _path(self, path: str) -> str:
        return self._folder if path in ("", ".") else f"{self._folder}/{'/'.join(reading.parts(path))}"

    async def _shell(self, script: str, *arguments: str) -> dict[str, Any]:
        reply = await self._execute(["sh", "-c", script, *arguments], self._limits.wall_s)
        if reply is None:
            raise InfrastructureError(f"{self._client.base_url}: a file was not handled in time.")
        return reply

    async def _execute(self, argv: Sequence[str], deadline_s: float) -> dict[str, Any] | None:
        """Run a command; None for one that was ended at its deadline."""
        reply = await self._post("/execute", {"command": list(argv), "timeout": deadline_s}, deadline_s + GRACE_S)
        return None if "swerexception" in reply else reply

    async def _post(self, route: str, body: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Post and return the reply. A reply that says that the time is over is returned as it is;
        whatever else goes wrong raises InfrastructureError."""
        try:
            reply = await self._client.post(route, json=body, timeout=deadline_s)
        except httpx.HTTPError as error:
            raise InfrastructureError(f"{self._client.base_url}{route}: {error!r}") from None
        try:
            content = reply.json()
        except json.JSONDecodeError:
            said = f"HTTP {reply.status_code}: {reply.text[:200]}"
            raise InfrastructureError(f"{self._client.base_url}{route}: {said}") from None
        if reply.status_code == _FAILED:
            about = content.get("swerexception", {})
            if about.get("class_path", "").endswith(".CommandTimeoutError"):
                return content
            raise InfrastructureError(f"{self._client.base_url}{route}: {about.get('message', content)}")
        if reply.status_code in _KEYS:
            raise UserError(self._wrong_key())
        if reply.status_code != 200:
            raise InfrastructureError(f"{self._client.base_url}{route}: HTTP {reply.status_code}: {reply.text[:200]}")
        return content
