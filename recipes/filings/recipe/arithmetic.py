"""Exact arithmetic for `calculate`, and how numbers are written.

An expression is parsed, never run. It has numbers, + - * / and parentheses, and at most MAX_LENGTH
characters. A number may have a label before it, which is ignored: "gross profit 721 - net income
288". There are no powers and no names, so the longest expression is a product of a few numbers, and
nothing that a policy writes takes long. With fractions, 0.1 + 0.2 is exactly 0.3.
"""

from __future__ import annotations

import ast
import re
from fractions import Fraction

MAX_LENGTH = 120
MAX_DIGITS = 15
"""The most digits of a number, and of a result before its point."""
SIGNIFICANT = 6
_ALLOWED = re.compile(r"[0-9.+\-*/() ]+")
_LONG = re.compile(rf"[0-9.]{{{MAX_DIGITS + 2},}}")


LABEL = re.compile(r"[A-Za-z]+(?: [A-Za-z]+)*")
_LABELS = re.compile(rf"(?<![^ (*/+-]){LABEL.pattern} (?=-?[0-9])")


class Refused(ValueError):
    """An expression without a value. The text says why."""


def evaluate(expression: str) -> Fraction:
    """Return the value of an expression such as "(482130 - 455210) / 455210". Raises Refused."""
    text = expression.strip()
    if len(text) > MAX_LENGTH:
        raise Refused(f"the expression is longer than {MAX_LENGTH} characters")
    text = _LABELS.sub("", text)
    if not _ALLOWED.fullmatch(text):
        raise Refused(
            "only digits, a point, + - * / and parentheses are known, and words before a number; write 1234567.8 "
            "without commas"
        )
    if _LONG.search(text):
        raise Refused(f"a number has more than {MAX_DIGITS} digits")
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise Refused("this is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise Refused("a division by zero") from None
    if abs(value) >= 10**MAX_DIGITS:
        raise Refused(f"the result has more than {MAX_DIGITS} digits")
    return value


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(repr(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left) / _value(right)
        case _:
            raise Refused("only + - * / and parentheses are known")


def plain(value: int | Fraction) -> str:
    """Write a number without an exponent: exactly if 12 decimals are enough, else with SIGNIFICANT
    digits."""
    if value.denominator == 1:
        return str(value.numerator)
    exact = Fraction(value)
    places = next((n for n in range(13) if (exact * 10**n).denominator == 1), None)
    if places is None:
        places = max(0, SIGNIFICANT - _size(abs(exact)))
    digits = round(exact * 10**places)
    text = f"{abs(digits):0{places + 1}d}"
    text = f"{text[:-places]}.{text[-places:]}".rstrip("0").rstrip(".") if places else text
    return f"-{text}" if digits < 0 else text


def _size(value: Fraction) -> int:
    """Count the digits before the point, or the zeros behind it: 3 for 482.1, -2 for 0.0051."""
    if value >= 1:
        return len(str(value.numerator // value.denominator))
    zeros = 0
    while 0 < value * 10 < 1:
        value, zeros = value * 10, zeros + 1
    return -zeros
