"""Define the sections of all stages but `train` (rft/config/train.py)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from rft.config.section import Section
from rft.config.warm_start import SINCE_0_2, WarmStart


def _is_none(value: object) -> bool:
    return value is None


class Traffic(Section):
    """The window of production conversations behind a run."""

    file: str = "data/inbox/window.jsonl"
    """The window's log: a file, a folder, a pattern of which all matches are one window, or an
    address such as s3://bucket/logs (docs/traffic.md). `rft run --window` sets another for one
    run."""
    sha256: str | None = None
    """Content hash that the log must have: of its one file, or of the list of its files. null: any
    (the hash is recorded)."""
    min_conversations: int = Field(default=50, ge=1)
    """A window with fewer conversations is an error."""
    unit: str | None = None
    """Key of a row, or a dotted path in it, that names who the conversation belongs to, such as
    user_id. Conversations of one user resemble each other; drift counts the users as independent,
    not the conversations. null: each conversation is on its own."""
    columns: dict[str, Literal["number", "category"]] = {}
    """More features of the input: keys of a row, or dotted paths in it, each a number or a
    category."""
    redact: dict[str, str] = {}
    """What to replace in every text before it is stored: the name of a rule and its regular
    expression (RE2). `email: [^ ]+@[^ ]+` leaves `[email]`. A conversation's id, a unit or a
    category in which a rule finds something is stored as a hash."""
    max_line_mb: int = Field(default=64, ge=1)
    """A line or record larger than this is not read, and counted as unreadable. To read one takes
    about 14 times its size in memory."""
    processes: int = Field(default=2, ge=1)
    """Processes that ingest and profile a window. Their number changes no byte of what they
    write."""


class Effects(Section):
    """Smallest effect that counts as drift, per statistic (rft/drift/effects.py).
    rft/drift/profile.py assigns a statistic to each feature."""

    total_variation: float = Field(default=0.15, gt=0, le=1)
    """For categories: the share of one window that would have to change to match the other."""
    wasserstein_sd: float = Field(default=0.3, gt=0)
    """For numbers: how far the values moved, in standard deviations of the reference."""
    psi: float = Field(default=0.2, gt=0)
    """Population stability index, for numbers and categories. Above 0.2 is usually called a
    shift."""
    classifier_auc: float = Field(default=0.65, gt=0.5, le=1)
    """For text: how well a classifier tells the windows apart, from 0.5 (not at all) to 1
    (always)."""
    mmd: float = Field(default=0.1, gt=0)
    """For embeddings: the maximum mean discrepancy, 0 for equal windows and about 1 for windows
    that have nothing in common."""


class Drift(Section):
    """When production counts as different from what the champion was trained on."""

    alpha: float | None = Field(default=None, gt=0, le=0.5)
    """False-discovery rate over all tested features of a window: at most this share of unchanged
    windows reports a drifted feature, if units are independent of each other. null: 0.01, or what
    `false_alarms_per_year` asks for."""
    false_alarms_per_year: float | None = Field(default=None, gt=0)
    """How many windows a year may report drift where there is none. With `looks_per_year`, in place
    of `alpha`: 0.5 a year and 52 windows are an alpha of 0.0096."""
    looks_per_year: float | None = Field(default=None, gt=0)
    """How many windows are compared in a year. Only with `false_alarms_per_year`."""
    min_conversations: int = Field(default=100, ge=1)
    """A feature with fewer conversations on either side is shown but never called drifted."""
    min_units: int = Field(default=20, ge=2)
    """The same for units of dependence (traffic.unit): noise cannot be measured on fewer."""
    text_sample: int = Field(default=2000, ge=100)
    """Units of which one conversation each is sampled for what looks at words: vocabulary,
    phrasing, meaning."""
    embedder: str | None = None
    """Model of sentence embeddings for the feature `meaning`: `minilm` (of the extra `embed`), or a
    folder or hub name for transformers. null: no such feature."""
    engine: Literal["local", "spark"] = "local"
    """Where profiles are counted: in processes here, or on Spark (of the extra `spark`). The counts
    are the same."""
    spark_master: str = "local[*]"
    """Spark's master. Only with `engine: spark`."""
    effects: Effects = Effects()
    thresholds: dict[str, float] = {"tool_errors": 0.05}
    """Smallest effect per feature, in place of its statistic's. Rare events, for example, move
    little and mean much."""
    refresh_share: float = Field(default=0.1, ge=0, lt=1)
    """Drift in more than this share of the input features asks for a refresh from the window."""
    min_feedback: int = Field(default=100, ge=1)
    """Graded conversations, usable as examples, that a refresh needs. With fewer, the verdict is
    stop. With fewer than `min_conversations`, the new champion's profile would be too small to
    judge the next window.
    """
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    """Share of tool calls that may fail. Above it the tools are broken, not the data."""
    max_bad_share: float = Field(default=0.02, ge=0, lt=1)
    """Share of conversations that may break a contract on values: a missing latency, one out of
    range, an unknown tool."""
    max_latency_s: float = Field(default=3600.0, gt=0)
    """A logged latency above this many seconds breaks the contract on values."""
    num_resamples: int = Field(default=10_000, ge=100)
    """Most draws behind each p-value: the smallest p is 1 / (num_resamples + 1). To compare
    many features and references needs a small one. Where chance alone often goes as far, fewer
    are made."""
    seed: int = 0
    """Seed of the resampling behind the p-values."""

    @model_validator(mode="after")
    def _one_level(self) -> Drift:
        """Refuse two ways of setting the level of a comparison, and half of one."""
        if self.alpha is not None and (self.false_alarms_per_year or self.looks_per_year):
            raise ValueError("alpha and false_alarms_per_year both set the level of a comparison. Remove one of them")
        if (self.false_alarms_per_year is None) != (self.looks_per_year is None):
            raise ValueError("false_alarms_per_year and looks_per_year are set together or not at all")
        if self.level > 0.5:
            raise ValueError(f"false_alarms_per_year / looks_per_year = {self.level:.3g}; at most 0.5")
        if self.spark_master != "local[*]" and self.engine != "spark":
            raise ValueError("spark_master is set, but engine is local. Set engine: spark, or remove it")
        return self

    @property
    def level(self) -> float:
        """The false-discovery rate of one comparison."""
        if self.false_alarms_per_year is not None and self.looks_per_year is not None:
            return self.false_alarms_per_year / self.looks_per_year
        return 0.01 if self.alpha is None else self.alpha


class Keys(Section):
    """Keys of a row, or dotted paths in it, that hold what the ladder reads. One that is set must
    be in at least one row of each split."""

    id: str | None = None
    """Key of the row's id. null: `id`. The id of a row without one is the SHA-256 of its line."""
    target: str | None = None
    """Key of the expected answer, which only leakage checks and the preflight read. null:
    `target`."""
    slice: str | None = None
    """Key of the group that the gate checks separately. null: `metadata.slice`."""


class Examples(Section):
    """The data set: how many examples, from where, and how the splits are kept apart."""

    keys: Keys = Keys()
    source: Literal["recipe", "window"] = "recipe"
    """Where the examples come from. `rft run` writes `window` when the drift verdict is refresh;
    then graded traffic becomes the training examples."""
    train: int = Field(default=2000, ge=1)
    """Training examples. From a window: at most this many, the latest ones."""
    validation: int = Field(default=192, ge=2)
    """Validation examples: for the baseline, the prompt search and the checks during training."""
    test: int = Field(default=288, ge=2)
    """Test examples of one block, frozen, which only stage `challenger` opens. The gate's intervals
    shrink with the square root of their number."""
    block: int = Field(default=0, ge=0)
    """The first block of test examples. When the looks at one block are spent, the next one is
    fresh, where the recipe offers blocks (rft/recipe.py)."""
    blocks: int = Field(default=1, ge=1)
    """How many consecutive blocks the test set joins. `rft runs extend` raises it."""
    disjoint_targets: bool = True
    """Whether a target of a training example is refused in validation and test. Use false where
    targets are classes ("approve", "deny") rather than things to find."""
    near_duplicate: float | None = Field(default=0.8, ge=0.5, le=1)
    """Inputs of two splits that share this much of their runs of three words (Jaccard similarity)
    are near-duplicates. They are counted and shown. null: not looked for."""
    max_near_duplicates: float | None = Field(default=None, ge=0, le=1)
    """Share of a split, or of a block of test examples, that may nearly repeat examples of an
    earlier one. More is an error. null: never an error, because inputs that are made from one
    template all resemble each other, and what is asked in them still differs."""
    seed: int = 0
    """Seed for choosing examples."""

    @model_validator(mode="after")
    def _looked_for(self) -> Examples:
        if self.near_duplicate is None and self.max_near_duplicates is not None:
            raise ValueError("max_near_duplicates needs near_duplicate, but that is null. Remove one of them")
        return self

    @property
    def num_test(self) -> int:
        """Test examples of all blocks together."""
        return self.test * self.blocks


class Architecture(Section):
    """Shape of the embedded policy (rft/models/embedded.py)."""

    layers: int = Field(default=3, ge=2)
    """Transformer layers. Copying needs at least two."""
    hidden: int = Field(default=128, ge=64)
    """Width of the residual stream."""
    heads: int = Field(default=4, ge=2)
    """Attention heads."""
    kv_heads: int = Field(default=2, ge=2)
    """Heads for keys and values, which the attention heads share."""
    head_dim: int = Field(default=48, ge=32)
    """Width of a head."""
    feed_forward: int = Field(default=320, ge=32)
    """Width of the feed-forward layers."""
    max_positions: int = Field(default=1024, ge=128)
    """Longest context, in tokens. rollout.max_tokens may not exceed it."""
    merges: int = Field(default=1300, ge=0)
    """Byte-level BPE merges beyond the 256 bytes and the added tokens."""
    structured_init: bool = True
    """Whether the random weights start with a previous-token head and an induction head, so that
    the policy can copy from the beginning."""


class PolicyServer(Section):
    """The server that samples from the policy."""

    kind: Literal["vllm", "sglang", "chat"]
    """What listens at `url`: vLLM or SGLang with their token routes, or `chat`, any
    chat-completions endpoint. `chat` gives no token ids, so it serves evaluation and prompt search
    only."""
    dialect: Literal["openai", "openai_reasoning"] = "openai"
    """Form of a chat request, for kind chat. openai_reasoning, for reasoning models:
    `max_completion_tokens`, and no temperature."""
    url: str
    """Base address, such as http://127.0.0.1:8000."""
    model: str
    """Name of the model at that server."""
    headers: dict[str, str] = {}
    """Static headers. A value `env:NAME` is read from the environment and never written down."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that one attempt of a request may take."""
    retries: int = Field(default=3, ge=0, le=10)
    """Further attempts after a failed connection, a timeout, 408, 429 or 5xx. If they fail too, the
    rollout is unscored."""
    concurrency: int = Field(default=64, ge=1)
    """Requests at the same time."""

    @model_validator(mode="after")
    def _dialect(self) -> PolicyServer:
        if self.dialect != "openai" and self.kind != "chat":
            raise ValueError(
                f"dialect = {self.dialect} is for kind chat, but kind is {self.kind}. Remove dialect, or set kind: chat"
            )
        return self


class Serve(Section):
    """How an answer is made of rollouts when the agent is served. The gate judges it so, and
    `rft export` writes it down."""

    method: Literal["single", "majority", "best_of_n"] = "single"
    """single: a rollout's answer is served. majority: of `k` rollouts, the most frequent final
    answer; of answers that are equally frequent, the one that was sampled first. best_of_n: of `k`
    rollouts, the one to which `verify(messages, sample)` of the recipe's tools.py gives the highest
    number. It never sees the target."""
    k: int | None = Field(default=None, ge=2)
    """Rollouts per answer, for majority and best_of_n. An answer costs as much as all of them."""
    over: Literal["output_text", "output_json"] | None = None
    """What is counted, for majority: the final text without the whitespace around it, or its JSON,
    whatever the order of its keys. An empty text, or one that is not JSON, has no vote."""

    @model_validator(mode="after")
    def _fits_together(self) -> Serve:
        if self.method == "single" and self.k is not None:
            raise ValueError(f"k = {self.k} is for majority and best_of_n, but method is single. Remove k, or set one")
        if self.method != "single" and self.k is None:
            raise ValueError(f"method = {self.method} needs k, the number of rollouts per answer. Add k, such as 5")
        if self.method != "majority" and self.over is not None:
            raise ValueError(f"over = {self.over} is for majority, but method is {self.method}. Remove over")
        if self.method == "majority" and self.over is None:
            raise ValueError("method = majority needs over, what is counted. Add over: output_text or output_json")
        return self

    @property
    def is_single(self) -> bool:
        return self.method == "single"

    @property
    def num_rollouts(self) -> int:
        """Count the rollouts behind an answer."""
        return self.k or 1

    @property
    def description(self) -> str:
        if self.method == "majority":
            return f"the majority of {self.k} rollouts over {self.over}"
        return "a single rollout" if self.is_single else f"the best of {self.k} rollouts by the recipe's verify"


class Policy(Section):
    """The model that acts: the embedded one, a model of yours, or one behind a server."""

    model: str | None = None
    """Folder, GGUF file or hub id of a model. null: the embedded policy, built here and
    warm-started on the recipe's demonstrations. Yours is warm-started where `warm_start.weights`
    says so."""
    revision: str | None = None
    """Commit, tag or branch of a hub id. A run pins the commit that it found; null: the newest."""
    chat_template: str | None = None
    """File of a Jinja chat template, in place of the model's own. For a model without tools in its
    template: rft/chat/templates/chatml-hermes.jinja."""
    template_arguments: dict[str, JsonValue] = {}
    """Arguments of the chat template, such as enable_thinking: false. One that the template does
    not read is an error."""
    server: PolicyServer | None = None
    """The server that samples from the policy. null: it is sampled in this process."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "gpt-oss"] = "auto"
    """Format of the policy's tool calls. auto: read from the model folder's chat template."""
    serve: Serve = Serve()
    seed: int = 0
    """Seed of the embedded policy's weights, and of every warm start."""
    architecture: Architecture = Architecture()
    warm_start: WarmStart = WarmStart()
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of PyTorch. null: OMP_NUM_THREADS, or what the model's size and the machine's
    processors allow (rft/threads.py)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the base model's weights. With bfloat16 an adapter runs beside them, because
    merged it would be lost; full weights learn in float32, and are sampled, judged and exported so.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy runs. auto: on a GPU if PyTorch finds one, else on the CPU."""

    @model_validator(mode="after")
    def _given(self) -> Policy:
        for key in ("revision", "chat_template", "template_arguments"):
            if self.model is None and getattr(self, key):
                raise ValueError(
                    f"{key} is for a given model, and model is null. Remove {key}, or name a model: a folder, a GGUF "
                    "file or a hub id"
                )
        return self

    @model_validator(mode="after")
    def _server(self) -> Policy:
        if self.server is not None and self.server.kind != "chat" and self.model is None:
            raise ValueError(
                f"server.kind = {self.server.kind} needs the model's tokenizer. Set model to that model's folder or "
                "hub id"
            )
        return self

    @model_validator(mode="after")
    def _warm_start(self) -> Policy:
        """Refuse what a warm start cannot honor."""
        warm = self.warm_start
        if warm.weights is not None and self.server is not None:
            raise ValueError(
                "warm_start.weights cannot be honored: server samples from the model that it was started with. Remove "
                "warm_start.weights, or sample in this process: server: null"
            )
        if self.model is None:
            return self
        if warm.weights is not None and (missing := warm.unwritten()):
            keys = " and ".join(f"warm_start.{key}" for key in missing)
            raise ValueError(
                f"the warm start of a given model needs {keys}: the defaults suit the embedded policy. 48 steps at "
                "5e-4 with LoRA, or at 2e-5 with all weights, are a start"
            )
        defaults = WarmStart()
        unread = [key for key in SINCE_0_2 if getattr(warm, key) != getattr(defaults, key)]
        if warm.weights is None and unread:
            raise ValueError(
                f"warm_start.{unread[0]} has no effect: a given model is warm-started only where warm_start.weights is "
                "set. Set it to lora or full, or remove the key"
            )
        return self

    @property
    def is_warm_started(self) -> bool:
        """Whether stage `policy` trains a model, so that the run holds its weights."""
        return self.server is None and (self.model is None or self.warm_start.weights is not None)


class Baseline(Section):
    """How good the champion is today, and whether training would help."""

    examples: int = Field(default=96, ge=2)
    """Validation examples that the champion is measured on."""
    k: int = Field(default=8, ge=2)
    """Sampled rollouts per example, in addition to a greedy one. The best of k shows how much
    training could gain."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    not_worth_above: float = Field(default=0.95, ge=0, le=1)
    """Training is not worth it when the mean score is above this share of the grader's range."""
    not_yet_below: float = Field(default=0.02, ge=0, le=1)
    """It is too early to train when max@k is below this share of the grader's range: no rollout
    earns anything to learn from."""
    seed: int = 0
    """Seed of the sampling."""


class Prompt(Section):
    """The search for a better prompt and settings, before any weight is trained."""

    search_share: float = Field(default=0.5, gt=0, lt=1)
    """Share of the validation examples for the search. The rest confirms its winner."""
    rounds: int = Field(default=3, ge=1)
    """Rounds of successive halving: each doubles the examples and drops the worse candidates. The
    last one takes all examples and drops none."""
    first_examples: int = Field(default=16, ge=2)
    """Examples in the first round, unless it is the last one too."""
    k: int = Field(default=2, ge=1)
    """Rollouts per example and candidate in the search."""
    confirm_k: int = Field(default=4, ge=1)
    """Rollouts per example when the best candidate is confirmed on the held-back part."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    seed: int = 0
    """Seed of the split and the sampling."""


class Challenger(Section):
    """The comparison of champion and challengers on the frozen test examples."""

    k: int = Field(default=4, ge=1)
    """Sampled answers per test example and arm, in addition to a greedy one. An answer is a
    rollout, unless policy.serve makes it of several."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature. Use the one that you serve with."""
    seed: int = 0
    """Seed of the sampling."""
    shown: int = Field(default=24, ge=0)
    """Validation examples that each arm plays once more, for people to read: the dialogues of the
    test set stay closed. The gate does not see them. The default is 24, or all where
    examples.validation has fewer. 0: none."""


class Prices(Section):
    """What a token costs, relative to the others: with 1, 0.1 and 5 a sampled token costs as much
    as 5 that are read, or 50 that a cache spared."""

    context: float = Field(default=1.0, gt=0)
    """Price of a token that is sent to be read and not cached. Each turn sends the whole dialogue
    again."""
    cached: float = Field(default=1.0, ge=0)
    """Price of a token that is sent, and that a cache spared."""
    sampled: float = Field(default=1.0, ge=0)
    """Price of a token that the policy writes."""


class Gate(Section):
    """Conditions for a promotion. Thresholds have no defaults: set them before you see the result.

    Those on rewards and scores (min_gain, max_greedy_loss, max_slice_loss, prompt_only_margin) are
    shares of the grader's range: 0.05 is a gain of 0.05 on 0 to 1, and of 0.25 on 0 to 5.
    """

    alpha: float = Field(gt=0, lt=1, examples=[0.05])
    """The probability that candidates which gain no more than min_gain are promoted at one test
    set, over all its looks together."""
    looks: int = Field(ge=1, examples=[5])
    """Looks at one test set that alpha pays for: each gets its share of what earlier ones left of
    alpha, which a run's two candidates share. With more of them, each needs more examples."""
    min_gain: float
    """The paired gain in mean reward must exceed this share of the range with its whole
    interval."""
    max_greedy_loss: float = Field(ge=0)
    """Mean score that greedy decoding may lose, as a share of the range."""
    max_calls_p95_increase: float
    """Tool calls per rollout that may be added at P95. 0: none."""
    max_tokens_increase: float
    """Relative increase allowed in the cost per rollout: all tokens that it reads, in each turn
    again, and all that it writes, at gate.prices. 0.1: ten percent more."""
    prices: Prices = Prices()
    """What these tokens cost. By default all cost the same."""
    max_turns_p95_increase: float
    """Turns per rollout that may be added at P95. 0: none."""
    max_unreadable_increase: float = Field(ge=0, le=1)
    """Share of rollouts with a tool call that cannot be read that may be added. 0.02: two points
    more."""
    max_abstention_increase: float | None = Field(default=None, ge=0, le=1, exclude_if=_is_none)
    """Share of rollouts that abstain where there is an answer that may be added. 0.05: five points
    more. Required where grader.json declares `abstention`."""
    max_unscored_increase: float = Field(ge=0, le=1)
    """Share of rollouts without a score that may be added. 0.02: two points more."""
    max_hack_rate: float = Field(ge=0, le=1)
    """The share of test examples with a hacked rollout must be shown to be at most this. Where the
    check decides, a rate is refused if even zero hacks among examples.test examples could not show
    it (rft/grading/margins.py).
    """
    require_hack_source: bool = False
    """true: the gate rejects unless the grader flagged at least one of the recipe's exploits.
    false: without that, the check reads "not measured" and does not decide."""
    max_slice_loss: float = Field(ge=0)
    """Mean reward that any one slice may lose, as a share of the range. A slice that is shown to
    lose more vetoes the candidate."""
    min_slice: int = Field(ge=2, examples=[20])
    """Slices with fewer test examples are judged together, as one."""
    max_unscored_share: float = Field(ge=0, le=1)
    """Share of rollouts that may be unscored in either arm. Above it the comparison is not
    trusted."""
    max_latency_increase: float
    """Relative increase allowed in P95 seconds per rollout."""
    latency_decides: bool
    """Whether the latency check decides. Wall times depend on what else the machine does."""
    require_drift: list[Literal["continue", "refresh"]]
    """Drift verdicts under which a candidate may be promoted."""
    prompt_only_margin: float = Field(ge=0)
    """Training must beat the new prompt alone by more than this share of the range. Otherwise the
    new prompt alone is the candidate."""
    num_bootstrap: int = Field(default=2000, ge=200)
    """Bootstrap draws behind each interval."""
    seed: int
    """Seed of the bootstrap."""
