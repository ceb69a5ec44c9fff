"""Run inside the sandbox: one grade by a function that came as text.

rft/grading/python_grader.py starts this file's text as a program, sends the source and the rollout
on stdin, and reads one JSON object from stdout:

    {"score": 0.5}                             what grade(sample, item) returned
    {"no_number": "a str, 'good'"}             it returned something else
    {"raised": "KeyError: 'price' (line 4)"}   it, or the source around it, raised

The source is a module named `grader` while it runs: dataclasses and pydantic models with postponed
annotations, pickle and `inspect` look their module up.

What the source prints goes to stderr, so that it cannot be taken for the verdict. Only the process
that was started replies: a child that returns from `grade` as well says nothing.
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
        with contextlib.suppress(Exception):  # the source closed it, or put its own in its place
            stream.flush()
    os.write(reply, json.dumps(verdict).encode())
    os._exit(0)  # threads that the source left running are not waited for


def graded(source: str, body: dict[str, Any]) -> dict[str, Any]:
    """Run the source, call its function, and say what became of it."""
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
    """Take a number for a score and nothing else: `float(value)` would call the value's own code,
    and take "1" and True."""
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
    # of other types, repr would be the value's own code
    return f"{name}, {value!r:.200}" if type(value) in (str, bytes, bool, type(None)) else name


def _describe(error: BaseException) -> str:
    """Name the error, and the line of the source."""
    text = "".join(traceback.format_exception_only(error)).strip()[-_LONGEST:]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == SOURCE]
    return f"{text} (line {lines[-1]})" if lines else text


if __name__ == "__main__":
    main()
