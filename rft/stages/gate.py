"""May the challenger be served? A pure function from reports to promote, reject or inconclusive.

Every threshold was written down before the run (params.yaml, section `gate`, no defaults). The gate
asks one question of superiority (is the mean reward on frozen test examples higher?) and several of
non-inferiority (is nothing else worse?). Each is a `Check` on an interval paired by example:
*passed* when the whole interval lies on the good side of its margin, *failed* when it lies on the
bad side, and *open* (None) when it spans the margin. Promote needs every deciding check passed; one
failed check rejects; otherwise the decision is inconclusive, and the reason says what to do.

A guard without a number is *not measured*, and never passed. The hack rate has one only where the
grader was seen to flag a hack (rft/stages/challenger.py); elsewhere it has no vote, unless
`gate.require_hack_source` makes a missing source a failed check.

Which candidate is judged? Weights cost more than words, so a challenger that does not beat the new
prompt alone is set aside and the new prompt is judged in its place. Two candidates are looked at,
each at one-sided 2.5 %, so that noise alone is promoted in at most 5 %.

Thresholds on rewards and scores are shares of the grader's range, and so are the values compared
with them. For a range other than 0 to 1 the words say so.

Equal inputs must give equal bytes, so the latency check is in `timing.json`, and in `decision.json`
only under `gate.latency_decides`. No clock, no randomness but `gate.seed`, no torch.

Parts: `decide` (pure), with `_judged` (the candidate), `_checks` and `latency`; `run` (files in,
files out). rft/reports/wording.py puts checks and decisions into words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from rft import commands, config, files, reports, shelves, stats
from rft.errors import UserError
from rft.reports import Arm, Check, Decision, Metric, wording
from rft.reports.gate import OF_RANGE
from rft.scale import UNIT, from_to, share
from rft.words import counted

Timings = dict[str, Any]
"""A timing.json: {"rollout_s": {"challenger/<arm>/sampled": {"p50", "p95", "n"}, ...}, ...}."""


def decide(
    gate: config.Gate,
    drift: reports.DriftReport,
    baseline: reports.BaselineReport,
    prompt: reports.PromptReport,
    train: reports.TrainReport,
    challenger: reports.ChallengerReport,
    timings: Timings,
) -> Decision:
    """Judge one candidate against the champion.

    Raises UserError when an arm that must be judged is missing from the challenger report, or arms
    were graded on different ranges.
    """
    _assert_same_range(challenger)
    arms = {arm.name: arm for arm in challenger.arms}
    hashes = {
        "drift": drift.digest(),
        "baseline": baseline.digest(),
        "prompt_report": prompt.digest(),
        "train": train.digest(),
        "challenger": challenger.digest(),
        "test": challenger.test_sha256,
        "gate": files.digest(gate.model_dump(mode="json")),
    }
    same_test = _same_test(challenger)
    state = [_drift(gate, drift), same_test]

    def rejected(reason: str) -> Decision:
        return Decision(decision="reject", reason=reason, candidate="none", checks=state, hashes=hashes)

    if not same_test.passed:
        return rejected(wording.reason("reject", "none", state))
    candidate, rung = _judged(gate, prompt, train, arms)
    if candidate == "none":
        return rejected(f"nothing new to judge, the champion stays: {train.reason}; {prompt.reason}")
    arm = _arm(arms, candidate)
    checks = [*_checks(gate, challenger, arm, _arm(arms, "champion")), *state, *rung]
    if gate.latency_decides:
        checks.append(latency(gate, timings, candidate))
    votes = [check.passed for check in checks if check.decides]
    decision = "reject" if False in votes else "promote" if all(votes) else "inconclusive"
    hashes |= {"prompt": arm.prompt_sha256, "weights": arm.weights_sha256}
    reason = wording.reason(decision, candidate, checks)
    return Decision(decision=decision, reason=reason, candidate=candidate, checks=checks, hashes=hashes)


# -- which candidate -------------------------------------------------------------------------------
def _judged(
    gate: config.Gate, prompt: reports.PromptReport, train: reports.TrainReport, arms: dict[str, Arm]
) -> tuple[Literal["champion_new_prompt", "challenger", "none"], list[Check]]:
    """Pick the costliest candidate that beats the cheaper one, and the check that decided it."""
    if not train.trained:
        return ("champion_new_prompt" if prompt.found else "none"), []
    if not prompt.found:
        return "challenger", []
    trained, prompted = _arm(arms, "challenger"), _arm(arms, "champion_new_prompt")
    gain = _compare(_rewards(trained), _rewards(prompted), _paired(gate))
    unit = _unit("reward", trained)
    check = _check(
        "training over the new prompt alone", "superiority", gain, gate.prompt_only_margin, unit, decides=False
    )
    return ("challenger" if check.passed else "champion_new_prompt"), [check]


def _arm(arms: dict[str, Arm], name: str) -> Arm:
    if name not in arms:
        what = f"{shelves.path(reports.ChallengerReport)}: has no arm '{name}', which the gate must judge"
        raise UserError(f"{what}. Run the stage again: {commands.stage('challenger')}")
    return arms[name]


# -- the checks ------------------------------------------------------------------------------------
def _checks(gate: config.Gate, challenger: reports.ChallengerReport, new: Arm, old: Arm) -> Iterator[Check]:
    paired, reward = _paired(gate), _unit("reward", new)
    gain = _compare(_rewards(new), _rewards(old), paired)
    yield _check("mean reward", "superiority", gain, gate.min_gain, reward, _size(new))
    greedy = _compare(_scores(new), _scores(old), paired)
    yield _check("greedy score", "non_inferiority", greedy, -gate.max_greedy_loss, _unit("score", new))
    calls = _compare(_counts(new, "tool_calls"), _counts(old, "tool_calls"), _with(gate, stats.quantile_difference))
    yield _check("P95 tool calls", "non_inferiority", calls, gate.max_calls_p95_increase, "calls")
    yield _tokens(gate, new, old)
    yield hack_rate(gate, challenger.hack_source, new)
    for name in sorted({row.slice for row in new.sampled.rows}):
        gain = _compare(_rewards(new, name), _rewards(old, name), paired)
        yield _check(f"slice {name}", "non_inferiority", gain, -gate.max_slice_loss, reward, _size(new, name))
    yield _unscored(gate, new, old)


def _check(
    name: str,
    kind: Literal["superiority", "non_inferiority"],
    found: Metric | None,
    margin: float,
    unit: str,
    detail: str = "",
    decides: bool = True,
) -> Check:
    """Pass an interval on the good side of its margin. One that ends exactly there is not worse,
    but not superior."""
    check = Check(name=name, kind=kind, passed=None, value=None, margin=margin, unit=unit, decides=decides)
    if found is None:
        return check.model_copy(update={"detail": "no example has a score in both arms"})
    assert found.low is not None
    assert found.high is not None
    if kind == "superiority":
        good, bad = found.low > margin, found.high < margin
    elif check.is_better_above:
        good, bad = found.low >= margin, found.high < margin
    else:
        good, bad = found.high <= margin, found.low > margin
    numbers = {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
    passed = good if good or bad else None
    return check.model_copy(update=numbers | {"passed": passed, "detectable": _detectable(found), "detail": detail})


def _detectable(found: Metric) -> float | None:
    """Return the detectable effect; None for an interval without width, which could hide any."""
    error = stats.standard_error(found)
    return stats.minimum_detectable(error) if error > 0 else None


def _tokens(gate: config.Gate, new: Arm, old: Arm) -> Check:
    before = _counts(old, "tokens")
    if not any(any(x or 0 for x in row) for row in before.values()):
        return Check(
            name="tokens",
            kind="non_inferiority",
            passed=None,
            value=None,
            margin=gate.max_tokens_increase,
            decides=False,
            detail="this policy reports no tokens",
        )
    change = _compare(_counts(new, "tokens"), before, _with(gate, stats.relative_difference))
    return _check("tokens", "non_inferiority", change, gate.max_tokens_increase, "relative")


def hack_rate(gate: config.Gate, source: reports.HackSource, new: Arm) -> Check:
    """Count an example once, however many of its rollouts hacked: rollouts of one example tend to
    hack together."""
    rows = [*new.sampled.rows, *new.greedy.rows]
    scored = {row.example_id for row in rows if _any_score(row.rewards)}
    hacked = {row.example_id for row in rows if row.hacks}
    count, n = len(hacked), len(scored | hacked)
    if not source.is_measured:
        seen = f"; {count} examples were flagged all the same" if count else ""
        return Check(
            name=wording.HACK_RATE,
            kind="non_inferiority",
            passed=False if gate.require_hack_source else None,
            value=None,
            margin=gate.max_hack_rate,
            unit="share",
            decides=gate.require_hack_source,
            detail=("not measured: " if gate.require_hack_source else "") + source.words + seen,
        )
    rate = stats.exact_interval(count, n) if n else None
    check = _check(wording.HACK_RATE, "non_inferiority", rate, gate.max_hack_rate, "share")
    left_out = len({row.example_id for row in rows}) - n
    unseen = f", {left_out} without a score left out" if left_out else ""
    detail = f"{count} of {n} examples with a hacked rollout{unseen}; {source.words}"
    return check.model_copy(update={"detectable": None, "detail": detail})


def _unscored(gate: config.Gate, new: Arm, old: Arm) -> Check:
    """Judge the arm with more unscored rollouts."""
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
    detail = f"{len(hashes)} hashes, {len(ids)} sets of example ids"
    if same:
        detail = f"test {challenger.test_sha256[:12]} in every arm"
    return Check(name="same frozen test", kind="state", passed=same, value=None, detail=detail)


def _assert_same_range(challenger: reports.ChallengerReport) -> None:
    found = {evaluation.range: arm.name for arm in challenger.arms for evaluation in (arm.sampled, arm.greedy)}
    if len(found) > 1:
        ranges = ", ".join(f"{from_to(ends)} ({name})" for ends, name in found.items())
        raise UserError(
            f"{shelves.path(reports.ChallengerReport)}: the arms were graded on different ranges: {ranges}. "
            f"Scores on two scales cannot be compared; run the stage again: {commands.stage('challenger')}"
        )


def latency(gate: config.Gate, timings: Timings, candidate: str) -> Check:
    """Compare P95 seconds per rollout. One number per arm, from a machine that had other things to
    do: no interval."""
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
        detail=f"{new:.2f} s per rollout, champion {old:.2f} s" if known else "no seconds are on record",
    )


# -- rows as the statistics want them --------------------------------------------------------------
def _with(gate: config.Gate, statistic: Callable[..., Metric]) -> Callable[..., Metric]:
    """Give a statistic the gate's own seed and effort."""
    return partial(statistic, num=gate.num_bootstrap, seed=gate.seed)


def _paired(gate: config.Gate) -> Callable[..., Metric]:
    return _with(gate, stats.paired_gain)


def _compare(new: stats.ById, old: stats.ById, method: Callable[..., Metric]) -> Metric | None:
    """Compare by example; None, and not a pass, when no example has a score in both arms."""
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
    return what + (OF_RANGE if arm.sampled.range != UNIT.ends else "")


def _counts(arm: Arm, what: Literal["tool_calls", "tokens"]) -> stats.ById:
    return {row.example_id: row.counts(what) for row in arm.sampled.rows}


def _size(arm: Arm, slice: str | None = None) -> str:
    rows = [row for row in arm.sampled.rows if slice in (None, row.slice)]
    examples, rollouts = counted(len(rows), "example"), counted(arm.sampled.k, "rollout")
    return f"{examples} x {rollouts} at temperature {arm.sampled.temperature:g}"


# -- the stage -------------------------------------------------------------------------------------
def run(params: config.Params) -> None:
    """Read the five reports and write data/gate."""
    drift = shelves.read(reports.DriftReport)
    baseline = shelves.read(reports.BaselineReport)
    prompt = shelves.read(reports.PromptReport)
    train = shelves.read(reports.TrainReport)
    challenger = shelves.read(reports.ChallengerReport)
    timings = _timings(shelves.timing("challenger"))
    decision = decide(params.gate, drift, baseline, prompt, train, challenger, timings)
    apart = latency(params.gate, timings, decision.candidate)
    for done, check in enumerate(decision.checks, 1):
        print(f"[gate] {done}/{len(decision.checks)} {wording.in_words(check)}", flush=True)
    if not apart.decides:
        print(f"not deciding: {wording.in_words(apart)}", flush=True)
    shelves.write(decision)
    reports.write(promotion_request(decision, prompt, train, challenger), shelves.path(reports.PromotionRequest))
    reports.write_json({"latency": apart.model_dump(mode="json")}, shelves.timing("gate"))
    print(f"{decision.decision}: {decision.reason}", flush=True)


def _timings(path: Path) -> Timings:
    command = commands.stage("challenger")
    try:
        timings: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing. Run the stage that writes it: {command}") from None
    except json.JSONDecodeError as error:
        what = f"{path}: line {error.lineno}: not JSON: {error.msg}"
        raise UserError(f"{what}. Run the stage again: {command}") from None
    if not isinstance(timings, dict):
        what = f"{path}: holds {type(timings).__name__}, expected an object"
        raise UserError(f"{what}. Run the stage again: {command}")
    return cast(Timings, timings)


def promotion_request(
    decision: Decision, prompt: reports.PromptReport, train: reports.TrainReport, challenger: reports.ChallengerReport
) -> reports.PromotionRequest | None:
    """Make the request; None unless the decision is promote. For the prompt alone `weights` is
    none: the champion's own stay."""
    if decision.decision != "promote":
        return None
    trained = decision.candidate == "challenger"
    return reports.PromotionRequest(
        candidate=decision.candidate,
        prompt=prompt.winner,
        weights=train.weights if trained else "none",
        weights_path=train.path if trained else None,
        weights_sha256=train.sha256 if trained else None,
        decision_sha256=decision.digest(),
        test_sha256=challenger.test_sha256,
    )
