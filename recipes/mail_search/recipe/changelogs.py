"""Debian changelogs as a mailbox: each entry is one dated message of a maintainer.

    apt (1.8.2) unstable; urgency=medium

      * Fix a crash on an empty list (Closes: #929273)

     -- Jane Doe <jane@debian.org>  Tue, 28 May 2019 16:37:45 +0200

Each Debian and Ubuntu machine has some hundred of them, of up to thirty years and as many hands. So
an entry that does not have this form, such as one without a date, is not a message and is skipped.
But a file that cannot be decompressed is an error, because what it holds is unknown. Packages that
are built from one source share their changelog. Its entries count once.
"""

from __future__ import annotations

import datetime
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from rft.errors import UserError

from .mails import OPTION, Mail, fingerprint, numbered, read_bytes

FILE = "changelog.Debian.gz"
MIN_PACKAGES = 30
"""With fewer, a split by package would leave nothing to test on."""
_HEAD = re.compile(r"^([a-z0-9][a-z0-9+.-]*) \(([^()\s]+)\)[^;]*;", re.IGNORECASE)
_FOOT, _ADDRESS = " -- ", re.compile(r"<([^<>]*+)>\s+")
_CLOSES = re.compile(r"closes:\s*(?:bug)?#?\s?\d+(?:,\s*(?:bug)?#?\s?\d+)*", re.IGNORECASE)  # Debian Policy 5.6.22
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Changelogs:
    path: Path
    has_uploads = True

    def fingerprint(self) -> str:
        return fingerprint((file.parent.name, file) for file in self._files())

    def mails(self) -> list[Mail]:
        found = numbered(mail for file in self._files() for mail in entries(_text(file)))
        if not found:
            raise UserError(f"{self.path}: no {FILE} in it has an entry with a version and a date. Change {OPTION}.")
        return found

    def _files(self) -> list[Path]:
        """List the changelogs. Raises UserError if there are too few to learn from."""
        found = [file for file in sorted(self.path.glob(f"*/{FILE}")) if file.is_file()]  # not a link to nothing
        files = sorted({file.resolve(): file for file in found}.values())
        if len(files) < MIN_PACKAGES:
            raise UserError(
                f"{OPTION} = {str(self.path)!r}: {len(files)} folders with a {FILE}, expected at least {MIN_PACKAGES}. "
                "Slim containers leave documentation out (path-exclude in /etc/dpkg/dpkg.cfg.d), and only Debian and "
                "Ubuntu have such files. Remove that rule and run apt-get install --reinstall for some packages; or "
                "copy /usr/share/doc from another machine and name the copy; or name an mbox file or a Maildir of your "
                "own, with recipe.options.questions."
            )
        return files


def entries(text: str) -> Iterator[Mail]:
    """Yield the messages of one changelog, in its order."""
    head: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if found := _HEAD.match(line):
            head, lines = found, []
        elif foot := _foot(line):
            if head is not None and (mail := _mail(head, lines, *foot)):
                yield mail
            head = None
        else:
            lines.append(line)


def _foot(line: str) -> tuple[str, str, str] | None:
    """Return the name, address and date of an entry's last line."""
    found = _ADDRESS.search(line, len(_FOOT)) if line.startswith(_FOOT) else None
    return (line[len(_FOOT) : found.start()].strip(), found[1], line[found.end() :].rstrip()) if found else None


def _mail(head: re.Match[str], lines: list[str], name: str, address: str, written: str) -> Mail | None:
    try:
        date = parsedate_to_datetime(written)
    except (TypeError, ValueError):
        return None
    package, version, body = head[1].lower(), head[2], "\n".join(lines).strip("\n")
    closed = " ".join(_CLOSES.findall(" ".join(body.split())))
    return Mail(
        key=f"{package} {version}",
        thread=package,
        sender=name or address,
        address=address,
        recipients="",
        date=date.replace(tzinfo=datetime.UTC) if date.tzinfo is None else date,
        subject=f"{package} {version}",
        body=body,
        version=version,
        bugs=tuple(dict.fromkeys(_NUMBER.findall(closed))),
    )


def _text(file: Path) -> str:
    """Decompress a file. Lines of old entries are in Latin-1."""
    try:
        content = gzip.decompress(read_bytes(file))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{file}: cannot be decompressed ({error}). Reinstall the package, or copy the other changelogs to a "
            f"folder and name it in {OPTION}."
        ) from None
    return "\n".join(_decoded(line) for line in content.split(b"\n"))


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")
