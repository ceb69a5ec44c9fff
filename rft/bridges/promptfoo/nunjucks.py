"""Fills templates as Promptfoo's Nunjucks does, in their plain form: {{ name }} and {{ name.key }}.

A filter, a block or a comment could do anything, so it is refused with its place. Promptfoo
silently fills the name of an unknown variable with nothing; here that is refused too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from rft.errors import UserError

_OPENING = re.compile(r"\{\{|\{%|\{#")
_PLAIN = re.compile(r"\{\{\s*([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*)\s*\}\}", re.ASCII)
_WORD = re.compile(r"\{\{\s*(\w+)\s*\}\}", re.ASCII)
_CONSTANTS = {"true", "false", "none", "null"}
_ROUNDS = 5
"""How often Promptfoo searches the variables for names of other variables."""


class _Unknown(Exception):
    pass


def fill(text: str, variables: Mapping[str, Any], where: str) -> str:
    """Fill the templates of a text. Raises UserError naming the template and the remedy."""
    found, position = list[str](), 0
    for opening in _OPENING.finditer(text):
        if opening.start() < position:
            continue
        template = _PLAIN.match(text, opening.start())
        if template is None:
            shown = text[opening.start() : opening.start() + 40].split("\n")[0]
            raise UserError(
                f"{where}: the template {shown!r} is not plain. Only {{{{ name }}}} and {{{{ name.key }}}} are filled "
                "here: write what it gives, or a variable for it."
            )
        try:
            value = text_of(_look_up(template[1], variables), where, nothing="")
        except _Unknown:
            raise UserError(
                f"{where}: {template[0]} names no variable of the test. Add it to vars of the test or of defaultTest."
            ) from None
        found += text[position : opening.start()], value
        position = template.end()
    return "".join([*found, text[position:]])


def resolved(variables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fill variables whose text names other variables. Drops one line break at a text's end."""
    found = {key: value.removesuffix("\n") if isinstance(value, str) else value for key, value in variables.items()}
    for _ in range(_ROUNDS):
        is_done = True
        for key, value in found.items():
            template = _WORD.search(value) if isinstance(value, str) else None
            if template is None or template[1] not in found:
                continue
            inside = text_of(found[template[1]], where, nothing="null")
            if re.search(r"\$[$&`']", inside):  # special in JavaScript's replace
                raise UserError(f"{where}: vars.{key} names {template[1]}, which holds a $ sign. Write the text out.")
            found[key] = value.replace(template[0], inside, 1)
            is_done = False
        if is_done:
            break
    return found


def rendered(variables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fill the templates inside the variables, as Promptfoo does for a prompt that is not JSON. A
    text that names an unknown variable stays as it is."""
    found = dict(variables)
    for key, value in variables.items():
        if isinstance(value, str) and all(_knows(name, variables) for name in _PLAIN.findall(value)):
            found[key] = fill(value, variables, f"{where}: vars.{key}")
    return found


def text_of(value: Any, where: str, nothing: str = "null") -> str:
    """Write a value as JavaScript's String(value) does. `nothing`: how null is written."""
    match value:
        case str():
            return value
        case None:
            return nothing
        case bool():
            return "true" if value else "false"
        case list():
            return ",".join(text_of(each, where, "") for each in value)
        case int() if abs(value) < 2**53:
            return str(value)
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case float() if math.isfinite(value) and "e" not in repr(value):
            return repr(value)
        case _:
            raise UserError(f"{where}: {str(value)[:40]} is written differently in JavaScript. Write a text in quotes.")


def _look_up(name: str, variables: Mapping[str, Any]) -> Any:
    first, *rest = name.split(".")
    if first not in variables or first in _CONSTANTS:
        raise _Unknown(name)
    value = variables[first]
    for key in rest:
        if not isinstance(value, Mapping) or key not in value:
            raise _Unknown(name)
        value = value[key]
    return value


def _knows(name: str, variables: Mapping[str, Any]) -> bool:
    return name.split(".")[0] in variables
