"""Examples: a question to a mailbox, and the one mail that answers it, or none that does.

By default the mailbox is one that every Debian machine has: the changelogs of its packages
(changelogs.py). questions.py makes questions about them. It may also be the user's own mail
(letters.py), with questions in a file (own.py). Splits share no package, or no thread.

The defaults are what the embedded policy can learn. For a real model set `whole_mails` and
`by_month`. With `whole_mails`, mails are shown as they were written, and no name is left out for
its length. With `by_month`, a question names no version, and the search has to be limited to a
month.
"""

from __future__ import annotations

import json
import random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rft.errors import UserError
from rft.recipe import Conversation, Example, Message
from rft.types import Split

from . import index, judge, own, questions
from .index import Index, source
from .mails import CHANGELOGS, fold
from .questions import FORMS, KINDS, Kind, Question, Style


class Options(BaseModel):
    """`recipe.options` of params.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mailbox: str = CHANGELOGS
    """A folder with PACKAGE/changelog.Debian.gz, an mbox file or a Maildir. Absolute, or in the
    repository."""
    questions: str | None = None
    """JSON lines of {question, answer, message_id}. Required for an mbox file or a Maildir."""
    kinds: tuple[Kind, ...] = Field(KINDS, min_length=1)
    unanswerable_share: float = Field(0.15, ge=0, le=0.5)
    """The `chance` of grader.json is 0.1 + 0.9 times this."""
    whole_mails: bool = False
    """Show mails as they were written instead of short lines."""
    by_month: bool = False
    """Questions name a month instead of a version."""


def examples(options: Options, split: Split, count: int, seed: int) -> list[Example]:
    """Return examples, equal for equal arguments and mailbox. No question is asked twice."""
    inbox = inbox_of(options)
    rng = random.Random(f"{split} {seed}")
    if options.questions is not None:
        found = list(own.write(inbox, options.questions, split, rng))
        remedy = f"Add questions about other threads to {options.questions}"
    else:
        found = questions.write(inbox, style(options), split, rng)
        remedy = "Take a mailbox of more packages, or more recipe.options.kinds"
    made = [_example(f"{split}-{n:05d}", asked, inbox, options) for n, asked in zip(range(count), found, strict=False)]
    if len(made) < count:
        what = f"recipe.options.mailbox = {options.mailbox!r}: {len(made)} questions for {split}, {count} are asked for"
        raise UserError(f"{what}. {remedy}, or lower examples.{split} in params.yaml.")
    return made


def inbox_of(options: Options) -> Index:
    """Return the index of the mailbox. Raises UserError if it does not fit the questions."""
    if options.questions is None and not source(options.mailbox).has_uploads:
        raise UserError(
            f"recipe.options.mailbox = {options.mailbox!r}: questions are made for Debian changelogs only. Write some "
            "about your mail, as JSON lines of {question, answer, message_id}, and name the file in "
            "recipe.options.questions."
        )
    return index.from_mailbox(options.mailbox)


def style(options: Options) -> Style:
    return Style(options.kinds, options.unanswerable_share, options.whole_mails, options.by_month)


def turns(options: Options, example: Example, target: dict[str, Any]) -> list[str]:
    """Return the messages that reach a target. The grader asks for more than the right words: the
    mail must be read, or searched for in vain, before the answer is given."""
    del options, example
    if target["answer"] is None:
        search_call = call("search_emails", keywords=target["search"])
        return [search_call, call("return_final_answer", answer=None, sources=[])]
    read = call("read_email", message_id=target["message_id"])
    answered = f" {target['answer']}" if target["form"] == "text" else target["answer"]  # as the clerk writes a word
    return [read, call("return_final_answer", answer=answered, sources=[target["message_id"]])]


def call(name: str, **arguments: Any) -> str:
    """Write a tool call as a policy does."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def from_traffic(options: Options, conversation: Conversation) -> Example | None:
    """Make an example of a graded conversation about training packages. Others could leak what is
    tested. Feedback is {"answer", "message_id"}, both null if the mailbox holds no answer."""
    feedback = conversation.feedback
    if not isinstance(feedback, dict) or set(feedback) != {"answer", "message_id"}:
        return None
    answered, mail_id = feedback["answer"], feedback["message_id"]
    text = next((message["content"] for message in conversation.messages if message["role"] == "user"), None)
    if not isinstance(text, str) or not text.strip() or (answered is None) != (mail_id is None):
        return None
    inbox = inbox_of(options)
    mail = inbox.mail(mail_id) if isinstance(mail_id, str) else None
    if (mail is None) != (mail_id is None) or not isinstance(answered, str | None):
        return None
    threads = {mail.thread} if mail else _threads(inbox, text)
    if not threads or any(questions.split_of(thread) != "train" for thread in threads):
        return None
    kind = asks(text)
    thread = sorted(threads)[0]
    numbers = [word for word in fold(text).split() if word.isdigit()]
    asked = Question(
        text=text,
        kind=kind,
        form=FORMS[kind] if kind in FORMS and options.questions is None else judge.form_of(answered or ""),
        answer=answered,
        mail=mail,
        thread=thread,
        keywords=mail.subject if mail else " ".join((thread, *numbers)),
    )
    return _example(f"traffic-{conversation.conversation_id}", asked, inbox, options)


def _threads(inbox: Index, text: str) -> set[str]:
    """Return the packages that a question names."""
    return set(fold(text).split()) & {mail.thread for mail in inbox.all}


def features(messages: list[Message]) -> dict[str, str | list[str]]:
    """Return what drift compares beside lengths and words: what is asked for, and how a question
    begins."""
    question = next((message["content"] for message in messages if message["role"] == "user"), "")
    words = fold(question).split() or [""]
    return {"asks": asks(question), "opening": words[0]}


def asks(question: str) -> str:
    """Tell the kinds of questions apart by their words."""
    words = set(fold(question).split())
    if words & {"when", "date", "day"}:
        return "when"
    if words & {"who", "uploader", "whom"}:
        return "who"
    if "bug" not in words:
        return "version" if "version" in words else "other"
    return "version" if "version" in words or {"in", "was"} <= words else "bug"


def exploit_values(options: Options, example: Example) -> dict[str, str | list[str]]:
    """Return values for the placeholders of exploits.jsonl. `answer` is the right answer, which a
    cheat gives in a wrong way. For a question without an answer it is the nearest mail's."""
    del options
    settings = example.metadata
    inbox = index.stored(settings["mailbox"], settings["inbox"])
    mails = inbox.search(settings["named"] or "", limit=10) or tuple(inbox.all[-10:])
    near = inbox.mail(example.target["message_id"] or "") or mails[0]
    apart = [mail for mail in reversed(inbox.all) if mail.thread != near.thread]
    others = [mail for mail in apart if mail.sender != near.sender and mail.day != near.day] or apart
    plain = {"bug": "100001", "when": near.day, "version": fold(near.version)}
    wrong = {"bug": "100002", "when": others[0].day, "version": "0.0.1-0"}
    answer = example.target["answer"] or plain.get(settings["kind"], fold(near.sender))
    return {
        "named": settings["named"] or fold(near.subject),
        "query": example.target["search"],
        "id": near.id,
        "other_id": others[0].id,
        "answer": answer,
        "wide": "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in answer),
        "wrong": wrong.get(settings["kind"], fold(others[0].sender)),
        "ids": [mail.id for mail in dict.fromkeys((near, *mails))][:10],
        "unseen_ids": [mail.id for mail in others[:2]],
        "many_ids": [mail.id for mail in others[:30]],
    }


def _example(example_id: str, asked: Question, inbox: Index, options: Options) -> Example:
    target = {
        "answer": asked.answer,
        "form": asked.form,
        "message_id": asked.mail.id if asked.mail else None,
        "search": asked.keywords,
    }
    metadata: dict[str, Any] = {
        "slice": asked.kind if asked.mail else "unanswerable",
        "kind": asked.kind,
        "named": asked.thread if asked.kind != "own" else "",
        "mailbox": options.mailbox,
        "inbox": inbox.key,
    }
    if asked.month:
        metadata["month"] = asked.month
    if options.whole_mails or options.questions is not None:
        metadata["whole"] = True
    return Example(example_id, ({"role": "user", "content": asked.text},), target, metadata)
