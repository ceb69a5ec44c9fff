"""Drift as people see it on a page: what drifted first and open, in words and pictures that are the
report's own numbers; a course over the runs; and nothing of the data becomes markup."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import page, reports
from rft.page import drift, drift_pictures
from rft.page.drift_comparisons import DriftComparison
from rft.page.drift_pictures import Dot
from rft.reports import Bar, Carrier, DriftReport, drift_wording
from tests import sample_reports
from tests.page import sample_drift
from tests.page.test_audit_page import Element, Page
from tests.page.test_page import EVIL, Outline

FACTS = {"window": "data/inbox/2026-W14.jsonl"}


def rendered(report: DriftReport) -> str:
    return drift.render([DriftComparison("2026-W14.jsonl", "data/inbox/2026-W14.jsonl", report)], FACTS)


@pytest.fixture(scope="module")
def full() -> str:
    return rendered(sample_drift.full())


@pytest.fixture(scope="module")
def tree(full: str) -> Page:
    return Page(full)


def features(within: Element) -> list[Element]:
    return within.all("details", "feature")


def named(feature: Element) -> str:
    return feature.all("summary")[0].all("code")[0].text


# -- whole and safe --------------------------------------------------------------------------------
PAGES: dict[str, Callable[[], str]] = {
    "one window": lambda: rendered(sample_drift.full()),
    "nothing drifted": lambda: rendered(sample_drift.quiet()),
    "several windows": lambda: drift.render(sample_drift.comparisons(3), FACTS),
    "history": lambda: drift.render(sample_drift.comparisons(12), {}, "Drift of icd10", with_features=False),
    "no run yet": lambda: drift.render([], {}, "Drift of icd10", with_features=False),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_whole_loads_nothing_and_is_the_same_again(name: str) -> None:
    text = PAGES[name]()
    outline = Outline(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(outline.tags)
    assert not [one for one in outline.attributes if one[1] in ("src", "href") or one[1].startswith("on")]
    assert "url(" not in text
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert "prefers-color-scheme: dark" in text
    assert PAGES[name]() == text


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_is_told_in_words_or_stands_beside_them(name: str) -> None:
    outline = Outline(PAGES[name]())
    images = sum(one == ("svg", "role", "img") for one in outline.attributes)
    hidden = sum(one == ("svg", "aria-hidden", "true") for one in outline.attributes)
    assert images + hidden == outline.tags["svg"]
    assert outline.tags["desc"] == images
    assert all(value.strip(". ") for tag, key, value in outline.attributes if (tag, key) == ("svg", "aria-label"))


def test_what_a_window_holds_is_only_text() -> None:
    report = sample_drift.full()
    first = report.features[1].model_copy(
        update={
            "feature": EVIL,
            "detail": EVIL,
            "reference": EVIL,
            "bars": [Bar(label=EVIL, reference=0.5, current=0.4)],
        }
    )
    carrier = Carrier(feature=EVIL, conversation_id=EVIL, says=EVIL)
    contract = reports.Contract(name=EVIL, column=EVIL, success=False, observed=EVIL)
    change = {"features": [first], "carriers": [carrier], "contracts": [contract], "advice": EVIL, "reason": EVIL}
    report = report.model_copy(update=change)
    comparisons = [
        DriftComparison(EVIL, EVIL, report, EVIL, alike=1),
        DriftComparison(EVIL, EVIL, None, missing=EVIL),
        DriftComparison("b", "b", report),
    ]
    for text in (drift.render(comparisons[:1], {EVIL: EVIL}), drift.render(comparisons, {EVIL: EVIL}, EVIL)):
        outline = Outline(text)
        assert not {"script", "img"} & set(outline.tags)
        assert not [one for one in outline.attributes if one[1].startswith("on")]
        assert 'alert("x")' in outline.text


# -- one window ------------------------------------------------------------------------------------
def test_the_page_begins_with_what_to_do(tree: Page) -> None:
    report = sample_drift.full()
    header = tree.root.all("header")[0]
    assert header.all("span", "badge")[0].text == "!Refresh"
    assert header.all("p", "reason")[0].text == report.advice
    assert report.reason in header.text
    facts = {one.all("dt")[0].text: one.all("dd")[0].text for one in header.all("dl")[0].all("div")}
    assert facts["compared"] == "1,200 conversations against 2,000"
    assert facts["false-discovery rate"] == "0.01"


def test_features_stand_by_group_and_reference_and_none_is_left_out(tree: Page) -> None:
    parts = tree.root.all("div", "drift-part")
    assert [part.all("h3")[0].text for part in parts if part.all("h3")] == ["Input", "Agent", "Performance"]
    assert [one.text for one in parts[0].all("h4")] == [
        "Against the training examples, recipe icd10 (2,000)",
        "Against the validation examples, recipe icd10 (192)",
        "Against the test examples, recipe icd10 (288)",
        "Against the earlier window, data/inbox/2026-W13.jsonl (1,180)",
    ]
    assert "outcome drift, apart from input drift" in parts[2].text
    assert len(features(tree.root)) == len(sample_drift.full().features)


def test_what_drifted_is_first_and_open_once_and_the_rest_is_folded(tree: Page) -> None:
    part = tree.root.all("div", "drift-part")[0]
    opened = [named(one) for one in features(part) if "open" in one.attributes]
    assert opened == ["vocabulary", "input_words", "chapter", "own_country"]
    rest = part.all("details", "rest")[0]
    assert rest.all("summary")[0].text == "2 as before: phrasing, meaning"
    assert {named(one) for one in features(rest)} == {"meaning", "phrasing"}
    assert [named(one) for one in features(part)][:4] == opened


def test_a_quiet_window_has_every_line_in_sight_and_nothing_open() -> None:
    found = Page(rendered(sample_drift.quiet()))
    assert not [one for one in features(found.root) if "open" in one.attributes]
    assert not found.root.all("details", "rest")
    assert found.root.all("header")[0].all("span", "badge")[0].text == "✓Continue"


def test_a_feature_says_what_moved_how_far_and_what_chance_does(tree: Page) -> None:
    row = next(one for one in features(tree.root) if named(one) == "vocabulary")
    text = " ".join(row.text.split())
    for phrase in (
        "Words that users write",
        "0.41 of 0.15",
        "'refund' 12.1% -> 31.4%",
        "41.0 % of one side would have to change to match the other.",
        "chance alone stays below 0.08",
        "q = 0.002",
        "n = 2,000 and 1,200",
        "groups of units: 256 and 241",
    ):
        assert phrase in text


def test_the_bars_are_the_reports_shares(tree: Page) -> None:
    report = sample_drift.full()
    feature = next(one for one in report.features if one.feature == "vocabulary")
    row = next(one for one in features(tree.root) if named(one) == "vocabulary")
    cells = [[cell.text for cell in line.all("td", "num")] for line in row.all("tbody")[0].all("tr")]
    assert cells == [[f"{100 * bar.reference:.1f} %", f"{100 * bar.current:.1f} %"] for bar in feature.bars]
    longest = max(max(bar.reference, bar.current) for bar in feature.bars)
    widths = [float(rect.attributes["width"]) for rect in row.all("tbody")[0].all("rect")]
    shares = [share for bar in feature.bars for share in (bar.reference, bar.current)]
    assert widths == pytest.approx([99 * share / longest for share in shares], abs=1e-3)


def test_the_threshold_is_in_the_middle_of_every_scale_and_an_auc_begins_at_a_half() -> None:
    report = sample_drift.quiet()
    found = Page(rendered(report))
    for feature in report.features:
        row = next(one for one in features(found.root) if named(one) == feature.feature)
        scale = row.all("summary")[0].all("svg")[0]
        assert scale.all("path", "threshold")[0].attributes["d"] == "M160.0 0 V20"
        start = 0.5 if feature.statistic == "classifier_auc" else 0.0
        assert feature.effect is not None
        assert feature.noise is not None
        width = 160 * (feature.effect - start) / (feature.threshold - start)
        assert float(scale.all("g")[0].all("rect")[0].attributes["width"]) == pytest.approx(width, abs=0.01)
        chance = 160 * (feature.noise - start) / (feature.threshold - start)
        assert float(scale.all("rect", "chance")[0].attributes["width"]) == pytest.approx(chance, abs=0.01)


def test_carriers_stand_with_their_feature_once_and_none_is_lost(tree: Page) -> None:
    report = sample_drift.full()
    assert [one.text for one in tree.root.all("ul", "carriers")[0].all("code")] == ["c-0412", "c-0977"]
    row = next(one for one in features(tree.root) if named(one) == "vocabulary")
    assert "I paid by [card]." in row.text
    assert tree.root.text.count("I paid by [card].") == 1
    other = Carrier(feature="meaning", conversation_id="c-7", says="user: Bonjour")
    text = rendered(report.model_copy(update={"carriers": [other]}))
    assert "Further conversations" in text
    assert "user: Bonjour" in text


def test_a_feature_without_a_reference_shows_what_is_known_and_no_scale(tree: Page) -> None:
    row = next(one for one in features(tree.root) if named(one) == "tool_schemas")
    assert not row.all("svg")
    assert "not compared" in row.text
    assert "no reference yet; now 3fa91c02be77 100%" in row.text


def test_a_broken_contract_is_named_and_those_that_hold_are_folded(tree: Page) -> None:
    card = tree.card("The log itself")
    assert card is not None
    assert "2 data contracts: 1 broken." in card.text
    assert card.all("li", "bad")[0].text == "latency_s: values to be between, observed 0.11 to 9,212"
    assert "✓ conversation_id: values to not be null, observed 0 nulls" in card.all("details")[0].text


def test_a_report_of_an_earlier_version_has_no_bars_no_noise_and_no_marks_for_them() -> None:
    root = sample_reports.stage_files("drift_stop")
    report = reports.read(DriftReport, root / "data/drift/report.json")
    found = Page(rendered(report))
    assert not found.root.all("table", "pairs")
    assert not found.root.all("rect", "chance")
    legend = found.root.all("p", "legend")[0].text
    assert "smallest that counts" in legend
    assert "chance" not in legend
    assert found.root.all("header")[0].all("p", "reason")[0].text.startswith("6 of 6 features drifted")


# -- over time -------------------------------------------------------------------------------------
def test_the_course_has_a_dot_per_comparison_and_a_cross_where_it_drifted() -> None:
    found = Page(PAGES["history"]())
    figure = next(one for one in found.root.all("figure") if "vocabulary" in one.text)
    reports_ = [comparison.report for comparison in sample_drift.comparisons(12) if comparison.report is not None]
    rows = [next(one for one in report.features if one.feature == "vocabulary") for report in reports_]
    crosses = sum(row.drifted for row in rows)
    assert 0 < crosses < len(rows) == 11
    assert len(figure.all("path", "cross")) == crosses
    assert len(figure.all("circle")) == len(rows) - crosses
    tips = [one.text for one in figure.all("g") if one.all("title")]
    assert tips[-1].startswith("2026-03-22 to 2026-03-28: 0.26 of 0.15, drifted, against the training examples")
    assert found.root.all("figcaption")[0].all("small")[0].text == "vocabulary"


def test_the_table_of_comparisons_is_the_latest_first_with_those_that_are_gone() -> None:
    found = Page(PAGES["history"]())
    rows = found.root.all("tbody")[0].all("tr")
    names = [row.all("th")[0].text for row in rows]
    assert [name[:6] for name in names] == [f"2026{week:02}" for week in reversed(range(12))]
    assert "its bytes are past their retention" in rows[-4].text
    assert "and 2 later runs with the same report" in names[-6]
    assert "vocabulary 1.73 (drifted)" in rows[0].text


def test_the_run_page_shows_the_last_runs_when_there_are_any(tmp_path: Path) -> None:
    shutil.copytree(sample_reports.stage_files("promote"), tmp_path, dirs_exist_ok=True)
    reports.write(sample_drift.full(), tmp_path / "data/drift/report.json")
    alone = Outline(page.render(tmp_path, {"run": "r-1"}))
    assert "Drift: refresh" in alone.headings
    assert "Drift over time" not in alone.headings
    beside = Outline(page.render(tmp_path, {"run": "r-1"}, comparisons=sample_drift.comparisons(4)))
    assert beside.headings.index("Drift over time") == beside.headings.index("Drift: refresh") + 1
    assert sample_drift.full().advice in beside.text


@settings(max_examples=60)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=14))
def test_a_course_stays_within_its_picture_whatever_the_effects(ratios: list[float | None]) -> None:
    dots = [Dot(str(n), ratio, drifted=bool(ratio and ratio > 1), description="") for n, ratio in enumerate(ratios)]
    picture = Outline(drift_pictures.course("t", dots, drift_pictures.height(dots)))
    paths = [value for tag, key, value in picture.attributes if (tag, key) == ("path", "d")]
    line = paths[2]
    assert line.count("M") + line.count("L") == sum(ratio is not None for ratio in ratios)
    places = [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", line)]
    assert all(0 <= x <= 260 and 0 <= y <= 90 for x, y in places)


@settings(max_examples=60)
@given(st.floats(0, 1e9), st.one_of(st.none(), st.floats(0, 10)))
def test_a_scale_is_cut_where_it_ends(effect: float, noise: float | None) -> None:
    picture = Outline(drift_pictures.scale("t", "d", effect, noise, "bad"))
    widths = [float(value) for tag, key, value in picture.attributes if (tag, key) == ("rect", "width")]
    assert all(0 < width <= 320 for width in widths)
    assert (("path", "class", "cut") in picture.attributes) == (effect > 2)


# -- the words -------------------------------------------------------------------------------------
def test_a_state_says_which_condition_is_not_met() -> None:
    row = sample_drift.quiet().features[0].model_copy(update={"threshold": 0.3, "noise": 0.2})
    found = {
        "drifted": {"effect": 0.4, "q_value": 0.001, "drifted": True},
        "could be chance": {"effect": 0.4, "q_value": 0.2, "drifted": False},
        "too small to count": {"effect": 0.25, "q_value": 0.001, "drifted": False},
        "as before": {"effect": 0.1, "q_value": 0.6, "drifted": False},
        "not compared": {"effect": None, "q_value": None, "drifted": False},
    }
    assert {state: drift_wording.state(row.model_copy(update=change)) for state, change in found.items()} == {
        state: state for state in found
    }


def test_a_threshold_of_no_effect_is_exceeded_by_any_effect() -> None:
    row = sample_drift.quiet().features[0].model_copy(update={"threshold": 0.0, "effect": 0.1})
    assert drift_wording.ratio(row) == 2.0
    assert drift_wording.ratio(row.model_copy(update={"effect": 0.0})) == 0.0
    assert drift_wording.ratio(row.model_copy(update={"effect": None})) == -1.0
