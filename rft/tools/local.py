"""The recipe's own functions as tools, without a server: `tools.where: local`.

    async def    is awaited in our event loop, which it must not block
    def          is called in one of tools.local_workers processes, because only a process can be
                 ended at a deadline

Both have the limits of a tool over HTTP: deadline, size of the reply, slots, rate. A `ToolError`
and bad arguments are the policy's fault, and it sees them. An exception, an overrun or a worker's
death is our fault: the call is retried, then `failed`. A worker that overruns is killed with all
its child processes, and another replaces it at the next call.

A worker loads the recipe by itself (`python -m rft.tools.local`), so it never sees the memory of
this process, torch included. Requests and replies are JSON after four bytes of length, on pipes
that the tool cannot reach. The tool's own stdin is empty, and its output goes to a file whose end
is shown if the worker dies. A worker ends with us, by the kernel's death signal or the end of its
pipe.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import logging
import os
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any, Self

from rft import commands, config
from rft.errors import ConfigError, InfrastructureError, RftError, ToolError
from rft.process import die_with, last_output, module_command, tail
from rft.recipe import Recipe, load
from rft.tools import server as toolserver
from rft.tools.signatures import CALL_ID, GIVEN, ITEM, TRACE_ID, arguments_model, asks_for
from rft.types import ToolCall
from rft.wire.client import HttpClient, Limits, NoReply, RateLimiter, retrying
from rft.wire.contract import Envelope, Outcome, as_text, too_large, with_item

START_DEADLINE_S = 60.0
LENGTH = struct.Struct(">I")

log = logging.getLogger("rft.tools.local")


def check(section: config.Tools) -> None:
    if section.where == "local" and section.server_url is not None:
        raise ConfigError(
            "params.yaml: tools.where = 'local' calls the recipe's own functions, and "
            f"tools.server_url = {section.server_url!r} names a server. Remove one of the two."
        )


@asynccontextmanager
async def sources(
    recipe: Recipe, section: config.Tools, http: HttpClient
) -> AsyncIterator[dict[str, AsyncTool | WorkerTool]]:
    """Yield the source of each function. Raises InfrastructureError if the workers do not start."""
    limits = Limits.from_params(section)
    blocking = any(not inspect.iscoroutinefunction(function) for function in recipe.tools)
    async with Workers(recipe, section.local_workers if blocking else 0) as workers:
        made: dict[str, AsyncTool | WorkerTool] = {}
        for function in recipe.tools:
            name, asked = function.__name__, tuple(asks_for(function))
            rate_limiter = http.rate_limiter(section.rate_limit)
            if inspect.iscoroutinefunction(function):
                made[name] = AsyncTool(function, arguments_model(function), asked, limits, rate_limiter)
            else:
                made[name] = WorkerTool(name, workers, asked, limits, rate_limiter)
        yield made


@dataclass(frozen=True, slots=True)
class AsyncTool:
    """An `async def`, called in this process."""

    function: Callable[..., Awaitable[Any]]
    model: type[Any]
    asked: tuple[str, ...]
    """What the function takes besides the policy's arguments (`GIVEN`)."""
    limits: Limits
    rate_limiter: RateLimiter

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        async def once(attempt: int) -> Outcome:
            async with self.rate_limiter, asyncio.timeout(self.limits.timeout_s):
                return await self._run(call.call_id, arguments, envelope)

        outcome, retries = await retrying(self.limits, f"{envelope.context.trace_id} {call.call_id}", once)
        return replace(outcome, retries=retries)

    async def _run(self, call_id: str, arguments: str, envelope: Envelope) -> Outcome:
        try:
            read = toolserver.read_arguments(self.model, arguments)
            # each call gets its own copy of the row, as over HTTP
            context = envelope.context
            given = {ITEM: context.example.row, TRACE_ID: lambda: context.trace_id, CALL_ID: lambda: call_id}
            output = as_text(await self.function(**read, **{key: given[key]() for key in self.asked}))
        except ToolError as error:
            return Outcome(as_text(str(error)), is_error=True)
        except Exception as error:
            log.exception("%s failed", self.function.__name__)
            raise NoReply(f"{type(error).__name__}: {error}") from None
        if len(output.encode()) > self.limits.max_reply_bytes:
            return too_large(self.limits.max_reply_bytes)
        return Outcome(output)


@dataclass(frozen=True, slots=True)
class WorkerTool:
    """A `def`, called in a worker process."""

    name: str
    workers: Workers
    asked: tuple[str, ...]
    """What the function takes besides the policy's arguments (`GIVEN`)."""
    limits: Limits
    rate_limiter: RateLimiter

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        head = {"name": self.name, "arguments": arguments, "max_reply_bytes": self.limits.max_reply_bytes}
        if TRACE_ID in self.asked:
            head[TRACE_ID] = envelope.context.trace_id
        if CALL_ID in self.asked:
            head[CALL_ID] = call.call_id
        request = with_item(head, envelope) if ITEM in self.asked else json.dumps(head).encode()

        async def once(attempt: int) -> Outcome:
            async with self.rate_limiter:
                return self._read(await self.workers.ask(request, self.limits.timeout_s))

        outcome, retries = await retrying(self.limits, f"{envelope.context.trace_id} {call.call_id}", once)
        return replace(outcome, retries=retries)

    def _read(self, reply: dict[str, Any]) -> Outcome:
        if "failed" in reply:
            raise NoReply(reply["failed"])
        if "refused" in reply:
            return Outcome(reply["refused"], is_error=True)
        return Outcome(reply["output"]) if "output" in reply else too_large(self.limits.max_reply_bytes)


# -- the workers, seen from here -------------------------------------------------------------------
class Workers:
    """A fixed number of worker processes, each with one call at a time."""

    def __init__(self, recipe: Recipe, number: int) -> None:
        self._workers = [_Worker(recipe) for _ in range(number)]

    async def __aenter__(self) -> Self:
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            await self.__aexit__()
            raise
        for worker in self._workers:
            self._idle.put_nowait(worker)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def ask(self, request: bytes, timeout_s: float) -> dict[str, Any]:
        """Send a request to a worker, and return its reply. Raises TimeoutError, and NoReply for a
        worker that died. The time to get or start a worker does not count as part of
        `timeout_s`."""
        worker = await self._idle.get()
        try:
            if not worker.alive:
                await worker.start()
            async with asyncio.timeout(timeout_s):
                return await worker.ask(request)
        except BaseException:
            worker.kill()  # it overran or its rollout was cancelled, so nobody waits for its reply
            raise
        finally:
            self._idle.put_nowait(worker)


class _Worker:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._process: asyncio.subprocess.Process | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self.alive = False

    async def start(self) -> None:
        await self._reap()
        if self._output.closed:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
        sources = [word for source in self._recipe.sources for word in ("--source", source)]
        command = module_command("rft.tools.local", str(self._recipe.folder), *sources)
        options = self._recipe.options.model_dump_json(by_alias=True)
        self._process = await asyncio.create_subprocess_exec(
            *(*command, "--options", options, "--parent", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._output,
            process_group=0,  # Ctrl-C is for the stage; and a kill also ends what the tool started
        )
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await self._receive(self._process)
        except (NoReply, TimeoutError) as failure:
            self.kill()
            late = f"it was not ready within {START_DEADLINE_S:g} s. {last_output(tail(self._output))}"
            raise InfrastructureError(
                f"a tool worker of {self._recipe.folder} did not start: "
                f"{failure if isinstance(failure, NoReply) else late}\n"
                f"Try the tools alone: {commands.toolserver(self._recipe.folder)}; then run the stage again."
            ) from None
        self.alive = True

    async def ask(self, request: bytes) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # the worker died, and `_receive` says how
            self._process.stdin.write(LENGTH.pack(len(request)) + request)
            await self._process.stdin.drain()
        return await self._receive(self._process)

    async def _receive(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            return json.loads(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.kill()
            raise NoReply(
                f"the worker process ended with exit code {await process.wait()}. {last_output(tail(self._output))}"
            ) from None

    def kill(self) -> None:
        self.alive = False
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        self.kill()
        await self._reap()
        self._output.close()

    async def _reap(self) -> None:
        if self._process is not None:
            self.kill()
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()
            self._process = None


# -- a worker, from inside -------------------------------------------------------------------------
def _work(recipe: Recipe, requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the pipe ends."""
    functions = {function.__name__: (function, arguments_model(function)) for function in recipe.tools}
    _send(replies, {"ready": True})
    while head := requests.read(LENGTH.size):
        request = json.loads(requests.read(*LENGTH.unpack(head)))
        _send(replies, _answer(*functions[request["name"]], request))


def _answer(function: Callable[..., Any], model: type[Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = toolserver.read_arguments(model, request["arguments"])
        arguments |= {key: request[key] for key in GIVEN if key in request}
        output = as_text(function(**arguments))
    except ToolError as error:
        return {"refused": as_text(str(error))}
    except Exception as error:
        traceback.print_exc()
        return {"failed": as_text(f"{type(error).__name__}: {error}")}
    return {"oversized": True} if len(output.encode()) > request["max_reply_bytes"] else {"output": output}


def _send(replies: IO[bytes], reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    replies.write(LENGTH.pack(len(body)) + body)
    replies.flush()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rft.tools.local",
        description="A worker process of tools.where: local. A stage starts it; not for use at a terminal.",
    )
    parser.add_argument("recipe", metavar="RECIPE_FOLDER")
    parser.add_argument("--options", default="{}", metavar="JSON")
    parser.add_argument("--source", action="append", default=[], metavar="PATH")
    parser.add_argument("--parent", type=int, required=True, metavar="PID")
    args = parser.parse_args(argv)
    die_with(args.parent)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        settings = {"path": args.recipe, "options": json.loads(args.options), "sources": args.source}
        _work(load(config.parse(settings, "--options", config.Recipe)), requests, replies)
    except RftError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["AsyncTool", "WorkerTool", "Workers", "check", "sources"]
