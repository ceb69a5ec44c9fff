"""The three splits: from the recipe or a graded window, without leaks between them, and read back
with file and line."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import scripted_windows as windows
import tiny_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, recipe, reports, stage_files
from rft.errors import UserError
from rft.recipe import Split
from rft.reports import ExamplesReport, Profile
from rft.rows import sha256
from rft.stages import examples, traffic
from rft.traffic import imitated
from rft.traffic.texts import user_text
from rft.types import SPLITS, Example


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny_recipe.make(tmp_path)
    return tmp_path


def params(min_feedback: int = 20, **section: Any) -> config.Params:
    return tiny_recipe.params(
        Path("tiny"),
        traffic={"file": "data/inbox/window.jsonl"},
        drift={"min_feedback": min_feedback},
        policy={"model": "some/model"},
        examples={"train": 40, "validation": 10, "test": 12} | section,
    )


def stage_bytes() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path("data/examples").glob("*"))}


def edit_recipe(old: str, new: str) -> None:
    path = Path("tiny/examples.py")
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))


def test_the_recipes_examples_become_stage_files(clone: Path) -> None:
    examples.run(params())
    rows_of = {f"{split}.jsonl" for split in SPLITS}
    assert set(stage_bytes()) == rows_of | {"imitated.json", "keys.json", "profile.json", "report.json"}
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert report.counts == {"train": 40, "validation": 10, "test": 12}
    assert set(report.leakage.values()) == {0}
    assert set(report.leakage) == {
        "repeated ids",
        "lines of train in validation", "lines of train in test", "lines of validation in test",
        "texts of train in validation", "texts of train in test", "texts of validation in test",
        "targets of train in validation", "targets of train in test",
    }  # fmt: skip
    for split in SPLITS:
        rows = stage_files.load_examples(split)
        assert len(rows) == report.counts[split]
        assert report.sha256[split] == sha256(rows)
        assert sum(report.slices[split].values()) == len(rows)
    inputs = reports.read(Profile, Path("data/examples/profile.json"))
    assert (inputs.num_conversations, inputs.source) == (40, "the training examples of recipe tiny")


def test_equal_settings_give_equal_bytes_and_another_seed_others(clone: Path) -> None:
    examples.run(params())
    first = stage_bytes()
    examples.run(params())
    assert stage_bytes() == first
    examples.run(params(seed=1))
    assert stage_bytes()["train.jsonl"] != first["train.jsonl"]


# -- from a window ---------------------------------------------------------------------------------
def record(rows: list[dict[str, Any]]) -> None:
    log = windows.write(Path("data/inbox/window.jsonl"), rows)
    windows.take_in(log, params().traffic)
    traffic.run(params())


def test_a_refresh_trains_on_the_latest_graded_traffic(clone: Path) -> None:
    examples.run(params())
    measured = {split: stage_bytes()[f"{split}.jsonl"] for split in ("validation", "test")}
    rows = windows.rows(80)
    for row in rows[::2]:
        row["feedback"] = None
    record(rows)
    examples.run(params(source="window", train=30))
    assert [row.id for row in stage_files.load_examples("train")] == [row["conversation_id"] for row in rows[1::2]][
        -30:
    ]
    assert {split: stage_bytes()[f"{split}.jsonl"] for split in ("validation", "test")} == measured
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert (report.source, report.counts["train"]) == ("window", 30)
    assert (
        reports.read(Profile, Path("data/examples/profile.json")).source
        == "the graded conversations of data/inbox/window.jsonl"
    )


def test_too_little_feedback_says_how_much(clone: Path) -> None:
    record(windows.rows(60, feedback=None))
    with pytest.raises(UserError, match=r"only 0 graded conversations can become examples \(drift.min_feedback = 20\)"):
        examples.run(params(source="window"))
    assert stage_bytes() == {}


def test_traffic_that_holds_what_is_tested_is_leakage(clone: Path) -> None:
    tested = [int(row.messages[0]["content"].split()[-1][1:]) for row in tiny_split("test", 12)]
    record([*windows.rows(50), *(windows.conversation(number) for number in tested[:5])])
    with pytest.raises(
        UserError,
        match=(
            r"the splits leak into each other: texts of train in test: 5 examples, targets of train in test: 5 "
            r"examples\."
        ),
    ):
        examples.run(params(source="window", train=100))
    assert stage_bytes() == {}


# -- what is imitated ------------------------------------------------------------------------------
def imitating(**train: Any) -> config.Params:
    sections = params().model_dump(mode="json", by_alias=True)
    return config.parse(sections | {"train": train})


def number_of(row: Example) -> int:
    return int(row.messages[0]["content"].split()[-1][1:])


def test_confirmed_answers_are_imitated_and_never_what_is_measured(clone: Path) -> None:
    """Planted: three conversations on what is tested, two on what is validated. Corrected answers,
    and those that nobody looked at, are not imitated either."""
    window = windows.rows(60)
    window[0]["feedback"] = "another"
    window[1]["feedback"] = None
    window[2]["messages"] = window[2]["messages"][:-1]
    planted = [number_of(row) for row in [*tiny_split("test", 12)[:3], *tiny_split("validation", 10)[:2]]]
    record([*window, *(windows.conversation(number) for number in planted)])
    settings = imitating(algorithm="supervised", source="traffic")
    examples.run(settings)
    dialogues, left_out = stage_files.load_imitated()
    assert left_out == {
        "its answer was corrected": 1,
        "its input is in validation or test": 5,
        "it does not end with an answer": 1,
        "older than examples.train asks for": 17,
    }
    measured = {user_text(row.messages) for split in SPLITS[1:] for row in stage_files.load_examples(split)}
    assert len(dialogues) == 40
    assert not measured & {user_text(messages) for messages in dialogues}
    assert all(messages[-1]["role"] == "assistant" for messages in dialogues)
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert (report.imitated, report.not_imitated) == (len(dialogues), left_out)


def plant(split: str, number: int) -> None:
    """Let the recipe's first demonstrations be examples of this split."""
    path, train = Path("tiny/demonstrations.py"), 'examples(options, "train", count, seed)'
    source = path.read_text()
    assert train in source
    mixed = f'examples(options, "{split}", {number}, seed) + examples(options, "train", count - {number}, seed)'
    path.write_text(source.replace(train, mixed))


def test_demonstrations_that_know_what_is_measured_are_left_out(clone: Path) -> None:
    plant("test", 4)
    asked = {"algorithm": "supervised", "source": "demonstrations", "supervised": {"demonstrations": 20}}
    examples.run(imitating(**asked))
    dialogues, left_out = stage_files.load_imitated()
    assert (len(dialogues), left_out) == (16, {"its input is in validation or test": 4})


def test_a_warm_start_on_what_is_measured_is_refused(clone: Path) -> None:
    """A base model must not change with the examples, so nothing is left out of its warm start."""
    plant("validation", 3)
    warm = {"demonstrations": 20, "weights": "lora", "lr": 1e-3, "steps": 4}
    told = r"demonstrations\.py: the base model would be warm-started on what is measured: 3 of 20: its input"
    for section in ({"warm_start": {"demonstrations": 20}}, {"model": "some/model", "warm_start": warm}):
        sections = params().model_dump(mode="json", by_alias=True) | {"policy": section}
        with pytest.raises(UserError, match=told):
            examples.run(config.parse(sections))
    assert stage_bytes() == {}
    examples.run(config.parse(sections | {"policy": {"model": "some/model"}}))


def test_near_duplicates_are_left_out_where_they_matter(clone: Path) -> None:
    """By default inputs that are made from one template may resemble each other; not where
    `max_near_duplicates` is set."""
    edit_recipe('f"value of {key}"', 'f"please tell me now what the value is that belongs to this key here: {key}"')
    asked = {"algorithm": "supervised", "source": "demonstrations", "supervised": {"demonstrations": 20}}
    examples.run(imitating(**asked))
    assert len(stage_files.load_imitated()[0]) == 20
    section = config.Examples(near_duplicate=0.5, max_near_duplicates=1.0)
    closed = imitated.Closed(tiny_split("test", 12), section, examples.target_elements)
    loaded = recipe.load(params().recipe)
    kept, left_out = closed.without(imitated.demonstrations(loaded, 20, 0))
    assert (kept, left_out) == ([], {"its input is nearly one of validation or test": 20})


def test_where_nothing_is_imitated_a_new_window_changes_nothing_for_train(clone: Path) -> None:
    record(windows.rows(60))
    examples.run(params())
    first = stage_bytes()["imitated.json"]
    record(windows.rows(60, seed=1))
    examples.run(params())
    assert stage_bytes()["imitated.json"] == first
    assert stage_files.load_imitated() == ([], {})


def tiny_split(split: Split, count: int) -> list[Example]:
    return recipe.load(params().recipe).examples(split, count, 0)


# -- leakage ---------------------------------------------------------------------------------------
def row(name: str, text: str, target: Any) -> Example:
    return Example(name, ({"role": "system", "content": "s"}, {"role": "user", "content": text}), target)


SOUND: dict[Split, list[Example]] = {
    "train": [row("a", "one", ["I10", "E11"]), row("b", "two", ["I10"])],
    "validation": [row("c", "three", ["J45"])],
    "test": [row("d", "four", ["K21"])],
}


def with_row(split: Split, added: Example) -> dict[Split, list[Example]]:
    return SOUND | {split: [*SOUND[split], added]}


def test_sound_splits_leak_nothing() -> None:
    assert set(examples.check_leakage(SOUND, True).values()) == {0}


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (with_row("test", row("e", " ONE ", ["X1"])), "texts of train in test: 1 examples"),
        (with_row("test", row("e", "three", ["X1"])), "texts of validation in test: 1 examples"),
        (with_row("validation", row("e", "five", ["X1", "E11"])), "targets of train in validation: 1 examples"),
        (with_row("test", row("a", "five", ["X1"])), "repeated ids: 1 examples"),
        (with_row("train", row("a", "five", ["X1"])), "repeated ids: 1 examples"),
    ],
)
def test_each_leak_is_an_error_with_its_count(splits: dict[Split, list[Example]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        examples.check_leakage(splits, True)


def test_classes_may_come_back_when_the_settings_say_so(clone: Path) -> None:
    edit_recipe("value(key), item)", '"odd" if number % 2 else "even", item)')
    with pytest.raises(
        UserError, match=r"targets of train in validation: 10 examples, .*set examples.disjoint_targets: false"
    ):
        examples.run(params())
    examples.run(params(disjoint_targets=False))
    assert "targets of train in test" not in reports.read(ExamplesReport, Path("data/examples/report.json")).leakage


@pytest.mark.parametrize(
    ("target", "elements"),
    [
        (["b", "a", "a"], {'"a"', '"b"'}),
        ({"x": 1, "y": [2]}, {"1", "[2]"}),
        ("I10", {'"I10"'}),
        (3, {"3"}),
        (None, set()),
        ([], set()),
    ],
)
def test_what_a_target_is_made_of(target: Any, elements: set[str]) -> None:
    assert examples.target_elements(target) == elements


# -- blocks ----------------------------------------------------------------------------------------
def test_blocks_join_to_one_test_set_and_leave_the_rest_alone(clone: Path) -> None:
    made: dict[tuple[int, int], dict[str, bytes]] = {}
    for block, blocks in ((0, 1), (1, 1), (0, 2)):
        examples.run(params(block=block, blocks=blocks))
        made[block, blocks] = stage_bytes()
    for name in ("train.jsonl", "validation.jsonl", "profile.json", "keys.json"):
        assert len({files[name] for files in made.values()}) == 1, name
    assert made[0, 2]["test.jsonl"] == made[0, 1]["test.jsonl"] + made[1, 1]["test.jsonl"]
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert (report.counts["test"], report.offers_blocks) == (24, True)
    assert report.leakage["targets of block 0 in block 1"] == 0


@pytest.mark.parametrize("asked", [{"block": 1}, {"blocks": 2}])
def test_a_recipe_that_offers_no_blocks_says_what_to_write(clone: Path, asked: dict[str, int]) -> None:
    edit_recipe("count, seed, block=0)", "count, seed)")
    edit_recipe("numbers[block * count :]", "numbers")
    with pytest.raises(
        UserError, match=r"examples\.blocks = \d, but .*examples\.py offers no blocks\. .*`block: int = 0`"
    ):
        examples.run(params(**asked))
    assert stage_bytes() == {}
    examples.run(params())
    assert not reports.read(ExamplesReport, Path("data/examples/report.json")).offers_blocks


def test_a_recipe_that_runs_out_names_the_block(clone: Path) -> None:
    with pytest.raises(UserError, match=r"gave 800 test examples of block 1, but examples\.test = 1200"):
        examples.run(params(test=1200, blocks=2))


def test_a_block_that_is_no_other_is_refused(clone: Path) -> None:
    edit_recipe("numbers[block * count :]", "numbers[block * (count - 3) :]")
    with pytest.raises(
        UserError, match="ids of block 0 in block 1: 3 examples, texts of block 0 in block 1: 3 examples"
    ):
        examples.run(params(blocks=2))
    assert stage_bytes() == {}


BLOCKS = {0: [row("a", "one", ["I10", "E11"])], 1: [row("b", "two", ["J45"])]}


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (row("c", " TWO", ["X1"]), "texts of block 1 in block 2: 1 example. Choose a block by"),
        (row("a", "three", ["X1"]), "ids of block 0 in block 2: 1 example. Choose"),
        (
            row("c", "three", ["X1", "E11"]),
            "targets of block 0 in block 2: 1 example.*examples.disjoint_targets: false",
        ),
        (row("b", "two", ["J45"]), "lines of block 1 in block 2: 1 example, ids of .*, texts of .*, targets of"),
    ],
)
def test_what_two_blocks_share_is_an_error_that_names_them(added: Example, message: str) -> None:
    assert set(examples.check_blocks(BLOCKS, True).values()) == {0}
    with pytest.raises(UserError, match=message):
        examples.check_blocks(BLOCKS | {2: [added]}, True)


def test_blocks_may_share_classes(clone: Path) -> None:
    blocks = {0: [row("a", "one", "yes")], 1: [row("b", "two", "yes")]}
    assert "targets of block 0 in block 1" not in examples.check_blocks(blocks, False)


def test_a_block_shares_nothing_with_train_either(clone: Path) -> None:
    edit_recipe("REMAINDERS[split]]", 'REMAINDERS["train" if block else split]]')
    with pytest.raises(UserError, match=r"the splits leak into each other: .*targets of train in test"):
        examples.run(params(train=2000, blocks=2))


LONG = (
    "good morning, I would like to know, if that is not too much to ask of you today, the value of {key}, because we "
    "could not find it in any of the books that the last owner of this house left to us. Many thanks"
)


def make_longer(note: str) -> None:
    """Let the recipe ask with many words, most of them the same in each example."""
    edit_recipe('f"value of {key}"', note)


def test_near_duplicates_are_counted_and_shown_but_no_error(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_longer(f'f"{LONG}"')
    examples.run(params())
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert [(one.of, one.inside, one.num_examples, one.share) for one in report.near_duplicates] == [
        ("train", "validation", 10, 1.0), ("train", "test", 12, 1.0), ("validation", "test", 12, 1.0),
    ]  # fmt: skip
    pair = report.near_duplicates[1].pairs[0]
    assert pair.id in {row.id for row in stage_files.load_examples("test")}
    assert pair.repeats in {row.id for row in stage_files.load_examples("train")}
    output = capsys.readouterr().out
    assert "near-duplicates: 12 examples of test (100.0%) like one of train, such as n-" in output


def test_near_duplicates_above_the_limit_are_an_error(clone: Path) -> None:
    make_longer(f'f"{LONG}"')
    with pytest.raises(
        UserError,
        match=r"near-duplicates \(examples.near_duplicate = 0.8\), more than examples.max_near_duplicates = 99.0%: 10 "
        r"examples of validation \(100.0%\) like one of train, such as n-\d+ like n-\d+ \(0.8\d\); 12 examples of test",
    ):
        examples.run(params(max_near_duplicates=0.99))
    assert stage_bytes() == {}
    examples.run(params(max_near_duplicates=1.0))
    assert stage_bytes() != {}


def test_inputs_that_only_share_a_few_words_are_none(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples.run(params(max_near_duplicates=0.0))
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert [one.num_examples for one in report.near_duplicates] == [0, 0, 0]
    assert "near-duplicates" not in capsys.readouterr().out


def test_near_duplicates_can_be_switched_off(clone: Path) -> None:
    make_longer(f'f"{LONG}"')
    examples.run(params(near_duplicate=None))
    assert "near_duplicates" not in Path("data/examples/report.json").read_text()
    with pytest.raises(UserError, match="max_near_duplicates needs near_duplicate, but that is null"):
        params(near_duplicate=None, max_near_duplicates=0.1)


def test_blocks_are_compared_for_near_duplicates_too(clone: Path) -> None:
    make_longer(f'f"{LONG}"')
    examples.run(params(blocks=2))
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert [(one.of, one.inside, one.num_examples) for one in report.near_duplicates][2:] == [
        ("validation", "test", 24), ("block 0", "block 1", 12),
    ]  # fmt: skip


def test_traffic_that_nearly_holds_what_is_tested_is_shown(clone: Path) -> None:
    make_longer(f'f"{LONG}"')
    asked = tiny_split("test", 1)[0].messages[0]["content"]
    rows = windows.rows(60, note="value of {key}")
    rows[7]["messages"][0]["content"] = asked.replace("good", "Good old")
    record(rows)
    examples.run(params(source="window", train=60))
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    (pair,) = [
        pair for one in report.near_duplicates if (one.of, one.inside) == ("train", "test") for pair in one.pairs
    ][:1]
    assert pair.repeats == rows[7]["conversation_id"]


def test_a_recipe_with_too_few_examples_is_named(clone: Path) -> None:
    with pytest.raises(
        UserError, match=r"tiny/examples.py: gave 2000 test examples, but examples.test = 2001 in params.yaml"
    ):
        examples.run(params(test=2001))


def test_a_recipe_whose_example_has_no_messages_is_named(clone: Path) -> None:
    edit_recipe('({"role": "user", "content": note},)', "()")
    with pytest.raises(
        UserError, match=r"tiny/examples.py: train example 1 \(n-\d+\): has no messages: \[\]. Fix examples\(\)"
    ):
        examples.run(params())
    assert stage_bytes() == {}


# -- reading ---------------------------------------------------------------------------------------
GOOD = row("x", "hello", ["I10"]).row()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"messages": ...}, "has no messages: null"),
        ({"messages": []}, r"has no messages: \[\]"),
        ({"messages": None}, "has no messages: null"),
        ({"messages": ["hello"]}, r'messages\[0\] is "hello", expected a chat message'),
        (
            {"messages": [{"role": "user", "content": 3}]},
            r"messages\[0\].content is 3, expected a text or a list of text parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"messages\[0\].content\[0\] is .*image_url.*, expected a text part",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "the last message is the assistant's, expected the user's",
        ),
        ({"id": "first"}, r"id 'first' was met before, at .*train.jsonl:1"),
        ({"id": 7.5}, "id is 7.5, expected a non-empty text or a whole number"),
        ({"id": ""}, 'id is "", expected'),
        ({"metadata": {"slice": ["a"]}}, r'metadata.slice is \["a"\], expected a text, a number'),
        ({"tools": {}}, r"tools is \{\}, expected a list"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    wrong = {key: value for key, value in (GOOD | bad).items() if value is not ...}
    path = windows.write(tmp_path / "train.jsonl", [GOOD | {"id": "first"}, wrong])
    with pytest.raises(UserError, match=r"train.jsonl:2: .*" + message):
        stage_files.load_examples("train", path)


def test_a_file_cut_off_in_any_byte_is_refused_or_shorter_by_whole_rows(tmp_path: Path) -> None:
    path = windows.write(tmp_path / "train.jsonl", [GOOD | {"id": f"r{n}"} for n in range(3)])
    whole = path.read_bytes()
    ends = [n for n, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0] + 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        if cut in ends or cut - 1 in ends:
            continue
        with pytest.raises(UserError, match=r"the file is cut off in this line, its last"):
            stage_files.load_examples("train", path)


def test_an_empty_or_missing_file_names_the_stage(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read .*rft stage run examples"):
        stage_files.load_examples("train", tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no examples"):
        stage_files.load_examples("train", tmp_path / "train.jsonl")


TARGETS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.text(), TARGETS), min_size=1, max_size=5, unique_by=lambda found: found[0]
    )
)
def test_rows_survive_their_file(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, Any]]) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    written = [row(*one) for one in rows]
    reports.write_lines((one.line for one in written), path)
    read = stage_files.load_examples("train", path)
    assert read == written
    assert sha256(read) == hashlib.sha256(path.read_bytes()).hexdigest()
