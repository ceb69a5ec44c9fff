"""The server's life around a stage: it starts, is stopped at every exit, and its death is one clear
error."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
import tiny_recipe
from scripted_tools import context

from rft import config, recipe
from rft.errors import ConfigError, InfrastructureError, UserError
from rft.recipe import Recipe
from rft.tools import lifetime
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import ToolCall, ToolResult
from rft.wire import client as http_client

OURS = config.Tools()
CALL = ToolCall("call_0_0", "lookup", '{"key": "k0001"}')


@pytest.fixture
def tiny(tmp_path: Path) -> Recipe:
    return recipe.load(tiny_recipe.params(tiny_recipe.make(tmp_path)).recipe)


def call(endpoint: http_client.ToolEndpoint, tiny: Recipe, section: config.Tools = OURS) -> ToolResult:
    async def run() -> ToolResult:
        async with ToolClient(endpoint, section, schemas(tiny)) as client:
            return await client.call(CALL, context({"id": "n"}))

    return asyncio.run(run())


def servers() -> list[int]:
    """Our children that serve: processes of this test that were not stopped."""
    everyone = psutil.process_iter(["ppid", "cmdline"])
    ours = [process for process in everyone if process.info["ppid"] == os.getpid()]
    return [process.pid for process in ours if "rft.tools.server" in (process.info["cmdline"] or [])]


@pytest.mark.slow
def test_it_serves_and_is_stopped(tiny: Recipe):
    with running(tiny, OURS) as endpoint:
        assert call(endpoint, tiny).output == "9153"
        assert len(servers()) == 1
    assert servers() == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.url}/health", trust_env=False)


@pytest.mark.slow
def test_the_key_is_random_needed_and_not_shown(tiny: Recipe):
    with running(tiny, OURS) as one, running(tiny, OURS) as other:
        assert one.headers != other.headers
        assert httpx.post(f"{one.url}/tools/lookup", json={}, trust_env=False).status_code == 401
        with pytest.raises(InfrastructureError, match="refuses our key"):
            call(http_client.ToolEndpoint(one.url, other.headers), tiny)
        assert one.headers["Authorization"].removeprefix("Bearer ") not in repr(one)


@pytest.mark.slow
def test_static_headers_travel_with_the_key(tiny: Recipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENANT", "ward 7")
    with running(tiny, config.Tools(headers={"X-Tenant": "env:TENANT"})) as endpoint:
        assert endpoint.headers["X-Tenant"] == "ward 7"
        assert endpoint.headers["Authorization"].startswith("Bearer ")


@pytest.mark.slow
def test_it_grades_for_local_tools_too(tiny: Recipe):
    with running(tiny, config.Tools(where="local")) as endpoint:
        body = {"sample": {"output_text": "9153"}, "item": {"target": "9153"}}
        assert (
            httpx.post(f"{endpoint.url}/grade", json=body, headers=endpoint.headers, trust_env=False).json()["score"]
            == 1
        )


@pytest.mark.slow
def test_its_key_is_struck_out_of_what_a_tool_says(tiny: Recipe):
    path = tiny.folder / "tools.py"
    path.write_text(path.read_text().replace("key = key.strip()", "import os; return os.environ['RFT_TOOL_KEY']"))
    with running(tiny, OURS) as endpoint:
        assert call(endpoint, tiny).output == "[secret]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [UserError("of the block"), ValueError("of the block"), KeyboardInterrupt(), SystemExit(3)]
)
def test_it_is_stopped_when_the_block_raises(tiny: Recipe, error: BaseException):
    with pytest.raises(type(error)) as caught, running(tiny, OURS):
        raise error
    assert caught.value is error
    assert servers() == []


@pytest.mark.slow
def test_a_server_that_does_not_start_shows_its_last_words(tiny: Recipe):
    (tiny.folder / "tools.py").write_text("raise RuntimeError('the index is missing')")
    with pytest.raises(
        InfrastructureError,
        match=r"(?s)tool server of .*tiny did not start: exit code 2.*the index is missing.*Try it alone",
    ):
        running(tiny, OURS).__enter__()
    assert servers() == []


def test_a_server_that_hangs_at_the_start(tiny: Recipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lifetime, "START_DEADLINE_S", 0.5)
    (tiny.folder / "tools.py").write_text("import time; time.sleep(60)")
    with pytest.raises(InfrastructureError, match=r"not healthy within 0\.5 s.\nIt printed nothing"):
        running(tiny, OURS).__enter__()
    assert servers() == []


def test_a_server_killed_in_the_middle_stops_the_stage(tiny: Recipe):
    expected = (
        r"(?s)tool server of .*tiny died in the middle: exit code -9.*Try it alone: \S*rft stage tools .*then "
        r"run the stage again"
    )

    def stage() -> None:
        with running(tiny, OURS) as endpoint:
            assert not call(endpoint, tiny).failed
            os.kill(servers()[0], signal.SIGKILL)
            call(endpoint, tiny)

    with pytest.raises(InfrastructureError, match=expected):
        stage()


@pytest.mark.slow
def test_its_death_is_told_as_the_cause_of_what_followed(tiny: Recipe):
    def stage() -> None:
        with running(tiny, OURS):
            _kill(servers()[0])
            raise ValueError("no rollouts to train on")

    with pytest.raises(InfrastructureError, match="died in the middle") as caught:
        stage()
    assert isinstance(caught.value.__context__, ValueError)


@pytest.mark.slow
def test_its_death_is_told_even_when_the_block_did_not_notice(tiny: Recipe):
    with pytest.raises(InfrastructureError, match="died in the middle"), running(tiny, OURS):
        _kill(servers()[0])


@pytest.mark.slow
def test_a_tool_that_ends_the_process_is_shown(tiny: Recipe):
    path = tiny.folder / "tools.py"
    path.write_text(
        path.read_text().replace(
            "key = key.strip()", "import os, sys; print('out of memory', file=sys.stderr, flush=True); os._exit(7)"
        )
    )
    with pytest.raises(InfrastructureError, match=r"(?s)exit code 7.*out of memory"), running(tiny, OURS) as endpoint:
        call(endpoint, tiny)


@pytest.mark.slow
def test_a_tool_that_prints_much_does_not_block(tiny: Recipe):
    path = tiny.folder / "tools.py"
    path.write_text(path.read_text().replace("key = key.strip()", "print('x' * 1_000_000)"))
    with running(tiny, OURS) as endpoint:
        assert call(endpoint, tiny).output == "9153"


@pytest.mark.slow
def test_a_hanging_tool_does_not_keep_it_alive(tiny: Recipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lifetime, "STOP_DEADLINE_S", 0.3)
    path = tiny.folder / "tools.py"
    path.write_text(path.read_text().replace("key = key.strip()", "import time; time.sleep(60)"))
    started = time.monotonic()
    section = config.Tools(timeout_s=0.3, retries=0)
    with running(tiny, section) as endpoint:
        result = call(endpoint, tiny, section)
        assert (result.failed, "no reply within tools.timeout_s = 0.3 s" in result.output) == (True, True)
    assert servers() == []
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_killed_stage_leaves_no_server(tiny: Recipe):
    stage = f"""
from rft import config, recipe
from rft.tools.lifetime import running
import time
with running(recipe.load(config.Recipe(path={str(tiny.folder)!r})), config.Tools()) as endpoint:
    print(endpoint.url, flush=True)
    time.sleep(60)
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", stage], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        process.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.02)
    pytest.fail("the server outlived a stage killed with -9")


# -- an external server ----------------------------------------------------------------------------
def external(url: str, **more: object) -> config.Tools:
    return config.Tools.model_validate({"server_url": url, "version": "7", **more})


@pytest.mark.slow
def test_an_external_server_is_used_and_not_started(tiny: Recipe, monkeypatch: pytest.MonkeyPatch):
    with running(tiny, OURS) as ours:
        monkeypatch.setenv("KEY", ours.headers["Authorization"])
        section = external(f"{ours.url}/", headers={"Authorization": "env:KEY"})
        with running(tiny, section) as endpoint:  # GET / answers 401: an answer
            assert endpoint.url == ours.url
            assert len(servers()) == 1
            assert call(endpoint, tiny).output == "9153"
        assert len(servers()) == 1


def test_an_external_server_that_is_down(tiny: Recipe):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(
        InfrastructureError,
        match=rf"tools.server_url = '{re.escape(url)}' does not answer: .*Start that server, or remove",
    ):
        running(tiny, external(url)).__enter__()


@pytest.mark.parametrize("url", ["tools.example.org", "ftp://tools.example.org", "http://", ""])
def test_an_external_address_that_is_none(tiny: Recipe, url: str):
    with pytest.raises(ConfigError, match="is not an HTTP address"):
        running(tiny, external(url)).__enter__()


def test_a_header_without_its_variable(tiny: Recipe):
    with pytest.raises(ConfigError, match="environment variable NO_SUCH_KEY"):
        running(tiny, config.Tools(headers={"Authorization": "env:NO_SUCH_KEY"})).__enter__()


def test_a_header_that_cannot_be_sent(tiny: Recipe):
    for section in (
        config.Tools(headers={"X-Key": "canary\n"}),
        external("http://127.0.0.1:1", headers={"X-Key": "canary\n"}),
    ):
        with pytest.raises(ConfigError, match=r"\(tools\.headers\): the value of X-Key holds a newline") as caught:
            running(tiny, section).__enter__()
        assert "canary" not in str(caught.value)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
