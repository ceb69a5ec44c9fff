"""Questions about uploads, each with the one mail that answers it, or the proof that none does.

    bug        which bug did apt 1.8.2 close ?
    who        who uploaded apt 1.8.2 ?
    when       when was apt 1.8.2 uploaded ?
    version    which version of apt closed bug 929273 ?

A question is only asked if it has one answer: the entry closes one bug, and no other entry of the
package closes it. Packages are split by a stable hash, so that no training question is about a
package that is tested. Search finds the mails of all packages.

A share of the questions has no answer. Then one word of a real question, the version or the bug, is
replaced by that of another package. The question counts as unanswerable only if no mail at all
holds the words that it asks for.

The defaults are what the embedded policy can learn: short names, and a bug that the short form of
the mail shows (view.py).
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rft.types import Split

from . import view
from .index import Index
from .judge import Form
from .mails import Mail, fold

Kind = Literal["bug", "who", "when", "version"]
KINDS: tuple[Kind, ...] = ("bug", "who", "when", "version")
FORMS: dict[Kind, Form] = {"bug": "number", "who": "text", "when": "date", "version": "text"}
Templates = Mapping[Kind, tuple[str, ...]]
TEMPLATES: Templates = {
    "bug": (" which bug did {upload} close ?", " name the bug that was closed by {upload} ."),
    "who": (" who uploaded {upload} ?", " name the uploader of {upload} ."),
    "when": (" when was {upload} uploaded ?", " give the date of {upload} ."),
    "version": (" which version of {package} closed bug {bug} ?", " bug {bug} was closed in which {package} ?"),
}
IN_MONTH: Templates = {
    "bug": (" which bug did {author} close with the upload of {package} in {month} ?",),
    "who": (" who uploaded {package} in {month} ?",),
    "when": (" on which day of {month} was {package} uploaded ?",),
    "version": (" which version of {package} was uploaded in {month} ?",),
}
MAX_PACKAGE, MAX_VERSION, MAX_NAME = 20, 9, 24
"""The most characters of each, unless whole mails are shown."""
_TRIES = 50
"""How often something is drawn until it is not in the mailbox."""


@dataclass(frozen=True)
class Style:
    """Which questions are made, and how they are worded."""

    kinds: tuple[Kind, ...] = KINDS
    unanswerable_share: float = 0.15
    whole: bool = False
    by_month: bool = False
    templates: Templates | None = None


@dataclass(frozen=True)
class Question:
    text: str
    kind: str
    form: Form
    answer: str | None
    mail: Mail | None
    """None: there is no answer."""
    thread: str
    keywords: str
    """Words that only the right mail holds, or no mail if there is no answer."""
    month: str = ""
    """`2019-05`: the search has to be limited to it."""


def split_of(thread: str) -> Split:
    """Assign 80 / 10 / 10 by hash, so that a package never changes its split."""
    bucket = int.from_bytes(hashlib.sha256(thread.encode()).digest()[:8], "big") % 10
    return "test" if bucket == 9 else "validation" if bucket == 8 else "train"


def write(index: Index, style: Style, split: Split, rng: random.Random, repeat: bool = False) -> Iterator[Question]:
    """Yield questions, none twice. With `repeat` there is no end: when all mails were used, they
    are used again."""
    mails = _usable(index, style, split)
    if not any(mails.values()):
        return
    others = sorted({mail.id: mail for found in mails.values() for mail in found}.values(), key=lambda mail: mail.id)
    while True:
        decks: dict[Kind, Iterator[Mail]] = {kind: _deal(found, rng) for kind, found in mails.items() if found}
        asked: set[str] = set()
        number = 0
        while decks:
            kind = rng.choice(list(decks))
            mail = next(decks[kind], None)
            if mail is None:
                del decks[kind]
                continue
            question: Question | None = _question(kind, mail, style, rng)
            if int((number + 1) * style.unanswerable_share) > int(number * style.unanswerable_share):
                question = _unanswerable(kind, mail, others, index, style, rng)
            if question is not None and question.text not in asked:
                asked.add(question.text)
                number += 1
                yield question
        if not repeat:
            return


def _deal(mails: list[Mail], rng: random.Random) -> Iterator[Mail]:
    """Take the packages in turns, so that one with six hundred uploads is not in most questions."""
    piles: dict[str, list[Mail]] = defaultdict(list)
    for mail in rng.sample(mails, len(mails)):
        piles[mail.thread].append(mail)
    while piles:
        for thread in rng.sample(sorted(piles), len(piles)):
            yield piles[thread].pop()
            if not piles[thread]:
                del piles[thread]


def _usable(index: Index, style: Style, split: Split) -> dict[Kind, list[Mail]]:
    mails = [mail for mail in index.all if mail.version]
    closed: dict[tuple[str, str], int] = defaultdict(int)
    in_month: dict[tuple[str, str], int] = defaultdict(int)
    for mail in mails:
        in_month[mail.thread, mail.day[:7]] += 1
        for bug in mail.bugs:
            closed[mail.thread, bug] += 1
    fit = [mail for mail in mails if split_of(mail.thread) == split and _is_short(mail, style.whole)]
    if style.by_month:
        fit = [mail for mail in fit if in_month[mail.thread, mail.day[:7]] == 1]
    one_bug = [mail for mail in fit if len(mail.bugs) == 1 and _shows_bug(mail, style.whole)]
    closing = fit if style.by_month else [mail for mail in one_bug if closed[mail.thread, mail.bugs[0]] == 1]
    found: dict[Kind, list[Mail]] = {"bug": one_bug, "who": fit, "when": fit, "version": closing}
    return {kind: found[kind] for kind in style.kinds}


def _is_short(mail: Mail, whole: bool) -> bool:
    if fold(mail.subject) != mail.subject.casefold() or not fold(mail.sender):
        return False
    is_short = len(mail.thread) <= MAX_PACKAGE and len(mail.version) <= MAX_VERSION
    return whole or (is_short and len(fold(mail.sender)) <= MAX_NAME)


def _shows_bug(mail: Mail, whole: bool) -> bool:
    return len(mail.body) <= view.LONGEST if whole else f"closes {mail.bugs[0]}" in view.excerpt(mail)


def _question(kind: Kind, mail: Mail, style: Style, rng: random.Random) -> Question:
    answers = {"bug": mail.bugs[:1], "who": (mail.sender,), "when": (mail.day,), "version": (mail.version,)}[kind]
    month = mail.day[:7] if style.by_month else ""
    values = _values(kind, mail, month)
    template = rng.choice((style.templates or (IN_MONTH if style.by_month else TEMPLATES))[kind])
    written = {name: value if style.whole else fold(value) for name, value in values.items()}
    names = ("package",) if style.by_month else NAMED[kind]
    return Question(
        text=template.format_map({**written, "upload": f"{written['package']} {written['version']}"}),
        kind=kind,
        form=FORMS[kind],
        answer=answers[0] if style.whole else fold(answers[0]),
        mail=mail,
        thread=mail.thread,
        keywords=" ".join(written[name] for name in names),
        month=month,
    )


NAMED: dict[Kind, tuple[str, ...]] = {
    "bug": ("package", "version"),
    "who": ("package", "version"),
    "when": ("package", "version"),
    "version": ("package", "bug"),
}
"""What a question names, in the order of a good query."""


def _values(kind: Kind, mail: Mail, month: str) -> dict[str, str]:
    bug = mail.bugs[0] if mail.bugs else ""
    return {"package": mail.thread, "version": mail.version, "author": mail.sender, "bug": bug, "month": month}


def _unanswerable(
    kind: Kind, mail: Mail, others: list[Mail], index: Index, style: Style, rng: random.Random
) -> Question | None:
    """Replace one word. None: everything that was tried is in the mailbox."""
    change = "month" if style.by_month else "bug" if kind == "version" else "version"
    for _ in range(_TRIES):
        other = rng.choice(others)
        if other.thread == mail.thread or (change == "bug" and len(other.bugs) != 1):
            continue
        exchanged: dict[str, Any] = {
            "version": {"version": other.version},
            "bug": {"bugs": other.bugs},
            "month": {"date": other.date},
        }[change]
        asked = _question(kind, replace(mail, **exchanged), style, rng)
        if not is_answerable(asked, index):
            return replace(asked, answer=None, mail=None)
    return None


def is_answerable(question: Question, index: Index) -> bool:
    """Whether any mail holds what is asked for: all the words, in that month."""
    if not question.month:
        return bool(index.search(question.keywords, limit=1))
    first, after = months(question.month)
    found = index.search(question.keywords, limit=1000, after=first, before=after)
    return any(mail.thread == question.thread for mail in found)


def months(month: str) -> tuple[str, str]:
    """Return the first day of a month, and of the next: `("2019-12-01", "2020-01-01")`."""
    year, number = int(month[:4]), int(month[5:])
    return f"{month}-01", f"{year + number // 12}-{number % 12 + 1:02d}-01"
