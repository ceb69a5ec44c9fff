"""The JSON that each stage leaves on its shelf: what crosses from one stage to the next, and what an auditor reads.

Reports are frozen pydantic models without wall times: equal inputs give equal bytes. Times lie in a `timing.json` beside them.
`write` and `read` are the only way in and out, so that a truncated or foreign file is one clear error, and no secret goes out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rft import commands, redact
from rft.errors import UserError


class Report(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def digest(self) -> str:
        """Of its canonical JSON: sorted keys, no blanks."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


R = TypeVar("R", bound=Report)


def write(report: Report, path: Path) -> None:
    """Atomically: a reader sees the old file or the new one, never half of it."""
    write_json(report.model_dump(mode="json"), path)


def write_json(value: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(redact.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def read(kind: type[R], path: Path) -> R:
    """Raises UserError when the file is missing, cut off, or of another kind."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: missing. Run the stage that writes it: {commands.stage(path.parent.name)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        what = f"{path}: {where}: {first['msg']}. Not a whole {kind.__name__}"
        raise UserError(f"{what}; run the stage again: {commands.stage(path.parent.name)}") from None


def write_jsonl(rows: Iterable[Any], path: Path) -> None:
    """One JSON value a line, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as handle:
        for row in rows:
            handle.write(redact.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    os.replace(part, path)


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Lines as they are, atomically. Raises UserError for one that holds a secret: it can neither be written nor be changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as handle:
        for number, line in enumerate(lines, 1):
            if redact.text(line) != line:
                raise UserError(f"{path}:{number}: the row holds the value of a secret that params.yaml names. Take it out of the row.")
            handle.write(line + "\n")
    os.replace(part, path)


def read_jsonl(path: Path, content: bytes, remedy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", object) of each line that is not blank. Raises UserError at the first line that is not a whole JSON object."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8. {remedy}") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        yield where, parse_line(line, where, remedy, is_last=number == len(lines))


def parse_line(line: str, where: str, remedy: str, is_last: bool = False) -> dict[str, Any]:
    """One line as a JSON object. `is_last`: of a file that does not end with a line break, so it may have been cut off there."""
    try:
        row = json.loads(line, parse_constant=_refuse)
        if "\\u" in line:  # half a surrogate pair is JSON, but no text that could be written again
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: holds half of a surrogate pair (\\ud800 to \\udfff), which no file can hold. {remedy}") from None
    except (ValueError, RecursionError) as error:
        why = "the file is cut off in this line, its last" if is_last else f"not JSON ({error})"
        raise UserError(f"{where}: {why}. {remedy}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: holds {json.dumps(row)[:40]}, expected a JSON object. {remedy}")
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


class Metric(Report):
    """An aggregate over many, with its 95 % interval. `low` and `high` are None where no interval is meant."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int
    unit: str = ""


# -- traffic ---------------------------------------------------------------------------------------------------------------
class Conversation(Report):
    """One production conversation, normalized. `feedback` is what a person corrected the answer to, if anyone did."""

    conversation_id: str
    time: str  # ISO 8601, UTC
    messages: list[dict[str, Any]]
    latency_s: float | None = None  # None: not logged
    tool_errors: int | None = None
    feedback: Any | None = None


FeatureGroup = Literal["input", "agent", "performance"]
Statistic = Literal["wasserstein_sd", "psi", "total_variation", "classifier_auc"]


class Feature(Report):
    """One column of a profile, as counts over bins.

    Numeric: inner `edges`, and one count more than edges. Category: `values` with their counts. Text: a `sample` of
    conversations, each its words as hashes. `n` conversations had a value, `nulls` had none.
    """

    kind: Literal["numeric", "category", "text"]
    group: FeatureGroup
    statistic: Statistic
    counts: list[int] = []
    edges: list[float] = []
    values: list[str] = []
    sample: list[str] = []
    mean: float | None = None
    sd: float | None = None
    n: int
    nulls: int = 0


class Profile(Report):
    """The distribution of a window of traffic, or of the examples that a champion was trained on."""

    source: str
    num_conversations: int
    features: dict[str, Feature]


class TrafficReport(Report):
    source: str
    sha256: str
    first: str
    last: str
    num_rows: int
    num_conversations: int
    num_with_feedback: int
    rejected: dict[str, int] = {}  # reason -> rows, none silently
    ignored_keys: dict[str, int] = {}  # key that the format does not know -> rows
    reference: str = ""  # whose profile the window is compared with


# -- drift -----------------------------------------------------------------------------------------------------------------
class FeatureDrift(Report):
    """`effect`, `p_value` and `q_value` are None where there is nothing to compare with; `detail` says so."""

    feature: str
    group: FeatureGroup
    statistic: Statistic
    effect: float | None
    threshold: float
    p_value: float | None
    q_value: float | None
    n_reference: int
    n_current: int
    drifted: bool
    detail: str = ""
    reference: str = ""  # whose profile


class Contract(Report):
    """One Great Expectations expectation on the window's table."""

    name: str
    column: str
    success: bool
    observed: str = ""


class DriftReport(Report):
    verdict: Literal["continue", "refresh", "stop"]
    reason: str
    features: list[FeatureDrift]
    contracts: list[Contract]
    num_reference: int
    num_current: int
    window_sha256: str = ""
    num_usable_feedback: int = 0  # graded conversations that can become training examples
    tool_error_share: float = 0.0
    data_docs: str = ""  # inside the state folder


# -- examples --------------------------------------------------------------------------------------------------------------
class ExamplesReport(Report):
    source: Literal["recipe", "window"]
    counts: dict[str, int]  # split -> examples
    sha256: dict[str, str]  # split -> content hash
    leakage: dict[str, int]  # check -> offending examples; all must be 0
    repeated: dict[str, int] = {}  # split -> lines that came again, word for word, and were taken once
    without_target: dict[str, int] = {}  # split -> examples
    slices: dict[str, dict[str, int]]  # split -> slice -> examples


# -- policy ----------------------------------------------------------------------------------------------------------------
class PolicyReport(Report):
    kind: Literal["embedded", "given", "served"]  # served: a chat endpoint's own, which we cannot verify
    model: str  # folder, relative to the repository, or hub id; of a served one the name at its endpoint
    sha256: str  # of a served one: over its address and name
    num_parameters: int
    demonstrations: int = 0
    left_out: int = 0  # demonstrations longer than warm_start.longest
    steps: int = 0
    final_loss: float | None = None
    losses: list[tuple[int, float]] = []


# -- baseline, challenger --------------------------------------------------------------------------------------------------
class Row(Report):
    """All rollouts of one example in one arm. Lists run over rollouts; None = unscored: such a rollout has no outcome, and what it did until it was
    cut off (its calls, tokens and stop reason are on record) counts nowhere."""

    example_id: str
    slice: str
    rewards: list[float | None]
    scores: list[float | None]
    solved: list[bool | None]
    tool_calls: list[int]
    tokens: list[int]
    stop_reasons: list[str]
    hacks: int = 0

    def counts(self, what: Literal["tool_calls", "tokens"]) -> list[float | None]:
        """Of scored rollouts: one that an outage cut short says nothing about the policy's thrift."""
        return [None if score is None else float(count) for score, count in zip(self.scores, getattr(self, what), strict=True)]


class Evaluation(Report):
    """One policy with one prompt on one set of examples. All numbers are of scored rollouts, but for those that say unscored."""

    name: str
    temperature: float
    k: int
    examples_sha256: str
    metrics: dict[str, Metric]
    max_at_k: list[tuple[int, float]]
    shares: dict[str, float]  # always_failed, always_solved, mixed
    stop_reasons: dict[str, int]
    tool_calls: dict[str, int]  # histogram: number of calls (as text) -> rollouts
    unscored: int
    unscored_stop_reasons: dict[str, int] = {}
    rows: list[Row]
    range: tuple[float, float] = (0.0, 1.0)  # of the grader: scores and rewards are on this scale


class BaselineReport(Report):
    readiness: Literal["not worth it", "not yet", "ready", "suspect"]  # suspect: the wiring looks wrong, so nothing is known of the agent
    reason: str
    sampled: Evaluation
    greedy: Evaluation


class Arm(Report):
    name: Literal["champion", "champion_new_prompt", "challenger"]
    prompt_sha256: str
    weights_sha256: str
    sampled: Evaluation
    greedy: Evaluation


class HackSource(Report):
    """Whether this grader sees a hack, as the preflight beside the measurement found. What is only declared is no evidence."""

    declared: bool = False  # grader.json: reports_hacks
    flagged: list[str] = []  # the recipe's exploits that the grader called a hack
    tried: int = 0  # the recipe's exploits that were played

    @property
    def is_measured(self) -> bool:
        """Whether a rate of 0 means anything."""
        return self.declared and bool(self.flagged)

    @property
    def words(self) -> str:
        """How it is known; where it is not, why, and what to do."""
        if not self.declared:
            return (
                "grader.json does not declare that the grader reports hacks. Let it answer hack: REASON where the rollout shows one, "
                'and declare "reports_hacks": true'
            )
        if not self.tried:
            return "none of the recipe's exploits could be played. Add one to exploits.jsonl that the grader flags"
        if not self.flagged:
            return (
                f"grader.json declares reports_hacks, and the grader flagged none of the {self.tried} exploits that were played. "
                "Let it answer hack: REASON to those that are one, or add one that it sees to exploits.jsonl"
            )
        return f"the grader flagged {len(self.flagged)} of the {self.tried} exploits that were played"


class ChallengerReport(Report):
    test_sha256: str
    arms: list[Arm]
    hack_source: HackSource = HackSource()


# -- prompt ----------------------------------------------------------------------------------------------------------------
class PromptSettings(Report):
    """A candidate of the search, and what is served: the instruction and the settings around it.

    `tool_defaults` fills arguments that the policy left out, e.g. {"search": {"k": 3}}. `max_turns` may lower rollout.max_turns, never raise it.
    """

    name: str
    system: str
    tool_defaults: dict[str, dict[str, Any]] = {}
    block_repeated_calls: bool = False
    max_turns: int | None = Field(default=None, ge=1)
    """None: rollout.max_turns."""


class Candidate(Report):
    settings: PromptSettings
    parent: str | None
    search: Metric  # mean reward on the search part of validation
    gain: Metric | None = None  # paired with the seed prompt, same part
    round: int = 0
    eliminated: bool = False


class PromptReport(Report):
    winner: PromptSettings
    found: bool
    reason: str
    candidates: list[Candidate]
    confirmation: Metric | None = None  # paired gain on the confirmation part
    num_rollouts: int


# -- train -----------------------------------------------------------------------------------------------------------------
class TrainReport(Report):
    trained: bool
    reason: str
    weights: Literal["lora", "full", "none"]
    path: str | None = None
    sha256: str | None = None
    algorithm: str = ""
    steps: int = 0
    group_size: int = 0  # rollouts an example: train.group_size x train.compute_multiplier
    kept_step: int = 0  # whose weights these are
    rollouts: int = 0
    left_out: dict[str, int] = {}  # reason -> rollouts sampled but not trained on
    alarms: int = 0  # findings that failures depend on what the policy does (rft/alarm.py)
    curve: list[tuple[int, float]] = []  # step, mean reward
    weight_change: float = 0.0  # L2 norm over all trained parameters


# -- gate ------------------------------------------------------------------------------------------------------------------
class Check(Report):
    """One named condition on an interval or a fact. `decides` is False for what is printed but does not vote."""

    name: str
    kind: Literal["superiority", "non_inferiority", "state"]
    passed: bool | None  # None: the interval spans the margin
    value: float | None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    detectable: float | None = None  # smallest true effect that this many examples tell from the margin at 80 % power
    n: int = 0  # examples behind the interval
    unit: str = ""  # reward, score (either may end in " of the range": a share of it), calls, relative (0.1 = ten percent more), share
    decides: bool = True
    detail: str = ""


class Decision(Report):
    decision: Literal["promote", "reject", "inconclusive"]
    reason: str
    candidate: Literal["champion_new_prompt", "challenger", "none"]
    checks: list[Check]
    hashes: dict[str, str]


class PromotionRequest(Report):
    """What an approver signs: everything by hash. A prompt alone has `weights` none: the champion's own stay."""

    candidate: str
    prompt: PromptSettings
    weights: Literal["lora", "full", "none"]
    weights_path: str | None
    weights_sha256: str | None
    decision_sha256: str
    test_sha256: str


class Champion(Report):
    """`data/champion/champion.json`: what is served now, written by the flow. `version` is the registry's; 1: the beginning, never promoted."""

    version: int = 1
    run: str | None = None
    prompt: PromptSettings | None = None
    weights: Literal["lora", "full", "none"] = "none"
    weights_path: str | None = None  # folder inside data/champion
    weights_sha256: str | None = None
    base_sha256: str | None = None  # of the base model that the weights were trained on
    profile_path: str | None = None  # the profile that its examples had, inside data/champion
