"""Renames by a table that says what is renamed, where, and how.

A name can be an identifier, a word in backticks, a path, or a module in an import. Each row of
`bench/names.tsv` is one change, in tab-separated columns: `kind`, `scope`, `old`, `new`.

    move    a file or folder. Its dotted name and its path change everywhere, and so does the name
            under which a file imports it. The scope is empty
    name    a sequence of tokens in code, such as `say`, `.say` or `journal.say(`: one identifier or
            more gets another name. This also happens in f-strings, and within backticks in
            comments, docstrings and pages
    text    exactly these characters, anywhere: for sentences. `⏎` stands for a line break

A scope is a list of patterns of paths, separated by spaces. `!` before a pattern excludes it. `*`
is everything. Paths are those before the renaming. Rows apply in the order of the table. A row that
changes nothing is an error, and so is a new identifier that one of the files had already: two
things would get one name. If that is intended, the kind ends with `+`.

    python -m bench.rename             in a clean clone; it ends with what is generated from code
"""

from __future__ import annotations

import ast
import fnmatch
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "bench" / "names.tsv"
LEFT_ALONE = (
    "bench/names.tsv", "bench/rename.py", "tests/bench/test_rename.py", "bench/results/*", "tests/golden/*",
    "CHANGELOG.md", "lock-*.txt", "constraints.txt", "data/*/*",
)  # fmt: skip
"""Records of the past, and generated files."""
KINDS = ("move", "name", "name+", "text")
GENERATED = (
    ("-m", "ruff", "check", "--quiet", "--select", "I", "--fix", "."),
    ("-m", "ruff", "format", "--quiet", "."),
    ("-m", "rft.config.pages", "--write"),
    ("-m", "tasks.dependencies", "--write"),
)
_TOKEN = re.compile(r"\w+|[^\w\s]")
_BACKTICKS = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    kind: str
    scope: str
    old: str
    new: str

    def covers(self, path: str) -> bool:
        patterns = self.scope.split()
        out = any(fnmatch.fnmatch(path, pattern[1:]) for pattern in patterns if pattern.startswith("!"))
        return not out and any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def read(text: str) -> list[Row]:
    """Read the table. Raises ValueError, which names the line."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != 4 or columns[0] not in KINDS:
            raise ValueError(f"line {number}: not kind, scope, old, new with tabs between, kind one of {KINDS}: {line}")
        row = Row(number, *columns)
        if row.kind == "text":
            row = Row(number, *columns[:2], *(column.replace("⏎", "\n") for column in columns[2:]))
        if row.kind.startswith("name") and len(_TOKEN.findall(row.old)) != len(_TOKEN.findall(row.new)):
            raise ValueError(f"line {number}: {row.old!r} and {row.new!r} are not equally many tokens")
        rows.append(row)
    return rows


def rename(root: Path, rows: list[Row]) -> None:
    """Change the files of a clone. Raises ValueError, and changes no file, if a row does nothing or
    joins two names."""
    texts = dict(_texts(root))
    before = dict(texts)
    paths, problems = list(texts), list[str]()
    for row in rows:
        found = 0
        for path, text in texts.items():
            if row.kind == "move":
                new = _moved(text, row, path.endswith(".py"))
            elif not row.covers(path):
                continue
            elif row.kind == "text":
                new = text.replace(row.old, row.new)
            else:
                new = _named(text, row, path.endswith(".py"))
                if new != text and row.kind == "name" and (clash := _joins(before[path], row)):
                    problems.append(f"line {row.line}: {path} has a name {clash} already")
            found += new != text
            texts[path] = new
        if row.kind == "move":  # an earlier row may have moved it already
            moved = [row.new + path[len(row.old) :] if f"{path}/".startswith(f"{row.old}/") else path for path in paths]
            if moved == paths:
                problems.append(f"line {row.line}: there is no {row.old} to move")
            paths = moved
        elif not found:
            problems.append(f"line {row.line}: {row.old!r} is nowhere in {row.scope}")
    if problems:
        raise ValueError("\n".join(problems))
    for path, text in texts.items():
        if text != before[path]:
            (root / path).write_text(text, encoding="utf-8")
    for row in (row for row in rows if row.kind == "move"):
        (root / row.new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", row.old, row.new], cwd=root, check=True)


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        if any(fnmatch.fnmatch(path, pattern) for pattern in LEFT_ALONE) or (root / path).is_symlink():
            continue
        try:
            yield path, (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


# -- one row in one text ---------------------------------------------------------------------------
def _moved(text: str, row: Row, is_code: bool) -> str:
    old, new = row.old.removesuffix(".py"), row.new.removesuffix(".py")
    (old_home, _, old_name), (new_home, _, new_name) = old.rpartition("/"), new.rpartition("/")
    is_module = row.old.endswith(".py") or "." not in row.old
    text = re.sub(rf"(?<![\w/.]){re.escape(row.old)}(?![\w])", row.new, text)  # not .rft/snapshots
    if not is_module:
        return text
    old_dotted, new_dotted = old.replace("/", "."), new.replace("/", ".")
    text = re.sub(rf"(?<![\w.]){re.escape(old_dotted)}(?!\w)", new_dotted, text)
    if not is_code or not old_home:
        return text
    parent, new_parent = old_home.replace("/", "."), new_home.replace("/", ".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == parent and not node.level:
            alias = next((one for one in node.names if one.name == old_name), None)
            if alias is None:
                continue
            if parent != new_parent and len(node.names) > 1:
                text = _without(text, node, alias)
                if alias.asname is None:
                    text = _changed(text, [old_name], [new_name], is_bare=True)
                line = f"from {new_parent} import {new_name}" + (f" as {alias.asname}" if alias.asname else "")
                text = text.replace(_HERE, line)
                break
            if alias.asname is None:
                text = _changed(text, [old_name], [new_name], is_bare=True)
            else:
                text = _changed(text, [old_name, "as", alias.asname], [new_name, "as", alias.asname], is_bare=True)
            if parent != new_parent:
                text = text.replace(f"from {parent} import {new_name}", f"from {new_parent} import {new_name}")
            break
    return text


_HERE = "import __here__"


def _without(text: str, node: ast.ImportFrom, alias: ast.alias) -> str:
    """Leave a name out of an import, and mark the place of another import below it."""
    lines = text.splitlines(keepends=True)
    first, last, indent = node.lineno - 1, node.end_lineno or node.lineno, " " * node.col_offset
    names = [one.name + (f" as {one.asname}" if one.asname else "") for one in node.names if one is not alias]
    comment = lines[last - 1].encode()[node.end_col_offset or 0 :].decode()
    line = f"{indent}from {node.module} import {', '.join(names)}{comment}"
    return "".join([*lines[:first], line, f"{indent}{_HERE}\n", *lines[last:]])


def _named(text: str, row: Row, is_code: bool) -> str:
    old, new = _TOKEN.findall(row.old), _TOKEN.findall(row.new)
    if not all(one in text for one in old):
        return text
    return _changed(text, old, new) if is_code else _in_backticks(text, old, new)


def _joins(text: str, row: Row) -> str:
    """Name the new identifier that code had before."""
    new = {one for one in _TOKEN.findall(row.new) if one.isidentifier()} - set(_TOKEN.findall(row.old))
    return next((one.string for one in _tokens(text) if one.type == tokenize.NAME and one.string in new), "")


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    try:
        return list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []


def _changed(text: str, old: list[str], new: list[str], is_bare: bool = False) -> str:
    """Change code, and what comments and docstrings say about it. `is_bare`: not after a dot."""
    tokens = _tokens(text)
    code = [one for one in tokens if one.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)]
    edits = list[tuple[tokenize.TokenInfo, str]]()
    at = 0
    while at <= len(code) - len(old):
        here = code[at : at + len(old)]
        if [one.string for one in here] == old and not (is_bare and at and code[at - 1].string == "."):
            edits += [(one, name) for one, name in zip(here, new, strict=True) if one.string != name]
            at += len(old)
        else:
            at += 1
    for one in tokens:
        if one.type == tokenize.COMMENT:
            changed = _in_backticks(one.string, old, new)
        elif one.type == tokenize.STRING:
            changed = _in_backticks(one.string, old, new)
            if "f" in re.split(r"['\"]", one.string, maxsplit=1)[0].lower():
                changed = _in_braces(changed, old, new)
        else:
            continue
        if changed != one.string:
            edits.append((one, changed))
    return _edited(text, edits)


def _edited(text: str, edits: Iterable[tuple[tokenize.TokenInfo, str]]) -> str:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for token, new in sorted(edits, key=lambda edit: edit[0].start, reverse=True):
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        text = text[:begin] + new + text[end:]
    return text


def _in_backticks(text: str, old: list[str], new: list[str]) -> str:
    return _BACKTICKS.sub(lambda found: _in_plain(found[0], old, new), text)


def _in_plain(text: str, old: list[str], new: list[str]) -> str:
    """Change the tokens in a piece of text that is code."""
    found = list(_TOKEN.finditer(text))
    at, made, end = 0, list[str](), 0
    while at <= len(found) - len(old):
        here = found[at : at + len(old)]
        if [one[0] for one in here] == old:
            for one, name in zip(here, new, strict=True):
                made += [text[end : one.start()], name]
                end = one.end()
            at += len(old)
        else:
            at += 1
    return "".join([*made, text[end:]])


def _in_braces(text: str, old: list[str], new: list[str]) -> str:
    """Change the expressions of an f-string, which are within single braces."""
    made, at = list[str](), 0
    while at < len(text):
        if text.startswith(("{{", "}}"), at):
            made.append(text[at : at + 2])
            at += 2
        elif text[at] == "{":
            end, depth = at + 1, 1
            while depth and end < len(text):
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            made.append(_outside_quotes(text[at:end], old, new))
            at = end
        else:
            made.append(text[at])
            at += 1
    return "".join(made)


def _outside_quotes(text: str, old: list[str], new: list[str]) -> str:
    pieces = re.split(r"((?:\bf)?(?:\"[^\"\n]*\"|'[^'\n]*'))", text)
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = _in_plain(piece, old, new)
        elif piece.startswith("f"):
            pieces[at] = _in_braces(piece, old, new)
    return "".join(pieces)


def main() -> None:
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if status.stdout.strip():
        sys.exit("files differ from the last commit. A rename begins in a clean clone: commit them first")
    try:
        rename(ROOT, read(TABLE.read_text(encoding="utf-8")))
    except ValueError as error:
        sys.exit(f"{TABLE.name}: {error}")
    for command in GENERATED:
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
