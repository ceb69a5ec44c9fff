"""From YAML to sections: every problem at once, each with the file, the key, the value and the remedy; and no secret in the file.

A secret is named (`env:NAME`), never written: params.yaml is recorded with every run.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from rft import redact
from rft.errors import ConfigError

_VARIABLE = re.compile(r"env:(\w+)")
_NAMES_A_SECRET = re.compile(r"(?i)(authorization|cookie|token|secret|password|signature|(?<!idempotency[-_])key)$")
_IS_A_KEY = re.compile(r"(?i)(bearer|basic) +\S|whsec_|sk-\w")
_SAID_IN = {"headers", "env"}
_RECORDED = "and this file is recorded with every run"


def parse(raw: dict[str, Any], where: str, model: type[BaseModel]) -> Any:
    """`raw` as `model`; every problem in one ConfigError. The secrets that it names are known to rft/redact.py from here on."""
    for name in _variables(raw):
        if name in os.environ:
            secret(f"env:{name}")
    problems = [f"{where}: '{key}' {why}" for key, why in _written_out(raw)]
    try:
        found = model.model_validate(raw)
    except ValidationError as error:
        problems += [_explain(problem, where, model) for problem in error.errors()]
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def _variables(raw: Any) -> Iterator[str]:
    """NAME of each `env:NAME` in it."""
    if isinstance(raw, str) and (found := _VARIABLE.fullmatch(raw)):
        yield found[1]
    elif isinstance(raw, dict | list):
        for each in raw.values() if isinstance(raw, dict) else raw:
            yield from _variables(each)


def _written_out(raw: Any, key: str = "", inside: bool = False) -> Iterator[tuple[str, str]]:
    """(key, why) of each secret that stands in the file itself. The file is recorded with every run, for ever."""
    if isinstance(raw, dict | list):
        for name, each in raw.items() if isinstance(raw, dict) else enumerate(raw):
            yield from _written_out(each, f"{key}.{name}" if key else str(name), inside or name in _SAID_IN)
    elif isinstance(raw, str) and not _VARIABLE.fullmatch(raw):
        name = key.rpartition(".")[2]
        if name == "signing_secret" or (inside and (names_a_secret(name) or _IS_A_KEY.match(raw))):
            yield key, f"holds a key, {_RECORDED}. Export its whole value, a scheme such as 'Bearer ' included, and write env:NAME."
        elif name.endswith("url") and re.search(r"//[^/?#]*@", raw):
            yield key, f"holds a user name or password, {_RECORDED}. Write the address alone, and headers: Authorization: env:NAME."


def names_a_secret(name: str) -> bool:
    """Tell whether a header or variable of this name holds a secret: X-Functions-Key, Authorization, GITHUB_TOKEN.

    Decides for files, which must not hold its value, and for replies, which must not show it. An Idempotency-Key is random, not secret.
    """
    return _NAMES_A_SECRET.search(name) is not None


def yaml_problem(error: yaml.YAMLError) -> str:
    """Where and what, without the line itself: a key may stand in it."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return type(error).__name__
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def _explain(problem: Any, where: str, model: type[BaseModel]) -> str:
    loc = [str(part) for part in problem["loc"]]
    key = ".".join(loc)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(loc[-1], _keys_at(model, loc[:-1]), n=1, cutoff=0.5)
        known = ", ".join(sorted(_keys_at(model, loc[:-1])))
        return f"{where}: unknown key '{key}'. " + (f"Did you mean '{near[0]}'?" if near else f"Known here: {known}.")
    if problem["type"] == "missing":
        return f"{where}: '{key}' is missing. It has no default: write it down."
    said = problem["msg"].removeprefix("Value error, ")  # pydantic's, before what a validator of ours says
    if not key:  # of several sections together
        return f"{where}: {said}."
    if {*_SAID_IN, "signing_secret"} & {*loc} or key.endswith("url") or isinstance(problem["input"], dict | list):
        return f"{where}: '{key}': {said}."
    return f"{where}: '{key}' = {problem['input']!r}: {said}."


def _keys_at(model: type[BaseModel], loc: list[str]) -> list[str]:
    for part in loc:
        for name, info in model.model_fields.items():
            for kind in (info.annotation, *get_args(info.annotation)) if part in (name, info.alias) else ():  # X, or X | None
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    model = kind
    return [info.alias or name for name, info in model.model_fields.items()]


def secret(value: str) -> str:
    """`env:NAME` -> the environment's value, which rft/redact.py keeps out of all text from here on; anything else is itself."""
    if not (found := _VARIABLE.fullmatch(value)):
        return value
    name = found[1]
    if (known := os.environ.get(name)) is None:
        raise ConfigError(f"params.yaml names the environment variable {name}, which is not set. Export it and try again.")
    if not known.isprintable():
        raise ConfigError(f"the environment variable {name} holds a line break or another character that no header may hold. Export it without.")
    try:
        redact.add(name, known)
    except ValueError as error:
        raise ConfigError(
            f"the environment variable {error}: so short a secret cannot be told from ordinary text, and so not be kept out of logs and reports. "
            f"Give it a longer value, or, if it is no secret, write it into the file in the place of env:{name}."
        ) from None
    return known
