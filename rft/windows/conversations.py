"""Conversations of production: reads a window from its file, and finds usable feedback.

A window is an immutable file of OpenAI chat JSONL, one conversation per line:

    {"conversation_id": "c-0412", "time": "2026-03-02T08:14:05Z", "latency_s": 3.1,
     "tool_errors": 0, "messages": [{"role": "user", "content": ...},
     {"role": "assistant", "tool_calls": [...]}, {"role": "tool", ...}, ...], "feedback": ["I10"]}

What cannot be read stops the stage before it writes anything, naming file and line: not JSON, no
messages, a malformed message, no id, a time without zone, two different conversations with one id.
What can be read but looks wrong, such as a missing or negative latency, is judged by the contracts
of stage `drift`, which see how often it happens. An exact repetition of a line (a log delivered
twice) is dropped and counted, and so are unknown keys. `latency_s`, `tool_errors` and `feedback`
may be missing: not logged, not graded.

A recipe makes training examples of graded conversations where it can (`from_traffic`). The others
are counted and shown: feedback of another type than the recipe's targets is a mistake of the log or
of the recipe, which nobody would see otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rft import commands, reports, shelves
from rft.config import Params
from rft.errors import UserError
from rft.recipe import Recipe
from rft.reports import Conversation
from rft.rows import ROLES
from rft.types import Example

LOOKED_AT = 50
"""Examples of the recipe whose targets show the expected type of feedback."""
_KEYS = frozenset(Conversation.model_fields)
_REMEDY = "Fix the export that wrote it, or take the line out."


@dataclass(frozen=True, slots=True)
class Window:
    """A file of traffic as read, its conversations sorted by time, then id."""

    source: str
    sha256: str
    num_rows: int
    conversations: tuple[Conversation, ...]
    rejected: dict[str, int]
    ignored_keys: dict[str, int]
    lines: dict[str, str]
    """File and line where each id first stands."""


def read_window(path: Path, sha256: str | None = None, at_least: int = 1) -> Window:
    """Read a window. Raises UserError naming file and line; the module's docstring says when."""
    try:
        content = path.read_bytes()
    except OSError as error:
        remedy = "Set traffic.file to a window of traffic."
        raise UserError(f"{path}: cannot be read ({error.strerror}). {remedy}") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        remedy = "Restore the file, or record the new hash if the change is meant."
        raise UserError(f"{path}: its sha256 is {found}, but traffic.sha256 says {sha256}. {remedy}")
    seen: dict[str, tuple[str, Conversation]] = {}
    rejected, ignored, num_rows = Counter[str](), Counter[str](), 0
    for where, row in reports.read_jsonl(path, content, _REMEDY):
        num_rows += 1
        ignored.update(sorted(row.keys() - _KEYS))
        conversation = _conversation(row, where)
        first, known = seen.setdefault(conversation.conversation_id, (where, conversation))
        if known is not conversation:
            if known != conversation:
                name = f"conversation_id {conversation.conversation_id!r}"
                remedy = "Ids must be unique: log a conversation once, when it is over."
                raise UserError(f"{where}: {name} was met before, with other content, at {first}. {remedy}")
            rejected["repeated"] += 1
    if len(seen) < at_least:
        what = f"{len(seen)} conversations, traffic.min_conversations asks for {at_least}"
        raise UserError(f"{path}: {what}. Take a longer window.")
    return Window(
        source=path.as_posix(),
        sha256=found,
        num_rows=num_rows,
        conversations=tuple(sorted((one for _, one in seen.values()), key=lambda one: (one.time, one.conversation_id))),
        rejected=dict(sorted(rejected.items())),
        ignored_keys=dict(sorted(ignored.items())),
        lines={name: where for name, (where, _) in seen.items()},
    )


def load_conversations(path: Path = shelves.CONVERSATIONS) -> tuple[Conversation, ...]:
    """Read the normalized conversations from the shelf."""
    if not path.exists():
        raise UserError(f"{path}: missing. Run the stage that writes it: {commands.stage('traffic')}")
    return read_window(path).conversations


# -- feedback --------------------------------------------------------------------------------------
def usable_feedback(conversations: Sequence[Conversation], loaded: Recipe) -> list[Example]:
    """Make training examples of the graded conversations that the recipe can use, by time."""
    graded = (conversation for conversation in conversations if conversation.feedback is not None)
    return [example for conversation in graded if (example := loaded.from_traffic(conversation)) is not None]


@dataclass(frozen=True, slots=True)
class Refused:
    """Graded conversations of which the recipe makes no example. `of_other_kind`: those whose
    feedback has another type than its targets."""

    num_graded: int
    refused: tuple[Conversation, ...]
    of_other_kind: tuple[Conversation, ...]
    kinds: tuple[str, ...]
    """Types of the targets, in words."""

    def in_words(self, where: Callable[[Conversation], str]) -> str:
        """Say how many there are, which is the first, and why; empty when there are none."""
        if not self.refused:
            return ""
        if self.of_other_kind:
            first, count = self.of_other_kind[0], len(self.of_other_kind)
            why = f"the feedback is {_kind(first.feedback)}, and the recipe's targets are {' or '.join(self.kinds)}"
        else:
            first, count = self.refused[0], len(self.refused)
            why = "from_traffic in the recipe's examples.py made nothing of it"
        what = f"{count} of {self.num_graded} graded conversations cannot become examples"
        return f"{what}; the first: {where(first)}: {why}"

    @property
    def is_strange(self) -> bool:
        """Whether feedback has another type, or none can be used: a mistake, not a choice."""
        return bool(self.of_other_kind) or (0 < len(self.refused) == self.num_graded)


def refused_feedback(conversations: Sequence[Conversation], loaded: Recipe, params: Params) -> Refused:
    """Find feedback that cannot be used. Raises UserError if the recipe has no from_traffic."""
    graded = [conversation for conversation in conversations if conversation.feedback is not None]
    refused = tuple(conversation for conversation in graded if loaded.from_traffic(conversation) is None)
    known: set[str] = set()
    if refused:
        some = loaded.examples("train", min(LOOKED_AT, params.examples.train), params.examples.seed)
        known = {_kind(example.target) for example in some if example.target is not None}
    other = tuple(conversation for conversation in refused if known and _kind(conversation.feedback) not in known)
    return Refused(len(graded), refused, other, tuple(sorted(known)))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    names = {int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


# -- one row ---------------------------------------------------------------------------------------
def _conversation(row: dict[str, Any], where: str) -> Conversation:
    identity = row.get("conversation_id")
    if not isinstance(identity, str) or not identity:
        raise _bad(where, "conversation_id", identity, "a text that is not empty")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad(where, "messages", messages, "a list of chat messages that is not empty")
    latency, errors = row.get("latency_s"), row.get("tool_errors")
    if latency is not None and not _is_number(latency):
        raise _bad(where, "latency_s", latency, "a number of seconds, or null when it was not logged")
    if errors is not None and not (isinstance(errors, int) and _is_number(errors)):
        raise _bad(where, "tool_errors", errors, "a whole number, or null when it was not logged")
    return Conversation(
        conversation_id=identity,
        time=_utc(row.get("time"), where),
        messages=[_message(message, f"messages[{n}]", where) for n, message in enumerate(messages)],
        latency_s=None if latency is None else float(latency),
        tool_errors=errors,
        feedback=row.get("feedback"),
    )


def _utc(value: Any, where: str) -> str:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError):
        pass
    raise _bad(where, "time", value, "an ISO 8601 time with its zone, such as 2026-03-02T08:14:05Z")


def _message(message: Any, key: str, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise _bad(where, key, message, f"an object whose role is one of {', '.join(ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(_is_call(call) for call in calls)):
        expected = 'a list of {"id": .., "function": {"name": .., "arguments": "<JSON text>"}}'
        raise _bad(where, f"{key}.tool_calls", calls, expected)
    return message | {"content": _text(message.get("content"), f"{key}.content", where)}


def _text(content: Any, key: str, where: str) -> str | None:
    """Join a list of text parts, as newer clients write it, into one text."""
    if content is None or isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [None]
    if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    raise _bad(where, key, content, "a text, null, or a list of text parts")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _bad(where: str, key: str, value: Any, expected: str) -> UserError:
    shown = "missing" if value is None else json.dumps(value, ensure_ascii=False)[:60]
    return UserError(f"{where}: {key} is {shown}; expected {expected}. {_REMEDY}")
