"""The recipe's functions in this process and in workers: the same limits as over HTTP, and nothing
that outlives a deadline or us."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_recipe
from scripted_tools import context

from rft import config, recipe
from rft.errors import ConfigError, InfrastructureError
from rft.recipe import Recipe
from rft.tools import local as local_tools
from rft.tools.client import ToolClient
from rft.tools.lifetime import running
from rft.tools.signatures import schemas
from rft.types import ToolCall, ToolResult
from rft.wire import client as http_client
from rft.wire.client import ToolEndpoint

TOOLS = '''
import asyncio, os, subprocess, sys, time

from rft.recipe import ToolError


def value(key):
    return key


def worker() -> int:
    """Its process."""
    return os.getpid()


async def here() -> int:
    """Its process."""
    return os.getpid()


def slow(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return "slept"


async def nap(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "slept"


def spawn() -> str:
    """Waits for a child."""
    return subprocess.run([sys.executable, "-c", "import time; time.sleep(61.5)"]).stdout


def row(item: dict, key: str) -> object:
    """Of the row."""
    item["spoilt"] = True
    return item[key]


async def row_here(item: dict, key: str) -> object:
    """Of the row."""
    item["spoilt"] = True
    return item[key]


def refuse() -> str:
    """Refuses."""
    raise ToolError("no such code")


async def refuse_here() -> str:
    """Refuses."""
    raise ToolError("no such code")


def crash() -> str:
    """A bug."""
    raise KeyError("index")


async def crash_here() -> str:
    """A bug."""
    raise KeyError("index")


def leave() -> str:
    """Ends its process."""
    print("out of memory")
    os._exit(7)


def much(size: int) -> str:
    """A long text."""
    return "x" * size


async def much_here(size: int) -> str:
    """A long text."""
    return "x" * size


def loud() -> str:
    """Prints and reads."""
    print("y" * 100_000, flush=True)
    return sys.stdin.read() + "done"


def traced(trace_id: str) -> str:
    """In which rollout."""
    return trace_id


async def traced_here(trace_id: str) -> str:
    """In which rollout."""
    return trace_id


TOOLS = [traced, traced_here, worker, here, slow, nap, spawn, row, row_here, refuse, refuse_here]
TOOLS += [crash, crash_here, leave, much, much_here, loud]
'''

ITEM = {"id": "n-1", "target": ["I10"], "note": "é"}
CONTEXT = context(ITEM)
NOWHERE = ToolEndpoint("http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.001)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tiny_recipe.make(tmp_path_factory.mktemp("recipe"), "locals")
    (folder / "tools.py").write_text(TOOLS)
    return recipe.load(config.Recipe(path=str(folder)))


def play(ours: Recipe, *turns: list[tuple[str, dict[str, Any]]], **section: Any) -> list[list[ToolResult]]:
    """Turn after turn; the calls of a turn side by side."""

    async def run() -> list[list[ToolResult]]:
        tools = config.Tools(where="local", **{"local_workers": 1, **section})
        async with ToolClient(NOWHERE, tools, schemas(ours), recipe=ours) as client:
            return [
                list(
                    await client.call_all(
                        [ToolCall(f"c{n}", name, json.dumps(given)) for n, (name, given) in enumerate(turn)], CONTEXT
                    )
                )
                for turn in turns
            ]

    return asyncio.run(run())


def workers() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children(recursive=True) if "rft.tools.local" in " ".join(child.cmdline())
    ]


@pytest.mark.slow
def test_a_trait_that_would_have_no_effect_here_is_refused(ours: Recipe):
    with pytest.raises(
        ConfigError, match=r"tools\.traits\.worker\.client_errors is about HTTP statuses, .* without HTTP\. Remove it"
    ):
        play(ours, traits={"worker": {"client_errors": "policy"}})


@pytest.mark.slow
def test_the_trace_id_for_a_function_that_asks_for_it(ours: Recipe):
    assert [result.output for result in play(ours, [("traced", {}), ("traced_here", {})])[0]] == ["trace_1", "trace_1"]


@pytest.mark.slow
def test_async_functions_run_here_and_others_in_workers(ours: Recipe):
    (results,) = play(ours, [("here", {}), ("worker", {}), ("worker", {})], local_workers=2)
    assert int(results[0].output) == os.getpid()
    assert os.getpid() not in {int(result.output) for result in results[1:]}
    assert workers() == []


@pytest.mark.slow
def test_the_path_is_that_of_http(ours: Recipe):
    """Rows, refusals, bad arguments, sizes, exceptions: for both kinds of function."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for end in ("", "_here"):
        calls += [
            (f"row{end}", {"key": "target"}),
            (f"row{end}", {"key": "spoilt"}),
            (f"refuse{end}", {}),
            (f"crash{end}", {}),
        ]
        calls += [(f"much{end}", {"size": 2000}), (f"much{end}", {"size": 2001}), (f"much{end}", {"size": "ten"})]
    (results,) = play(ours, calls, retries=1, max_reply_bytes=2000)
    for half in (results[:7], results[7:]):
        row, spoilt, refused, crashed, whole, cut, wrong = half
        assert (row.output, spoilt.output) == ('["I10"]', "true")  # each call has a row of its own
        assert (refused.output, refused.is_error, refused.failed) == ("no such code", True, False)
        assert (crashed.failed, crashed.retries, "failed: KeyError: 'index' (2 tries)" in crashed.output) == (
            True,
            1,
            True,
        )
        assert (whole.output, whole.is_error) == ("x" * 2000, False)
        assert (cut.output, cut.is_error, cut.failed) == (
            "Error 413: the reply is larger than 2000 bytes. Ask for less.",
            True,
            False,
        )
        assert '"ten" is not of type "integer"' in wrong.output
    assert "spoilt" not in ITEM


@pytest.mark.slow
def test_a_worker_that_overruns_is_killed_and_replaced(ours: Recipe):
    slow, after = play(ours, [("slow", {"seconds": 60})], [("worker", {})], timeout_s=2.0, retries=0)
    assert (slow[0].failed, "no reply within tools.timeout_s = 2 s (1 try)" in slow[0].output) == (True, True)
    assert not after[0].failed
    assert not psutil.pid_exists(int(after[0].output))


@pytest.mark.slow
def test_an_async_function_ends_at_its_deadline(ours: Recipe):
    ((result,),) = play(ours, [("nap", {"seconds": 60})], timeout_s=0.1, retries=1)
    assert (result.failed, result.retries) == (True, 1)


@pytest.mark.slow
def test_what_a_tool_started_ends_with_its_worker(ours: Recipe):
    started = time.monotonic()
    play(ours, [("spawn", {})], timeout_s=3.0, retries=0)
    assert time.monotonic() - started < 55
    assert [line for line in _commands() if "time.sleep(61.5)" in line] == []


def _commands() -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_worker_that_dies_shows_its_last_words(ours: Recipe):
    left, after = play(ours, [("leave", {})], [("much", {"size": 1})], retries=1)
    assert (left[0].failed, left[0].retries) == (True, 1)
    assert "the worker process ended with exit code 7. Its last words:\nout of memory" in left[0].output
    assert after[0].output == "x"


@pytest.mark.slow
def test_what_a_tool_prints_or_reads_disturbs_nothing(ours: Recipe):
    ((result,),) = play(ours, [("loud", {})], timeout_s=30.0, retries=0)
    assert result.output == "done"


@pytest.mark.slow
def test_a_cancelled_rollout_frees_the_worker(ours: Recipe):
    async def run() -> ToolResult:
        tools = config.Tools(where="local", local_workers=1)
        async with ToolClient(NOWHERE, tools, schemas(ours), recipe=ours) as client:
            slow = asyncio.create_task(client.call(ToolCall("c0", "slow", '{"seconds": 600}'), CONTEXT))
            await asyncio.sleep(0.5)
            slow.cancel()
            return await client.call(ToolCall("c1", "much", '{"size": 1}'), CONTEXT)

    assert asyncio.run(run()).output == "x"


def test_a_recipe_that_does_not_load_in_a_worker(ours: Recipe, monkeypatch: pytest.MonkeyPatch):
    assert ours.tools
    path = ours.folder / "tools.py"
    text = path.read_text()
    path.write_text("raise RuntimeError('the index is missing')")
    try:
        with pytest.raises(
            InfrastructureError,
            match=r"(?s)a tool worker of .*locals did not start: .*the index is missing.*Try the tools alone",
        ):
            play(ours, [("worker", {})])
    finally:
        path.write_text(text)
    assert workers() == []


def test_a_worker_that_hangs_at_the_start(ours: Recipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_tools, "START_DEADLINE_S", 0.01)
    with pytest.raises(InfrastructureError, match=r"it was not ready within 0\.01 s"):
        play(ours, [("worker", {})])
    assert workers() == []


@pytest.mark.slow
def test_workers_of_a_killed_stage_end(ours: Recipe):
    stage = f"""
import asyncio
from rft import config, recipe
from rft.tools.client import ToolClient
from rft.tools.signatures import schemas
from rft.types import Example, RolloutContext, ToolCall
from rft.wire.client import ToolEndpoint

async def main():
    ours = recipe.load(config.Recipe(path={str(ours.folder)!r}))
    settings = config.Tools(where="local", local_workers=1)
    async with ToolClient(ToolEndpoint("http://127.0.0.1:1"), settings, schemas(ours), recipe=ours) as client:
        context = RolloutContext("trace_1", Example("", ()))
        print((await client.call(ToolCall("c0", "worker", "{{}}"), context)).output, flush=True)
        await client.call(ToolCall("c1", "slow", '{{"seconds": 600}}'), context)

asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", stage], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived a stage killed with -9"
        time.sleep(0.05)


def test_local_and_an_external_server_contradict(ours: Recipe):
    section = config.Tools(where="local", server_url="http://127.0.0.1:1", version="1")
    with pytest.raises(ConfigError, match=r"tools\.where = 'local' .* tools\.server_url"):
        ToolClient(NOWHERE, section, schemas(ours), recipe=ours)
    with pytest.raises(ConfigError, match="Remove one of the two"):
        running(ours, section).__enter__()
