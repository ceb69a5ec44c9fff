"""The recipe's server: schemas, the wire, who is to blame, the key, the process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tiny_recipe
from aiohttp.test_utils import TestClient, TestServer
from pydantic import Field

from rft import recipe
from rft.errors import ToolError, UserError
from rft.recipe import Recipe
from rft.tools import server as toolserver
from rft.tools.signatures import schema

ROOT = Path(__file__).parents[2]


def search(
    query: Annotated[str, Field(description="words")], k: int = 3, order: Literal["code", "score"] = "score"
) -> str:
    """Find things.

    Best first.
    """
    return f"{query} {k} {order}"


def odd(json: str, model_config: int, schema: list[str], title: str | None = None) -> Any:
    return [json, model_config, schema, title]


async def slow(seconds: float) -> dict[str, float]:
    """Waits."""
    await asyncio.sleep(seconds)
    return {"waited": seconds}


def refuse(code: str) -> str:
    raise ToolError(f"no such code: {code}")


def broken() -> str:
    raise RuntimeError("a bug")


def test_schema_is_made_from_hints_and_docstring():
    assert schema(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find things.\n\nBest first.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "words"},
                    "k": {"type": "integer", "default": 3},
                    "order": {"type": "string", "enum": ["code", "score"], "default": "score"},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }
    assert json.dumps(schema(search)) == json.dumps(schema(search))


def test_schema_takes_names_that_pydantic_reserves():
    assert list(schema(odd)["function"]["parameters"]["properties"]) == ["json", "model_config", "schema", "title"]


def untyped(query) -> str:
    return query


def variadic(*queries: str) -> str:
    return "".join(queries)


@pytest.mark.parametrize("function", [untyped, variadic])
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function: Callable[..., Any]):
    with pytest.raises(UserError, match=rf"tool {function.__name__}: argument 'quer"):
        schema(function)


class Served:
    """The app of a recipe with these tools, over a socket."""

    def __init__(self, tmp_path: Path, *tools: Callable[..., Any]):
        self.recipe: Recipe = recipe.load(tiny_recipe.params(tiny_recipe.make(tmp_path)).recipe)
        self.recipe.__dict__["tools"] = list(tools) or self.recipe.tools

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        async def run() -> tuple[int, Any]:
            async with TestClient(TestServer(toolserver.app(self.recipe))) as client:
                data = body if isinstance(body, str) else json.dumps(body)
                response = await client.post(path, data=data, headers=headers)
                text = await response.text()
                return response.status, json.loads(text) if response.content_type == "application/json" else text

        return asyncio.run(run())

    def call(self, name: str, **arguments: Any) -> tuple[int, Any]:
        return self.post(f"/tools/{name}", {"call_id": "c", "id": "fc_c", "arguments": json.dumps(arguments)})


def test_a_call_is_answered_on_the_wire(tmp_path: Path):
    status, reply = Served(tmp_path, search).call("search", query="angina", k="2")
    assert (status, reply) == (
        200,
        {"type": "function_call_output", "call_id": "c", "id": "fc_c", "output": "angina 2 score"},
    )


def traced(query: str, trace_id: str) -> str:
    """What was asked, and in which rollout."""
    return f"{query} in {trace_id}"


def test_a_tool_and_a_grade_may_ask_for_the_trace_id(tmp_path: Path):
    """W17: neither ever got it. The policy does not see the argument, and cannot give it."""
    assert list(schema(traced)["function"]["parameters"]["properties"]) == ["query"]
    served = Served(tmp_path, traced)
    body = {"arguments": '{"query": "angina"}', "trace_id": "trace_7"}
    assert served.post("/tools/traced", body)[1]["output"] == "angina in trace_7"
    refused = served.post("/tools/traced", body | {"arguments": '{"query": "angina", "trace_id": "mine"}'})
    assert refused[0] == 400
    path = tiny_recipe.make(tmp_path, "traced") / "tools.py"
    path.write_text(
        path.read_text() + "\n\ndef grade(sample, item, trace_id):\n    return {'score': 0.5, 'reason': trace_id}\n"
    )
    served.recipe = recipe.load(tiny_recipe.params(path.parent).recipe)
    assert served.post("/grade", {"sample": {}, "item": {}, "trace_id": "trace_7"})[1] == {
        "score": 0.5,
        "reason": "trace_7",
    }


def test_arguments_may_come_as_an_object_and_with_reserved_names(tmp_path: Path):
    served = Served(tmp_path, odd)
    assert (
        served.post("/tools/odd", {"arguments": {"json": "a", "model_config": 1, "schema": ["b"]}})[1]["output"]
        == '["a", 1, ["b"], null]'
    )


def test_an_async_tool_is_awaited_and_a_value_becomes_json(tmp_path: Path):
    assert Served(tmp_path, slow).call("slow", seconds=0.01)[1]["output"] == '{"waited": 0.01}'


@pytest.mark.parametrize("body", ["{", "[]", ""])
def test_a_body_that_is_no_object_is_400(tmp_path: Path, body: str):
    assert Served(tmp_path, search).post("/tools/search", body) == (400, "the body must be a JSON object")


def test_what_the_policy_did_is_4xx_with_an_output(tmp_path: Path):
    served = Served(tmp_path, search, refuse)
    assert served.call("refuse", code="X")[1]["output"] == "no such code: X"
    status, reply = served.call("search", query="q", k="many", colour="red")
    assert status == 400
    assert reply["call_id"] == "c"
    assert re.search(r"invalid arguments: k: .*integer.*; colour: Extra inputs", reply["output"])
    assert served.call("serach", query="q") == (
        404,
        {**reply, "output": "unknown tool 'serach'; known: refuse, search"},
    )


def test_what_the_tool_did_is_500_with_a_traceback_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert Served(tmp_path, broken).call("broken") == (500, {"error": "RuntimeError: a bug"})
    assert "in broken" in caplog.text


def test_grade(tmp_path: Path):
    served = Served(tmp_path)
    item = {"target": "0042"}
    assert served.post("/grade", {"sample": {"output_text": "0042"}, "item": item, "trace_id": "t"})[1]["score"] == 1.0
    assert served.post("/grade", {"sample": "0042", "item": item}) == (
        400,
        "the body needs the objects 'sample' and 'item'",
    )
    assert served.post("/grade", {"sample": {}, "item": item})[0] == 500


def test_a_recipe_without_a_grade_function(tmp_path: Path):
    served = Served(tmp_path)
    path = served.recipe.folder / "tools.py"
    path.write_text(path.read_text().split("def grade")[0])
    fresh = tmp_path / "b"
    served.recipe.folder.rename(fresh)
    served.recipe = recipe.load(tiny_recipe.params(fresh).recipe)
    assert served.post("/grade", {"sample": {}, "item": {}}) == (404, "b/tools.py defines no grade(sample, item)")


def test_two_tools_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"tools\.py: two of TOOLS have the same name"):
        Served(tmp_path, search, search).call("search")


@pytest.mark.parametrize(
    ("given", "status"),
    [("Bearer s3cret", 200), ("Bearer wrong", 401), ("s3cret", 401), ("Bearer é", 401), (None, 401)],
)
def test_the_key_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, status: int):
    monkeypatch.setenv("RFT_TOOL_KEY", "s3cret")
    served = Served(tmp_path, search)
    headers = {"Authorization": given} if given else {}
    assert served.post("/tools/search", {"arguments": {"query": "q"}}, headers)[0] == status
    assert served.post("/grade", {"sample": {"output_text": "1"}, "item": {"target": "1"}}, headers)[0] == status


def test_health_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RFT_TOOL_KEY", "s3cret")
    served = Served(tmp_path, search, refuse)

    async def health() -> Any:
        async with TestClient(TestServer(toolserver.app(served.recipe))) as client:
            return await (await client.get("/health")).json()

    assert asyncio.run(health()) == {"status": "ok", "tools": ["refuse", "search"]}


# -- the process -----------------------------------------------------------------------------------
BATCH = 500


def test_a_whole_batch_may_connect_at_once(tmp_path: Path):
    """The server is stopped, so that nothing but the kernel's queue takes the connections."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < BATCH:
        pytest.skip("this machine's kernel drops connections at a lower number")
    command = [sys.executable, "-m", "rft.tools.server", str(tiny_recipe.make(tmp_path)), "--parent", str(os.getpid())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server, ExitStack() as stack:
        stack.callback(server.kill)
        assert server.stdout is not None
        host, _, port = server.stdout.readline().split()[1].partition(":")
        server.send_signal(signal.SIGSTOP)
        for _ in range(BATCH):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=0.9))  # one dropped needs 1 s


BY_A_STAGE = ("rft.tools.server",)
BY_HAND = ("flows.cli", "stage", "tools")


def run_server(how: tuple[str, ...], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *how, *args], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.slow
def test_a_port_in_use_is_one_message(tmp_path: Path):
    folder = tiny_recipe.make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_server(BY_HAND, str(folder), "--port", str(port))
    assert done.returncode == 3
    assert (
        done.stderr
        == f"error: port {port} on 127.0.0.1 is in use. Stop the process there, or take a free port with --port 0.\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [BY_A_STAGE, BY_HAND])
def test_options_are_checked_before_it_listens(tmp_path: Path, how: tuple[str, ...]):
    folder = str(tiny_recipe.make(tmp_path))
    done = run_server(how, folder, "--options", '{"polit": true}')
    assert (done.returncode, "Did you mean 'polite'?" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert "--options '{' is not JSON" in run_server(how, folder, "--options", "{").stderr
    assert "--state 'x' is not JSON" in run_server(how, folder, "--state", "x").stderr
    assert "Did you mean 'ttl_s'?" in run_server(how, folder, "--state", '{"ttl": 1}').stderr
    assert "no examples.py" in run_server(how, str(tmp_path)).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "99999"), "99999 is not a port: give a number from 0 to 65535"),
        (("--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines call these tools. Set RFT_TOOL_KEY"),
        (("--host", "tools.example"), "--host tools.example lets other machines"),
    ],
)
def test_where_it_will_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
):
    monkeypatch.delenv(toolserver.KEY, raising=False)
    done = run_server(BY_HAND, str(tiny_recipe.make(tmp_path)), *arguments)
    assert (done.returncode, message in done.stderr, done.stdout) == (2, True, ""), done.stderr


def test_help_teaches():
    text = run_server(BY_HAND, "--help").stdout
    assert "RFT_TOOL_KEY" in text
    assert "curl -s localhost" in text


@pytest.mark.slow
def test_torch_is_not_loaded(tmp_path: Path):
    code = (
        "import sys, rft.tools.server, rft.tools.client, rft.grading.grader, rft.tools.lifetime, "
        "rft.grading.preflight; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False).returncode == 0


@pytest.mark.slow
def test_it_dies_with_its_parent(tmp_path: Path):
    folder = tiny_recipe.make(tmp_path)
    parent = f"""
import os, subprocess, sys, time
command = [sys.executable, "-m", "rft.tools.server", {str(folder)!r}, "--parent", str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline(), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, _, address = process.stdout.readline().split()
        host, port = address.split(":")
        process.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _listens(host, int(port)):
        time.sleep(0.02)
    assert not _listens(host, int(port)), f"server {pid} outlived its parent"


@pytest.mark.slow
def test_it_does_not_start_for_a_parent_that_is_gone(tmp_path: Path):
    done = run_server(BY_A_STAGE, str(tiny_recipe.make(tmp_path)), "--parent", "999999999")
    assert done.returncode != 0
    assert "the parent process 999999999 is gone" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", [BY_A_STAGE, BY_HAND])
def test_sigterm_ends_it_cleanly(tmp_path: Path, how: tuple[str, ...]):
    command = [sys.executable, "-m", *how, str(tiny_recipe.make(tmp_path))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"listening 127\.0\.0\.1:\d+\n", process.stdout.readline())
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
