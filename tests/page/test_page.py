"""The page: whole for every way a run can end, one file without network, nothing of the data
becomes markup."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import page, reports, stage_files
from rft.errors import UserError
from rft.gate import decide, sample_size
from rft.page import charts
from rft.page.markup import Html, h
from rft.reports import plain, wording
from tests import sample_reports

RUN = {"run": "2026-04-06-brave-otter", "commit": "4f1c2ab93e", "dirty": "no"}
VOID = {"meta", "br", "hr"}


class Outline(HTMLParser):
    """What a browser would see: balanced tags, headings, text, everything that could load or
    run."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.texts: list[str] = []
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
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {
        scenario: page.render(sample_reports.stage_files(scenario), RUN)
        for scenario in get_args(sample_reports.Scenario)
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A promotion's files, to be changed."""
    shutil.copytree(sample_reports.stage_files("promote"), tmp_path, dirs_exist_ok=True)
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
        "Examples that got worse",
        "Reward while training",
        "Tool calls",
        "Best of k",
        "Drift: continue",
        "Prompt candidates",
        "Worst and best rollout, after RFT",
        "The same example, before and after",
        "Stop reasons",
        "What it cost",
    ]
    assert "rft approve 2026-04-06-brave-otter --reason TEXT" in outline.text
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


def test_a_clone_without_stage_files_has_a_page_too(tmp_path: Path) -> None:
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


def test_the_unscored_stand_apart_with_why_they_ended(root: Path) -> None:
    """R14: an outage is not a way in which the policy ended a rollout."""
    path = root / "data/challenger/report.json"
    report = json.loads(path.read_text())
    for arm in report["arms"]:
        arm["sampled"] |= {"unscored": 7, "unscored_stop_reasons": {"completed": 2, "tool_error": 5}}
    path.write_text(json.dumps(report))
    assert "7 completed 2, tool error 5" in " ".join(Outline(page.render(root, RUN)).text.split())


def test_a_dirty_run_says_what_its_approval_needs(root: Path) -> None:
    assert "--override-dirty" in page.render(root, {**RUN, "dirty": "yes: 2 uncommitted files"})


def test_a_damaged_report_is_an_error_and_not_a_gap(root: Path) -> None:
    (root / "data/drift/report.json").write_text('{"verdict": "stop"')
    with pytest.raises(UserError, match=r"drift/report\.json"):
        page.render(root, RUN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline/rollouts", "challenger/rollouts", "challenger/shown"])
@pytest.mark.parametrize("content", [b"{}\n", b"", None])
def test_a_damaged_log_is_an_error_with_its_name(root: Path, name: str, content: bytes | None) -> None:
    path = root / f"data/{name}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    again = "run" if name.startswith("challenger") else "stage run baseline"
    message = rf"data/{name}\.parquet: not a whole rollout log .* rft {again}"
    with pytest.raises(UserError, match=message):
        page.render(root, RUN)


# -- a scale of its own ----------------------------------------------------------------------------
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
    kinds = {
        "drift": reports.DriftReport,
        "baseline": reports.BaselineReport,
        "prompt": reports.PromptReport,
        "train": reports.TrainReport,
    }
    drift, baseline, prompt, train = (
        reports.read(kind, root / f"data/{stage}/report.json") for stage, kind in kinds.items()
    )
    challenger = reports.read(reports.ChallengerReport, path)
    found = decide.decide(sample_reports.GATE, drift, baseline, prompt, train, challenger, {})  # type: ignore[arg-type]
    reports.write(found, root / "data/gate/decision.json")


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (-2.0, 2.0)])
def test_scores_on_a_scale_of_their_own_are_shown_on_it(
    root: Path, pages: dict[str, str], low: float, high: float
) -> None:
    rescale(root, low, high)
    outline = Outline(page.render(root, RUN))
    phrase = f"; the grader scores from {low:g} to {high:g}"
    assert outline.text.count(phrase) == 2  # beside the arms, and the best of k
    assert phrase not in Outline(pages["promote"]).text
    assert " of the range" in outline.text
    assert " of the range" not in Outline(pages["promote"]).text
    challenger = reports.read(reports.ChallengerReport, root / "data/challenger/report.json")
    found = challenger.arms[-1].sampled.metrics["reward/mean"]
    assert f"{found.value:.3f}" in outline.text
    places = [
        float(number)
        for tag, name, number in outline.attributes
        if (tag, name) in (("circle", "cx"), ("text", "x"), ("rect", "x"))
    ]
    assert all(0 <= place <= charts.WIDTH for place in places)
    assert _good_sides(page.render(root, RUN)) == _good_sides(pages["promote"])


def _good_sides(text: str) -> Counter[str]:
    """Of each check's picture: does the side that passes begin at the margin, or at the left
    end?"""
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


# -- nothing of the data becomes markup ------------------------------------------------------------
EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>&amp;\'"'


def test_what_a_policy_or_a_tool_wrote_is_only_text(root: Path) -> None:
    path = root / "data/challenger/shown.parquet"
    rows = pq.read_table(path).to_pylist()
    messages: list[dict[str, Any]] = [
        {"role": EVIL, "content": EVIL},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": EVIL}],
            "tool_calls": [{"function": {"name": EVIL, "arguments": EVIL}}],
        },
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
    assert "more characters)" in outline.text


@settings(max_examples=40)
@given(st.text(), st.text())
def test_text_and_attributes_come_back_as_they_went_in(text: str, value: str) -> None:
    text, value = (one.replace("\r", "").replace("\0", "") for one in (text, value))
    outline = Outline(h("p", text, title=value))
    assert "".join(outline.texts) == text
    assert outline.attributes == [("p", "title", value)]


def test_markup_nests_and_leaves_out_what_is_none() -> None:
    assert h("p", None, ["a", h("b", 1.0), ("<",)], class_="x", id=None) == '<p class="x">a<b>1</b>&lt;</p>'
    assert isinstance(h("br"), Html)


# -- pictures of odd data --------------------------------------------------------------------------
@settings(max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=12))
def test_a_line_is_drawn_within_the_picture_whatever_the_values(values: list[float]) -> None:
    picture = Outline(charts.lines("t", "d", [charts.Series("a", "champion", list(enumerate(values)))], "x", "y"))
    path = [value for tag, name, value in picture.attributes if (tag, name) == ("path", "d")][-2]
    numbers = [
        float(number) for number in path.replace("M", " ").replace("L", " ").replace("H", " ").replace("V", " ").split()
    ]
    assert all(-1 <= number <= charts.WIDTH + 1 for number in numbers)


@settings(max_examples=40)
@given(st.floats(-10, 10), st.floats(0, 5), st.floats(-10, 10), st.booleans())
def test_an_interval_and_its_margin_are_both_in_sight(
    value: float, half: float, margin: float, good_above: bool
) -> None:
    picture = Outline(charts.interval("t", "d", value, value - half, value + half, margin, good_above, "good"))
    places = [
        float(number)
        for tag, name, number in picture.attributes
        if (tag, name) in (("circle", "cx"), ("rect", "width"), ("rect", "x"))
    ]
    assert all(-0.01 <= place <= 260.01 for place in places)


# -- what a newcomer missed (findings N7, N14, N15) ------------------------------------------------
def decide_again(root: Path, **thresholds: float) -> reports.Decision:
    """The decision on these files under other thresholds, put back among them."""
    kinds = {
        "drift": reports.DriftReport,
        "baseline": reports.BaselineReport,
        "prompt": reports.PromptReport,
        "train": reports.TrainReport,
    }
    drift, baseline, prompt, train = (
        reports.read(kind, root / f"data/{stage}/report.json") for stage, kind in kinds.items()
    )
    challenger = reports.read(reports.ChallengerReport, root / "data/challenger/report.json")
    section = sample_reports.GATE.model_copy(update=thresholds)
    found = decide.decide(section, drift, baseline, prompt, train, challenger, {})  # type: ignore[arg-type]
    reports.write(found, root / "data/gate/decision.json")
    return found


def _decision(root: Path) -> reports.Decision:
    return reports.read(reports.Decision, root / "data/gate/decision.json")


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    report = json.loads(path.read_text())
    edit(report)
    path.write_text(json.dumps(report))


@pytest.mark.slow
def test_n7_the_page_gives_one_piece_of_advice_and_not_its_opposite(root: Path) -> None:
    gain = decide_again(root).checks[0].value
    assert gain is not None
    found = decide_again(root, min_gain=gain)
    assert found.decision == "inconclusive"
    text = Outline(page.render(root, RUN)).text
    advice = sample_size.advice(found.checks)
    assert "more examples would hardly tell. What can settle it is a candidate" in advice
    assert text.count(advice) == 2  # in the verdict, and under `What now`
    assert "examples.test" not in text


def test_n7_examples_are_asked_for_by_number_where_they_settle_it(pages: dict[str, str]) -> None:
    text = Outline(pages["inconclusive"]).text
    assert text.count("About 226 more test examples would settle it: `rft runs extend RUN` adds blocks of them") == 2


def test_r23_an_open_slice_is_shown_as_blocking_nothing_and_too_small_to_be_protected(root: Path) -> None:
    def worse(report: Any) -> None:
        for row in report["arms"][2]["sampled"]["rows"]:
            if row["slice"] == "3":
                row["rewards"] = [reward - 0.5 for reward in row["rewards"]]

    change(root / "data/challenger/report.json", worse)
    change(root / "data/prompt/report.json", lambda report: report.update(found=False))
    found = decide_again(root, min_gain=0)
    third = next(check for check in found.checks if check.name == "slice 3")
    assert (found.decision, third.passed) == ("promote", None)
    text = Outline(page.render(root, RUN)).text
    assert "such a loss is not shown: it blocks nothing" in text
    assert "slice 3: 24 examples, too small to protect; a loss under 0." in text
    assert f"a loss of twice the limit takes {third.needed_for_veto:,} examples." in text
    assert "A slice has a veto" in text
    assert "lines their 99 % interval for the mean reward and 95 % intervals for the others" in text
    assert "no loss beyond the margin is shown in slice 3; too small to be protected: slice 3" in text


def test_n14_nothing_is_minus_nothing(root: Path) -> None:
    def nearly_zero(report: Any) -> None:
        for one in report["candidates"]:
            one["search"] |= {"value": -0.0001, "low": -0.0002, "high": -0.0}
            one["gain"] = one["gain"] and one["gain"] | {"value": -0.0001, "low": -0.0002, "high": -0.0}

    def arms(report: Any) -> None:
        for arm in report["arms"]:
            arm["sampled"]["metrics"]["reward/mean"] |= {"value": -0.0004, "low": -0.0004, "high": -0.0001}
            arm["sampled"]["max_at_k"] = [[1, -0.0001], [2, -0.0001]]

    change(root / "data/prompt/report.json", nearly_zero)
    change(root / "data/challenger/report.json", arms)
    change(root / "data/train/report.json", lambda report: report.update(curve=[[1, -0.0001], [2, -0.0002]]))
    assert re.findall(r"-0\.?0*(?![\d.]*[1-9])\b.{8}", Outline(page.render(root, RUN)).text) == []


def test_n14_one_rollout_is_no_rollouts_and_has_no_best(root: Path) -> None:
    def one_each(report: Any) -> None:
        for arm in report["arms"]:
            arm["sampled"] |= {"k": 1, "max_at_k": arm["sampled"]["max_at_k"][:1]}

    change(root / "data/challenger/report.json", one_each)
    found = decide_again(root)
    assert "72 examples x 1 rollout at temperature 1" in found.checks[0].detail
    text = Outline(page.render(root, RUN)).text
    assert "1 rollout each" in text
    assert not re.search(r"\b1 (rollouts|examples|steps|arms|calls)\b", text)
    assert "best of 8" in text  # the baseline's
    change(root / "data/baseline/report.json", lambda report: report["sampled"].update(max_at_k=[]))
    assert "Best of k" not in Outline(page.render(root, RUN)).headings


@pytest.mark.parametrize(("scenario", "state"), [("promote", "✓ winner"), ("reject", "✓ stays")])
def test_n14_the_prompt_that_goes_on_stands_first_and_the_page_says_why(
    pages: dict[str, str], scenario: str, state: str
) -> None:
    report = reports.read(reports.PromptReport, sample_reports.stage_files(scenario) / "data/prompt/report.json")  # type: ignore[arg-type]
    table = pages[scenario].split("<h2>Prompt candidates</h2>")[1].split("</table>")[0]
    rows = re.findall(r'<th scope="row">([^<]*)<', table)
    assert rows[0] == report.winner.name
    assert max(one.search.value for one in report.candidates) > next(
        one.search.value for one in report.candidates if one.parent is None
    )
    assert re.findall("✓ [a-z]+", table) == [state]
    assert "its gain must hold on examples that the search did not see" in pages[scenario]


def test_what_was_decided_by_other_thresholds_is_not_up_for_promotion(root: Path) -> None:
    other = reports.Registration(registered=True, entry=4, look=2, looks=5, by_policy=False)
    for made, phrase in (
        (other, "with other thresholds than the policy's"),
        (reports.Registration(), "not registered"),
    ):
        reports.write(made, root / stage_files.path(reports.Registration))
        text = Outline(page.render(root, RUN)).text
        assert "Not up for promotion: " in text
        assert phrase in text
        assert "rft ledger policy show" in text
        assert "rft approve" not in text


def test_n15_a_dirty_run_names_its_files_and_can_be_approved_by_pasting(root: Path) -> None:
    files = ", ".join(f"recipes/mine/part-{n}.py" for n in range(30))
    text = Outline(
        page.render(root, {**RUN, "recipe": "recipes/mine", "dirty": "yes: 30 uncommitted files", "uncommitted": files})
    ).text
    assert "recipes/mine" in text
    assert files in text
    assert "rft approve 2026-04-06-brave-otter --reason TEXT --override-dirty" in text


def test_n15_the_examples_that_got_worse_are_listed_worst_first_with_their_rollouts(pages: dict[str, str]) -> None:
    shown = reports.read(reports.Shown, sample_reports.stage_files("reject") / "data/challenger/shown.json")
    means = [{row.example_id: row.rewards[0] or 0 for row in shown.arms[arm]} for arm in ("champion", "challenger")]
    lost = sorted((round(means[1][id] - was, 9), id) for id, was in means[0].items() if means[1][id] < was - 1e-9)
    assert len(lost) > 2
    card = pages["reject"].split("<h2>Examples that got worse</h2>")[1].split("</section>")[0]
    entries = re.findall(r"<summary><b>([^<]*)</b>[^<]*, ([+-][\d.]+)</summary>", card)
    assert [id for id, _ in entries] == [id for _, id in lost[:10]]
    assert [by for _, by in entries] == [f"{by:+.3f}" for by, _ in lost[:10]]
    text = Outline(f"<div>{card}</div>").text
    assert f"{len(lost)} of 24 examples earn less" in text
    assert len(re.findall(r"rft rollouts group \S+ 2026-04-06-brave-otter --stage challenger", text)) == len(entries)
    assert card.count('class="talk"') >= 2 * len(entries)
    assert all(id in text for _, id in lost)  # those without a dialogue too
    assert "of 24 examples earn less" in Outline(pages["promote"]).text


@pytest.mark.parametrize("scenario", get_args(sample_reports.Scenario))
def test_the_page_shows_no_example_of_the_test_set(pages: dict[str, str], scenario: sample_reports.Scenario) -> None:
    root = sample_reports.stage_files(scenario)
    if not (root / "data/challenger").exists():
        return
    ids = {
        id
        for arm in reports.read(reports.ChallengerReport, root / "data/challenger/report.json").arms
        for id in (row.example_id for row in arm.sampled.rows)
    }
    assert not [id for id in ids if id in pages[scenario]]
    text = Outline(pages[scenario]).text
    assert "From 24 validation examples, played once by each arm; the test set stays closed." in text
    assert "example v-00" in text


def test_an_opened_test_set_is_shown_with_the_entry_that_opened_it(root: Path) -> None:
    text = Outline(page.render(root, RUN, opened=12)).text
    assert "From the test set, which is open by entry 12 of the ledger." in text
    assert "example n-00" in text
    assert "v-00" not in text


def test_a_run_without_shown_examples_says_why_there_is_no_dialogue(root: Path) -> None:
    for name in ("shown.json", "shown.parquet"):
        (root / "data/challenger" / name).unlink()
    outline = Outline(page.render(root, RUN))
    assert {"Worst and best rollout, after RFT", "Examples that got worse"}.isdisjoint(outline.headings)
    assert "There are none: the run was recorded before validation examples were played to be shown." in outline.text
    assert "rft runs report 2026-04-06-brave-otter --open-test --reason TEXT" in outline.text
    assert "n-00" not in outline.text
    reports.write(reports.Shown(examples=0, arms={}), root / "data/challenger/shown.json")
    assert "challenger.shown is 0" in Outline(page.render(root, RUN)).text


def test_n15_what_a_row_calls_itself_is_only_text(root: Path) -> None:
    def rename(report: Any) -> None:
        for rows in report["arms"].values():
            for row in rows:
                row |= {"example_id": EVIL + row["example_id"], "slice": EVIL}

    change(root / "data/challenger/shown.json", rename)
    outline = Outline(page.render(root, {**RUN, "uncommitted": EVIL * 9, "again": EVIL}))
    assert not {"script", "img"} & set(outline.tags)
    assert 'alert("x")' in outline.text


def test_n15_a_check_says_what_it_asks_and_what_a_rollout_costs(root: Path, pages: dict[str, str]) -> None:
    report = reports.read(reports.ChallengerReport, root / "data/challenger/report.json")
    ended = [
        arm.sampled.stop_reasons.get("parse_error", 0) / sum(arm.sampled.stop_reasons.values()) for arm in report.arms
    ]
    text = " ".join(Outline(pages["promote"]).text.split())
    check = next(check for check in _decision(root).checks if check.name == wording.UNREADABLE)
    assert f"passed unreadable calls {plain.sentence(check, 'challenger')} Asked {plain.protects(check)}." in text
    assert f"{100 * ended[-1]:.1f} % of the rollouts wrote one, champion {100 * ended[0]:.1f} %" in text
    metrics = report.arms[0].sampled.metrics
    read, cached = (metrics[f"{name}_tokens/mean"].value for name in ("context", "cached"))
    assert f"{read:,.0f} read, {cached:,.0f} of them cached" in text
    assert all(phrase in text for phrase in (plain.HOW_TO_READ, plain.HACK_RATE_MEANS, plain.VETO_MEANS))
    assert "unreadable calls" not in Outline(pages["skipped"]).text  # nothing was compared


def test_n15_the_page_says_what_the_run_cost(root: Path) -> None:
    spent = {
        "policy": page.Spent(4.0, "restored"),
        "train": page.Spent(3725.2, "ran"),
        "challenger": page.Spent(61.0, "ran"),
    }

    def tokens(name: str) -> list[int]:
        return pq.read_table(root / f"data/{name}.parquet", columns=["num_tokens"]).column(0).to_pylist()

    logs = {
        "baseline": tokens("baseline/rollouts"),
        "challenger": tokens("challenger/rollouts") + tokens("challenger/shown"),
    }
    card = page.render(root, RUN, spent).split("<h2>What it cost</h2>")[1].split("</section>")[0]
    rows = [Outline(f"<table>{row}</table>").texts for row in re.findall(r"<tr.*?</tr>", card)]
    lines = {row[0]: row[1:] for row in rows}
    assert lines["train"] == ["1 h 02 min", "80"]
    assert lines["policy"] == ["4.0 s", "reused", "1,500"]
    assert lines["challenger"][:3] == ["1 min 01 s", "1 min 01 s / 12.0 s / –", f"{len(logs['challenger']):,}"]
    total = sum(map(len, logs.values()))
    assert lines["this run"] == ["1 h 03 min", f"{total:,}", f"{sum(map(sum, logs.values())):,}", "80"]
    assert "not on record" in lines["baseline"]


def test_n15_the_record_of_a_run_gives_the_page_its_recipe_files_and_times(root: Path) -> None:
    from tasks import stage_runner
    from tasks.runs.clone import Clone
    from tasks.runs.records import RunRecord

    (root / "params.yaml").write_text("recipe: {path: recipes/mine}\n")
    record = RunRecord(
        name="r1",
        key="k",
        commit="4f1c2ab93e00",
        edits_sha256="ab",
        edited=["recipes/mine/tools.py"],
        champion_version=0,
        window="w.jsonl",
        inputs=[],
        started="2026-04-06T00:00:00Z",
        started_by="a",
        stages={"train": "ran"},
        seconds={"train": 200.0},
    )
    text = Outline(stage_runner.write_page(Clone(root), record, root).read_text()).text
    for word in ("recipes/mine", "yes: 1 uncommitted file", "recipes/mine/tools.py", "3 min 20 s", "--override-dirty"):
        assert word in text


# -- for the person who signs ----------------------------------------------------------------------
def gate_card(root: Path) -> str:
    text = " ".join(Outline(page.render(root, RUN)).text.split())
    return text[text.index("The gate's checks") : text.index("What now")]


def test_what_stood_in_the_way_comes_before_all_else(pages: dict[str, str]) -> None:
    def titles(scenario: str) -> list[str]:
        return re.findall(r"<h3[^>]*>([^<]*)</h3>", pages[scenario].split("The gate&#x27;s checks")[1])[:5]

    groups = ["The question", "The guards", "The slices", "The preconditions"]
    assert titles("promote")[:4] == groups
    assert titles("reject")[:4] == ["What stood in the way", *groups[1:]]
    assert titles("inconclusive") == ["What stood in the way", *groups]
    stopped = pages["reject"].split("What stood in the way")[1].split("<h3>")[0]
    assert re.findall(r"<b>([a-zA-Z0-9 ]+)</b>", stopped)[:5] == [
        "mean reward",
        "greedy score",
        "P95 tool calls",
        "token cost",
        "P95 turns",
    ]


def test_the_looks_that_are_left_are_told_and_a_run_by_hand_is_marked(root: Path) -> None:
    path = root / "data/registration/registration.json"
    assert "Look 2 of 5 at this test set; 3 left." in gate_card(root)
    reports.write(reports.Registration(), path)
    assert "! Not registered: this was decided by hand" in gate_card(root)
    path.unlink()
    assert "! How often anybody looked at this test set before is not on record." in gate_card(root)
    reports.write(reports.Registration(registered=True, entry=3, look=5, looks=5), path)
    card = gate_card(root)
    assert "none left: the next run needs fresh test examples" in card
    assert "Under other thresholds than the policy's: nobody is asked to promote it." in card


@pytest.mark.slow
def test_what_was_not_measured_stands_in_red_with_a_mark_before_what_was(root: Path) -> None:
    def blind(report: Any) -> None:
        report["hack_source"] = {"declared": False, "flagged": [], "tried": 0}
        for arm in report["arms"]:
            for row in arm["sampled"]["rows"]:
                row["context_tokens"] = [None] * len(row["context_tokens"])

    change(root / "data/challenger/report.json", blind)
    decide_again(root)
    change(
        root / "data/gate/timing.json",
        lambda timing: timing["latency"].update(value=None, passed=None, detail="no seconds"),
    )
    card = gate_card(root)
    listed = card[card.index("! Not measured, or too little to tell") : card.index("The question")]
    for name in ("hack rate", "token cost", "P95 latency"):
        assert f"{name}: " in listed
    assert "P95 latency: no seconds. It has no vote, so this blocks nothing." in listed
    assert card.count("! not measured") == 3
    html = page.render(root, RUN)
    assert '<div class="unseen"><b>! Not measured' in html
    assert "! Not measured" not in gate_card(sample_reports.stage_files("promote"))


def test_many_slices_are_folded_but_for_the_worst(root: Path) -> None:
    def split(report: Any) -> None:
        for arm in report["arms"]:
            for one in (arm["sampled"], arm["greedy"]):
                for number, row in enumerate(one["rows"]):
                    row["slice"] = f"s{number % 8}"
                    if arm["name"] == "challenger" and row["slice"] in ("s3", "s5"):
                        row["rewards"] = [0.0] * len(row["rewards"])

    change(root / "data/challenger/report.json", split)
    found = decide_again(root, min_slice=2)
    slices = [check for check in found.checks if check.kind == "veto"]
    assert len(slices) == 8
    shown = [check for check in slices if not check.passed]
    text = page.render(root, RUN)
    assert f"{8 - len(shown)} more slices: {8 - len(shown)} passed" in text or len(shown) > 5
    assert all(f"<b>{check.name}</b>" in text for check in slices)
