"""A snapshot becomes stage files, or what is wrong with it is named and nothing is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import scripted_windows as windows
import tiny_recipe

from rft import config, files, reports, stage_files
from rft.errors import UserError
from rft.reports import Champion, Manifest, Profile, TrafficReport
from rft.stages import drift, traffic
from rft.traffic import reading


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


def window(rows: list[Any] | None = None, **changes: Any) -> Manifest:
    """Write a log, and ingest it as the flow does."""
    log = windows.write(Path("data/inbox/window.jsonl"), windows.rows(60) if rows is None else rows)
    return windows.take_in(log, params().traffic, **changes)


def stage_bytes() -> dict[str, bytes]:
    places = sorted(Path("data/traffic").rglob("*"))
    return {path.relative_to("data/traffic").as_posix(): path.read_bytes() for path in places if path.is_file()}


def test_a_window_becomes_stage_files(clone: Path) -> None:
    manifest = window(windows.rows(60)[::-1])
    traffic.run(params())
    assert set(stage_bytes()) == {
        "conversations/manifest.json",
        "conversations/part-00000.parquet",
        "current_profile.json",
        "reference_profile.json",
        "references/test.json",
        "references/validation.json",
        "report.json",
    }
    report = reports.read(TrafficReport, Path("data/traffic/report.json"))
    assert (report.num_rows, report.num_conversations, report.num_with_feedback) == (60, 60, 60)
    assert report.sha256 == manifest.sha256 == files.sha256(Path("data/inbox/window.jsonl"))
    assert report.reference == "the training examples of recipe tiny"
    times = [each.time for each in reading.conversations(stage_files.CONVERSATIONS)]
    assert (report.first, report.last) == (min(times), max(times))
    assert times == sorted(times, reverse=True), "in the order of the log"
    assert reports.read(Profile, stage_files.CURRENT_PROFILE).num_conversations == 60
    reference = reports.read(Profile, stage_files.REFERENCE_PROFILE)
    assert reference.num_conversations == 200
    assert "tool_mix" not in reference.features


@pytest.mark.slow
def test_equal_windows_give_equal_bytes(clone: Path) -> None:
    window()
    traffic.run(params())
    first = stage_bytes()
    shutil.rmtree("state")
    window()
    traffic.run(params(processes=1))
    assert stage_bytes() == first


def test_the_stage_files_are_the_snapshot(clone: Path) -> None:
    window()
    traffic.run(params())
    kept = {path.name: path.read_bytes() for path in stage_files.CONVERSATIONS.iterdir()}
    assert kept == {path.name: path.read_bytes() for path in stage_files.SNAPSHOT.iterdir()}


def test_the_hash_is_checked(clone: Path) -> None:
    found = window().sha256
    traffic.run(params(sha256=found))
    with pytest.raises(UserError, match=f"of a log with sha256 {found}, but traffic.sha256 says {'0' * 64}"):
        traffic.run(params(sha256="0" * 64))


def test_a_snapshot_that_was_changed_is_refused(clone: Path) -> None:
    window()
    (part,) = stage_files.SNAPSHOT.glob("*.parquet")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(UserError, match=r"part-00000\.parquet: has changed since it was written"):
        traffic.run(params())
    assert stage_bytes() == {}


@pytest.mark.slow
def test_the_champions_profile_is_the_reference(clone: Path) -> None:
    window()
    traffic.run(params())
    served = reports.read(Profile, stage_files.REFERENCE_PROFILE).model_copy(update={"source": "version 3"})
    reports.write(served, Path("data/champion/profile.json"))
    reports.write(Champion(version=3, profile_path="profile.json"), Path("data/champion/champion.json"))
    traffic.run(params())
    assert reports.read(Profile, stage_files.REFERENCE_PROFILE) == served
    reports.write(
        Champion(version=3, profile_path="profile.json", profile_sha256="0" * 64), Path("data/champion/champion.json")
    )
    message = (
        r"data/champion/profile\.json: not the champion's .*names 0+\. .* dvc checkout data/champion/profile\.json\.dvc"
    )
    with pytest.raises(UserError, match=message):
        traffic.run(params())
    Path("data/champion/profile.json").unlink()
    with pytest.raises(UserError, match=r"data/champion/profile.json: missing"):
        traffic.run(params())


@pytest.mark.slow
def test_the_champions_traffic_is_a_reference_too(clone: Path) -> None:
    window()
    traffic.run(params())
    seen = reports.read(Profile, stage_files.CURRENT_PROFILE)
    reports.write(seen, Path("data/champion/window.json"))
    sha256 = files.sha256(Path("data/champion/window.json"))
    champion = Champion(version=3, window_path="window.json", window_sha256=sha256)
    reports.write(champion, Path("data/champion/champion.json"))
    traffic.run(params())
    assert reports.read(Profile, stage_files.reference_file("window")) == seen
    reports.write(champion.model_copy(update={"window_sha256": "0" * 64}), Path("data/champion/champion.json"))
    with pytest.raises(UserError, match=r"data/champion/window\.json: not the champion's window"):
        traffic.run(params())


def test_what_the_log_held_besides_is_in_the_report(clone: Path) -> None:
    rows = windows.rows(60)
    window([*rows, rows[3], rows[7], {"conversation_id": "c-9"}, rows[3] | {"model": "m", "conversation_id": "new"}])
    traffic.run(params())
    report = reports.read(TrafficReport, Path("data/traffic/report.json"))
    assert (report.num_rows, report.num_conversations) == (64, 61)
    assert report.rejected["repeated"] == 2
    assert [(row.source, row.line) for row in report.unread] == [("data/inbox/window.jsonl", 63)]
    assert report.ignored_keys == {"model": 1}


def test_a_short_or_missing_window_says_so(clone: Path) -> None:
    with pytest.raises(UserError, match="not a snapshot of traffic"):
        traffic.run(params())
    window(windows.rows(10), min_conversations=1)
    with pytest.raises(UserError, match=r"10 conversations, traffic.min_conversations asks for 50"):
        traffic.run(params())


@pytest.mark.slow
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


@pytest.mark.slow
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
