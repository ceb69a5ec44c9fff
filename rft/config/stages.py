"""A section a stage, but for the one that trains (rft/config/train.py)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rft.config.section import Section


class Traffic(Section):
    """The window of production conversations that a run looks at."""

    file: str = "data/inbox/window.jsonl"
    """The window of production conversations, as JSONL (docs/traffic.md). `rft run --window` names
    another for one run."""
    sha256: str | None = None
    """The window's content hash. null: whatever the file holds now (the hash is recorded)."""
    min_conversations: int = Field(default=50, ge=1)
    """A window with fewer conversations is refused."""


class Effects(Section):
    """Smallest effect that counts as drift, by statistic (rft/windows/distances.py); which feature
    has which: rft/windows/profile.py."""

    total_variation: float = Field(default=0.15, gt=0, le=1)
    """For categories: the part of one window that would have to change to look like the other, 0 to
    1."""
    wasserstein_sd: float = Field(default=0.3, gt=0)
    """For numbers: how far the mass moved, in standard deviations of the reference."""
    psi: float = Field(default=0.2, gt=0)
    """Population stability index, for numbers and categories; above 0.2 is the usual word for a
    shift."""
    classifier_auc: float = Field(default=0.65, gt=0.5, le=1)
    """For text: how well a classifier tells the windows apart. 0.5 is not at all, 1 always."""


class Drift(Section):
    """When production has moved away from what the champion knows."""

    alpha: float = Field(default=0.01, gt=0, le=0.5)
    """False-discovery rate over all tested features: of windows in which nothing changed, at most
    this share names a feature, if conversations are independent of each other."""
    min_conversations: int = Field(default=100, ge=1)
    """A feature with fewer on either side is shown but never called drifted."""
    effects: Effects = Effects()
    thresholds: dict[str, float] = {"tool_errors": 0.05}
    """Smallest effect by feature, where its statistic's own is wrong: rare events move little and
    mean much."""
    refresh_share: float = Field(default=0.1, ge=0, lt=1)
    """Drift in more than this share of the input features asks for a refresh from the window."""
    min_feedback: int = Field(default=100, ge=1)
    """Graded conversations, usable as examples, that a refresh needs; with fewer, drift says stop.
    Fewer than `min_conversations` would make a champion whose own profile is too small to judge the
    next window by.
    """
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    """Failed tool calls among all tool calls; above it the tools are broken, not the data."""
    max_bad_share: float = Field(default=0.02, ge=0, lt=1)
    """Conversations that may break a contract on values (a missing latency, one out of range, an
    unknown tool)."""
    max_latency_s: float = Field(default=3600.0, gt=0)
    """A logged latency above this many seconds breaks the contract on values."""
    num_resamples: int = Field(default=2000, ge=100)
    """Draws behind each p-value. The smallest p is 1 / (num_resamples + 1)."""
    seed: int = 0
    """Seed of the resampling behind the p-values."""


class Keys(Section):
    """Where a row keeps what we need of it: a key, or a dotted path. Written down, it must be in at
    least one row of each split."""

    id: str | None = None
    """Key of the row's id. null: `id`. A row without one is known by the SHA-256 of its line."""
    target: str | None = None
    """Key of the expected answer, which only leakage checks and the preflight read. null:
    `target`."""
    slice: str | None = None
    """Key of the group that the gate watches apart. null: `metadata.slice`."""


class Examples(Section):
    """The dataset: how many examples, from where, and how their splits are kept apart."""

    keys: Keys = Keys()
    source: Literal["recipe", "window"] = "recipe"
    """Where the examples come from. The flow writes `window` when drift says refresh: then graded
    traffic becomes the training examples."""
    train: int = Field(default=2000, ge=1)
    """Training examples. From a window: at most this many, the latest ones."""
    validation: int = Field(default=192, ge=2)
    """Validation examples: for the baseline, the prompt search and the checks during training."""
    test: int = Field(default=288, ge=2)
    """Test examples, frozen and opened by stage `challenger` only. The gate's intervals shrink with
    the root of this number."""
    disjoint_targets: bool = True
    """A target met in training must not come back in validation or test. false for a recipe whose
    targets are classes ("approve", "deny") rather than things to be found."""
    seed: int = 0
    """Seed of the choice of examples."""


class Architecture(Section):
    """The embedded policy's shape; see rft/models/embedded.py."""

    layers: int = Field(default=3, ge=2)
    """Transformer layers. Copying needs two."""
    hidden: int = Field(default=128, ge=64)
    """Width of the residual stream."""
    heads: int = Field(default=4, ge=2)
    """Attention heads."""
    kv_heads: int = Field(default=2, ge=2)
    """Heads that hold keys and values; the attention heads share them."""
    head_dim: int = Field(default=48, ge=32)
    """Width of a head."""
    feed_forward: int = Field(default=320, ge=32)
    """Width of the feed-forward layers."""
    max_positions: int = Field(default=1024, ge=128)
    """Longest context, in tokens. rollout.max_tokens may not exceed it."""
    merges: int = Field(default=1300, ge=0)
    """Byte-level BPE merges beyond the 256 bytes and the added tokens."""
    structured_init: bool = True
    """Write a previous-token head and an induction head into the random weights, so that copying
    need not be discovered."""


class WarmStart(Section):
    """How the embedded policy learns to act at all, before any reward."""

    demonstrations: int = Field(default=6000, ge=16)
    """Dialogues taken from the recipe's demonstrations.py."""
    steps: int = Field(default=900, ge=1)
    """Optimizer steps."""
    batch: int = Field(default=16, ge=1)
    """Dialogues per step."""
    longest: int = Field(default=512, ge=16)
    """In tokens. Longer dialogues, the teacher's worst rambles, are left out and counted."""
    lr: float = Field(default=4e-3, gt=0)
    """Learning rate."""
    other_weight: float = Field(default=0.1, ge=0, le=1)
    """Loss weight of tokens that the policy will never write: prompts and tool results."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints: what a kill can cost."""


class PolicyServer(Section):
    """A server that samples for us. `chat` speaks plain chat completions: no token ids, so for
    evaluation and prompt search only."""

    kind: Literal["vllm", "sglang", "chat"]
    """What speaks at `url`: vLLM or SGLang by token routes; or `chat`, any chat-completions
    endpoint, for evaluation and prompt search only."""
    dialect: Literal["openai", "openai_reasoning"] = "openai"
    """Of kind chat. openai_reasoning: `max_completion_tokens`, and no temperature, as reasoning
    models want it."""
    url: str
    """Base address, such as http://127.0.0.1:8000."""
    model: str
    """The model's name at that server."""
    headers: dict[str, str] = {}
    """Static headers; a value `env:NAME` is read from the environment and never written down."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that one try of a request may take."""
    retries: int = Field(default=3, ge=0, le=10)
    """Further tries after no connection, a hang, 408, 429 or 5xx; then the rollout is left
    unscored."""
    concurrency: int = Field(default=64, ge=1)
    """Requests at the same time."""

    @model_validator(mode="after")
    def _dialect(self) -> PolicyServer:
        if self.dialect != "openai" and self.kind != "chat":
            raise ValueError(
                f"dialect = {self.dialect} is for kind chat, and kind is {self.kind}. Remove dialect, or set kind: chat"
            )
        return self


class Policy(Section):
    """The model that acts: the embedded one, a model of yours, or one behind a server."""

    model: str | None = None
    """A hub id or folder. null: the embedded policy, built here and warm-started on the recipe's
    demonstrations."""
    server: PolicyServer | None = None
    """A server that samples for us. null: the policy is sampled in this process."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "gpt-oss"] = "auto"
    """How the policy writes tool calls. auto: read from the model folder's chat template."""
    seed: int = 0
    """Seed of the embedded policy's weights and warm start."""
    architecture: Architecture = Architecture()
    warm_start: WarmStart = WarmStart()
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of PyTorch; null: its own choice."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy runs. auto: on the GPU if PyTorch sees one."""

    @model_validator(mode="after")
    def _server(self) -> Policy:
        if self.server is not None and self.server.kind != "chat" and self.model is None:
            raise ValueError(
                f"server.kind {self.server.kind} samples by tokens: name the same model's folder or hub id in model, "
                "for its tokenizer"
            )
        return self


class Baseline(Section):
    """How good the champion is today, and whether training would help."""

    examples: int = Field(default=96, ge=2)
    """Validation examples that the champion is measured on."""
    k: int = Field(default=8, ge=2)
    """Rollouts per example. Best of k shows the room that training has."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature. Beside it each example has one greedy rollout."""
    not_worth_above: float = Field(default=0.95, ge=0, le=1)
    """A mean score above this share of the grader's range leaves little to learn."""
    not_yet_below: float = Field(default=0.02, ge=0, le=1)
    """max@k below this share of the grader's range: no rollout earns anything to learn from."""
    seed: int = 0
    """Seed of the sampling."""


class Prompt(Section):
    """The search for a better prompt or setting, before any weight is trained."""

    search_share: float = Field(default=0.5, gt=0, lt=1)
    """Part of validation that the search sees; the rest confirms."""
    rounds: int = Field(default=3, ge=1)
    """Successive halving: each round doubles the examples of the survivors."""
    first_examples: int = Field(default=16, ge=2)
    """Examples in the first round; each later round doubles them."""
    k: int = Field(default=2, ge=1)
    """Rollouts per example and candidate in the search."""
    confirm_k: int = Field(default=4, ge=1)
    """Rollouts per example when the best candidate is confirmed on the held-back part."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    seed: int = 0
    """Seed of the split and the sampling."""


class Challenger(Section):
    """The measurement of all arms on the frozen test examples."""

    k: int = Field(default=4, ge=1)
    """Rollouts per test example and arm, beside one greedy."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature. Judge at the one that is served."""
    seed: int = 0
    """Seed of the sampling."""


class Gate(Section):
    """Thresholds have no defaults: a gate that nobody pre-registered decides nothing.

    Those on rewards and scores (min_gain, max_greedy_loss, max_slice_loss, prompt_only_margin) are
    shares of the grader's range: 0.05 is a gain of 0.05 on 0 to 1, and of 0.25 on 0 to 5.
    """

    min_gain: float
    """Superiority: the lower end of the paired gain in mean reward, as a share of the range, must
    lie above this."""
    max_greedy_loss: float = Field(ge=0)
    """Greedy decoding may lose at most this much mean score, as a share of the range."""
    max_calls_p95_increase: float
    """Absolute: 0 allows no more tool calls at P95."""
    max_tokens_increase: float
    """Relative: 0.1 allows ten percent more tokens a rollout."""
    max_hack_rate: float = Field(ge=0, le=1)
    """The share of test examples with a hacked rollout must be shown to be at most this. Where the
    check votes, a rate that even zero hacks among examples.test examples could not show is refused
    (rft/grading/margins.py).
    """
    require_hack_source: bool = False
    """true: the gate rejects unless the grader was seen to flag one of the recipe's exploits.
    false: the check then reads "not measured" and has no vote."""
    max_slice_loss: float = Field(ge=0)
    """No slice may lose more mean reward than this share of the range."""
    max_unscored_share: float = Field(ge=0, le=1)
    """The largest share of rollouts without a score in either arm: above it the comparison is not
    trusted."""
    max_latency_increase: float
    """Relative, on P95 seconds a rollout."""
    latency_decides: bool
    """Whether the latency check votes. Wall times depend on what else the machine does."""
    require_drift: list[Literal["continue", "refresh"]]
    """The drift verdicts under which a candidate may be promoted."""
    prompt_only_margin: float = Field(ge=0)
    """Training must beat the new prompt alone by more than this share of the range, else the
    cheaper rung is judged."""
    num_bootstrap: int = Field(default=2000, ge=200)
    """Bootstrap draws behind each interval."""
    seed: int
    """Seed of the bootstrap."""
