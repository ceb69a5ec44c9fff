"""Define the sections of all stages except `train`.

rft/config/train.py has that section.
"""

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
    """The window's log: a file, a folder, a pattern, or an address such as s3://bucket/logs
    (docs/traffic.md). All files that match a pattern are one window. `rft run --window` sets
    another log for one run."""
    sha256: str | None = None
    """Content hash that the log must have: the hash of its one file, or of the list of its files.
    null: any hash is accepted and recorded."""
    min_conversations: int = Field(default=50, ge=1)
    """A window with fewer conversations is an error."""
    unit: str | None = None
    """Key of a row, or a dotted path in it, that names the owner of the conversation, such as
    user_id. Conversations of one user resemble each other. Drift therefore counts users as
    independent, not conversations. null: each conversation counts as independent."""
    columns: dict[str, Literal["number", "category"]] = {}
    """More features of the input. Each is a key of a row, or a dotted path in it, that holds a
    number or a category."""
    redact: dict[str, str] = {}
    """What to replace in every text before it is stored: names of rules, each with a regular
    expression (RE2). `email: [^ ]+@[^ ]+` writes `[email]` in its place. An id of a conversation, a
    unit or a category in which a rule finds something is stored as a hash."""
    max_line_mb: int = Field(default=64, ge=1)
    """Largest line or record that is read, in MB. A larger one is counted as unreadable. Reading
    one takes about 14 times its size in memory."""
    processes: int = Field(default=2, ge=1)
    """Processes that ingest and profile a window. What they write does not depend on their
    number."""


class Effects(Section):
    """Smallest effect that counts as drift, per statistic (rft/drift/effects.py).
    rft/drift/profile.py assigns a statistic to each feature."""

    total_variation: float = Field(default=0.15, gt=0, le=1)
    """For categories: the share of one window that must change to match the other window."""
    wasserstein_sd: float = Field(default=0.3, gt=0)
    """For numbers: how far the values moved, in standard deviations of the reference window."""
    psi: float = Field(default=0.2, gt=0)
    """For numbers and categories: the population stability index. A value above 0.2 is usually
    called a shift."""
    classifier_auc: float = Field(default=0.65, gt=0.5, le=1)
    """For text: how well a classifier tells the windows apart, from 0.5 (not at all) to 1
    (always)."""
    mmd: float = Field(default=0.1, gt=0)
    """For embeddings: the maximum mean discrepancy, 0 for equal windows and about 1 for windows
    that have nothing in common."""


class Drift(Section):
    """When production traffic counts as different from what the champion was trained on."""

    alpha: float | None = Field(default=None, gt=0, le=0.5)
    """False-discovery rate over all tested features of a window. At most this share of unchanged
    windows reports a drifted feature, if units are independent of each other. null: 0.01, or the
    rate that `false_alarms_per_year` gives."""
    false_alarms_per_year: float | None = Field(default=None, gt=0)
    """How many windows a year may report drift where there is none. It replaces `alpha`, and needs
    `looks_per_year`: 0.5 false alarms in 52 windows are an alpha of 0.0096."""
    looks_per_year: float | None = Field(default=None, gt=0)
    """How many windows are compared in a year. It is read with `false_alarms_per_year` only."""
    min_conversations: int = Field(default=100, ge=1)
    """A feature with fewer conversations on either side is shown but never called drifted."""
    min_units: int = Field(default=20, ge=2)
    """The same limit for units (traffic.unit). Noise cannot be measured on fewer."""
    text_sample: int = Field(default=2000, ge=100)
    """Most units that the text features look at: vocabulary, phrasing and meaning. One conversation
    of each unit is sampled."""
    embedder: str | None = None
    """Model of sentence embeddings for the feature `meaning`: `minilm` (from the extra `embed`), or
    a folder or hub name for transformers. null: no such feature."""
    engine: Literal["local", "spark"] = "local"
    """Where profiles are counted: in local processes, or on Spark (from the extra `spark`). The
    counts are the same."""
    spark_master: str = "local[*]"
    """Address of Spark's master. It is read with `engine: spark` only."""
    effects: Effects = Effects()
    thresholds: dict[str, float] = {"tool_errors": 0.05}
    """Smallest effect that counts as drift, per feature. It replaces the value in `effects`. Set it
    for rare events, for example, where a small change matters."""
    refresh_share: float = Field(default=0.1, ge=0, lt=1)
    """Drift in more than this share of the input features calls for a refresh: new examples from
    the window."""
    min_feedback: int = Field(default=100, ge=1)
    """Graded conversations, usable as examples, that a refresh needs. With fewer, the verdict is
    stop. If it is below `min_conversations`, the new champion's profile may be too small to judge
    the next window.
    """
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    """Share of tool calls that may fail. Above it the tools count as broken, not the data."""
    max_bad_share: float = Field(default=0.02, ge=0, lt=1)
    """Share of conversations that may break a contract on values: a latency that is missing or out
    of range, or an unknown tool."""
    max_latency_s: float = Field(default=3600.0, gt=0)
    """A logged latency above this many seconds breaks the contract on values."""
    num_resamples: int = Field(default=10_000, ge=100)
    """Most draws behind each p-value. The smallest p is 1 / (num_resamples + 1), and a comparison
    of many features and references needs a small p. Fewer draws are made where chance alone often
    moves as far."""
    seed: int = 0
    """Seed of the resampling behind the p-values."""

    @model_validator(mode="after")
    def _one_level(self) -> Drift:
        """Refuse a level of a comparison that is set in two ways, or only half set."""
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
    """Keys of a row, or dotted paths in it, that hold what the stages read. A key that is set here
    must be in at least one row of each split."""

    id: str | None = None
    """Key of the row's id. null: `id`. A row without an id gets the SHA-256 of its line."""
    target: str | None = None
    """Key of the expected answer. Only leakage checks and the preflight read it. null:
    `target`."""
    slice: str | None = None
    """Key of the group that the gate checks separately. null: `metadata.slice`."""


class Examples(Section):
    """The data set: how many examples, from where, and how the splits are kept apart."""

    keys: Keys = Keys()
    source: Literal["recipe", "window"] = "recipe"
    """Where the examples come from. `rft run` writes `window` when the drift verdict is refresh.
    Graded traffic then becomes the training examples."""
    train: int = Field(default=2000, ge=1)
    """Training examples. From a window: at most this many, the latest ones."""
    validation: int = Field(default=192, ge=2)
    """Validation examples: for the baseline, the prompt search and the checks during training."""
    test: int = Field(default=288, ge=2)
    """Test examples in one block. They are frozen, and only stage `challenger` opens them. The
    gate's intervals shrink with the square root of their number."""
    block: int = Field(default=0, ge=0)
    """Number of the first block of test examples. When the looks at one block are spent, take the
    next, fresh one, if the recipe offers blocks (rft/recipe.py)."""
    blocks: int = Field(default=1, ge=1)
    """How many consecutive blocks make up the test set. `rft runs extend` raises the number."""
    disjoint_targets: bool = True
    """Whether validation and test may not have a target of a training example. Use false where
    targets are classes ("approve", "deny") rather than things to find."""
    near_duplicate: float | None = Field(default=0.8, ge=0.5, le=1)
    """From which Jaccard similarity of their runs of three words two inputs of different splits are
    near-duplicates. They are counted and shown. null: the check is off."""
    max_near_duplicates: float | None = Field(default=None, ge=0, le=1)
    """Share of a split, or of a block of test examples, that may be near-duplicates of an earlier
    one. More is an error. null: never an error. Use null where all inputs are made from one
    template: they resemble each other although they ask different things."""
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
    """Heads for keys and values. The attention heads share them."""
    head_dim: int = Field(default=48, ge=32)
    """Width of a head."""
    feed_forward: int = Field(default=320, ge=32)
    """Width of the feed-forward layers."""
    max_positions: int = Field(default=1024, ge=128)
    """Longest context, in tokens. rollout.max_tokens may not exceed it."""
    merges: int = Field(default=1300, ge=0)
    """Byte-level BPE merges beyond the 256 bytes and the added tokens."""
    structured_init: bool = True
    """Whether the random weights include a previous-token head and an induction head, with which
    the policy can copy before any training."""


class PolicyServer(Section):
    """The server that samples from the policy."""

    kind: Literal["vllm", "sglang", "chat"]
    """What listens at `url`: vLLM or SGLang with their token routes, or any chat-completions
    endpoint (`chat`). `chat` gives no token ids, so it is for evaluation and prompt search only."""
    dialect: Literal["openai", "openai_reasoning"] = "openai"
    """Form of a chat request, for kind chat. openai_reasoning is for reasoning models: a request
    has `max_completion_tokens` and no temperature."""
    url: str
    """Base address, such as http://127.0.0.1:8000."""
    model: str
    """Name of the model at that server."""
    headers: dict[str, str] = {}
    """Static headers. A value `env:NAME` is read from the environment and never written down."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that one attempt of a request may take."""
    retries: int = Field(default=3, ge=0, le=10)
    """More attempts after a failed connection, a timeout, 408, 429 or 5xx. If they fail too, the
    rollout is unscored."""
    concurrency: int = Field(default=64, ge=1)
    """Most requests at the same time."""

    @model_validator(mode="after")
    def _dialect(self) -> PolicyServer:
        if self.dialect != "openai" and self.kind != "chat":
            raise ValueError(
                f"dialect = {self.dialect} is for kind chat, but kind is {self.kind}. Remove dialect, or set kind: chat"
            )
        return self


class Serve(Section):
    """How the served agent makes an answer from rollouts. The gate judges such answers, and
    `rft export` writes the method down."""

    method: Literal["single", "majority", "best_of_n"] = "single"
    """Which answer is served. With `single`, that of one rollout. With `majority`, the most
    frequent final answer of `k` rollouts, and the first of equally frequent ones. With `best_of_n`,
    the one of `k` to which `verify(messages, sample)` in the recipe's tools.py gives the highest
    number. `verify` never sees the target."""
    k: int | None = Field(default=None, ge=2)
    """Rollouts per answer, for majority and best_of_n. An answer costs as much as all of them."""
    over: Literal["output_text", "output_json"] | None = None
    """What majority counts: the final text without the whitespace around it, or the JSON in it
    (the order of its keys does not matter). A text that is empty or not JSON has no vote."""

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
    """The model that acts: the embedded policy, your own model, or a model behind a server."""

    model: str | None = None
    """Folder, GGUF file or hub id of a model. It is warm-started only if `warm_start.weights` is
    set. null: the embedded policy, which is built here and warm-started on the recipe's
    demonstrations."""
    revision: str | None = None
    """Commit, tag or branch of a hub id. A run pins the commit that it found. null: the newest."""
    chat_template: str | None = None
    """File of a Jinja chat template that replaces the model's own. For a model whose template has
    no tools, use rft/chat/templates/chatml-hermes.jinja."""
    template_arguments: dict[str, JsonValue] = {}
    """Arguments of the chat template, such as enable_thinking: false. An argument that the template
    does not read is an error."""
    server: PolicyServer | None = None
    """The server that samples from the policy. null: this process samples."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "gpt-oss"] = "auto"
    """Format of the policy's tool calls. auto: found from the chat template in the model's
    folder."""
    serve: Serve = Serve()
    seed: int = 0
    """Seed of the embedded policy's weights, and of every warm start."""
    architecture: Architecture = Architecture()
    warm_start: WarmStart = WarmStart()
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of PyTorch. null: OMP_NUM_THREADS, or what the model's size and the machine's
    processors allow (rft/threads.py)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the base model's weights. With bfloat16 an adapter is not merged into them,
    because rounding would lose it. Full weights are trained in float32, and also sampled, judged
    and exported in it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy runs. auto: on a GPU if PyTorch finds one, otherwise on the CPU."""

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
    """Sampled rollouts per example, in addition to a greedy one. The best of the k shows how much
    training could gain."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    not_worth_above: float = Field(default=0.95, ge=0, le=1)
    """If the mean score is above this share of the grader's range, training is not worth it."""
    not_yet_below: float = Field(default=0.02, ge=0, le=1)
    """If max@k is below this share of the grader's range, it is too early to train: no rollout
    earns a reward from which to learn."""
    seed: int = 0
    """Seed of the sampling."""


class Prompt(Section):
    """The search for a better prompt and better settings, before any weight is trained."""

    search_share: float = Field(default=0.5, gt=0, lt=1)
    """Share of the validation examples that the search uses. The rest confirms its winner."""
    rounds: int = Field(default=3, ge=1)
    """Rounds of successive halving. Each round doubles the examples and drops the worse candidates.
    The last round takes all examples and drops none."""
    first_examples: int = Field(default=16, ge=2)
    """Examples in the first round, if it is not the only one."""
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
    """Sampled answers per test example and arm, in addition to a greedy one. An answer is one
    rollout, unless policy.serve makes it from several."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature. Use the temperature with which you serve."""
    seed: int = 0
    """Seed of the sampling."""
    shown: int = Field(default=24, ge=0)
    """Validation examples that each arm plays once more for people to read, because the dialogues
    of the test set stay closed. The gate does not see them. The default is 24, or
    examples.validation if that is smaller. 0: none."""


class Prices(Section):
    """What the kinds of tokens cost, relative to each other. With prices of 1, 0.1 and 5, a sampled
    token costs as much as 5 tokens that are read, or 50 that come from a cache."""

    context: float = Field(default=1.0, gt=0)
    """Price of a token that is sent and not in the cache. Each turn sends the whole dialogue
    again."""
    cached: float = Field(default=1.0, ge=0)
    """Price of a token that is sent, and that a cache spares the model from reading."""
    sampled: float = Field(default=1.0, ge=0)
    """Price of a token that the policy writes."""


class Gate(Section):
    """Conditions for a promotion. Thresholds have no defaults: set them before you see the result.

    Thresholds on rewards and scores (min_gain, max_greedy_loss, max_slice_loss, prompt_only_margin)
    are shares of the grader's range. 0.05 is a gain of 0.05 on 0 to 1, and of 0.25 on 0 to 5.
    """

    alpha: float = Field(gt=0, lt=1, examples=[0.05])
    """Probability that a candidate is promoted although it gains no more than min_gain, over all
    looks at one test set together."""
    looks: int = Field(ge=1, examples=[5])
    """Looks at one test set among which alpha is divided. Each look gets its share of what earlier
    looks left, and the two candidates of a run divide that. With more looks, each needs more
    examples."""
    min_gain: float
    """The whole interval of the paired gain in mean reward must lie above this share of the
    range."""
    max_greedy_loss: float = Field(ge=0)
    """Mean score that greedy decoding may lose, as a share of the range."""
    max_calls_p95_increase: float
    """How many more tool calls per rollout are allowed at P95. 0: none."""
    max_tokens_increase: float
    """Allowed relative increase of the cost per rollout. The cost counts all tokens that a rollout
    reads, in each turn again, and all that it writes, at gate.prices. 0.1: ten percent more."""
    prices: Prices = Prices()
    """What these tokens cost. By default all cost the same."""
    max_turns_p95_increase: float
    """How many more turns per rollout are allowed at P95. 0: none."""
    max_unreadable_increase: float = Field(ge=0, le=1)
    """Allowed increase of the share of rollouts with a tool call that cannot be read. 0.02: two
    points more."""
    max_abstention_increase: float | None = Field(default=None, ge=0, le=1, exclude_if=_is_none)
    """Allowed increase of the share of rollouts that abstain where there is an answer. 0.05: five
    points more. Required where grader.json declares `abstention`."""
    max_unscored_increase: float = Field(ge=0, le=1)
    """Allowed increase of the share of rollouts without a score. 0.02: two points more."""
    max_hack_rate: float = Field(ge=0, le=1)
    """Highest share of test examples with a hacked rollout. The comparison must show that the share
    is not higher. Where the check decides, a rate is refused if examples.test examples without any
    hack could not show it (rft/grading/margins.py).
    """
    require_hack_source: bool = False
    """Whether the grader must have flagged at least one of the recipe's exploits. true: the gate
    rejects otherwise. false: otherwise the check reads "not measured" and does not decide."""
    max_slice_loss: float = Field(ge=0)
    """Mean reward that any one slice may lose, as a share of the range. If a slice is shown to lose
    more, the candidate is rejected."""
    min_slice: int = Field(ge=2, examples=[20])
    """Slices with fewer test examples than this are judged together, as one slice."""
    max_unscored_share: float = Field(ge=0, le=1)
    """Share of rollouts that may be unscored in either arm. Above it the comparison is not
    trusted."""
    max_latency_increase: float
    """Allowed relative increase of P95 seconds per rollout."""
    latency_decides: bool
    """Whether the latency check decides. Wall times also depend on the machine's other work."""
    require_drift: list[Literal["continue", "refresh"]]
    """Drift verdicts under which a candidate may be promoted."""
    prompt_only_margin: float = Field(ge=0)
    """Training must beat the new prompt alone by more than this share of the range. Otherwise the
    candidate is the new prompt without training."""
    num_bootstrap: int = Field(default=2000, ge=200)
    """Bootstrap draws behind each interval."""
    seed: int
    """Seed of the bootstrap."""
