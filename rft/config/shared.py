"""Define the sections that stages share: the recipe, its tools, and the limits of a rollout."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rft.config import response_format
from rft.config.section import Grown, Section


class Recipe(Grown):
    """The agent to retrain."""

    LATER: ClassVar[tuple[str, ...]] = ("python", "sources")

    path: str = "recipes/icd10"
    """Folder of the recipe, with the agent's examples, tools, grader and prompts."""
    options: dict[str, Any] = {}
    """The recipe's own settings. Class `Options` in its examples.py defines the keys."""
    python: str | None = None
    """The Python interpreter that runs tools.py and `grade`: a path or a name in PATH. A relative
    path starts at the top of the clone. null: agent-rft's own interpreter. Another one needs
    aiohttp, pydantic, pyyaml and rfc8785 beside your packages (docs/workspace.md)."""
    sources: list[str] = []
    """Files and folders that the recipe imports, as paths from the top of the repository, such as
    src/refunds. They are copied into a run, and stages depend on them."""


class Traits(Section):
    """How one tool behaves. An endpoint declares this in its own entry, and `tools.traits` declares
    it for a tool of the recipe or of an MCP server."""

    validate_arguments: bool = Field(default=True, alias="validate")
    """Whether arguments are checked against the schema before they are sent. false: any JSON object
    is sent, and the tool checks it."""
    probe: bool = True
    """Whether `rft doctor` may call the tool. Use false for a tool with side effects."""
    terminal: bool = False
    """Whether a call of the tool ends the rollout. The call's arguments are then the answer."""
    shows_target: bool = False
    """Whether the tool's replies may hold the target. Use true for a tool that returns a document
    in which the answer is written. false: the preflight refuses a tool whose reply holds the
    target."""
    client_errors: Literal["infrastructure", "policy"] = "infrastructure"
    """Who is to blame for HTTP 403, 404, 405, 407 and 410 without an `output`, or for an MCP tool
    that crashed or is gone. With `infrastructure` the rollout is unscored. With `policy` the policy
    sees the reply."""


class Endpoint(Traits):
    """A tool at its own address, as in an Agent RFT job."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The name by which the policy calls the tool."""
    server_url: str
    """Address to which calls are posted."""
    headers: dict[str, str] = {}
    """Static headers. A value `env:NAME` is read from the environment and never written down."""
    description: str = ""
    """Description of the tool that the policy reads."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments. null: the schema of the recipe's tool of the same name. Where
    there is none, only rows that bring the schema can call the tool."""
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests per second. null: tools.rate_limit."""
    timeout_s: float | None = Field(default=None, gt=0, le=600)
    """Seconds that one attempt may take. null: tools.timeout_s."""
    max_reply_bytes: int | None = Field(default=None, gt=0, le=1_000_000)
    """The largest reply that is read. null: tools.max_reply_bytes."""


class McpServer(Section):
    """An MCP server, reached by streamable HTTP (`url`) or started as a process (`command`, stdio).
    Each stage lists its tools at the start."""

    name: str
    """The server's name in messages and reports."""
    url: str | None = None
    """Address, for streamable HTTP. Set either `url` or `command`."""
    headers: dict[str, str] = {}
    """Static headers for `url`. A value `env:NAME` is read from the environment and never written
    down."""
    command: list[str] | None = None
    """Program and arguments that start the server, for stdio."""
    env: dict[str, str] = {}
    """Environment variables for `command`. A value `env:NAME` is read from the environment and
    never written down."""
    tools: list[str] | None = None
    """Tools that the policy may call, by the server's names. null: all."""
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,32}$")
    """Prefix of each tool's name, so that two servers may have a tool of the same name."""

    @model_validator(mode="after")
    def _kind(self) -> McpServer:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        return self


class Lifecycle(Section):
    """Addresses that are called at the start and the end of every rollout, with the limits of a
    tool."""

    start_url: str | None = None
    """Address that receives the trace id and the row before the first turn. If the call fails, the
    rollout is unscored."""
    end_url: str | None = None
    """Address that receives the trace id and the stop reason when the rollout is over. A failure is
    logged and changes nothing."""
    headers: dict[str, str] = {}
    """Static headers for both addresses. A value `env:NAME` is read from the environment and never
    written down."""


class RolloutState(Section):
    """Limits for a recipe that keeps state for each rollout, with `setup(rollout)` and
    `teardown(rollout)` in its tools.py."""

    setup_s: float = Field(default=60.0, gt=0, le=600)
    """Seconds that `setup` may take. Then the call that needed it fails, and is retried."""
    teardown_s: float = Field(default=30.0, gt=0, le=600)
    """Seconds that `teardown` may take. A failure is logged and changes nothing."""
    ttl_s: float = Field(default=1800.0, gt=0)
    """Seconds without a call after which a rollout's state is torn down."""


class Tools(Section):
    """Where the agent's tools are, and how they are called."""

    where: Literal["http", "local"] = "http"
    """Where the recipe's own functions run. http: behind an HTTP server that the stage starts.
    local: in the stage's process (async functions) and in worker processes (sync functions)."""
    local_workers: int = Field(default=2, ge=1)
    """Worker processes for synchronous functions, with `where: local`."""
    server_url: str | None = None
    """Base address of an external server for the recipe's tools. The run records the server as not
    verifiable. null: each stage starts the recipe's own server."""
    version: str | None = None
    """Version of the external server, in its owner's words. The run records it. Required with
    `server_url`, and not allowed without it."""
    paths: str | dict[str, str] = "/tools/{name}"
    """Paths of the tools below server_url: a template, or a mapping from a tool's name to its path.
    A tool that the mapping does not name keeps /tools/NAME."""
    headers: dict[str, str] = {}
    """Static headers. A value `env:NAME` is read from the environment and never written down."""
    endpoints: list[Endpoint] = []
    """Tools at their own addresses, in addition to the recipe's. An endpoint replaces the recipe's
    tool of the same name."""
    mcp: list[McpServer] = []
    """MCP servers whose tools the agent may call, in addition to the recipe's."""
    traits: dict[str, Traits] = {}
    """How the recipe's and MCP servers' tools behave, by name."""
    lifecycle: Lifecycle = Lifecycle()
    state: RolloutState = RolloutState()
    signing_secret: str | None = None
    """`env:NAME` of a Standard-Webhooks secret (whsec_...), which signs every request."""
    timeout_s: float = Field(default=600.0, gt=0, le=600)
    """Seconds that one attempt of a call may take. The tool contract allows at most 600."""
    retries: int = Field(default=3, ge=0, le=3)
    """More attempts after a 5xx, a lost connection or a timeout. If they fail too, the rollout is
    unscored."""
    max_request_bytes: int = Field(default=1_000_000, gt=0, le=1_000_000)
    """Largest body that is sent to a tool, in bytes. Instead of a larger one, nothing is sent, and
    the policy sees an error."""
    max_reply_bytes: int = Field(default=1_000_000, gt=0, le=1_000_000)
    """Largest reply that is read, in bytes. Instead of a larger one the policy sees an error."""
    concurrency: int = Field(default=64, ge=1)
    """Most calls at the same time, over all tools. The grader has the same limit of its own."""
    rate_limit: float | None = Field(default=None, gt=0)
    """Requests per second to each tool that sets no limit of its own. null: no limit."""
    weaker_sandbox: bool = False
    """Whether a grader's source may run where the kernel refuses a guarantee of the sandbox. Each
    stage then says which guarantee is missing. Without bubblewrap the source never runs."""

    @model_validator(mode="after")
    def _version(self) -> Tools:
        if (self.server_url is None) != (self.version is None):
            raise ValueError("set both server_url and version, for an external tool server, or neither")
        return self

    @model_validator(mode="after")
    def _declared_once(self) -> Tools:
        names = [endpoint.name for endpoint in self.endpoints]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tools.endpoints declares {name!r} twice. Rename or remove one")
            if name in self.traits:
                raise ValueError(f"tools.traits.{name} is an endpoint. Move its traits to its entry in tools.endpoints")
            if isinstance(self.paths, dict) and name in self.paths:
                raise ValueError(f"tools.paths.{name} is an endpoint, which has its own server_url. Remove one of them")
        return self

    @model_validator(mode="after")
    def _paths(self) -> Tools:
        if self.paths == type(self).model_fields["paths"].default:
            return self
        if self.server_url is None:
            raise ValueError(f"tools.paths = {self.paths!r} needs tools.server_url. Add it, or remove tools.paths")
        if isinstance(self.paths, str):
            if not re.fullmatch(r"/[^\s{}]*(\{name\}[^\s{}]*)+", self.paths):
                rule = "a template starts with '/' and holds {name}, such as '/api/{name}'"
                raise ValueError(f"tools.paths = {self.paths!r}: {rule}")
            return self
        for name, path in self.paths.items():
            if not re.fullmatch(r"/[^\s{}]*", path):
                rule = f"a path starts with '/' and holds no blanks or braces, such as '/api/{name}'"
                raise ValueError(f"tools.paths.{name} = {path!r}: {rule}")
            if twins := [other for other in self.paths if other != name and self.paths[other] == path]:
                both = f"tools.paths.{name} and tools.paths.{twins[0]}"
                raise ValueError(f"{both} are both {path!r}. Give each tool a path of its own")
        return self


class Allowance(Section):
    """A budget of tokens, turns or seconds."""

    free: float = Field(gt=0, allow_inf_nan=False)
    """The amount that costs nothing."""
    weight: float = Field(gt=0, le=1)
    """Share of the outcome that is lost at twice the free amount or more. Between the two amounts
    the loss grows linearly."""


class Budget(Section):
    """How much a rollout may use before its reward shrinks. rft/grading/budget.py shows the
    arithmetic, and how several budgets combine."""

    tool_calls: int | None = Field(default=None, ge=0)
    """Tool calls that are free. null: no budget of calls."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """What calls over the budget cost: reward = outcome x (1 - weight x min(1, calls over budget /
    budget))."""
    tool_weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    """As how many calls one call of a tool counts, by the tool's name. A tool that is not named
    counts as 1, and calls of a tool with 0 are free."""
    tokens: Allowance | None = None
    """Budget of the tokens that the policy samples."""
    turns: Allowance | None = None
    """Budget of assistant messages, the answer included."""
    latency_s: Allowance | None = None
    """Budget of the rollout's wall time in seconds. Not in deterministic mode."""
    form: Literal["multiplied", "added"] = "multiplied"
    """How costs enter the reward. `added` (reward = score - cost) is there for comparison; it can
    collapse the policy."""

    @model_validator(mode="after")
    def _weights(self) -> Budget:
        if self.tool_weights and self.tool_calls is None:
            unused = "tool_weights"
        elif self.tool_calls is None and self.weight != type(self).model_fields["weight"].default:
            unused = "weight"
        else:
            return self
        raise ValueError(f"{unused} has no effect while tool_calls is null. Set tool_calls, or remove {unused}")


CHAT_MAX_TURN_TOKENS = 1024
"""Default of rollout.max_turn_tokens at a chat-completions server (set in rft/config/__init__.py).
96 tokens are enough for the embedded policy, but they cut 13 of 24 answers of SmolLM2 at vLLM.
1,024 tokens cut 8, which never ended."""
IN_PROCESS_MAX_TOKENS = 512
"""Default of rollout.max_tokens where no server samples, or four turns if they need more (set in
rft/config/__init__.py)."""


class Rollout(Section):
    """Limits of a rollout, and what happens when a tool, a grader or a server fails."""

    max_turns: int = Field(default=8, ge=1)
    """Assistant messages in a rollout, the answer included."""
    max_tool_calls: int = Field(default=20, ge=1)
    """Tool calls in a rollout. A turn that would exceed them ends the rollout, and none of its
    calls is sent."""
    max_turn_tokens: int = Field(default=96, ge=1)
    """Tokens that the policy may write in one turn. With `policy.server.kind: chat` the default is
    1,024."""
    max_tokens: int | None = Field(default=None, ge=16)
    """Tokens of the whole context: prompt, turns and tool results. null: the limit of the policy's
    server. For a policy that is sampled in this process, null means 512, or four times
    max_turn_tokens if that is more."""
    response_format: dict[str, Any] | None = None
    """Form of the final answer, like `response_format` of an Agent RFT job. A row's own form takes
    precedence."""
    batch: int = Field(default=64, ge=1)
    """Rollouts that are sampled at the same time."""
    deterministic: bool | None = None
    """Whether all rollouts of a batch wait for each other after each turn, so that equal runs give
    equal bytes. null: true on a CPU, false on a GPU."""
    max_unreadable_calls: int = Field(default=3, ge=0)
    """How many calls with unreadable arguments are answered with an error. One more ends the
    rollout (parse_error)."""
    turn_deadline_s: float = Field(default=300.0, gt=0)
    """Seconds for one assistant message. Sampling in this process is cut there, and the message is
    graded as it stands. A server has this long to reply."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for a rollout: its sampling, its tools, its server. Time spent waiting for other
    rollouts in the sampler does not count."""
    grader_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for a grade, retries included."""
    group_deadline_s: float = Field(default=1800.0, gt=0)
    """Seconds for all rollouts of a batch. Those that take longer are cancelled and unscored.
    `refill` limits how many of them are repeated."""
    refill: float = Field(default=0.25, ge=0)
    """How many new rollouts may replace unscored ones, as a share of the batch."""
    max_unscored_share: float = Field(default=0.1, ge=0, le=1)
    """Circuit breaker: if a larger share of a batch is unscored before any refill, the stage
    pauses."""
    pause_s: float = Field(default=600.0, ge=0)
    """Seconds that a paused stage waits for its tools and grader before it ends with exit code 3.
    Finished work is kept either way."""
    max_fork_share: float = Field(default=0.05, ge=0, le=1)
    """Share of a batch's turns that may fork. A turn forks where the policy's server renders other
    tokens than it sampled. Above this share the stage ends."""
    budget: Budget = Budget()

    @field_validator("response_format")
    @classmethod
    def _format(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else response_format.normalized(value)
