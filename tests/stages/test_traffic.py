"""A window becomes a shelf, or the file and line that cannot be read are named and nothing is
written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripted_windows as windows
import tiny_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import config, reports
from rft.errors import UserError
from rft.reports import Champion, Profile, TrafficReport
from rft.stages import drift, traffic
from rft.windows import profile
from rft.windows.conversations import load_conversations, read_window

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository with the tiny recipe, the current folder."""
    monkeypatch.chdir(tmp_path)
    tiny_recipe.make(tmp_path)
    return tmp_path


def params(**section: Any) -> config.Params:
    return tiny_recipe.params(
        Path("tiny"), traffic={"file": "data/inbox/window.jsonl", **section}, examples={"train": 200}
    )


def window(rows: list[Any] | None = None) -> Path:
    return windows.write(Path("data/inbox/window.jsonl"), windows.rows(60) if rows is None else rows)


def shelf() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path("data/traffic").glob("*"))}


def test_a_window_becomes_a_shelf(clone: Path) -> None:
    path = window(windows.rows(60)[::-1])
    traffic.run(params())
    assert set(shelf()) == {"conversations.jsonl", "current_profile.json", "reference_profile.json", "report.json"}
    report = reports.read(TrafficReport, Path("data/traffic/report.json"))
    assert (report.num_rows, report.num_conversations, report.num_with_feedback) == (60, 60, 60)
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert report.reference == "the training examples of recipe tiny"
    conversations = load_conversations()
    assert [one.time for one in conversations] == sorted(one.time for one in conversations)
    assert (report.first, report.last) == (conversations[0].time, conversations[-1].time)
    assert reports.read(Profile, Path("data/traffic/current_profile.json")).num_conversations == 60
    reference = reports.read(Profile, Path("data/traffic/reference_profile.json"))
    assert reference.num_conversations == 200
    assert "tool_mix" not in reference.features


def test_equal_windows_give_equal_bytes(clone: Path) -> None:
    window()
    traffic.run(params())
    first = shelf()
    traffic.run(params())
    assert shelf() == first


def test_the_shelf_reads_back_as_the_window(clone: Path) -> None:
    path = window()
    traffic.run(params())
    assert load_conversations() == read_window(path).conversations


def test_the_hash_is_checked(clone: Path) -> None:
    path = window()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    traffic.run(params(sha256=found))
    with pytest.raises(UserError, match=f"its sha256 is {found}, but traffic.sha256 says {'0' * 64}"):
        traffic.run(params(sha256="0" * 64))


def test_the_champions_profile_is_the_reference(clone: Path) -> None:
    window()
    served = profile.reference(params(), tiny_loaded()).model_copy(update={"source": "version 3"})
    reports.write(served, Path("data/champion/profile.json"))
    reports.write(Champion(version=3, profile_path="profile.json"), Path("data/champion/champion.json"))
    traffic.run(params())
    assert reports.read(Profile, Path("data/traffic/reference_profile.json")) == served
    reports.write(
        Champion(version=3, profile_path="profile.json", profile_sha256="0" * 64), Path("data/champion/champion.json")
    )
    words = (
        r"data/champion/profile\.json: not the champion's .*names 0+\. .* dvc checkout data/champion/profile\.json\.dvc"
    )
    with pytest.raises(UserError, match=words):
        traffic.run(params())
    Path("data/champion/profile.json").unlink()
    with pytest.raises(UserError, match=r"data/champion/profile.json: missing"):
        traffic.run(params())


def tiny_loaded() -> Any:
    from rft import recipe

    return recipe.load(params().recipe)


def test_a_line_logged_twice_is_dropped_and_counted(clone: Path) -> None:
    rows = windows.rows(60)
    window([*rows, rows[3], rows[7], rows[3]])
    traffic.run(params())
    report = reports.read(TrafficReport, Path("data/traffic/report.json"))
    assert (report.num_rows, report.num_conversations, report.rejected) == (63, 60, {"repeated": 3})


def test_unknown_keys_are_counted(clone: Path) -> None:
    rows = windows.rows(60)
    window([row | {"model": "m"} if n % 2 else row for n, row in enumerate(rows)])
    traffic.run(params())
    assert reports.read(TrafficReport, Path("data/traffic/report.json")).ignored_keys == {"model": 30}


def test_what_was_not_logged_may_be_missing(clone: Path) -> None:
    window(windows.rows(60, latency_s=..., tool_errors=..., feedback=...))
    traffic.run(params())
    report = reports.read(TrafficReport, Path("data/traffic/report.json"))
    assert report.num_with_feedback == 0
    assert load_conversations()[0].latency_s is None


def test_times_become_utc_and_text_parts_one_text(clone: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "value "}, {"type": "text", "text": "of k0001"}]},
        {"role": "assistant", "content": "x"},
    ]
    path = window([windows.conversation(1, time="2026-03-02T09:30:00+02:00", messages=messages)])
    (one,) = read_window(path).conversations
    assert one.time == "2026-03-02T07:30:00Z"
    assert one.messages[0]["content"] == "value of k0001"


def changed(**changes: Any) -> Edit:
    return lambda row: {key: content for key, content in (row | changes).items() if content is not ...}


def messages(*found: Any) -> Edit:
    return lambda row: row | {"messages": list(found)}


REFUSED: list[tuple[str, Edit, str]] = [
    ("no messages", changed(messages=...), "messages is missing; expected a list"),
    ("empty messages", changed(messages=[]), r"messages is \[\]; expected a list"),
    ("messages as text", changed(messages="hello"), 'messages is "hello"'),
    ("a message without role", messages({"content": "x"}), r"messages\[0\] is .* role is one of"),
    ("an unknown role", messages({"role": "robot", "content": "x"}), r"messages\[0\] is .*robot"),
    ("an image", messages({"role": "user", "content": [{"type": "image_url"}]}), r"messages\[0\].content is"),
    ("a nameless call", messages({"role": "assistant", "tool_calls": [{"id": "a"}]}), r"messages\[0\].tool_calls is"),
    ("no id", changed(conversation_id=...), "conversation_id is missing"),
    ("an empty id", changed(conversation_id=""), 'conversation_id is ""'),
    ("no time", changed(time=...), "time is missing; expected an ISO 8601 time"),
    ("a time without zone", changed(time="2026-03-02T08:00:00"), 'time is "2026-03-02T08:00:00"'),
    ("a time that is none", changed(time="last Monday"), 'time is "last Monday"'),
    ("a time as number", changed(time=1772438400), "time is 1772438400"),
    ("a time before time", changed(time="0001-01-01T00:00:00+05:00"), "time is"),
    ("latency as text", changed(latency_s="3 s"), 'latency_s is "3 s"'),
    ("latency as bool", changed(latency_s=True), "latency_s is true"),
    ("errors in part", changed(tool_errors=0.5), "tool_errors is 0.5"),
    ("a list", lambda row: [row], r"holds \[.*expected a JSON object"),
    (("an id "
     "met before"), changed(conversation_id="c-00001", feedback="other"), ("'c-00001' was met before, with other "
                                                                          "content, at .*window.jsonl:1")),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_cannot_be_read_stops_the_stage_before_it_writes(clone: Path, edit: Edit, message: str) -> None:
    window([windows.conversation(1), windows.conversation(2), edit(windows.conversation(3)), windows.conversation(4)])
    with pytest.raises(UserError, match=r"data/inbox/window.jsonl:3: .*" + message):
        traffic.run(params())
    assert shelf() == {}


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b'{"conversation_id": "c-9", "mess', "the file is cut off in this line, its last"),
        (b"not json\n", "not JSON"),
        (b'{"latency_s": NaN}\n', "NaN is not a JSON number"),
        (b'{"conversation_id": "\xff"}\n', "not UTF-8"),
        (b'{"conversation_id": "\\ud800"}\n', "holds half of a surrogate pair"),
        (b"[" * 100_000 + b"\n", "not JSON"),
    ],
)
def test_broken_bytes_are_named_by_line(clone: Path, tail: bytes, message: str) -> None:
    path = window(windows.rows(2))
    path.write_bytes(path.read_bytes() + tail)
    with pytest.raises(UserError, match=f"window.jsonl:3: .*{message}"):
        traffic.run(params())
    assert shelf() == {}


def test_a_short_or_missing_window_says_so(clone: Path) -> None:
    with pytest.raises(UserError, match=r"data/inbox/window.jsonl: cannot be read \(No such file"):
        traffic.run(params())
    window(windows.rows(10))
    with pytest.raises(UserError, match=r"10 conversations, traffic.min_conversations asks for 50"):
        traffic.run(params())
    window([])
    with pytest.raises(UserError, match="0 conversations"):
        traffic.run(params())


def test_drift_before_traffic_names_the_stage(clone: Path) -> None:
    with pytest.raises(UserError, match="rft stage traffic"):
        load_conversations()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "function", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = sorted(["conversation_id", "time", "latency_s", "tool_errors", "messages", "feedback", "other"])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(KEYS), JSON), max_size=2), st.binary(max_size=6), st.booleans())
def test_any_file_is_read_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, Any]], noise: bytes, whole: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(json.dumps(windows.conversation(1) | dict(edits)).encode() + (b"" if whole else noise))
    try:
        found = read_window(path)
    except UserError as refusal:
        assert str(refusal).startswith(str(path))  # noqa: PT017  a refusal is one of two right answers
        return
    for one in found.conversations:
        again = json.loads(json.dumps(one.model_dump(mode="json"), allow_nan=False))
        assert reports.Conversation.model_validate(again) == one


def test_feedback_that_can_become_no_example_is_told(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """N13: how many, why, and where the first one stands, from both stages; before this the verdict
    was `continue`, without a word."""
    source = Path("tiny/examples.py")
    source.write_text(
        source.read_text().replace(
            "if conversation.feedback is None:", "if not isinstance(conversation.feedback, str):"
        )
    )
    rows = windows.rows(60)
    for row in rows[5:20]:
        row["feedback"] = {"value": row["feedback"]}
    first = rows[5]["conversation_id"]
    window(rows)
    traffic.run(params())
    told = capsys.readouterr().out
    why = "the feedback is an object, and the recipe's targets are a text"
    assert (
        "15 of 60 graded conversations cannot become examples; the first: data/inbox/window.jsonl:6, conversation "
        f"{first}" in told
    )
    assert why in told
    drift.run(params())
    report = reports.read(reports.DriftReport, Path("data/drift/report.json"))
    assert (report.num_usable_feedback, why in report.reason) == (45, True)
    assert first in report.reason


def test_what_a_recipe_leaves_out_on_purpose_is_no_alarm(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the right type, and not wanted: counted when the window is read, and no reason of the
    verdict."""
    source = Path("tiny/examples.py")
    source.write_text(
        source.read_text().replace("if conversation.feedback is None:", "if conversation.feedback < '5':")
    )
    window()
    traffic.run(params())
    assert "graded conversations cannot become examples; the first: data/inbox/window.jsonl:" in capsys.readouterr().out
    drift.run(params())
    assert "cannot become" not in reports.read(reports.DriftReport, Path("data/drift/report.json")).reason
