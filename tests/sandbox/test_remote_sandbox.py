"""A sandbox on another machine: a server with the routes of SWE-ReX, which runs what it is told."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boxes
import pytest
from aiohttp import web

from rft.errors import InfrastructureError, UserError
from rft.sandbox.limits import Limits
from rft.sandbox.reading import Entry, Refusal
from rft.sandbox.remote import RemoteSandbox
from rft.sandbox.sandbox import AnySandbox

TOKEN = "token-of-the-test"


async def execute(request: web.Request) -> web.Response:
    body: dict[str, Any] = await request.json()
    argv, timeout = body["command"], body["timeout"]
    try:
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        exception = {"message": "too late", "class_path": "swerex.exceptions.CommandTimeoutError"}
        return web.json_response({"swerexception": exception}, status=511)
    except OSError as error:
        return web.json_response(
            {"swerexception": {"message": str(error), "class_path": "builtins.OSError"}}, status=511
        )
    out, err = (stream.decode(errors="backslashreplace") for stream in (done.stdout, done.stderr))
    return web.json_response({"stdout": out, "stderr": err, "exit_code": done.returncode})


async def write_file(request: web.Request) -> web.Response:
    body = await request.json()
    Path(body["path"]).write_text(body["content"])
    return web.json_response({})


@web.middleware
async def keyed(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("X-API-Key") != TOKEN:
        return web.json_response({"detail": "Invalid API Key"}, status=401)
    return await handler(request)


async def alive(request: web.Request) -> web.Response:
    return web.json_response({"is_alive": True})


async def closed(request: web.Request) -> web.Response:
    return web.json_response({})


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """Yield the address of a server."""
    app = web.Application(middlewares=[keyed])
    app.router.add_get("/is_alive", alive)
    for route, handler in (("/execute", execute), ("/write_file", write_file), ("/close", closed)):
        app.router.add_post(route, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_calls_and_files(tmp_path: Path) -> None:
    async def play() -> None:
        async with served() as url, RemoteSandbox(url, TOKEN, str(tmp_path)) as remote:
            box: AnySandbox = remote
            content = bytes(range(256)) * 10
            await box.write_file("src/deep/data", content)
            assert await box.read_file("src/deep/data") == content
            outcome = await box.exec(["sh", "-c", "cat; pwd; echo $A >&2; exit 3"], b"given\n", "src", {"A": "b c"})
            assert outcome.returncode == 3
            assert outcome.stdout == f"given\n{tmp_path}/src\n".encode()
            assert outcome.stderr == b"b c\n"
            assert await box.list_files() == [
                Entry("src", "folder", 0),
                Entry("src/deep", "folder", 0),
                Entry("src/deep/data", "file", 2560),
            ]
            assert [entry.path for entry in await box.list_files("src/deep")] == ["src/deep/data"]

    boxes.run(play())


def test_what_is_refused_here_is_refused_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_bytes(b"12345")

    async def play() -> None:
        async with served() as url, RemoteSandbox(url, TOKEN, str(tmp_path)) as box:
            for path, why in (
                ("link", "link"),
                ("folder", "folder"),
                ("missing", "does not exist"),
                ("../x", "inside"),
            ):
                with pytest.raises(Refusal, match=why):
                    await box.read_file(path)
            with pytest.raises(Refusal, match="more than 4 bytes"):
                await box.read_file("long", max_bytes=4)
            assert await box.read_file("long", max_bytes=5) == b"12345"
            await box.write_file("link", b"mine")
            assert (tmp_path / "link").read_bytes() == b"mine"

    boxes.run(play())


def test_deadline_signal_and_long_output(tmp_path: Path) -> None:
    async def play() -> None:
        limits = Limits(wall_s=10, output_bytes=1000)
        async with served() as url, RemoteSandbox(url, TOKEN, str(tmp_path), limits) as box:
            assert (await box.exec(["sleep", "5"], timeout=0.2)).timed_out
            assert (await box.exec(["sh", "-c", "kill -9 $$"])).returncode == 137
            long = await box.exec(["sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x"])
            assert (len(long.stdout), long.truncated) == (1000, True)

    boxes.run(play())


def test_nothing_is_taken_for_granted(tmp_path: Path) -> None:
    async def play() -> None:
        async with served() as url, RemoteSandbox(url, TOKEN, str(tmp_path)) as box:
            with pytest.raises(InfrastructureError, match="cannot be seen from here"):
                box.info().require()
            box.info().require(allow_weaker=True)
            await box.close()
            await box.close()

    boxes.run(play())


def test_no_server_a_wrong_key_and_a_broken_server(tmp_path: Path) -> None:
    async def play() -> None:
        with pytest.raises(InfrastructureError, match="no sandbox answers"):
            async with RemoteSandbox("http://127.0.0.1:9", TOKEN):
                pass
        async with served() as url:
            with pytest.raises(UserError, match="refuses the key"):
                async with RemoteSandbox(url, "wrong"):
                    pass
            async with RemoteSandbox(url, TOKEN, str(tmp_path / "missing")) as box:
                assert (await box.exec(["true"])).returncode == 125  # env cannot enter the folder
                with pytest.raises(InfrastructureError, match="/nowhere: HTTP 404"):
                    await box._post("/nowhere", {}, 1)
            box = RemoteSandbox(url, TOKEN)
        with pytest.raises(InfrastructureError, match="/execute"):
            await box.exec(["true"])
        await box.close()

    boxes.run(play())


def test_carriers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft.sandbox.remote.CARRIERS", str(tmp_path / "carriers"))
    (tmp_path / "carriers").mkdir()

    async def play() -> None:
        async with served() as url, RemoteSandbox(url, TOKEN, str(tmp_path)) as box:
            await box.write_file("a", base64.b64decode("AAEC"))
            assert (await box.exec(["wc", "-c"], b"123")).stdout == b"3\n"

    boxes.run(play())
    assert not list((tmp_path / "carriers").iterdir())
