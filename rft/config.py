"""params.yaml, and nothing else, configures a run: one section a stage, and recipe, tools, rollout.

Every key is known or an error that names the nearest one. A value that cannot be honoured is an error here, before any compute
is spent. A stage reads the whole file once through `load` and uses its own section and the shared three.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rft import redact
from rft.errors import ConfigError

_VARIABLE = re.compile(r"env:(\w+)")
_NAMES_A_KEY = re.compile(r"(?i)(^|[-_])(authorization|cookie|token|secret|password|api[-_]?key)$")
_IS_A_KEY = re.compile(r"(?i)(bearer|basic) +\S|whsec_|sk-\w")
_SAID_IN = {"headers", "env"}
_RECORDED = "and this file is recorded with every run"


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Recipe(Section):
    path: str = "recipes/icd10"
    options: dict[str, Any] = {}
    """Validated by the recipe's own `Options`."""


class Endpoint(Section):
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
    """Of the listed tools only these. None: all."""

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
    headers: dict[str, str] = {}
    """Static headers; a value `env:NAME` is read from the environment and never written down."""
    endpoints: list[Endpoint] = []
    """Tools at addresses of their own, beside the recipe's; one of the same name takes the recipe's place."""
    mcp: list[McpServer] = []
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


class Budget(Section):
    tool_calls: int | None = Field(default=4, ge=0)
    """Calls that are free. None: no budget."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """reward = score x (1 - weight x min(1, calls over budget / budget))."""
    form: Literal["multiplied", "added"] = "multiplied"
    """'added' (reward = score - cost) is here to be measured against; it can collapse the policy."""


class Rollout(Section):
    max_turns: int = Field(default=8, ge=1)
    max_tool_calls: int = Field(default=20, ge=1)
    max_turn_tokens: int = Field(default=96, ge=1)
    max_tokens: int = Field(default=512, ge=16)
    """The whole context: prompt, turns and tool results."""
    batch: int = Field(default=64, ge=1)
    """Rollouts side by side."""
    deterministic: bool | None = None
    """A barrier a turn, so that equal runs give equal bytes. None: yes on CPU."""
    on_parse_error: Literal["end", "tell"] = "end"
    """A call that cannot be read ends the rollout, or its error is the call's result; good calls beside it are made in either case of 'tell'."""
    turn_deadline_s: float = Field(default=300.0, gt=0)
    """For one assistant message. Spent by the policy's own sampling it is graded as it stands."""
    deadline_s: float = Field(default=600.0, gt=0)
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


class Traffic(Section):
    file: str = "data/inbox/window.jsonl"
    sha256: str | None = None
    """The window's content hash. None: whatever the file holds now (the hash is recorded)."""
    min_conversations: int = Field(default=50, ge=1)


class Effects(Section):
    """Smallest effect that counts as drift, by statistic (rft/distances.py); which feature has which: rft/profile.py."""

    total_variation: float = Field(default=0.15, gt=0, le=1)
    wasserstein_sd: float = Field(default=0.3, gt=0)
    psi: float = Field(default=0.2, gt=0)
    classifier_auc: float = Field(default=0.65, gt=0.5, le=1)


class Drift(Section):
    alpha: float = Field(default=0.01, gt=0, lt=1)
    """False-discovery rate over all tested features."""
    min_conversations: int = Field(default=100, ge=1)
    """A feature with fewer on either side is shown but never called drifted."""
    effects: Effects = Effects()
    thresholds: dict[str, float] = {"tool_errors": 0.05}
    """Smallest effect by feature, where its statistic's own is wrong: rare events move little and mean much."""
    refresh_share: float = Field(default=0.1, ge=0, lt=1)
    """Drift in more than this share of the input features asks for a refresh from the window."""
    min_feedback: int = Field(default=100, ge=1)
    """Graded conversations, usable as examples, that a refresh needs; with fewer, drift says stop. Fewer than `min_conversations`
    would make a champion whose own profile is too small to judge the next window by."""
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    """Failed tool calls among all tool calls; above it the tools are broken, not the data."""
    max_bad_share: float = Field(default=0.02, ge=0, lt=1)
    """Conversations that may break a contract on values (a missing latency, one out of range, an unknown tool)."""
    max_latency_s: float = Field(default=3600.0, gt=0)
    num_resamples: int = Field(default=2000, ge=100)
    """Draws behind each p-value. The smallest p is 1 / (num_resamples + 1)."""
    seed: int = 0


class Examples(Section):
    source: Literal["recipe", "window"] = "recipe"
    train: int = Field(default=2000, ge=1)
    """From a window: at most this many, the latest ones."""
    validation: int = Field(default=192, ge=2)
    test: int = Field(default=288, ge=2)
    disjoint_targets: bool = True
    """A target met in training must not come back in validation or test. False for a recipe whose targets are classes
    ("approve", "deny") rather than things to be found."""
    seed: int = 0


class Architecture(Section):
    """The embedded policy's shape; see rft/embedded.py."""

    layers: int = Field(default=3, ge=2)
    hidden: int = Field(default=128, ge=64)
    heads: int = Field(default=4, ge=2)
    kv_heads: int = Field(default=2, ge=2)
    head_dim: int = Field(default=48, ge=32)
    feed_forward: int = Field(default=320, ge=32)
    max_positions: int = Field(default=1024, ge=128)
    merges: int = Field(default=1300, ge=0)
    """Byte-level BPE merges beyond the 256 bytes and the added tokens."""
    structured_init: bool = True
    """Write a previous-token head and an induction head into the random weights, so that copying need not be discovered."""


class WarmStart(Section):
    demonstrations: int = Field(default=6000, ge=16)
    steps: int = Field(default=900, ge=1)
    batch: int = Field(default=16, ge=1)
    longest: int = Field(default=512, ge=16)
    """In tokens. Longer dialogues, the teacher's worst rambles, are left out and counted."""
    lr: float = Field(default=4e-3, gt=0)
    other_weight: float = Field(default=0.1, ge=0, le=1)
    """Loss weight of tokens that the policy will never write: prompts and tool results."""
    checkpoint_every: int = Field(default=100, ge=1)


class PolicyServer(Section):
    """A server that samples for us. `chat` speaks plain chat completions: no token ids, so for evaluation and prompt search only."""

    kind: Literal["vllm", "sglang", "chat"]
    url: str
    """Base address, such as http://127.0.0.1:8000."""
    model: str
    """The model's name at that server."""
    headers: dict[str, str] = {}
    timeout_s: float = Field(default=300.0, gt=0)
    retries: int = Field(default=3, ge=0, le=10)
    concurrency: int = Field(default=64, ge=1)


class Policy(Section):
    model: str | None = None
    """A hub id or folder. None: the embedded policy, built here and warm-started on the recipe's demonstrations."""
    server: PolicyServer | None = None
    """None: sampled in this process."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "gpt-oss"] = "auto"
    """How the policy writes tool calls. auto: read from the model folder's chat template."""
    seed: int = 0
    architecture: Architecture = Architecture()
    warm_start: WarmStart = WarmStart()
    threads: int | None = Field(default=None, ge=1)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _server(self) -> Policy:
        if self.server is not None and self.server.kind != "chat" and self.model is None:
            raise ValueError(f"server.kind {self.server.kind} samples by tokens: name the same model's folder or hub id in model, for its tokenizer")
        return self


class Baseline(Section):
    examples: int = Field(default=96, ge=2)
    k: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    not_worth_above: float = Field(default=0.95, ge=0, le=1)
    not_yet_below: float = Field(default=0.02, ge=0, le=1)
    """max@k below this: no rollout earns anything to learn from."""
    seed: int = 0


class Prompt(Section):
    search_share: float = Field(default=0.5, gt=0, lt=1)
    """Part of validation that the search sees; the rest confirms."""
    rounds: int = Field(default=3, ge=1)
    """Successive halving: each round doubles the examples of the survivors."""
    first_examples: int = Field(default=16, ge=2)
    k: int = Field(default=2, ge=1)
    confirm_k: int = Field(default=4, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    seed: int = 0


class Lora(Section):
    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    targets: Literal["all-linear"] | list[str] = "all-linear"


class Train(Section):
    from_: Literal["policy", "champion"] = Field(default="champion", alias="from")
    """'champion' is the base policy until something was promoted."""
    algorithm: Literal["dr_grpo", "grpo"] = "dr_grpo"
    weights: Literal["lora", "full"] = "lora"
    lora: Lora = Lora()
    lr: float = Field(default=3e-3, gt=0)
    steps: int = Field(default=80, ge=1)
    examples_per_step: int = Field(default=8, ge=1)
    group_size: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    clip_grad: float = Field(default=1.0, gt=0)
    checkpoint_every: int = Field(default=10, ge=1)
    validate_every: int = Field(default=20, ge=1)
    validation_examples: int = Field(default=32, ge=0)
    seed: int = 0


class Challenger(Section):
    k: int = Field(default=4, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    seed: int = 0


class Gate(Section):
    """Thresholds have no defaults: a gate that nobody pre-registered decides nothing."""

    min_gain: float
    """Superiority: the lower end of the paired gain in mean reward must lie above this."""
    max_greedy_loss: float = Field(ge=0)
    """Greedy decoding may lose at most this much mean score."""
    max_calls_p95_increase: float
    """Absolute: 0 allows no more tool calls at P95."""
    max_tokens_increase: float
    """Relative: 0.1 allows ten percent more tokens a rollout."""
    max_hack_rate: float = Field(ge=0, le=1)
    max_slice_loss: float = Field(ge=0)
    max_unscored_share: float = Field(ge=0, le=1)
    max_latency_increase: float
    """Relative, on P95 seconds a rollout."""
    latency_decides: bool
    require_drift: list[Literal["continue", "refresh"]]
    prompt_only_margin: float = Field(ge=0)
    """Training must beat the new prompt alone by more than this, else the cheaper rung is judged."""
    num_bootstrap: int = Field(default=2000, ge=200)
    seed: int


class Params(Section):
    recipe: Recipe
    tools: Tools = Tools()
    rollout: Rollout = Rollout()
    traffic: Traffic = Traffic()
    drift: Drift = Drift()
    examples: Examples = Examples()
    policy: Policy = Policy()
    baseline: Baseline = Baseline()
    prompt: Prompt = Prompt()
    train: Train = Train()
    challenger: Challenger = Challenger()
    gate: Gate


def load(path: Path | str = "params.yaml") -> Params:
    """Raises ConfigError naming the file, the key, the value and, for an unknown key, the nearest one."""
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: missing. A run is configured by this file; start from a recipe's template.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {yaml_problem(error)}. Mend the line that it names.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds {type(raw).__name__}, expected sections such as 'recipe:' and 'gate:'.")
    return parse(raw, str(path))


def parse(raw: dict[str, Any], where: str = "params.yaml", model: type[BaseModel] = Params) -> Any:
    """`raw` as `model`; every problem in one ConfigError. The secrets that it names are known to rft/redact.py from here on."""
    for name in _variables(raw):
        if name in os.environ:
            secret(f"env:{name}")
    problems = [f"{where}: '{key}' {why}" for key, why in _written_out(raw)]
    try:
        found = model.model_validate(raw)
    except ValidationError as error:
        problems += [_explain(problem, where, model) for problem in error.errors()]
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def _variables(raw: Any) -> Iterator[str]:
    """NAME of each `env:NAME` in it."""
    if isinstance(raw, str) and (found := _VARIABLE.fullmatch(raw)):
        yield found[1]
    elif isinstance(raw, dict | list):
        for each in raw.values() if isinstance(raw, dict) else raw:
            yield from _variables(each)


def _written_out(raw: Any, key: str = "", inside: bool = False) -> Iterator[tuple[str, str]]:
    """(key, why) of each secret that stands in the file itself. The file is recorded with every run, for ever."""
    if isinstance(raw, dict | list):
        for name, each in raw.items() if isinstance(raw, dict) else enumerate(raw):
            yield from _written_out(each, f"{key}.{name}" if key else str(name), inside or name in _SAID_IN)
    elif isinstance(raw, str) and not _VARIABLE.fullmatch(raw):
        name = key.rpartition(".")[2]
        if name == "signing_secret" or (inside and (_NAMES_A_KEY.search(name) or _IS_A_KEY.match(raw))):
            yield key, f"holds a key, {_RECORDED}. Export its whole value, a scheme such as 'Bearer ' included, and write env:NAME."
        elif name.endswith("url") and re.search(r"//[^/?#]*@", raw):
            yield key, f"holds a user name or password, {_RECORDED}. Write the address alone, and headers: Authorization: env:NAME."


def yaml_problem(error: yaml.YAMLError) -> str:
    """Where and what, without the line itself: a key may stand in it."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return type(error).__name__
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def _explain(problem: Any, where: str, model: type[BaseModel]) -> str:
    loc = [str(part) for part in problem["loc"]]
    key = ".".join(loc)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(loc[-1], _keys_at(model, loc[:-1]), n=1, cutoff=0.5)
        known = ", ".join(sorted(_keys_at(model, loc[:-1])))
        return f"{where}: unknown key '{key}'. " + (f"Did you mean '{near[0]}'?" if near else f"Known here: {known}.")
    if problem["type"] == "missing":
        return f"{where}: '{key}' is missing. It has no default: write it down."
    if {*_SAID_IN, "signing_secret"} & {*loc} or key.endswith("url") or isinstance(problem["input"], dict | list):
        return f"{where}: '{key}': {problem['msg']}."
    return f"{where}: '{key}' = {problem['input']!r}: {problem['msg']}."


def _keys_at(model: type[BaseModel], loc: list[str]) -> list[str]:
    for part in loc:
        for name, info in model.model_fields.items():
            if part in (name, info.alias) and isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                model = info.annotation
    return [info.alias or name for name, info in model.model_fields.items()]


def secret(value: str) -> str:
    """`env:NAME` -> the environment's value, which rft/redact.py keeps out of all text from here on; anything else is itself."""
    if not (found := _VARIABLE.fullmatch(value)):
        return value
    name = found[1]
    if (known := os.environ.get(name)) is None:
        raise ConfigError(f"params.yaml names the environment variable {name}, which is not set. Export it and try again.")
    if not known.isprintable():
        raise ConfigError(f"the environment variable {name} holds a line break or another character that no header may hold. Export it without.")
    try:
        redact.add(name, known)
    except ValueError as error:
        raise ConfigError(
            f"the environment variable {error}: so short a secret cannot be told from ordinary text, and so not be kept out of logs and reports. "
            f"Give it a longer value, or, if it is no secret, write it into the file in the place of env:{name}."
        ) from None
    return known
