"""Call a candidate's function with each input, and write its answers.

This file runs inside the sandbox, in the candidate's own process, so nobody trusts it. It only
brings back the answers of an honest candidate. It holds no expected value, and cannot give an
answer that the candidate could not have written itself.

    stdin    {"folder", "module", "function"}, then one list of arguments a line
    stdout   {"started": true}, {"loaded": true}, then {"case": 0, "value": ...} or
             {"case": 0, "raised": "ValueError: ..."} for each line

It imports nothing of ours, and imports the standard library before the candidate. The candidate's
folder comes last on the path, so a `json.py` in it shadows nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Read all inputs, then call the function."""
    job = json.loads(sys.stdin.buffer.readline())
    calls = [json.loads(line) for line in sys.stdin.buffer]
    channel = os.dup(1)  # only we write to it; what the candidate prints goes to stderr
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    _write(channel, {"started": True})
    sys.path.append(job["folder"])
    try:
        function = getattr(importlib.import_module(job["module"]), job["function"])
    except BaseException as error:
        _write(channel, {"loaded": False, "raised": _describe(error)})
        return
    _write(channel, {"loaded": True})
    for case, arguments in enumerate(calls):
        try:
            line = _line({"case": case, "value": _with_text_keys(function(*arguments))})
        except BaseException as error:
            line = _line({"case": case, "raised": _describe(error)})
        _send(channel, line)


def _with_text_keys(value: Any) -> Any:
    """Refuse keys that are not texts: JSON would silently turn the key 1 into "1"."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the answer has a key that is not a text: {key!r:.40}")
            _with_text_keys(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _with_text_keys(item)
    return value


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}"[:300]


def _line(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _write(channel: int, value: Any) -> None:
    _send(channel, _line(value))


def _send(channel: int, line: bytes) -> None:
    while line:
        line = line[os.write(channel, line) :]


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)
