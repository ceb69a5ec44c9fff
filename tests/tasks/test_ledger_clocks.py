"""Whose clock is wrong: a machine behind the ledger, or off the remote, appends nothing and says
why; what may be appended all the same; and an owner who goes on, for both verifiers.

Real Git, a real folder and a real HTTP server as remotes.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import ledger_world
import pytest
from ledger_world import append, own, silent

from rft.errors import UserError
from tasks.ledger import book, clocks, remote, restart, statement
from tasks.ledger.authorise import Refused
from tasks.ledger.clocks import WrongClock
from tasks.ledger.entry import PolicyChange
from tasks.ledger.keys import Key
from tasks.ledger.policy import SetClocks
from tasks.ledger.remote import Shared
from tasks.runs.clone import Clone

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "verify-ledger.sh"
PAST = "2020-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    return ledger_world.cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def clone(tmp_path: Path, cast: dict[str, Key]) -> Clone:
    made = ledger_world.make_clone(tmp_path / "clone")
    own(made, cast["ada"])
    return made


def at(monkeypatch: pytest.MonkeyPatch, time: str) -> None:
    monkeypatch.setattr(statement, "now", lambda: time)


def seconds_from_now(seconds: float) -> str:
    return statement.later(statement.now(), seconds=seconds)


def set_clocks(clone: Clone, signer: Key, until: str) -> None:
    change = SetClocks(until=until)
    append(clone, PolicyChange(change=change), signer, act="policy", change=change)


def number(clone: Clone) -> int:
    return book.read(clone, report_line=silent).state.number


@pytest.mark.parametrize(("behind_s", "stands"), [(0, True), (240, True), (360, False), (1e8, False)])
def test_a_machine_that_is_behind_the_ledger_appends_nothing(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, behind_s: float, stands: bool
) -> None:
    before, last = number(clone), book.read(clone).state.time
    at(monkeypatch, statement.later(last, seconds=-behind_s))
    if stands:
        assert append(clone).time == last, "time in the ledger never goes back"
        return
    with pytest.raises(
        WrongClock, match=r"this machine's clock says 20.* and the ledger's last entry is of 20"
    ) as error:
        append(clone)
    assert "Set this clock right, then give the same command again." in str(error.value)
    assert error.value.exit_code == 3
    assert number(clone) == before


@pytest.mark.slow
def test_an_owner_goes_on_and_both_verifiers_agree(
    clone: Clone, cast: dict[str, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = book.read(clone).state.time
    at(monkeypatch, PAST)
    with pytest.raises(WrongClock):
        append(clone)
    set_clocks(clone, cast["ada"], statement.later(last, days=1))
    assert append(clone).time == last
    genesis = book.read(clone, reverify=True, report_line=silent).state.genesis
    command = ["sh", str(SCRIPT), str(clone.root), "refs/rft/ledger", genesis]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    set_clocks(clone, cast["ada"], PAST)
    with pytest.raises(WrongClock):
        append(clone)


def test_only_an_owner_does(clone: Clone, cast: dict[str, Key], monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, PAST)
    with pytest.raises(UserError, match="is not enrolled in the ledger"):
        set_clocks(clone, cast["bob"], "2999-01-01T00:00:00Z")
    with pytest.raises(Refused, match="needs a signed statement"):
        append(clone, PolicyChange(change=SetClocks(until="2999-01-01T00:00:00Z")))


def test_a_ledger_without_an_owner_gets_one_and_one_whose_keys_are_lost_is_restarted(
    tmp_path: Path, cast: dict[str, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = ledger_world.make_clone(tmp_path / "nobody")
    append(nobody)
    at(monkeypatch, PAST)
    with pytest.raises(WrongClock):
        append(nobody)
    own(nobody, cast["ada"])
    set_clocks(nobody, cast["ada"], statement.later(book.read(nobody).state.time, days=1))
    append(nobody)
    restart.restart(nobody, "every key is lost", silent)


# -- the remote's clock ----------------------------------------------------------------------------
def test_a_folder_tells_its_time_by_a_new_file(clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.git("init", "-q", "--bare", str(tmp_path / "origin"))
    clone.git("remote", "add", "origin", str(tmp_path / "origin"))
    remote.pin(clone, Shared(remote="origin"), book.read(clone).state.genesis)
    append(clone)
    before = number(clone)
    at(monkeypatch, seconds_from_now(3600))
    with pytest.raises(WrongClock, match=r"the clock of the ledger's remote origin \(infra/ledger.yaml\) says 20"):
        append(clone)
    assert number(clone) == before
    assert [path for path in (tmp_path / "origin").iterdir() if path.name.startswith(".clock")] == []


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server that lets nobody in, and whose clock is what the list says."""
    date: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(401)
            if date:
                self.send_header("Date", date[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}/team/agent.git", date
        finally:
            served.shutdown()
            thread.join()


def test_a_server_tells_its_time_to_whoever_asks(server: tuple[str, list[str]], tmp_path: Path) -> None:
    url, date = server
    assert clocks.of_remote(url, tmp_path) is None, "it says none"
    date.append("Fri, 27 Nov 2026 08:00:05 GMT")
    assert clocks.of_remote(url, tmp_path) == "2026-11-27T08:00:05Z"
    date[0] = "no date"
    assert clocks.of_remote(url, tmp_path) is None


@pytest.mark.parametrize(
    "url", ["git@example.org:team/agent.git", "ssh://example.org/agent.git", "http://127.0.0.1:9/x"]
)
def test_what_says_no_time_is_not_compared(url: str, tmp_path: Path) -> None:
    assert clocks.of_remote(url, tmp_path) is None


def test_a_folder_that_nobody_may_write_to_says_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert clocks.of_remote(f"{tmp_path}/file", tmp_path) is None
    assert clocks.of_remote("/proc", tmp_path) is None
    assert clocks.of_remote(f"file://{tmp_path}", tmp_path) is not None
    assert os.listdir(tmp_path) == ["file"]
