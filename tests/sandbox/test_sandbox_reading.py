"""What hostile code leaves in a folder leads no reader on the host astray."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rft.sandbox.reading import Entry, Refusal, check_folder, list_files, read_file, write_file


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "inside"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "file").write_text("content")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "links").symlink_to(outside)
    (folder / "here").symlink_to("a")
    os.mkfifo(folder / "pipe")
    with open(folder / "huge", "wb") as huge:
        huge.truncate(2**40)
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(folder / "socket"))
    return folder


@pytest.fixture
def handle(inside: Path) -> Iterator[int]:
    opened = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def test_a_regular_file_is_read(handle: int) -> None:
    assert read_file(handle, "a/file") == b"content"
    assert read_file(handle, "./a//file", max_bytes=7) == b"content"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("link", "is a link, which is not followed"),
        ("links/secret", "through a link"),
        ("here/file", "through a link"),
        ("pipe", "is a pipe, not a regular file"),
        ("socket", "is a socket"),
        ("huge", "has 1,099,511,627,776 bytes; at most 104,857,600 are read"),
        ("a", "is a folder, not a regular file"),
        ("missing", "does not exist"),
        ("a/file/more", "leads through something that is not a folder"),
        ("../outside/secret", "not a path inside the workspace"),
        ("a/../../outside/secret", "not a path inside the workspace"),
        ("/etc/passwd", "not a path inside the workspace"),
        ("", "not a path inside the workspace"),
        (".", "not a path inside the workspace"),
        ("a\0b", "not a path inside the workspace"),
        ("x" * 300, "has too long a name"),
        ("d/" * 70 + "f", "deeper than 64 folders"),
    ],
)
def test_anything_else_is_refused_at_once(handle: int, path: str, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        read_file(handle, path)


def test_a_file_one_byte_too_long_is_refused(handle: int) -> None:
    with pytest.raises(Refusal, match="has 7 bytes; at most 6 are read"):
        read_file(handle, "a/file", max_bytes=6)


@pytest.mark.parametrize("path", ["link", "pipe", "socket", "huge", "new", "x/y/new"])
def test_a_write_replaces_what_had_the_name(handle: int, inside: Path, outside: Path, path: str) -> None:
    write_file(handle, path, b"mine")
    assert (inside / path).read_bytes() == b"mine"
    assert not (inside / path).is_symlink()
    assert (outside / "secret").read_text() == "secret"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("links/new", "through a link"),
        ("a", "is a folder"),
        ("a/file/new", "not a folder"),
        ("../new", "not a path inside"),
    ],
)
def test_a_write_that_leads_elsewhere_is_refused(handle: int, inside: Path, outside: Path, path: str, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        write_file(handle, path, b"mine")
    assert os.listdir(outside) == ["secret"]
    assert not [name for name in os.listdir(inside) if name.endswith(".part")]


def test_a_listing_names_links_and_follows_none(handle: int) -> None:
    assert list_files(handle) == [
        Entry("a", "folder", 0),
        Entry("a/file", "file", 7),
        Entry("here", "link", 0),
        Entry("huge", "file", 2**40),
        Entry("link", "link", 0),
        Entry("links", "link", 0),
        Entry("pipe", "other", 0),
        Entry("socket", "other", 0),
    ]
    assert list_files(handle, "a") == [Entry("a/file", "file", 7)]
    with pytest.raises(Refusal, match="through a link"):
        list_files(handle, "links")
    with pytest.raises(Refusal, match="more than 3 names"):
        list_files(handle, max_files=3)


def test_a_folder_to_start_in(handle: int, inside: Path) -> None:
    assert [check_folder(handle, path) for path in (".", "", "a", "./a/")] == ["", "", "a", "a"]
    (inside / "a").chmod(0o600)
    with pytest.raises(Refusal, match="mode that forbids it"):
        check_folder(handle, "a")


def test_names_that_change_while_they_are_read_lead_nowhere(handle: int, inside: Path, outside: Path) -> None:
    """The folder on the way is swapped for a link to the host's, over and over."""
    (inside / "race").mkdir()
    (inside / "race" / "secret").write_text("mine")
    (inside / "other").symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(inside / "race", inside / "aside")
            os.rename(inside / "other", inside / "race")
            os.rename(inside / "race", inside / "other")
            os.rename(inside / "aside", inside / "race")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(3000):
            try:
                seen.add(read_file(handle, "race/secret"))
            except Refusal:
                seen.add(b"refused")
    finally:
        done.set()
        thread.join()
    assert seen <= {b"mine", b"refused"}
