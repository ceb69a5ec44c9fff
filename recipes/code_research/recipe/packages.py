"""The sources of installed packages: found without importing them, read, and divided into splits.

A stable hash of its name puts each module into one split, so that what is tested was never trained
on. Six tenths of the modules are for training, one tenth is for validation, and three tenths are
for the test split, a tenth for each of its three blocks.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import tokenize
from dataclasses import dataclass
from pathlib import Path

from rft.errors import UserError
from rft.types import Split

KEY = "params.yaml: recipe.options.packages"
TENTHS: dict[Split, range] = {"train": range(6), "validation": range(6, 7), "test": range(7, 10)}
BLOCKS = len(TENTHS["test"])
"""Blocks of the test split, which share no module."""
LEFT_OUT = frozenset({"tests", "test", "testing", "_vendor", "vendored", "vendor"})
"""Folders that are not the package's own work."""


@dataclass(frozen=True)
class Source:
    """A package as it is installed."""

    package: str
    version: str
    files: dict[str, str]  # path below the package, such as "web/client.py" -> its text
    left_out: tuple[str, ...]  # files that this Python cannot read

    @functools.cached_property
    def digest(self) -> str:
        """Hash the texts. The hash is in the key of everything that is made from them."""
        found = hashlib.sha256()
        for path, text in self.files.items():
            found.update(f"{path}\0{len(text)}\0{text}".encode("utf-8", "surrogateescape"))
        return found.hexdigest()[:12]


@functools.cache
def source(package: str) -> Source:
    """Read a package's sources. Raises UserError for one that has none."""
    root = _folder(package)
    files: dict[str, str] = {}
    left_out: list[str] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if LEFT_OUT.isdisjoint(parts) and path.is_file() and not path.is_symlink():
            text = _text(path)
            if text is None:
                left_out.append("/".join(parts))
            else:
                files["/".join(parts)] = text
    if not any(text.strip() for text in files.values()):
        raise _refused(package, f"has no Python sources in {root}: it is compiled, or an empty namespace")
    return Source(package, _version(package), files, tuple(left_out))


def tenth(package: str, path: str) -> int:
    """Return which tenth a module is in. It never changes. `path` is the installed one."""
    return int.from_bytes(hashlib.sha256(f"{package}/{path}".encode()).digest()[:8], "big") % 10


def split_of(package: str, path: str) -> Split:
    return next(split for split, tenths in TENTHS.items() if tenth(package, path) in tenths)


def _folder(package: str) -> Path:
    if not package.isidentifier():
        raise _refused(package, "is not the name of a package that can be imported")
    try:
        spec = importlib.util.find_spec(package)  # imports nothing: the name has no dot
    except (ImportError, ValueError):  # a module that runs as __main__ has no spec
        spec = None
    if spec is None:
        raise _refused(package, "is not installed")
    if not spec.submodule_search_locations:
        kind = "a compiled or built-in module" if not (spec.origin or "").endswith(".py") else "a single module"
        raise _refused(package, f"is {kind}, not a package with Python sources")
    root = Path(next(iter(spec.submodule_search_locations)))
    if not root.is_dir():
        raise _refused(package, f"is in an archive ({root}), so its sources are not files")
    return root


def _text(path: Path) -> str | None:
    """Return the text of a file, with only newlines as line ends. None: this Python cannot parse
    it, because it is a template or has the syntax of a later version."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, OSError):
        return None
    return text


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a distribution of another name
        return "unknown"


def _refused(package: str, what: str) -> UserError:
    return UserError(
        f"{KEY}: {package!r} {what}. Name packages that are installed with their sources, such as 'aiohttp', or "
        "install it."
    )
