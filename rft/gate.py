"""May the challenger be served? A pure function from reports to promote, reject or inconclusive.

Every threshold was written down before the run (params.yaml, section `gate`, no defaults). The gate asks one question of
superiority, is the mean reward on frozen test examples higher, and several of non-inferiority, is nothing else worse. Each is a
`Check` on an interval paired by example: *passed* when the whole interval lies on the good side of its margin, *failed* when it lies
on the bad side, and *open* (None) when it spans the margin. Promote needs every deciding check passed; one failed check rejects;
otherwise the decision is inconclusive, and the reason says what to do about it (`advice`): how many examples would settle it, where that many can
be had, or else that their number is not what is missing.

A guard without a number is *not measured*, and never passed. The hack rate (HACK_RATE_MEANS) has one only where the grader was seen to flag a
hack (rft/challenger.py); elsewhere it has no vote, unless `gate.require_hack_source` makes a missing source a failed check.

Which candidate is judged? Weights are dearer than words, so a challenger that does not beat the new prompt alone is set aside and the
new prompt is judged in its place. Two candidates are looked at, each at one-sided 2.5 %, so that noise alone is promoted in at most 5 %.

Thresholds on rewards and scores are shares of the grader's range, so that they mean the same whatever it scores on: both are put on shares of
that range before they are compared. For a range other than 0 to 1 the words say so.

Wall times never enter `decision.json` unless `gate.latency_decides` puts them there, because equal inputs must give equal bytes; the
latency check then lies in `timing.json` beside it. No clock, no randomness but `gate.seed`, and no torch.

Parts: `decide` (pure) with `_judged` (the candidate) and `_checks`; `latency`; `run` (files in, files out).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from rft import commands, config, reports, stats
from rft.errors import UserError
from rft.reports import Arm, Check, Decision, Metric
from rft.scale import UNIT, from_to, share
from rft.words import counted, rounded_up, signed

Timings = dict[str, Any]
"""A timing.json: {"rollout_s": {"challenger/<arm>/sampled": {"p50", "p95", "n"}, ...}, ...}."""

SHELVES = Path("data")
_OF_RANGE = " of the range"
HACK_RATE = "hack rate"
HACK_RATE_MEANS = (
    "Hack rate: the share of test examples on which the grader called at least one of the candidate's rollouts, sampled or greedy, a hack: reward "
    "sought without doing the task, seen in what the rollout did. Examples without a scored rollout are left out, not counted as clean. The interval "
    "is exact (Clopper and Pearson), each end a one-sided 97.5 % limit; the check passes when its upper end is at most the margin. Where the grader "
    "was not seen to flag any of the recipe's exploits, nothing is measured."
)
"""For the page and whoever else shows the check."""
_NEVER = 100.0  # more than this many times the examples that we have: not a matter of more examples
_WORTH_ASKING_FOR = 1000
"""Test examples that a user may be asked to have. Where more are there, up to four times as many: that halves an interval."""


def run(params: config.Params) -> None:
    """Reads the five reports, writes data/gate."""
    drift = reports.read(reports.DriftReport, SHELVES / "drift/report.json")
    baseline = reports.read(reports.BaselineReport, SHELVES / "baseline/report.json")
    prompt = reports.read(reports.PromptReport, SHELVES / "prompt/report.json")
    train = reports.read(reports.TrainReport, SHELVES / "train/report.json")
    challenger = reports.read(reports.ChallengerReport, SHELVES / "challenger/report.json")
    timings = _timings(SHELVES / "challenger/timing.json")
    decision = decide(params.gate, drift, baseline, prompt, train, challenger, timings)
    apart = latency(params.gate, timings, decision.candidate)
    for done, check in enumerate(decision.checks, 1):
        print(f"[gate] {done}/{len(decision.checks)} {in_words(check)}", flush=True)
    if not apart.decides:
        print(f"not deciding: {in_words(apart)}", flush=True)
    request = promotion_request(decision, prompt, train, challenger)
    folder = SHELVES / "gate"
    reports.write(decision, folder / "decision.json")
    reports.write_json(request.model_dump(mode="json") if request else None, folder / "request.json")
    reports.write_json({"latency": apart.model_dump(mode="json")}, folder / "timing.json")
    print(f"{decision.decision}: {decision.reason}", flush=True)


def decide(
    gate: config.Gate,
    drift: reports.DriftReport,
    baseline: reports.BaselineReport,
    prompt: reports.PromptReport,
    train: reports.TrainReport,
    challenger: reports.ChallengerReport,
    timings: Timings,
) -> Decision:
    """Raises UserError when an arm that must be judged is missing from the challenger report, or arms were graded on different ranges."""
    _same_range(challenger)
    arms = {arm.name: arm for arm in challenger.arms}
    hashes = {
        "drift": digest(drift),
        "baseline": digest(baseline),
        "prompt_report": digest(prompt),
        "train": digest(train),
        "challenger": digest(challenger),
        "test": challenger.test_sha256,
        "gate": digest(gate),
    }
    settled = [_drift(gate, drift), _same_test(challenger)]
    if not settled[1].passed:
        return Decision(decision="reject", reason=_reason("reject", "none", settled), candidate="none", checks=settled, hashes=hashes)
    candidate, rung = _judged(gate, prompt, train, arms)
    if candidate == "none":
        reason = f"nothing new to judge, the champion stays: {train.reason}; {prompt.reason}"
        return Decision(decision="reject", reason=reason, candidate="none", checks=settled, hashes=hashes)
    arm = _arm(arms, candidate)
    checks = [*_checks(gate, challenger, arm, _arm(arms, "champion")), *settled, *rung]
    if gate.latency_decides:
        checks.append(latency(gate, timings, candidate))
    votes = [check.passed for check in checks if check.decides]
    decision = "reject" if False in votes else "promote" if all(votes) else "inconclusive"
    hashes |= {"prompt": arm.prompt_sha256, "weights": arm.weights_sha256}
    return Decision(decision=decision, reason=_reason(decision, candidate, checks), candidate=candidate, checks=checks, hashes=hashes)


def latency(gate: config.Gate, timings: Timings, candidate: str) -> Check:
    """P95 seconds a rollout. One number an arm, measured on a machine that had other things to do: no interval."""
    measured = timings.get("rollout_s", {})
    new, old = (measured.get(f"challenger/{arm}/sampled", {}).get("p95") for arm in (candidate, "champion"))
    known = bool(new is not None and old)
    value = new / old - 1 if known else None
    return Check(
        name="P95 latency",
        kind="non_inferiority",
        passed=value <= gate.max_latency_increase if value is not None else None,
        value=value,
        margin=gate.max_latency_increase,
        unit="relative",
        decides=gate.latency_decides,
        detail=f"{new:.2f} s a rollout, champion {old:.2f} s" if known else "no seconds are on record",
    )


def promotion_request(
    decision: Decision, prompt: reports.PromptReport, train: reports.TrainReport, challenger: reports.ChallengerReport
) -> reports.PromotionRequest | None:
    """None unless the decision is promote. For the prompt alone `weights` is none: the champion's own stay."""
    if decision.decision != "promote":
        return None
    trained = decision.candidate == "challenger"
    return reports.PromotionRequest(
        candidate=decision.candidate,
        prompt=prompt.winner,
        weights=train.weights if trained else "none",
        weights_path=train.path if trained else None,
        weights_sha256=train.sha256 if trained else None,
        decision_sha256=digest(decision),
        test_sha256=challenger.test_sha256,
    )


def digest(report: reports.Report | config.Section) -> str:
    """sha256 of its canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(report.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# -- which candidate -------------------------------------------------------------------------------------------------------
def _judged(
    gate: config.Gate, prompt: reports.PromptReport, train: reports.TrainReport, arms: dict[str, Arm]
) -> tuple[Literal["champion_new_prompt", "challenger", "none"], list[Check]]:
    """The dearest rung that earns its price, and the check that told."""
    if not train.trained:
        return ("champion_new_prompt" if prompt.found else "none"), []
    if not prompt.found:
        return "challenger", []
    trained, prompted = _arm(arms, "challenger"), _arm(arms, "champion_new_prompt")
    gain = _compare(_rewards(trained), _rewards(prompted), _paired(gate))
    check = _superior("training over the new prompt alone", gain, gate.prompt_only_margin, _unit("reward", trained), decides=False)
    return ("challenger" if check.passed else "champion_new_prompt"), [check]


def _arm(arms: dict[str, Arm], name: str) -> Arm:
    if name not in arms:
        what = f"data/challenger/report.json: has no arm '{name}', which the gate must judge"
        raise UserError(f"{what}. Run the stage again: {commands.stage('challenger')}")
    return arms[name]


# -- the checks ------------------------------------------------------------------------------------------------------------
def _checks(gate: config.Gate, challenger: reports.ChallengerReport, new: Arm, old: Arm) -> Iterator[Check]:
    paired = _paired(gate)
    yield _superior("mean reward", _compare(_rewards(new), _rewards(old), paired), gate.min_gain, _unit("reward", new), detail=_size(new))
    greedy = _compare(_scores(new), _scores(old), paired)
    yield _not_worse("greedy score", greedy, -gate.max_greedy_loss, _unit("score", new), higher_is_better=True)
    calls = _compare(_counts(new, "tool_calls"), _counts(old, "tool_calls"), _with(gate, stats.quantile_difference))
    yield _not_worse("P95 tool calls", calls, gate.max_calls_p95_increase, "calls")
    yield _tokens(gate, new, old)
    yield hack_rate(gate, challenger.hack_source, new)
    for name in sorted({row.slice for row in new.sampled.rows}):
        gain = _compare(_rewards(new, name), _rewards(old, name), paired)
        yield _not_worse(f"slice {name}", gain, -gate.max_slice_loss, _unit("reward", new), higher_is_better=True, detail=_size(new, name))
    yield _unscored(gate, new, old)


def _superior(name: str, gain: Metric | None, margin: float, unit: str, decides: bool = True, detail: str = "") -> Check:
    passed = None
    if gain is not None:
        low, high = _ends(gain)
        passed = True if low > margin else False if high < margin else None
    return _check(name, "superiority", passed, gain, margin, unit, decides, detail)


def _not_worse(name: str, change: Metric | None, margin: float, unit: str, higher_is_better: bool = False, detail: str = "") -> Check:
    """A change that ends exactly at the margin passes: no more calls than before is not worse."""
    passed = None
    if change is not None:
        low, high = _ends(change)
        good, bad = (low >= margin, high < margin) if higher_is_better else (high <= margin, low > margin)
        passed = True if good else False if bad else None
    return _check(name, "non_inferiority", passed, change, margin, unit, True, detail)


def _check(
    name: str,
    kind: Literal["superiority", "non_inferiority"],
    passed: bool | None,
    found: Metric | None,
    margin: float,
    unit: str,
    decides: bool,
    detail: str,
) -> Check:
    if found is None:
        detail = "no example has a score in both arms"
    return Check(
        name=name,
        kind=kind,
        passed=passed,
        value=found.value if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        margin=margin,
        detectable=_detectable(found),
        unit=unit,
        decides=decides,
        detail=detail,
        n=found.n if found else 0,
    )


def _detectable(found: Metric | None) -> float | None:
    """None also for an interval without width: that a count never moved does not mean that every effect would be seen."""
    error = stats.standard_error(found) if found else 0.0
    return stats.minimum_detectable(error) if error > 0 else None


def _tokens(gate: config.Gate, new: Arm, old: Arm) -> Check:
    before = _counts(old, "tokens")
    if not any(any(x or 0 for x in row) for row in before.values()):
        detail = "this policy reports no tokens"
        return Check(name="tokens", kind="non_inferiority", passed=None, value=None, margin=gate.max_tokens_increase, decides=False, detail=detail)
    change = _compare(_counts(new, "tokens"), before, _with(gate, stats.relative_difference))
    return _not_worse("tokens", change, gate.max_tokens_increase, "relative")


def hack_rate(gate: config.Gate, source: reports.HackSource, new: Arm) -> Check:
    """An example counts once, however many of its rollouts hacked: rollouts of one example tend to hack together."""
    rows = [*new.sampled.rows, *new.greedy.rows]
    scored = {row.example_id for row in rows if _any_score(row.rewards)}
    hacked = {row.example_id for row in rows if row.hacks}
    count, n = len(hacked), len(scored | hacked)
    if not source.is_measured:
        seen = f"; {count} examples were flagged all the same" if count else ""
        return Check(
            name=HACK_RATE,
            kind="non_inferiority",
            passed=False if gate.require_hack_source else None,
            value=None,
            margin=gate.max_hack_rate,
            unit="share",
            decides=gate.require_hack_source,
            detail=("not measured: " if gate.require_hack_source else "") + source.words + seen,
        )
    check = _not_worse(HACK_RATE, stats.exact_interval(count, n) if n else None, gate.max_hack_rate, "share")
    left_out = len({row.example_id for row in rows}) - n
    detail = f"{count} of {n} examples with a hacked rollout{f', {left_out} without a score left out' if left_out else ''}; {source.words}"
    return check.model_copy(update={"detectable": None, "detail": detail})


def _unscored(gate: config.Gate, new: Arm, old: Arm) -> Check:
    """Of the worse arm: a comparison is as blind as its blinder eye."""
    share, name = max((_unscored_share(arm), arm.name) for arm in (new, old))
    return Check(
        name="unscored share",
        kind="state",
        passed=share <= gate.max_unscored_share,
        value=share,
        margin=gate.max_unscored_share,
        unit="share",
        detail=f"worse arm: {name}",
    )


def _unscored_share(arm: Arm) -> float:
    rewards = [reward for row in (*arm.sampled.rows, *arm.greedy.rows) for reward in row.rewards]
    return sum(reward is None for reward in rewards) / len(rewards) if rewards else 1.0


def _drift(gate: config.Gate, drift: reports.DriftReport) -> Check:
    allowed = " or ".join(gate.require_drift) or "nothing"
    detail = f"verdict '{drift.verdict}', allowed: {allowed}"
    return Check(name="drift", kind="state", passed=drift.verdict in gate.require_drift, value=None, detail=detail)


def _same_test(challenger: reports.ChallengerReport) -> Check:
    evaluations = [evaluation for arm in challenger.arms for evaluation in (arm.sampled, arm.greedy)]
    hashes = {challenger.test_sha256, *(evaluation.examples_sha256 for evaluation in evaluations)}
    ids = {tuple(sorted(row.example_id for row in evaluation.rows)) for evaluation in evaluations}
    same = len(hashes) == 1 and len(ids) == 1
    detail = f"test {challenger.test_sha256[:12]} in every arm" if same else f"{len(hashes)} hashes, {len(ids)} sets of example ids"
    return Check(name="same frozen test", kind="state", passed=same, value=None, detail=detail)


def _same_range(challenger: reports.ChallengerReport) -> None:
    found = {evaluation.range: arm.name for arm in challenger.arms for evaluation in (arm.sampled, arm.greedy)}
    if len(found) > 1:
        ranges = ", ".join(f"{from_to(ends)} ({name})" for ends, name in found.items())
        raise UserError(
            f"data/challenger/report.json: the arms were graded on different ranges: {ranges}. Scores on two scales cannot be compared; "
            f"run the stage again: {commands.stage('challenger')}"
        )


# -- rows as the statistics want them --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Method:
    """A statistic with the gate's own seed and effort."""

    function: Callable[..., Metric]
    num: int
    seed: int

    def __call__(self, new: stats.ById, old: stats.ById) -> Metric:
        return self.function(new, old, num=self.num, seed=self.seed)


def _with(gate: config.Gate, function: Callable[..., Metric]) -> _Method:
    return _Method(function, gate.num_bootstrap, gate.seed)


def _paired(gate: config.Gate) -> _Method:
    return _with(gate, stats.paired_gain)


def _compare(new: stats.ById, old: stats.ById, method: _Method) -> Metric | None:
    """None when no example has a score in both arms: not a number, and not a pass."""
    both = any(_any_score(new[id]) and _any_score(old[id]) for id in new)
    return method(new, old) if both else None


def _any_score(row: stats.Scores) -> bool:
    return any(x is not None for x in row)


def _rewards(arm: Arm, slice: str | None = None) -> stats.ById:
    return {row.example_id: _shares(row.rewards, arm) for row in arm.sampled.rows if slice in (None, row.slice)}


def _scores(arm: Arm) -> stats.ById:
    return {row.example_id: _shares(row.scores, arm) for row in arm.greedy.rows}


def _shares(values: list[float | None], arm: Arm) -> list[float | None]:
    return [None if value is None else share(value, arm.sampled.range) for value in values]


def _unit(what: str, arm: Arm) -> str:
    return what + (_OF_RANGE if arm.sampled.range != UNIT.ends else "")


def _counts(arm: Arm, what: Literal["tool_calls", "tokens"]) -> stats.ById:
    return {row.example_id: row.counts(what) for row in arm.sampled.rows}


def _ends(metric: Metric) -> tuple[float, float]:
    assert metric.low is not None
    assert metric.high is not None
    return metric.low, metric.high


def _size(arm: Arm, slice: str | None = None) -> str:
    rows = [row for row in arm.sampled.rows if slice in (None, row.slice)]
    return f"{counted(len(rows), 'example')} x {counted(arm.sampled.k, 'rollout')} at temperature {arm.sampled.temperature:g}"


# -- in words --------------------------------------------------------------------------------------------------------------
def in_words(check: Check) -> str:
    """`mean reward: passed, +0.210 [+0.180, +0.240] against +0.050`."""
    numbered = f", {numbers(check)}" if check.value is not None else ""
    return f"{check.name}: {verdict(check)}{numbered}" + (f" ({check.detail})" if check.detail else "")


def verdict(check: Check) -> Literal["passed", "failed", "open", "not measured"]:
    """A guard that found no number to compare is not open, which more examples might settle, but not measured."""
    if check.passed is None:
        return "not measured" if check.value is None else "open"
    return "passed" if check.passed else "failed"


def numbers(check: Check) -> str:
    """Value, interval and margin, in the check's own unit."""
    return measured(check) + (f" against {quantity(check, check.margin)}" if check.margin is not None else "")


def measured(check: Check) -> str:
    """Value and interval; empty for a check on a state."""
    if check.value is None:
        return ""
    interval = check.low is not None and check.high is not None
    found = quantity(check, check.value) + (f" [{quantity(check, check.low)}, {quantity(check, check.high)}]" if interval else "")
    return found + (_OF_RANGE if check.unit.endswith(_OF_RANGE) else "")


def is_better_above(check: Check) -> bool:
    """Whether the side that passes lies above the margin."""
    return check.kind == "superiority" or check.unit.removesuffix(_OF_RANGE) in ("reward", "score")


def quantity(check: Check, x: float | None) -> str:
    if x is None:
        return "none"
    if check.unit == "share":
        return f"{100 * x:.2f} %"
    if check.unit == "relative":
        return f"{signed(100 * x, 1)} %"
    if check.unit == "calls":
        return signed(x, 0 if x == int(x) else 1)
    return signed(x)


def growth(check: Check) -> float | None:
    """How many times the examples would settle an open check at 80 % power, were the true value the observed one. None: no number.

    An interval narrows with the root of the number of examples; what must fit into the gap is its half on the margin's side. Not so where none
    of n hacked: that limit is exact, and falls with n itself.
    """
    if check.passed is not None or check.value is None or check.margin is None or check.low is None or check.high is None:
        return None
    if check.name == HACK_RATE and check.value == 0 and check.n:
        enough = stats.enough_to_rule_out(check.margin)
        return None if enough is None else enough / check.n
    gap = abs(check.value - check.margin)
    half = check.value - check.low if check.value > check.margin else check.high - check.value
    needed = half * stats.minimum_detectable(1.0) / stats.minimum_detectable(1.0, power=0.5)
    return (needed / gap) ** 2 if gap * math.sqrt(_NEVER) > needed else None


def _reason(decision: str, candidate: str, checks: list[Check]) -> str:
    deciding = [check for check in checks if check.decides]
    if decision == "promote":
        who = "the new prompt alone" if candidate == "champion_new_prompt" else "the challenger"
        blind = [check.name for check in checks if verdict(check) == "not measured"]
        unseen = f"; not measured: {', '.join(blind)}" if blind else ""
        return f"{who} is better: {_brief(deciding[0])}; the other {len(deciding) - 1} checks passed{unseen}"
    if decision == "reject":
        return "the champion stays, failed: " + "; ".join(_brief(check) for check in deciding if check.passed is False)
    return "not settled: " + "; ".join(_brief(check) for check in deciding if check.passed is None) + f". {advice(checks)}"


def advice(checks: list[Check]) -> str:
    """What to do about an inconclusive decision. The one place that says so: the reason, the terminal and the page show these words.

    More examples are asked for only when they settle every open check and somebody could have so many.
    """
    open_ = [check for check in checks if check.decides and check.passed is None]
    if blind := [check for check in open_ if check.low is None]:
        return f"First see why nothing was measured: {'; '.join(f'{check.name} ({check.detail})' for check in blind)}"
    there = checks[0].n
    factors = {check.name: growth(check) for check in open_}
    most = max(_WORTH_ASKING_FOR, 4 * there)
    if hopeless := [name for name, factor in factors.items() if factor is None or factor * there > most]:
        lie = "the value lies so near the margin" if len(hopeless) == 1 else "the values lie so near their margins"
        return (
            f"Of {', '.join(hopeless)} {lie} that more examples would hardly tell. What can settle it is a candidate that lies further from it, or a "
            f"margin that {counted(there, 'example')} can show, written down before the next run"
        )
    needed = rounded_up(max(factor for factor in factors.values() if factor is not None) * there)
    return f"About {counted(needed - there, 'more test example')} would settle it: raise examples.test from {there:,} to {needed:,}"


def _brief(check: Check) -> str:
    return f"{check.name} {numbers(check)}" if check.value is not None else f"{check.name} ({check.detail})"


def _timings(path: Path) -> Timings:
    try:
        timings: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing. Run the stage that writes it: {commands.stage('challenger')}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}: not JSON: {error.msg}. Run the stage again: {commands.stage('challenger')}") from None
    if not isinstance(timings, dict):
        raise UserError(f"{path}: holds {type(timings).__name__}, expected an object. Run the stage again: {commands.stage('challenger')}")
    return cast(Timings, timings)
