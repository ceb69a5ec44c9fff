"""The policy's tool calls: each call gets one result, and the policy can never cause an exception.

    call -> arguments are a JSON object? -> defaults of the prompt filled in -> fit the schema? ->
    the tool's source -> ToolResult

A tool's name leads to its source:

    rft/tools/http.py     the recipe's server, or an address of `tools.endpoints`
    rft/tools/local.py    a function of the recipe, here or in a worker process
    rft/tools/mcp.py      a tool of an MCP server

The same limits and the same check of arguments hold for all sources. The schema is the row's own,
else the job's. A tool with `validate: false` checks its arguments itself. A tool's declarations
about itself (`traits`) are in its entry of `tools.endpoints`, or under its name in `tools.traits`.

An error that the policy may have caused is a result that it sees (`is_error`). Examples are an
unknown tool, bad JSON, arguments that do not fit, a 4xx, and a request or reply that is too large.
An error that it cannot have caused is retried, then `failed`, and the rollout is unscored. A policy
may learn to provoke such failures, so the alarm (rft/grading/alarm.py) watches them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from rft import config
from rft.errors import ConfigError, InfrastructureError, did_you_mean
from rft.recipe import Recipe
from rft.secrets import redact
from rft.tools import arguments
from rft.tools import local as local_tools
from rft.tools import mcp as mcp_tools
from rft.tools.arguments import REMEDY, Function, Refused
from rft.tools.http import HttpTool, check_row, request_too_large
from rft.tools.local import AsyncTool, WorkerTool
from rft.types import Example, RolloutContext, StopReason, ToolCall, ToolResult, Turn
from rft.wire import headers
from rft.wire.client import HttpClient, Limits, NoReply, Reply, Target, ToolEndpoint, http_address
from rft.wire.contract import Envelope, Outcome, clip, stop_word, with_item

MAX_ENVELOPES = 4096  # of running rollouts; an older one is encoded again
END_DEADLINE_S = 30.0  # for reporting a rollout's end, with retries; nobody waits for the answer

_DEFAULTS = config.Traits()

log = logging.getLogger("rft.tools.client")


# -- where a call goes -----------------------------------------------------------------------------
class Source(Protocol):
    """One tool, wherever it runs."""

    async def call(self, call: ToolCall, arguments: str, envelope: Envelope) -> Outcome:
        """Make a call. `arguments`: JSON that fits the schema. Raises NoReply after the last
        retry."""
        ...


@dataclass(frozen=True, slots=True)
class _Route:
    origin: str
    """Where a person finds the tool: `tools.py`, `tools.endpoints`, `tools.mcp wiki`."""
    source: Source
    tool: Mapping[str, Any] | None
    """The Chat-Completions tool; None: only rows declare its arguments."""
    url: str = ""
    """The address, if somebody else runs the tool."""


# -- the client ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Rollout:
    envelope: Envelope
    functions: Mapping[str, Function]


@dataclass
class ToolClient:
    """Sends the policy's calls to their tools.

        async with ToolClient(endpoint, params.tools, schemas(recipe), recipe=recipe) as client:
            results = await client.call_all(calls, context)

    `names`: the tools that the policy may call; None offers all tools with a schema. `recipe` is
    needed for tools.where = local, which calls the recipe's functions here.
    """

    endpoint: ToolEndpoint
    section: config.Tools
    recipe_schemas: Sequence[Mapping[str, Any]]
    names: Sequence[str] | None = None
    recipe: Recipe | None = None
    schemas: list[dict[str, Any]] = field(default_factory=list, init=False)
    """The tools that the policy may call, known when the client is open. The recipe's come first,
    then those of `tools.endpoints`, then those of MCP servers."""

    def __post_init__(self) -> None:
        local_tools.check(self.section)
        self._http = HttpClient(self.section)
        self._routes: dict[str, _Route] = {}
        endpoints = {endpoint.name: endpoint for endpoint in self.section.endpoints}
        self._traits: dict[str, config.Traits] = {**self.section.traits, **endpoints}
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
            self._check_traits()
            self._offer()
            self._start, self._end = (self._lifecycle(key) for key in ("start_url", "end_url"))
            self._ended = self._own_end()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._rollouts.clear()
        await self._stack.aclose()

    def traits(self, name: str) -> config.Traits:
        """Return the tool's declarations about itself."""
        return self._traits.get(name, _DEFAULTS)

    def trait_setting(self, name: str, trait: str) -> str:
        """Return the place in params.yaml for a trait of the tool, such as `probe: false`."""
        if isinstance(self.traits(name), config.Endpoint):
            return f"{trait} in the entry of {name} in tools.endpoints"
        return f"tools.traits.{name}.{trait}"

    def address(self, name: str) -> str:
        """Return the URL of a tool that somebody else runs, without the query, which may hold a
        key. For other tools, return the file or setting that the tool comes from."""
        route = self._routes[name]
        return route.url.partition("?")[0] or route.origin

    def terminal_answer(self, turn: Turn) -> ToolCall | None:
        """Return this turn's first call of a terminal tool which the tool did not refuse."""
        pairs = zip(turn.calls, turn.results, strict=True)
        return next((call for call, result in pairs if not result.is_error and self.traits(call.name).terminal), None)

    def _check_traits(self) -> None:
        for name in self.section.traits:
            where = f"params.yaml: tools.traits.{name}"
            if name not in self._routes:
                raise ConfigError(f"{where}: there is no tool {name!r}. {did_you_mean(name, self._routes)}")
            is_local = isinstance(self._routes[name].source, AsyncTool | WorkerTool)
            if is_local and self._traits[name].client_errors == "policy":
                raise ConfigError(
                    f"{where}.client_errors is about HTTP statuses, and tools.where = local calls {name} without HTTP. "
                    "Remove it."
                )

    async def _route_recipe(self, stack: AsyncExitStack) -> None:
        tools = {tool["function"]["name"]: tool for tool in self.recipe_schemas}
        urls: dict[str, str] = {}
        if self.section.where == "local":
            if self.recipe is None:
                raise ConfigError("params.yaml: tools.where = local needs the recipe, whose functions are called here.")
            sources = await stack.enter_async_context(local_tools.sources(self.recipe, self.section, self._http))
        else:
            base = http_address(self.endpoint.url, "the tools' address")
            urls = {name: base + path for name, path in self._paths(tools).items()}
            sources = {}
            for name, url in urls.items():
                target = self._http.target(
                    url,
                    self.endpoint.headers,
                    "params.yaml (tools.headers)",
                    self.endpoint.secrets,
                    rate=self.section.rate_limit,
                    raise_if_dead=self.endpoint.raise_if_dead,
                )
                sources[name] = HttpTool(self._http, target, self.traits(name).client_errors)
        for name, tool in tools.items():
            url = "" if self.section.server_url is None else urls[name]
            self._add(name, _Route("the recipe's tools.py", sources[name], tool, url))

    def _paths(self, names: Iterable[str]) -> dict[str, str]:
        """Return, for each tool of the recipe, its path below the server's address. Raises
        ConfigError for an unknown name or a shared path."""
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
                    f"params.yaml: tools.paths: {other} and {name} are both at {path!r}. Give each tool its own path."
                )
        return found

    def _route_endpoints(self) -> None:
        """Add `tools.endpoints`. An endpoint that replaces a recipe's tool keeps the recipe's
        schema, unless it has its own."""
        for own in self.section.endpoints:
            where = f"params.yaml (tools.endpoints, {own.name})"
            static, secrets = headers.resolve(own.headers, where)
            url = http_address(own.server_url, f"{where}: server_url")
            rate = own.rate_limit or self.section.rate_limit
            target = self._http.target(url, static, where, secrets, own=own, rate=rate)
            replaced = self._routes.get(own.name)
            tool = replaced.tool if replaced else None
            if own.parameters is not None:
                function = {"name": own.name, "description": own.description, "parameters": own.parameters}
                tool = {"type": "function", "function": function}
            source = HttpTool(self._http, target, own.client_errors)
            self._add(own.name, _Route("tools.endpoints", source, tool, url), replaces="the recipe's tools.py")

    async def _route_mcp(self, stack: AsyncExitStack) -> None:
        servers = [mcp_tools.Server(server, self.section, self._http) for server in self.section.mcp]
        for server in servers:
            await stack.enter_async_context(server)
            for tool in server.tools:
                name = tool["function"]["name"]
                source = server.source(name, self.traits(name).client_errors)
                self._add(name, _Route(f"tools.mcp {server.name}", source, tool, server.url))

    def _add(self, name: str, route: _Route, replaces: str = "") -> None:
        other = self._routes.get(name)
        if other is not None and other.origin != replaces:
            raise ConfigError(
                f"params.yaml: two tools are called {name!r}: one from {other.origin}, one from {route.origin}. "
                "Rename or remove one; tools.mcp[].prefix renames all tools of an MCP server."
            )
        self._routes[name] = route

    def _offer(self) -> None:
        tools = {name: route.tool for name, route in self._routes.items() if route.tool is not None}
        offered = list(tools) if self.names is None else list(self.names)
        if unknown := [name for name in offered if name not in tools]:
            raise ConfigError(f"the tools {unknown} have no schema. Those with a schema: {sorted(tools)}.")
        self._offered, problems = {}, list[str]()
        for name in offered:
            try:
                self._offered[name] = self._read(tools[name], self._routes[name].origin)[1]
            except ConfigError as error:
                problems.append(str(error))
        if problems:  # all problems at once, but the remedy only once
            raise ConfigError("\n".join([*(one.removesuffix(f" {REMEDY}") for one in problems[:-1]), problems[-1]]))
        self.schemas = [dict(tools[name]) for name in offered]

    def _read(self, tool: Any, where: str) -> tuple[str, Function]:
        return arguments.read_tool(tool, where, lambda name: self.traits(name).validate_arguments)

    def check_rows(self, examples: Iterable[Example]) -> None:
        """Check rows before any compute is spent. Raises ConfigError for a row's own tool that
        cannot be called: it has no address, or no schema."""
        for example in examples:
            self._functions_of(example)

    def _functions_of(self, example: Example) -> Mapping[str, Function]:
        """Return the row's own tools, else the job's."""
        if example.tools is None:
            return self._offered
        where = f"example {example.id!r}"
        functions: dict[str, Function] = {}
        for row in example.tools:
            name, function = self._read(row, where)
            if name in functions:
                raise ConfigError(f"{where}: two of its tools are called {name!r}. Remove one.")
            if name not in self._routes:
                known = ", ".join(sorted(self._routes)) or "none"
                raise ConfigError(
                    f"{where}: its tool {name!r} has no address. Add one to tools.endpoints in params.yaml. Known "
                    f"tools: {known}."
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
        """Make the calls of one turn in parallel, and return the results in call order.

        If the recipe's server keeps state for each rollout, the calls are made one after another. A
        call may change what the next one finds, and the order must not depend on chance.

        `defaults`: by tool, as in PromptSettings.tool_defaults. `arrived` gets each result at once,
        so that a turn that is cut off keeps its earlier results.
        """
        defaults = defaults or {}
        if unknown := sorted(set(defaults) - set(self._routes)):
            raise ConfigError(f"tool_defaults names the tools {unknown}, but there are only {sorted(self._routes)}.")

        async def one(call: ToolCall) -> ToolResult:
            result = await self.call(call, context, defaults.get(call.name))
            arrived(result)
            return result

        if len(calls) == 1 or self.endpoint.keeps_state:
            return tuple([await one(call) for call in calls])
        tasks = [asyncio.create_task(one(call)) for call in calls]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def call(
        self, call: ToolCall, context: RolloutContext, defaults: Mapping[str, Any] | None = None
    ) -> ToolResult:
        """Make one call. `defaults`: this tool's values for optional arguments that the policy left
        out. Raises only what stops the stage."""
        started = time.monotonic()
        rollout, failed, is_sent = self._rollout(context), False, False
        try:
            sent = arguments.prepare(call, rollout.functions, defaults or {}, self.traits(call.name).validate_arguments)
            if len(sent.encode("utf-8", "surrogatepass")) > self.section.max_request_bytes:
                outcome = request_too_large(Limits.from_params(self.section))
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

    def _own_end(self) -> Target | None:
        if not self.endpoint.keeps_state:
            return None
        url, sent, secrets = f"{self.endpoint.url}/end", self.endpoint.headers, self.endpoint.secrets
        return self._http.target(url, sent, "the recipe's server", secrets, raise_if_dead=self.endpoint.raise_if_dead)

    async def start(self, context: RolloutContext) -> str | None:
        """Report a rollout's start to tools.lifecycle.start_url. After the last retry, return what
        failed."""
        if self._start is None:
            return None
        envelope = self._rollout(context).envelope
        payload = with_item({"trace_id": context.trace_id}, envelope)
        check_row(len(payload), self._start.limits, envelope)
        try:
            await self._http.post(self._start, payload, envelope, "start", _accept)
        except NoReply as failure:
            return f"tools.lifecycle.start_url failed: {failure}"
        return None

    async def end(self, context: RolloutContext, stop_reason: StopReason) -> None:
        """Report a rollout's end to tools.lifecycle.end_url. A failure is logged and changes
        nothing."""
        rollout = self._rollouts.pop(context.trace_id, None)
        if self._end is None:
            return
        payload = json.dumps({"trace_id": context.trace_id, "stop_reason": stop_word(stop_reason)}).encode()
        envelope = rollout.envelope if rollout else Envelope(context)
        try:
            async with asyncio.timeout(END_DEADLINE_S):
                await self._http.post(self._end, payload, envelope, "end", _accept)
        except (NoReply, InfrastructureError, TimeoutError) as failure:
            why = str(failure) or f"no answer within {END_DEADLINE_S:g} s"
            log.warning("tools.lifecycle.end_url failed for %s: %s", context.trace_id, why)

    async def release(self, context: RolloutContext) -> None:
        """Tell our own server, if it keeps state for each rollout, that this one is graded. A
        failure is only logged, because the state has a time to live."""
        if self._ended is None:
            return
        payload = json.dumps({"trace_id": context.trace_id}).encode()
        try:
            async with asyncio.timeout(END_DEADLINE_S):
                await self._http.post(self._ended, payload, Envelope(context), "end", _accept)
        except (NoReply, InfrastructureError, TimeoutError) as failure:
            why = str(failure) or f"no answer within {END_DEADLINE_S:g} s"
            log.warning("the tool server did not hear of the end of %s: %s", context.trace_id, why)


def _accept(reply: Reply) -> None:
    """Accept any 2xx, whatever its body holds."""
    if reply.status >= 400:
        raise NoReply(f"HTTP {reply.status}: {clip(reply.body)}")


__all__ = ["Source", "ToolClient"]
