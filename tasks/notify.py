"""Tell people, as `run.notify` says, that a request waits for approval or a scheduled run failed.

Both happen when nobody looks at a terminal. A message holds names, numbers and commands, and
nothing derived from conversations. A stage's error may quote what the stage read, so the message
says which stage failed and where its log is, and leaves the error out. rft/notices.py delivers it.

`tell` raises nothing: a mail server that is down must not fail a run. A message that could not be
delivered becomes a warning on the console and in the run's log, `.rft/logs/RUN/notify.log`.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from rft import config, notices, secrets
from rft.notices import Notice
from tasks.ledger.entry import Request
from tasks.runs import records, repro
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class RequestWaiting:
    """The gate decided to promote, and a person has to agree."""

    type: ClassVar[str] = "request.waiting"
    key: str
    """Unique: it names the message."""
    model: str
    run: str
    candidate: str | None
    """`prompt` or `challenger`: what would be promoted."""
    gain: dict[str, float | None] | None
    """The gain over the champion, with the ends of its interval."""
    approve: str
    """The command to paste in the clone."""
    clone: str
    """HOST:FOLDER, where the run is."""
    approvers: tuple[str, ...] | None = None
    """The people who may approve; None: not known here."""
    expires: str | None = None

    @property
    def subject(self) -> str:
        return f"{self.model}: run {self.run} waits for approval"

    def lines(self) -> Iterator[str]:
        yield f"The gate would promote run {self.run} of {self.model}, and a person has to agree."
        yield ""
        yield f"Candidate  {self.candidate or 'unknown'}"
        yield f"Gain       {_interval(self.gain)}"
        if self.approvers is not None:
            yield f"Approvers  {', '.join(self.approvers) or 'nobody has the role'}"
        if self.expires:
            yield f"Expires    {self.expires}"
        yield f"Clone      {self.clone}"
        yield f"Approve    {self.approve}"


@dataclass(frozen=True, kw_only=True)
class RunFailed:
    """A scheduled run failed, perhaps before it began."""

    type: ClassVar[str] = "run.failed"
    key: str
    """Unique: it names the message."""
    run: str | None
    message: str
    """Our own words: a stage's or a library's error may quote what it read."""
    again: str
    """The command that starts the run again, or goes on with it."""
    clone: str
    """HOST:FOLDER, where the run was."""
    log: str | None = None

    @property
    def subject(self) -> str:
        return f"scheduled run {self.run or '(not begun)'} failed"

    def lines(self) -> Iterator[str]:
        yield f"A scheduled run failed: {self.message}"
        yield ""
        yield f"Run    {self.run or 'none: it failed before there was one'}"
        yield f"Log    {self.log or 'the output of `rft up`'}"
        yield f"Clone  {self.clone}"
        yield f"Again  {self.again}"


Event = RequestWaiting | RunFailed


def request_waits(
    clone: Clone, settings: config.Notify, record: RunRecord, request: Request, approvers: list[str] | None
) -> None:
    """Tell people of a request in the ledger, and who may approve it. `approvers` is None while the
    ledger has nobody with the role: the first person to decide gets it."""
    event = RequestWaiting(
        key=f"{record.flow_run_id or record.key} {record.name}",
        model=request.model,
        run=record.name,
        candidate=record.candidate,
        gain=record.gain,
        approve=record.approve,
        clone=place(clone),
        approvers=tuple(approvers) if approvers else None,
        expires=request.expires,
    )
    tell(settings, event, clone.log(record.name, "notify"))


def tell(settings: config.Notify, event: Event, log: Path) -> None:
    """Send the event to every channel of the settings within notices.DEADLINE_S, and print and log
    how each delivery went."""
    try:
        for outcome in notices.deliver(settings, _notice(event)):
            _print_line(log, f"told that {event.subject}: {outcome}", failed=outcome.problem is not None)
    except Exception as error:  # no thread left, or a bug: the run itself has ended well
        with suppress(Exception):
            _print_line(log, f"told that {event.subject}: {type(error).__name__}: {error}", failed=True)


def place(clone: Clone) -> str:
    return f"{socket.gethostname()}:{clone.root}"


def _notice(event: Event) -> Notice:
    now = records.now()
    data = {name: value for name, value in asdict(event).items() if name != "key"}
    body = {"type": event.type, "timestamp": now, "data": secrets.redact_json(data)}
    return Notice(
        key=f"{event.type} {event.key}",
        time=datetime.fromisoformat(now),
        subject=secrets.redact(f"[agent-rft] {event.subject}"),
        text=_utf8(secrets.redact("\n".join(event.lines()) + "\n")),
        body=_utf8(json.dumps(body, ensure_ascii=False)),
    )


def _utf8(text: str) -> str:
    """Replace what UTF-8 cannot encode: a message may hold a file's name, and that any bytes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _print_line(log: Path, message: str, failed: bool) -> None:
    """Print the message on the console and in the log. A terminal cuts off long lines of progress,
    so a warning goes to stderr, whole."""
    message = secrets.redact(f"warning: not {message}" if failed else f"[notify] {message}")
    if failed:
        print(message, file=sys.stderr, flush=True)
    else:
        repro.listener.get().print_line(message)
    with suppress(OSError):  # a full disk
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            print(records.now(), message, file=file)


def _interval(gain: dict[str, float | None] | None) -> str:
    value, low, high = ((gain or {}).get(name) for name in ("value", "low", "high"))
    if value is None:
        return "unknown"
    ends = "" if low is None or high is None else f" [{low:+.3f}, {high:+.3f}]"
    return f"{value:+.3f}{ends} over the champion"


__all__ = ["Event", "RequestWaiting", "RunFailed", "place", "request_waits", "tell"]
