"""The formula of a grader with several parts: `(exact + 2 * close) / max(steps, 1)`.

A formula is data that somebody else may have written, so it does not run as Python. Python's
grammar parses it, and then each node is compared with a list of allowed ones. Everything else is
refused when the file is read. The error names its place and what to write instead.

    numbers      1, 0.5, 1e-9
    names        the keys of `graders`
    operators    + - * / and ^, which is a power, as on paper; parentheses
    functions    abs exp floor ceil sqrt log of one value, min max of two or more

All numbers are floats, so no power grows beyond what a float holds. A formula has at most MAX_CHARS
characters and no loops, so it ends within microseconds. Errors that depend on the scores raise
Undefined: a division by zero, the root of a negative number, a number too large. A part without
names is computed when the file is read, so `9^9^9` is refused there.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_CHARS = 2000
MAX_DEPTH = 100
ONE: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
"""Functions of one value."""
SOME: dict[str, Callable[..., float]] = {"min": min, "max": max}
"""Functions of two values or more."""
FUNCTIONS = frozenset({*ONE, *SOME})
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.Pow: lambda left, right: left**right,
}
_MAY = f"A formula has numbers, the keys of graders, + - * / ^, parentheses, and {', '.join(sorted(FUNCTIONS))}"


class Undefined(ValueError):
    """The formula has no value for these scores."""


_Compute = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True, slots=True)
class Formula:
    """`Formula.read("a + b").value({"a": 1.0, "b": 0.5})` is 1.5."""

    text: str
    names: frozenset[str]
    _compute: _Compute

    @classmethod
    def read(cls, text: str) -> Formula:
        """Parse `text`. Raises ValueError naming the part that is not allowed, its place and the
        remedy."""
        if len(text) > MAX_CHARS:
            raise ValueError(f"has {len(text):,} characters, more than {MAX_CHARS:,}. Write it shorter")
        source = text.strip().replace("^", "**")
        try:
            with warnings.catch_warnings(action="ignore"):  # Python warns about a letter directly after a number
                tree = ast.parse(source, mode="eval")
        except SyntaxError as error:
            column = len(source[: (error.offset or 1) - 1].replace("**", "^")) + 1
            raise ValueError(f"cannot be read at character {column}: {error.msg}. {_MAY}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot be read: {error or 'nested too deeply'}. {_MAY}") from None
        reader = _Reader(source)
        compute = reader.compile(tree.body)
        return cls(text, frozenset(reader.names), compute)

    def value(self, scores: Mapping[str, float]) -> float:
        """Compute the formula. Raises Undefined where the result is not a finite number."""
        return _finite(self._compute, scores)


def _finite(compute: _Compute, scores: Mapping[str, float]) -> float:
    try:
        value = compute(scores)
    except ZeroDivisionError:
        raise Undefined("a division by zero") from None
    except OverflowError:
        raise Undefined("a number too large") from None
    except (ValueError, TypeError):
        raise Undefined("a root, logarithm or power that has no real value") from None
    if isinstance(value, complex):
        raise Undefined("a root, logarithm or power that has no real value")
    if not math.isfinite(value):
        raise Undefined("no finite number")
    return float(value)


class _Reader:
    """Turns the syntax tree into functions, node by node."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.names: set[str] = set()

    def compile(self, node: ast.expr, depth: int = 0) -> _Compute:
        if depth > MAX_DEPTH:
            raise ValueError(f"is nested more than {MAX_DEPTH} deep. Write it flatter")
        known = len(self.names)
        compute = self._node(node, depth)
        holds_a_name = any(isinstance(part, ast.Name) and part.id not in FUNCTIONS for part in ast.walk(node))
        if known == len(self.names) and not holds_a_name:
            try:
                constant = _finite(compute, {})
            except Undefined as error:
                raise self._refused(node, f"is {error}", "Write another number") from None
            return lambda scores: constant
        return compute

    def _node(self, node: ast.expr, depth: int) -> _Compute:
        match node:
            case ast.Constant(value=bool()) | ast.Constant(value=complex()):
                raise self._refused(node, "is not allowed", _MAY)
            case ast.Constant(value=int() | float() as number):
                return self._number(node, number)
            case ast.Name(id=name):
                if name in FUNCTIONS:
                    raise self._refused(node, "is a function", f"Write {name}(...)")
                self.names.add(name)
                return lambda scores: scores[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.compile(operand, depth + 1)
                return lambda scores: -inner(scores)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.compile(operand, depth + 1)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                apply = _OPERATORS[type(operator)]
                first, second = self.compile(left, depth + 1), self.compile(right, depth + 1)
                return lambda scores: apply(first(scores), second(scores))
            case ast.Call():
                return self._call(node, depth)
            case _:
                raise self._refused(node, "is not allowed", _MAY)

    def _number(self, node: ast.expr, number: int | float) -> _Compute:
        try:
            constant = float(number)
        except OverflowError:
            constant = math.inf
        if not math.isfinite(constant):
            raise self._refused(node, "is a number too large", "Write a smaller one")
        return lambda scores: constant

    def _call(self, node: ast.Call, depth: int) -> _Compute:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name not in FUNCTIONS:
            raise self._refused(node, "calls a function that formulas do not have", _MAY)
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self._refused(node, "has an argument with a name or a star", "Write plain values")
        parts = [self.compile(argument, depth + 1) for argument in node.args]
        if name in ONE:
            if len(parts) != 1:
                raise self._refused(node, f"has {len(parts)} values", f"{name} takes one")
            single, inner = ONE[name], parts[0]
            return lambda scores: single(inner(scores))
        if len(parts) < 2:
            raise self._refused(node, "has fewer than two values", f"{name} takes two or more")
        several = SOME[name]
        return lambda scores: several([part(scores) for part in parts])

    def _refused(self, node: ast.expr, why: str, remedy: str) -> ValueError:
        """Make an error that quotes the part as it was written, with its place."""
        text = (ast.get_source_segment(self._source, node) or "").replace("**", "^")
        line = self._source.split("\n")[node.lineno - 1].encode()[: node.col_offset].decode("utf-8", "replace")
        column = len(line.replace("**", "^")) + 1
        text = text if len(text) <= 60 else text[:60] + "..."
        return ValueError(f"{text!r} at character {column} {why}. {remedy}")
