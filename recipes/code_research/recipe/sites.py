"""Sites: the places in a module's syntax tree where a fact can stand.

    kind       symbol                   value
    default    Client.get.timeout       a parameter's default
    constant   LIMIT, Client.LIMIT      what a name of a module or class is set to
    base       Client                   a base class
    raises     Client.get               an exception class in a raise statement
    calls      Client.get               a function or class that is called there
    doc        Client.get               the first line of its docstring
    function, class                     a header

A site's value is its source text. For a base, an exception or a callee it is the last name. Each
kind, symbol and value is listed once, at its first place. Two trees of the same shape give sites in
the same order, so that a mutated module can be compared with its original.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["default", "constant", "base", "raises", "calls", "doc", "function", "class"]
MAX_TEXT = 24
"""Characters of a text that a fact may have as its value."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NO_CALLS = (ast.stmt, ast.expr_context, ast.Name, ast.Constant)
"""Where the search for calls ends: at statements, whose calls are their own, and at leaves."""


@dataclass(frozen=True)
class Site:
    kind: Kind
    symbol: str
    line: int
    value: str
    literal: ast.Constant | None = field(default=None, compare=False)
    """The number or text of a default or constant, which a workspace changes."""


def sites(tree: ast.Module) -> list[Site]:
    """List all sites in the order of the tree. A kind, symbol and value that come again are not a
    new site."""
    return list(_block(tree.body, (), inside_function=False))


def first_of_each(found: list[Site]) -> list[int]:
    """Return the positions of the sites that are the first of their kind, symbol and value."""
    seen: dict[tuple[str, str, str], int] = {}
    for n, site in enumerate(found):
        seen.setdefault((site.kind, site.symbol, site.value), n)
    return sorted(seen.values())


def is_literal(node: ast.expr | None) -> bool:
    """Whether this is a number, or a short text on one line. Such a value can be changed into
    another of its kind."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return False
    if isinstance(node.value, str):
        return 0 < len(node.value) <= MAX_TEXT and node.value.isprintable() and node.lineno == node.end_lineno
    return isinstance(node.value, int | float)


def name_of(node: ast.expr) -> str:
    """`name_of(errors.Closed(1)) == "Closed"`; empty for what has no name."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _block(body: list[ast.stmt], scope: tuple[str, ...], inside_function: bool) -> Iterator[Site]:
    for statement in body:
        yield from _statement(statement, scope, inside_function)


def _statement(node: ast.stmt, scope: tuple[str, ...], inside_function: bool) -> Iterator[Site]:
    if isinstance(node, _Function):
        yield from _function(node, (*scope, node.name))
    elif isinstance(node, ast.ClassDef):
        yield from _class(node, (*scope, node.name))
    else:
        if not inside_function:
            yield from _constant(node, scope)
        if isinstance(node, ast.Raise) and scope and node.exc is not None:
            raised = name_of(node.exc)
            if raised.lstrip("_")[:1].isupper():  # not an exception that a variable holds
                yield Site("raises", ".".join(scope), node.lineno, raised)
        yield from _calls(node, scope)
        for block in _blocks(node):
            yield from _block(block, scope, inside_function)


def _function(node: _Function, scope: tuple[str, ...]) -> Iterator[Site]:
    symbol, arguments = ".".join(scope), node.args
    yield Site("function", symbol, node.lineno, "")
    yield from _doc(node, symbol)
    positional = [*arguments.posonlyargs, *arguments.args]
    last = positional[len(positional) - len(arguments.defaults) :]
    for argument, default in zip(
        (*last, *arguments.kwonlyargs), (*arguments.defaults, *arguments.kw_defaults), strict=True
    ):
        if default is not None:
            literal = default if isinstance(default, ast.Constant) and is_literal(default) else None
            yield Site("default", f"{symbol}.{argument.arg}", default.lineno, ast.unparse(default), literal)
    yield from _block(node.body, scope, inside_function=True)


def _class(node: ast.ClassDef, scope: tuple[str, ...]) -> Iterator[Site]:
    symbol = ".".join(scope)
    bases = [name_of(base) for base in node.bases]
    if not bases:
        yield Site("class", symbol, node.lineno, "")
    for base, name in zip(node.bases, bases, strict=True):
        yield Site("base", symbol, node.lineno, name or ast.unparse(base))
    yield from _doc(node, symbol)
    yield from _block(node.body, scope, inside_function=False)


def _doc(node: _Function | ast.ClassDef, symbol: str) -> Iterator[Site]:
    text = ast.get_docstring(node)
    if text and text.strip():
        yield Site("doc", symbol, node.body[0].lineno, text.strip().splitlines()[0])


def _constant(node: ast.stmt, scope: tuple[str, ...]) -> Iterator[Site]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    else:
        return
    if isinstance(target, ast.Name):
        literal = value if isinstance(value, ast.Constant) and is_literal(value) else None
        yield Site("constant", ".".join((*scope, target.id)), node.lineno, ast.unparse(value), literal)


def _calls(node: ast.stmt, scope: tuple[str, ...]) -> Iterator[Site]:
    """Yield the calls in the expressions of one statement, not in the statements inside it."""
    if not scope:
        return
    waiting: list[ast.AST] = [node]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, _NO_CALLS):
                continue
            if isinstance(child, ast.Call) and (called := name_of(child.func)):
                yield Site("calls", ".".join(scope), child.lineno, called)
            waiting.append(child)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body
