"""Profiles of snapshots: the same bytes whatever counts them and however the rows are split."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import snapshot_tables
import tiny_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, recipe
from rft.drift import counting, labels, profile
from rft.drift.engines import Engine
from rft.drift.features import SAMPLED, Plan, columns_of, plan_of
from rft.errors import UserError
from rft.reports import Feature, Profile
from rft.traffic.schema import DAYS, GROUPS, OWN
from rft.traffic.texts import input_messages, user_text, words

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string"}},
    "required": ["number"],
    "additionalProperties": False,
}
PLAN = Plan(
    own=tuple(sorted(snapshot_tables.OWN.items())),
    text_sample=30,
    tools=(("find_order", json.dumps(SCHEMA)), ("refund", json.dumps(SCHEMA))),
)
ROWS = snapshot_tables.table(300)
FEW = ROWS.slice(0, 90)


@pytest.fixture(scope="module")
def whole() -> Profile:
    return profile.of_table(ROWS, PLAN, "a window")


def shares(feature: Feature) -> dict[str, int]:
    return {value: count for value, count in zip(feature.values, feature.counts, strict=True) if count}


def profiled(**columns: Any) -> dict[str, Feature]:
    rows = snapshot_tables.table(len(next(iter(columns.values()))), **columns)
    return profile.of_table(rows, PLAN, "a window").features


# -- the same bytes --------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 90), max_size=4).map(sorted),
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_no_split_changes_a_byte(cuts: list[int], sizes: list[int], random: Any) -> None:
    expected = profile.of_table(FEW, PLAN, "a window")
    columns = FEW.select(columns_of(PLAN))
    pieces: list[counting.Partial] = []
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(FEW)], strict=True)):
        part = columns.slice(first, last - first)
        batches = part.to_batches(max_chunksize=sizes[number % len(sizes)])
        pieces.append(counting.partial(batches, PLAN, number))
    random.shuffle(pieces)
    total = counting.merged(pieces, PLAN)
    starts = [0, *cuts]
    rows = [starts[part] + row for part, row in zip(total.sample.part, total.sample.row, strict=True)]
    texts = profile.texts_of_table(FEW, rows)
    assert profile.finish(total, PLAN, "a window", texts).model_dump_json() == expected.model_dump_json()


@pytest.mark.parametrize("cuts", [[], [1], [0, 150, 150, 299]])
def test_parts_give_the_profile_of_the_table(tmp_path: Path, whole: Profile, cuts: list[int]) -> None:
    parts = snapshot_tables.parts(ROWS, tmp_path, cuts)
    assert profile.of_parts(parts, PLAN, "a window") == whole


@pytest.mark.slow
def test_processes_give_the_same_bytes(tmp_path: Path, whole: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_ROWS_PER_TASK", 1)
    parts = snapshot_tables.parts(ROWS, tmp_path, [100, 200])
    found = profile.of_parts(parts, PLAN, "a window", Engine(processes=2))
    assert found.model_dump_json() == whole.model_dump_json()


@pytest.mark.story
def test_spark_gives_the_same_bytes(tmp_path: Path, whole: Profile) -> None:
    pytest.importorskip("pyspark", reason="PySpark is an extra")
    parts = snapshot_tables.parts(ROWS, tmp_path / "parts", [100, 200])
    (tmp_path / "whole.json").write_text(whole.model_dump_json())
    (tmp_path / "plan.json").write_text(json.dumps([str(path) for path in parts]))
    program = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, 'tests/drift'); sys.path.insert(0, 'tests')\n"
        "from test_parts import PLAN; from rft.drift import profile; from rft.drift.engines import Engine\n"
        "folder = Path(sys.argv[1]); parts = [Path(name) for name in json.loads((folder / 'plan.json').read_text())]\n"
        "found = profile.of_parts(parts, PLAN, 'a window', Engine('spark', master='local[2]'))\n"
        "assert found.model_dump_json() == (folder / 'whole.json').read_text()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_without_spark_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    parts = snapshot_tables.parts(ROWS, tmp_path, [])
    with pytest.raises(UserError, match=r"PySpark is missing .*pip install 'agent-rft\[spark\]'"):
        profile.of_parts(parts, PLAN, "a window", Engine("spark"))


# -- what is counted -------------------------------------------------------------------------------
def test_counts_are_those_of_python(whole: Profile) -> None:
    rows = ROWS.to_pylist()
    expected = Counter(name for row in rows for name in row["tools"])
    assert shares(whole.features["tool_mix"]) == expected
    assert shares(whole.features["own_plan"]) == Counter(row["own_plan"] for row in rows)
    assert shares(whole.features["refused"]) == Counter("refused" if row["refused"] else "answered" for row in rows)
    graded = Counter(row["grade"] for row in rows)
    assert shares(whole.features["graded"]) == {"not graded": graded[None], "graded": 300 - graded[None]}
    del graded[None]
    assert shares(whole.features["corrected"]) == graded
    num_graded = sum(graded.values())
    assert (whole.features["corrected"].n, whole.features["corrected"].nulls) == (num_graded, 300 - num_graded)
    assert shares(whole.features["tool_errors"]) == Counter(
        ["0", "1", "2", "3 or more"][min(row["tool_errors"], 3)] for row in rows
    )
    ages = np.array([row["own_age"] for row in rows])
    assert whole.features["own_age"].mean == pytest.approx(ages.mean(), rel=1e-6)
    latencies = [row["latency_s"] for row in rows if row["latency_s"] is not None]
    edges = whole.features["latency_s"].edges
    assert whole.features["latency_s"].counts == np.bincount(np.searchsorted(edges, latencies), minlength=74).tolist()


def test_cells_are_counts_by_group_of_units(whole: Profile) -> None:
    for name, feature in whole.features.items():
        if feature.kind in ("text", "embedding"):
            continue
        assert len(feature.cells) == GROUPS
        summed = np.zeros(len(feature.counts), np.int64)
        for cell in feature.cells:
            np.add.at(summed, cell[::2], cell[1::2])
        assert summed.tolist() == feature.counts, name
    tools = whole.features["tool_mix"]
    rows = [row for row in ROWS.to_pylist() if row["tools"]]
    group = rows[0]["group"]
    expected = Counter(tools.values.index(name) for row in rows if row["group"] == group for name in row["tools"])
    cell = tools.cells[group]
    assert dict(zip(cell[::2], cell[1::2], strict=True)) == expected


def test_days_are_counts_by_day(whole: Profile) -> None:
    per_day = Counter(row["time"].toordinal() - date(1970, 1, 1).toordinal() for row in ROWS.to_pylist())
    assert len(per_day) > 1
    found = whole.features["num_turns"].days
    assert len(found) == DAYS
    for day, count in per_day.items():
        assert sum(found[day % DAYS][1::2]) == count
    for name, feature in whole.features.items():
        if name not in SAMPLED:
            assert sum(sum(cell[1::2]) for cell in feature.days) == sum(feature.counts), name
    assert not whole.features["vocabulary"].days


def test_every_group_has_its_features(whole: Profile) -> None:
    groups = {name: feature.group for name, feature in whole.features.items()}
    assert groups == {
        "input_words": "input", "vocabulary": "input", "phrasing": "input", "own_age": "input", "own_plan": "input",
        "tool_mix": "agent", "num_tool_calls": "agent", "num_turns": "agent", "tool_errors": "agent",
        "latency_s": "agent", "argument_shapes": "agent", "argument_errors": "agent", "reply_shapes": "agent",
        "system_prompt": "agent", "tool_schemas": "agent", "refused": "performance", "graded": "performance",
        "corrected": "performance",
    }  # fmt: skip
    assert list(profile.of_table(ROWS, PLAN.inputs_only(), "examples").features) == [
        "input_words",
        "vocabulary",
        "phrasing",
    ]


def test_arguments_that_fit_no_schema_are_counted() -> None:
    calls = [
        ['find_order{"number":"VARCHAR"}', 'find_order{"number":"UBIGINT"}'],
        ['find_order"JSON"', 'refund{"number":"VARCHAR","why":"VARCHAR"}'],
        ["find_order!not-json", 'delete{"number":"VARCHAR"}'],
        [],
        ['find_order{"number":... 0123456789ab'],
    ]
    found = profiled(calls=calls)["argument_errors"]
    assert found.n == 5
    assert shares(found) == dict.fromkeys(found.values, 1)
    assert "argument_errors" not in profile.of_table(ROWS, replace(PLAN, tools=()), "w").features


def test_a_number_that_is_none_is_null_and_in_no_bin() -> None:
    found = profiled(own_age=[1.0, float("nan"), float("inf"), -float("inf"), None, 2.0], latency_s=[float("nan")] * 6)
    assert (found["own_age"].n, found["own_age"].nulls, sum(found["own_age"].counts)) == (2, 4, 2)
    assert found["own_age"].mean == 1.5
    assert (found["latency_s"].n, found["latency_s"].nulls, sum(found["latency_s"].counts)) == (0, 6, 0)


def test_a_column_without_values_has_a_feature_with_none() -> None:
    found = profiled(own_age=[None] * 3, own_plan=[None] * 3, tools=[None, None, []], grade=[None] * 3)
    assert (found["own_age"].n, found["own_age"].counts, found["own_age"].edges) == (0, [0], [])
    assert (found["own_plan"].n, found["own_plan"].values) == (0, [labels.OTHER])
    assert (found["tool_mix"].n, found["tool_mix"].nulls) == (1, 2)
    assert (found["corrected"].n, found["graded"].n) == (0, 3)


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_window_and_one_conversation(tmp_path: Path, count: int) -> None:
    rows = snapshot_tables.table(count)
    found = profile.of_table(rows, PLAN, "a window")
    assert found.num_conversations == count
    assert found.features["phrasing"].n == len(found.features["phrasing"].sample) == count
    assert profile.of_parts(snapshot_tables.parts(rows, tmp_path, []), PLAN, "a window") == found
    assert profile.of_parts([], PLAN, "a window").num_conversations == 0
    assert Profile.model_validate_json(found.model_dump_json()) == found


# -- categories ------------------------------------------------------------------------------------
def test_rare_values_join_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_CELLS", 0)
    values = [f"v{number:03d}" for number in range(labels.MAX_VALUES + 20)]
    found = profiled(own_plan=values + values[:5])["own_plan"]
    rare = [place for place, value in enumerate(found.values) if labels.is_bucket(value)]
    assert rare == list(range(labels.MAX_VALUES, labels.MAX_VALUES + len(rare)))
    assert sum(found.counts[place] for place in rare) == 20
    assert (found.values[-1], found.counts[-1]) == (labels.OTHER, 0)
    assert {found.values[place] for place in rare} == {labels.bucket(value) for value in values[-20:]}
    assert set(values[:5]) < set(found.values)
    assert sum(found.counts) == labels.MAX_VALUES + 20 + 5


def test_a_value_called_other_joins_the_rest() -> None:
    assert shares(profiled(own_plan=["(other)", "free"])["own_plan"]) == {"(other)": 1, "free": 1}


def test_too_many_values_are_counted_by_hash_for_any_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_DISTINCT", 50)
    monkeypatch.setattr(labels, "NUM_BUCKETS", 8)
    rows = snapshot_tables.table(120, own_plan=[f"id {number % 60}" for number in range(120)])
    found = profile.of_table(rows, PLAN, "w").features["own_plan"]
    assert sum(found.counts) == 120
    assert all(value.startswith("(bucket ") for value in found.values[:-1])
    halves = [rows.slice(0, 100), rows.slice(100)]
    parts = [counting.partial(half.select(columns_of(PLAN)).to_batches(), PLAN, n) for n, half in enumerate(halves)]
    for order in (parts, parts[::-1]):
        assert counting.merged(order, PLAN).tallies["own_plan"].feature(_own_plan(), 120) == found
    assert shares(profiled(own_plan=[f"id {number}" for number in range(50)])["own_plan"])["id 7"] == 1


def _own_plan() -> Any:
    return next(spec for spec in counting.specs(PLAN) if spec.name == "own_plan")


def test_a_long_value_is_shortened_and_stays_itself() -> None:
    long = "x" * 5000
    found = shares(profiled(own_plan=[long + "a", long + "b", long + "a"])["own_plan"])
    assert sorted(found.values()) == [1, 2]
    assert all(len(value) <= labels.LONGEST for value in found)


# -- the sample ------------------------------------------------------------------------------------
def test_the_sample_is_one_conversation_of_a_unit() -> None:
    total = counting.partial(ROWS.select(columns_of(PLAN)).to_batches(max_chunksize=17), PLAN)
    chosen = [ROWS.slice(row, 1).to_pylist()[0] for row in total.sample.row.tolist()]
    units = {row["unit"]: row for row in ROWS.to_pylist()}
    nearest = sorted(units.values(), key=lambda row: row["draw"] >> 8)[:30]
    assert [row["unit"] for row in chosen] == [row["unit"] for row in nearest]
    for row in chosen:
        assert row["pick"] == min(other["pick"] for other in ROWS.to_pylist() if other["unit"] == row["unit"])


def test_words_are_those_of_the_sample(tmp_path: Path, whole: Profile) -> None:
    texts = profile.sampled_texts(snapshot_tables.parts(ROWS, tmp_path, [90]), PLAN)
    assert len(texts) == 30
    hashes = [[profile.word_hash(word) for word in profile.words(text)] for text in texts]
    assert whole.features["phrasing"].sample == [" ".join(map(str, row)) for row in hashes]
    expected = Counter(number % profile.BUCKETS for row in hashes for number in row)
    counts = whole.features["vocabulary"].counts
    assert {number: count for number, count in enumerate(counts) if count} == expected


def test_a_profile_holds_no_text_and_stays_small() -> None:
    rows = snapshot_tables.table(200, messages=[snapshot_tables.messages("Zacharias " * 3000)] * 200)
    text = profile.of_table(rows, PLAN, "w").model_dump_json()
    assert "acharias" not in text
    assert len(text) < 200_000


# -- recipes and examples --------------------------------------------------------------------------
def test_a_recipe_names_features_of_its_own(tmp_path: Path) -> None:
    section = config.Recipe(path=str(tiny_recipe.make(tmp_path)))
    plan = replace(PLAN, recipe=section)
    found = profile.of_table(ROWS, plan, "w").features["manners"]
    assert (found.n, sum(found.counts)) == (300, 300)
    parts = snapshot_tables.parts(ROWS, tmp_path / "parts", [11])
    assert profile.of_parts(parts, plan, "w").features["manners"] == found


def test_a_recipe_may_not_take_our_names(tmp_path: Path) -> None:
    folder = tiny_recipe.make(tmp_path, "greedy")
    (folder / "examples.py").write_text((folder / "examples.py").read_text().replace('{"manners":', '{"reply_shapes":'))
    plan = replace(PLAN, recipe=config.Recipe(path=str(folder)))
    with pytest.raises(UserError, match=r"features\(\) names a feature 'reply_shapes'"):
        profile.of_table(ROWS, plan, "w")


def test_the_plan_of_a_run_knows_recipe_and_tools(tmp_path: Path) -> None:
    loaded = recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path))))
    schema = {"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}
    plan = plan_of(tiny_recipe.params(loaded.folder, traffic={"columns": {"age": "number"}}), loaded, [schema])
    assert plan.recipe is not None
    assert plan.recipe.path == str(loaded.folder)
    assert plan.tools == (("lookup", json.dumps(SCHEMA)),)
    assert plan.own == (("age", "number"),)


# -- bad snapshots ---------------------------------------------------------------------------------
def test_a_snapshot_of_other_columns_is_named(tmp_path: Path) -> None:
    [part] = snapshot_tables.parts(ROWS.drop_columns([OWN + "age"]), tmp_path, [])
    with pytest.raises(UserError, match=r"part-00000.parquet: has no column 'own_age'"):
        profile.of_parts([part], PLAN, "w")


def test_a_cut_off_part_is_named(tmp_path: Path) -> None:
    [part] = snapshot_tables.parts(ROWS, tmp_path, [])
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"part-00000.parquet: not a part of a snapshot"):
        profile.of_parts([part], PLAN, "w")
    with pytest.raises(UserError, match=r"part-00001.parquet: not a part of a snapshot"):
        profile.of_parts([tmp_path / "part-00001.parquet"], PLAN, "w")


def test_parts_may_have_several_row_groups(tmp_path: Path, whole: Profile) -> None:
    path = tmp_path / "part-00000.parquet"
    pq.write_table(ROWS, path, row_group_size=23)
    assert profile.of_parts([path], PLAN, "a window") == whole
    assert isinstance(pq.read_table(path), pa.Table)


def test_examples_are_counted_like_a_log(tmp_path: Path) -> None:
    section = config.Recipe(path=str(tiny_recipe.make(tmp_path)))
    examples = recipe.load(section).examples("train", 40, 0)
    found = profile.of_examples(examples, replace(PLAN, recipe=section), "examples")
    assert found.num_conversations == 40
    assert list(found.features) == ["input_words", "vocabulary", "phrasing", "manners"]
    texts = [user_text(input_messages(example.messages)) for example in examples]
    assert found.features["input_words"].mean == sum(len(words(text)) for text in texts) / 40
    assert sum(found.features["manners"].counts) == 40
