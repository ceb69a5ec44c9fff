"""Rows of a user's own: kept byte for byte, read by the keys that params.yaml names, refused with
file, line and key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, recipe, reports, rows, stage_files
from rft.errors import ConfigError, UserError
from rft.reports import ExamplesReport, PromptSettings
from rft.rollouts import log as rollout_log
from rft.rollouts import replay
from rft.stages import examples
from rft.types import SPLITS, Example, Scored, StopReason, Trajectory, Turn

OWN = """
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rft import rows


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")


def examples(options, split, count, seed):
    return rows.lines(Path(__file__).parent / f"{split}.jsonl")[:count]
"""
KEYS = {"id": "case.number", "target": "reference_answer", "slice": "level"}


def line(split: str, n: int, answer: str | None = "") -> str:
    """With keys of its own, parts as content, and numbers that Python would write otherwise."""
    answer = f"{split} answer {n}" if answer == "" else answer
    return (
        f'{{"weight": 1.50, "case": {{"number": "{split}-{n}"}},  "level":{n % 2}, "reference_answer": '
        f"{json.dumps(answer)}, "
        f'"messages":[{{"role":"user","content":[{{"type":"text","text":"question "}},{{"type":"text","text":"{split} '
        f'{n}"}}]}}], "huge": 1e400000}}'
    ).replace(', "huge": 1e400000', ', "big": 12345678901234567890.10')


def own(folder: Path, files: dict[str, list[str]], **section: Any) -> config.Params:
    folder.joinpath("own").mkdir()
    folder.joinpath("own/examples.py").write_text(OWN)
    for split, some in files.items():
        folder.joinpath(f"own/{split}.jsonl").write_text("".join(f"{one}\n" for one in some))
    counts = {split: len(some) for split, some in files.items()}
    return tiny_recipe.params(Path("own"), examples={**counts, "keys": KEYS, **section})


def files(**changed: list[str]) -> dict[str, list[str]]:
    return {split: [line(split, n) for n in range(4)] for split in SPLITS} | changed


@pytest.fixture(autouse=True)
def _in_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_row_is_kept_byte_for_byte_and_read_by_its_own_keys(tmp_path: Path) -> None:
    """W1: keys that are not ours were refused, and `item` was rebuilt from four fields."""
    examples.run(own(tmp_path, files()))
    stage_folder = Path("data/examples")
    assert (stage_folder / "test.jsonl").read_bytes() == (tmp_path / "own/test.jsonl").read_bytes()
    one = stage_files.load_examples("test")[3]
    assert (one.id, one.target, one.slice) == ("test-3", "test answer 3", "1")
    assert one.messages == ({"role": "user", "content": "question test 3"},)
    assert one.line == line("test", 3)
    assert one.row()["messages"][0]["content"][0] == {"type": "text", "text": "question "}
    report = reports.read(ExamplesReport, stage_folder / "report.json")
    assert report.sha256["test"] == hashlib.sha256((stage_folder / "test.jsonl").read_bytes()).hexdigest()
    assert report.slices["test"] == {"0": 2, "1": 2}


def test_only_messages_is_required(tmp_path: Path) -> None:
    bare = [json.dumps({"messages": [{"role": "user", "content": f"q{n}"}]}) for n in range(9)]
    examples.run(own(tmp_path, {"train": bare[:3], "validation": bare[3:6], "test": bare[6:]}, keys={}))
    found = stage_files.load_examples("train")
    assert [one.id for one in found] == [hashlib.sha256(text.encode()).hexdigest() for text in bare[:3]]
    assert {(one.target, one.slice) for one in found} == {(None, "all")}
    assert reports.read(ExamplesReport, Path("data/examples/report.json")).without_target == {
        "train": 3,
        "validation": 3,
        "test": 3,
    }


def test_identical_lines_are_counted_in_a_split_and_an_error_across_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = [line("train", 0), line("train", 1), line("train", 0)]
    params = own(tmp_path, files(train=twice))
    examples.run(params)
    report = reports.read(ExamplesReport, Path("data/examples/report.json"))
    assert (report.repeated, report.counts["train"]) == ({"train": 1, "validation": 0, "test": 0}, 2)
    assert [one.id for one in stage_files.load_examples("train")] == ["train-0", "train-1"]
    assert "repeated lines, each taken once: 1 in train" in capsys.readouterr().out
    (tmp_path / "own/test.jsonl").write_text("".join(f"{line('test', n)}\n" for n in range(3)) + line("train", 1))
    with pytest.raises(UserError, match="lines of train in test: 1 examples"):
        examples.run(params)


def test_two_rows_of_one_id_are_an_error(tmp_path: Path) -> None:
    other = line("train", 0).replace('"level":0', '"level":1')
    with pytest.raises(UserError, match="repeated ids: 1 examples"):
        examples.run(own(tmp_path, files(train=[line("train", 0), other])))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("[1, 2]", r"own/train.jsonl:2: holds \[1, 2\], expected a JSON object"),
        ('{"messages": [', r"own/train.jsonl:2: not JSON"),
        ('{"messages": NaN}', r"own/train.jsonl:2: not JSON"),
        (
            line("train", 1).replace('"train-1"', "[1]"),
            r"own/train.jsonl:2: case.number is \[1\], expected a non-empty text",
        ),
        (
            line("train", 1).replace('"level":1', '"level":{}'),
            r"own/train.jsonl:2: level is \{\}, expected a text, a number",
        ),
    ],
)
def test_a_row_that_is_none_is_named_by_the_users_file_and_line(tmp_path: Path, bad: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        examples.run(own(tmp_path, files(train=[line("train", 0), bad])))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"target": "reference_anwser"},
            r"keys.target = 'reference_anwser' names nothing: no row of train has it. Did you mean 'reference_answer'",
        ),
        (
            {"id": "case.numbr"},
            r"examples.keys.id = 'case.numbr' names nothing: no row of train has it. Did you mean 'case.number'",
        ),
        (
            {"slice": "zzz"},
            r"examples.keys.slice = 'zzz' names nothing: .* There are: big, case, case.number, level, messages",
        ),
    ],
)
def test_a_key_that_names_nothing_is_an_error(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        examples.run(own(tmp_path, files(), keys=keys))


def test_a_row_with_a_secret_is_neither_written_nor_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_SECRET", "train answer 2 and more")
    config.secret("env:ROW_SECRET")
    with pytest.raises(UserError, match=r"train.jsonl:3: the row holds the value of a secret"):
        examples.run(
            own(
                tmp_path, files(train=[line("train", 0), line("train", 1), line("train", 2, "train answer 2 and more")])
            )
        )


def test_a_row_is_one_line(tmp_path: Path) -> None:
    """Else the stage's file holds pieces of it, which only the next stage would find."""
    pretty = json.dumps({"messages": [{"role": "user", "content": "a"}]}, indent=1)
    with pytest.raises(UserError, match="here: spans several lines, and a row is one line of JSON"):
        rows.read(rows.line_of(pretty, "here"), config.Keys(), "")


def test_a_slice_given_by_name_stands_in_the_row() -> None:
    made = Example("n", ({"role": "user", "content": "q"},), "t", {"level": 1}, slice="hard")
    again = rows.read(rows.line_of(made, "here"), config.Keys(), "")
    assert (again.slice, again.metadata) == ("hard", {"level": 1, "slice": "hard"})


TICKETS = config.Keys(id="ticket", target="answer.code", slice="metadata.kind")


def test_an_example_is_read_by_the_users_keys_like_a_row_of_a_file() -> None:
    """N6: what from_traffic made named nothing by examples.keys, and only a refresh found out."""
    made = Example("c-7", ({"role": "user", "content": "q"},), ["I10"], {"level": 1}, slice="hard")
    read = rows.read(rows.line_of(made, "here", TICKETS), TICKETS, "")
    assert (read.id, read.target, read.slice) == ("c-7", ["I10"], "hard")
    assert (read.row()["ticket"], read.row()["answer"], read.metadata["kind"]) == ("c-7", {"code": ["I10"]}, "hard")
    rows.check_named([read], TICKETS, "train")


def test_a_row_of_the_users_own_is_never_changed() -> None:
    text = '{"messages": [{"role": "user", "content": "q"}], "n": 1.50}'
    own = rows.read(rows.Line(text, "here"), TICKETS, "")
    assert rows.line_of(own, "here", TICKETS).text == text


def test_a_path_through_something_else_is_one_key() -> None:
    keys = config.Keys(target="id.code")
    made = Example("c-7", ({"role": "user", "content": "q"},), "I10")
    assert rows.read(rows.line_of(made, "here", keys), keys, "").target == "I10"


def test_the_log_holds_the_users_line_and_a_replay_sends_it() -> None:
    """A row parsed and written again lost digits, repeated keys, and the id of a row without
    one."""
    text = '{"big":123456789012345678901234567890.10,"a":1,"a":2,"over":1e400,"id":1.5,'
    text += '"messages":[{"role":"user","content":"q"}],"case":"c-1"}'
    one = rows.read(rows.Line(text, "here"), config.Keys(id="case"), "")
    done = Trajectory("rollout_1", one.id, (Turn("an answer"),), StopReason.completed, Scored(1.0), 1.0)
    row = rollout_log.row(done, one, 0, PromptSettings(name="seed", system=""), "baseline", "champion")
    assert row.item == text
    assert (replay.example_of(row).line, replay.example_of(row).id) == (text, "c-1")


def test_a_recipe_may_return_objects_lines_or_examples(tmp_path: Path) -> None:
    given = (
        {"messages": [{"role": "user", "content": "a"}]},
        '{"messages": [{"role": "user", "content": "b"}]}',
        rows.Line(line("x", 1), "f:1"),
    )
    read = [rows.read(rows.line_of(one, "here"), config.Keys(), "") for one in given]
    assert [one.messages[0]["content"] for one in read] == ["a", "b", "question x 1"]
    with pytest.raises(UserError, match="here: is not a JSON object"):
        rows.line_of({"messages": {1, 2}}, "here")


@pytest.mark.parametrize("row", [{"content": "x\ud800"}, '{"content": "x\ud800"}', '{"content": "x\\ud800"}'])
def test_half_a_surrogate_pair_in_a_recipes_row_is_an_error_with_its_place(row: Any) -> None:
    with pytest.raises(UserError, match=r"^here: holds half of a surrogate pair .* Fix it\.$"):
        rows.read(rows.line_of(row, "here"), config.Keys(), "Fix it.")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans())
def test_any_further_keys_travel_untouched(extra: dict[str, Any], ascii_only: bool) -> None:
    """Whatever a row holds beside its messages, id, tools and metadata."""
    ours = {"messages", "id", "tools", "metadata", "response_format"}
    row = {key: value for key, value in extra.items() if key not in ours} | {
        "messages": [{"role": "user", "content": "q"}]
    }
    text = json.dumps(row, ensure_ascii=ascii_only)
    try:
        text.encode()
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair
    assert rows.read(rows.Line(text, "here"), config.Keys(), "").line == text


def test_the_template_and_icd10_read_back_as_they_are(tmp_path: Path) -> None:
    loaded = recipe.load(config.Recipe(path=str(tiny_recipe.make(tmp_path))))
    one = loaded.examples("train", 1, 0)[0]
    assert one.row() == {"id": one.id, "messages": list(one.messages), "target": one.target, "metadata": one.metadata}
