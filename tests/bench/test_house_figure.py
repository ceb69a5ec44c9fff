"""The figure `house`: what is counted as code, and what as a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import house

FILE = '''"""An essay
of two lines."""

import os  # code


def f(
    x,
):
    """Say it."""
    # no code

    return """text
    that is code""", x
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "rft" / "page").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["torch"]\n')
    return tmp_path


def test_code_is_what_is_neither_told_nor_blank(root: Path) -> None:
    (root / "rft/page/a.py").write_text(FILE)
    found = house.measured(root)
    assert (found.code["rft"], found.code["rft/page"], found.docstrings["rft"]) == (6, 6, 3)
    assert (found.longest_file, found.longest_function, found.num_files, found.packages) == (14, 8, 1, 1)


@pytest.mark.parametrize(
    ("one", "other", "files"),
    [
        ("import rft.b", "x = 1", set()),
        ("import rft.b", "from rft.a import x", {"rft.a", "rft.b"}),
        ("from rft import b", "def f():\n    from rft import a", {"rft.a", "rft.b"}),
        ("from . import b", "import typing as t\nif t.TYPE_CHECKING:\n    from .a import x", {"rft.a", "rft.b"}),
        ("from rft.page import b", "from rft.page import x", set()),
    ],
)  # fmt: skip
def test_a_circle_is_one_wherever_the_import_stands(root: Path, one: str, other: str, files: set[str]) -> None:
    (root / "rft/a.py").write_text(one)
    (root / "rft/b.py").write_text(other)
    (root / "rft/page/__init__.py").write_text("x = 1")
    assert {*house.circle(root)} == files


def test_what_grew_does_not_hold(root: Path) -> None:
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text("x = 1\n")
    (root / "rft/a.py").write_text('"""Told."""\nx = 1\n')
    now = house.measured(root)
    parts = {part.name: part.holds for part in house.figure(now, now).parts}
    assert parts["code lines of rft, tasks and flows"]
    assert not parts["code lines of tests"]
