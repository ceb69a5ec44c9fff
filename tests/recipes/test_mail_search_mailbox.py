"""recipes/mail_search: where mails come from, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import changelog_folder
import pytest

from rft import config, recipe
from rft.errors import UserError
from rft.recipe import Recipe


@pytest.fixture(scope="module")
def ours() -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe"))


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
    as_a_new_process(index)


def as_a_new_process(index: ModuleType) -> None:
    index.from_mailbox.cache_clear()
    index.stored.cache_clear()


def written(options: dict[str, Any]) -> Recipe:
    return recipe.load(config.Recipe(path="recipes/mail_search/recipe", options=options))


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

  * LP: #12345 is not a bug of Debian.

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
    """A line in Latin-1 does not spoil the others, packages of one source count once, and a link to
    what was left out counts for nothing."""
    folder = changelog_folder.make(tmp_path / "doc", packages=30, uploads=2)
    entry = CHANGELOG.split("\n\napt (1.8.1)")[0].replace("Jane Doe", "J\u00f6rg Do\u00e9")
    for name in ("apt", "libapt"):
        changelog_folder.write(folder, name, entry.encode("latin-1"))
    (folder / "linked").symlink_to(folder / "apt")
    (folder / "cut").mkdir()
    (folder / "cut" / "changelog.Debian.gz").symlink_to(folder / "left-out" / "changelog.Debian.gz")
    (mail,) = [mail for mail in index.from_mailbox(str(folder)).all if mail.thread == "apt"]
    assert mail.sender == "J\u00f6rg Do\u00e9"
    assert len(index.from_mailbox(str(folder)).all) == 61


def test_ids_are_stable_and_apart(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    whole = index.from_mailbox(str(folder)).all
    assert len({mail.id for mail in whole}) == len(whole) == 960
    assert [mail.date for mail in whole] == sorted(mail.date for mail in whole)
    fewer = index.from_mailbox(str(changelog_folder.make(tmp_path / "doc", packages=40))).all
    ids = {mail.key: mail.id for mail in whole}
    assert sum(ids.get(mail.key) == mail.id for mail in fewer) > 0.9 * len(fewer)


# -- what is refused -------------------------------------------------------------------------------
def test_too_few_changelogs_say_what_to_do(tmp_path: Path, index: ModuleType) -> None:
    folder = changelog_folder.make(tmp_path / "doc", packages=3)
    with pytest.raises(UserError, match=r"3 folders with a changelog\.Debian\.gz, expected at least 30") as refused:
        index.from_mailbox(str(folder))
    assert "path-exclude" in str(refused.value)
    assert "mbox" in str(refused.value)


def test_a_machine_without_changelogs_is_told_what_to_do(ours: Recipe, tmp_path: Path, changelogs: ModuleType) -> None:
    """Also one without the folder: the default is a folder of changelogs, even if it is missing."""
    mails, index = ours._module("mails"), ours._module("index")
    assert index.source(mails.CHANGELOGS) == changelogs.Changelogs(Path(mails.CHANGELOGS))
    nothing = changelogs.Changelogs(tmp_path / "usr" / "share" / "doc")
    with pytest.raises(UserError, match=r"0 folders with a changelog\.Debian\.gz.*path-exclude.*copy /usr/share/doc"):
        nothing.fingerprint()


def test_a_changelog_that_cannot_be_decompressed_is_named(folder: Path, tmp_path: Path, index: ModuleType) -> None:
    broken = changelog_folder.write(changelog_folder.make(tmp_path / "doc", packages=30), "broken", "x" * 5000)
    broken.write_bytes(broken.read_bytes()[:20])
    with pytest.raises(UserError, match=r"broken/changelog\.Debian\.gz: cannot be decompressed .* Reinstall"):
        index.from_mailbox(str(tmp_path / "doc"))
    assert not any(path.is_file() for path in (tmp_path / "state").rglob("*"))


def no_date(path: Path) -> Path:
    letters = [changelog_folder.letter(1, "One"), changelog_folder.letter(2, "Two", Date="")]
    return changelog_folder.make_mbox(path, letters)


def wrong_date(path: Path) -> Path:
    return changelog_folder.make_mbox(path, [changelog_folder.letter(1, "One", Date="yesterday")])


def no_headers(path: Path) -> Path:
    return changelog_folder.make_mbox(path, [changelog_folder.letter(1, "One"), b"\nonly text\n"])


def content(given: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(given)
        return path

    return write


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "there is no such file or folder"),
        (content(b""), "the mailbox is empty"),
        (content(b"\n\n"), "the mailbox is empty"),
        (changelog_folder.make_maildir, "the mailbox is empty"),
        (content(b"\x00\x01PK binary"), "is not an mbox: its first line is"),
        (
            content(b"Subject: hello\n\nHi.\n"),
            r"is not an mbox: its first line is 'Subject: hello', expected one that begins",
        ),
        (no_headers, r"message 2 has no headers: the file is damaged"),
        (no_date, r"message 2 \('Two'\): it has no Date"),
        (wrong_date, r"message 1 \('One'\): its Date is 'yesterday'"),
    ],
)
def test_mailboxes_that_are_refused(make: Any, message: str, tmp_path: Path, index: ModuleType) -> None:
    """With the file or key in the message, and nothing half-made."""
    path = make(tmp_path / "box")
    with pytest.raises(UserError, match=message) as error:
        index.from_mailbox(str(path))
    assert str(path) in str(error.value)
    assert not any(path.is_file() for path in (tmp_path / "state").rglob("*"))


def test_a_header_that_the_parser_breaks_on_is_taken_as_it_was_written(tmp_path: Path, index: ModuleType) -> None:
    broken = {"From": "Ann <ann@example.org>, <", "To": "bob@example.org, tba1 @"}
    path = changelog_folder.make_mbox(tmp_path / "own.mbox", [changelog_folder.letter(1, "One", **broken)])
    (mail,) = index.from_mailbox(str(path)).all
    assert (mail.sender, mail.address) == ("Ann", "ann@example.org")
    assert "bob@example.org" in mail.recipients


def test_own_mail_needs_own_questions(tmp_path: Path) -> None:
    mbox, _ = changelog_folder.make_own(tmp_path)
    with pytest.raises(UserError, match=r"mailbox = .*archive\.mbox'.* recipe\.options\.questions"):
        written({"mailbox": str(mbox)}).examples("train", 1, 0)


@pytest.mark.parametrize(
    ("line", "message"),
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
def test_questions_that_are_refused(line: str, message: str, tmp_path: Path) -> None:
    mbox, questions = changelog_folder.make_own(tmp_path)
    questions.write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        written({"mailbox": str(mbox), "questions": str(questions)}).examples("train", 1, 0)


def test_too_few_questions_are_counted(tmp_path: Path, folder: Path) -> None:
    mbox, questions = changelog_folder.make_own(tmp_path)
    ours = written({"mailbox": str(mbox), "questions": str(questions)})
    with pytest.raises(UserError, match=r"questions for test, 900 are asked for.*lower examples\.test"):
        ours.examples("test", 900, 0)
    with pytest.raises(UserError, match=r"questions for test, 9000 are asked for.*lower examples\.test"):
        written({"mailbox": str(folder)}).examples("test", 9000, 0)
