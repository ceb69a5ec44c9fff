"""Describe the shape of a JSON text without its content: `{"number":"VARCHAR"}`.

Shapes of arguments and replies drift when a tool's schema changes, or an agent misreads it. Types
have DuckDB's names. All whole numbers are BIGINT, because another size is not a change. Keys are
sorted, because another order is not a change either. A list has the shape that all its elements
share. JSON means that they share none, or that an object is empty. A very long shape is cut, and
ends with a hash of the whole.

A log has millions of texts and a few hundred shapes. So a text is parsed and sketched: a sketch has
the keys and the Python types of the values, which is quick to make and to compare. The shape is
computed once per sketch. If a sketch is met often, msgspec gets a type for it. A text of this shape
is then recognized while it is parsed, which takes a third of the time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from rft.traffic.arrow import pc

LONGEST = 400
DEEPEST = 100
"""A text that is nested deeper is not parsed."""
DEEP = "too deep"
NOT_JSON = "not-json"
_MOST_KNOWN = 10_000
_OFTEN = 20
_MOST_LEARNED, _MOST_TRIED = 200, 2
"""The most types in all, and the most that are tried on a text: a failure costs as much as a
sketch."""
_LONGEST_BEGIN = 64
_PLAIN = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", type(None): "NULL"}
_NOTHING, _SEVERAL = "NULL", "JSON"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string without an end matches to the end of the text. Otherwise the search would start again
from each quote in it."""
_DECODER = msgspec.json.Decoder()


def of_calls(names: pa.StringArray, arguments: Sequence[str]) -> pa.StringArray:
    """Name the shapes of calls: `find_order{"number":"VARCHAR"}`, or `find_order!not-json`."""
    shaped = [
        shape if shape[0] == "{" else "!" + (DEEP if shape == DEEP else NOT_JSON)
        for shape in map(_KNOWN.shape, arguments)
    ]
    return pc.binary_join_element_wise(names, pa.array(shaped, pa.string()), "")


def of_replies(texts: Sequence[str | None]) -> pa.StringArray:
    """Name the shapes of replies: a reply that is not JSON is `text`, and one without text is
    `empty`."""
    shaped = list(map(_KNOWN.shape, texts))
    return pa.array(
        [_reply(text) if shape == NOT_JSON else shape for text, shape in zip(texts, shaped, strict=True)], pa.string()
    )


def _reply(text: str | None) -> str:
    return "text" if text and not text.isspace() else "empty"


@dataclass(slots=True)
class _Shape:
    text: str
    met: int = 0


class _Known:
    """Shapes by sketch, and decoders that accept only texts of one shape, by the beginning of these
    texts."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._decoders: dict[str, list[tuple[Callable[[str], Any], str]]] = {}
        self._num_learned = 0

    def shape(self, text: str | None) -> str:
        if not text or (len(text) > DEEPEST and _depth(text) > DEEPEST):
            return DEEP if text else NOT_JSON
        begin = text[: text.find(":", 0, _LONGEST_BEGIN) + 1]  # up to the first key
        for decode, shape in self._decoders.get(begin, ()):
            try:
                decode(text)
            except msgspec.MsgspecError:
                continue
            return shape
        try:
            sketch = _sketch(_DECODER.decode(text))
        except msgspec.MsgspecError:
            return NOT_JSON
        found = self._shapes.get(sketch)
        if found is None:
            if len(self._shapes) >= _MOST_KNOWN:
                self._shapes.clear()
            found = self._shapes[sketch] = _Shape(_written(sketch))
        found.met += 1
        if found.met == _OFTEN:
            self._learn(begin, sketch, found.text)
        return found.text

    def _learn(self, begin: str, sketch: Hashable, shape: str) -> None:
        decoders = self._decoders.setdefault(begin, []) if self._num_learned < _MOST_LEARNED else []
        kind = _type(sketch)
        if kind is not None and len(decoders) < _MOST_TRIED:
            decoders.append((msgspec.json.Decoder(kind).decode, shape))
            self._num_learned += 1


_KNOWN = _Known()


def _depth(text: str) -> int:
    """Return how deep a text is nested, or 0 where it has at most DEEPEST brackets."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return 0
    depth = deepest = 0
    for mark in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


# -- sketches --------------------------------------------------------------------------------------
def _sketch(value: Any) -> Hashable:
    """Sketch a value: by its type; for an object, its keys and then their sketches; for a list, the
    set of its sketches."""
    kind = type(value)
    if kind is dict:
        return (*value, *[_sketch(item) if type(item) in _NESTED else type(item) for item in value.values()])
    return frozenset(map(_sketch, value)) if kind is list else kind


_NESTED = frozenset((dict, list))


def _type(sketch: Any) -> Any:
    """Return the type of all values with this sketch, in any order of keys, and of no others. None
    where msgspec has no such type."""
    if isinstance(sketch, tuple):
        half = len(sketch) // 2
        inner = list(map(_type, sketch[half:]))
        if None in inner:
            return None
        fields = [
            (f"field_{n}", kind, msgspec.field(name=key))
            for n, (key, kind) in enumerate(zip(sketch[:half], inner, strict=True))
        ]
        return msgspec.defstruct("Shaped", fields, forbid_unknown_fields=True, gc=False)
    if isinstance(sketch, frozenset):
        if not sketch:
            return Annotated[list[Any], msgspec.Meta(max_length=0)]
        inner = _type(next(iter(sketch))) if len(sketch) == 1 else None
        return inner if inner is None else Annotated[list[inner], msgspec.Meta(min_length=1)]
    return sketch if sketch in (str, int, bool) else None  # a float may be written as a whole number


def _written(sketch: Any) -> str:
    shape = json.dumps(_shared([sketch]), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    if len(shape) <= LONGEST:
        return shape
    return f"{shape[:LONGEST]}... {hashlib.sha256(shape.encode()).hexdigest()[:12]}"


def _shared(sketches: Iterable[Any]) -> Any:
    """Return the shape that values share. Null fits any shape."""
    objects: dict[str, list[Any]] = {}
    items: list[Any] = []
    kinds: set[Any] = set()
    for sketch in sketches:
        kinds.add(sketch if isinstance(sketch, type) else type(sketch))
        if isinstance(sketch, tuple):
            half = len(sketch) // 2
            for key, inner in zip(sketch[:half], sketch[half:], strict=True):
                objects.setdefault(key, []).append(inner)
        elif isinstance(sketch, frozenset):
            items += sketch
    kinds.discard(type(None))
    if kinds == {int, float}:
        return _PLAIN[float]
    if len(kinds) != 1:
        return _SEVERAL if kinds else _NOTHING
    (kind,) = kinds
    if kind is tuple:
        return {key: _shared(inner) for key, inner in objects.items()} or _SEVERAL
    return [_shared(items)] if kind is frozenset else _PLAIN[kind]
