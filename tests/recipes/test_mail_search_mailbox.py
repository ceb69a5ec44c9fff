"""recipes/mail_search: where mails come from, what is refused, and the index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import changelog_folder
import pytest

from rft import config, recipe
from rft.errors import InfrastructureError, UserError
from rft.recipe import Recipe, ToolError


@pytest.fixture(scope="module")
def ours() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search"))


@pytest.fixture(scope="module")
def index(ours: Recipe) -> ModuleType:
    return ours._module("index")


@pytest.fixture(scope="module")
def changelogs(ours: Recipe) -> ModuleType:
    return ours._module("changelogs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changelog_folder.make(tmp_path_factory.mktemp("doc"))


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: ModuleType) -> None:
    monkeypatch.setenv("RFT_STATE", str(tmp_path / "state"))
    index.stored.cache_clear()


def written(options: dict[str, Any]) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search", options=options))


# -- changelogs ------------------------------------------------------------------------------------
CHANGELOG = """
apt (1.8.2-1) unstable; urgency=medium

  [ Somebody Else ]
  * Fix a crash (Closes: #929273, #929274)
  * Closes: bug#929300.

 -- Jane Doe <jane@example.org>  Tue, 28 May 2019 23:37:45 +0200

apt (1.8.1) unstable; urgency=low

  * An entry without its end

apt (1.8.0) UNRELEASED; urgency=low

  * No date that anyone could read.

 -- Jane Doe <jane@example.org>  some day in May

apt (1.7) unstable; urgency=low

  * LP: #12345 is no bug of Debian.

 -- Jane Doe <jane@example.org>  Mon,  7 Jan 2019 10:00:00 +0000
"""


def test_entries_of_a_changelog(changelogs: ModuleType) -> None:
    newest, oldest = changelogs.entries(CHANGELOG)
    assert (newest.key, newest.thread, newest.version) == ("apt 1.8.2-1", "apt", "1.8.2-1")
    assert (newest.sender, newest.address, newest.day) == ("Jane Doe", "jane@example.org", "2019-05-28")
    assert newest.bugs == ("929273", "929274", "929300")
    assert "An entry without its end" not in oldest.body
    assert (oldest.version, oldest.bugs) == ("1.7", ())


def test_old_letters_and_shared_changelogs(ours: Recipe, tmp_path: Path, index: ModuleType) -> None:
    """A line in Latin-1 does not spoil the others, and packages of one source count once."""
    folder = changelog_folder.make(tmp_path / "doc", packages=30, uploads=2)
    entry = CHANGELOG.split("\n\napt (1.8.1)")[0].replace("Jane Doe", "J\u00f6rg Do\u00e9")
    for name in ("apt", "libapt"):
        changelog_folder.write(folder, name, entry.encode("latin-1"))
    (folder / "linked").symlink_to(folder / "apt")
    (mail,) = [mail for mail in index.of(str(folder)).all if mail.thread == "apt"]
    assert mail.sender == "J\u00f6rg Do\u00e9"
    assert len(index.of(str(folder)).all) == 61


def test_ids_are_stable_and_apart(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    whole = index.of(str(folder)).all
    assert len({mail.id for mail in whole}) == len(whole) == 960
    assert [mail.date for mail in whole] == sorted(mail.date for mail in whole)
    fewer = index.of(str(changelog_folder.make(tmp_path / "doc", packages=40))).all
    ids = {mail.key: mail.id for mail in whole}
    assert sum(ids.get(mail.key) == mail.id for mail in fewer) > 0.9 * len(fewer)


# -- what is refused -------------------------------------------------------------------------------
def test_too_few_changelogs_say_what_to_do(tmp_path: Path, index: ModuleType) -> None:
    folder = changelog_folder.make(tmp_path / "doc", packages=3)
    with pytest.raises(UserError, match=r"3 folders with a changelog\.Debian\.gz, expected at least 30") as said:
        index.of(str(folder))
    assert "path-exclude" in str(said.value)
    assert "mbox" in str(said.value)


def test_a_changelog_that_cannot_be_decompressed_is_named(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    broken = changelog_folder.write(changelog_folder.make(tmp_path / "doc", packages=30), "broken", "x" * 5000)
    broken.write_bytes(broken.read_bytes()[:20])
    with pytest.raises(UserError, match=r"broken/changelog\.Debian\.gz: cannot be decompressed .* Reinstall"):
        index.of(str(tmp_path / "doc"))
    assert not list((tmp_path / "state").rglob("*"))


def no_date(path: Path) -> Path:
    letters = [changelog_folder.letter(1, "One"), changelog_folder.letter(2, "Two", Date="")]
    return changelog_folder.make_mbox(path, letters)


def wrong_date(path: Path) -> Path:
    return changelog_folder.make_mbox(path, [changelog_folder.letter(1, "One", Date="yesterday")])


def no_headers(path: Path) -> Path:
    return changelog_folder.make_mbox(path, [changelog_folder.letter(1, "One"), b"\nonly text\n"])


def empty_maildir(path: Path) -> Path:
    for name in ("cur", "new", "tmp"):
        (path / name).mkdir(parents=True)
    return path


def content(given: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(given)
        return path

    return write


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path, "there is no such file or folder"),
        (content(b""), "the mailbox is empty"),
        (content(b"\n\n"), "the mailbox is empty"),
        (empty_maildir, "the mailbox is empty"),
        (content(b"\x00\x01PK binary"), "is no mbox: its first line is"),
        (
            content(b"Subject: hello\n\nHi.\n"),
            r"is no mbox: its first line is 'Subject: hello', expected one that begins",
        ),
        (no_headers, r"message 2 has no headers: the file is damaged"),
        (no_date, r"message 2 \('Two'\): it has no Date"),
        (wrong_date, r"message 1 \('One'\): its Date is 'yesterday'"),
    ],
)
def test_mailboxes_that_are_refused(make: Any, said: str, tmp_path: Path, index: ModuleType) -> None:
    """With the file or key in the message, and nothing half-made."""
    path = make(tmp_path / "box")
    with pytest.raises(UserError, match=said) as error:
        index.of(str(path))
    assert str(path) in str(error.value)
    assert not list((tmp_path / "state").rglob("*"))


def test_own_mail_needs_own_questions(tmp_path: Path) -> None:
    mbox, _ = changelog_folder.make_own(tmp_path)
    with pytest.raises(UserError, match=r"mailbox = .*archive\.mbox'.* recipe\.options\.questions"):
        written({"mailbox": str(mbox)}).examples("train", 1, 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"questions\.jsonl:1: not JSON"),
        ('{"question": "q", "answer": "a"}', r"questions\.jsonl:1: message_id: Field required"),
        ('{"question": "q", "answer": "a", "message_id": "<1@example.org>", "x": 1}', r"x: Extra inputs"),
        ('{"question": " ", "answer": null, "message_id": null}', "the question is empty"),
        ('{"question": "q", "answer": "a", "message_id": null}', "both given, or both null"),
        ('{"question": "q", "answer": "a", "message_id": "<none@example.org>"}', "no mail has this Message-ID"),
        ('{"question": "q", "answer": "I don\'t know.", "message_id": "<1@example.org>"}', "says nothing"),
        ("", "holds no question"),
    ],
)
def test_questions_that_are_refused(line: str, said: str, tmp_path: Path) -> None:
    mbox, questions = changelog_folder.make_own(tmp_path)
    questions.write_text(line + "\n")
    with pytest.raises(UserError, match=said):
        written({"mailbox": str(mbox), "questions": str(questions)}).examples("train", 1, 0)


def test_too_few_questions_are_counted(tmp_path: Path, folder: Path) -> None:
    mbox, questions = changelog_folder.make_own(tmp_path)
    ours = written({"mailbox": str(mbox), "questions": str(questions)})
    with pytest.raises(UserError, match=r"questions for test, 900 are asked for.*lower examples\.test"):
        ours.examples("test", 900, 0)
    with pytest.raises(UserError, match=r"questions for test, 9000 are asked for.*lower examples\.test"):
        written({"mailbox": str(folder)}).examples("test", 9000, 0)


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
    maildir = empty_maildir(tmp_path / "Maildir")
    for n, one in enumerate(letters):
        (maildir / ("new" if n else "cur") / f"17{n}.host:2,S").write_bytes(one)
    found = [index.of(str(path)).all for path in (mbox, maildir)]
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


# -- the index -------------------------------------------------------------------------------------
def test_search(folder: Path, index: ModuleType) -> None:
    found = index.of(str(folder))
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
    assert index.of(str(folder)).search(f"pack001 {query}", limit=5) is not None


def test_the_index_is_made_once_and_whole(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    first = index.of(str(folder))
    stamp = first.path.stat().st_mtime_ns
    assert index.of(str(folder)) == first
    assert first.path.stat().st_mtime_ns == stamp
    assert [path.name for path in (tmp_path / "state" / "cache").iterdir()] == [f"mail_search-{first.key}.sqlite"]


def test_a_full_disk_leaves_nothing(
    folder: Path, tmp_path: Path, index: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, mails: list[Any]) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index, "_write", full)
    with pytest.raises(InfrastructureError, match=r"cannot be written .*No space left"):
        index.of(str(folder))
    assert not list((tmp_path / "state" / "cache").iterdir())


def test_a_mailbox_that_changed(tmp_path: Path, index: ModuleType) -> None:
    """The old index goes on answering; once it is gone, the message says what to do."""
    folder = changelog_folder.make(tmp_path / "doc", packages=40)
    old = index.of(str(folder))
    changelog_folder.write(folder, "fresh", CHANGELOG)
    assert index.of(str(folder)).key != old.key
    assert index.stored(str(folder), old.key) == old
    old.path.unlink()
    index.stored.cache_clear()
    with pytest.raises(UserError, match=r"has changed since the examples were made.*examples\.seed"):
        index.stored(str(folder), old.key)


def test_a_missing_index_is_made_again(folder: Path, index: ModuleType) -> None:
    """As in the worktree of another run, whose examples came out of DVC's cache."""
    made = index.of(str(folder))
    os.unlink(made.path)
    index.stored.cache_clear()
    assert index.stored(str(folder), made.key) == made
    assert made.path.exists()


# -- the tools -------------------------------------------------------------------------------------
def test_tools(ours: Recipe, folder: Path, index: ModuleType) -> None:
    search, read, final = ours.tools
    inbox = index.of(str(folder))
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
