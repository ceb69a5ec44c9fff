"""Takes the values of headers out of graders and tools, because they are often secret.

Such a value can open somebody's server, and grader.json and params.yaml are recorded with every
run. So an environment variable, named after the tool or grader and the header, replaces each value.
A header that already names a variable stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

from rft.errors import UserError

_VARIABLE = "env:"


def hidden(given: Any, owner: str, where: str, secrets: list[str]) -> dict[str, str]:
    """Return the headers with variables for values, and add the variables' names to `secrets`.
    Raises UserError if these are not headers."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise UserError(f"{where}: headers is {type(given).__name__}, expected names with texts.")
    found: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, str) and value.startswith(_VARIABLE):
            found[str(name)] = value
            continue
        variable = re.sub(r"\W+", "_", f"{owner}_{name}").upper()
        found[str(name)] = f"{_VARIABLE}{variable}"
        if variable not in secrets:
            secrets.append(variable)
    return found


def of_grader(raw: Any, where: str, secrets: list[str]) -> Any:
    """Return a grader with hidden header values, those of its parts too."""
    if not isinstance(raw, dict):
        return raw
    parts = raw.get("graders")
    if raw.get("type") != "multi" or not isinstance(parts, dict | list):
        return _of_one(raw, str(raw.get("name", "grader")), where, secrets)
    if isinstance(parts, list):
        return raw | {"graders": [_of_one(part, f"part_{n}", where, secrets) for n, part in enumerate(parts)]}
    if isinstance(parts.get("type"), str):
        return raw | {"graders": _of_one(parts, "part", where, secrets)}
    return raw | {"graders": {key: _of_one(part, key, where, secrets) for key, part in parts.items()}}


def _of_one(raw: Any, owner: str, where: str, secrets: list[str]) -> Any:
    if isinstance(raw, dict) and raw.get("headers"):
        return raw | {"headers": hidden(raw["headers"], owner, where, secrets)}
    return raw
