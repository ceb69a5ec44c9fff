"""A file around the ledger that is cut off, changed, not ours or not to be read is named with what
to do, not met with a traceback; a kill leaves nothing; reading steps nothing back.

Real files, real users' rights, real kills.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ledger_world
import pytest
from ledger_world import append

from flows import cli
from rft.errors import UserError
from tasks.ledger import book, chain, entry, keys, memory
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.git import GitError
from tasks.runs.records import RunRecord

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    clone = ledger_world.make_clone(tmp_path_factory.mktemp("ledger") / "clone")
    for name in ("dvc.yaml", "params.yaml", ".dvc/config"):
        (clone.root / name).parent.mkdir(exist_ok=True)
        (clone.root / name).write_text("")
    append(clone)
    return clone


@pytest.fixture
def clone(template: Clone, tmp_path: Path) -> Clone:
    return Clone(Path(shutil.copytree(template.root, tmp_path / "clone")))


# -- files that are not as they were written -------------------------------------------------------
def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def noise(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\0")


def folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def later(file: Path) -> None:
    file.write_text(file.read_text().replace('{"seen":{', '{"seen":{"more":1,'))


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("keys/machine", cut, r"machine: not a readable SSH key.*or delete it and enrol a new one: .*people add"),
        ("keys/machine", emptied, r"machine: not a readable SSH key.*Restore it, with mode 600"),
        ("keys/machine", lambda file: file.chmod(0o644), "bad permissions.*Restore it, with mode 600"),
        ("keys/machine", folder, "machine: Is a directory.*move it away"),
        ("ledger/seen.json", cut, r"seen\.json: .*cut off or changed.*delete it"),
        ("ledger/seen.json", emptied, r"seen\.json: .*cut off or changed.*delete it"),
        ("ledger/seen.json", later, r"seen\.json: seen\.more: .*a later version of agent-rft wrote it: then use that"),
        ("ledger/seen.json", noise, r"seen\.json: .*cut off or changed.*delete it"),
        ("ledger/seen.json", folder, r"seen\.json: Is a directory.*Move away"),
        ("../infra/ledger.yaml", noise, r"infra/ledger\.yaml: not YAML.*git checkout infra/ledger\.yaml"),
        ("../infra/ledger.yaml", folder, r"infra/ledger\.yaml: Is a directory.*git checkout infra/ledger\.yaml"),
    ],
)
def test_file_that_is_not_as_it_was_written_is_named(
    clone: Clone, name: str, how: Callable[[Path], None], message: str
) -> None:
    file = clone.state / name
    file.parent.mkdir(exist_ok=True)
    how(file)
    with pytest.raises(UserError, match=message):
        book.read(clone)
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    memory.path(clone).unlink(missing_ok=True)
    assert book.read(clone).state.number == 2, "the remedy holds"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("dvc.lock", "stages: [", r"dvc\.lock of revision .* not as a run records it \(ParserError"),
        ("dvc.lock", "- a", r"dvc\.lock of revision .* not as a run records it \(AttributeError"),
        (
            "dvc.lock",
            "stages: {gate: {outs: [{path: a}]}}",
            r"dvc\.lock of revision .*KeyError: 'md5'.*a new run",
        ),
        ("dvc.lock", "", r"dvc\.lock of revision .* names no data/policy: .*Start a new run"),
        ("params.yaml", "a: [", r"params\.yaml of revision .* not as a run records it \(ParserError"),
        ("params.yaml", "", r"params\.yaml of revision .* not as a run records it \(KeyError: 'recipe'"),
    ],
)
def test_revision_that_was_changed_by_hand_is_named(clone: Clone, file: str, text: str, message: str) -> None:
    (clone.root / file).write_text(text)
    clone.git("add", "-A")
    clone.git("commit", "-q", "-m", "a run", "--allow-empty")
    at = Revision(clone, clone.git("rev-parse", "HEAD"))
    with pytest.raises(UserError, match=message):
        at.lay("data/policy", clone.root / "x") if file == "dvc.lock" else at.model


def test_revision_that_is_gone_is_named(clone: Clone) -> None:
    (clone.root / "params.yaml").write_text("recipe: {path: recipes/tiny}\n")
    clone.git("add", "-A")
    clone.git("commit", "-qm", "a run")
    at, tree = Revision(clone, clone.git("rev-parse", "HEAD")), clone.git("rev-parse", "HEAD^{tree}")
    assert (at.model, at.file("none")) == ("tiny", None)
    (clone.root / ".git/objects" / tree[:2] / tree[2:]).unlink()
    for gone in (at, Revision(clone, "e" * 40)):
        with pytest.raises(GitError, match=rf"revision {gone.commit[:10]} is not in this clone's Git.*git fetch CLONE"):
            gone.file("dvc.lock")


def test_what_the_system_refuses_at_the_command_line_is_one_message(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record = clone.runs / "r.json"
    record.mkdir(parents=True)
    monkeypatch.chdir(clone.root)
    assert cli.main(["runs"]) == 3
    assert f"error: {record}: Is a directory, and something else is needed there. Move it" in capfd.readouterr().err


def test_a_read_only_file_system_is_called_that(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(options: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "x.lock")

    monkeypatch.setattr("flows.cli.runs.list.run", refused)
    assert cli.main(["runs"]) == 3
    message = "error: x.lock: Read-only file system. Mount it writable, or work in a clone that lies elsewhere.\n"
    assert capfd.readouterr().err == message


# -- a user who may not read or write --------------------------------------------------------------
def as_plain_user() -> None:
    """Take root's rights over other users' files. Another user has none to lose."""
    libc, drop_from_bounding_set = ctypes.CDLL(None), 24
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)


def rft(clone: Clone, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=clone.root,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=as_plain_user,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="takes rights from root, as Linux can")
@pytest.mark.parametrize(
    ("name", "mode", "code", "message"),
    [
        ("keys/machine", 0, 2, r"keys/machine: Permission denied, .*sudo chown"),
        ("ledger/seen.json", 0, 2, "seen.json: Permission denied. "),
        (".", 0o555, 3, "registry.lock: Permission denied. Work as the user who owns it"),
    ],
)
def test_file_of_another_user_is_named(clone: Clone, name: str, mode: int, code: int, message: str) -> None:
    book.lock(clone).unlink()
    (clone.state / name).chmod(mode)
    done = rft(clone, "ledger")
    (clone.state / name).chmod(0o700)
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    assert message.partition(".*")[0] in done.stderr
    assert message.rpartition(".*")[2] in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="takes rights from root, as Linux can")
def test_runs_are_listed_where_nothing_may_be_written(clone: Clone) -> None:
    common = {"commit": "c" * 40, "edits_sha256": None, "champion_version": 0, "window": "w", "inputs": []}
    named = {"name": "r", "key": "k", "state": "running", "started": "2026-03-01T00:00:00Z", "started_by": "Ada"}
    records.save(clone, RunRecord.model_validate(common | named))
    lock = records.lock(clone, "r")
    lock.touch()
    places = [(lock, 0o444), (clone.runs, 0o555), (clone.state, 0o555)]
    modes = [(path, path.stat().st_mode) for path, _ in places]
    for path, mode in places:
        path.chmod(mode)
    done = rft(clone, "runs")
    for path, mode in reversed(modes):
        path.chmod(mode)
    assert (done.returncode, done.stderr, "(cut off)" in done.stdout) == (0, "", True)
    with records.held(lock):
        assert records.alive(clone, "r")


@pytest.mark.skipif(sys.platform != "linux", reason="takes rights from root, as Linux can")
def test_what_could_not_be_remembered_is_not_appended(clone: Clone) -> None:
    memory.path(clone).parent.chmod(0o500)
    program = (
        "import sys; from pathlib import Path; from ledger_world import append; from tasks.runs.clone import Clone\n"
        "append(Clone(Path(sys.argv[1])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(clone.root)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        preexec_fn=as_plain_user,
        capture_output=True,
        text=True,
        check=False,
    )
    memory.path(clone).parent.chmod(0o700)
    assert "seen.json cannot be written, so nothing is appended" in done.stderr
    assert book.read(clone).state.number == 2


# -- reading changes nothing that somebody else is changing ----------------------------------------
def test_reading_writes_under_the_lock_alone(clone: Clone) -> None:
    memory.path(clone).unlink()
    ahead = clone.git("rev-parse", chain.REF)
    with records.held(book.lock(clone)):
        assert book.read(clone).state.number == 2
        assert not memory.path(clone).exists(), "an append may be writing it right now"
    book.read(clone)
    seen = memory.recall(clone)
    assert seen
    assert (seen.number, clone.git("rev-parse", chain.REF)) == (2, ahead)


def test_reader_that_took_long_does_not_step_back_what_an_append_wrote(clone: Clone) -> None:
    """A read that began before an append, and ends after it."""
    memory.path(clone).unlink()
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tasks.ledger import book, verify\n"
        "from tasks.runs.clone import Clone\n"
        "replay = verify.replay\n"
        "def slowly(*a, **k):\n"
        "    print('reading', flush=True); sys.stdin.readline(); return replay(*a, **k)\n"
        "verify.replay = slowly\n"
        "book.read(Clone(Path(sys.argv[1])))\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with records.held(book.lock(clone)):  # another process acts, as the reader begins
        reader = subprocess.Popen([sys.executable, "-c", program, str(clone.root)], env=environment, **pipes)
        assert reader.stdout
        assert reader.stdin
        assert reader.stdout.readline() == "reading\n"
    append(clone)
    reader.stdin.write("\n")
    reader.stdin.flush()
    reader.communicate()
    assert reader.returncode == 0
    seen = memory.recall(clone)
    assert seen
    assert seen.number == 3


# -- a kill leaves nothing -------------------------------------------------------------------------
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_while_the_machine_key_is_made_leaves_nothing(clone: Clone, tmp_path: Path, when: str) -> None:
    shutil.rmtree(clone.state)
    real, kill = shutil.which("ssh-keygen"), 'case "$*" in *ecdsa*) kill -9 $PPID;; esac\n'
    tool = tmp_path / "bin" / "ssh-keygen"
    tool.parent.mkdir()
    made = f'{real} "$@" || exit\n'
    tool.write_text("#!/bin/sh\n" + (made + kill if when == "after" else kill + made))
    tool.chmod(0o755)
    program = (
        "import sys; from pathlib import Path; from tasks.ledger import keys; from tasks.runs.clone import Clone\n"
        "keys.machine(Clone(Path(sys.argv[1])))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(clone.root)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (keys.folder(clone) / "machine").exists()
    key = keys.machine(clone)
    assert sorted(file.name for file in keys.folder(clone).iterdir()) == ["lock", "machine", "machine.pub"]
    assert keys.sign(key, b"x", keys.COMMIT)
    assert (keys.folder(clone) / "machine.pub").read_text().startswith(key.public)


def test_an_entry_of_a_kind_that_went_names_the_commit_that_reads_it() -> None:
    gone = b'{"act":{"action":"promote","kind":"imported","model":"tiny"},"number":2}'
    with pytest.raises(
        UserError, match=r"ledger commit 12: an entry of kind 'imported' has a format .* commit af656ea"
    ):
        entry.parse(gone, "ledger commit 12")
    with pytest.raises(UserError, match="It is not an entry of the ledger, or a later version's"):
        entry.parse(gone.replace(b"imported", b"unheard"), "ledger commit 12")
