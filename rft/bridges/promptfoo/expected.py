"""Reads a test from a row of a CSV file.

Columns are variables, and __expected says what is asserted:

Paris                       equals
contains:Paris              any type before the colon, also with not-
contains-any:a, "b, c"      texts between commas
levenshtein(3):Paris        a threshold
grade: is polite            llm-rubric
python: len(output) < 9     an expression
"""

from __future__ import annotations

import re
from typing import Any

from rft.bridges.promptfoo.assertions import JUDGED, LEFT_OUT, REFUSED
from rft.bridges.promptfoo.grader import CHECKS
from rft.bridges.promptfoo.located_yaml import LocatedList, LocatedObject
from rft.errors import UserError

_FORM = re.compile(r"((?:not-)?[a-z-]+)(?:\((\d+(?:\.\d+)?)\))?(?::(.*))?", re.DOTALL | re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_TYPES = (
    {*CHECKS, *JUDGED, *LEFT_OUT, *REFUSED, "python"}
    | {"agent-rubric", "answer-relevance", "contains-html", "contains-sql", "contains-xml", "context-faithfulness"}
    | {"context-recall", "context-relevance", "conversation-relevance", "finish-reason", "g-eval", "guardrails"}
    | {"is-html", "is-refusal", "is-sql", "is-valid-function-call", "is-valid-openai-function-call", "is-xml", "pi"}
    | {"is-valid-openai-tools-call", "tool-call-f1", "skill-used", "search-rubric"}
)
"""Words that Promptfoo reads as a type; any other text is the expected answer itself."""
_SCRIPT = {"javascript", "fn", "eval"}
_HAS_THRESHOLD = {"levenshtein": 0.75}
"""Type -> the threshold of the CSV form without a number in parentheses."""


def test(row: dict[str, str], file: str, line: int) -> LocatedObject:
    """Return the test of a row. Raises UserError naming the column."""
    found, asserts = _object(file, line), LocatedList()
    asserts.file, asserts.line, asserts.lines = file, line, []
    variables, options, metadata = (_object(file, line) for _ in range(3))
    for name, value in ((key.strip(), value) for key, value in row.items()):
        if name.startswith("__expected"):
            if value.strip():
                asserts.append(_assertion(value.strip(), file, line, name))
                asserts.lines.append(line)
        elif name in ("__prefix", "__suffix"):
            options[name[2:]] = value
        elif name == "__description":
            found["description"] = value
        elif name == "__threshold":
            if _NUMBER.fullmatch(value.strip()):
                found["threshold"] = float(value)
            elif value.strip():
                raise UserError(f"{file}:{line}: __threshold is {value!r}. Write a number.")
        elif name == "__metric":
            metadata["metric"] = value
        elif name.startswith("__metadata:") and not name.endswith("[]"):
            metadata[name.removeprefix("__metadata:")] = value
        elif name.startswith("__"):
            raise UserError(f"{file}:{line}: the column {name} is not read here. Write the test in YAML.")
        else:
            variables[name] = value
    return _filled(found, {"vars": variables, "assert": asserts, "options": options, "metadata": metadata})


def _assertion(text: str, file: str, line: int, column: str) -> LocatedObject:
    found = _object(file, line)
    kind, _, rest = text.partition(":")
    if kind in ("grade", "llm-rubric"):
        return _filled(found, {"type": "llm-rubric", "value": rest})
    if kind in _SCRIPT:
        return _filled(found, {"type": "javascript", "value": rest})
    if kind == "file":
        raise UserError(
            f"{file}:{line}: {column} is {text[:60]!r}. Write the test in YAML, which names a file as python."
        )
    if kind == "python":
        return _filled(found, {"type": "python", "value": rest.strip()})
    form = _FORM.fullmatch(text)
    if form is None or form[1].removeprefix("not-") not in _TYPES:
        return _filled(found, {"type": "equals", "value": text})
    base, threshold, value = form[1].removeprefix("not-"), form[2], form[3]
    _filled(found, {"type": form[1]} | ({} if value is None else {"value": value.strip()}))
    if base in _HAS_THRESHOLD:
        found["threshold"] = float(threshold) if threshold else _HAS_THRESHOLD[base]
    return found


def _object(file: str, line: int) -> LocatedObject:
    found = LocatedObject()
    found.file, found.line, found.lines = file, line, {}
    return found


def _filled(found: LocatedObject, values: dict[str, Any]) -> LocatedObject:
    found.update(values)
    return found
