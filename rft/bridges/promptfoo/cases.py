"""Reads prompts and tests of a config, and multiplies them as Promptfoo does.

Each test is combined with each prompt. If its variables are lists, it is also combined with each
choice of their texts.

    prompts        texts, chats as JSON or YAML, file://NAME.txt (prompts between lines of ---),
                   .md, .json, .yaml, .jsonl; {raw, label}
    tests          in the config or in files: .yaml, .json, .jsonl, .csv with __expected
    defaultTest    a test's vars and options override its own; its assertions come first
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rft.bridges import foreign
from rft.bridges.promptfoo import expected, located_yaml
from rft.bridges.promptfoo.located_yaml import LocatedList, LocatedObject, place, without_locations
from rft.bridges.promptfoo.nunjucks import fill, rendered, resolved
from rft.errors import UserError

_KNOWN = {"vars", "assert", "threshold", "options", "metadata", "description", "prompts", "provider", "providers"}
_NO_SCORE = {
    "providerOutput": "is a recorded answer. Remove it: the policy answers here.",
    "assertScoringFunction": "is a function that joins the scores. Remove it, or write one python assertion instead.",
}
_OPTIONS = {"disableVarExpansion", "disableDefaultAsserts", "prefix", "suffix", "repeat", "provider"}
_CHANGES = {
    "transform": "changes the answer before it is graded",
    "postprocess": "changes the answer before it is graded",
    "transformVars": "changes the variables",
    "rubricPrompt": "changes what the judge is asked",
    "factuality": "changes what the labels of factuality are worth",
}
_TEXTS = {".txt", ".md", ".json", ".jsonl", ".yaml", ".yml"}


@dataclass(frozen=True)
class Prompt:
    label: str
    raw: str
    where: str


@dataclass(frozen=True)
class Test:
    """A test, with the additions of defaultTest."""

    where: str
    variables: dict[str, Any]
    assertions: list[Any]
    """Lists of assertions, each list with its places."""
    threshold: float | None
    options: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    prompts: list[str] | None = None
    unused: tuple[tuple[str, str], ...] = ()
    """(place, key) of each setting that has no effect here."""


@dataclass(frozen=True)
class Case:
    """What becomes one row: a prompt with the variables of a test."""

    prompt: Prompt
    messages: list[Any]
    text: str
    """The prompt, filled."""
    variables: dict[str, Any]
    test: Test


# -- prompts ---------------------------------------------------------------------------------------
def prompts(config: LocatedObject, base: Path) -> list[Prompt]:
    """Read the prompts. Raises UserError for a prompt that is code, or a missing file."""
    given = config.get("prompts")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise UserError(f"{place(config, 'prompts')}: prompts is missing or empty. Write a list of texts.")
    found = list[Prompt]()
    for number, one in enumerate(given):
        where = place(given, number) if isinstance(given, LocatedList) else place(config, "prompts")
        label, raw = None, one
        if isinstance(one, LocatedObject):
            label, raw = one.get("label"), one.get("raw") or one.get("id")
            if extra := set(one) - {"raw", "label", "id"}:
                raise UserError(f"{where}: a prompt with {sorted(extra)[0]!r}. Leave raw and label.")
        if not isinstance(raw, str):
            raise UserError(f"{where}: prompts[{number}] is {str(raw)[:40]!r}. Write a text, or raw and label.")
        found += _prompt(raw, label, base, where, len(found) + 1)
    return found


def _prompt(raw: str, label: str | None, base: Path, where: str, number: int) -> list[Prompt]:
    is_named = raw.startswith("file://")
    path = base / raw.removeprefix("file://")
    if not is_named and ("\n" in raw or path.suffix not in _TEXTS or not path.is_file()):
        if raw.startswith(("exec:", "portkey://", "langfuse://", "helicone://")) or path.suffix in (".js", ".py"):
            raise UserError(f"{where}: the prompt {raw[:60]!r} is made elsewhere. Write its text.")
        return [Prompt(label or f"prompt {number}", raw, where)]
    if path.suffix not in _TEXTS:
        raise UserError(
            f"{where}: the prompt {raw!r} is not a text. Name a file that ends in {', '.join(sorted(_TEXTS))}."
        )
    written = foreign.text(path)
    if path.suffix == ".txt":
        texts = [text for text in map(str.strip, _between(written)) if text]
    elif path.suffix == ".jsonl":
        texts = [line for line in written.replace("\r\n", "\n").split("\n") if line]
    elif path.suffix == ".md":
        texts = [written]
    else:
        texts = [json.dumps(located_yaml.load(path), ensure_ascii=False, separators=(",", ":"))]
    if not texts:
        raise UserError(f"{path}: holds no prompt. Write one.")
    name = label or path.name
    return [Prompt(name if len(texts) == 1 else f"{name} {n}", text, where) for n, text in enumerate(texts, 1)]


def _between(text: str) -> list[str]:
    """Split at lines of ---."""
    parts = [list[str]()]
    for line in text.replace("\r\n", "\n").split("\n"):
        parts.append([]) if line.strip() == "---" else parts[-1].append(line)
    return ["\n".join(part) for part in parts]


# -- tests -----------------------------------------------------------------------------------------
def tests(config: LocatedObject, base: Path) -> list[Test]:
    """Read the tests. Raises UserError naming the line of a test that cannot be read."""
    default = config.get("defaultTest", LocatedObject())
    if isinstance(default, str):
        default = located_yaml.load(base / default.removeprefix("file://"))
    if not isinstance(default, LocatedObject):
        raise UserError(f"{place(config, 'defaultTest')}: defaultTest is not a mapping. Write vars, assert and so on.")
    given = config.get("tests")
    found = [_merged(one, default) for one in _each(given, base, place(config, "tests"))]
    if not found:
        raise UserError(f"{place(config, 'tests')}: tests is missing or empty. A row here is a test there.")
    return found


def _each(given: Any, base: Path, where: str) -> Iterator[LocatedObject]:
    if isinstance(given, str):
        yield from _of_file(given, base, where)
        return
    if given is not None and not isinstance(given, LocatedList):
        raise UserError(f"{where}: tests is {str(given)[:40]!r}. Write a list of tests, or file://NAME.")
    for number, one in enumerate(given or ()):
        assert given is not None
        if isinstance(one, str):
            yield from _of_file(one, base, place(given, number))
        elif isinstance(one, LocatedObject) and "path" not in one:
            yield one
        else:
            raise UserError(f"{place(given, number)}: tests[{number}] is {str(one)[:40]!r}. Write a test with vars.")


def _of_file(named: str, base: Path, where: str) -> Iterator[LocatedObject]:
    name = named.removeprefix("file://")
    if "://" in name or name.startswith("az:") or Path(name).suffix not in (".yaml", ".yml", ".json", ".jsonl", ".csv"):
        raise UserError(f"{where}: tests {named!r} are made elsewhere. Export them to .yaml, .json, .jsonl or .csv.")
    paths = sorted(base.glob(name)) if "*" in name else [base / name]
    if not paths:
        raise UserError(f"{where}: no file is named like {named!r}. Copy them beside the config.")
    for path in paths:
        if path.suffix == ".csv":
            yield from _of_csv(path)
            continue
        loaded = located_yaml.load(path)
        for one in loaded if isinstance(loaded, list) else [loaded]:
            if not isinstance(one, LocatedObject):
                raise UserError(f"{path}:{getattr(loaded, 'line', 1)}: holds no tests. Write a list of tests.")
            yield one


def _of_csv(path: Path) -> Iterator[LocatedObject]:
    reader = csv.reader(io.StringIO(foreign.text(path), newline=""), strict=True)
    try:
        names, line = next(reader, []), reader.line_num + 1
        for cells in reader:
            if len(cells) != len(names):
                if not cells:
                    continue
                raise UserError(f"{path}:{line}: has {len(cells)} cells, and the head {len(names)}. Quote the commas.")
            yield expected.test(dict(zip(names, cells, strict=True)), str(path), line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}. Fix the quotes.") from None


def _merged(test: LocatedObject, default: LocatedObject) -> Test:
    for one in (default, test):
        for key in one:
            if key in _NO_SCORE:
                raise UserError(f"{place(one, key)}: {key} {_NO_SCORE[key]}")
            if key not in _KNOWN:
                raise UserError(f"{place(one, key)}: {key!r} is not a key of a test. Remove it.")
        for key, kind in (
            ("vars", LocatedObject),
            ("options", LocatedObject),
            ("metadata", LocatedObject),
            ("assert", LocatedList),
        ):
            if one.get(key) is not None and not isinstance(one[key], kind):
                raise UserError(f"{place(one, key)}: {key} is {str(one[key])[:40]!r}. Write it out in the config.")
        for key, effect in _CHANGES.items():
            if key in (one.get("options") or {}):
                raise UserError(f"{place(one['options'], key)}: options.{key} {effect}. Remove it, or do it in python.")
    options = dict(default.get("options") or {})
    options |= {key: value for key, value in (test.get("options") or {}).items() if value != "" or key not in options}
    own = (test.get("options") or {}).get("disableDefaultAsserts") is True
    threshold = test.get("threshold") if test.get("threshold") is not None else default.get("threshold")
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise UserError(f"{place(test, 'threshold')}: threshold is {threshold!r}. Write a number.")
    chosen = test.get("prompts", default.get("prompts"))
    unused = [(place(one, key), key) for one in (default, test) for key in ("provider", "providers") if key in one]
    for one in (default, test):
        given = one.get("options") or LocatedObject()
        unused += [(place(given, key), f"options.{key}") for key in given if key not in _OPTIONS - {"repeat"}]
    return Test(
        where=place(test),
        variables=(without_locations(default.get("vars")) or {}) | (without_locations(test.get("vars")) or {}),
        assertions=[each for each in ([] if own else [default.get("assert")]) + [test.get("assert")] if each],
        threshold=threshold,
        options=options,
        metadata=(without_locations(default.get("metadata")) or {}) | (without_locations(test.get("metadata")) or {}),
        prompts=[chosen] if isinstance(chosen, str) else chosen,
        unused=tuple(unused),
    )


# -- rows ------------------------------------------------------------------------------------------
def multiplied(test: Test, known: list[Prompt], base: Path) -> Iterator[Case]:
    """Yield the cases of a test. Raises UserError for a template that is not plain."""
    refs = test.prompts
    chosen = [one for one in known if refs is None or any(_refers(ref, one.label) for ref in refs)]
    if not chosen:
        raise UserError(f"{test.where}: prompts names none of {', '.join(one.label for one in known)}. Name a label.")
    for variables in _combinations(test):
        values = resolved({key: _loaded(value, base, test.where) for key, value in variables.items()}, test.where)
        for prompt in chosen:
            raw = f"{test.options.get('prefix') or ''}{prompt.raw}{test.options.get('suffix') or ''}"
            messages, text = _filled(raw, values, prompt.where, test.where)
            yield Case(prompt, messages, text, values, test)


def _refers(ref: str, label: str) -> bool:
    return label == ref or label.startswith(f"{ref}:") or (ref.endswith("*") and label.startswith(ref[:-1]))


def _combinations(test: Test) -> Iterator[dict[str, Any]]:
    if test.options.get("disableVarExpansion"):
        yield test.variables
        return
    choices = [
        value if isinstance(value, list) and value and isinstance(value[0], str) else [value]
        for value in test.variables.values()
    ]
    for chosen in itertools.product(*choices):
        yield dict(zip(test.variables, chosen, strict=True))


def _loaded(value: Any, base: Path, where: str) -> Any:
    if not isinstance(value, str) or not value.startswith(("file://", "package:")):
        return value
    path = base / value.removeprefix("file://")
    if path.suffix in (".yaml", ".yml"):
        return json.dumps(located_yaml.load(path), ensure_ascii=False, separators=(",", ":"))
    if path.suffix in (".txt", ".md", ".json", ".csv", ".html", ".xml") and "*" not in value:
        return foreign.text(path).strip()
    raise UserError(f"{where}: the variable {value!r} is not a text. Write its text, or name a .txt file.")


def _filled(raw: str, values: dict[str, Any], where: str, test: str) -> tuple[list[Any], str]:
    """Return the messages of a prompt, and its text."""
    try:
        parsed = json.loads(raw)
    except ValueError:
        text = fill(raw, rendered(values, test), where)
    else:
        text = json.dumps(_inside(parsed, values, where), ensure_ascii=False, indent=2)
    return _chat(text, where) or [{"role": "user", "content": text}], text


def _inside(value: Any, values: dict[str, Any], where: str) -> Any:
    if isinstance(value, str):
        return fill(value, values, where)
    if isinstance(value, list):
        return [_inside(each, values, where) for each in value]
    return {key: _inside(each, values, where) for key, each in value.items()} if isinstance(value, dict) else value


def _chat(text: str, where: str) -> list[Any] | None:
    """Read a chat that is written as JSON or YAML; None for any other text."""
    start = text.lstrip()
    if start.startswith("- role:"):
        found = without_locations(located_yaml.parse(text, f"{where}: prompt"))
    elif start.startswith(("[", "{")):
        try:
            found = json.loads(text)
        except ValueError:
            return None
    else:
        return None
    if isinstance(found, list) and found and all(isinstance(each, dict) and "role" in each for each in found):
        return found
    raise UserError(f"{where}: the prompt is JSON, but not a list of messages. Write {{role, content}}, or a text.")
