"""Files and folders are whole or not there, and one hash names their bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft import files
from rft.errors import InfrastructureError, UserError

KILLED = """
import os, signal
from pathlib import Path
from typing import Any
from rft import files
from rft.errors import UserError
with files.replacing(Path("a"), durable=True) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "a"
    files.write_text("old", path)
    with pytest.raises(UnicodeEncodeError):
        files.write_text("half \ud800", path)
    assert (path.read_text(), sorted(os.listdir(tmp_path))) == ("old", ["a"])
    subprocess.run(
        [sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(repository)}, check=False
    )
    assert path.read_text() == "old"
    files.write_text("new", path, durable=True)
    assert (path.read_text(), sorted(os.listdir(tmp_path))) == ("new", ["a"]), "what a kill left is taken over"


def test_what_is_derived_is_made_once_and_whole(tmp_path: Path) -> None:
    path, made = tmp_path / "cache" / "index", []

    def write(part: Path) -> None:
        made.append(part)
        part.write_text("rows")
        if len(made) == 1:
            raise ValueError("killed half-way")

    with pytest.raises(ValueError, match="half-way"):
        files.kept(path, write)
    assert os.listdir(path.parent) == []
    assert [files.kept(path, write).read_text() for _ in range(3)] == ["rows"] * 3
    assert (len(made), os.listdir(path.parent)) == (2, ["index"])


def test_what_cannot_be_kept_says_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InfrastructureError, match=r"cache/index: cannot be written \(.+\)\. Free some space, or run"):
        files.kept(tmp_path / "cache" / "index", lambda part: part.write_text("rows"))


def test_a_folder_that_is_missing_is_made_and_what_is_there_is_deleted(tmp_path: Path) -> None:
    files.write_text("x", tmp_path / "b" / "c" / "d")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    for path in (tmp_path / "link", tmp_path / "nowhere", tmp_path / "b" / "c" / "d"):
        files.delete(path)
    assert (tmp_path / "b" / "c").is_dir()
    files.delete(tmp_path / "b")
    assert os.listdir(tmp_path) == []


def test_a_folder_s_hash_is_of_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    first = files.tree_sha256(tmp_path / "a")
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("whatever Python left there")
    assert files.tree_sha256(tmp_path / "a") == first
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    assert files.tree_sha256(tmp_path / "a") != first
    assert (
        files.tree_sha256(tmp_path / "a" / "y")
        == files.sha256(tmp_path / "a" / "y")
        == hashlib.sha256(b"1").hexdigest()
    )


# -- the canonical form of a JSON value ------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "written"),
    [
        (  # RFC 8785, section 3.2.2
            {
                "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
                "literals": [None, True, False],
            },
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
        ),
        (  # section 3.2.3: keys in the order of their UTF-16 code units, in which an emoji precedes U+FB33
            {
                "\u20ac": "Euro Sign",
                "\r": "Carriage Return",
                "\ufb33": "Hebrew Letter Dalet With Dagesh",
                "1": "One",
                "\U0001f600": "Emoji: Grinning Face",
                "\u0080": "Control",
                "\u00f6": "Latin Small Letter O With Diaeresis",
            },
            '{"\\r":"Carriage Return","1":"One","\u0080":"Control","ö":"Latin Small Letter O With Diaeresis",'
            '"€":"Euro Sign","\U0001f600":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
        ),
        (
            [0.0, -0.0, 1.0, 1, -1.0, 1e21, 999999999999999868928.0, 1e-6, 1e-7, 5e-324],
            "[0,0,1,1,-1,1e+21,999999999999999900000,0.000001,1e-7,5e-324]",
        ),
        (
            (files.LARGEST, -files.LARGEST, 9007199254740992.0, "fièvre"),
            '[9007199254740991,-9007199254740991,9007199254740992,"fièvre"]',
        ),
    ],
)
def test_a_json_value_has_one_form(value: Any, written: str) -> None:
    assert files.canonical(value) == written.encode()
    assert files.digest(value) == hashlib.sha256(written.encode()).hexdigest()
    assert files.canonical(json.loads(written, parse_int=float)) == written.encode(), "and so has what was read back"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"seed": 2**53}, "'seed' = 9007199254740992: JSON keeps integers exact only up to 9007199254740991."),
        (
            {"a": [{"b": -(2**53)}]},
            "'a.0.b' = -9007199254740992: JSON keeps integers exact only up to 9007199254740991.",
        ),
        ({"a": (0.0, float("inf"))}, "'a.1' = inf: not a JSON number."),
        ({"a": {"b": "x\ud800"}}, "'a.b' holds half of a surrogate pair"),
        ({"a": {"x\udfff": 1}}, "'a.x\\udfff' is a key that holds half of a surrogate pair"),
    ],
)
def test_what_has_no_such_form_is_refused_by_its_key(value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        files.digest(value)
    assert str(caught.value).startswith(message)


_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=4)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-files.LARGEST, files.LARGEST) | _FINITE | _TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
        max_leaves=10,
    )
)
def test_a_value_survives_its_canonical_form(value: Any) -> None:
    """However it is written and read again, the form is the same, and so is the value."""
    form = files.canonical(value)
    assert json.loads(form, parse_int=float) == value
    assert files.canonical(json.loads(json.dumps(value, indent=1))) == form
    assert files.canonical(json.loads(form, parse_int=float)) == form
