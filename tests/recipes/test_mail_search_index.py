"""recipes/mail_search: own mail, the index, and the tools."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from types import ModuleType
from typing import Any

import changelog_folder
import pytest

from rft import config, recipe
from rft.errors import InfrastructureError, UserError
from rft.recipe import Recipe, ToolError
from rft.tools import signatures


@pytest.fixture(scope="module")
def ours() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe"))


@pytest.fixture(scope="module")
def index(ours: Recipe) -> ModuleType:
    return ours._module("index")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changelog_folder.make(tmp_path_factory.mktemp("doc"))


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: ModuleType) -> None:
    monkeypatch.setenv("RFT_STATE", str(tmp_path / "state"))
    as_a_new_process(index)


def as_a_new_process(index: ModuleType) -> None:
    index.from_mailbox.cache_clear()
    index.stored.cache_clear()


def written(options: dict[str, Any]) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe", options=options))


# -- own mail --------------------------------------------------------------------------------------
def test_an_mbox_and_a_maildir_hold_the_same(tmp_path: Path, index: ModuleType) -> None:
    letters = [
        changelog_folder.letter(
            1, "Re: Re: The boat", "Bien s\u00fbr, 400 euros.", **{"Content-Type": "text/plain; charset=utf-8"}
        ),
        changelog_folder.letter(2, "The boat", "<p>Is it <b>sold</b>&nbsp;?</p>", **{"Content-Type": "text/html"}),
        changelog_folder.letter(3, "=?utf-8?q?Caf=C3=A9?=", "At noon.", **{"Message-ID": ""}),
    ]
    mbox = changelog_folder.make_mbox(tmp_path / "box", letters)
    maildir = changelog_folder.make_maildir(tmp_path / "Maildir")
    for n, one in enumerate(letters):
        (maildir / ("new" if n else "cur") / f"17{n}.host:2,S").write_bytes(one)
    found = [index.from_mailbox(str(path)).all for path in (mbox, maildir)]
    assert found[0] == found[1]
    boat, question, cafe = found[0]
    assert (boat.thread, boat.sender, boat.recipients) == ("the boat", "Person 1", "Me me@example.org")
    assert question.thread == boat.thread, "a thread is in one split"
    assert question.body == "Is it  sold \xa0?"
    assert cafe.subject == "Caf\u00e9"


def test_examples_of_own_mail(tmp_path: Path) -> None:
    mbox, questions = changelog_folder.make_own(tmp_path, letters=80)
    ours = written({"mailbox": str(mbox), "questions": str(questions)})
    rows = {split: ours.examples(split, 8 if split == "train" else 4, 0) for split in ("train", "validation", "test")}
    asked = [row.messages[0]["content"] for found in rows.values() for row in found]
    assert len(set(asked)) == len(asked) == 16
    search, read, _ = ours.tools
    for row in (row for found in rows.values() for row in found if row.target["answer"]):
        hit = search(row.target["search"], item=row.row())
        assert hit.endswith(row.target["message_id"])
        assert row.target["answer"] in read(row.target["message_id"], item=row.row())
    with pytest.raises(UserError, match=r"recipe\.options\.questions.*policy\.model"):
        list(ours.demonstrations(1, 0))
    with pytest.raises(UserError, match=r"recipe\.options\.questions.*policy\.model"):
        ours.simulate(tmp_path / "w", start=None, days=1, conversations=1, drifted=False, seed=0)


def test_a_target_of_own_mail_is_reached_however_long_its_question_is(tmp_path: Path) -> None:
    mbox, questions = changelog_folder.make_own(tmp_path)
    long = {"question": "Who, " + "as far as anyone knows, " * 20 + "paid?", "answer": None, "message_id": None}
    questions.write_text(json.dumps(long) + "\n")
    ours = written({"mailbox": str(mbox), "questions": str(questions)})
    questions_of = ours._module("own").read(ours._module("index").from_mailbox(str(mbox)), str(questions))
    row = ours._module("examples")._example(
        "n", questions_of[0], ours._module("index").from_mailbox(str(mbox)), ours.options
    )
    search_call = json.loads(ours.turns(row, row.target)[0].splitlines()[1])
    schema = signatures.schema(ours.tools[0])["function"]["parameters"]["properties"]
    assert len(search_call["arguments"]["keywords"]) <= schema["keywords"]["maxLength"]


# -- the index -------------------------------------------------------------------------------------
def test_search(folder: Path, index: ModuleType) -> None:
    found = index.from_mailbox(str(folder))
    mail = next(mail for mail in found.all if mail.bugs)
    assert found.search(mail.subject) == (mail,)
    assert found.search(f"{mail.thread.upper()} #{mail.bugs[0]}.") == (mail,)
    latest = found.search(mail.thread, limit=3)
    assert [one.date for one in latest] == sorted((one.date for one in latest), reverse=True)
    assert len(latest) == 3
    assert found.search(f"{mail.thread} nobody") == ()
    day = mail.day
    on_that_day = found.search(mail.thread, sender=mail.sender, after=day, before=day[:-2] + "99")
    assert mail in on_that_day
    assert found.search(mail.thread, before=day[:4] + "-01-01") == () or mail not in found.search(
        mail.thread, before=day
    )


@pytest.mark.parametrize(
    "query", ['"', "a OR b", "NEAR(a b)", "text:*", "*", "(", "-- ;", "pack001 AND pack002", "\u0000"]
)
def test_no_query_is_a_command(query: str, folder: Path, index: ModuleType) -> None:
    assert index.from_mailbox(str(folder)).search(f"pack001 {query}", limit=5) is not None


def test_the_index_is_made_once_and_whole(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    first = index.from_mailbox(str(folder))
    stamp = first.path.stat().st_mtime_ns
    as_a_new_process(index)
    assert index.from_mailbox(str(folder)) == first
    assert first.path.stat().st_mtime_ns == stamp
    assert [path.name for path in (tmp_path / "state" / "cache").iterdir()] == [f"mail_search-{first.key}.sqlite"]


def test_a_full_disk_leaves_nothing(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    """A limit on the size of files stands for the disk: the write itself fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(InfrastructureError, match=r"\.sqlite: cannot be written .*Free some space"):
            index.from_mailbox(str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "state" / "cache").iterdir())


def test_a_mailbox_that_changed(tmp_path: Path, index: ModuleType) -> None:
    """The old index goes on answering; once it is gone, the message says what to do."""
    folder = changelog_folder.make(tmp_path / "doc", packages=40)
    old = index.from_mailbox(str(folder))
    changelog_folder.write(
        folder, "fresh", "fresh (1.0) unstable;\n\n -- Ada <a@example.org>  1 May 2019 10:00:00 +0000\n"
    )
    as_a_new_process(index)
    assert index.from_mailbox(str(folder)).key != old.key
    assert index.stored(str(folder), old.key) == old
    old.path.unlink()
    as_a_new_process(index)
    with pytest.raises(UserError, match=r"has changed since the examples were made.*examples\.seed"):
        index.stored(str(folder), old.key)


def test_a_missing_index_is_made_again(folder: Path, index: ModuleType) -> None:
    """As in the worktree of another run, whose examples came out of DVC's cache."""
    made = index.from_mailbox(str(folder))
    os.unlink(made.path)
    as_a_new_process(index)
    assert index.stored(str(folder), made.key) == made
    assert made.path.exists()


# -- the tools -------------------------------------------------------------------------------------
def test_tools(ours: Recipe, folder: Path, index: ModuleType) -> None:
    search, read, final = ours.tools
    inbox = index.from_mailbox(str(folder))
    item = {"metadata": {"mailbox": str(folder), "inbox": inbox.key}}
    mail = next(mail for mail in inbox.all if mail.bugs and mail.sender.startswith("\u00c9dith"))
    hit = search(f" {mail.subject}", item=item)
    assert hit == f" {mail.subject} | {mail.id}"
    shown = search(f" {mail.subject}", show="subject, sender, date", item=item)
    assert shown == f" {mail.subject} ; edith {mail.sender.split()[1].lower()} ; date {mail.day} | {mail.id}"
    text = read(f" {mail.id}", item=item)
    assert text.startswith(f" | {mail.id} ; from edith ")
    assert text.endswith(f"closes {mail.bugs[0]}")
    item["metadata"]["whole"] = True
    whole = read(mail.id, item=item)
    assert f"From: {mail.sender} <edith@example.org>" in whole
    assert f"(Closes: #{mail.bugs[0]})" in whole
    assert search(" nothing like it", item=item) == " no mails"
    assert final(None, []) == " received"
    for refused in (
        lambda: search(" . ", item=item),
        lambda: search(" pack001", sent_after="May", item=item),
        lambda: read("m000000", item=item),
    ):
        with pytest.raises(ToolError):
            refused()


def test_rows_are_plain_json(folder: Path) -> None:
    (row,) = written({"mailbox": str(folder)}).examples("train", 1, 0)
    assert json.loads(row.line)["metadata"]["mailbox"] == str(folder)
