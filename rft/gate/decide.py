"""Judge one candidate against the champion: promote, reject or inconclusive.

Every threshold was written down before the run (params.yaml, section `gate`, no defaults). The gate
asks one question of superiority (is the mean reward on frozen test examples higher?) and several of
non-inferiority (is nothing else worse?). Each is a `Check` on an interval paired by example. It is
*passed* when the whole interval lies on the good side of its margin, and *failed* when it lies on
the bad side. It is *open* (None) when it spans the margin. Promote needs every deciding check
passed, and one failed check rejects. Otherwise the decision is inconclusive, and the reason says
what to do. Each slice of the test examples has a veto: it fails when a loss is shown, and an open
veto blocks nothing.

A guard without a number is *not measured*, and never passed. The hack rate has a number only where
the grader was seen to flag a hack (rft/stages/challenger.py). Elsewhere it does not decide, unless
`gate.require_hack_source` makes a missing source a failed check.

Which candidate is judged? New weights cost more than a new prompt. So a challenger that does not
beat the new prompt alone is set aside, and the new prompt is judged in its place. A look covers two
candidates, so each has half of the look's share of alpha (terms.py). Noise is promoted in at most
alpha of all histories (`make figure NAME=gate_null`, and `looks_history` for owners who change the
terms).

Thresholds on rewards and scores are shares of the grader's range, and so are the values compared
with them. For a range other than 0 to 1 the texts say so.

Equal inputs must give equal bytes, so the latency check is in `timing.json`, and in `decision.json`
only under `gate.latency_decides`. There is no clock, no torch, and no randomness but `gate.seed`.

checks.py has the table of checks, and sample_size.py computes how many more examples would settle
one. The stage in rft/stages/gate.py reads and writes the files. rft/reports/wording.py puts checks
and decisions into words.
"""

from __future__ import annotations

from typing import Literal

from rft import commands, config, files, reports, stage_files
from rft.errors import UserError
from rft.gate import checks, evidence, levels, sample_size
from rft.gate.checks import Case, Timings
from rft.reports import Arm, Check, Decision, wording
from rft.scale import from_to


def decide(
    gate: config.Gate,
    drift: reports.DriftReport,
    baseline: reports.BaselineReport,
    prompt: reports.PromptReport,
    train: reports.TrainReport,
    challenger: reports.ChallengerReport,
    timings: Timings,
    registered: float | None = None,
) -> Decision:
    """Judge one candidate against the champion. `registered`: the level of the look in the ledger.

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
    state = [_drift(gate, drift), *_of_before(drift), same_test]

    def rejected(reason: str) -> Decision:
        return Decision(decision="reject", reason=reason, candidate="none", checks=state, hashes=hashes)

    if not same_test.passed:
        return rejected(wording.reason("reject", "none", state))
    candidate, rung = _judged(gate, prompt, train, arms)
    if candidate == "none":
        return rejected(f"nothing new to judge, the champion stays: {train.reason}; {prompt.reason}")
    arm = _arm(arms, candidate)
    champion = _arm(arms, "champion")
    level = levels.question(gate, registered)
    judged = timings if gate.latency_decides else None
    case = Case(gate, arm, champion, level, challenger.hack_source, (*state, *rung), judged)
    found = [*checks.checks(case)]
    failed = any(check.decides and check.passed is False for check in found)
    unsettled = any(check.is_unsettled for check in found)
    decision = "reject" if failed else "inconclusive" if unsettled else "promote"
    hashes |= {"prompt": arm.prompt_sha256, "weights": arm.weights_sha256}
    if not arm.serve.is_single:
        hashes["serve"] = files.digest(arm.serve.model_dump(mode="json"))
    reason = wording.reason(decision, candidate, found)
    if decision != "inconclusive":
        return Decision(decision=decision, reason=reason, candidate=candidate, checks=found, hashes=hashes)
    return Decision(
        decision=decision,
        reason=f"{reason}. {sample_size.advice(found)}",
        candidate=candidate,
        checks=found,
        hashes=hashes,
        more_examples=sample_size.num_more(found),
    )


# -- which candidate -------------------------------------------------------------------------------
def _judged(
    gate: config.Gate, prompt: reports.PromptReport, train: reports.TrainReport, arms: dict[str, Arm]
) -> tuple[Literal["champion_new_prompt", "challenger", "none"], list[Check]]:
    """Pick the costliest candidate that beats the cheaper one, with the check that decided this."""
    if not train.trained:
        return ("champion_new_prompt" if prompt.found else "none"), []
    if not prompt.found:
        return "challenger", []
    trained, prompted = _arm(arms, "challenger"), _arm(arms, "champion_new_prompt")
    gain = evidence.compare(evidence.rewards(trained), evidence.rewards(prompted), evidence.paired(gate))
    unit = evidence.unit("reward", trained)
    check = checks.on_interval(
        "training over the new prompt alone", "superiority", gain, gate.prompt_only_margin, unit, decides=False
    )
    return ("challenger" if check.passed else "champion_new_prompt"), [check]


def _arm(arms: dict[str, Arm], name: str) -> Arm:
    if name not in arms:
        what = f"{stage_files.path(reports.ChallengerReport)}: has no arm '{name}', which the gate must judge"
        raise UserError(f"{what}. Run the stage again: {commands.stage('challenger')}")
    return arms[name]


# -- preconditions ---------------------------------------------------------------------------------
def _drift(gate: config.Gate, drift: reports.DriftReport) -> Check:
    allowed = " or ".join(gate.require_drift) or "nothing"
    detail = f"verdict '{drift.verdict}', allowed: {allowed}"
    return Check(name="drift", kind="state", passed=drift.verdict in gate.require_drift, value=None, detail=detail)


def _of_before(drift: reports.DriftReport) -> list[Check]:
    """Name the drift that made the run renew the examples, and that the test examples do not have.
    The challenger was trained on it, but nothing here measures whether it learned it. The check is
    only shown: the test examples are frozen, and a veto would stop every refresh. A difference from
    the test examples alone comes from how the recipe separates its splits."""
    if drift.verdict != "refresh":
        return []
    drifted = [feature for feature in drift.features if feature.drifted and feature.group == "input"]
    names = {feature.feature for feature in drifted if feature.against == "train"}
    if any(feature.against == "test" and feature.effect is not None for feature in drift.features):
        names &= {feature.feature for feature in drifted if feature.against == "test"}
    if not names:
        return []
    detail = (
        f"they lack what has drifted ({', '.join(sorted(names))}), so the gain is one on what production was before. "
        "Measure it on fresh ones: another examples.block where the recipe offers blocks, else new examples"
    )
    return [Check(name=wording.LIKE_PRODUCTION, kind="state", passed=False, value=None, decides=False, detail=detail)]


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
            f"{stage_files.path(reports.ChallengerReport)}: the arms were graded on different ranges: {ranges}. "
            f"Scores on two scales cannot be compared; run the stage again: {commands.stage('challenger')}"
        )


# -- what is asked for -----------------------------------------------------------------------------
def promotion_request(
    decision: Decision, prompt: reports.PromptReport, train: reports.TrainReport, challenger: reports.ChallengerReport
) -> reports.PromotionRequest | None:
    """Make the request; None unless the decision is promote. For the prompt alone `weights` is
    none: the champion's weights stay."""
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
        serve=next(arm.serve for arm in challenger.arms if arm.name == decision.candidate),
    )
