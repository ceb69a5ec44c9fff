"""A folder of invented Debian changelogs, as a machine has them under /usr/share/doc, and invented
mail. Nobody in them exists."""

from __future__ import annotations

import datetime
import gzip
import json
import random
from email.utils import format_datetime
from pathlib import Path

FIRST, LAST = ("Ada", "Bo", "Cleo", "Dag", "\u00c9dith"), ("Quill", "Rook", "Stone", "Thorn", "Vale")
PEOPLE = [f"{first} {last}" for first in FIRST for last in LAST]
WORK = ("fix a crash", "new upstream release", "update the manual", "drop an old patch", "rebuild", "refresh symbols")
ENTRY = """{package} ({version}) unstable; urgency=medium

  * {text}

 -- {name} <{address}>  {date}
"""


def make(folder: Path, packages: int = 80, uploads: int = 12, seed: int = 0) -> Path:
    """Write PACKAGE/changelog.Debian.gz for each package, newest entry first. Two of three entries
    close a bug."""
    rng = random.Random(seed)
    bug = 100_000
    for number in range(packages):
        package, entries = f"pack{number:03d}", []
        day = datetime.datetime(2005, 1, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(days=number)
        for upload in range(uploads):
            bug += rng.randint(1, 9)
            day += datetime.timedelta(days=rng.randint(20, 200))
            closes = f" (Closes: #{bug})" if upload % 3 else ""
            name = rng.choice(PEOPLE)
            entries.append(
                ENTRY.format(
                    package=package,
                    version=f"{number % 7}.{upload}-{1 + upload % 3}",
                    text=f"{rng.choice(WORK)}.{closes}",
                    name=name,
                    address=f"{name.split()[0].lower()}@example.org".replace("\u00e9", "e"),
                    date=format_datetime(day),
                )
            )
        write(folder, package, "\n".join(reversed(entries)))
    return folder


def write(folder: Path, package: str, text: str | bytes) -> Path:
    path = folder / package / "changelog.Debian.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(text.encode() if isinstance(text, str) else text, mtime=0))
    return path


def letter(number: int, subject: str, body: str = "Hello.", **headers: str) -> bytes:
    """One message of `make_mbox`. A header that is empty is left out."""
    known = {
        "From": f"Person {number} <p{number}@example.org>",
        "To": "Me <me@example.org>",
        "Date": f"Mon, {1 + number % 28:02d} Jan 2024 10:00:00 +0000",
        "Message-ID": f"<{number}@example.org>",
        "Subject": subject,
    } | headers
    lines = [f"{name}: {value}" for name, value in known.items() if value]
    return ("\n".join(lines) + f"\n\n{body}\n").encode()


def make_mbox(path: Path, letters: list[bytes]) -> Path:
    path.write_bytes(b"".join(b"From someone Mon Jan  1 10:00:00 2024\n" + one + b"\n" for one in letters))
    return path


def make_maildir(path: Path) -> Path:
    """Make an empty one."""
    for name in ("cur", "new", "tmp"):
        (path / name).mkdir(parents=True)
    return path


def make_own(folder: Path, letters: int = 40) -> tuple[Path, Path]:
    """Write an mbox file, and a question about each of its mails; one in four has no answer."""
    folder.mkdir(parents=True, exist_ok=True)
    mbox = make_mbox(
        folder / "archive.mbox",
        [letter(n, f"Invoice of trip {n}", f"The trip number {n} costs {n}50 euros.") for n in range(letters)],
    )
    rows = [
        {"question": f"What does trip {n} cost?", "answer": f"{n}50 euros", "message_id": f"<{n}@example.org>"}
        for n in range(letters)
    ]
    for n in range(0, letters, 4):
        rows.append({"question": f"Who paid for trip {n}?", "answer": None, "message_id": None})
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return mbox, questions
