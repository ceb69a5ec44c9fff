"""Make one grade inside the sandbox, with a function that came as source text.

rft/grading/python_grader.py starts this file's text as a program, sends the source and the rollout
on stdin, and reads one JSON object from stdout:

    {"score": 0.5}                             what grade(sample, item) returned
    {"no_number": "a str, 'good'"}             it returned something else
    {"raised": "KeyError: 'price' (line 4)"}   it, or the source around it, raised

While it runs, the source is a module named `grader`, because dataclasses and pydantic models with
postponed annotations, pickle and `inspect` look up their module.

What the source prints goes to stderr, so that it cannot be taken for the verdict. Only the first
process replies: a child process that also returns from `grade` writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import math
import os
import sys
import traceback
from types import CodeType, ModuleType
from typing import Any

SOURCE = "<grader>"
_LONGEST = 1000


def main() -> None:
    pid, reply = os.getpid(), os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    verdict = graded(request["source"], request["body"])
    if os.getpid() != pid:
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the source may have closed or replaced it
            stream.flush()
    os.write(reply, json.dumps(verdict).encode())
    os._exit(0)  # do not wait for threads that the source left running


def graded(source: str, body: dict[str, Any]) -> dict[str, Any]:
    """Run the source, call its function, and return the result."""
    try:
        code: CodeType = compile(source, SOURCE, "exec")
        module = sys.modules["grader"] = ModuleType("grader")
        linecache.cache[SOURCE] = len(source), None, source.splitlines(keepends=True), SOURCE
        exec(code, module.__dict__)
        value = module.__dict__["grade"](body["sample"], body["item"])
    except BaseException as error:  # SystemExit too: it is not a verdict
        return {"raised": _describe(error)}
    return _read(value)


def _read(value: Any) -> dict[str, Any]:
    """Accept only a number as a score: `float(value)` would call the value's own code, and would
    accept "1" and True."""
    kind = type(value)
    if kind is bool or not issubclass(kind, int | float):
        return {"no_number": _shown(value)}
    try:
        number = float.__float__(value) if issubclass(kind, float) else float(int.__index__(value))
    except OverflowError:
        number = math.inf
    return {"score": number} if math.isfinite(number) else {"no_number": f"{number}, which is not finite"}


def _shown(value: Any) -> str:
    name = f"a {type.__getattribute__(type(value), '__name__')}"
    # for other types, repr would run the value's own code
    return f"{name}, {value!r:.200}" if type(value) in (str, bytes, bool, type(None)) else name


def _describe(error: BaseException) -> str:
    """Describe the error, with the line of the source."""
    text = "".join(traceback.format_exception_only(error)).strip()[-_LONGEST:]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == SOURCE]
    return f"{text} (line {lines[-1]})" if lines else text


if __name__ == "__main__":
    main()
