"""The sections that all stages share: the recipe, its tools, and what a rollout may do."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rft.config import response_format
from rft.config.section import Section


class Recipe(Section):
    """The agent: which recipe, and what it is told."""

    path: str = "recipes/icd10"
    """Folder of the recipe: the agent's examples, tools, grader and prompts."""
    options: dict[str, Any] = {}
    """What the recipe lets you choose; its own `Options` say which keys there are."""


class Traits(Section):
    """What one tool declares about itself. An endpoint says it in its own entry; `tools.traits`
    says it of a recipe's or an MCP server's tool."""

    validate_arguments: bool = Field(default=True, alias="validate")
    """Check arguments against the schema before they are sent. false: any JSON object goes out, and
    the tool judges it."""
    probe: bool = True
    """Whether `rft doctor` may call it. false for a tool with side effects."""
    terminal: bool = False
    """Whether a call of it ends the rollout, with its arguments as the answer."""
    client_errors: Literal["infrastructure", "policy"] = "infrastructure"
    """Who is to blame for 403, 404, 405, 407 and 410 without an `output`, and for an MCP tool that
    crashed or is gone: the server (unscored) or the policy, which then sees what came back."""


class Endpoint(Traits):
    """A tool at an address of its own, as an Agent RFT job names it. Without `parameters` the rows
    must carry its schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The tool's name, as the policy calls it."""
    server_url: str
    """The address that calls are posted to."""
    headers: dict[str, str] = {}
    """Static headers; a value `env:NAME` is read from the environment and never written down."""
    description: str = ""
    """What the policy is told about the tool."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments. null: the rows must carry it."""
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests per second; null: tools.rate_limit."""
    timeout_s: float | None = Field(default=None, gt=0, le=600)
    """Seconds that one try may take; null: tools.timeout_s."""
    max_reply_bytes: int | None = Field(default=None, gt=0, le=1_000_000)
    """The largest reply that is read; null: tools.max_reply_bytes."""


class McpServer(Section):
    """An MCP server, whose tools are listed when a stage starts: by streamable HTTP (`url`) or as a
    process (`command`, stdio)."""

    name: str
    """The server's name in messages and reports."""
    url: str | None = None
    """Its address, for streamable HTTP. Give either `url` or `command`."""
    headers: dict[str, str] = {}
    """Static headers for `url`; a value `env:NAME` is read from the environment and never written
    down."""
    command: list[str] | None = None
    """The program and its arguments that start it, for stdio."""
    env: dict[str, str] = {}
    """Environment variables for `command`; a value `env:NAME` is read from the environment and
    never written down."""
    tools: list[str] | None = None
    """Which of its tools the policy may call, by the names that the server gives them. null:
    all."""
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,32}$")
    """Put before each tool's name, so that two servers may have a tool of one name."""

    @model_validator(mode="after")
    def _kind(self) -> McpServer:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        return self


class Lifecycle(Section):
    """Addresses that hear of the start and the end of every rollout, under the same limits as a
    tool."""

    start_url: str | None = None
    """Receives the trace id and the row before the first turn. A failure leaves the rollout
    unscored."""
    end_url: str | None = None
    """Receives the trace id and the stop reason when the rollout is over. A failure is logged and
    changes nothing."""
    headers: dict[str, str] = {}
    """Static headers for both; a value `env:NAME` is read from the environment and never written
    down."""


class Tools(Section):
    """Where the agent's tools are, and how they are called."""

    where: Literal["http", "local"] = "http"
    """Where the recipe's own functions run: behind an HTTP server that the stage starts, or here
    (async) and in worker processes (sync)."""
    local_workers: int = Field(default=2, ge=1)
    """Worker processes for synchronous functions, where `where` is local."""
    server_url: str | None = None
    """Base address of the server that has the recipe's tools, recorded as not verifiable. null:
    each stage starts the recipe's own."""
    version: str | None = None
    """The external server's version in its owner's words, recorded with the run. Needed with
    `server_url`, and only then."""
    paths: str | dict[str, str] = "/tools/{name}"
    """Where server_url has its tools: a template, or a path by tool's name (a tool that is not
    named keeps /tools/NAME)."""
    headers: dict[str, str] = {}
    """Static headers; a value `env:NAME` is read from the environment and never written down."""
    endpoints: list[Endpoint] = []
    """Tools at addresses of their own, beside the recipe's; one of the same name takes the recipe's
    place."""
    mcp: list[McpServer] = []
    """MCP servers whose tools the agent may call, beside the recipe's."""
    traits: dict[str, Traits] = {}
    """What the recipe's and MCP servers' tools declare, by name."""
    lifecycle: Lifecycle = Lifecycle()
    signing_secret: str | None = None
    """`env:NAME` of a Standard-Webhooks secret (whsec_...): every request is signed with it."""
    timeout_s: float = Field(default=600.0, gt=0, le=600)
    """Seconds that one try of a call may take. The contract allows at most 600."""
    retries: int = Field(default=3, ge=0, le=3)
    """Further tries after a 5xx, a lost connection or a timeout; then the rollout is left
    unscored."""
    max_request_bytes: int = Field(default=1_000_000, gt=0, le=1_000_000)
    """The largest body that is sent to a tool. A larger call is shown to the policy as its own
    error."""
    max_reply_bytes: int = Field(default=1_000_000, gt=0, le=1_000_000)
    """The largest reply that is read. A larger one is shown to the policy as an error."""
    concurrency: int = Field(default=64, ge=1)
    """Calls at the same time, over all tools; the grader has as many of its own."""
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests per second to any one tool, for those that declare none. null: no limit."""

    @model_validator(mode="after")
    def _version(self) -> Tools:
        if (self.server_url is None) != (self.version is None):
            raise ValueError(
                "server_url and version belong together: an external tool server declares its version, our own has none"
            )
        return self

    @model_validator(mode="after")
    def _declared_once(self) -> Tools:
        names = [one.name for one in self.endpoints]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tools.endpoints declares {name!r} twice. Rename or remove one")
            if name in self.traits:
                raise ValueError(
                    f"tools.traits.{name} is an endpoint. Move what it declares into its own entry of tools.endpoints"
                )
            if isinstance(self.paths, dict) and name in self.paths:
                raise ValueError(
                    f"tools.paths.{name} is an endpoint, which has a server_url of its own. Remove one of the two"
                )
        return self

    @model_validator(mode="after")
    def _paths(self) -> Tools:
        if self.paths == type(self).model_fields["paths"].default:
            return self
        if self.server_url is None:
            raise ValueError(
                f"tools.paths = {self.paths!r}, but there is no tools.server_url whose paths they are. Add it, or "
                "remove tools.paths"
            )
        if isinstance(self.paths, str) and not re.fullmatch(r"/[^\s{}]*(\{name\}[^\s{}]*)+", self.paths):
            raise ValueError(
                f"tools.paths = {self.paths!r}: a template starts with '/' and holds {{name}}, such as '/api/{{name}}'"
            )
        if isinstance(self.paths, dict):
            for name, path in self.paths.items():
                if not re.fullmatch(r"/[^\s{}]*", path):
                    raise ValueError(
                        f"tools.paths.{name} = {path!r}: a path starts with '/' and holds no blanks or braces, such "
                        f"as '/api/{name}'"
                    )
                if twins := [other for other in self.paths if other != name and self.paths[other] == path]:
                    raise ValueError(
                        f"tools.paths.{name} and tools.paths.{twins[0]} are both {path!r}. Give each tool a path of "
                        "its own"
                    )
        return self


class Allowance(Section):
    """A budget of tokens, turns or seconds."""

    free: float = Field(gt=0, allow_inf_nan=False)
    """How much costs nothing."""
    weight: float = Field(gt=0, le=1)
    """The share of the outcome that is lost with twice as much, or more; in between linear."""


class Budget(Section):
    """What a rollout may use before its reward shrinks; rft/grading/budget.py has the arithmetic,
    and a table of how several combine."""

    tool_calls: int | None = Field(default=None, ge=0)
    """Tool calls that are free. null: no budget of calls."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """What calls over the budget cost: reward = outcome x (1 - weight x min(1, calls over budget /
    budget))."""
    tool_weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    """Tool -> how many calls one call of it counts as. A tool that is not named counts 1; 0 makes
    its calls free."""
    tokens: Allowance | None = None
    """A budget of the tokens that the policy sampled itself."""
    turns: Allowance | None = None
    """A budget of the assistant messages, the answer included."""
    latency_s: Allowance | None = None
    """A budget of the rollout's wall seconds. Not in deterministic mode."""
    form: Literal["multiplied", "added"] = "multiplied"
    """How costs enter the reward. `added` (reward = score - cost) is here to be measured against;
    it can collapse the policy."""

    @model_validator(mode="after")
    def _weights(self) -> Budget:
        if self.tool_weights and self.tool_calls is None:
            raise ValueError(
                "tool_weights weigh calls against tool_calls, which is null: give tool_calls a number, or take "
                "tool_weights out"
            )
        if self.tool_calls is None and self.weight != type(self).model_fields["weight"].default:
            raise ValueError(
                "weight is the share that calls over tool_calls cost, which is null: give tool_calls a number, or "
                "take weight out"
            )
        return self


IN_PROCESS_MAX_TOKENS = 512
"""rollout.max_tokens, when it is not set and no server samples (rft/config/__init__.py puts it
in)."""


class Rollout(Section):
    """What one rollout may do, and what happens when the world fails it."""

    max_turns: int = Field(default=8, ge=1)
    """Assistant messages in a rollout, the answer included."""
    max_tool_calls: int = Field(default=20, ge=1)
    """Tool calls in a rollout. A turn that asks for more ends it, and none of that turn's calls is
    sent."""
    max_turn_tokens: int = Field(default=96, ge=1)
    """Tokens that the policy may write in one turn."""
    max_tokens: int | None = Field(default=None, ge=16)
    """Tokens of the whole context: prompt, turns and tool results. null: what the policy's server
    takes; 512 for a policy sampled here."""
    response_format: dict[str, Any] | None = None
    """What the final answer must look like, as in a job's `response_format`. A row's own wins."""
    batch: int = Field(default=64, ge=1)
    """Rollouts that are sampled side by side."""
    deterministic: bool | None = None
    """A barrier per turn, so that equal runs give equal bytes. null: yes on CPU, no on a GPU."""
    max_unreadable_calls: int = Field(default=3, ge=0)
    """A call whose arguments cannot be read is answered with the error, as any refused call; one
    more than this ends the rollout (parse_error)."""
    turn_deadline_s: float = Field(default=300.0, gt=0)
    """Seconds for one assistant message: of the policy's own sampling, which is cut there and
    graded as it stands, or of waiting for its server."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for a rollout: its own sampling, its tools, its server. What it waits for others in a
    crowded sampler does not count."""
    grader_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for a grade, retries included."""
    group_deadline_s: float = Field(default=1800.0, gt=0)
    """Seconds for all rollouts of a batch: stragglers are cancelled, unscored, and rolled out anew
    within `refill`."""
    refill: float = Field(default=0.25, ge=0)
    """New rollouts for unscored ones, as a share of a batch."""
    max_unscored_share: float = Field(default=0.1, ge=0, le=1)
    """The circuit breaker: above it, before any refill, the stage pauses."""
    pause_s: float = Field(default=600.0, ge=0)
    """Seconds that a paused stage waits for its tools and grader before it ends with exit code 3.
    Finished work is kept in either case."""
    max_fork_share: float = Field(default=0.05, ge=0, le=1)
    """Forks among the turns of a batch; above it the stage ends: the policy's server renders other
    tokens than those that it sampled."""
    budget: Budget = Budget()

    @field_validator("response_format")
    @classmethod
    def _format(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else response_format.normalised(value)
