"""Whole, consistent files of all stages with synthetic numbers, as a run of the ICD-10 recipe would
leave them. No model is needed.

`write_stage_files(root, decision="promote")` simulates an agent that codes notes of 1 to 3
diagnoses: each diagnosis is found with a probability that depends on the example and on the arm,
and each arm has its own habit of searching again. Reports are aggregated from these rollouts and
the decision is the real gate's, so that every number on the page belongs to every other. Seeded.

The scenarios: promote; reject (more calls, no gain); inconclusive (few examples); prompt_only
(training adds nothing over the new prompt); skipped (the champion is too good to train); drift_stop
(the run ended after `drift`).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rft import config, reports
from rft.gate import checks, decide
from rft.reports import Arm, Candidate, Evaluation, Metric, PromptSettings
from rft.rollouts import evaluate
from rft.rollouts import log as rollout_log
from rft.rollouts.log import LogRow
from rft.types import Example

Scenario = Literal["promote", "reject", "inconclusive", "prompt_only", "skipped", "drift_stop"]

_FOLDER = tempfile.TemporaryDirectory(prefix="rft-stage-files-", ignore_cleanup_errors=True)

GATE = config.Gate(
    alpha=0.05,
    looks=5,
    min_gain=0.05,
    max_greedy_loss=0.02,
    max_calls_p95_increase=0,
    max_tokens_increase=0.25,
    max_turns_p95_increase=0,
    max_unreadable_increase=0.12,  # what 24 examples can show
    max_unscored_increase=0.01,
    max_hack_rate=0.06,  # 0 of 72 examples can show 5.0 %
    max_slice_loss=0.05,
    min_slice=20,
    max_unscored_share=0.02,
    max_latency_increase=0.25,
    latency_decides=False,
    require_drift=["continue", "refresh"],
    prompt_only_margin=0.0,
    num_bootstrap=1000,
    seed=0,
)

NUM_SHOWN = 24
HACK_SOURCE = reports.HackSource(declared=True, flagged=["every_code", "fake_tool_reply"], tried=29)

_CODES = {
    "I10": ("high blood pressure, essential", "Essential (primary) hypertension"),
    "E11.9": ("adult-onset sugar diabetes", "Type 2 diabetes mellitus without complications"),
    "J45.909": ("wheezing asthma, no flare", "Unspecified asthma, uncomplicated"),
    "M54.50": ("low back pain for weeks", "Low back pain, unspecified"),
    "I20.9": ("chest tightness on exertion, angina", "Angina pectoris, unspecified"),
    "N39.0": ("infected urinary tract", "Urinary tract infection, site not specified"),
    "G43.909": ("one-sided throbbing headache", "Migraine, unspecified, not intractable"),
    "K21.9": ("acid reflux without gullet inflammation", "Gastro-esophageal reflux disease without esophagitis"),
    "F32.A": ("low mood, depressed", "Depression, unspecified"),
    "L20.9": ("itchy atopic skin", "Atopic dermatitis, unspecified"),
}


@dataclass(frozen=True)
class Habit:
    """How one arm behaves: skill added to an example's own ease, share of repeated searches, and
    malformed answers."""

    skill: float
    repeat: float
    malformed: float = 0.01
    seconds: float = 0.4


_CHAMPION = Habit(0.0, 0.52, 0.05, 0.62)
_PROMPTED = Habit(0.05, 0.45, 0.04, 0.58)
_TRAINED = Habit(0.36, 0.06, 0.005, 0.31)


_WITHOUT_REFERENCE = reports.FeatureDrift(
    feature="corrected",
    group="performance",
    statistic="total_variation",
    effect=None,
    threshold=0.15,
    p_value=None,
    q_value=None,
    n_reference=0,
    n_current=1200,
    drifted=False,
    detail="no reference yet; now corrected 57%, as answered 43%",
)

_WRITTEN: dict[str, Path] = {}


def stage_files(scenario: Scenario) -> Path:
    """A folder with this scenario's files, written once a process. To be read only: copy it to
    change it."""
    if scenario not in _WRITTEN:
        _WRITTEN[scenario] = Path(_FOLDER.name) / scenario
        write_stage_files(_WRITTEN[scenario], scenario, num_test=72)
        look = reports.Registration(registered=True, entry=12, look=2, looks=5, by_policy=True)
        reports.write(look, _WRITTEN[scenario] / "data/registration/registration.json")
    return _WRITTEN[scenario]


def write_stage_files(root: Path, decision: Scenario = "promote", num_test: int = 96, seed: int = 0) -> None:
    """Fills root/data; stages that the scenario did not reach are left out."""
    data = root / "data"
    rng = np.random.default_rng(seed)
    _write_traffic(data, decision)
    if decision == "drift_stop":
        return
    num_test = 24 if decision == "inconclusive" else num_test
    champion, prompted, trained = _habits(decision)
    _write_examples(data, num_test)
    baseline = _write_baseline(data, champion, rng)
    prompt = _write_prompt(data, found=decision not in ("reject", "skipped"), rng=rng)
    train = _write_train(data, decision, baseline, rng)
    challenger = _write_challenger(
        data, {"champion": champion, "champion_new_prompt": prompted, "challenger": trained}, prompt, num_test, seed
    )
    drift = reports.read(reports.DriftReport, data / "drift/report.json")
    timings = json.loads((data / "challenger/timing.json").read_text())
    found = decide.decide(GATE, drift, baseline, prompt, train, challenger, timings)
    request = decide.promotion_request(found, prompt, train, challenger)
    reports.write(found, data / "gate/decision.json")
    reports.write(request, data / "gate/request.json")
    reports.write_json(
        {"latency": checks.latency(GATE, timings, found.candidate).model_dump(mode="json")}, data / "gate/timing.json"
    )


def _habits(decision: Scenario) -> tuple[Habit, Habit, Habit]:
    return {
        "promote": (_CHAMPION, _PROMPTED, _TRAINED),
        "reject": (_CHAMPION, _CHAMPION, replace(_CHAMPION, skill=-0.02, repeat=0.7)),
        "inconclusive": (
            _CHAMPION,
            replace(_PROMPTED, skill=0.12, repeat=0.3),
            replace(_PROMPTED, skill=0.2, repeat=0.2),
        ),
        "prompt_only": (
            _CHAMPION,
            replace(_CHAMPION, skill=0.28, repeat=0.15),
            replace(_CHAMPION, skill=0.28, repeat=0.15),
        ),
        "skipped": (replace(_TRAINED, skill=0.7), replace(_TRAINED, skill=0.7), replace(_TRAINED, skill=0.7)),
        "drift_stop": (_CHAMPION, _CHAMPION, _CHAMPION),
    }[decision]


# -- the files of each stage -----------------------------------------------------------------------
def _write_traffic(data: Path, decision: Scenario) -> None:
    drifted = decision == "drift_stop"
    report = reports.TrafficReport(
        source="data/inbox/2026-W14.jsonl",
        sha256=_hash("window"),
        first="2026-03-30T00:04:11Z",
        last="2026-04-05T23:51:40Z",
        num_rows=1212,
        num_conversations=1200,
        num_with_feedback=431,
        rejected={"no assistant message": 12},
    )
    reports.write(report, data / "traffic/report.json")
    features = [
        ("note_length", "input", "wasserstein_sd", 0.71 if drifted else 0.06, 0.3),
        ("vocabulary", "input", "classifier_auc", 0.83 if drifted else 0.52, 0.65),
        ("chapter_mix", "input", "psi", 0.46 if drifted else 0.04, 0.2),
        ("tool_mix", "agent", "total_variation", 0.19 if drifted else 0.03, 0.15),
        ("tool_errors", "agent", "total_variation", 0.23 if drifted else 0.01, 0.15),
        ("latency_s", "performance", "wasserstein_sd", 0.35 if drifted else 0.11, 0.3),
    ]
    drift = reports.DriftReport(
        verdict="stop" if drifted else "continue",
        reason="6 of 6 features drifted and 12 % of tool calls failed"
        if drifted
        else "0 of 6 features drifted; all contracts hold",
        features=[
            reports.FeatureDrift(
                feature=name,
                group=group,  # type: ignore[arg-type]
                statistic=statistic,  # type: ignore[arg-type]
                effect=effect,
                threshold=threshold,
                p_value=0.002 if effect > threshold else 0.4,
                q_value=0.002 if effect > threshold else 0.6,
                n_reference=2000,
                n_current=1200,
                drifted=effect > threshold,
            )
            for name, group, statistic, effect, threshold in features
        ]
        + [_WITHOUT_REFERENCE],
        contracts=[
            reports.Contract(
                name="expect_column_values_to_not_be_null", column="conversation_id", success=True, observed="0 nulls"
            ),
            reports.Contract(
                name="expect_column_values_to_be_between", column="latency_s", success=True, observed="0.11 to 9.2"
            ),
            reports.Contract(
                name="expect_column_mean_to_be_between",
                column="tool_errors",
                success=not drifted,
                observed="0.12" if drifted else "0.01",
            ),
        ],
        num_reference=2000,
        num_current=1200,
    )
    reports.write(drift, data / "drift/report.json")


def _write_examples(data: Path, num_test: int) -> None:
    counts = {"train": 2000, "validation": 192, "test": num_test}
    report = reports.ExamplesReport(
        source="recipe",
        counts=counts,
        sha256={split: _hash(split) for split in counts},
        leakage={"shared ids": 0, "shared codes": 0, "shared notes": 0},
        slices={split: {"1": n // 3, "2": n // 3, "3": n - 2 * (n // 3)} for split, n in counts.items()},
    )
    reports.write(report, data / "examples/report.json")
    losses = [(step, 3.2 * float(np.exp(-step / 300)) + 0.31) for step in range(0, 1501, 100)]
    policy = reports.PolicyReport(
        kind="embedded",
        model="data/policy/model",
        sha256=_hash("policy"),
        num_parameters=1_012_864,
        demonstrations=6000,
        steps=1500,
        final_loss=0.33,
        losses=losses,
    )
    reports.write(policy, data / "policy/report.json")


def _write_baseline(data: Path, habit: Habit, rng: np.random.Generator) -> reports.BaselineReport:
    sampled, rows = _evaluation("champion", habit, 48, 8, 1.0, rng, "baseline")
    greedy, _ = _evaluation("champion", habit, 48, 1, 0.0, rng, "baseline")
    mean, best = sampled.metrics["reward/mean"].value, sampled.max_at_k[-1][1]
    ready: Literal["not worth it", "ready"] = "not worth it" if mean > 0.8 else "ready"
    word = "above" if ready == "not worth it" else "below"
    reason = f"mean reward {mean:.2f} {word} the bar of training; best of 8 earns {best:.2f}"
    report = reports.BaselineReport(readiness=ready, reason=reason, sampled=sampled, greedy=greedy)
    reports.write(report, data / "baseline/report.json")
    rollout_log.write(rows, data / "baseline/rollouts.parquet")
    reports.write_json(
        {"rollout_s": {"baseline/champion/sampled": {"p50": 0.4, "p95": 0.9, "n": 384}}, "phases": {}},
        data / "baseline/timing.json",
    )
    return report


def _write_prompt(data: Path, found: bool, rng: np.random.Generator) -> reports.PromptReport:
    names = ["seed", "brief", "search-first", "k=5", "block repeats", "brief + k=5", "brief + block repeats", "turns=5"]
    candidates: list[Candidate] = []
    for i, name in enumerate(names):
        gain = 0.0 if i == 0 else float(rng.normal(0.05 if found and "block" in name else -0.01, 0.02))
        settings = PromptSettings(
            name=name,
            system="You code clinical notes. Search before you answer." + (" Be brief." if "brief" in name else ""),
            tool_defaults={"search": {"k": 5}} if "k=5" in name else {"search": {"k": 3}},
            block_repeated_calls="block" in name,
            max_turns=5 if "turns" in name else 8,
        )
        half = 0.05 / 2 ** (0 if i in (3, 5, 7) else 1)
        candidates.append(
            Candidate(
                settings=settings,
                parent=None if i == 0 else "seed" if i < 5 or i == 7 else "brief",
                search=Metric(value=0.31 + gain, low=0.31 + gain - half, high=0.31 + gain + half, n=64),
                gain=None if i == 0 else Metric(value=gain, low=gain - half, high=gain + half, n=64),
                round=0 if i in (3, 5, 7) else 2,
                eliminated=i in (1, 2, 3, 5, 7),
            )
        )
    winner = candidates[6 if found else 0].settings
    report = reports.PromptReport(
        winner=winner,
        found=found,
        reason=f"found '{winner.name}', confirmed on 96 held-back examples: gain +0.041 (+0.012 to +0.070)"
        if found
        else "no gain found: no candidate held on the confirmation part",
        candidates=candidates,
        confirmation=Metric(value=0.041, low=0.012, high=0.07, n=96)
        if found
        else Metric(value=0.004, low=-0.02, high=0.03, n=96),
        num_rollouts=1088,
    )
    reports.write(report, data / "prompt/report.json")
    reports.write(winner, data / "prompt/prompt.json")
    return report


def _write_train(
    data: Path, decision: Scenario, baseline: reports.BaselineReport, rng: np.random.Generator
) -> reports.TrainReport:
    if baseline.readiness != "ready":
        report = reports.TrainReport(
            trained=False, reason=f"skipped, readiness says {baseline.readiness}: {baseline.reason}", weights="none"
        )
        reports.write(report, data / "train/report.json")
        return report
    height = {"promote": 0.38, "prompt_only": 0.06, "reject": -0.01}.get(decision, 0.05)
    curve = [(step, float(0.31 + height * (1 - np.exp(-step / 25)) + rng.normal(0, 0.04))) for step in range(1, 81)]
    report = reports.TrainReport(
        trained=True,
        reason="80 steps",
        weights="lora",
        path="data/train/weights",
        sha256=_hash("adapter"),
        algorithm="dr_grpo",
        steps=80,
        rollouts=5120,
        left_out={"group without spread": 912, "unscored": 3},
        curve=curve,
        weight_change=3.42,
    )
    reports.write(report, data / "train/report.json")
    return report


def _write_challenger(
    data: Path, habits: dict[str, Habit], prompt: reports.PromptReport, num_test: int, seed: int
) -> reports.ChallengerReport:
    arms: list[Arm] = []
    rows: list[LogRow] = []
    shown: dict[str, list[reports.Row]] = {}
    seen: list[LogRow] = []
    trained = reports.read(reports.TrainReport, data / "train/report.json").trained
    for name, habit in habits.items():
        prompt_sha256 = _hash("seed" if name == "champion" else prompt.winner.name)
        weights = _hash("adapter" if name == "challenger" and trained else "policy")
        # equal arms roll out alike, as in the stage
        rng = np.random.default_rng([seed, int(prompt_sha256[:8], 16), int(weights[:8], 16)])
        sampled, some = _evaluation(name, habit, num_test, 4, 1.0, rng, "challenger")
        greedy, one = _evaluation(name, habit, num_test, 1, 0.0, rng, "challenger")
        rows += some + one
        read, more = _evaluation(name, habit, NUM_SHOWN, 1, 1.0, rng, "challenger", "validation")
        shown[name] = read.rows
        seen += more
        arms.append(Arm(name=name, prompt_sha256=prompt_sha256, weights_sha256=weights, sampled=sampled, greedy=greedy))  # type: ignore[arg-type]
    report = reports.ChallengerReport(test_sha256=arms[0].sampled.examples_sha256, arms=arms, hack_source=HACK_SOURCE)
    reports.write(report, data / "challenger/report.json")
    rollout_log.write(rows, data / "challenger/rollouts.parquet")
    reports.write(reports.Shown(examples=NUM_SHOWN, arms=shown), data / "challenger/shown.json")
    rollout_log.write(seen, data / "challenger/shown.parquet")
    seconds = {
        f"challenger/{name}/sampled": {"p50": habit.seconds, "p95": 2.4 * habit.seconds, "n": num_test * 4}
        for name, habit in habits.items()
    }
    reports.write_json(
        {"rollout_s": seconds, "phases": {"sampling": 61.0, "tools": 12.0}}, data / "challenger/timing.json"
    )
    return report


# -- rollouts --------------------------------------------------------------------------------------
def _evaluation(
    name: str,
    habit: Habit,
    num: int,
    k: int,
    temperature: float,
    rng: np.random.Generator,
    stage: str,
    split: str = "test",
) -> tuple[Evaluation, list[LogRow]]:
    notes = np.random.default_rng(7)  # the same notes and the same ease in every arm
    examples: list[Example] = []
    log: list[LogRow] = []
    for i in range(num):
        codes = [str(code) for code in notes.choice(list(_CODES), size=1 + i % 3, replace=False)]
        letter = "v" if (stage, split) == ("challenger", "validation") else "n"
        example = Example(f"{letter}-{i:05d}", tuple(_opening(codes)), codes, {"slice": str(len(codes))})
        ease = float(notes.beta(2, 3)) + (0.12 if temperature == 0 else 0.0)
        examples.append(example)
        log += [_rollout(habit, example, ease, sample, rng, stage, name) for sample in range(k)]
    if split != "test":
        log = [replace(row, split=split) for row in log]
    return evaluate.evaluation(name if temperature else f"{name} greedy", log, examples, temperature, k, seed=0), log


def _rollout(
    habit: Habit, example: Example, ease: float, sample: int, rng: np.random.Generator, stage: str, arm: str
) -> LogRow:
    codes = example.target
    chance = float(np.clip(ease + habit.skill, 0.02, 0.98))
    answered = [code if rng.random() < chance else str(rng.choice(list(_CODES))) for code in codes]
    answered = list(dict.fromkeys(answered))
    searches = [code for code in codes for _ in range(1 + min(6, int(rng.geometric(1 - habit.repeat)) - 1))][:20]
    malformed = bool(rng.random() < habit.malformed)
    right = len(set(answered) & set(codes))
    score = 0.0 if malformed else 2 * right / (len(answered) + len(codes))
    over = max(0, len(searches) - 4) / 4
    tokens = 14 * len(searches) + 10 + int(rng.integers(6))
    reads = [90 + 26 * turn for turn in range(len(searches) + 1)]  # the opening; a call and its result for each turn
    return LogRow(
        stage=stage,
        arm=arm,
        step=0,
        example_id=example.id,
        sample=sample,
        attempt=0,
        rollout_id=_hash(f"{stage}{arm}{example.id}{sample}")[:32],
        split="validation" if stage == "baseline" else "test",
        slice=example.slice,
        stop_reason="parse_error" if malformed else "max_tool_calls" if len(searches) == 20 else "completed",
        reward=score * (1 - 0.5 * min(1.0, over)),
        score=score,
        solved=score == 1.0,
        status="ok",
        num_turns=len(searches) + 1,
        num_tool_calls=len(searches),
        num_tool_errors=0,
        num_tokens=tokens,
        num_forks=0,
        components="{}",
        item=json.dumps(example.row()),
        explanation=f"{right} of {len(codes)} codes right" + (", not the answer form" if malformed else ""),
        messages=json.dumps(_opening(codes) + _dialogue(searches, answered, malformed)),
        ids=[1] * tokens,
        loss_mask=[True] * tokens,
        logprobs=[-0.5] * tokens,
        num_context_tokens=sum(reads),
        num_cached_tokens=sum(reads[1:]) - 12 * len(searches),
        num_unreadable_calls=int(malformed),
    )


def _opening(codes: list[str]) -> list[dict[str, Any]]:
    note = "Seen today for " + "; ".join(_CODES[code][0] for code in codes) + ". Plan as before."
    return [
        {"role": "system", "content": "You code clinical notes. Search before you answer."},
        {"role": "user", "content": note},
    ]


def _dialogue(searches: list[str], answered: list[str], malformed: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for i, code in enumerate(searches):
        function = {"name": "search", "arguments": json.dumps({"query": " " + _CODES[code][0].split(",")[0]})}
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"call_{i}_0", "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": f"call_{i}_0", "content": f" {_CODES[code][1][:44]} | {code}"})
    answer = json.dumps({"codes": answered})
    messages.append({"role": "assistant", "content": answer + (" I hope this helps" if malformed else "")})
    return messages


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
