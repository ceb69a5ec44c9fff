"""Files and folders are whole or not there, and one hash names their bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rft import files

KILLED = """
import os, signal
from pathlib import Path
from rft import files
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
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(repository)}, check=False)
    assert path.read_text() == "old"
    files.write_text("new", path, durable=True)
    assert (path.read_text(), sorted(os.listdir(tmp_path))) == ("new", ["a"]), "what a kill left is taken over"


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
    assert files.tree_sha256(tmp_path / "a" / "y") == files.sha256(tmp_path / "a" / "y") == hashlib.sha256(b"1").hexdigest()
