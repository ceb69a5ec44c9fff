"""Read YAML and JSON files that people write into sections.

One error names every problem, each with the file, the key, the value and the remedy. YAML and JSON
accept a key that is written twice, and silently drop the first value. Here that is an error.
A secret in the file is an error too: params.yaml is recorded with every run, so it names secrets
(`env:NAME`) and never holds one.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rft import files, secrets
from rft.config.section import Section
from rft.errors import ConfigError, did_you_mean

_SAID_IN = {"headers", "env"}
_KEYS = {"signing_secret", "password"}
"""Keys that hold a secret, so their value must be `env:NAME`."""
_MERGE = "tag:yaml.org,2002:merge"
_RECORDED = "and this file is recorded with every run"


def parse(raw: dict[str, Any], where: str, model: type[BaseModel]) -> Any:
    """Make a `model` of the `raw` values, and register the secrets that they name. One ConfigError
    names every problem."""
    problems: list[str] = []
    try:
        for name in secrets.variables(raw):
            if name in os.environ:
                secret(f"env:{name}")
        problems += [f"{where}: '{key}' {why}" for key, why in _written_out(raw)]
        found = model.model_validate(raw)
        problems += [f"{where}: '{key}' {why}" for key, why in _without_form(raw, found).items()]
    except ValidationError as error:
        problems += [_explain(problem, where, model) for problem in error.errors()]
    except (RecursionError, ValueError) as error:  # such as an alias that holds itself
        raise ConfigError(
            f"{where}: cannot be written as JSON: {error}. Write it flatter, and of JSON values."
        ) from None
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def _without_form(raw: dict[str, Any], found: BaseModel) -> dict[str, str]:
    """Find the values that no digest can hold, by key.

    Looks at the values as written, because pydantic's JSON has null for a nan in a field of any
    type. Looks at them as parsed too, because the text "inf" becomes a number. A recipe's own
    Options are in no digest.
    """
    wrong = dict(files.without_form(raw))
    if isinstance(found, Section):
        wrong |= dict(files.without_form(found.model_dump(mode="json", by_alias=True)))
    return wrong


def read_yaml(path: Path, where: str) -> Any:
    """Read a YAML file. Returns None for an empty one.

    Raises ConfigError, which begins with `where`, and FileNotFoundError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8: the byte at {error.start}. Save it as UTF-8.") from None
    return yaml_value(text, where)


def yaml_value(text: str, where: str) -> Any:
    """Read YAML. Raises ConfigError for text that is not YAML, and for keys that are written
    twice."""
    return copy.deepcopy(_value(text, where))


@lru_cache(maxsize=16)
def _value(text: str, where: str) -> Any:
    """Parse YAML, cached: a run reads the same settings many times, and a parse takes 20 ms."""
    try:
        loader = yaml.SafeLoader(text)  # checks the characters, too
        try:
            node = loader.get_single_node()
            twice = [] if node is None else list(_twice(loader, node, "", set()))
            value = None if node is None or twice else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not YAML: {yaml_problem(error)}. Fix that line.") from None
    except (ValueError, RecursionError) as error:  # an impossible date; brackets nested by the thousand
        raise ConfigError(f"{where}: not YAML: {error}. Put that text in quotes.") from None
    if twice:
        problem = "is written twice, in lines {} and {}, and only one can count. Merge them, or remove one."
        raise ConfigError("\n".join(f"{where}: '{key}' {problem.format(*lines)}" for key, *lines in twice))
    return value


def _twice(loader: yaml.SafeLoader, node: yaml.Node, key: str, known: set[int]) -> Iterator[tuple[str, int, int]]:
    """Yield (key, line, line) for each key that a mapping holds twice. `known`: nodes that were
    visited before, such as the node of an alias."""
    if id(node) in known:
        return
    known.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[Any, int] = {}
        for name, each in node.value:
            inner = f"{key}.{name.value}" if key else str(name.value)
            if isinstance(name, yaml.ScalarNode):
                # equal as keys of a dict: yes is true
                this = loader.construct_object(name) if name.tag != _MERGE else _MERGE
                line = name.start_mark.line + 1
                if this in lines:
                    yield inner, lines[this], line
                lines.setdefault(this, line)
            yield from _twice(loader, each, inner, known)
    elif isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            yield from _twice(loader, each, f"{key}.{number}", known)


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of key-value pairs, for json.loads(..., object_pairs_hook=unique). Raises
    ValueError for a key that an object holds twice."""
    if repeated := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        message = "is written twice in one object, and only one can count. Merge them, or remove one"
        raise ValueError(f"{repeated[0]!r} {message}")
    return dict(pairs)


def _written_out(raw: Any, key: str = "", inside: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (key, problem and remedy) for each secret that is written in the file itself."""
    if isinstance(raw, dict | list):
        for name, each in raw.items() if isinstance(raw, dict) else enumerate(raw):
            yield from _written_out(each, f"{key}.{name}" if key else str(name), inside or name in _SAID_IN)
    elif isinstance(raw, str) and not secrets.VARIABLE.fullmatch(raw):
        name = key.rpartition(".")[2]
        if name in _KEYS or (inside and (secrets.names_a_secret(name) or secrets.is_a_key(raw))):
            remedy = "Export the whole value, a scheme such as 'Bearer ' included, and write env:NAME."
            yield key, f"holds a key, {_RECORDED}. {remedy}"
        elif name.endswith("url") and re.search(r"//[^/?#]*@", raw):
            remedy = "Write the address without it, and headers: {Authorization: env:NAME}."
            yield key, f"holds a user name or password, {_RECORDED}. {remedy}"


def yaml_problem(error: yaml.YAMLError) -> str:
    """Describe a YAML error and its place, without quoting the line, which may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return type(error).__name__
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def _explain(problem: Any, where: str, model: type[BaseModel]) -> str:
    loc = [str(part) for part in problem["loc"]]
    key = ".".join(loc)
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key '{key}'. {did_you_mean(loc[-1], _keys_at(model, loc[:-1]))}"
    if problem["type"] == "missing":
        message = f"{where}: '{key}' is missing, and has no default."
        shown = _field_at(model, loc)
        if shown is None or not shown.examples:
            return f"{message} Add it."
        return (
            f"{message} Write what you mean by it, such as {loc[-1]}: {shown.examples[0]} (docs/params.md explains it)."
        )
    message = problem["msg"].removeprefix("Value error, ")  # pydantic puts it before our validators' words
    if not key:  # the error is about several sections together
        return f"{where}: {message}."
    may_hold_a_key = {*_SAID_IN, *_KEYS} & {*loc} or key.endswith(("url", "mail.server"))
    if may_hold_a_key or isinstance(problem["input"], dict | list):
        return f"{where}: '{key}': {message}."
    return f"{where}: '{key}' = {_shown(problem['input'])}: {message}.{_why(model, loc)}"


def _why(model: type[BaseModel], loc: list[str]) -> str:
    """Say what the value would do, if the field explains it (`outside`)."""
    found = _field_at(model, loc)
    told = found.json_schema_extra if found is not None else None
    return f" {told['outside']}" if isinstance(told, dict) and "outside" in told else ""


def _shown(value: Any) -> str:
    """Quote a value, or the beginning of a long one, such as a source."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _keys_at(model: type[BaseModel], loc: list[str]) -> list[str]:
    return [info.alias or name for name, info in _section_at(model, loc).model_fields.items()]


def _field_at(model: type[BaseModel], loc: list[str]) -> FieldInfo | None:
    fields = _section_at(model, loc[:-1]).model_fields
    return next((info for name, info in fields.items() if loc[-1] in (name, info.alias)), None)


def _section_at(model: type[BaseModel], loc: list[str]) -> type[BaseModel]:
    for part in loc:
        for name, info in model.model_fields.items():
            if part in (name, info.alias):
                kinds = (info.annotation, *get_args(info.annotation))  # X, or X | None
                models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
                model = models[-1] if models else model
    return model


def named(params: BaseModel, recipe: Path) -> list[str]:
    """Return the environment variables that params.yaml and the recipe's grader.json name with
    `env:`."""
    try:
        grader = json.loads((recipe / "grader.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        grader = None  # the recipe's check says what is wrong with it
    return sorted({*secrets.variables(params.model_dump(by_alias=True)), *secrets.variables(grader)})


def refuse_unset(params: BaseModel, recipe: Path) -> None:
    """Raise ConfigError naming every variable that is not set, before a stage needs one of them."""
    if unset := [name for name in named(params, recipe) if name not in os.environ]:
        raise ConfigError(
            f"params.yaml and grader.json name secrets that are not in the environment: {', '.join(unset)}. Export "
            f"{'it' if len(unset) == 1 else 'them'} and try again."
        )


def secret(value: str) -> str:
    """Return the environment's value for `env:NAME`, and any other value as it is.

    After this call rft/secrets.py keeps the environment's value out of all text.
    """
    if not (found := secrets.VARIABLE.fullmatch(value)):
        return value
    name = found[1]
    if (known := os.environ.get(name)) is None:
        raise ConfigError(
            f"params.yaml names the environment variable {name}, which is not set. Export it and try again."
        )
    if not known.isprintable():
        raise ConfigError(
            f"the environment variable {name} holds a line break or another character that a header cannot hold. "
            "Export it without that character."
        )
    try:
        secrets.add(name, known)
    except ValueError as error:
        raise ConfigError(
            f"the environment variable {error}. A secret this short looks like ordinary text, so it cannot be kept "
            "out of logs and reports. Give it a longer value or, if it is not secret, write the value into the file "
            f"instead of env:{name}."
        ) from None
    return known
