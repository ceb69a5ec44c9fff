"""The sections that all stages share: the recipe, its tools, and what a rollout may do."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rft import response_format
from rft.config.section import Section


class Recipe(Section):
    path: str = "recipes/icd10"
    options: dict[str, Any] = {}
    """Validated by the recipe's own `Options`."""


class Traits(Section):
    """What one tool declares about itself. An endpoint says it in its own entry; `tools.traits` says it of a recipe's or an MCP server's tool."""

    validate_arguments: bool = Field(default=True, alias="validate")
    """Check arguments against the schema before they are sent. False: any JSON object goes out, and the tool judges it."""
    probe: bool = True
    """Whether `rft doctor` may call it. False for a tool with side effects."""
    terminal: bool = False
    """Its call ends the rollout, and its arguments are the answer."""
    client_errors: Literal["infrastructure", "policy"] = "infrastructure"
    """Who is to blame for 403, 404, 405, 407 and 410 without an `output`, and for an MCP tool that crashed or is gone: the server (unscored) or
    the policy, which then sees what came back."""


class Endpoint(Traits):
    """A tool at an address of its own, as an Agent RFT job names it. Without `parameters` the rows must carry its schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    server_url: str
    headers: dict[str, str] = {}
    description: str = ""
    parameters: dict[str, Any] | None = None
    """A JSON schema."""
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests a second; None: tools.rate_limit."""
    timeout_s: float | None = Field(default=None, gt=0, le=600)
    max_reply_bytes: int | None = Field(default=None, gt=0, le=1_000_000)


class McpServer(Section):
    """An MCP server, whose tools are listed when a stage starts: by streamable HTTP (`url`) or as a process (`command`, stdio)."""

    name: str
    url: str | None = None
    headers: dict[str, str] = {}
    command: list[str] | None = None
    env: dict[str, str] = {}
    tools: list[str] | None = None
    """Of the listed tools only these, by the names that the server gives them. None: all."""
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,32}$")
    """Put before each tool's name, so that two servers may have a tool of one name."""

    @model_validator(mode="after")
    def _kind(self) -> McpServer:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        return self


class Lifecycle(Section):
    """Addresses that hear of the start and the end of every rollout, under the same limits as a tool."""

    start_url: str | None = None
    end_url: str | None = None
    headers: dict[str, str] = {}


class Tools(Section):
    where: Literal["http", "local"] = "http"
    """The recipe's own functions: behind an HTTP server that the stage starts, or in this process (async) and in worker processes (sync)."""
    local_workers: int = Field(default=2, ge=1)
    server_url: str | None = None
    """None: each stage starts the recipe's own server. Else an external one, recorded as not verifiable."""
    version: str | None = None
    paths: str | dict[str, str] = "/tools/{name}"
    """Where server_url has its tools: a template, or a path by tool's name (a tool that is not named keeps /tools/NAME)."""
    headers: dict[str, str] = {}
    """Static headers; a value `env:NAME` is read from the environment and never written down."""
    endpoints: list[Endpoint] = []
    """Tools at addresses of their own, beside the recipe's; one of the same name takes the recipe's place."""
    mcp: list[McpServer] = []
    traits: dict[str, Traits] = {}
    """What the recipe's and MCP servers' tools declare, by name."""
    lifecycle: Lifecycle = Lifecycle()
    signing_secret: str | None = None
    """`env:NAME` of a Standard-Webhooks secret (whsec_...): every request is signed with it."""
    timeout_s: float = Field(default=600.0, gt=0, le=600)
    retries: int = Field(default=3, ge=0, le=3)
    max_request_bytes: int = Field(default=1_000_000, gt=0, le=1_000_000)
    max_reply_bytes: int = Field(default=1_000_000, gt=0, le=1_000_000)
    concurrency: int = Field(default=64, ge=1)
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests a second to any one tool, for those that declare none."""

    @model_validator(mode="after")
    def _version(self) -> Tools:
        if (self.server_url is None) != (self.version is None):
            raise ValueError("server_url and version belong together: an external tool server declares its version, our own has none")
        return self

    @model_validator(mode="after")
    def _declared_once(self) -> Tools:
        names = [one.name for one in self.endpoints]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tools.endpoints declares {name!r} twice. Rename or remove one")
            if name in self.traits:
                raise ValueError(f"tools.traits.{name} is an endpoint. Move what it declares into its own entry of tools.endpoints")
            if isinstance(self.paths, dict) and name in self.paths:
                raise ValueError(f"tools.paths.{name} is an endpoint, which has a server_url of its own. Remove one of the two")
        return self

    @model_validator(mode="after")
    def _paths(self) -> Tools:
        if self.paths == type(self).model_fields["paths"].default:
            return self
        if self.server_url is None:
            raise ValueError(f"tools.paths = {self.paths!r}, but there is no tools.server_url whose paths they are. Add it, or remove tools.paths")
        if isinstance(self.paths, str) and not re.fullmatch(r"/[^\s{}]*(\{name\}[^\s{}]*)+", self.paths):
            raise ValueError(f"tools.paths = {self.paths!r}: a template starts with '/' and holds {{name}}, such as '/api/{{name}}'")
        if isinstance(self.paths, dict):
            for name, path in self.paths.items():
                if not re.fullmatch(r"/[^\s{}]*", path):
                    raise ValueError(f"tools.paths.{name} = {path!r}: a path starts with '/' and holds no blanks or braces, such as '/api/{name}'")
                if twins := [other for other in self.paths if other != name and self.paths[other] == path]:
                    raise ValueError(f"tools.paths.{name} and tools.paths.{twins[0]} are both {path!r}. Give each tool a path of its own")
        return self


class Allowance(Section):
    """A budget of tokens, turns or seconds."""

    free: float = Field(gt=0, allow_inf_nan=False)
    """So much costs nothing."""
    weight: float = Field(gt=0, le=1)
    """The share of the outcome that is lost with twice as much, or more; in between linear."""


class Budget(Section):
    """What a rollout may use before its reward shrinks; rft/budget.py has the arithmetic, and a table of how several combine."""

    tool_calls: int | None = Field(default=None, ge=0)
    """Calls that are free. None: no budget."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Of the tool calls' budget: reward = outcome x (1 - weight x min(1, calls over budget / budget))."""
    tool_weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    """Tool -> how many calls one call of it counts as. A tool that is not named counts 1; 0 makes its calls free."""
    tokens: Allowance | None = None
    """Of the tokens that the policy sampled itself."""
    turns: Allowance | None = None
    """Of the assistant messages, the answer included."""
    latency_s: Allowance | None = None
    """Of the rollout's wall seconds. Not in deterministic mode."""
    form: Literal["multiplied", "added"] = "multiplied"
    """'added' (reward = score - cost) is here to be measured against; it can collapse the policy."""

    @model_validator(mode="after")
    def _weights(self) -> Budget:
        if self.tool_weights and self.tool_calls is None:
            raise ValueError("tool_weights weigh calls against tool_calls, which is null: give tool_calls a number, or take tool_weights out")
        if self.tool_calls is None and self.weight != type(self).model_fields["weight"].default:
            raise ValueError("weight is the share that calls over tool_calls cost, which is null: give tool_calls a number, or take weight out")
        return self


IN_PROCESS_MAX_TOKENS = 512
"""rollout.max_tokens, when it is not set and no server samples (rft/config/__init__.py puts it in)."""


class Rollout(Section):
    max_turns: int = Field(default=8, ge=1)
    max_tool_calls: int = Field(default=20, ge=1)
    max_turn_tokens: int = Field(default=96, ge=1)
    max_tokens: int | None = Field(default=None, ge=16)
    """The whole context: prompt, turns and tool results. None: what the policy's server says that it takes; 512 for a policy sampled here."""
    response_format: dict[str, Any] | None = None
    """What the final answer must look like, as in a job's `response_format`. A row's own wins."""
    batch: int = Field(default=64, ge=1)
    """Rollouts side by side."""
    deterministic: bool | None = None
    """A barrier a turn, so that equal runs give equal bytes. None: yes on CPU."""
    max_unreadable_calls: int = Field(default=3, ge=0)
    """A call whose arguments cannot be read is answered with the error, as any refused call; one more than this ends the rollout (parse_error)."""
    turn_deadline_s: float = Field(default=300.0, gt=0)
    """For one assistant message: of the policy's own sampling, which is cut there and graded as it stands, or of waiting for its server."""
    deadline_s: float = Field(default=600.0, gt=0)
    """For a rollout: its own sampling, its tools, its server. What it waits for others in a crowded sampler does not count."""
    grader_deadline_s: float = Field(default=600.0, gt=0)
    """For a grade, retries included."""
    group_deadline_s: float = Field(default=1800.0, gt=0)
    """For all rollouts of a batch: stragglers are cancelled, unscored, and rolled out anew within `refill`."""
    refill: float = Field(default=0.25, ge=0)
    """New rollouts for unscored ones, as a share of a batch."""
    max_unscored_share: float = Field(default=0.1, ge=0, le=1)
    """The circuit breaker: above it, before any refill, the stage pauses."""
    pause_s: float = Field(default=600.0, ge=0)
    """How long a paused stage waits for its tools and grader before it ends with exit code 3. Finished work is kept in either case."""
    max_fork_share: float = Field(default=0.05, ge=0, le=1)
    """Forks among the turns of a batch; above it the stage ends: the policy's server renders other tokens than those that it sampled."""
    budget: Budget = Budget()

    @field_validator("response_format")
    @classmethod
    def _format(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else response_format.normalised(value)
