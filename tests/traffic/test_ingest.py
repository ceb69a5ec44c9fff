"""A log becomes a snapshot: every row is a conversation or is counted, whatever stands in the log;
and neither the number of processes nor a kill changes a byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rft import config, process
from rft.errors import ConfigError, UserError
from rft.reports import Manifest
from rft.traffic import blocks, reading
from rft.traffic.ingest import ingest


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"order {number}"}, {"role": "assistant", "content": "done"}]
    return {"conversation_id": f"c-{number}", "time": "2026-03-02T08:14:05Z", "messages": messages} | changes


def lines(*rows: Any) -> bytes:
    return b"".join((item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in rows)


def made(place: Path, content: bytes, **settings: Any) -> Path:
    (place / "window.jsonl").write_bytes(content)
    section = config.Traffic.model_validate({"min_conversations": 1, "processes": 1} | settings)
    return ingest("window.jsonl", section, place, place / "snapshots")


def manifest(place: Path, content: bytes, **settings: Any) -> Manifest:
    found = reading.manifest(made(place, content, **settings), verify=True)
    assert found.num_rows == found.num_conversations + reading.num_rejected(found)
    return found


def test_a_log_is_ingested_once_and_read_back(tmp_path: Path) -> None:
    content = lines(row(1, latency_s=2, tool_errors=0, feedback=["a"]), row(2, time="2026-03-02T09:14:05.5+02:00"))
    folder = made(tmp_path, content)
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert made(tmp_path, content) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [folder.name]
    first, second = reading.conversations(folder)
    assert first.model_dump() == row(1, latency_s=2.0, tool_errors=0, feedback=["a"])
    assert second.time == "2026-03-02T07:14:05.500000Z"
    assert [found.conversation_id for found in reading.conversations(folder, graded=True)] == ["c-1"]
    assert [found.conversation_id for found in reading.conversations(folder, ids=["c-2"])] == ["c-2"]


BAD: dict[str, tuple[bytes, dict[str, int], str]] = {
    "truncated last line": (b'{"conversation_id": "c', {"cut off": 1}, "the file is cut off in this line"),
    "invalid UTF-8": (b'{"conversation_id": "\xff"}\n', {"not UTF-8": 1}, "not UTF-8: byte 22 of the line"),
    "NUL bytes": (b"\0\0\0\n", {"not JSON": 1}, "not JSON"),
    "NaN": (lines(row(2, latency_s=float("nan"))), {"not JSON": 1}, "NaN is not a JSON number"),
    "Infinity": (lines(row(2, ignored=float("-inf"))), {"not JSON": 1}, "-Infinity is not a JSON number"),
    "a trailing comma": (json.dumps(row(2)).encode()[:-1] + b",}\n", {"not JSON": 1}, "not JSON"),
    "half a surrogate pair": (lines(row(2, feedback="\ud800")), {"not JSON": 1}, "half of a surrogate pair"),
    "a number beyond all": (
        json.dumps(row(2, feedback=0)).encode()[:-2] + b"1e999}\n", {"not JSON": 1}, "too large"),
    "nesting": (
        json.dumps(row(2, feedback=0)).encode()[:-2] + b"[" * 9000 + b"]" * 9000 + b"}\n", {"not JSON": 1}, "depth"),
    "not an object": (b"[1]\n3\nnull\n", {"not JSON": 3}, "expected a JSON object"),
    "no id": (lines(row(2, conversation_id="")), {"conversation_id": 1}, 'conversation_id is ""'),
    "an id of another type": (lines(row(2, conversation_id=7)), {"conversation_id": 1}, "conversation_id is 7"),
    "a time without zone": (lines(row(2, time="2026-03-02T08:14:05")), {"time": 1}, "an ISO 8601 time with its zone"),
    "a day that is none": (lines(row(2, time="2026-02-30T08:14:05Z")), {"time": 1}, "2026-02-30"),
    "a number as text": (lines(row(2, latency_s="3.1")), {"latency_s": 1}, 'latency_s is "3.1"; expected a number'),
    "a truth value": (lines(row(2, latency_s=True)), {"latency_s": 1}, "latency_s is true"),
    "half an error": (lines(row(2, tool_errors=0.5)), {"tool_errors": 1}, "tool_errors is 0.5"),
    "no messages": (lines(row(2, messages=[])), {"messages": 1}, "messages is []"),
    "a role that is none": (lines(row(2, messages=[{"role": "bot"}])), {"messages": 1}, "messages[0] is"),
    "content of another type": (
        lines(row(2, messages=[{"role": "user", "content": 3}])), {"messages": 1}, "messages[0].content is 3"),
    "arguments that are not text": (
        lines(row(2, messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}])),
        {"messages": 1}, "messages[0].tool_calls is"),
    "other content under an id": (
        lines(row(1, messages=[{"role": "user", "content": "else"}])), {"other content": 1},
        "conversation_id 'c-1' was met before, at window.jsonl:1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_counted_and_named_and_costs_only_itself(name: str, tmp_path: Path) -> None:
    content, rejected, why = BAD[name]
    found = manifest(tmp_path, lines(row(1)) + content)
    assert found.rejected == rejected
    assert found.num_conversations == 1
    assert (found.unread[0].source, found.unread[0].line) == ("window.jsonl", 2)
    assert why in found.unread[0].why


FINE: dict[str, bytes] = {
    "no line break at the end": lines(row(1), row(2)).rstrip(),
    "CRLF": lines(row(1), row(2)).replace(b"\n", b"\r\n"),
    "blank lines": b"\n  \n" + lines(row(1)) + b"\r\n" + lines(row(2)) + b"\n",
    "a byte order mark": b"\xef\xbb\xbf" + lines(row(1), row(2)),
    "parts of text": lines(row(1), row(2, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}]}])),
    "a message without content": lines(row(1), row(2, messages=[{"role": "user"}])),
    "NUL as an escape": lines(row(1), row(2, messages=[{"role": "user", "content": "a\0b"}])),
    "a huge whole number": lines(row(1), row(2, feedback=10**30)),
    "a key twice: the last counts": lines(row(1), b'{"conversation_id": "c-1",' + json.dumps(row(2)).encode()[1:]),
    "a clock that runs backwards": lines(row(1, time="2026-03-09T08:14:05Z"), row(2)),
}


@pytest.mark.parametrize("name", FINE)
def test_what_only_looks_odd_is_read(name: str, tmp_path: Path) -> None:
    found = manifest(tmp_path, FINE[name])
    assert (found.num_conversations, found.rejected) == (2, {})
    assert found.first == "2026-03-02T08:14:05Z"


def test_one_conversation_is_a_snapshot_but_a_window_asks_for_more(tmp_path: Path) -> None:
    assert manifest(tmp_path, lines(row(1))).num_conversations == 1
    what = r"window.jsonl: 1 conversation, traffic.min_conversations asks for 50. 1 row of 2 were rejected; the first: "
    with pytest.raises(UserError, match=what):
        made(tmp_path, lines(row(1), b"oops"), min_conversations=50)
    with pytest.raises(UserError, match=r"Fix these rows, or take a longer window\.$"):
        made(tmp_path, lines(row(1), b"oops"), min_conversations=50)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_window_is_an_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"0 conversations, .* Take a longer window"):
        made(tmp_path, content)


def test_a_line_that_is_too_long_is_skipped_wherever_it_stands(tmp_path: Path) -> None:
    long = json.dumps(row(2, ignored="x" * (3 << 20))).encode()
    found = manifest(tmp_path, lines(long, row(1), long, row(3)) + long, max_line_mb=1)
    assert (found.num_conversations, found.rejected) == (2, {"too long": 3})
    assert [unread.line for unread in found.unread] == [1, 3, 5]


def test_another_log_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"but traffic.sha256 says 00"):
        made(tmp_path, lines(row(1)), sha256="00")
    assert manifest(tmp_path, lines(row(1)), sha256=manifest(tmp_path, lines(row(1))).sha256)


def test_units_and_columns_are_looked_up_by_key_and_by_path(tmp_path: Path) -> None:
    some = [
        row(1, user={"id": "ada", "age": 30}, tier="gold"),
        row(2, **{"user.id": "by its exact key"}, user={"id": 7, "age": "old"}, tier=True),
        row(3, user={"id": 8}, messages=[{"role": "user"}]),
        row(4),
    ]
    folder = made(tmp_path, lines(*some), unit="user.id", columns={"user.age": "number", "tier": "category"})
    table = [found for batch in reading.batches(folder) for found in batch.to_pylist()]
    assert [found["unit"] for found in table] == ["ada", "by its exact key", "8", None]
    assert [found["own_user.age"] for found in table] == [30.0, None, None, None]
    assert [found["own_tier"] for found in table] == ["gold", "true", None, None]
    assert reading.manifest(folder).rejected == {"no tier": 2, "no unit": 1, "no user.age": 3}
    with pytest.raises(ConfigError, match=r"traffic.unit = account: no row of the log has it"):
        made(tmp_path, lines(*some), unit="account")


def test_files_are_one_window_and_unknown_keys_are_counted(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "b.jsonl").write_bytes(lines(row(3, extra=1), b"oops"))
    (tmp_path / "logs" / "a.jsonl").write_bytes(lines(row(1, extra=1, other=2), row(2)))
    folder = ingest("logs", config.Traffic(min_conversations=1), tmp_path, tmp_path / "snapshots")
    found = reading.manifest(folder)
    assert [(source.name, source.num_rows) for source in found.sources] == [("logs/a.jsonl", 2), ("logs/b.jsonl", 2)]
    assert (found.unread[0].source, found.unread[0].line) == ("logs/b.jsonl", 2)
    assert found.ignored_keys == {"extra": 2, "other": 1}
    assert [c.conversation_id for c in reading.conversations(folder)] == ["c-1", "c-2", "c-3"]
    assert len(found.parts) == 1


# -- nothing is dropped silently -------------------------------------------------------------------
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
odd = st.fixed_dictionaries(
    {}, optional={"conversation_id": st.sampled_from(["c-1", "c-2"]) | anything, "messages": anything, "time": anything}
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=20) | odd.map(lambda changes: lines(row(1, **changes)).rstrip()), max_size=8))
def test_rows_are_conversations_or_are_counted(tmp_path: Path, found: list[bytes]) -> None:
    manifest(tmp_path, lines(row(9), *found))


# -- bytes -----------------------------------------------------------------------------------------
def log(count: int) -> bytes:
    """Write a log in which a seventh of the rows is repeated, bad or goes on."""
    rows: list[Any] = []
    for n in range(count):
        words = " ".join(f"word{(n * k) % 97}" for k in range(30))
        rows.append(row(n, user=f"u{n % 50}", messages=[{"role": "user", "content": words}]))
        if n % 21 == 0:
            rows.append(rows[n // 2])
        if n % 21 == 7:
            rows.append(b'{"conversation_id": ')
        if n % 21 == 14:
            more = [*rows[-1]["messages"], {"role": "assistant", "content": "more"}]
            rows.append(rows[-1] | {"messages": more})
    return lines(*rows)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIZE", 100_000)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for processes in (1, 2, 3):
        place = tmp_path / str(processes)
        place.mkdir()
        found.append(content(made(place, log(2000), unit="user", processes=processes)))
    assert len(found[0]) > 5
    assert found[0] == found[1] == found[2]


KILLED = """
import sys
from pathlib import Path
from rft import config
from rft.traffic import blocks
from rft.traffic.ingest import ingest
blocks.SIZE = 100_000
place = Path(sys.argv[1])
section = config.Traffic(min_conversations=1, processes=2, unit="user")
print(ingest("window.jsonl", section, place, place / "snapshots"))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_a_killed_ingest_goes_on_and_writes_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, killed):
        place.mkdir()
    expected = content(made(whole, log(4000), unit="user"))
    (killed / "window.jsonl").write_bytes(log(4000))
    run = [sys.executable, "-P", "-c", KILLED, str(killed)]
    with subprocess.Popen(run, env=os.environ | {"PYTHONPATH": str(process.ROOT)}, start_new_session=True) as popen:
        deadline = time.monotonic() + 30
        while len(list(killed.glob("snapshots/.work-*/staged/*.json"))) < 3:
            assert time.monotonic() < deadline
            assert popen.poll() is None
            time.sleep(0.005)
        os.kill(popen.pid, signal.SIGKILL)
    (staged,) = killed.glob("snapshots/.work-*/staged")
    before = {path.name: path.stat().st_mtime_ns for path in staged.glob("*.json")}
    assert 3 <= len(before) < len(expected) - 1
    says: list[str] = []
    section = config.Traffic(min_conversations=1, processes=1, unit="user")
    folder = ingest("window.jsonl", section, killed, killed / "snapshots", says.append)
    assert content(folder) == expected


def test_two_agents_read_the_same_log_at_once_and_both_get_its_snapshot(tmp_path: Path) -> None:
    """The first tells as it goes; the second begins meanwhile, and waits for it."""
    (tmp_path / "window.jsonl").write_bytes(log(40))
    section, into = config.Traffic(min_conversations=1, processes=1, unit="user"), tmp_path / "snapshots"
    waits, said = threading.Event(), list[str]()

    def hear(line: str) -> None:
        said.append(line)
        if line.startswith("another process reads the same log"):
            waits.set()

    with ThreadPoolExecutor() as pool:
        begun: list[Future[Path]] = []

        def meanwhile(line: str) -> None:
            if not begun:
                begun.append(pool.submit(ingest, "window.jsonl", section, tmp_path, into, hear))
                assert waits.wait(30)

        first = ingest("window.jsonl", section, tmp_path, into, meanwhile)
        assert begun[0].result(30) == first
    assert said == ["another process reads the same log: waiting for its snapshot"]
    assert [path.name for path in into.iterdir()] == [first.name]
