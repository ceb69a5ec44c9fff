"""Reads foreign files: whole JSON, or an error that names the line where it is broken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rft import config
from rft.errors import UserError

_AGAIN = "Export it again, and see that the download is complete."


def text(path: Path) -> str:
    """Read a file. Raises UserError if it cannot be read, or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Name a file that exists.") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8. Save it as UTF-8.") from None


def json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one object. Raises UserError naming the line."""
    found = json_value(text(path), str(path))
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds {type(found).__name__}, expected one JSON object.")
    return found


def json_value(written: str, where: str, first_line: int = 1) -> Any:
    """Parse JSON. Raises UserError naming the line, and whether the text ends too early.

    `first_line`: the number of the text's first line in its file.
    """
    try:
        return json.loads(written, object_pairs_hook=config.unique)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(written.rstrip()) or error.msg.startswith("Unterminated")
        what = "cut off in the middle" if is_cut else f"not JSON: {error.msg}"
        raise UserError(f"{where}:{error.lineno + first_line - 1}: {what}. {_AGAIN}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply. {_AGAIN}") from None
    except ValueError as error:  # a key that occurs twice
        raise UserError(f"{where}: {error}.") from None


def file_of(named: str, key: str, files: Path | None, where: str) -> Path:
    """Find the file that a job names by its id, in the folder of --files: `file-abc`, with or
    without an ending. Raises UserError that says how to get it."""
    beside, expected = f"{where}: {key} is {named!r}", named.removesuffix(".jsonl") + ".jsonl"
    if files is None:
        raise UserError(f"{beside}, and the job file does not hold its content. Add --files FOLDER with {expected}.")
    found = sorted(one for one in files.glob("*") if one.name == named or one.stem == named) if files.is_dir() else []
    if not found:
        raise UserError(
            f"{beside}: {files} has no file of that name. Download its content to {files / expected} "
            "(docs/from_openai.md)."
        )
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise UserError(f"{beside}: {files} has {names}. Leave one of them.")
    return found[0]


def number(value: Any, where: str, least: float) -> float:
    """Return the value as a float. Raises UserError if it is not a number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise UserError(f"{where} is {value!r}, expected a number of at least {least:g}.")
    return float(value)
