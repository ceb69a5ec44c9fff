"""The mailbox as an SQLite database with a full-text index, made once and then only read.

    from_mailbox(mailbox)    the Index of a source as it is
    stored(mailbox, key)     the Index with this key, for a tool that was given both with the row

The key is a hash of the source's bytes and of FORMAT. The file `mail_search-KEY.sqlite` in the
clone's `.rft/cache/` is written whole or not at all. So a mailbox that changes gets another index,
and examples of the old mailbox still find the old index.

FTS5 finds the mails that hold *all* words of a query, newest first: rows are numbered in order of
time. `mails.fold` makes the words, so that a version such as `1.8.2-3` is one word, and a query
cannot hold FTS5's own operators.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rft import files
from rft.errors import UserError

from . import changelogs, letters
from .mails import CHANGELOGS, OPTION, Mail, Source, fold

MAX_WORDS = 200
"""The most characters of a query."""
FORMAT = 1
"""Raise it when a stored index changes its meaning."""
_TABLES = """
CREATE TABLE mails (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, key TEXT, thread TEXT, sender TEXT, address TEXT, recipients TEXT,
    date TEXT, moment REAL, subject TEXT, body TEXT, version TEXT, bugs TEXT, people TEXT, receivers TEXT
);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize="unicode61 remove_diacritics 0 tokenchars '.+~:@_-'");
"""
_COLUMNS = "id, key, thread, sender, address, recipients, date, subject, body, version, bugs"


@dataclass(frozen=True)
class Index:
    key: str
    path: Path

    def search(
        self,
        words: str = "",
        limit: int = 10,
        sender: str = "",
        recipient: str = "",
        after: str = "",
        before: str = "",
    ) -> tuple[Mail, ...]:
        """Return the newest mails that hold all words and were sent by and to these people, on the
        day `after` or later, and before the day `before`."""
        return _search(self, fold(words), limit, fold(sender), fold(recipient), after, before)

    def mail(self, mail_id: str) -> Mail | None:
        return next(iter(self._select("WHERE id = ?", mail_id)), None)

    @functools.cached_property
    def all(self) -> list[Mail]:
        """Return every mail, oldest first."""
        return self._select("ORDER BY number")

    def _select(self, rest: str, *values: str | int) -> list[Mail]:
        rows = _connection(self.path).execute(f"SELECT {_COLUMNS} FROM mails {rest}", values)
        return [
            Mail(
                id=row[0],
                key=row[1],
                thread=row[2],
                sender=row[3],
                address=row[4],
                recipients=row[5],
                date=datetime.datetime.fromisoformat(row[6]),
                subject=row[7],
                body=row[8],
                version=row[9],
                bugs=tuple(json.loads(row[10])),
            )
            for row in rows
        ]


def source(mailbox: str) -> Source:
    """Find the source of a mailbox. Raises UserError for a place that holds none."""
    path = Path(mailbox).expanduser()
    where = f"{OPTION} = {mailbox!r}"
    if path.is_file():
        return letters.Mbox(path)
    if not path.is_dir() and mailbox != CHANGELOGS:  # a machine without it is told what to do by changelogs.py
        remedy = "Name an mbox file, a Maildir or a folder of changelogs by its absolute path"
        raise UserError(f"{where}: there is no such file or folder. {remedy}, or leave it out: {CHANGELOGS}.")
    if any((path / name).is_dir() for name in ("cur", "new")):
        return letters.Maildir(path)
    return changelogs.Changelogs(path)


@functools.lru_cache(maxsize=8)
def from_mailbox(mailbox: str) -> Index:
    """Return the index of a source as this process first saw it: reading all of it takes a tenth of
    a second, and each graded conversation needs it.

    Raises UserError for a source that cannot be read.
    """
    found = source(mailbox)
    key = hashlib.sha256(f"{FORMAT} {found.fingerprint()}".encode()).hexdigest()[:16]
    return Index(key, files.kept(_path(key), lambda part: _write(part, found.mails())))


@functools.lru_cache(maxsize=8)
def stored(mailbox: str, key: str) -> Index:
    """Return the index that examples were made of, even if the mailbox has changed since.

    Raises UserError if it is gone and cannot be made again.
    """
    path = _path(key)
    if path.exists():
        return Index(key, path)
    now = from_mailbox(mailbox)
    if now.key != key:
        raise UserError(
            f"{OPTION} = {mailbox!r} has changed since the examples were made, and their index {path} is gone. Change "
            "examples.seed in params.yaml, so that the run makes new examples."
        )
    return now


def _path(key: str) -> Path:
    return (files.state() / "cache" / f"mail_search-{key}.sqlite").absolute()


def _write(path: Path, mails: list[Mail]) -> None:
    """Write the index. Raises OSError if there is no space."""
    try:
        _fill(path, mails)
    except sqlite3.Error as error:
        raise OSError(str(error)) from None
    files.sync(path)


def _fill(path: Path, mails: list[Mail]) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_TABLES}")
        for number, mail in enumerate(mails, 1):
            people, receivers = fold(f"{mail.sender} {mail.address}"), fold(mail.recipients)
            row = (
                *(number, mail.id, mail.key, mail.thread, mail.sender, mail.address, mail.recipients),
                *(mail.date.isoformat(), mail.date.timestamp(), mail.subject, mail.body, mail.version),
                *(json.dumps(mail.bugs), people, receivers),
            )
            database.execute(f"INSERT INTO mails VALUES ({', '.join('?' * len(row))})", row)
            text = " ".join((fold(mail.subject), people, receivers, mail.day, fold(mail.body)))
            database.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, text))
        database.execute("INSERT INTO words (words) VALUES ('optimize')")
        database.commit()


@functools.lru_cache(maxsize=1 << 16)
def _search(
    index: Index, words: str, limit: int, sender: str, recipient: str, after: str, before: str
) -> tuple[Mail, ...]:
    """Search, with a cache: a run asks the same things again and again."""
    tests: list[str] = []
    values: list[str | int] = []
    if words:
        tests.append("number IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(" ".join(f'"{word}"' for word in words.split()))
    for column, wanted in (("people", sender), ("receivers", recipient)):
        for word in wanted.split():
            tests.append(f"instr({column}, ?) > 0")
            values.append(word)
    if after:
        tests.append("substr(date, 1, 10) >= ?")
        values.append(after)
    if before:
        tests.append("substr(date, 1, 10) < ?")
        values.append(before)
    where = f"WHERE {' AND '.join(tests)}" if tests else ""
    return tuple(index._select(f"{where} ORDER BY number DESC LIMIT ?", *values, limit))


@functools.lru_cache(maxsize=8)
def _connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)
