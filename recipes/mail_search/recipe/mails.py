"""What a mail is here, how its words are compared, and where mails come from.

    Mail      one dated message
    fold      a text as the words by which it is found and compared
    source    recipe.options.mailbox -> a Source: where it is, and which kind it has
    Source    fingerprint() -> the hash of its bytes; mails() -> all of its messages, oldest first

A source is a folder of Debian changelogs (changelogs.py), an mbox file or a Maildir (letters.py).
A file that cannot be read is a UserError that names it and the remedy. A source is never half read.

A mail's id, `m482913`, comes from a hash of its key, so that it is the same on every machine.
It is made for copying: the embedded policy's tokenizer has one token for `m482` and one for `913`.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rft.errors import UserError
from rft.normal_form import normal

CHANGELOGS = "/usr/share/doc"
OPTION = "recipe.options.mailbox"
_WORD = re.compile(r"[^\W_](?:[\w.+~:@-]*[\w+~])?")


@dataclass(frozen=True)
class Mail:
    key: str
    """Names the mail, whatever else is in the mailbox: `apt 1.8.2`, or a Message-ID."""
    thread: str
    """What must not be in two splits: a package, or a subject without its `Re:`."""
    sender: str
    address: str
    recipients: str
    date: datetime.datetime
    """The date as it was written, in the sender's own time zone."""
    subject: str
    body: str
    version: str = ""
    bugs: tuple[str, ...] = ()
    """A changelog entry has these two: the uploaded version, and the bugs that it closes."""
    id: str = ""

    @property
    def day(self) -> str:
        return self.date.date().isoformat()


class Source(Protocol):
    @property
    def has_uploads(self) -> bool:
        """Whether its mails are uploads of packages, about which questions can be made."""
        ...

    def fingerprint(self) -> str: ...

    def mails(self) -> list[Mail]: ...


def fold(text: str) -> str:
    """`fold("Closes: #929273, in Apt 1.8.2.") == "closes 929273 in apt 1.8.2"`.

    Accents are removed, because a name may be written with or without them. All other letters stay,
    so nothing that was said disappears.
    """
    decomposed = normal("NFKD", text)
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return " ".join(_WORD.findall(plain.casefold()))


def numbered(mails: Iterable[Mail]) -> list[Mail]:
    """Give each mail its id, and order them by time. A mail that is there twice is kept once."""
    kept: dict[str, Mail] = {}
    seen: set[tuple[str, str, str]] = set()
    for mail in mails:
        content = (mail.subject, mail.body, mail.address)
        if mail.key not in kept and content not in seen:
            kept[mail.key] = mail
            seen.add(content)
    digits = 6 if len(kept) < 100_000 else 9
    taken: set[int] = set()
    found: list[Mail] = []
    for key in sorted(kept):
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 10**digits
        while number in taken:
            number = (number + 1) % 10**digits
        taken.add(number)
        found.append(replace(kept[key], id=f"m{number:0{digits}d}"))
    return sorted(found, key=lambda mail: (mail.date, mail.key))


def fingerprint(files: Iterable[tuple[str, Path]]) -> str:
    """Hash names and bytes."""
    whole = hashlib.sha256()
    for name, path in files:
        whole.update(f"{name} {hashlib.sha256(read_bytes(path)).hexdigest()}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Make it readable, or change {OPTION}.") from None
