"""The figure `house`: how much is there to read, and does it hang together?

A code line is one that holds a token of code: comments, blank lines and docstrings do not count.
Python's tokenizer counts them, here and in the code before this issue, so nothing is gained by
layout. Other parts are the longest file and function, imports inside functions, and the packages
that are needed. Circles of imports between files are counted, too, including imports in functions
and for types.

    make figure NAME=house
"""

from __future__ import annotations

import ast
import graphlib
import io
import subprocess
import tarfile
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Figure, Part, unmeasured

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "af656ea"
ENGINE = ("rft", "tasks", "flows")
TOPS = (*ENGINE, "recipes", "bench")
"""The folders whose files may not import in a circle."""
MOST, MOST_RECIPE = 47_000, 1_200
SMALL_RECIPES = ("recipes/filings", "recipes/mail_search")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class House:
    code: Counter[str]
    """Folder, such as `rft` and `rft/page` -> lines of code."""
    docstrings: Counter[str]
    num_files: int
    longest_file: int
    longest_function: int
    local_imports: int
    """Imports in functions of the engine."""
    circle: tuple[str, ...]
    """Files that import one another in a circle. Empty: none do."""
    packages: int

    def lines(self, *rooms: str) -> int:
        return sum(self.code[room] for room in rooms)

    @property
    def share(self) -> float:
        """Return the share of docstrings in the engine's lines."""
        told = sum(self.docstrings[top] for top in ENGINE)
        return told / (told + self.lines(*ENGINE))


def house(args: list[str]) -> Figure:
    """Code lines of rft, tasks and flows (at most 47,000), and of each room, before and after."""
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True)
    if archive.returncode:
        return unmeasured("code lines", f"this clone's history has no commit {BEFORE}: git fetch --unshallow")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        before, now = measured(Path(folder)), measured(ROOT)
    return figure(before, now)


def figure(before: House, now: House) -> Figure:
    parts = [Part("code lines of rft, tasks and flows", now.lines(*ENGINE), "lines", MOST, n=now.num_files)]
    parts += [Part(f"code lines of {room}", now.lines(room), "lines", MOST_RECIPE) for room in SMALL_RECIPES]
    parts += [
        Part(f"code lines of {top}", now.lines(top), "lines", before.lines(top) - 1) for top in ("tests", "bench")
    ]
    parts += [
        Part("share of docstrings, after over before", now.share / before.share, "", 1.02, 0.98),
        Part("files in a circle of imports", len(now.circle), "files", 0),
    ]
    rooms = {room: [before.code[room], now.code[room]] for room in sorted({*before.code, *now.code})}
    others = ("num_files", "longest_file", "longest_function", "local_imports", "packages")
    notes = {"lines before and after": rooms, "circle": [*now.circle]}
    return Figure(tuple(parts), notes | {name: [getattr(before, name), getattr(now, name)] for name in others})


FIGURES = {"house": house}


# -- one tree --------------------------------------------------------------------------------------
def measured(root: Path) -> House:
    code, docstrings, longest, functions, local = Counter[str](), Counter[str](), [0], [0], 0
    paths = [path for top in (*TOPS, "tests") for path in sorted((root / top).rglob("*.py"))]
    for path in paths:
        source = path.read_bytes()
        tree, name = ast.parse(source), path.relative_to(root)
        told = _docstring_lines(tree)
        lines = _code_lines(source) - told
        for room in {name.parts[0], "/".join(name.parts[: min(2, len(name.parts) - 1)])}:
            code[room] += len(lines)
            docstrings[room] += len(told)
        longest.append(source.count(b"\n"))
        defined = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        functions += [(node.end_lineno or 0) - node.lineno + 1 for node in defined]
        if name.parts[0] in ENGINE:
            local += len({id(node) for one in defined for node in ast.walk(one) if _is_import(node)})
    needed = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return House(code, docstrings, len(paths), max(longest), max(functions), local, circle(root), len(needed))


def _code_lines(source: bytes) -> set[int]:
    found = set[int]()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return found


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings, and of the strings that describe the name above them."""
    texts = (
        statement
        for node in ast.walk(tree)
        if isinstance(node, _DOCUMENTED)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
    return {
        line
        for text in texts
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)
    }


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


# -- circles ---------------------------------------------------------------------------------------
def circle(root: Path) -> tuple[str, ...]:
    """Return files that import one another in a circle, by the names of their modules."""
    paths = (path.relative_to(root) for top in TOPS for path in sorted((root / top).rglob("*.py")))
    files = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    known = {
        name: {other for other in _imported(name, root / path, files) if other != name} for name, path in files.items()
    }
    try:
        graphlib.TopologicalSorter(known).prepare()
    except graphlib.CycleError as error:
        return tuple(error.args[1][1:])
    return ()


def _imported(name: str, path: Path, files: dict[str, Path]) -> Iterator[str]:
    """Return the files that a file imports, anywhere in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in files)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (found for each in node.names if (found := _file(module, each.name, files)))


def _file(module: str, name: str, files: dict[str, Path]) -> str | None:
    """Return the module of this name, or else the package that has it."""
    return next((each for each in (f"{module}.{name}", module) if each in files), None)
