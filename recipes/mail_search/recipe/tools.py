"""What the agent may call. Served over HTTP by `rft.tools.server`; rubric.py grades.

`return_final_answer` is a terminal tool (`tools.traits` in params.yaml): its call ends the rollout,
and its arguments are the answer. It refuses arguments of another form; the policy sees that, and
may correct them. It says nothing about the content of the answer.

Which mailbox is searched, and how mails are shown, travels with the example (`metadata`), so one
server serves every example.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from pydantic import Field

from rft.recipe import ToolError

from . import index, mails, rubric, view

MAX_ANSWER, MAX_SOURCES = 1000, 10
Day = Annotated[str | None, Field(description="a day, such as 2019-05-28")]
Part = Annotated[str | None, Field(description="a name or address, or a part of it")]


def search_emails(
    keywords: Annotated[str, Field(description="words that a mail must hold, all of them", max_length=index.MAX_WORDS)],
    from_addr: Part = None,
    to_addr: Part = None,
    sent_after: Day = None,
    sent_before: Day = None,
    max_results: Annotated[int, Field(ge=1, le=10)] = 3,
    show: view.Shown = "subject",
    item: dict[str, Any] | None = None,
) -> str:
    """Find mails, newest first, one a line with its message_id at the end."""
    people = [who or "" for who in (from_addr, to_addr)]
    after, before = _day("sent_after", sent_after), _day("sent_before", sent_before)
    if not any(map(mails.fold, (keywords, *people))) and not (after or before):
        raise ToolError("give at least one keyword")
    inbox, whole = _inbox(item)
    found = inbox.search(keywords, max_results, people[0], people[1], after, before)
    return "\n".join(view.hit(mail, show, whole) for mail in found) or " no mails"


def read_email(message_id: str, item: dict[str, Any] | None = None) -> str:
    """One mail: its message_id, sender, date, subject and text."""
    inbox, whole = _inbox(item)
    mail = inbox.mail(message_id.strip())
    if mail is None:
        raise ToolError(f"there is no mail {message_id.strip()[:20]}")
    return view.text(mail, whole)


def return_final_answer(
    answer: Annotated[
        str | None,
        Field(description="the answer alone, or null if the mailbox does not hold it", max_length=MAX_ANSWER),
    ],
    sources: Annotated[
        list[Annotated[str, Field(max_length=40)]],
        Field(description="message_ids of the mails that the answer is from", max_length=MAX_SOURCES),
    ],
) -> str:
    """Give the final answer. This ends the task."""
    return " received"


TOOLS = [search_emails, read_email, return_final_answer]
grade = rubric.grade


def _inbox(item: dict[str, Any] | None) -> tuple[index.Index, bool]:
    settings = (item or {}).get("metadata") or {}
    mailbox = settings.get("mailbox", mails.CHANGELOGS)
    found = index.stored(mailbox, settings["inbox"]) if "inbox" in settings else index.from_mailbox(mailbox)
    return found, bool(settings.get("whole"))


def _day(name: str, value: str | None) -> str:
    if value is None or not value.strip():
        return ""
    try:
        return datetime.date.fromisoformat(value.strip()).isoformat()
    except ValueError:
        raise ToolError(f"{name} is {value[:20]!r}, expected a day such as 2019-05-28") from None
