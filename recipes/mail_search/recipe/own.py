"""Questions about the user's own mail: `recipe.options.questions`, a file of JSON lines.

    {"question": "When does the lease end?", "answer": "2026-03-31", "message_id": "<a1@home>"}
    {"question": "What did we pay for the boat?", "answer": null, "message_id": null}

A null answer says that the mailbox does not hold one; some of these teach an agent to say so. A
hash of its subject puts a whole thread (a subject without its `Re:`) into one split. For a question
without an answer, it is a hash of the question's text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rft.errors import UserError
from rft.types import Split

from . import judge
from .index import MAX_WORDS, Index
from .letters import message_key
from .mails import Mail
from .questions import Question, split_of

OPTION = "recipe.options.questions"


class Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str
    answer: str | None
    message_id: str | None


def write(index: Index, file: str, split: Split, rng: random.Random) -> Iterator[Question]:
    """Yield the questions of a split, each once."""
    found = [question for question in read(index, file) if split_of(question.thread) == split]
    yield from rng.sample(found, len(found))


def read(index: Index, file: str) -> list[Question]:
    """Read the file. Raises UserError, which names the line that cannot be used."""
    path = Path(file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{OPTION} = {file!r}: cannot be read ({why}). Name a file of JSON lines.") from None
    mails = {mail.key: mail for mail in index.all}
    found: dict[str, Question] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        question = _question(line, f"{path}:{number}", mails)
        if question.text in found:
            raise UserError(f"{path}:{number}: {question.text[:60]!r} is asked twice. Remove one.")
        found[question.text] = question
    if not found:
        raise UserError(f"{path}: holds no question. Write lines of {{question, answer, message_id}}.")
    return list(found.values())


def _question(line: str, where: str, mails: dict[str, Mail]) -> Question:
    try:
        row = Row.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg}. Write one object a line.") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the row'}: {one['msg']}" for one in error.errors())
        raise UserError(f"{where}: {problems}. Write {{question, answer, message_id}}.") from None
    if not row.question.strip():
        raise UserError(f"{where}: the question is empty. Write one, or remove the line.")
    if (row.answer is None) != (row.message_id is None):
        raise UserError(f"{where}: answer and message_id are both given, or both null. Fix the line.")
    mail = None
    if row.answer is not None and row.message_id is not None:
        mail = mails.get(message_key(row.message_id))
        if mail is None:
            raise UserError(f"{where}: message_id = {row.message_id!r}: no mail has this Message-ID. Fix the line.")
        if not row.answer.strip() or judge.abstains(row.answer):
            raise UserError(f"{where}: answer = {row.answer!r} says nothing. Write null, or the answer.")
    return Question(
        text=row.question,
        kind="own",
        form=judge.form_of(row.answer or ""),
        answer=row.answer,
        mail=mail,
        thread=mail.thread if mail else row.question,
        keywords=(row.question if mail is None else mail.subject or row.question)[:MAX_WORDS],
    )
