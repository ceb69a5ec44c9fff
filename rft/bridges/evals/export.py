"""Sorts an export of OpenAI's Evals: the eval, its runs, output items, and logged requests.

An export is a file or a folder. People save the API's answers in many ways: one object per file, a
page of a list, an array, or JSON lines. Some put everything into one object under `eval`, `runs`
and `output_items`. So each value is sorted by its `object`. Request bodies have no `object`; they
are sorted by a key that only one kind has.

An incomplete download is recognized: a page with `has_more` is refused if the next page is
missing. The client fetches twenty items by default and stops without saying so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rft.bridges import foreign
from rft.bridges.imported import Note
from rft.errors import UserError

EVAL, RUN, ITEM, LOGGED = "eval", "eval.run", "eval.run.output_item", "logged request"
_KINDS = {EVAL: EVAL, RUN: RUN, ITEM: ITEM, "chat.completion": LOGGED, "response": LOGGED}
_BY_KEY = {"testing_criteria": EVAL, "data_source": RUN, "datasource_item": ITEM}
"""A key that only one kind has -> the kind, for a body without `object`."""
_IN_ONE = {"eval": EVAL, "evals": EVAL, "runs": RUN, "run": RUN, "output_items": ITEM}
"""Keys of an object that holds everything."""
ENDINGS = (".json", ".jsonl", ".ndjson")


class Found(NamedTuple):
    """An object and its place, such as "items.jsonl:3"."""

    value: dict[str, Any]
    where: str

    def get(self, key: str) -> Any:
        return self.value.get(key)

    def inner(self, *keys: str) -> dict[str, Any]:
        """Return the object under these keys; empty where there is none."""
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}

    @property
    def id(self) -> str:
        return str(self.get("id") or "")

    @property
    def place(self) -> str:
        """Its file and line, and its id, for an error."""
        return f"{self.where} ({self.id})" if self.id else self.where


@dataclass
class Export:
    """One eval with everything that belongs to it, each object once."""

    objects: dict[str, list[Found]] = field(default_factory=dict)
    """By kind, in the order of the files."""
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(file, what the object looks like) -> how many such objects have an unknown kind."""
    _pages: dict[tuple[str, str], list[tuple[bool, str, Any]]] = field(default_factory=dict)
    """(kind, run) -> for each page: whether more follows, its place, its last id."""

    def of_kind(self, kind: str) -> list[Found]:
        return self.objects.get(kind, [])

    @property
    def eval(self) -> Found:
        return self.of_kind(EVAL)[0]

    @property
    def runs(self) -> list[Found]:
        """The runs, newest first: the newest has the prompt that its owner settled on."""
        return sorted(self.of_kind(RUN), key=lambda run: -_seconds(run.get("created_at")))

    def notes(self) -> Iterator[Note]:
        data = {source_of(run).get("id") for run in self.runs}
        for (file, what), count in self.unknown.items():
            if Path(file).stem in data:  # the rows of a run, read as such
                continue
            yield Note(file, f"{count} x {what}: not part of an eval as the API returns it, and not read")
        for run in self.runs:
            total, here = run.inner("result_counts").get("total"), len(self.items_of(run))
            if isinstance(total, int) and 0 < here < total:
                yield Note(run.place, f"has {total} output items, and {here} of them are here. Fetch the others")

    def items_of(self, run: Found | None) -> list[Found]:
        """Return the output items of a run; for None, those whose run is not in the export."""
        if run is None:
            ids = {one.id for one in self.of_kind(RUN)}
            return [item for item in self.of_kind(ITEM) if str(item.get("run_id")) not in ids]
        return [item for item in self.of_kind(ITEM) if str(item.get("run_id")) == run.id]


def source_of(run: Found) -> dict[str, Any]:
    """Return the run's `source`, which says where its items came from; empty where it has none."""
    return run.inner("data_source", "source")


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def load(path: Path) -> Export:
    """Read an export. Raises UserError naming file and line for what is cut off or missing, and for
    more than one eval."""
    found = Export()
    for file in _files(path):
        for value, where in _values(file, file.relative_to(path).as_posix() if path.is_dir() else file.name):
            _sort(value, where, None, found)
    _check_pages(found)
    for kind, objects in found.objects.items():
        found.objects[kind] = list(_once(objects))
    _check_one(found, path)
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in ENDINGS and file.is_file())
    if not files:
        raise UserError(f"{path}: has no {' or '.join(ENDINGS)}. Put the answers of the API there, as they came.")
    return files


def _values(path: Path, name: str) -> Iterator[tuple[Any, str]]:
    """Yield the values of a file with their places. A file is JSON, or JSON lines if its first line
    is a whole value and more lines follow."""
    written = foreign.text(path)
    lines = [(number, line) for number, line in enumerate(written.split("\n"), 1) if line.strip()]
    if not lines:
        raise UserError(f"{path}: is empty. Export it again.")
    if len(lines) > 1 and _is_whole(lines[0][1]):
        for number, line in lines:
            yield foreign.json_value(line, str(path), number), f"{name}:{number}"
    else:
        yield foreign.json_value(written, str(path)), name


def _is_whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (ValueError, RecursionError):
        return False


# -- sorting ---------------------------------------------------------------------------------------
def _sort(value: Any, where: str, expected: str | None, into: Export) -> None:
    """Put a value where it belongs. `expected`: the kind that its key in the parent implies."""
    if isinstance(value, list):
        for one in value:
            _sort(one, where, expected, into)
        return
    if not isinstance(value, dict):
        into.unknown[_file(where), type(value).__name__] += 1
        return
    kind = _kind(value) or (expected if "object" not in value and "data" not in value else None)
    if kind is not None:
        into.objects.setdefault(kind, []).append(Found(value, where))
    elif isinstance(value.get("data"), list):
        _page(value, where, expected, into)
    elif "object" not in value and _IN_ONE.keys() & value.keys():
        for key, inner in value.items():
            if key in _IN_ONE:
                _sort(inner, where, _IN_ONE[key], into)
            else:
                into.unknown[_file(where), f"key {key!r}"] += 1
    else:
        into.unknown[_file(where), _described(value)] += 1


def _file(where: str) -> str:
    return re.sub(r":\d+$", "", where)


def _kind(value: dict[str, Any]) -> str | None:
    if "object" in value:
        return _KINDS.get(str(value["object"]))
    return next((kind for key, kind in _BY_KEY.items() if key in value), None)


def _described(value: dict[str, Any]) -> str:
    return f"object {value['object']!r}" if "object" in value else f"an object with {', '.join(map(str, value))[:60]}"


def _page(value: dict[str, Any], where: str, expected: str | None, into: Export) -> None:
    data = [one for one in value["data"] if isinstance(one, dict)]
    for one in value["data"]:
        _sort(one, where, expected, into)
    if data:
        key = (_kind(data[0]) or str(expected), str(data[0].get("run_id")))
        into._pages.setdefault(key, []).append((value.get("has_more") is True, where, data[-1].get("id")))


def _check_pages(found: Export) -> None:
    for pages in found._pages.values():
        if all(more for more, _, _ in pages):
            _, where, last = pages[-1]
            raise UserError(
                f"{where}: a page with has_more, and the page behind it is not here. Fetch it with after={last}, or "
                "set has_more to false to import what is here."
            )


def _once(objects: list[Found]) -> Iterator[Found]:
    """Yield each object once where two files hold it. Raises UserError where they differ."""
    seen: dict[str, Found] = {}
    for one in objects:
        if one.id and (known := seen.setdefault(one.id, one)) is not one:
            if known.value != one.value:
                raise UserError(f"{one.where}: has another {one.id} than {known.where}. Remove the older one.")
            continue
        yield one


def _check_one(found: Export, path: Path) -> None:
    evals = found.of_kind(EVAL)
    if not evals:
        raise UserError(
            f"{path}: holds no eval, and its testing_criteria are the grader. Add what "
            "GET /v1/evals/ID returns, or the body that created it."
        )
    ids = dict.fromkeys(one.id or one.where for one in evals)
    named = dict.fromkeys(
        str(one.get("eval_id")) for one in (*found.of_kind(RUN), *found.of_kind(ITEM)) if one.get("eval_id")
    )
    others = list(named)[1:] if not evals[0].id else [one for one in named if one not in ids]
    if len(ids) + len(others) > 1:
        raise UserError(
            f"{path}: holds more than one eval, or parts of another: {', '.join([*ids, *others])}. An agent has one "
            "grader. Move the files of the others away, and import each into a folder of its own."
        )
