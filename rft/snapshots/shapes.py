"""Say what a JSON text looks like, without what it says: `{"number":"VARCHAR"}`.

Shapes of arguments and replies drift when a tool's schema changes, or an agent misreads it. Types
have DuckDB's names. Keys are sorted, and all whole numbers are BIGINT, because neither their order
nor their sign is a change. A list has the shape that all of its elements share; JSON means several.
A very long shape is cut, and ends with a hash of the whole.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa

from rft.snapshots.arrow import pc
from rft.snapshots.lines import Engine, whole

LONGEST = 400
DEEP = "too deep"
NOT_JSON = "not-json"
_MOST_BRACKETS = 900
_WHOLE = {"UBIGINT", "HUGEINT", "UHUGEINT"}
_SHAPE = """
select case
    when deep then '0'
    when not json_valid(t) then '1'
    when left(ltrim(t, E' \\t\\r\\n'), 1) = '{' then '{' || json_structure(t)::varchar
    else '[' || json_structure(t)::varchar end as shape
from (select t, strlen(t) - strlen(replace(replace(t, '[', ''), '{', '')) > 900 as deep from texts)
"""


def both(
    engine: Engine, names: pa.StringArray, arguments: pa.StringArray, replies: pa.StringArray
) -> tuple[pa.StringArray, pa.StringArray]:
    """Name the shapes of calls, `find_order{"number":"VARCHAR"}` or `find_order!not-json`, and of
    replies: what is not JSON is `text`, and nothing is `empty`. One query asks for both."""
    found = _shapes(engine, pa.concat_arrays([arguments, replies]))
    called = _canonical(
        found.slice(0, len(arguments)), lambda shape: shape[1:] if shape[0] == "{" else f"!{_called(shape)}"
    )
    replied = _canonical(found.slice(len(arguments)), _reply)
    blank = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(pc.fill_null(replies, ""))), 0)
    return pc.binary_join_element_wise(names, called, ""), pc.if_else(blank, "empty", replied)


def _reply(shape: str) -> str:
    return {"0": DEEP, "1": "text"}.get(shape, shape[1:])


def _called(shape: str) -> str:
    return DEEP if shape == "0" else NOT_JSON


def _shapes(engine: Engine, texts: pa.StringArray) -> pa.StringArray:
    """Return `{SHAPE` of an object, `[SHAPE` of other JSON, 1 for other texts, 0 for deep ones."""
    found = whole(engine.run(_SHAPE, t=pc.fill_null(texts, ""))["shape"])
    deep = np.flatnonzero(pc.equal(found, "0").to_numpy(zero_copy_only=False))
    if not len(deep):
        return found
    shallow = [n for n in deep if _is_shallow(texts[int(n)].as_py())]  # long, but only wide
    if not shallow:
        return found
    again = engine.run(_SHAPE.replace("> 900", "< 0"), t=texts.take(pa.array(shallow)))
    mask = np.zeros(len(texts), dtype=bool)
    mask[shallow] = True
    return pc.replace_with_mask(found, pa.array(mask), whole(again["shape"]))


def _is_shallow(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return False
    except ValueError:
        return True
    return True


def _canonical(shapes: pa.StringArray, named: Any) -> pa.StringArray:
    """Rewrite each distinct shape once."""
    coded = shapes.dictionary_encode()
    words = [_cut(named(_sorted(shape))) for shape in coded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(coded.indices)


def _sorted(shape: str) -> str:
    if len(shape) == 1:
        return shape
    return shape[0] + json.dumps(
        _whole(json.loads(shape[1:])), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )


def _whole(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _whole(value) for key, value in shape.items()}
    if isinstance(shape, list):
        return [_whole(value) for value in shape]
    return "BIGINT" if shape in _WHOLE else shape


def _cut(shape: str) -> str:
    if len(shape) <= LONGEST:
        return shape
    return f"{shape[:LONGEST]}... {hashlib.sha256(shape.encode()).hexdigest()[:12]}"
