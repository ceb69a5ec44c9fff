"""Explain every key of params.yaml, for its page and for `rft doctor --show-resolved`.

The words are the docstrings under the keys in this package, so source and reference cannot differ.
tests/config/test_reference.py refuses a key without one. For a key that holds a section, the
docstring of the section's class is enough. pages.py writes the page, docs/params.md.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from rft import config
from rft.config.section import Section


@dataclass(frozen=True, slots=True)
class Key:
    """One row: `Key("train.kl.beta", "number, at least 0", "0.0", "Weight of the penalty.")`."""

    name: str
    type: str
    default: str
    """The default as YAML, "required" if there is none, or empty for a key that holds others."""
    meaning: str


def sections() -> Iterator[tuple[str, str, list[Key]]]:
    """Yield name, meaning and keys of each section, in the order of the file."""
    for name, info in config.Params.model_fields.items():
        if kind := _section(info.annotation):
            yield name, _docstring(kind), list(keys(kind, f"{name}."))


def at_the_top() -> list[Key]:
    """List the keys that are in no section."""
    return [key for key in keys(config.Params, "") if "." not in key.name and key.type != "section"]


def keys(kind: type[Section], prefix: str) -> Iterator[Key]:
    """Yield each key of a section, and the keys inside it."""
    for field, info in kind.model_fields.items():
        name = f"{prefix}{info.alias or field}"
        inner = _section(info.annotation)
        meaning = _one_line(_below(kind).get(field, "")) or (_docstring(inner) if inner else "")
        yield Key(name, _type(info), _default(info), meaning)
        if inner is not None:
            yield from keys(inner, f"{name}{_step(info.annotation)}.")


@cache
def _below(kind: type[Section]) -> dict[str, str]:
    """Return the docstring under each field. Pydantic could read them too, but it would read them
    whenever a class is made: a tenth of a second in each process that reads settings."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if issubclass(one, Section):
            [made] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            assert isinstance(made, ast.ClassDef)
            for field, text in pairwise(made.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as meaning)):
                        found[name] = meaning
                    case _:
                        pass
    return found


def tables() -> str:
    """Write the tables of docs/params.md."""
    lines = ["## At the top", "Keys in no section.\n", *table(at_the_top()), ""]
    for name, meaning, rows in sections():
        lines += [f"## `{name}`", f"{meaning}\n", *table(rows), ""]
    return "\n".join(lines)


def table(rows: Iterable[Key]) -> list[str]:
    """Write the lines of a table of keys."""
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return head + [f"| `{key.name}` | {key.type} | {_code(key.default)} | {_cell(key.meaning)} |" for key in rows]


def commented(params: config.Params, written: Set[str]) -> str:
    """Write all settings as YAML, each with its origin and meaning. The YAML can be read back as
    the same settings."""
    lines: list[tuple[str, str]] = []
    for key in at_the_top():
        origin = "set" if key.name in written else "default"
        lines.append((f"{key.name}: {_yaml(getattr(params, key.name))}", f"{origin}. {key.meaning}"))
    for name, _, _ in sections():
        section: Section = getattr(params, name)
        lines.append((f"{name}:", _docstring(type(section))))
        lines += _lines(section, f"{name}.", "  ", written)
    width = min(40, max(len(left) for left, _ in lines))
    return "\n".join(f"{left:{width}}  # {right}" for left, right in lines)


def _lines(section: Section, prefix: str, indent: str, written: Set[str]) -> Iterator[tuple[str, str]]:
    meanings = {key.name: key.meaning for key in keys(type(section), prefix)}
    shown = section.model_dump(mode="json", by_alias=True)
    for field, info in type(section).model_fields.items():
        alias = info.alias or field
        if alias not in shown:  # a key that is written only if it is set
            continue
        value, meaning = getattr(section, field), meanings[prefix + alias]
        origin = "set" if prefix + alias in written else "default"
        if isinstance(value, Section):
            yield f"{indent}{alias}:", meaning
            yield from _lines(value, f"{prefix}{alias}.", indent + "  ", written)
        else:
            yield f"{indent}{alias}: {_yaml(shown[alias])}", f"{origin}. {meaning}"


# -- in words --------------------------------------------------------------------------------------
def _section(annotation: Any) -> type[Section] | None:
    """Find the section in an annotation: Budget, Allowance | None, list[Endpoint]."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((kind for part in get_args(annotation) if (kind := _section(part))), None)


def _step(annotation: Any) -> str:
    """Return what goes between a key and the keys inside it."""
    origin = get_origin(annotation)
    if origin in (types.UnionType, Union):
        return next((step for part in get_args(annotation) if (step := _step(part))), "")
    return "[]" if origin is list else ".NAME" if origin is dict else ""


def _docstring(kind: type[Section]) -> str:
    """Return a section's own docstring, not an inherited one."""
    return _one_line(inspect.cleandoc(kind.__dict__.get("__doc__") or ""))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _type(info: FieldInfo) -> str:
    """Say which values are allowed: `whole number, at least 1`."""
    names = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = ((word, getattr(bound, name, None)) for bound in info.metadata for name, word in names.items())
    return ", ".join([_kind(info.annotation), *(f"{word} {bound:,}" for word, bound in found if bound is not None)])


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return " or ".join(_kind(part) for part in parts)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is list:
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return "mapping"
    if origin is tuple:
        return f"list of {len(parts)} {_kind(parts[0])}s"
    if hasattr(annotation, "__metadata__"):
        return _kind(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}
    names[Any] = "anything"
    return names.get(annotation) or str(getattr(annotation, "__name__", annotation))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    return "" if isinstance(info.default, Section) else _yaml(info.default)


def _yaml(value: Any) -> str:
    """Write one line of YAML. A text with line breaks is written as JSON, which is YAML too."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False)
    text = text.removesuffix("\n...\n").strip()
    return json.dumps(value) if "\n" in text else text


def _code(default: str) -> str:
    return "*required*" if default == "required" else f"`{default}`" if default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
