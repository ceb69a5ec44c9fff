"""What a call may hold: arguments against schemas, and schemas that are none. All through the
client and over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scripted_tools import IN_BERN, ITEM, OK, ROW_TOOL, SCHEMAS, TOWN, WEATHER, context, one, play

from rft import config
from rft.errors import ConfigError
from rft.tools import arguments
from rft.tools.client import ToolClient
from rft.types import Example, ToolCall
from rft.wire import client as http_client
from rft.wire.client import ToolEndpoint


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.001)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"query": "a"}', {"query": "a", "k": 5}),
        ('{"query": "a", "k": 1}', {"query": "a", "k": 1}),
    ],
)
def test_defaults_fill_only_what_is_missing(arguments: str, sent: dict[str, Any]):
    _, server = one(OK, arguments=arguments, defaults={"search": {"k": 5}, "lookup": {}})
    assert json.loads(server.bodies[0]["arguments"]) == sent


def test_a_default_does_not_excuse_a_required_argument():
    result, _ = one(OK, arguments="{}", defaults={"search": {"query": "all"}})
    assert result.output == 'Error: invalid arguments for search: arguments: "query" is a required property'


@pytest.mark.parametrize("defaults", [{"serach": {"k": 5}}, {"search": {"top": 5}}])
def test_a_default_that_no_tool_has_is_an_error(defaults: dict[str, dict[str, Any]]):
    with pytest.raises(ConfigError, match="tool_defaults"):
        one(OK, defaults=defaults)


def test_names_narrow_what_may_be_called():
    result, server = one(OK, names=["lookup"])
    assert result.output == "Error: unknown tool 'search'; known tools: lookup"
    assert server.bodies == []
    with pytest.raises(ConfigError, match=r"tools \['serach'\] have no schema\. Those with a schema: "):
        one(OK, names=["serach"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "the arguments of search are not JSON"),
        ('{"query": "a", "k": NaN}', "the arguments of search are not JSON"),
        ("[" * 100_000, "the arguments of search are not JSON"),
        ('{"query": "a", "k": ' + "9" * 5000 + "}", "the arguments of search are not JSON"),
        ('["angina"]', "the arguments of search must be a JSON object"),
        ('{"query": "a", "k": "3"}', 'invalid arguments for search: k: "3" is not of type "integer"'),
        ('{"query": 3}', 'invalid arguments for search: query: 3 is not of type "string"'),
        (
            '{"query": "a", "colour": 1}',
            "invalid arguments for search: arguments: Additional properties are not allowed ('colour' was unexpected)",
        ),
        ("{}", 'invalid arguments for search: arguments: "query" is a required property'),
    ],
)
def test_bad_arguments_are_shown_and_never_sent(arguments: str, problem: str):
    result, server = one(OK, arguments=arguments)
    assert (result.output, result.is_error, result.failed) == (f"Error: {problem}", True, False)
    assert server.bodies == []


def test_a_problem_is_short():
    assert len(one(OK, arguments=json.dumps({"query": ["x" * 10_000]}))[0].output) < 300


def test_an_unknown_tool_is_shown():
    result, _ = one(OK, calls=[ToolCall("c", "n" * 1000, "{}")])
    assert result.is_error
    assert "known tools: search, lookup" in result.output
    assert len(result.output) < 300


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=5,
)


@hypothesis_settings(max_examples=60)
@given(
    arguments=st.one_of(
        st.text(),
        values.map(json.dumps),
        st.fixed_dictionaries({"query": values}, optional={"k": values}).map(json.dumps),
    )
)
def test_whatever_the_policy_writes_is_answered(arguments: str):
    """Never an exception, never an outage; what leaves fits the schema."""
    result, server = one(OK, arguments=arguments)
    assert not result.failed
    assert result.is_error != bool(server.bodies)
    for body in server.bodies:
        sent = json.loads(body["arguments"])
        assert isinstance(sent["query"], str)
        assert set(sent) <= {"query", "k"}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            [ROW_TOOL],
            "its tool 'weather' has no address. Add one to tools.endpoints in params.yaml. Known tools: lookup, search",
        ),
        ([SCHEMAS[0], SCHEMAS[0]], "two of its tools are called 'search'"),
        ([{"name": "search"}], "expected {"),
        (
            [{"function": {"name": "search", "parameters": {"type": "objekt"}}}],
            "the parameters of tool 'search' are not a JSON schema of arguments: type: .*objekt",
        ),
        (
            [{"function": {"name": "search", "parameters": {"properties": {"a": {"pattern": "("}}}}}],
            "are not a JSON schema",
        ),
        (
            [{"function": {"name": "search", "parameters": {"$ref": "#/$defs/Gone"}}}],
            "are not a JSON schema of arguments: .*/\\$defs/Gone.* does not exist",
        ),
        (
            [{"function": {"name": "search", "parameters": {"type": "array"}}}],
            'type: "array", and arguments are always an object',
        ),
        (
            [{"function": {"name": "search", "parameters": {"$ref": "https://example.org/s.json"}}}],
            "example.org.*nothing is fetched",
        ),
        (
            [{"function": {"name": "search", "parameters": ["query"]}}],
            "are not a JSON schema of arguments: expected an object",
        ),
    ],
)
def test_a_row_whose_tools_cannot_be_called(rows: Any, problem: str):
    example = Example("n-1", (), None, tools=rows)

    async def check() -> None:
        async with ToolClient(ToolEndpoint("http://127.0.0.1:1"), config.Tools(), SCHEMAS) as client:
            client.check_rows([Example("n-0", (), None), example])

    with pytest.raises(ConfigError, match=f"^example 'n-1': .*{problem}"):
        asyncio.run(check())
    with pytest.raises(ConfigError, match=problem):
        one(OK, context=context({**ITEM, "tools": rows}))


def test_rows_share_the_validators_of_equal_schemas():
    before = arguments._compiled.cache_info().misses
    for number in range(5):
        rows = json.loads(json.dumps([ROW_TOOL]).replace("town", "townish"))
        play(OK, calls=[IN_BERN], context=context({**ITEM, "tools": rows}, f"trace_{number}"), endpoints=[WEATHER])
    assert arguments._compiled.cache_info().misses <= before + 3  # it, and the two of SCHEMAS


# -- a tool that judges its arguments itself -------------------------------------------------------
LAX = {"validate": False}


@pytest.mark.parametrize("arguments", ['{"query": 3}', "{}", '{ "query":"a",  "surplus": [1] }', '{"k": "\\u00e9"}'])
def test_without_validation_any_object_goes_out_as_it_was_written(arguments: str):
    result, server = one(OK, arguments=arguments, traits={"search": LAX})
    assert (result.output, result.is_error) == ("fine", False)
    assert server.bodies[0]["arguments"] == arguments


def test_without_validation_of_an_endpoint_and_of_a_row_s_tool():
    endpoint = {**WEATHER, "parameters": TOWN, **LAX}
    call = ToolCall("call_0_0", "weather", '{"city": "Bern"}')
    assert one(OK, calls=[call], endpoints=[endpoint])[1].bodies[0]["arguments"] == call.arguments
    row = context({**ITEM, "tools": [ROW_TOOL]})
    assert one(OK, calls=[call], context=row, endpoints=[{**WEATHER, **LAX}])[0].output == "fine"
    assert one(OK, calls=[call], context=row, endpoints=[WEATHER])[0].is_error


@pytest.mark.parametrize("arguments", ["[]", '"x"', "null", "{", "", '{"a": NaN}'])
def test_without_validation_arguments_are_still_a_json_object(arguments: str):
    result, server = one(OK, arguments=arguments, traits={"search": LAX})
    assert (result.is_error, server.bodies) == (True, [])
    assert result.output in (
        "Error: the arguments of search are not JSON",
        "Error: the arguments of search must be a JSON object",
    )


def test_another_tool_is_still_validated():
    assert one(OK, arguments='{"query": 3}', traits={"lookup": LAX})[0].is_error


ODD = {
    "unicode_class": {"properties": {"a": {"type": "string", "pattern": r"^[\p{L}\p{N}\s_.-]+$"}}},
    "named_group": {"properties": {"a": {"type": "string", "pattern": r"^(?<year>\d{4})-(?<month>\d{2})$"}}},
    "escaped_slash": {"properties": {"a": {"type": "string", "pattern": r"^https\:\/\/", "format": "uri"}}},
    "looks_ahead": {"properties": {"a": {"type": "string", "pattern": r"^(?!Gr)"}}},
    "draft_07": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"A": {"type": "string"}},
        "properties": {"a": {"type": "array", "items": [{"$ref": "#/definitions/A"}], "additionalItems": False}},
    },
    "no_type": {"properties": {"a": {"description": "any"}}},
    "empty": {},
}
FITS = {"unicode_class": "Zo\u00eb 1", "named_group": "2026-11", "escaped_slash": "https://a", "looks_ahead": "Zug"}
FITS_NOT = {"unicode_class": "!", "named_group": "11-2026", "escaped_slash": "ftp://a", "looks_ahead": "Graz"}


@pytest.mark.parametrize("name", ODD)
def test_a_schema_that_is_right_by_its_standard_is_read_by_its_standard(name: str):
    _, function = arguments.read_tool({"function": {"name": name, "parameters": ODD[name]}}, "here")

    def prepared(value: Any) -> str:
        return arguments.prepare(ToolCall("c", name, json.dumps({"a": value})), {name: function}, {})

    assert json.loads(prepared(FITS.get(name, ["x"]))) == {"a": FITS.get(name, ["x"])}
    if name in FITS_NOT:
        with pytest.raises(arguments.Refused, match="does not match"):
            prepared(FITS_NOT[name])


def test_every_tool_that_cannot_be_used_is_named_at_once_and_the_user_may_offer_it_unchecked():
    def tool(name: str, parameters: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    given = [tool("good", {"type": "object"}), tool("odd", {"type": "String"}), tool("list", {"type": "array"})]

    async def offered(**section: Any) -> list[str]:
        async with ToolClient(ToolEndpoint("http://127.0.0.1:1"), config.Tools(**section), given) as client:
            return [one["function"]["name"] for one in client.schemas]

    with pytest.raises(ConfigError) as caught:
        asyncio.run(offered())
    told = str(caught.value)
    assert "tool 'odd'" in told
    assert "tool 'list'" in told
    assert told.count("validate: false") == 1
    unchecked = {name: config.Traits.model_validate({"validate": False}) for name in ("odd", "list")}
    assert asyncio.run(offered(traits=unchecked)) == ["good", "odd", "list"]


@pytest.mark.parametrize("pattern", ["^(a+)+$", r"^(?=a)(a+)+$", r"(.*a){20}", r"^(a|aa)+\1$"])
def test_no_pattern_of_a_schema_makes_a_text_slow(pattern: str):
    parameters = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    _, function = arguments.read_tool({"function": {"name": "f", "parameters": parameters}}, "here")
    began = time.monotonic()
    with contextlib.suppress(arguments.Refused):
        arguments.prepare(ToolCall("c", "f", json.dumps({"a": "a" * 40_000 + "!"})), {"f": function}, {})
    assert time.monotonic() - began < 5  # exponential, or minutes, as it was


def nested() -> dict[str, Any]:
    place = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/place"}}]}
    codes = {"type": "array", "items": {"type": "string"}}
    properties = {"place": {"$ref": "#/$defs/place"}, "codes": codes}
    return {"type": "object", "properties": properties, "$defs": {"place": place}}


@pytest.mark.parametrize(
    ("levels", "message"), [(20, "place: "), (300, "nested too deeply"), (900, "nested too deeply")]
)
def test_arguments_in_one_another_are_refused(levels: int, message: str):
    """300 brackets around a text ended the stage: jsonschema-rs reads 255 levels."""
    tool = {"type": "function", "function": {"name": "f", "parameters": nested()}}
    call = ToolCall("c", "f", f'{{"place": {"[" * levels}"x"{"]" * levels}}}')
    with pytest.raises(arguments.Refused, match=message):
        arguments.prepare(call, dict([arguments.read_tool(tool, "here")]), {})


def test_long_arguments_take_time_in_proportion():
    """40,000 wrong items took 0.8 s, and 80 kB of text in 200 brackets as long."""
    tool = {"type": "function", "function": {"name": "f", "parameters": nested()}}
    functions = dict([arguments.read_tool(tool, "here")])
    for start, unit, end, message in (
        ('{"codes": [1', ", 1", "]}", r"codes\[0\]: 1 is not of type \"string\""),
        (f'{{"place": {"[" * 200}"', "x", f'"{"]" * 200}}}', "too long and too deep to say where"),
    ):
        with pytest.raises(arguments.Refused, match=message):
            arguments.prepare(ToolCall("c", "f", start + unit * 20_000 + end), functions, {})
