"""Mutation: a package's text under other names and with other values, still valid Python.

    class Client(Base):                         class Kavel(Mudok):
        def get(self, url, timeout=5.0):            def besin(self, ronak, tivuz=38.4):
            "Send a GET request."                       "Send a GET lopad."

Every name that the package defines, and every exception and base class that it uses, is replaced by
an invented one: in code, in texts and in comments. A name has the same invented name in the whole
package, so the code still hangs together. Numbers and texts that a fact rests on (defaults and
constants) get other values. Lines keep their numbers.

All this is done on tokens, and the text between them is untouched. Renaming maps names one to one
to names that were nowhere in the text, so the syntax tree keeps its shape. Each file is parsed
again to prove it, and one that fails is left out. The code is never run.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import io
import keyword
import random
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from . import packages
from .names import Inventor
from .sites import Site, name_of, sites

KEPT = frozenset(
    {"self", "cls", "args", "kwargs", "_"}
    | set(keyword.kwlist)
    | set(keyword.softkwlist)
    | set(__future__.all_feature_names)
    | {
        name
        for name, value in vars(builtins).items()
        if not (isinstance(value, type) and issubclass(value, BaseException))
    }
)
"""Names that stay: those of the language, of builtins other than exceptions, and customary ones."""
_WORD = re.compile(r"(?<![\\!\w])[A-Za-z_]\w*")
_PREFIX = re.compile(r"[A-Za-z]*")


@dataclass(frozen=True)
class Mutated:
    """One file of a workspace. `sites` are pairs: as it is now, and as it was."""

    path: str
    true_path: str
    text: str
    sites: list[tuple[Site, Site]]


@dataclass(frozen=True)
class _Parsed:
    tree: ast.Module
    sites: list[Site]
    pieces: list[tuple[str, str, tuple[int, int]]]  # kind, text, (row, column): the whole text in order


def mutate(source: packages.Source, world: int) -> tuple[list[Mutated], list[str]]:
    """Return the files of one workspace, and the paths of those that could not be mutated. Equal
    arguments give equal texts."""
    parsed = _parsed(source.package)
    seed = f"{source.package} {source.digest} {world}"
    inventor = Inventor(seed, _words(source) | set(keyword.kwlist) | set(dir(builtins)))
    names = {name: inventor.like(name) for name in _renamed(source.package)}
    rng = random.Random(f"values {seed}")
    found: list[Mutated] = []
    left_out: list[str] = []
    for path, file in parsed.items():
        values = {
            _position(source.files[path], site.literal): _other(site.literal.value, rng, inventor)
            for site in file.sites
            if site.literal is not None
        }
        text = "".join(_rewritten(piece, names, values) for piece in file.pieces)
        after = _sites_of(text)
        if after is None or [site.kind for site in after] != [site.kind for site in file.sites]:
            left_out.append(path)
        else:
            found.append(Mutated(_renamed_path(path, names), path, text, list(zip(after, file.sites, strict=True))))
    return found, left_out


def _sites_of(text: str) -> list[Site] | None:
    try:
        return sites(ast.parse(text))
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=2)
def _parsed(package: str) -> dict[str, _Parsed]:
    trees = {path: (ast.parse(text), text) for path, text in packages.source(package).files.items()}
    return {path: _Parsed(tree, sites(tree), list(_pieces(text))) for path, (tree, text) in trees.items()}


def _pieces(text: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Cut a text into tokens and the text between them."""
    kinds = {tokenize.NAME: "name", tokenize.NUMBER: "number", tokenize.STRING: "text", tokenize.COMMENT: "comment"}
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    at = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            begin = starts[token.start[0] - 1] + token.start[1]
            end = starts[token.end[0] - 1] + token.end[1]
            yield "between", text[at:begin], (0, 0)
            yield kinds[token.type], text[begin:end], token.start
            at = end
    yield "between", text[at:], (0, 0)


def _rewritten(
    piece: tuple[str, str, tuple[int, int]], names: dict[str, str], values: dict[tuple[int, int], str]
) -> str:
    kind, text, place = piece
    if kind in ("number", "text") and place in values:
        return values[place]
    if kind == "name":
        return names.get(text, text)
    if kind == "comment" or (kind == "text" and "\\N{" not in text):
        prefix = "" if kind == "comment" else _PREFIX.match(text)[0]  # type: ignore[index] (it matches always)
        return prefix + _WORD.sub(lambda word: names.get(word[0], word[0]), text[len(prefix) :])
    return text


def _renamed_path(path: str, names: dict[str, str]) -> str:
    *folders, file = PurePosixPath(path).parts
    stem = file.removesuffix(".py")
    return "/".join([*(names.get(folder, folder) for folder in folders), f"{names.get(stem, stem)}.py"])


def _position(text: str, node: ast.Constant) -> tuple[int, int]:
    """Return the row and column of a node in characters; the tree counts bytes."""
    line = text.split("\n", node.lineno)[node.lineno - 1]
    return node.lineno, len(line.encode()[: node.col_offset].decode())


def _other(value: object, rng: random.Random, inventor: Inventor) -> str:
    """Return the source of another value of the same kind."""
    if isinstance(value, str):
        return f"'{inventor.name()}'"
    while True:
        if isinstance(value, float):
            found = f"{rng.randint(10, 99)}.{rng.randint(1, 9)}"
        else:
            found = str(rng.randint(10, 99) if isinstance(value, int) and value < 100 else rng.randint(1000, 9999))
        if found != repr(value):
            return found


# -- which names -----------------------------------------------------------------------------------
@functools.lru_cache(maxsize=16)
def _renamed(package: str) -> list[str]:
    """List the names that a workspace changes, sorted."""
    found = {package}
    for path, file in _parsed(package).items():
        found |= {part.removesuffix(".py") for part in PurePosixPath(path).parts}
        for node in ast.walk(file.tree):
            found.update(_named(node))
    return sorted(name for name in found if name not in KEPT and name.strip("_") and not _is_magic(name))


def _named(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node defines, and those of the exceptions and bases that it uses."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.ClassDef):
        yield from (node.name, *map(name_of, node.bases))
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.Raise) and node.exc is not None and name_of(node.exc)[:1].isupper():
        yield name_of(node.exc)


def _is_magic(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _words(source: packages.Source) -> set[str]:
    return {word for text in source.files.values() for word in re.findall(r"\w+", text)}
