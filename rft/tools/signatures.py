"""The schema of a tool, made from the signature and docstring of a typed Python function.

The arguments of calls are validated against the same types (`arguments_model`), so schema and check
cannot differ. Reading schemas needs no server; rft/tools/server.py serves the functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pydantic
from pydantic.json_schema import GenerateJsonSchema

from rft.errors import UserError
from rft.recipe import Recipe
from rft.tools import interpreter
from rft.tools.interpreter import Described

ITEM, TRACE_ID, ROLLOUT, CALL_ID = GIVEN = ("item", "trace_id", "rollout", "call_id")
"""Arguments that a tool gets from us and not from the policy. They are the example's row, the
rollout's trace id, the rollout with its state (rft/tools/states.py), and the id of the call. A
trace id is new in every run: if an output shows it, equal seeds no longer give equal bytes. A call
id is unique in its rollout. A call that is repeated after a lost reply keeps its id, so a tool that
changes the state can answer again without acting again.
"""


class _NoTitles(GenerateJsonSchema):
    """Leaves out titles, which repeat the names and cost prompt tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Make the Chat-Completions tool of a typed function; `Annotated[int, Field(description=...)]`
    describes an argument."""
    parameters = arguments_model(function).model_json_schema(by_alias=True, schema_generator=_NoTitles)
    parameters.pop("title", None)
    description = inspect.cleandoc(function.__doc__ or "")
    declared = {"name": name_of(function), "description": description, "parameters": parameters}
    return {"type": "function", "function": declared}


def schemas(recipe: Recipe) -> list[dict[str, Any]]:
    """Make the Chat-Completions tools of a recipe, in its order."""
    return described(recipe).schemas


def names(recipe: Recipe) -> list[str]:
    """List the names of a recipe's tools."""
    return [each["function"]["name"] for each in schemas(recipe)]


def described(recipe: Recipe) -> Described:
    """Say what a recipe's tools.py offers, under the interpreter that runs it."""
    if recipe.python is None:
        return describe(recipe)
    options = recipe.options.model_dump_json(by_alias=True)
    return interpreter.described(recipe.python, recipe.folder, options, recipe.sources)


def describe(recipe: Recipe) -> Described:
    """Say what a recipe's tools.py offers, by reading it in this process."""
    functions = {name_of(function): function for function in recipe.tools}
    if recipe.grade is not None:
        functions["grade"] = recipe.grade
    return Described(
        schemas=[schema(function) for function in recipe.tools],
        asks={name: asks_for(function) for name, function in functions.items()},
        keeps_state=recipe.setup is not None,
        verifies=recipe.verify is not None,
    )


def asks_for(function: Callable[..., Any]) -> list[str]:
    """Return the names of GIVEN that the function takes."""
    return [name for name in GIVEN if name in inspect.signature(function).parameters]


def name_of(function: Callable[..., Any]) -> str:
    return function.__name__


def arguments_model(function: Callable[..., Any]) -> type[pydantic.BaseModel]:
    """Make a pydantic model of the arguments. Fields have neutral names, with the real names as
    aliases, because a tool may have an argument such as `json`."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for position, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if name in GIVEN:
            continue
        if name not in hints or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(
                f"tool {name_of(function)}: argument {name!r} needs a type hint and must work as a keyword."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"argument_{position}"] = (hints[name], pydantic.Field(default, alias=name))
    return pydantic.create_model(name_of(function), __config__=pydantic.ConfigDict(extra="forbid"), **fields)
