"""The user's own mail: an mbox file or a Maildir, read with the standard library.

Mail is kept as it was written: the first text part, or the words of an HTML part. A message without
a date cannot be put in order or asked for by time, and a file that does not begin with `From ` is
not an mbox. Both are errors that name the message or the line, because a mailbox that is only half
read would make wrong questions.
"""

from __future__ import annotations

import datetime
import email
import email.message
import email.policy
import html
import mailbox
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import getaddresses, parseaddr, parsedate_to_datetime
from pathlib import Path

from rft.errors import UserError

from .mails import OPTION, Mail, fingerprint, fold, numbered, read_bytes

_REPLY = re.compile(r"^(?:(?:re|aw|fwd?)(?:\[\d+\])?:\s*)+", re.IGNORECASE)
_UNSEEN = re.compile(r"<(style|script)")
_Named = tuple[str, email.message.EmailMessage]


@dataclass(frozen=True)
class Mbox:
    path: Path
    has_uploads = False

    def fingerprint(self) -> str:
        return fingerprint([(self.path.name, self.path)])

    def mails(self) -> list[Mail]:
        content = read_bytes(self.path)
        if not content.strip():
            raise _empty(self.path)
        line = content.lstrip(b"\r\n").split(b"\n", 1)[0]
        if not line.startswith(b"From "):
            shown = line[:60].decode("utf-8", "replace")
            raise UserError(
                f"{self.path}: is not an mbox: its first line is {shown!r}, expected one that begins with 'From '. "
                f"Unpack it if it is compressed, export the folder as mbox again, or name another mailbox in {OPTION}."
            )
        return _read(self.path, self._messages())

    def _messages(self) -> Iterator[_Named]:
        box = mailbox.mbox(self.path, factory=None, create=False)
        try:
            for number, name in enumerate(box.keys(), 1):
                yield f"message {number}", _parsed(box.get_bytes(name))
        finally:
            box.close()


@dataclass(frozen=True)
class Maildir:
    path: Path
    has_uploads = False

    def fingerprint(self) -> str:
        return fingerprint((file.name.partition(":")[0], file) for file in self._files())

    def mails(self) -> list[Mail]:
        named = ((f"{file.parent.name}/{file.name}", file) for file in self._files())
        return _read(self.path, ((name, _parsed(read_bytes(file))) for name, file in named))

    def _files(self) -> list[Path]:
        folders = (self.path / name for name in ("cur", "new"))
        found = [file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.is_file()]
        return sorted(file for file in found if not file.name.startswith("."))


def _read(path: Path, messages: Iterator[_Named]) -> list[Mail]:
    found = numbered(_mail(path, name, message) for name, message in messages)
    if not found:
        raise _empty(path)
    return found


def _empty(path: Path) -> UserError:
    return UserError(f"{path}: the mailbox is empty. Name one with messages in {OPTION}.")


def _parsed(content: bytes) -> email.message.EmailMessage:
    return email.message_from_bytes(content, policy=email.policy.default)


def _mail(path: Path, name: str, message: email.message.EmailMessage) -> Mail:
    subject = _header(message, "Subject")
    if not message.keys():
        raise UserError(
            f"{path}: {name} has no headers: the file is damaged there, or a line of the mail before it begins with "
            f"'From ' and lacks its '>'. Export the mailbox again, or name another one in {OPTION}."
        )
    sender, address = parseaddr(_header(message, "From"))
    recipients = getaddresses([_header(message, "To"), _header(message, "Cc")])
    return Mail(
        key=message_key(_header(message, "Message-ID")) or f"{address} {_header(message, 'Date')} {subject}",
        thread=fold(_REPLY.sub("", subject)) or name,
        sender=sender or address,
        address=address,
        recipients=" ".join(f"{who} {where}".strip() for who, where in recipients if where),
        date=_date(path, name, message, subject),
        subject=subject,
        body=_body(message),
    )


def message_key(header: str) -> str:
    """Return a Message-ID without its angle brackets, which do not matter."""
    return header.strip().strip("<>").strip()


def _header(message: email.message.EmailMessage, name: str) -> str:
    """Return a header's text. A header that the parser breaks on is returned as it was written."""
    try:
        found = message.get(name)
    except (AttributeError, IndexError, TypeError, ValueError):  # seen for `To: bob@example.org, tba1 @`
        found = next(text for key, text in message.raw_items() if key.lower() == name.lower())
    return " ".join(str(found or "").split())


def _date(path: Path, name: str, message: email.message.EmailMessage, subject: str) -> datetime.datetime:
    written = _header(message, "Date")
    try:
        date = parsedate_to_datetime(written)
    except (TypeError, ValueError):
        what = f"its Date is {written!r}" if written else "it has no Date"
        raise UserError(
            f"{path}: {name} ({subject[:60]!r}): {what}, and a mail without a date cannot be put in order. Add a Date "
            "header such as 'Tue, 28 May 2019 16:37:45 +0200', or remove the message."
        ) from None
    return date.replace(tzinfo=datetime.UTC) if date.tzinfo is None else date


def _body(message: email.message.EmailMessage) -> str:
    part = message.get_body(("plain", "html"))
    if part is None:
        return ""
    try:
        text = str(part.get_content())
    except (LookupError, ValueError):  # an unknown charset
        payload = part.get_payload(decode=True)
        text = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
    return html.unescape(without_tags(text)).strip() if part.get_content_subtype() == "html" else text.strip()


def without_tags(text: str) -> str:
    """Replace each tag, and each whole style or script, by a blank. An end that was not found is
    not looked for again: a pattern took seven seconds for 80 kB of beginnings."""
    parts, at, missing = list[str](), 0, set[str]()
    while (start := text.find("<", at)) >= 0 and (end := text.find(">", start)) >= 0:
        if (unseen := _UNSEEN.match(text, start)) and unseen[1] not in missing:
            close = f"</{unseen[1]}>"
            if (found := text.find(close, start)) >= 0:
                end = found + len(close) - 1
            else:
                missing.add(unseen[1])
        parts += [text[at:start], " "]
        at = end + 1
    return "".join([*parts, text[at:]])
