"""The formula of a multi grader: what it computes, what it refuses, and that it cannot be made to
run or to take long."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.config.formula import MAX_CHARS, Formula, Undefined


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b", 1.25),
        ("a - b * 2", 0.5),
        ("(a - b) * 2", 1.5),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2 ^ 2", -4.0),
        ("2 ^ -1", 0.5),
        ("a / 1e-9", 1e9),
        ("min(a, b, 0.1)", 0.1),
        ("max(a, b)", 1.0),
        ("abs(b - a)", 0.75),
        ("floor(1.9) + ceil(1.1)", 3.0),
        ("exp(0) + log(exp(1)) + sqrt(4)", 4.0),
        ("\n a\n", 1.0),
        ("+a", 1.0),
        ("a ** 2", 1.0),
        ("2 * a * b / max(a + b, 1e-9)", 0.4),
    ],
)
def test_what_it_computes(text: str, value: float):
    assert Formula.read(text).value({"a": 1.0, "b": 0.25}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__import__('os').system('true')", "calls a function that formulas do not have"),
        ("exact.__class__", "'exact.__class__' at character 1 is not allowed"),
        ("a + open", None),  # a name like any other, which no grader has
        ("a if a else b", "is not allowed"),
        ("[a]", "is not allowed"),
        ("a[0]", "is not allowed"),
        ("'a'", "is not allowed"),
        ("True", "is not allowed"),
        ("2j", "is not allowed"),
        ("a < b", "is not allowed"),
        ("a // b", "'a // b' at character 1 is not allowed"),
        ("a % b", "is not allowed"),
        ("lambda: a", "is not allowed"),
        ("(a := 1)", "is not allowed"),
        ("min", "'min' at character 1 is a function. Write min(...)"),
        ("min(a)", "has fewer than two values"),
        ("log(a, 2)", "has 2 values. log takes one"),
        ("max(*a)", "argument with a name or a star"),
        ("max(a, key=b)", "argument with a name or a star"),
        ("a ^ 2 + b.c", "'b.c' at character 9"),
        ("a +", "cannot be read at character"),
        ("", "cannot be read"),
        ("a\x00", "cannot be read"),
        ("1e999", "'1e999' at character 1 is a number too large"),
        ("a + 9 ^ 9 ^ 9", "'9 ^ 9 ^ 9' at character 5 is a number too large"),
        ("a * (1 / 0)", "is a division by zero"),
        ("sqrt(-1)", "no real value"),
        ("(-1) ^ 0.5", "no real value"),
        ("1" * (MAX_CHARS + 1), f"more than {MAX_CHARS:,}"),
        ("-" * 500 + "a", "nested more than"),
        ("(" * 900 + "a" + ")" * 900, "cannot be read"),
    ],
)
def test_what_it_refuses_and_where(text: str, says: str | None):
    if says is None:
        assert Formula.read(text).names == {"a", "open"}
        return
    with pytest.raises(ValueError, match=r".") as caught:
        Formula.read(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["1 / a", "log(a)", "(a - 1) ^ 0.5", "a ^ -1", "exp(1000 + a)", "(a + 10) ^ 400"])
def test_what_only_the_scores_show(text: str):
    formula = Formula.read(text)
    with pytest.raises(Undefined):
        formula.value({"a": 0.0})


def test_the_longest_one_takes_no_time():
    began = time.perf_counter()
    formula = Formula.read("+".join(["a"] * 90))
    assert formula.value({"a": 1.0}) == 90
    for text in ("9^" * 60 + "a", "(" * 90 + "a" + ")" * 90, "min(" * 40 + "a" + ",1)" * 40):
        Formula.read(text)
    assert time.perf_counter() - began < 1


_NUMBERS = st.floats(-100, 100, allow_nan=False).map(lambda number: f"({number!r})")
_FORMULAS = st.recursive(
    _NUMBERS | st.sampled_from(["a", "b"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})")
        | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(_FORMULAS, st.floats(-10, 10), st.floats(-10, 10))
def test_it_is_arithmetic_or_undefined(text: str, a: float, b: float):
    """What Python makes of the same text, or no value where Python has none."""
    try:
        expected = eval(text, {"min": min, "max": max, "a": a, "b": b})
    except ZeroDivisionError:
        expected = math.nan
    try:
        value = Formula.read(text).value({"a": a, "b": b})
    except (Undefined, ValueError):
        # a part without names is refused when it is read, even where it is not the whole
        assert not math.isfinite(expected) or "/" in text
        return
    assert value == pytest.approx(expected)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str):
    with contextlib.suppress(ValueError):
        assert Formula.read(text).text == text
