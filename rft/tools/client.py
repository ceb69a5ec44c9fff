"""The policy's tool calls: one call in, one result out, and never an exception for what the policy
did.

    call -> arguments are a JSON object? -> defaults of the prompt filled in -> fit the schema? ->
    the tool's source -> ToolResult

A tool's name leads to its source: the recipe's server or an address of `tools.endpoints` (HttpTool,
over rft/wire/client.py), a function of the recipe here or in a worker process (rft/tools/local.py),
a tool of an MCP server (rft/tools/mcp.py). All are under the same limits, and before all of them
stands the same check of arguments. Its schema is the job's, or the row's own, which wins. A tool
that declares `validate: false` judges its arguments itself. What a tool declares about itself
(`traits`) stands in its entry of `tools.endpoints`, or by its name in `tools.traits`.

Everything that the policy can have caused is a result that it sees (`is_error`): an unknown tool,
bad JSON, arguments that do not fit, a 4xx, a request or reply that is too large. Everything that it
cannot have caused is retried, then `failed`, and the rollout goes unscored.

A 403, 404, 405, 407 or 410 without an `output` is `failed` too, at once: no argument of the
policy's makes an address exist or a permission appear. The contract would show its body to the
policy and score the rollout; then a mistyped address looks like a policy that cannot do the task,
and neither the circuit breaker nor the alarm counts it. With an `output` the tool itself has
spoken, and the contract holds. A tool whose bare 404 means "no such record" declares
`client_errors: policy`. Since the policy may learn to provoke a failure, the alarm
(rft/grading/alarm.py) watches these too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from rft import config
from rft.errors import ConfigError, InfrastructureError, did_you_mean
from rft.recipe import Recipe
from rft.secrets import redact
from rft.tools import arguments
from rft.tools import local as local_tools
from rft.tools import mcp as mcp_tools
from rft.tools import server as toolserver
from rft.tools.arguments import Function, Refused
from rft.tools.local import AsyncTool, WorkerTool
from rft.types import Example, RolloutContext, StopReason, ToolCall, ToolResult, Turn
from rft.wire import headers
from rft.wire.client import HttpClient, Limits, NoReply, Reply, Target, ToolEndpoint, http_address
from rft.wire.contract import (
    SERVERS_OWN,
    Envelope,
    Malformed,
    Outcome,
    call_payload,
    clip,
    read_output,
    read_refusal,
    too_large,
    with_item,
)

MAX_ENVELOPES = 4096  # of rollouts under way; an older one is encoded anew
END_DEADLINE_S = 30.0  # for the word of a rollout's end, retries included: nobody waits for its answer

_DEFAULTS = config.Traits()

log = logging.getLogger("rft.tools.client")


def schemas(recipe: Recipe) -> list[dict[str, Any]]:
    """Chat-Completions tools in the recipe's order."""
    return [toolserver.schema(function) for function in recipe.tools]


# -- where a call goes -----------------------------------------------------------------------------
class Source(Protocol):
    """One tool, wherever it lives."""

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        """`arguments`: JSON that fits the schema. Raises NoReply when the retries are spent, and
        what stops the stage."""
        ...


@dataclass(frozen=True, slots=True)
class HttpTool:
    http: HttpClient
    target: Target
    client_errors: str = "infrastructure"
    """As in config.Traits."""

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        payload = call_payload(call, arguments, envelope)
        limits = self.target.limits
        if len(payload) > limits.max_request_bytes:
            _check_row(len(payload) - len(json.dumps(arguments)), limits, envelope)
            return _request_too_large(limits)

        def read(reply: Reply) -> Outcome:
            if reply.status in SERVERS_OWN and self.client_errors == "infrastructure":
                return Outcome(_said_by_the_tool(reply, call.name), is_error=True)
            if reply.oversized:
                return too_large(limits.max_reply_bytes)
            if reply.status >= 400:
                return Outcome(read_refusal(reply.body), is_error=True)
            return Outcome(read_output(reply.body))

        outcome, retries = await self.http.post(self.target, payload, envelope, call.call_id, read)
        return replace(outcome, retries=retries)


def _said_by_the_tool(reply: Reply, name: str) -> str:
    """The `output` of a 403, 404, 405, 407 or 410. Raises NoReply without one, at once: an address
    that is not there is not there a second later."""
    try:
        return read_output(reply.body)
    except Malformed:
        remedy = (
            "Fix the tool's address or key; or, if the policy's arguments cause it, declare client_errors: "
            f"policy for {name}"
        )
        raise NoReply(f"HTTP {reply.status} without an 'output': {clip(reply.body)}. {remedy}", lasting=True) from None


@dataclass(frozen=True, slots=True)
class _Route:
    """`origin` is what a person would look for: `tools.py`, `tools.endpoints`, `tools.mcp wiki`."""

    origin: str
    source: Source
    tool: Mapping[str, Any] | None
    """Its Chat-Completions tool; None: only rows say what its arguments are."""
    url: str = ""
    """Its address, if somebody else runs it."""


# -- the client ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Rollout:
    envelope: Envelope
    functions: Mapping[str, Function]


@dataclass
class ToolClient:
    """`async with ToolClient(endpoint, params.tools, schemas(recipe), recipe=recipe) as client:
    await client.call_all(...)`.

    `schemas`: the recipe's tools. `names` narrows what the policy may call; None offers all that
    have a schema. `recipe` is needed where tools.where is local: its functions are called here.
    """

    endpoint: ToolEndpoint
    section: config.Tools
    recipe_schemas: Sequence[Mapping[str, Any]]
    names: Sequence[str] | None = None
    recipe: Recipe | None = None
    schemas: list[dict[str, Any]] = field(default_factory=list, init=False)
    """What the policy may call, in a fixed order: the recipe's, then `tools.endpoints`, then MCP
    servers'. Known after entering."""

    def __post_init__(self) -> None:
        local_tools.check(self.section)
        self._http = HttpClient(self.section)
        self._routes: dict[str, _Route] = {}
        self._traits: dict[str, config.Traits] = {
            **self.section.traits,
            **{one.name: one for one in self.section.endpoints},
        }
        self._offered: dict[str, Function] = {}
        self._rollouts: dict[str, _Rollout] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._http)
            self._routes = {}
            await self._route_recipe(stack)
            self._route_endpoints()
            await self._route_mcp(stack)
            for name in self.section.traits:
                if name not in self._routes:
                    raise ConfigError(
                        f"params.yaml: tools.traits.{name}: there is no tool {name!r}. "
                        f"{did_you_mean(name, self._routes)}"
                    )
                if (
                    isinstance(self._routes[name].source, AsyncTool | WorkerTool)
                    and self._traits[name].client_errors == "policy"
                ):
                    raise ConfigError(
                        f"params.yaml: tools.traits.{name}.client_errors speaks of HTTP statuses, and tools.where = "
                        f"local calls {name} without any. "
                        "Take it out."
                    )
            self._offer()
            self._start, self._end = (self._lifecycle(key) for key in ("start_url", "end_url"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._rollouts.clear()
        await self._stack.aclose()

    def traits(self, name: str) -> config.Traits:
        """What the tool declares about itself."""
        return self._traits.get(name, _DEFAULTS)

    def address(self, name: str) -> str:
        """The URL of a tool that somebody else runs, without its query, which may hold a key; else
        the file or setting that it comes from."""
        route = self._routes[name]
        return route.url.partition("?")[0] or route.origin

    def terminal_answer(self, turn: Turn) -> ToolCall | None:
        """The first call of a terminal tool in this turn that the tool did not refuse."""
        pairs = zip(turn.calls, turn.results, strict=True)
        return next((call for call, result in pairs if not result.is_error and self.traits(call.name).terminal), None)

    async def _route_recipe(self, stack: AsyncExitStack) -> None:
        tools = {tool["function"]["name"]: tool for tool in self.recipe_schemas}
        urls: dict[str, str] = {}
        if self.section.where == "local":
            if self.recipe is None:
                raise ConfigError("params.yaml: tools.where = local needs the recipe, whose functions are called here.")
            sources = await stack.enter_async_context(local_tools.sources(self.recipe, self.section, self._http))
        else:
            where, rate = "params.yaml (tools.headers)", self.section.rate_limit
            static, secrets, dead = self.endpoint.headers, self.endpoint.secrets, self.endpoint.raise_if_dead
            base = http_address(self.endpoint.url, "the tools' address")
            urls = {name: base + path for name, path in self._paths(tools).items()}
            targets = {
                name: self._http.target(url, static, where, secrets, rate=rate, raise_if_dead=dead)
                for name, url in urls.items()
            }
            sources = {
                name: HttpTool(self._http, target, self.traits(name).client_errors) for name, target in targets.items()
            }
        for name, tool in tools.items():
            url = "" if self.section.server_url is None else urls[name]
            self._add(name, _Route("the recipe's tools.py", sources[name], tool, url))

    def _paths(self, names: Iterable[str]) -> dict[str, str]:
        """The path of each of the recipe's tools below the server's address. Raises ConfigError for
        another name, or a shared path."""
        paths = self.section.paths
        if isinstance(paths, str):
            return {name: paths.replace("{name}", name) for name in names}
        found = {name: paths.get(name, f"/tools/{name}") for name in names}
        for name, path in paths.items():
            if name not in found:
                raise ConfigError(
                    f"params.yaml: tools.paths.{name} = {path!r}: the recipe has no tool {name!r}. "
                    f"{did_you_mean(name, found)}"
                )
        owners: dict[str, str] = {}
        for name, path in found.items():
            if (other := owners.setdefault(path, name)) != name:
                raise ConfigError(
                    f"params.yaml: tools.paths: {other} and {name} are both at {path!r}. Give each tool a path of "
                    "its own."
                )
        return found

    def _route_endpoints(self) -> None:
        """An endpoint that takes a recipe tool's place keeps its schema, unless it has one of its
        own."""
        for one in self.section.endpoints:
            where = f"params.yaml (tools.endpoints, {one.name})"
            static, secrets = headers.resolve(one.headers, where)
            url = http_address(one.server_url, f"{where}: server_url")
            target = self._http.target(
                url, static, where, secrets, own=one, rate=one.rate_limit or self.section.rate_limit
            )
            replaced = self._routes.get(one.name)
            tool = replaced.tool if replaced else None
            if one.parameters is not None:
                function = {"name": one.name, "description": one.description, "parameters": one.parameters}
                tool = {"type": "function", "function": function}
            source = HttpTool(self._http, target, one.client_errors)
            self._add(one.name, _Route("tools.endpoints", source, tool, url), takes="the recipe's tools.py")

    async def _route_mcp(self, stack: AsyncExitStack) -> None:
        servers = [mcp_tools.Server(one, self.section, self._http) for one in self.section.mcp]
        for server in servers:
            await stack.enter_async_context(server)
            for tool in server.tools:
                name = tool["function"]["name"]
                source = server.source(name, self.traits(name).client_errors)
                self._add(name, _Route(f"tools.mcp {server.name}", source, tool, server.url))

    def _add(self, name: str, route: _Route, takes: str = "") -> None:
        other = self._routes.get(name)
        if other is not None and other.origin != takes:
            raise ConfigError(
                f"params.yaml: two tools are called {name!r}: one of {other.origin}, one of {route.origin}. "
                "Rename or leave out one; tools.mcp[].prefix renames all tools of an MCP server."
            )
        self._routes[name] = route

    def _offer(self) -> None:
        tools = {name: route.tool for name, route in self._routes.items() if route.tool is not None}
        offered = list(tools) if self.names is None else list(self.names)
        if unknown := [name for name in offered if name not in tools]:
            raise ConfigError(f"tools {unknown} have no schema; there are {sorted(tools)}.")
        self._offered = {name: arguments.read_tool(tools[name], self._routes[name].origin)[1] for name in offered}
        self.schemas = [dict(tools[name]) for name in offered]

    def check_rows(self, examples: Iterable[Example]) -> None:
        """Raises ConfigError for a row whose own tools cannot be called: no address, or no schema.
        Before any compute is spent."""
        for example in examples:
            self._functions_of(example)

    def _functions_of(self, example: Example) -> Mapping[str, Function]:
        """The row's own, else the job's."""
        if example.tools is None:
            return self._offered
        where = f"example {example.id!r}"
        functions: dict[str, Function] = {}
        for row in example.tools:
            name, function = arguments.read_tool(row, where)
            if name in functions:
                raise ConfigError(f"{where}: two of its tools are called {name!r}. Remove one.")
            if name not in self._routes:
                known = ", ".join(sorted(self._routes)) or "none"
                raise ConfigError(
                    f"{where}: its tool {name!r} has no address. Name one in params.yaml: tools.endpoints. Known "
                    f"here: {known}."
                )
            if self.names is None or name in self.names:
                functions[name] = function
        return functions

    # -- a rollout's calls
    async def call_all(
        self,
        calls: Sequence[ToolCall],
        context: RolloutContext,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        arrived: Callable[[ToolResult], None] = lambda result: None,
    ) -> tuple[ToolResult, ...]:
        """The calls of one turn, in parallel, answered in call order. `defaults` by tool, as in
        PromptSettings.tool_defaults.

        `arrived` is told of each result at once: whoever is cut off while others are waited for
        must not lose it.
        """
        defaults = defaults or {}
        if unknown := sorted(set(defaults) - set(self._routes)):
            raise ConfigError(f"tool_defaults names the tools {unknown}; there are {sorted(self._routes)}.")

        async def one(call: ToolCall) -> ToolResult:
            result = await self.call(call, context, defaults.get(call.name))
            arrived(result)
            return result

        if len(calls) == 1:
            return (await one(calls[0]),)
        tasks = [asyncio.create_task(one(call)) for call in calls]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def call(
        self, call: ToolCall, context: RolloutContext, defaults: Mapping[str, Any] | None = None
    ) -> ToolResult:
        """`defaults`: values for optional arguments that the policy left out, of this tool. Raises
        only what stops the stage."""
        started = time.monotonic()
        rollout, failed, is_sent = self._rollout(context), False, False
        try:
            sent = arguments.prepare(call, rollout.functions, defaults or {}, self.traits(call.name).validate_arguments)
            if len(sent.encode("utf-8", "surrogatepass")) > self.section.max_request_bytes:
                outcome = _request_too_large(Limits.of(self.section))
            else:
                is_sent = True
                outcome = await self._routes[call.name].source.call(call, sent, rollout.envelope)
        except Refused as problem:
            outcome = Outcome(f"Error: {problem}", is_error=True)
        except NoReply as failure:
            outcome, failed = Outcome(f"tool {call.name} failed: {failure}", retries=failure.retries), True
        seconds = time.monotonic() - started if is_sent else 0.0
        return ToolResult(call.call_id, redact(outcome.output), outcome.is_error, failed, seconds, outcome.retries)

    def _rollout(self, context: RolloutContext) -> _Rollout:
        known = self._rollouts.get(context.trace_id)
        if known is None or known.envelope.context is not context:
            if len(self._rollouts) >= MAX_ENVELOPES:
                del self._rollouts[next(iter(self._rollouts))]
            known = self._rollouts[context.trace_id] = _Rollout(Envelope(context), self._functions_of(context.example))
        return known

    # -- a rollout's life
    def _lifecycle(self, key: str) -> Target | None:
        section, where = self.section.lifecycle, "params.yaml (tools.lifecycle)"
        if (url := getattr(section, key)) is None:
            return None
        static, secrets = headers.resolve(section.headers, where)
        return self._http.target(http_address(url, f"{where}: {key}"), static, where, secrets)

    async def start(self, context: RolloutContext) -> str | None:
        """Tell tools.lifecycle.start_url; returns what failed, after the retries."""
        if self._start is None:
            return None
        envelope = self._rollout(context).envelope
        payload = with_item({"trace_id": context.trace_id}, envelope)
        _check_row(len(payload), self._start.limits, envelope)
        try:
            await self._http.post(self._start, payload, envelope, "start", _accept)
        except NoReply as failure:
            return f"tools.lifecycle.start_url failed: {failure}"
        return None

    async def end(self, context: RolloutContext, stop_reason: StopReason) -> None:
        """Tell tools.lifecycle.end_url; a failure is logged and changes nothing."""
        rollout = self._rollouts.pop(context.trace_id, None)
        if self._end is None:
            return
        payload = json.dumps({"trace_id": context.trace_id, "stop_reason": str(stop_reason)}).encode()
        try:
            async with asyncio.timeout(END_DEADLINE_S):
                await self._http.post(
                    self._end, payload, rollout.envelope if rollout else Envelope(context), "end", _accept
                )
        except (NoReply, InfrastructureError, TimeoutError) as failure:
            why = str(failure) or f"no answer within {END_DEADLINE_S:g} s"
            log.warning("tools.lifecycle.end_url failed for %s: %s", context.trace_id, why)


def _accept(reply: Reply) -> None:
    """Any 2xx; what it says is the server's own business."""
    if reply.status >= 400:
        raise NoReply(f"HTTP {reply.status}: {clip(reply.body)}")


def _check_row(num_bytes: int, limits: Limits, envelope: Envelope) -> None:
    """What is sent without a word of the policy's."""
    if num_bytes > limits.max_request_bytes:
        raise ConfigError(
            f"example {envelope.context.example.id!r}: a request with its row takes {num_bytes} bytes, "
            f"and tools.max_request_bytes is {limits.max_request_bytes}. "
            "Make the row smaller."
        )


def _request_too_large(limits: Limits) -> Outcome:
    return Outcome(f"Error 413: the request is larger than {limits.max_request_bytes} bytes. Send less.", is_error=True)


__all__ = ["HttpTool", "Source", "ToolClient", "schemas"]
