"""Near-duplicates on the page of a run: shares, pairs side by side, and no text of the test set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rft import page, reports
from rft.errors import UserError
from rft.page import nearly
from rft.page.inputs import StageFiles
from rft.reports import NearDuplicates, NearPair
from tests import sample_reports
from tests.page.test_page import EVIL, RUN, Outline

TITLE = "Inputs that nearly repeat each other"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(sample_reports.stage_files("promote"), tmp_path, dirs_exist_ok=True)
    stage_folder = tmp_path / "data/examples"
    for split in ("train", "validation", "test"):
        rows = [
            {"id": f"{split}-{n}", "messages": [{"role": "user", "content": f"{split} asks about {n} {EVIL}"}]}
            for n in range(20)
        ]
        (stage_folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (stage_folder / "keys.json").write_text('{"id": "id", "target": null, "slice": null}')
    return tmp_path


def pairs(of: str, inside: str, count: int) -> NearDuplicates:
    named = {"block 0": "test", "block 1": "test"}
    some = [
        NearPair(id=f"{named.get(inside, inside)}-{n}", repeats=f"{named.get(of, of)}-{n + 1}", similarity=0.834)
        for n in range(min(count, 10))
    ]
    return NearDuplicates(of=of, inside=inside, num_examples=count, share=count / 96, pairs=some)


def found(root: Path, *given: NearDuplicates) -> None:
    path = root / "data/examples/report.json"
    report = reports.read(reports.ExamplesReport, path)
    reports.write(report.model_copy(update={"near_duplicates": list(given)}), path)


def card(root: Path, opened: int | None = None) -> str:
    text = page.render(root, RUN, opened=opened)
    assert not {"script", "img"} & set(Outline(text).tags)
    inside = text.split(f"<h2>{TITLE}</h2>")[1].split("</section>")[0]
    return " ".join(Outline(f"<div>{inside}</div>").text.split())


def test_pairs_that_people_may_read_stand_side_by_side(root: Path) -> None:
    found(root, pairs("train", "validation", 14), pairs("train", "test", 0))
    text = card(root)
    assert "validation train 14 14.6 %" in text
    assert "test train 0 –" in text
    assert "14 examples of validation like one of train; the first 10" in text
    for n in range(10):
        assert f"validation, validation-{n} validation asks about {n} <script>" in text
        assert f"train, train-{n + 1} train asks about {n + 1} <script>" in text
    assert text.count("83 % alike") == 10
    assert "examples.max_near_duplicates" in text


@pytest.mark.parametrize(("of", "inside"), [("train", "test"), ("validation", "test"), ("block 0", "block 1")])
def test_of_a_test_example_only_ids_are_shown_until_the_test_set_is_open(root: Path, of: str, inside: str) -> None:
    found(root, pairs(of, inside, 3))
    text = card(root)
    assert "the test set stays closed" in text
    assert "A score on inputs that were nearly trained on" in text
    assert text.count("test-") == (6 if of == "block 0" else 3)
    assert "asks about" not in text
    text = card(root, opened=12)
    assert "test asks about 2" in text
    assert "test set stays closed" not in text


def test_closed_pairs_do_not_close_the_others(root: Path) -> None:
    found(root, pairs("train", "validation", 2), pairs("train", "test", 2), pairs("validation", "test", 2))
    text = card(root)
    assert "validation asks about 1" in text
    assert "test asks about" not in text
    assert text.count("the test set stays closed") == 2


def test_none_is_said_and_not_looked_for_is_not_claimed(root: Path) -> None:
    found(root, pairs("train", "validation", 0), pairs("train", "test", 0))
    assert card(root) == "None: no input nearly repeats one of an earlier split."
    found(root)
    assert TITLE not in page.render(root, RUN)
    assert nearly.card_of(StageFiles.read(root / "nowhere")) is None


def test_texts_that_are_gone_leave_the_ids(root: Path) -> None:
    found(root, pairs("train", "validation", 2))
    (root / "data/examples/train.jsonl").unlink()
    text = card(root)
    assert "validation-0 train-1 83 %" in text
    assert "asks about" not in text


def test_damaged_rows_are_an_error_with_their_place(root: Path) -> None:
    found(root, pairs("train", "validation", 2))
    (root / "data/examples/train.jsonl").write_text('{"id"')
    with pytest.raises(UserError, match=r"train\.jsonl:1"):
        page.render(root, RUN)
    (root / "data/examples/keys.json").write_text("{")
    with pytest.raises(UserError, match=r"keys\.json: missing, or not the keys"):
        page.render(root, RUN)
