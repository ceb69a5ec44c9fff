"""Reads YAML and JSON as Promptfoo does: js-yaml, the core schema of YAML 1.2.

Each value keeps its file and line, so that a message about it can name them.

PyYAML by itself reads YAML 1.1, which takes `yes` for true and `010` for 8. A date is refused,
because JavaScript would make it an object.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, cast

import yaml

from rft.bridges import foreign
from rft.errors import UserError

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:.*")
_ODD = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class LocatedObject(dict[str, Any]):
    """A mapping that knows its own place and the place of each key."""

    file: str = ""
    line: int = 0
    lines: dict[str, int] = {}


class LocatedList(list[Any]):
    """A list that knows its own place and the place of each item."""

    file: str = ""
    line: int = 0
    lines: list[int] = []


def place(value: LocatedObject | LocatedList, key: str | int | None = None) -> str:
    """Return "FILE:LINE" of a value, or of the value under one of its keys."""
    line = value.line
    if isinstance(value, LocatedObject) and isinstance(key, str):
        line = value.lines.get(key, line)
    elif isinstance(value, LocatedList) and isinstance(key, int):
        line = value.lines[key]
    return f"{value.file}:{line}"


def load(path: Path) -> Any:
    """Read a file of YAML, JSON or JSON lines, by its ending. Raises UserError naming the line."""
    written = foreign.text(path)
    if path.suffix == ".jsonl":
        return _lines(written, path)
    if path.suffix == ".json":
        foreign.json_value(written, str(path))
        return parse(written.replace("\t", " "), str(path))  # YAML allows no tabs; a JSON text holds none
    return parse(written, str(path))


def parse(written: str, file: str, first: int = 1) -> Any:
    """Read one document. `first`: the number of its first line. An empty document is None."""
    try:
        node = yaml.compose(written, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = written.rstrip("\n").count("\n")
        is_cut = mark is not None and mark.line > last  # the parser wanted more after the last line
        line = first + (min(mark.line, last) if mark else 0)
        what = "cut off in the middle" if is_cut else f"not YAML: {error.problem or error.context}"
        raise UserError(f"{file}:{line}: {what}. Fix the line, or export the file again.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not YAML: {' '.join(str(error).split())[:120]}. Save it as UTF-8 text.") from None
    except RecursionError:
        raise UserError(f"{file}: nested too deeply. Write it flatter.") from None
    return None if node is None else _Reading(file, first).value(node)


def _lines(written: str, path: Path) -> LocatedList:
    found = LocatedList()
    found.file, found.line, found.lines = str(path), 1, []
    for number, line in enumerate(written.split("\n"), 1):
        if line.strip():
            foreign.json_value(line, f"{path}:{number}")
            found.append(parse(line.replace("\t", " "), str(path), number))
            found.lines.append(number)
    return found


class _Reading:
    def __init__(self, file: str, first: int) -> None:
        self.file, self.first = file, first
        self.known: dict[int, Any] = {}
        self.open: set[int] = set()

    def line(self, node: yaml.Node) -> int:
        return self.first + cast(yaml.Mark, node.start_mark).line

    def value(self, node: yaml.Node) -> Any:
        """Read a node. Raises UserError for a value that JSON cannot express."""
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open:
            raise UserError(f"{self.file}:{self.line(node)}: an alias that contains itself. Write it out.")
        if id(node) not in self.known:  # an alias gives the same node
            self.open.add(id(node))
            self.known[id(node)] = self.sequence(node) if isinstance(node, yaml.SequenceNode) else self.mapping(node)
            self.open.discard(id(node))
        return self.known[id(node)]

    def sequence(self, node: yaml.SequenceNode) -> LocatedList:
        found = LocatedList(self.value(each) for each in node.value)
        found.file, found.line = self.file, self.line(node)
        found.lines = [self.line(each) for each in node.value]
        return found

    def mapping(self, node: Any) -> LocatedObject:
        found, merged = LocatedObject(), list[LocatedObject]()
        found.file, found.line, found.lines = self.file, self.line(node), {}
        for left, right in node.value:
            if not isinstance(left, yaml.ScalarNode):
                raise UserError(
                    f"{self.file}:{self.line(left)}: a key that is not a text. Write a text before the colon."
                )
            if left.value == "<<" and left.style is None:
                given = self.value(right)
                merged += given if isinstance(given, LocatedList) else [given]
                continue
            if left.value in found:
                raise UserError(f"{self.file}:{self.line(left)}: {left.value!r} is written twice. Remove one of them.")
            found[left.value] = self.value(right)
            found.lines[left.value] = self.line(left)
        for other in merged:
            if not isinstance(other, LocatedObject):
                raise UserError(f"{self.file}:{self.line(node)}: << merges what is not a mapping. Name a mapping.")
            for key, value in other.items():
                if key not in found:
                    found[key], found.lines[key] = value, other.lines[key]
        return found

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        where = f"{self.file}:{self.line(node)}"
        if node.tag not in ("tag:yaml.org,2002:str", "!"):
            raise UserError(f"{where}: the tag {node.tag} is not read here. Write the value without it.")
        if node.style is not None:
            return _whole(text)
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INTEGER.fullmatch(text):
            base = {"0o": 8, "0x": 16}.get(text[:2], 10)
            return int(text[2:] if base != 10 else text, base) if len(text) < 400 else float(text)
        if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if _DATE.fullmatch(text) or _ODD.fullmatch(text):
            raise UserError(f"{where}: {text} is neither a text nor a number of JSON. Write it in quotes.")
        return text


def _whole(text: str) -> str:
    """Join the two halves of a character beyond 16 bits, as JSON writes it: `"\\ud83d\\ude00"`."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def without_locations(value: Any) -> Any:
    """Return a copy made of ordinary dicts and lists."""
    return json.loads(json.dumps(value))
