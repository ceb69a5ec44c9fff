"""Templates in a grader's strings: `{{ item.answer }}`, `{{sample.output_json.parts[0].price}}`.

A template names a place in what is graded: the dataset's row (`item`) or what the policy did
(`sample`). The place's value replaces the template. A text goes in unchanged, any other value as
JSON. The new text is never searched for templates again, so an answer cannot ask for the target.

    {{ item }}                  the whole row
    {{ item.a.b[2] }}           a path of keys and positions; blanks inside the braces are allowed
    {{ item["odd key"] }}       a key that is not a name

A place that does not exist raises Missing when a rollout is graded. `sample.output_json` does not
exist if the answer is not JSON. A template that cannot be read, or that names neither item nor
sample, is refused when the file is read. Braces that do not look like a template stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NAMESPACES = ("item", "sample")
_LOOKS_LIKE_ONE = re.compile(r"\s*[A-Za-z_]\w*\s*([.\[].*)?", re.DOTALL)
_STEP = re.compile(r"""\.([A-Za-z_][\w-]*)|\[([0-9]{1,9})\]|\[("(?:[^"\\]|\\.)*")\]|\['([^'\\]*)'\]""")

Scope = Mapping[str, Any]
"""What the namespaces hold: {"item": the row, "sample": the graded view of the rollout}."""


class Missing(LookupError):
    """A template's place does not exist. `in_sample`: it is missing in what the policy did, not in
    the row."""

    def __init__(self, place: str, in_sample: bool) -> None:
        super().__init__(f"{{{{{place}}}}} names nothing that is there")
        self.place, self.in_sample = place, in_sample


@dataclass(frozen=True, slots=True)
class Place:
    """`Place("item", ("a", "b", 2))` is `item.a.b[2]`."""

    namespace: str
    path: tuple[str | int, ...]
    text: str

    def find(self, scope: Scope) -> Any:
        """Return the value at this place. Raises Missing."""
        value = scope[self.namespace]
        for step in self.path:
            try:
                value = _inside(value, step)
            except LookupError:
                raise Missing(self.text, self.namespace == "sample") from None
        if value is None and (self.namespace, self.path) == ("sample", ("output_json",)):
            raise Missing(self.text, in_sample=True)
        return value

    def is_in(self, scope: Scope) -> bool:
        """Return whether there is a value."""
        try:
            self.find(scope)
        except Missing:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Template:
    """`Template.read("is {{ item.a }}").render({"item": {"a": 1}, "sample": {}})` is "is 1"."""

    parts: tuple[str | Place, ...]

    @classmethod
    def read(cls, text: str) -> Template:
        """Parse `text`. Raises ValueError naming the template, its place and the remedy."""
        return cls(tuple(_parts(text)))

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(part for part in self.parts if isinstance(part, Place))

    def render(self, scope: Scope, shown: Callable[[Place, str], str] = lambda place, value: value) -> str:
        """Put the values in; `shown` may change how one is written. Raises Missing."""
        return "".join(part if isinstance(part, str) else shown(part, written(part.find(scope))) for part in self.parts)


def _inside(value: Any, step: str | int) -> Any:
    """Go one key or position into a value. Raises LookupError."""
    if isinstance(value, dict) and isinstance(step, str):
        return value[step]
    if isinstance(value, list) and isinstance(step, int):
        return value[step]
    raise LookupError(step)


def written(value: Any) -> str:
    """Write a value as it appears in a text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def names_a_place(text: str) -> str | None:
    """Find the first template of item or sample; None if there is none."""
    for start, end in _braces(text):
        if re.match(rf"\s*({'|'.join(NAMESPACES)})\b", text[start + 2 : end - 2]):
            return text[start:end]
    return None


def _braces(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each `{{...}}` begins and ends. A regular expression would search for the end
    again from each of a thousand beginnings: 80 kB took six seconds."""
    at = 0
    while (start := text.find("{{", at)) >= 0 and (end := text.find("}}", start + 2)) >= 0:
        at = end + 2
        yield start, at


def _parts(text: str) -> Iterator[str | Place]:
    end = 0
    for start, stop in _braces(text):
        inner = text[start + 2 : stop - 2]
        if not _LOOKS_LIKE_ONE.fullmatch(inner):
            continue
        if start > end:
            yield text[end:start]
        yield _place(inner.strip(), start + 1)
        end = stop
    if end < len(text):
        yield text[end:]


def _place(inner: str, column: int) -> Place:
    where = f"{{{{{inner}}}}} at character {column}"
    name = re.match(r"\w+", inner)
    namespace, at = (name[0], name.end()) if name else ("", 0)
    if namespace not in NAMESPACES:
        raise ValueError(f"{where} names neither item nor sample. Write {{{{item.KEY}}}} or {{{{sample.output_text}}}}")
    path: list[str | int] = []
    while at < len(inner):
        step = _STEP.match(inner, at)
        if step is None:
            raise ValueError(f"{where} cannot be read from {inner[at:]!r} on. Write it like {{{{item.a.b[2]}}}}")
        path.append(_key(step))
        at = step.end()
    return Place(namespace, tuple(path), inner)


def _key(step: re.Match[str]) -> str | int:
    name, number, double, single = step.groups()
    if number is not None:
        return int(number)
    if double is not None:
        return str(json.loads(double))
    return name if name is not None else single
