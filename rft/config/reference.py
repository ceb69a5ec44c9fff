"""Explain every key of params.yaml: in docs/params.md, and in the comments of `rft doctor
--show-resolved`.

The words are the docstrings under the keys in this package, so that source and reference cannot
differ. tests/config/test_reference.py refuses a key without one. For a key that holds a section,
the docstring of the section's class will do.

    python -m rft.config.reference            # print docs/params.md
    python -m rft.config.reference --write    # write it
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from rft import config
from rft.config.section import Section

PAGE = Path(__file__).parents[2] / "docs/params.md"

_HEAD = """# Every key of params.yaml

<!-- Written by `python -m rft.config.reference --write` from the docstrings in rft/config; edit those. -->

A run is configured by `params.yaml` and by nothing else. An unknown key is an error that names the
nearest one, and so is a value that cannot be honored. A key that is left out has the default below;
*required* means that there is none. `rft doctor --show-resolved` prints your own settings with these
words, and says which of them your file sets. In a key, `[]` stands for each entry of a list and
`NAME` for a name that you choose.
"""

_CHOSEN = """## How the defaults of learning were chosen
A default has to carry on any seed and any processor, not in one run. `make figure NAME=first_agent`
measures that again, and `make figure NAME=collapse` what happens beyond. All numbers here are of
the embedded policy, on a processor without AVX-512; a reward is that of the agent which `rft new`
writes.

- `policy.warm_start.lr`, 2e-3: by the reward after 600 steps of warm start. It is 0.49 to 0.60 on
  ten seeds at 2e-3. At 4e-3 it is 0.51 on one seed and 0.12 on another: the rate destroys the heads
  with which the policy copies before they are of use.
- The order of the warm start: batches hold dialogues of all lengths. Sorted by length, they save
  12 % of ICD-10's time, and the ten rewards are 0.35 to 0.81, because dialogues of one length are
  of one kind and the last few batches decide (`rft/trainer/lessons.py`).
- `policy.warm_start.steps`, 900: as many as ICD-10 needs to copy codes. The agent of `rft new` has
  600.
- `train.lr`, 2e-3 for LoRA at width 128: by how far the first step moves the policy, in nats per
  token. It is 0.003 at 1e-3, 0.02 at 3e-3, 0.2 at 1e-2, where a training fell after six steps, and
  1.2 at 3e-2, where it fell after two. With all weights, 3e-4 moves it by 0.01 and 1e-3 by 0.1;
  the default is 4e-4. `rft doctor` measures the distance for your model. For wider policies,
  `rft/trainer/rates.py` has the rule.
- `train.clip_grad`, 1.0: norms of the gradient are 0.005 to 0.2 in a sound training, so it acts
  only on a step that is far out.
- `train.group_size` and `train.examples_per_step`, 8 each: not varied here.
- `train.kl.beta`, 0: not varied here. What a penalty would prevent is noticed, and undone once
  (`rft/trainer/collapse.py`).
- `train.steps`, 80: as ICD-10 needs. The agent of `rft new` has 30.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One row: `Key("train.kl.beta", "number, at least 0", "0.0", "Weight of the penalty.")`."""

    name: str
    type: str
    default: str
    """As YAML; "required" without one; empty for a key that only holds others."""
    meaning: str


def sections() -> Iterator[tuple[str, str, list[Key]]]:
    """Yield name, meaning and keys of each section, in the order of the file."""
    for name, info in config.Params.model_fields.items():
        kind = _section(info.annotation)
        assert kind is not None, name
        yield name, _words(kind), list(keys(kind, f"{name}."))


def keys(kind: type[Section], prefix: str) -> Iterator[Key]:
    """Yield each key of a section, and the keys inside it."""
    for field, info in kind.model_fields.items():
        name = f"{prefix}{info.alias or field}"
        inner = _section(info.annotation)
        meaning = _docstrings(kind).get(field, "") or (_words(inner) if inner else "")
        yield Key(name, _type(info), _default(info), meaning)
        if inner is not None:
            yield from keys(inner, f"{name}{_step(info.annotation)}.")


def page() -> str:
    """Write docs/params.md, whole."""
    lines = [_HEAD]
    for name, meaning, rows in sections():
        lines += [f"## `{name}`", f"{meaning}\n", *table(rows)]
        lines[-1] += "\n"
    return "\n".join([*lines, _CHOSEN])


def table(rows: Iterable[Key]) -> list[str]:
    """Write the lines of a table of keys."""
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return head + [f"| `{key.name}` | {key.type} | {_code(key.default)} | {_cell(key.meaning)} |" for key in rows]


def commented(params: config.Params, written: Set[str]) -> str:
    """Write all settings as YAML, each with its origin and meaning. It reads back as the same
    settings."""
    lines: list[tuple[str, str]] = []
    for name in config.Params.model_fields:
        section: Section = getattr(params, name)
        lines.append((f"{name}:", _words(type(section))))
        lines += _lines(section, f"{name}.", "  ", written)
    width = min(40, max(len(left) for left, _ in lines))
    return "\n".join(f"{left:{width}}  # {right}" for left, right in lines)


def _lines(section: Section, prefix: str, indent: str, written: Set[str]) -> Iterator[tuple[str, str]]:
    meanings = {key.name: key.meaning for key in keys(type(section), prefix)}
    shown = section.model_dump(mode="json", by_alias=True)
    for field, info in type(section).model_fields.items():
        alias = info.alias or field
        if alias not in shown:  # a key that says nothing unless it is set
            continue
        value, meaning = getattr(section, field), meanings[prefix + alias]
        origin = "set" if prefix + alias in written else "default"
        if isinstance(value, Section):
            yield f"{indent}{alias}:", meaning
            yield from _lines(value, f"{prefix}{alias}.", indent + "  ", written)
        else:
            yield f"{indent}{alias}: {_yaml(shown[alias])}", f"{origin}. {meaning}"


# -- in words --------------------------------------------------------------------------------------
def _section(annotation: Any) -> type[Section] | None:
    """Find the section in an annotation: Budget, Allowance | None, list[Endpoint]."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((kind for part in get_args(annotation) if (kind := _section(part))), None)


def _step(annotation: Any) -> str:
    """Return what goes between a key and the keys inside it."""
    origin = get_origin(annotation)
    if origin in (types.UnionType, Union):
        return next((step for part in get_args(annotation) if (step := _step(part))), "")
    return "[]" if origin is list else ".NAME" if origin is dict else ""


@cache
def _docstrings(kind: type[Section]) -> dict[str, str]:
    """Read the docstring under each field. pydantic could (use_attribute_docstrings), but reads the
    source of every section at every start: a fifth of the time that it takes to import them."""
    found: dict[str, str] = {}
    for base in reversed([each for each in kind.__mro__ if issubclass(each, Section)]):
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in pairwise(tree.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = _one_line(text)
                case _:
                    pass
    return found


def _words(kind: type[Section]) -> str:
    """Return a section's own docstring, not an inherited one."""
    return _one_line(inspect.cleandoc(kind.__dict__.get("__doc__") or ""))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _type(info: FieldInfo) -> str:
    """Say which values are allowed: `whole number, at least 1`."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = ((word, getattr(bound, name, None)) for bound in info.metadata for name, word in words.items())
    return ", ".join([_kind(info.annotation), *(f"{word} {bound:,}" for word, bound in found if bound is not None)])


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return " or ".join(_kind(part) for part in parts)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is list:
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return "mapping"
    if origin is tuple:
        return f"list of {len(parts)} {_kind(parts[0])}s"
    if hasattr(annotation, "__metadata__"):
        return _kind(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}
    words[Any] = "anything"
    return words.get(annotation) or str(getattr(annotation, "__name__", annotation))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    return "" if isinstance(info.default, Section) else _yaml(info.default)


def _yaml(value: Any) -> str:
    """Write one line of YAML; for a text with line breaks that is JSON, which is YAML too."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False)
    text = text.removesuffix("\n...\n").strip()
    return json.dumps(value) if "\n" in text else text


def _code(default: str) -> str:
    return "*required*" if default == "required" else f"`{default}`" if default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print("usage: python -m rft.config.reference [--write]", file=sys.stderr)
        return 2
    if arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
