"""The base of all reports, and the only code that reads and writes their files.

Reports are frozen pydantic models without wall times: equal inputs give equal bytes. Times are in a
`timing.json` beside them. A truncated or foreign file gives one clear error. No secret is written.

The file of a report begins with the schema that wrote it. The schema belongs to the file and is not
a field of the report. So no digest includes it, and a report inside another one has none. Older
files name no schema; they are read as schema 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rft import commands, files, secrets
from rft.errors import UserError

_FAMILY, _NUMBER = "agent-rft", 2
SCHEMA = f"{_FAMILY}/{_NUMBER}"
"""Raise the number when a reader of the last schema would fail on a file, or misread it."""


class Newer(UserError):
    """A later version of agent-rft wrote the file, and this one cannot read it."""


class Report(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def digest(self) -> str:
        """Hash its canonical JSON. Other reports and the ledger refer to it by this hash."""
        return files.digest(self.model_dump(mode="json"))


R = TypeVar("R", bound=Report)


def added(default: Any) -> Any:
    """Declare a field that earlier versions lack. It is left out where it has its default, so that
    the hashes of their reports still hold."""
    return Field(default=default, exclude_if=lambda given: given == default)


# -- the file of a report --------------------------------------------------------------------------
def write(report: Report | None, path: Path) -> None:
    """Write it atomically: a reader sees the old file or the new one. None becomes `null`."""
    write_json(None if report is None else {"schema": SCHEMA, **report.model_dump(mode="json")}, path)


def read(kind: type[R], path: Path) -> R:
    """Read a report from its file. Raises UserError for a file that is missing, cut off, of another
    kind or of a later schema."""
    try:
        return parse(kind, path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: missing. {_remedy(path)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        what = f"{path}: {where}: {first['msg']}. Not a whole {kind.__name__}"
        raise UserError(f"{what}; run the stage again: {commands.stage(path.parent.name)}") from None


def _remedy(path: Path) -> str:
    if path.parent.name in ("champion", "model", "registration"):  # written by the flow
        return f"Git holds it: git checkout -- {path}"
    return f"Run the stage that writes it: {commands.stage(path.parent.name)}"


def parse(kind: type[R], content: bytes, where: str) -> R:
    """Read a report from the bytes of its file, which an error calls `where`.

    Raises Newer for a schema that this version does not know, and ValidationError for anything
    but a whole `kind`.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None  # pydantic reports below what is wrong
    if isinstance(found, dict) and "schema" in found:
        _assert_known(found.pop("schema"), where)
        content = json.dumps(found).encode()  # JSON again, so that errors speak of arrays and objects
    return kind.model_validate_json(content)


def _assert_known(schema: Any, where: str) -> None:
    family, _, number = str(schema).partition("/")
    if family != _FAMILY or not number.isdecimal() or int(number) > _NUMBER:
        raise Newer(
            f"{where}: written in schema {schema!r}, but this version of agent-rft reads schemas up to '{SCHEMA}'. "
            "Read it with the version that wrote it, or with a later one."
        )


# -- other files -----------------------------------------------------------------------------------
def write_json(value: Any, path: Path) -> None:
    """Write any JSON value, atomically."""
    text = secrets.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with _replacing(path) as handle:
        handle.write(text + "\n")


def write_jsonl(rows: Iterable[Any], path: Path) -> None:
    """Write one JSON value per line, atomically."""
    with _replacing(path) as handle:
        for row in rows:
            handle.write(secrets.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write lines as they are, atomically.

    Raises UserError for one that holds a secret, because a row is never changed.
    """
    with _replacing(path) as handle:
        for number, line in enumerate(lines, 1):
            if secrets.redact(line) != line:
                what = "the row holds the value of a secret that params.yaml names"
                raise UserError(f"{path}:{number}: {what}. Remove it from the row.")
            handle.write(line + "\n")


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` once it is written completely."""
    with files.replacing(path) as part, part.open("w", encoding="utf-8", newline="\n") as handle:
        yield handle


def read_jsonl(path: Path, content: bytes, remedy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file:line", object) for each line that is not blank.

    Raises UserError at the first line that is not a whole JSON object.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8. {remedy}") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        yield where, parse_line(line, where, remedy, is_last=number == len(lines))


def parse_line(line: str, where: str, remedy: str, is_last: bool = False) -> dict[str, Any]:
    """Read one line as a JSON object.

    `is_last`: it ends a file without a line break, so it may be cut off.
    """
    try:
        line.encode()  # refuses half a surrogate pair, which a recipe's row may hold
        row = json.loads(line, parse_constant=_refuse)
        if "\\u" in line:  # an escaped half is JSON, but cannot be written again as text
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        what = "half of a surrogate pair (\\ud800 to \\udfff), which no file can hold"
        raise UserError(f"{where}: holds {what}. {remedy}") from None
    except (ValueError, RecursionError) as error:
        why = "the file is cut off in this line, its last" if is_last else f"not JSON ({error})"
        raise UserError(f"{where}: {why}. {remedy}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: holds {json.dumps(row)[:40]}, expected a JSON object. {remedy}")
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")
