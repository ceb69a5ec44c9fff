"""Verdicts on whole windows of the tiny recipe, the rules behind them, and the simulated traffic of
recipe icd10."""

from __future__ import annotations

import datetime
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scripted_windows as windows
import tiny_recipe
from scipy.stats import binomtest

from rft import config, recipe, reports, stage_files
from rft.config import Drift
from rft.drift import comparison, profile
from rft.drift.features import plan_of, plan_of_inputs
from rft.errors import ConfigError, UserError
from rft.recipe import Recipe
from rft.reports import Contract, DriftReport, FeatureDrift, Profile
from rft.stages import drift, traffic
from rft.tools import signatures
from rft.traffic import columns, feedback, ingest, reading


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RFT_STATE", str(tmp_path / "state"))
    tiny_recipe.make(tmp_path)
    return tmp_path


def params(tools: dict[str, Any] | None = None, **settings: Any) -> config.Params:
    section, traffic = {"min_feedback": 20} | settings, {"file": "data/inbox/window.jsonl"}
    return tiny_recipe.params(Path("tiny"), traffic=traffic, examples={"train": 300}, drift=section, tools=tools or {})


def judged(rows: list[dict[str, Any]], **settings: Any) -> DriftReport:
    """Stages traffic and drift on a window."""
    kept(rows, **settings)
    drift.run(params(**settings))
    return reports.read(DriftReport, Path("data/drift/report.json"))


def kept(rows: list[dict[str, Any]], **settings: Any) -> None:
    """Stage traffic on a window."""
    windows.take_in(windows.write(Path("data/inbox/window.jsonl"), rows), params().traffic)
    traffic.run(params(**settings))


def row(report: DriftReport, feature: str, against: str = "train") -> FeatureDrift:
    return next(one for one in report.features if (one.feature, one.against) == (feature, against))


def profiled(rows: list[dict[str, Any]], source: str, loaded: Recipe | None = None) -> Profile:
    loaded = loaded or recipe.load(params().recipe)
    plan = plan_of(params(), loaded, signatures.schemas(loaded))
    return profile.of_table(columns.of_rows(rows), plan, source)


MOVED = "Please tell me at once what the value of {key} is, my friend"


# -- verdicts --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_window_like_the_reference_continues(clone: Path) -> None:
    report = judged(windows.rows(200))
    assert report.verdict == "continue"
    assert report.reason == "0 of 4 input features drifted, all 12 contracts hold."
    assert (report.num_reference, report.num_current) == (300, 200)
    assert (clone / "state" / report.data_docs).exists()


@pytest.mark.slow
def test_a_moved_window_that_is_graded_asks_for_a_refresh_and_again_with_equal_bytes(clone: Path) -> None:
    report = judged(windows.rows(200, note=MOVED))
    assert report.verdict == "refresh"
    assert report.num_usable_feedback == 200
    moved = {"input_words", "vocabulary", "phrasing", "manners"}
    assert {(one.feature, one.against) for one in report.features if one.drifted} == {
        (name, against) for name in moved for against in ("train", "validation", "test")
    }
    assert {carrier.feature for carrier in report.carriers} == moved - {"phrasing"}
    assert report.carriers[0].says.endswith(", my friend")
    assert report.advice == "Let the run go on: it learns from the 200 graded conversations of this window."
    assert "input_words: wasserstein_sd" in report.reason
    assert "200 graded conversations can become examples" in report.reason
    assert "plain 100.0% -> 0.0%" in row(report, "manners").detail
    first = Path("data/drift/report.json").read_bytes()
    drift.run(params())
    assert Path("data/drift/report.json").read_bytes() == first


@pytest.mark.slow
def test_a_moved_window_that_is_not_graded_stops(clone: Path) -> None:
    report = judged(windows.rows(200, note=MOVED, feedback=None))
    assert report.verdict == "stop"
    assert "only 0 graded conversations can become examples, drift.min_feedback = 20" in report.reason


@pytest.mark.slow
def test_a_recipe_that_cannot_use_feedback_stops_and_says_why(clone: Path) -> None:
    source = Path("tiny/examples.py")
    source.write_text(source.read_text().replace("def from_traffic", "def no_longer"))
    report = judged(windows.rows(200, note=MOVED))
    assert report.verdict == "stop"
    assert "has no from_traffic" in report.reason


@pytest.mark.slow
def test_failing_tools_stop_whatever_the_input(clone: Path) -> None:
    report = judged(windows.rows(200, calls=2, tool_errors=1))
    assert (report.verdict, report.tool_error_share) == ("stop", 0.5)
    assert (
        report.reason == "50.0% of the tool calls failed, more than drift.max_error_share = 20.0%. Fix the tools first."
    )


@pytest.mark.slow
def test_a_broken_contract_stops_before_anything_else(clone: Path) -> None:
    report = judged(windows.rows(200, note=MOVED, latency_s=None))
    assert report.verdict == "stop"
    assert "1 of 12 contracts broken (column_values_to_not_be_null of latency_s: 200 of 200 bad" in report.reason


WIKI = {"name": "wiki", "url": "http://127.0.0.1:9/mcp"}
ELSEWHERE: list[tuple[str, dict[str, Any], str]] = [
    (
        "find_item",
        {"endpoints": [{"name": "find_item", "server_url": "http://127.0.0.1:9/find"}]},
        "all 12 contracts hold.",
    ),
    ("wiki.search", {"mcp": [WIKI | {"prefix": "wiki."}]}, "all 12 contracts hold."),
    ("wiki.search", {"mcp": [WIKI | {"prefix": "wiki.", "tools": ["search"]}]}, "all 12 contracts hold."),
    (
        "search",
        {"mcp": [WIKI]},
        "all 11 contracts hold. Not checked: whether every tool that was called exists, because only tools.mcp "
        "'wiki' knows",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("called", "tools", "wanted"), ELSEWHERE)
def test_r4_a_tool_of_an_endpoint_or_an_mcp_server_breaks_no_contract(
    clone: Path, called: str, tools: dict[str, Any], wanted: str
) -> None:
    """No server is asked: nothing listens at these addresses."""
    report = judged(_calling(called), tools=tools)
    assert report.verdict == "continue", report.reason
    assert wanted in report.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("called", "tools"),
    [
        ("find_item", {}),
        ("find_items", {"endpoints": [{"name": "find_item", "server_url": "http://127.0.0.1:9/find"}]}),
        ("search", {"mcp": [WIKI | {"prefix": "wiki."}]}),
        ("wiki.delete", {"mcp": [WIKI | {"prefix": "wiki.", "tools": ["search"]}]}),
    ],
)
def test_r4_a_tool_that_nobody_has_breaks_its_contract(clone: Path, called: str, tools: dict[str, Any]) -> None:
    report = judged(_calling(called), tools=tools)
    assert report.verdict == "stop"
    assert f"column_values_to_be_in_set of tool: 200 of 400 bad, such as {called}" in report.reason


def _calling(tool: str) -> list[dict[str, Any]]:
    """A window in which each conversation calls it once, beside the recipe's own."""
    rows = windows.rows(200, calls=2)
    for row in rows:
        row["messages"][1] = windows.call(0, 7, tool)
    return rows


@pytest.mark.slow
def test_a_window_too_small_to_judge_continues_and_says_so(clone: Path) -> None:
    report = judged(windows.rows(60, note=MOVED))
    assert report.verdict == "continue"
    assert report.reason.startswith(
        "too few conversations to judge drift: 60 in the window, 300 in the reference, drift.min_conversations = 100"
    )
    assert all(one.q_value is None and not one.drifted for one in report.features)
    assert row(report, "input_words").detail == "too few to judge: 60, drift.min_conversations = 100"


@pytest.mark.slow
def test_many_conversations_of_one_user_are_too_few_units_and_the_report_says_so(clone: Path) -> None:
    log = windows.write(Path("data/inbox/window.jsonl"), [each | {"user": "u-1"} for each in windows.rows(200)])
    windows.take_in(log, params().traffic, unit="user")
    traffic.run(params())
    drift.run(params())
    report = reports.read(DriftReport, Path("data/drift/report.json"))
    assert report.verdict == "continue"
    assert report.reason.startswith("too few groups of units to judge drift: 1 in the window, ")
    assert "drift.min_units = 20, and traffic.unit says what a unit is" in report.reason
    assert report.advice.startswith("Take a window of more units")


def feature(name: str, group: Any, drifted: bool) -> FeatureDrift:
    return FeatureDrift(
        feature=name,
        group=group,
        statistic="psi",
        effect=1.0,
        threshold=0.2,
        p_value=0.001,
        q_value=0.002,
        n_reference=500,
        n_current=500,
        drifted=drifted,
    )


@pytest.mark.parametrize(
    ("num_drifted", "share", "num_usable", "verdict"),
    [
        (0, 0.1, 99, "continue"),
        (1, 0.1, 99, "refresh"),
        (1, 0.5, 99, "continue"),
        (3, 0.5, 99, "refresh"),
        (3, 0.5, 98, "stop"),
    ],
)
def test_the_share_of_drifted_inputs_decides(num_drifted: int, share: float, num_usable: int, verdict: str) -> None:
    statistics = [feature(f"f{n}", "input", n < num_drifted) for n in range(4)] + [feature("latency_s", "agent", True)]
    facts = drift.Facts(statistics, [Contract(name="n", column="c", success=True)], 500, 500, 0.0, num_usable)
    _, found, reason, _ = drift.decide(Drift(refresh_share=share, min_feedback=99), facts)
    assert found == verdict
    assert "Also moved, against the reference: latency_s." in reason


# -- statistics ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_what_the_agent_did_has_no_reference_before_the_first_champion(clone: Path) -> None:
    report = judged(windows.rows(200))
    shown = row(report, "tool_mix")
    assert (shown.effect, shown.p_value, shown.q_value, shown.drifted, shown.n_reference) == (
        None,
        None,
        None,
        False,
        0,
    )
    assert shown.detail == "no reference yet; now lookup 100%"
    assert row(report, "latency_s").detail.startswith("no reference yet; now mean 1.")


@pytest.mark.slow
def test_another_window_is_checked_without_touching_stage_files(clone: Path) -> None:
    judged(windows.rows(200))
    before = {path: path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}
    second = windows.snapshot(clone / "elsewhere", windows.rows(200, seed=1, calls=3, latency_s=9.0))
    report = drift.check(params(), second)
    assert {path: path.read_bytes() for path in Path("data").rglob("*") if path.is_file()} == before
    assert report.verdict == "continue"
    assert report.reason.endswith("Also moved, against the champion's traffic: num_tool_calls, num_turns, latency_s.")
    calls = row(report, "num_tool_calls", "window")
    assert (calls.drifted, calls.reference, calls.detail) == (
        True,
        "data/inbox/window.jsonl",
        "mean 1, P50 1, P95 1; now mean 3, P50 3, P95 3",
    )
    assert not row(report, "tool_mix", "window").drifted
    itself = drift.check(params(), stage_files.SNAPSHOT)
    assert row(itself, "tool_mix").detail.startswith("no reference yet")


@pytest.mark.slow
def test_two_windows_are_compared_alone(clone: Path) -> None:
    first = windows.snapshot(clone / "first", windows.rows(200))
    second = windows.snapshot(clone / "second", windows.rows(200, seed=1, note=MOVED, calls=3))
    report = drift.check(params(), second, first)
    assert {found.against for found in report.features} == {"window"}
    assert report.verdict == "refresh"
    assert row(report, "num_tool_calls", "window").drifted
    same = drift.check(params(), windows.snapshot(clone / "third", windows.rows(200, seed=2)), first)
    assert [found.feature for found in same.features if found.drifted] == []


@pytest.mark.slow
def test_a_window_can_be_checked_before_any_stage_ran(clone: Path) -> None:
    second = windows.snapshot(clone / "elsewhere", windows.rows(200, note=MOVED))
    assert drift.check(params(), second).verdict == "refresh"
    assert not Path("data").exists()


@pytest.mark.slow
def test_what_the_agent_did_is_compared_with_the_champions_traffic(clone: Path) -> None:
    kept(windows.rows(200, tool_errors=1, calls=6))
    reports.write(profiled(windows.rows(200, seed=5), "version 2"), stage_files.reference_file("window"))
    drift.run(params())
    errors = row(reports.read(DriftReport, Path("data/drift/report.json")), "tool_errors", "window")
    assert (errors.drifted, errors.effect, errors.reference) == (True, 1.0, "version 2")


@pytest.mark.slow
def test_another_window_is_compared_with_the_champion_not_with_what_the_last_run_was(clone: Path) -> None:
    """After a promotion, the last run's files still hold the reference of the champion before."""
    judged(windows.rows(200))
    reports.write(profiled(windows.rows(200, seed=5), "version 2"), Path("data/champion/profile.json"))
    reports.write(reports.Champion(version=2, profile_path="profile.json"), Path("data/champion/champion.json"))
    second = windows.snapshot(clone / "elsewhere", windows.rows(200, seed=1))
    assert row(drift.check(params(), second), "input_words").reference == "version 2"


def babble(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    notes = [" ".join(f"w{rng.choice('abcdefghijklmnopqrst')}" for _ in range(rng.randint(4, 9))) for _ in range(count)]
    return [windows.conversation(n, note=note) for n, note in enumerate(notes)]


def compared_by(settings: Drift, before: Profile, now: Profile) -> list[FeatureDrift]:
    return comparison.control(comparison.compare(before, now, settings), settings)


def test_a_threshold_never_lies_inside_the_noise(clone: Path) -> None:
    tiny = {"classifier_auc": 0.500001, "total_variation": 0.000001, "wasserstein_sd": 0.000001, "psi": 0.000001}
    settings = config.parse({"effects": tiny}, model=Drift)
    rows = compared_by(settings, profiled(babble(200, 0), "reference"), profiled(babble(120, 1), "window"))
    found = {one.feature: one for one in rows}
    assert 0.54 < found["phrasing"].threshold < 0.65
    assert 0.05 < found["vocabulary"].threshold < 0.2
    assert found["input_words"].threshold > 0.1
    assert not any(one.drifted for one in found.values())


def test_a_feature_that_the_recipe_dropped_is_named(clone: Path) -> None:
    known = profiled(windows.rows(200), "before")
    source = Path("tiny/examples.py")
    source.write_text(source.read_text().replace("def features", "def no_longer"))
    sys.modules.pop("recipe_tiny.examples", None)
    now = profiled(windows.rows(200), "now", recipe.load(params().recipe))
    found = {one.feature: one for one in compared_by(Drift(), known, now)}
    assert found["manners"].detail == "the recipe names it no longer"


def test_other_bins_are_refused(clone: Path) -> None:
    kept(windows.rows(200))
    path = stage_files.REFERENCE_PROFILE
    known = reports.read(Profile, path)
    other = known.features["input_words"].model_copy(update={"edges": [1.0, 2.0], "counts": [1, 2, 3], "cells": []})
    reports.write(known.model_copy(update={"features": known.features | {"input_words": other}}), path)
    with pytest.raises(UserError, match="has other bins for 'input_words'"):
        drift.run(params())


@pytest.mark.slow
def test_settings_that_could_never_call_drift_are_refused(clone: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"drift.num_resamples = 300 can show no drift: .* Take at least 1201 resamples"
    ):
        judged(windows.rows(200), num_resamples=300)


def test_a_threshold_for_an_unknown_feature_is_refused(clone: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"drift.thresholds names 'tool_eror', which is not a feature. Did you mean 'tool_errors'"
    ):
        judged(windows.rows(200), thresholds={"tool_eror": 0.1})


# -- drift.alpha -----------------------------------------------------------------------------------
NOTES = (
    "value of {key}",
    "please tell me the value of {key}",
    "{key}?",
    "I need what {key} holds, quickly and without fuss",
)
NUM_NULL = 40


def drawn(seed: int, size: int, shift: float = 0.0) -> list[dict[str, Any]]:
    """Of the same source each time, but for `shift`: how much more often the longest note is
    written."""
    rng = random.Random(seed)
    rows = []
    for n in range(size):
        note = rng.choices(NOTES, [1, 1, 1, 1 + shift])[0]
        row = windows.conversation(
            rng.randrange(9000), rng.choice([1, 1, 2, 3]), note, latency_s=rng.lognormvariate(0, 0.5)
        )
        rows.append(row | {"conversation_id": f"c-{n}"})
    return rows


def compared(alpha: float, before: int, now: int, size: int, shift: float = 0.0) -> list[FeatureDrift]:
    """The features that were tested. Any effect counts, so that alpha alone decides."""
    tiny = {"total_variation": 1e-9, "wasserstein_sd": 1e-9, "psi": 1e-9, "classifier_auc": 0.5001}
    section = Drift.model_validate(
        {"alpha": alpha, "min_conversations": 20, "num_resamples": 700, "effects": tiny, "thresholds": {}}
    )
    rows = compared_by(section, profiled(drawn(before, size), "before"), profiled(drawn(now, size, shift), "now"))
    return [row for row in rows if row.q_value is not None]


@pytest.mark.slow
def test_r20_where_nothing_changed_at_most_a_share_alpha_of_windows_names_a_feature(clone: Path) -> None:
    """The exact lower limit of the share does not lie above alpha, which is used."""
    alpha = 0.2
    false = sum(any(one.drifted for one in compared(alpha, 2 * n, 2 * n + 1, 60)) for n in range(NUM_NULL))
    assert binomtest(false, NUM_NULL, alpha, alternative="greater").pvalue > 0.05, f"{false} of {NUM_NULL}"
    assert false > 0


@pytest.mark.slow
def test_r20_a_larger_alpha_sees_more(clone: Path) -> None:
    """What q calls is held back by no second test: the noise that the threshold names lies below it
    at any alpha."""
    seen = {alpha: [one for n in range(8) for one in compared(alpha, n, 1000 + n, 120, 1.0)] for alpha in (0.03, 0.5)}
    called = {alpha: [one.drifted for one in rows] for alpha, rows in seen.items()}
    assert 0 < sum(called[0.03]) < sum(called[0.5])
    for alpha, rows in seen.items():
        by_q = [
            (one.q_value or 0) < alpha and (one.statistic != "classifier_auc" or (one.effect or 0) > 0.5001)
            for one in rows
        ]
        assert called[alpha] == by_q
    with pytest.raises(ValueError, match="alpha"):
        Drift(alpha=0.51)


# -- the recipe icd10 ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def icd10(repository: Path) -> tuple[Recipe, config.Params, Profile]:
    found = config.load(repository / "params.yaml")
    loaded = recipe.load(config.Recipe(path=str(repository / "recipes/icd10")))
    examples = loaded.examples("train", found.examples.train, found.examples.seed)
    plan = plan_of_inputs(found, loaded)
    return loaded, found, profile.of_examples(examples, plan, "icd10")


def simulate(loaded: Recipe, folder: Path, drifted: bool, seed: int) -> Path:
    """Return the snapshot of a simulated window."""
    log = folder / f"w-{seed}-{drifted}.jsonl"
    loaded.simulate(log, start=datetime.date(2026, 3, 2), days=7, conversations=400, drifted=drifted, seed=seed)
    return ingest.ingest(str(log), config.Traffic(), folder, folder / "snapshots")


def seen(icd10: Any, snapshot: Path) -> Profile:
    loaded, found, _ = icd10
    return profile.of_parts(reading.parts(snapshot), plan_of(found, loaded), "window")


@pytest.mark.slow
def test_simulated_windows_like_the_reference_raise_no_alarm(icd10: Any, tmp_path: Path) -> None:
    loaded, found, reference = icd10
    for seed in range(3):
        statistics = compared_by(found.drift, reference, seen(icd10, simulate(loaded, tmp_path, False, seed)))
        assert [row.feature for row in statistics if row.drifted] == []


@pytest.mark.slow
def test_the_simulated_drift_is_seen_feature_by_feature(icd10: Any, tmp_path: Path) -> None:
    loaded, found, reference = icd10
    before = seen(icd10, simulate(loaded, tmp_path, False, 1))
    snapshot = simulate(loaded, tmp_path, True, 2)
    rows = comparison.compare_all({"train": reference, "window": before}, seen(icd10, snapshot), found.drift)
    statistics = comparison.control(rows, found.drift)
    drifted = {row.feature for row in statistics if row.drifted}
    assert drifted >= {"input_words", "vocabulary", "phrasing", "chapter", "opening", "tool_errors", "latency_s"}
    num_usable = sum(1 for _ in feedback.usable(reading.conversations(snapshot), loaded))
    share = drift.tool_error_share(reading.parts(snapshot))
    assert drift.decide(found.drift, drift.Facts(statistics, [], 2000, 400, share, num_usable)).verdict == "refresh"


@pytest.mark.slow
def test_importing_drift_loads_neither_torch_nor_great_expectations(repository: Path) -> None:
    script = (
        "import rft.stages.drift, sys; print(sorted({'torch', 'great_expectations', 'pandas'} & sys.modules.keys()))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], cwd=repository, check=True, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )
