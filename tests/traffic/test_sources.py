"""Files of a log are found wherever they lie, in the same order everywhere, and read whole or up to
where they were cut."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from rft.errors import InfrastructureError, UserError
from rft.traffic import addresses, sources

LINES = b"".join(b'{"n": %d}\n' % n for n in range(200_000))


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def written(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def names(spec: str, root: Path) -> list[str]:
    return [log.name for log in sources.find(spec, root)]


# -- where files lie -------------------------------------------------------------------------------
def test_a_folder_is_all_files_below_it_but_hidden_ones(tmp_path: Path) -> None:
    written(tmp_path, "logs/b.jsonl", "logs/a/z.jsonl", "logs/.hidden", "logs/.git/x.jsonl", "other.jsonl")
    assert names("logs", tmp_path) == ["logs/a/z.jsonl", "logs/b.jsonl"]


def test_a_pattern_is_relative_to_the_root_or_absolute(tmp_path: Path) -> None:
    written(tmp_path, "logs/1.jsonl", "logs/2.jsonl", "logs/deep/3.jsonl", "logs/notes.txt")
    assert names("logs/*.jsonl", tmp_path) == ["logs/1.jsonl", "logs/2.jsonl"]
    assert names("logs/**/*.jsonl", tmp_path) == ["logs/1.jsonl", "logs/2.jsonl", "logs/deep/3.jsonl"]
    assert names(f"{tmp_path}/logs/*.jsonl", Path("/elsewhere")) == [f"{tmp_path}/logs/{n}.jsonl" for n in (1, 2)]


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path: Path) -> None:
    written(tmp_path, "window[1].jsonl", "window1.jsonl")
    assert names("window[1].jsonl", tmp_path) == ["window[1].jsonl"]


def test_folders_behind_links_are_read_once_and_circles_end(tmp_path: Path) -> None:
    written(tmp_path, "store/1.jsonl", "logs/2.jsonl")
    (tmp_path / "logs/linked").symlink_to(tmp_path / "store")
    (tmp_path / "logs/circle").symlink_to(tmp_path / "logs")
    assert names("logs", tmp_path) == ["logs/2.jsonl", "logs/linked/1.jsonl"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs/pipe")
    for spec, message in (
        ("missing.jsonl", r"missing\.jsonl: there is no such file"),
        ("empty", "'empty' names no file"),
        ("empty/*.jsonl", "names no file"),
        ("logs", "pipe: is not a file that can be read"),
    ):
        with pytest.raises(UserError, match=message):
            sources.find(spec, tmp_path)


def test_a_log_travels_to_another_process(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    log = pickle.loads(pickle.dumps(sources.find("a.jsonl", tmp_path)[0]))
    assert (log.num_bytes, log.sha256(), log.path) == (
        len(LINES),
        hashlib.sha256(LINES).hexdigest(),
        tmp_path / "a.jsonl",
    )


# -- compression -----------------------------------------------------------------------------------
HALF = len(LINES) // 2
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
COMPRESSED = {
    "plain": LINES,
    "gzip": gzip.compress(LINES),
    "gzip of two members": gzip.compress(LINES[:HALF]) + gzip.compress(LINES[HALF:]),
    "gzip, padded": gzip.compress(LINES) + b"\0" * 512,
    "zstd": zstd(LINES),
    "zstd of two frames": zstd(LINES[:HALF]) + zstd(LINES[HALF:]),
    "zstd with a frame to skip": SKIPPABLE + zstd(LINES),
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compression_is_recognized_by_content(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log").write_bytes(COMPRESSED[kind])
    (log,) = sources.find("log", tmp_path)
    assert log.sha256() == hashlib.sha256(COMPRESSED[kind]).hexdigest()
    with log.open() as stream:
        assert stream.read() == LINES
        assert stream.cut == ""
    with log.open() as stream:  # in pieces, of which only the last is short
        pieces = list(iter(lambda: stream.read(999_983), b""))
    assert b"".join(pieces) == LINES
    assert {len(piece) for piece in pieces[:-1]} == {999_983}


@pytest.mark.parametrize("kind", ["gzip", "gzip of two members", "zstd", "zstd of two frames"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.999])
def test_a_cut_file_gives_what_was_before_the_cut_and_says_so(tmp_path: Path, kind: str, share: float) -> None:
    whole = COMPRESSED[kind]
    (tmp_path / "log").write_bytes(whole[: int(len(whole) * share)])
    with sources.find("log", tmp_path)[0].open() as stream:
        found = stream.read()
    assert LINES.startswith(found)
    assert len(found) > share * len(LINES) * 0.5
    assert stream.cut.startswith("cut off: the ")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_broken_file_gives_what_was_before(tmp_path: Path, kind: str) -> None:
    whole = COMPRESSED[kind]
    (tmp_path / "log").write_bytes(whole[: HALF // 20] + b"garbage" * 40 + whole[HALF // 20 :])
    with sources.find("log", tmp_path)[0].open() as stream:
        found = stream.read()
    assert len(found) < len(LINES)
    assert stream.cut.startswith("broken: the ")


@pytest.mark.parametrize("content", [b"", b"\x1f", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"{"])
def test_the_smallest_files_do_not_raise(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    with sources.find("log", tmp_path)[0].open() as stream:
        found = stream.read()
    assert found == content or stream.cut


# -- addresses -------------------------------------------------------------------------------------
@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    for name in ("logs/2.jsonl", "logs/1.jsonl", "logs/deep/3.jsonl", "logs/.hidden"):
        files.pipe(f"/{name}", name.encode())
    yield files
    files.rm("/logs", recursive=True)


def test_an_address_is_a_file_a_folder_or_a_pattern(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    everything = [f"memory://logs/{name}" for name in ("1.jsonl", "2.jsonl", "deep/3.jsonl")]
    found = [name.replace("memory:///", "memory://") for name in names("memory://logs", tmp_path)]
    assert found == everything
    assert len(names("memory://logs/*.jsonl", tmp_path)) == 2
    assert len(names("memory://logs/**", tmp_path)) == 3
    (log,) = sources.find("memory://logs/1.jsonl", tmp_path)
    assert (log.num_bytes, log.path) == (len("logs/1.jsonl"), None)
    with log.open() as stream:
        assert stream.read() == b"logs/1.jsonl"


def test_an_address_that_names_nothing_is_the_users_to_fix(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for spec in ("memory://logs/9.jsonl", "memory://logs/*.csv"):
        with pytest.raises(UserError, match=r"no such file|names no file"):
            sources.find(spec, tmp_path)


def test_a_missing_driver_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"driver for s3 is missing.*s3fs"):
        sources.find("s3://bucket/logs", tmp_path)
    with pytest.raises(UserError, match="Use an address that fsspec has a driver for"):
        sources.find("nonsense://bucket/logs", tmp_path)


class Web:
    """A web server with one file, which may fail. `fails`: how many of the next requests it breaks
    off in the middle."""

    def __init__(self) -> None:
        self.content = LINES
        self.fails = 0
        self.status = 200
        self.has_ranges = True
        self.says_size = True
        self.asked = 0
        self.url = ""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    here = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            here.asked += 1
            self._answer(True)

        def _answer(self, has_body: bool) -> None:
            start, end, status = 0, len(here.content), here.status
            wanted = self.headers.get("range")
            if wanted and here.has_ranges and status == 200:
                first, last = wanted.removeprefix("bytes=").split("-")
                start, end, status = int(first), min(int(last or end) + 1, end), 206
            body = here.content[start:end] if here.status == 200 else b""
            self.send_response(status)
            if here.has_ranges:
                self.send_header("accept-ranges", "bytes")
            if status == 206:
                self.send_header("content-range", f"bytes {start}-{end - 1}/{len(here.content)}")
            if here.says_size:
                self.send_header("content-length", str(len(body)))
            else:
                self.send_header("connection", "close")
            self.end_headers()
            if has_body and here.fails and here.status == 200:
                here.fails -= 1
                body = body[: len(body) // 2]
                self.close_connection = True
            if has_body:
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(addresses, "PAUSE_S", 0.01)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here.url = f"http://127.0.0.1:{server.server_port}"
    yield here
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("fails", [0, 2])
def test_a_web_server_that_breaks_off_is_asked_again(web: Web, tmp_path: Path, fails: int, has_ranges: bool) -> None:
    web.has_ranges = has_ranges
    (log,) = sources.find(f"{web.url}/window.jsonl?token=secret", tmp_path)
    assert (log.name, log.num_bytes) == (f"{web.url}/window.jsonl", len(LINES))
    assert "secret" not in repr(log)
    web.fails = fails
    with log.open() as stream:
        assert stream.read() == LINES
    assert log.sha256() == hashlib.sha256(LINES).hexdigest()


def test_a_web_server_that_does_not_say_the_size(web: Web, tmp_path: Path) -> None:
    web.says_size = web.has_ranges = False
    (log,) = sources.find(f"{web.url}/window.jsonl", tmp_path)
    assert log.num_bytes == len(LINES)


def test_a_store_that_is_gone_is_no_fault_of_the_user(web: Web, tmp_path: Path) -> None:
    (log,) = sources.find(f"{web.url}/window.jsonl?token=secret", tmp_path)
    web.status = 503
    web.asked = 0
    with (
        log.open_raw() as raw,
        pytest.raises(InfrastructureError, match=f"^{web.url}/window.jsonl: .*3 tries") as error,
    ):
        raw.read(10)
    assert "secret" not in str(error.value)
    assert 3 <= web.asked <= 6


@pytest.mark.parametrize(("status", "message"), [(403, "may not be read"), (404, "there is no such file")])
def test_what_the_user_can_fix_is_not_tried_again(web: Web, tmp_path: Path, status: int, message: str) -> None:
    web.status = status
    with pytest.raises(UserError, match=message):
        sources.find(f"{web.url}/window.jsonl", tmp_path)
    assert web.asked <= 2


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "PAUSE_S", 0.01)
    with pytest.raises(InfrastructureError, match="Is it reachable"):
        sources.find("http://127.0.0.1:9/window.jsonl", tmp_path)
