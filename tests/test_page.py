"""The page: whole for every way a run can end, one file without network, nothing of the data becomes markup."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import gate, page, reports
from rft.errors import UserError
from rft.page import charts
from rft.page.markup import Html, h
from tests import sample_reports

RUN = {"run": "2026-04-06-brave-otter", "commit": "4f1c2ab93e", "dirty": "no"}
VOID = {"meta", "br", "hr"}


class Outline(HTMLParser):
    """What a browser would see: balanced tags, headings, text, everything that could load or run."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {scenario: page.render(sample_reports.shelves(scenario), RUN) for scenario in get_args(sample_reports.Scenario)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A promotion's shelves, to be changed."""
    shutil.copytree(sample_reports.shelves("promote"), tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("scenario", get_args(sample_reports.Scenario))
def test_every_page_is_whole_and_loads_nothing(pages: dict[str, str], scenario: str) -> None:
    outline = Outline(pages[scenario])
    assert not {"script", "link", "img", "iframe", "object"} & set(outline.tags)
    assert not [one for one in outline.attributes if one[1] in ("src", "href", "xlink:href") or one[1].startswith("on")]
    assert "url(" not in pages[scenario]
    assert "@import" not in pages[scenario]
    assert "default-src 'none'" in pages[scenario].replace("&#x27;", "'")
    assert "prefers-color-scheme: dark" in pages[scenario]


def test_the_page_of_a_promotion_has_every_part(pages: dict[str, str]) -> None:
    outline = Outline(pages["promote"])
    assert outline.headings == [
        "The ladder",
        "Before and after",
        "The gate's checks",
        "What now",
        "Reward while training",
        "Tool calls",
        "Best of k",
        "Drift: continue",
        "Prompt candidates",
        "Worst and best rollout, after RFT",
        "The same note, before and after",
        "Stop reasons",
    ]
    assert "rft approve 2026-04-06-brave-otter --by NAME --reason TEXT" in outline.text
    assert "--override-dirty" not in outline.text


def test_the_page_says_in_words_how_the_run_ended(pages: dict[str, str]) -> None:
    assert "Inconclusive" in pages["inconclusive"]
    assert "examples.test" in pages["inconclusive"]
    assert "rft approve" not in pages["reject"]
    assert "the champion goes on serving" in pages["reject"]
    assert "the new prompt alone" in pages["prompt_only"]
    assert "No weights were trained: skipped" in pages["skipped"]


def test_a_run_that_stopped_after_drift_has_a_short_page(pages: dict[str, str]) -> None:
    outline = Outline(pages["drift_stop"])
    assert outline.headings == ["The ladder", "What now", "Drift: stop"]
    assert outline.text.count("not reached") == 7


def test_a_feature_without_a_reference_shows_what_is_known_and_no_bar(pages: dict[str, str]) -> None:
    outline = Outline(pages["drift_stop"])
    assert "no reference yet; now corrected 57%" in outline.text
    assert outline.tags["desc"] == 6


def test_a_clone_without_shelves_has_a_page_too(tmp_path: Path) -> None:
    assert "Not finished" in Outline(page.render(tmp_path, RUN)).text


def test_pictures_have_a_title_and_a_description(pages: dict[str, str]) -> None:
    outline = Outline(pages["promote"])
    images = sum(one == ("svg", "role", "img") for one in outline.attributes)
    hidden = sum(one == ("svg", "aria-hidden", "true") for one in outline.attributes)
    assert images > 12
    assert images + hidden == outline.tags["svg"]
    assert outline.tags["desc"] == images
    assert all(value.strip(". ") for tag, name, value in outline.attributes if (tag, name) == ("svg", "aria-label"))


def test_no_check_is_told_by_colour_alone(pages: dict[str, str]) -> None:
    text = Outline(pages["reject"]).text
    for sign in ("✓ passed", "✗ failed", "? open"):
        assert sign in text


def test_the_numbers_are_the_reports_own(root: Path) -> None:
    text = Outline(page.render(root, RUN)).text
    challenger = reports.read(reports.ChallengerReport, root / "data/challenger/report.json")
    for arm in challenger.arms:
        found = arm.sampled.metrics["reward/mean"]
        assert f"{found.value:.3f}" in text
        assert f"[{found.low:.3f}, {found.high:.3f}]" in text


def test_a_dirty_run_says_what_its_approval_needs(root: Path) -> None:
    assert "--override-dirty" in page.render(root, {**RUN, "dirty": "yes: 2 uncommitted files"})


def test_a_damaged_report_is_an_error_and_not_a_gap(root: Path) -> None:
    (root / "data/drift/report.json").write_text('{"verdict": "stop"')
    with pytest.raises(UserError, match=r"drift/report\.json"):
        page.render(root, RUN)


# -- a scale of its own ----------------------------------------------------------------------------------------------------
def rescale(root: Path, low: float, high: float) -> None:
    """The challenger's report and the decision, as a grader on `low` to `high` would have them."""

    def scaled(value: float | None) -> float | None:
        return None if value is None else low + (high - low) * value

    path = root / "data/challenger/report.json"
    report = json.loads(path.read_text())
    for arm in report["arms"]:
        for one in (arm["sampled"], arm["greedy"]):
            one["range"] = [low, high]
            one["max_at_k"] = [[k, scaled(value)] for k, value in one["max_at_k"]]
            for name in ("reward/mean", "score/mean"):
                one["metrics"][name] |= {key: scaled(one["metrics"][name][key]) for key in ("value", "low", "high")}
            for row in one["rows"]:
                row |= {key: [scaled(value) for value in row[key]] for key in ("rewards", "scores")}
    path.write_text(json.dumps(report))
    kinds = {"drift": reports.DriftReport, "baseline": reports.BaselineReport, "prompt": reports.PromptReport, "train": reports.TrainReport}
    drift, baseline, prompt, train = (reports.read(kind, root / f"data/{stage}/report.json") for stage, kind in kinds.items())
    challenger = reports.read(reports.ChallengerReport, path)
    found = gate.decide(sample_reports.GATE, drift, baseline, prompt, train, challenger, {})  # type: ignore[arg-type]
    reports.write(found, root / "data/gate/decision.json")


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (-2.0, 2.0)])
def test_scores_on_a_scale_of_their_own_are_shown_on_it(root: Path, pages: dict[str, str], low: float, high: float) -> None:
    rescale(root, low, high)
    outline = Outline(page.render(root, RUN))
    words = f"; the grader scores from {low:g} to {high:g}"
    assert outline.text.count(words) == 2  # beside the arms, and the best of k
    assert words not in Outline(pages["promote"]).text
    assert " of the range" in outline.text
    assert " of the range" not in Outline(pages["promote"]).text
    challenger = reports.read(reports.ChallengerReport, root / "data/challenger/report.json")
    found = challenger.arms[-1].sampled.metrics["reward/mean"]
    assert f"{found.value:.3f}" in outline.text
    places = [float(number) for tag, name, number in outline.attributes if (tag, name) in (("circle", "cx"), ("text", "x"), ("rect", "x"))]
    assert all(0 <= place <= charts.WIDTH for place in places)
    assert _good_sides(page.render(root, RUN)) == _good_sides(pages["promote"])


def _good_sides(text: str) -> Counter[str]:
    """Of each check's picture: does the side that passes begin at the margin, or at the left end?"""
    found = ["below" if x == "0" else "above" for x in re.findall(r'<rect x="([^"]*)" y="3" [^>]*class="zone"', text)]
    assert {*found} == {"above", "below"}
    return Counter(found)


def test_an_interval_that_ends_at_0_is_drawn_to_0(root: Path) -> None:
    path = root / "data/challenger/report.json"
    report = json.loads(path.read_text())
    for arm in report["arms"]:
        arm["sampled"]["metrics"]["reward/mean"] |= {"value": -0.5, "low": -1.0, "high": 0.0}
    path.write_text(json.dumps(report))
    picture = page.render(root, RUN).split("Mean reward by arm")[-1].split("</svg>")[0]
    starts_and_ends = re.findall(r'd="M([0-9.]+) [0-9.]+ H([0-9.]+)"', picture)
    middles = re.findall(r'<circle cx="([0-9.]+)"', picture)
    assert starts_and_ends
    assert all(float(end) > float(middles[0]) + 10 for _, end in starts_and_ends)


# -- nothing of the data becomes markup ------------------------------------------------------------------------------------
EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>&amp;\'"'


def test_what_a_policy_or_a_tool_wrote_is_only_text(root: Path) -> None:
    path = root / "data/challenger/rollouts.parquet"
    rows = pq.read_table(path).to_pylist()
    messages: list[dict[str, Any]] = [
        {"role": EVIL, "content": EVIL},
        {"role": "assistant", "content": [{"type": "text", "text": EVIL}], "tool_calls": [{"function": {"name": EVIL, "arguments": EVIL}}]},
        {"role": "tool", "content": EVIL * 200},
    ]
    table = pq.read_table(path)
    for name, value in (("messages", json.dumps(messages)), ("explanation", EVIL), ("stop_reason", EVIL)):
        table = table.set_column(table.column_names.index(name), name, [[value] * len(rows)])
    pq.write_table(table, path)
    drift = reports.read(reports.DriftReport, root / "data/drift/report.json")
    feature = drift.features[0].model_copy(update={"feature": EVIL})
    reports.write(drift.model_copy(update={"features": [feature], "reason": EVIL}), root / "data/drift/report.json")
    text = page.render(root, {"run": EVIL, "commit": EVIL, EVIL: EVIL})
    outline = Outline(text)
    assert not {"script", "img"} & set(outline.tags)
    assert not [one for one in outline.attributes if one[1].startswith("on")]
    assert 'alert("x")' in outline.text
    assert "characters more" in outline.text


@settings(max_examples=40)
@given(st.text(), st.text())
def test_text_and_attributes_come_back_as_they_went_in(text: str, value: str) -> None:
    text, value = (one.replace("\r", "").replace("\0", "") for one in (text, value))
    outline = Outline(h("p", text, title=value))
    assert "".join(outline.words) == text
    assert outline.attributes == [("p", "title", value)]


def test_markup_nests_and_leaves_out_what_is_none() -> None:
    assert h("p", None, ["a", h("b", 1.0), ("<",)], class_="x", id=None) == '<p class="x">a<b>1</b>&lt;</p>'
    assert isinstance(h("br"), Html)


# -- pictures of odd data --------------------------------------------------------------------------------------------------
@settings(max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=12))
def test_a_line_is_drawn_within_the_picture_whatever_the_values(values: list[float]) -> None:
    picture = Outline(charts.lines("t", "d", [charts.Series("a", "champion", list(enumerate(values)))], "x", "y"))
    path = [value for tag, name, value in picture.attributes if (tag, name) == ("path", "d")][-2]
    numbers = [float(number) for number in path.replace("M", " ").replace("L", " ").replace("H", " ").replace("V", " ").split()]
    assert all(-1 <= number <= charts.WIDTH + 1 for number in numbers)


@settings(max_examples=40)
@given(st.floats(-10, 10), st.floats(0, 5), st.floats(-10, 10), st.booleans())
def test_an_interval_and_its_margin_are_both_in_sight(value: float, half: float, margin: float, good_above: bool) -> None:
    picture = Outline(charts.interval("t", "d", value, value - half, value + half, margin, good_above, "good"))
    places = [float(number) for tag, name, number in picture.attributes if (tag, name) in (("circle", "cx"), ("rect", "width"), ("rect", "x"))]
    assert all(-0.01 <= place <= 260.01 for place in places)
