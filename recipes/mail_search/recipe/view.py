"""How a mail is shown: as a hit of a search, and when it is read.

    short    " | m482913 ; from jane doe ; date 2019-05-28 ; apt 1.8.2 ; fix a crash closes 929273"
    whole    headers and text as they were written (recipe.options.whole_mails)

The short form folds all words (mails.fold) and puts a space before each. So a word has the same
tokens in question, query and mail, and a policy of a million parameters can copy it.
"""

from __future__ import annotations

from email.utils import format_datetime
from typing import Literal

from .mails import Mail, fold

CLIP = 160
"""How many characters of the text the short form shows. The text is cut at a word."""
LONGEST = 5000
"""The same for the whole form."""
Shown = Literal["subject", "subject, sender, date"]


def hit(mail: Mail, shown: Shown, whole: bool) -> str:
    """Write one line. The id comes last: a policy that copies what it looked for goes on to it."""
    sender, subject = (mail.sender, mail.subject) if whole else (fold(mail.sender), fold(mail.subject))
    more = f" ; {sender} ; date {mail.day}" if shown == "subject, sender, date" else ""
    return f" {subject}{more} | {mail.id}"


def text(mail: Mail, whole: bool) -> str:
    if not whole:
        parts = (mail.id, f"from {fold(mail.sender)}", f"date {mail.day}", fold(mail.subject), excerpt(mail))
        return f" | {' ; '.join(parts)}"
    headers = {
        "Id": mail.id,
        "From": f"{mail.sender} <{mail.address}>",
        "To": mail.recipients,
        "Date": format_datetime(mail.date),
        "Subject": mail.subject,
    }
    head = "\n".join(f"{name}: {value}" for name, value in headers.items() if value)
    return f"{head}\n\n{mail.body[:LONGEST]}"


def excerpt(mail: Mail) -> str:
    words = fold(mail.body[: 20 * CLIP])
    return words if len(words) <= CLIP else words[: CLIP + 1].rpartition(" ")[0] or words[:CLIP]
