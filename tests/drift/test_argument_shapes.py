"""Shapes of calls against the schemas of tools."""

from __future__ import annotations

from typing import Any

import pytest

from rft.drift import arguments

CLOSED = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "ratio": {"type": "number"},
        "sure": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/Place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}
TOOLS: dict[str, Any] = {"find": CLOSED, "open": {}, "typed": {"additionalProperties": {"type": "string"}}}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ('find{"city":"VARCHAR"}', arguments.FITS),
        ('find{"city":"VARCHAR","days":"BIGINT","ratio":"BIGINT","sure":"BOOLEAN"}', arguments.FITS),
        ('find{"city":"VARCHAR","ratio":"DOUBLE"}', arguments.FITS),
        ('find{"city":"VARCHAR","days":"DOUBLE"}', arguments.WRONG_TYPE),
        ('find{"city":"BIGINT"}', arguments.WRONG_TYPE),
        ('find{"city":"NULL"}', arguments.WRONG_TYPE),
        ('find{"days":"BIGINT"}', arguments.MISSING),
        ('find"JSON"', arguments.MISSING),
        ('find{"city":"VARCHAR","town":"VARCHAR"}', arguments.UNKNOWN),
        ('find{"city":"VARCHAR","tags":["VARCHAR"]}', arguments.FITS),
        ('find{"city":"VARCHAR","tags":["NULL"]}', arguments.FITS),
        ('find{"city":"VARCHAR","tags":["JSON"]}', arguments.FITS),
        ('find{"city":"VARCHAR","tags":["BIGINT"]}', arguments.WRONG_TYPE),
        ('find{"city":"VARCHAR","tags":"VARCHAR"}', arguments.WRONG_TYPE),
        ('find{"city":"VARCHAR","place":{"lat":"DOUBLE"}}', arguments.FITS),
        ('find{"city":"VARCHAR","place":"JSON"}', arguments.FITS),
        ('find{"city":"VARCHAR","place":{"lng":"DOUBLE"}}', arguments.MISSING),
        ('find{"city":"VARCHAR","note":"NULL"}', arguments.FITS),
        ('find{"city":"VARCHAR","note":"BIGINT"}', arguments.WRONG_TYPE),
        ("find!not-json", arguments.NOT_JSON),
        ("find!too deep", arguments.NOT_CHECKED),
        ('find{"city":"VARCHAR","ta... 0123456789ab', arguments.NOT_CHECKED),
        ('open{"anything":["DOUBLE"]}', arguments.FITS),
        ('open"JSON"', arguments.FITS),
        ('typed{"a":"VARCHAR"}', arguments.FITS),
        ('typed{"a":"BIGINT"}', arguments.WRONG_TYPE),
        ('lost{"a":"BIGINT"}', arguments.UNKNOWN_TOOL),
        ("find_all!not-json", arguments.UNKNOWN_TOOL),
    ],
)
def test_a_shape_fits_or_says_how_it_does_not(shape: str, expected: str) -> None:
    assert arguments.outcome(shape, TOOLS) == expected


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree = {"properties": {"child": {"$ref": "#"}}}
    loop = {"$ref": "#"}
    assert arguments.outcome('tree{"child":{"child":"JSON"}}', {"tree": tree}) == arguments.FITS
    assert arguments.outcome('loop{"a":"BIGINT"}', {"loop": loop}) == arguments.FITS
