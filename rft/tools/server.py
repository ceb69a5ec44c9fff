"""Serve a recipe's tools and grader over HTTP, in a process of its own.

    GET  /health          {"status": "ok", "tools": [...]}
    POST /tools/<name>    {"type": "function_call", "call_id", "name", "arguments": "<JSON>",
                          "trace_id", "item"} -> {"type": "function_call_output", "call_id", "id",
                          "output": "<text>"}
    POST /grade           {"sample", "item", "trace_id"} -> {"score", "solved", "reason",
                          "sub_scores"}
    POST /end             {"trace_id"}: the rollout is over and graded. It exists only if the recipe
                          keeps state for each rollout (rft/tools/states.py)

A tool is a plain typed Python function. Its schema is made from its signature and docstring, and
its arguments are validated against the same types, so schema and check cannot differ. The status
says who is to blame. `ToolError` and bad arguments are the policy's fault: the status is 400, and
the policy sees the text. An exception is our fault: the status is 500, and the trainer retries and
then leaves the rollout unscored.

Everything except /health needs the bearer key in RFT_TOOL_KEY, if that is set. Functions run in the
event loop, because they are lookups of a fraction of a millisecond, and a thread would cost more
than the work. An `async def` tool is awaited.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import hmac
import inspect
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pydantic
from aiohttp import web

from rft import config
from rft.errors import InfrastructureError, RftError, ToolError, UserError
from rft.process import die_with
from rft.recipe import Recipe, load
from rft.tools.signatures import CALL_ID, ITEM, ROLLOUT, TRACE_ID, arguments_model, asks_for, describe, name_of
from rft.tools.states import States

KEY = "RFT_TOOL_KEY"
MAX_BODY_BYTES = 16_000_000  # a grader's body holds every tool call of the rollout
BACKLOG = 4096
"""Connections that may wait to be accepted. The rollouts of a batch connect at the same moment. The
kernel drops connections beyond this number, and a dropped client tries again a second later. With
the usual 128, 10 of 62 batches of 500 rollouts took that second."""

log = logging.getLogger("rft.tools.server")


def app(recipe: Recipe, section: config.RolloutState | None = None) -> web.Application:
    """Make the application. Raises UserError for a recipe whose tools cannot be served."""
    tools = {name_of(function): function for function in recipe.tools}
    if len(tools) != len(recipe.tools):
        names = [name_of(function) for function in recipe.tools]
        raise UserError(f"{recipe.folder}/tools.py: two of TOOLS have the same name. Rename one: {names}.")
    models = {name: arguments_model(function) for name, function in tools.items()}
    states = _states(recipe, section or config.RolloutState())

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "tools": sorted(tools)})

    async def call(request: web.Request) -> web.Response:
        body = await _body(request)
        name = request.match_info["name"]
        if name not in tools:
            return _output(body, f"unknown tool {name!r}; known: {', '.join(sorted(tools))}", 404)
        try:
            arguments = read_arguments(models[name], body.get("arguments", "{}"))
            async with _given(tools[name], body, states) as given:
                return _output(body, await _run(tools[name], **arguments, **given))
        except ToolError as error:
            return _output(body, str(error), 400)

    async def grade(request: web.Request) -> web.Response:
        if recipe.grade is None:
            raise web.HTTPNotFound(text=f"{recipe.name}/tools.py defines no grade(sample, item)")
        body = await _body(request)
        if not isinstance(body.get("sample"), dict) or not isinstance(body.get("item"), dict):
            raise web.HTTPBadRequest(text="the body needs the objects 'sample' and 'item'")
        async with _given(recipe.grade, body, states) as given:
            given.pop(ITEM, None)
            return web.json_response(await _run(recipe.grade, body["sample"], body["item"], **given))

    async def end(request: web.Request) -> web.Response:
        if states is None:
            raise web.HTTPNotFound(text=f"{recipe.name}/tools.py defines no setup(rollout)")
        trace_id = str((await _body(request)).get(TRACE_ID) or "")
        return web.json_response({"ended": await states.end(trace_id)})

    served = web.Application(
        middlewares=[_authorize(os.environ.get(KEY)), _report_bugs(recipe.folder)], client_max_size=MAX_BODY_BYTES
    )
    posts = {"/tools/{name}": call, "/grade": grade, "/end": end}
    served.add_routes([web.get("/health", health), *(web.post(path, handler) for path, handler in posts.items())])
    if states is not None:
        served.cleanup_ctx.append(_kept(states))
    return served


def _states(recipe: Recipe, section: config.RolloutState) -> States | None:
    functions = [*recipe.tools, *([recipe.grade] if recipe.grade else [])]
    asking = [name_of(function) for function in functions if ROLLOUT in asks_for(function)]
    where = f"{recipe.folder}/tools.py"
    if recipe.setup is None:
        if recipe.teardown is not None:
            raise UserError(f"{where}: has teardown(rollout) without setup(rollout). Write setup, too.")
        if asking:
            raise UserError(f"{where}: {asking[0]} takes `rollout`, which needs setup(rollout). Write it.")
        return None
    return States(recipe.setup, recipe.teardown, section)


def _kept(states: States) -> Callable[[web.Application], AsyncIterator[None]]:
    async def keep(app: web.Application) -> AsyncIterator[None]:
        async with states.running():
            yield

    return keep


@asynccontextmanager
async def _given(
    function: Callable[..., Any], body: dict[str, Any], states: States | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield the function's arguments that do not come from the policy. A rollout's state stays
    during the block."""
    known = {ITEM: body.get(ITEM) or {}, TRACE_ID: str(body.get(TRACE_ID) or ""), CALL_ID: str(body.get(CALL_ID) or "")}
    asked = asks_for(function)
    given = {name: known[name] for name in asked if name in known}
    if ROLLOUT not in asked or states is None:
        yield given
        return
    async with states.using(known[TRACE_ID], known[ITEM]) as rollout:
        yield given | {ROLLOUT: rollout}


def read_arguments(model: type[pydantic.BaseModel], raw: Any) -> dict[str, Any]:
    """Read the wire's JSON string; an object is accepted too. Raises ToolError with every
    problem."""
    try:
        read = model.model_validate_json(raw) if isinstance(raw, str) else model.model_validate(raw)
    except pydantic.ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
        ]
        raise ToolError("invalid arguments: " + "; ".join(problems)) from None
    return {str(info.alias): getattr(read, name) for name, info in model.model_fields.items()}


async def _run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object")
    return body


def _output(body: dict[str, Any], output: Any, status: int = 200) -> web.Response:
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    reply = {"type": "function_call_output", "call_id": body.get("call_id"), "id": body.get("id"), "output": text}
    return web.json_response(reply, status=status)


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _authorize(key: str | None) -> Any:
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def authorize(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if key is not None and request.path != "/health" and not hmac.compare_digest(given, expected):
            raise web.HTTPUnauthorized(
                text=f"the bearer key is missing or wrong; it is the value that {KEY} had when the server started"
            )
        return await handler(request)

    return authorize


def _report_bugs(folder: Path) -> Any:
    """Answer an exception with status 500, the exception and the recipe's line that raised it. The
    traceback goes to stderr, and the trainer shows its end."""

    @web.middleware
    async def report(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return web.json_response({"error": f"{type(error).__name__}: {error}{_place(error, folder)}"}, status=500)

    return report


def _place(error: Exception, folder: Path) -> str:
    """Name the innermost frame of the recipe's own code. A library's frame says little to the
    recipe's author."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
    return f" ({Path(own[-1].filename).relative_to(folder)}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


async def serve(served: web.Application, host: str, port: int, listening: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises InfrastructureError when the port is taken."""
    runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        except OSError as error:
            why = f"cannot listen on {host}:{port}: {error.strerror}. Give another --host or --port."
            if error.errno == errno.EADDRINUSE:
                why = f"port {port} on {host} is in use. Stop the process there, or take a free port with --port 0."
            raise InfrastructureError(why) from None
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        listening(runner.addresses[0][1])
        await stop.wait()
    finally:
        await runner.cleanup()


def run(
    folder: str,
    options: str,
    host: str = "127.0.0.1",
    port: int = 0,
    state: str = "{}",
    sources: Sequence[str] = (),
) -> None:
    """Serve the recipe of `folder` until a signal ends it, and print `listening HOST:PORT` when
    ready. `options` and `state` (tools.state) are JSON."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    limits = config.parse(_json(state, "--state"), "--state", config.RolloutState)
    served = app(_loaded(folder, options, sources), limits)
    asyncio.run(serve(served, host, port, lambda port: print(f"listening {host}:{port}", flush=True)))


def _loaded(folder: str, options: str, sources: Sequence[str]) -> Recipe:
    named = {"path": folder, "options": _json(options, "--options"), "sources": list(sources)}
    return load(config.parse(named, "--options", config.Recipe))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise UserError(f"{where} {text!r} is not JSON. Write an object, such as '{{\"key\": 1}}'.") from None


def main(argv: list[str] | None = None) -> int:
    """Run the process that a stage starts (rft/tools/lifetime.py). People use `rft stage tools`."""
    parser = argparse.ArgumentParser(prog="python -m rft.tools.server")
    parser.add_argument("recipe", metavar="RECIPE_FOLDER")
    parser.add_argument("--options", default="{}", metavar="JSON")
    parser.add_argument("--state", default="{}", metavar="JSON", help="tools.state of params.yaml")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--source", action="append", default=[], metavar="PATH", help="one of recipe.sources")
    parser.add_argument("--describe", action="store_true", help="print what tools.py offers, as JSON, and end")
    parser.add_argument(
        "--parent", type=int, metavar="PID", help="end when this process, which must be the parent, ends"
    )
    args = parser.parse_args(argv)
    if args.parent is not None:
        die_with(args.parent)
    try:
        if args.describe:
            print(describe(_loaded(args.recipe, args.options, args.source)).model_dump_json())
            return 0
        run(args.recipe, args.options, args.host, args.port, args.state, args.source)
    except RftError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
