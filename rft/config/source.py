"""Check the source of a python grader without running it: its size, grammar and function.

It runs later, in a sandbox. Errors that can be seen before are refused when grader.json is read.
"""

from __future__ import annotations

import ast
import warnings

from rft.config.templates import names_a_place

MAX_BYTES = 256_000
_LIKE = "def grade(sample, item): return float(sample['output_text'] == item['answer'])"


def check_source(source: str) -> None:
    """Raise ValueError naming the line and the remedy."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size >= MAX_BYTES:
        raise ValueError(f"has {size:,} bytes, and must have less than {MAX_BYTES:,}. Write it shorter")
    if template := names_a_place(source):
        raise ValueError(f"holds the template {template}, and source has none. Read the argument sample or item")
    try:
        with warnings.catch_warnings(action="ignore"):  # about the author's style
            tree = ast.parse(source)
            compile(tree, "grader.json: source", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"is not Python: line {error.lineno}: {error.msg}. Fix that line") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"is not Python: {error or 'nested too deeply'}. Write it simpler") from None
    if not any(_defines_grade(statement) for statement in ast.walk(tree)):
        raise ValueError(f"defines no function grade(sample, item). Write it like {_LIKE}")


def _defines_grade(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name="grade") | ast.Assign(targets=[ast.Name(id="grade")]):
            return True
        case ast.ImportFrom(names=names):
            return any((alias.asname or alias.name) == "grade" for alias in names)
        case _:
            return False
