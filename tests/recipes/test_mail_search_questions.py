"""recipes/mail_search: the questions, their splits, and those without an answer."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import changelog_folder
import pytest
from pydantic import ValidationError

from rft import config, recipe
from rft.errors import ConfigError
from rft.recipe import Example, Recipe
from rft.stages import examples as stage

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFT_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changelog_folder.make(tmp_path_factory.mktemp("doc"))


def written(folder: Path, **options: Any) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe", options={"mailbox": str(folder), **options}))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Recipe:
    return written(folder)


@pytest.fixture(scope="module")
def rows(ours: Recipe) -> dict[str, list[Example]]:
    return {split: ours.examples(split, 400 if split == "train" else 60, 0) for split in SPLITS}


@pytest.fixture(scope="module")
def inbox(ours: Recipe) -> Any:
    return ours._module("examples").inbox_of(ours.options)


def test_splits_share_no_package(rows: dict[str, list[Example]], ours: Recipe) -> None:
    named = {split: {row.metadata["named"] for row in found} for split, found in rows.items()}
    assert not named["train"] & named["validation"]
    assert not named["train"] & named["test"]
    assert not named["validation"] & named["test"]
    split_of = ours._module("questions").split_of
    assert all(split_of(package) == split for split, found in named.items() for package in found)
    shares = [sum(split_of(f"package {n}") == split for n in range(5000)) / 5000 for split in SPLITS]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_the_stage_finds_no_leak(rows: dict[str, list[Example]]) -> None:
    leaked = stage.check_leakage({split: rows[split] for split in SPLITS}, disjoint_targets=False)
    assert set(leaked.values()) == {0}


def test_examples_are_repeatable_and_apart(ours: Recipe, rows: dict[str, list[Example]]) -> None:
    assert ours.examples("test", 60, 0) == rows["test"]
    assert ours.examples("test", 20, 0) == rows["test"][:20]
    assert ours.examples("test", 60, 1) != rows["test"]
    for found in rows.values():
        texts = [row.messages[0]["content"] for row in found]
        assert len(set(texts)) == len(texts)


def test_each_question_has_one_mail_that_answers_it(ours: Recipe, rows: dict[str, list[Example]], inbox: Any) -> None:
    """And the words that it names find it."""
    seen: set[str] = set()
    for row in rows["train"] + rows["test"]:
        target, kind = row.target, row.metadata["kind"]
        if target["answer"] is None:
            continue
        seen.add(kind)
        mail = inbox.mail(target["message_id"])
        assert mail in inbox.search(target["search"])
        told = ours._module("clerk").told(kind, mail)
        assert ours._module("judge").is_right(told, target["answer"], target["form"])
        text = row.messages[0]["content"]
        assert f" {mail.thread} " in text
        assert (f" {mail.version} " in text) == (kind != "version")
        if kind == "version":
            (bug,) = mail.bugs
            closing = [one for one in inbox.all if one.thread == mail.thread and bug in one.bugs]
            assert closing == [mail]
        if kind == "bug":
            assert len(mail.bugs) == 1
    assert seen == {"bug", "who", "when", "version"}


@pytest.mark.slow
def test_what_is_unanswerable_is_nowhere(rows: dict[str, list[Example]], inbox: Any) -> None:
    """Checked without the index: no mail holds all the words."""
    for split, found in rows.items():
        without = [row for row in found if row.target["answer"] is None]
        assert len(without) == int(0.15 * len(found)), split
        for row in without:
            assert row.slice == "unanswerable"
            assert row.target["message_id"] is None
            words = row.target["search"].split()
            for mail in inbox.all:
                text = f" {mail.subject} {mail.sender} {mail.body} ".lower().replace("\u00e9", "e")
                held = set(re.sub(r"[#(),:]|\.(?=\s)", " ", text).split())
                assert not held.issuperset(words)
            assert row.metadata["named"] in words
    kinds = {row.metadata["kind"] for row in rows["train"] if row.target["answer"] is None}
    assert kinds == {"bug", "who", "when", "version"}


def test_packages_come_in_turn(rows: dict[str, list[Example]]) -> None:
    """One with many uploads is not asked for all the time."""
    counts = [
        sum(row.metadata["named"] == name for row in rows["test"])
        for name in {row.metadata["named"] for row in rows["test"]}
    ]
    assert max(counts) <= 4 * min(counts) + 4


def test_by_month_and_whole_mails(folder: Path, inbox: Any) -> None:
    """The harder options: a month in place of a version, and answers as they were written."""
    hard = written(folder, by_month=True, whole_mails=True)
    search = hard.tools[0]
    questions = hard._module("questions")
    for row in hard.examples("train", 150, 0):
        first, after = questions.months(row.metadata["month"])
        reply = search(row.target["search"], sent_after=first, sent_before=after, item=row.row())
        if row.target["answer"] is None:
            assert reply == " no mails"
        else:
            assert reply.endswith(row.target["message_id"])
            assert "\n" not in reply, "one upload in that month"
    assert questions.months("2019-12") == ("2019-12-01", "2020-01-01")
    assert questions.months("2019-01") == ("2019-01-01", "2019-02-01")
    who = [row for row in hard.examples("train", 150, 0) if row.metadata["kind"] == "who" and row.target["answer"]]
    assert any("\u00c9dith" in row.target["answer"] for row in who)


def test_kinds_and_shares_can_be_chosen(folder: Path) -> None:
    only = written(folder, kinds=["who"], unanswerable_share=0).examples("train", 100, 0)
    assert {row.slice for row in only} == {"who"}
    half = written(folder, unanswerable_share=0.5).examples("train", 100, 0)
    assert sum(row.slice == "unanswerable" for row in half) == 50


@pytest.mark.parametrize(
    "options", [{"kinds": []}, {"kinds": ["why"]}, {"unanswerable_share": 0.6}, {"mailboxes": "x"}]
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.options"):
        recipe.load(config.Recipe(path="recipes/mail_search/recipe", options=options))
    assert issubclass(ValidationError, ValueError)


def test_asking_again_and_again_goes_round(ours: Recipe, inbox: Any) -> None:
    """Demonstrations may be more than there are questions."""
    questions, style = ours._module("questions"), ours._module("examples").style(ours.options)
    count = len(list(questions.write(inbox, style, "validation", random.Random(0))))
    stream = questions.write(inbox, style, "validation", random.Random(0), repeat=True)
    assert len([next(stream) for _ in range(2 * count)]) == 2 * count


def test_features(ours: Recipe, rows: dict[str, list[Example]]) -> None:
    for row in rows["train"]:
        assert ours.features(list(row.messages))["asks"] == row.metadata["kind"], row.messages
    templates: ModuleType = ours._module("simulator").DRIFTED.templates
    names = {"author": "bo rook", "upload": "pack001 1.2-1", "package": "pack001", "bug": "100001"}
    for kind, forms in templates.items():  # type: ignore[attr-defined]
        for form in forms:
            assert ours._module("examples").asks(form.format_map(names)) == kind
