"""What `rft doctor` says of the ledger, against real remotes: a bare repository takes what it is
configured to take."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from flows import cli
from rft import config, doctor
from rft.doctor import Finding
from rft.errors import InfrastructureError
from tasks.ledger import book, chain, checks, keys, remote
from tasks.runs import workspace
from tasks.runs.clone import Clone

PROBE = "rft-ledger-probe"


def git(where: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    done = subprocess.run(["git", *who, *arguments], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def here(tmp_path: Path) -> Clone:
    """A clone with a remote of which nothing is forbidden."""
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "bare.git")], check=True)
    root = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", "-b", "main", str(root)], check=True)
    git(root, "remote", "add", "origin", (tmp_path / "bare.git").as_uri())
    (root / "params.yaml").write_text("{}\n")
    (root / ".gitignore").write_text(".rft/\n")
    (root / "infra").mkdir()
    (root / remote.FILE).write_text("remote: origin\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "code")
    return Clone(root)


def bare(here: Clone) -> Path:
    return here.root.parent / "bare.git"


def forbid(here: Clone, *what: str) -> None:
    for each in what:
        git(bare(here), "config", f"receive.{each}", "true")


def heads(here: Clone) -> list[str]:
    return git(bare(here), "for-each-ref", "--format=%(refname:short)", "refs/heads").split()


def no_settings() -> config.Params:
    raise AssertionError("these checks read no settings")


def examine(here: Clone, name: str) -> Finding:
    found = {each.name: each for each in doctor.examine(no_settings, [name], checks=checks.checks(here))}
    return found[name]


# -- the remote ------------------------------------------------------------------------------------
def test_a_remote_that_forbids_nothing_is_warned_of(here: Clone) -> None:
    found = examine(here, "remote")
    assert found.status == "warn"
    assert "origin lets anybody who may push rewrite a branch" in found.words
    assert "replaced by a forced push and deleted" in found.words
    assert "receive.denyNonFastForwards" in found.remedy
    assert "rft-ledger*" in found.remedy
    assert heads(here) == [], "nothing is left behind"
    assert git(here.root, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


def test_deleting_is_as_good_as_forcing(here: Clone) -> None:
    forbid(here, "denyNonFastForwards")
    found = examine(here, "remote")
    assert (found.status, found.facts["forced"], found.facts["deleted"]) == ("warn", False, True)
    assert "rft-ledger-probe was deleted" in found.words
    assert "stays there" not in found.remedy


def test_a_protected_remote_keeps_one_scratch_branch_however_often_it_is_tried(here: Clone) -> None:
    forbid(here, "denyNonFastForwards", "denyDeletes")
    for _ in range(2):
        found = examine(here, "remote")
        assert (found.status, found.remedy) == ("ok", "")
        assert f"neither let the scratch branch {PROBE} be rewritten nor deleted; it stays there" in found.words
        assert heads(here) == [PROBE]
    git(bare(here), "config", "receive.denyNonFastForwards", "false")
    found = examine(here, "remote")
    assert (found.status, found.facts["forced"]) == ("warn", True), "the branch of an earlier trial is enough"
    assert "stays there" in found.remedy


def test_a_server_that_protects_by_pattern_is_seen(here: Clone) -> None:
    """As branch protection of hosted servers: a hook that looks at names."""
    hook = bare(here) / "hooks" / "update"
    hook.write_text("#!/bin/sh\ncase $1 in refs/heads/rft-ledger*) echo protected >&2; exit 1 ;; esac\n")
    hook.chmod(0o755)
    found = examine(here, "remote")
    assert (found.status, "refused even the scratch branch" in found.words) == ("warn", True)
    hook.write_text(
        '#!/bin/sh\ncase $1:$2 in *:0000*) ;; refs/heads/rft-ledger*) git merge-base --is-ancestor "$2" "$3" ;; esac\n'
    )
    assert examine(here, "remote").status == "ok"


def test_a_remote_that_does_not_answer_is_no_setting(here: Clone) -> None:
    bare(here).rename(here.root.parent / "gone.git")
    found = examine(here, "ledger")
    assert (found.status, found.infrastructure) == ("fail", True)
    assert "the ledger's remote origin (infra/ledger.yaml)" in found.words
    assert examine(here, "remote").status == "skipped"
    with pytest.raises(InfrastructureError, match="did not answer"):
        checks.protection(here, print)


def test_without_a_remote_nothing_is_tried(here: Clone) -> None:
    (here.root / remote.FILE).write_text("remote: null\n")
    found = examine(here, "remote")
    assert (found.status, "this clone's alone" in found.words) == ("skipped", True)


def test_a_remote_that_is_none_is_named(here: Clone) -> None:
    (here.root / remote.FILE).write_text("remote: orign\n")
    found = examine(here, "ledger")
    assert (found.status, found.infrastructure) == ("fail", False)
    assert "remote = 'orign' is not a remote of this clone" in found.words
    assert "origin" in found.words


# -- this clone ------------------------------------------------------------------------------------
def test_nothing_was_decided_yet(here: Clone) -> None:
    assert examine(here, "ledger").words == "not begun: the first approval begins it"
    assert not (keys.folder(here) / "machine").exists(), "looking makes no key"


def test_a_ledger_is_verified_and_an_unknown_machine_told(here: Clone) -> None:
    with book.opened(here, report_line=lambda _: None) as ledger:
        ledger.begin()
    assert examine(here, "ledger").words == "1 entries, all verified"
    other = here.root.parent / "other"
    git(here.root.parent, "clone", "-q", "-c", f"remote.origin.url={bare(here).as_uri()}", str(here.root), str(other))
    git(other, "remote", "set-url", "origin", bare(here).as_uri())
    shutil.copy(here.root / remote.FILE, other / remote.FILE)
    found = examine(Clone(other), "ledger")
    assert (found.status, "is not enrolled" in found.words) == ("warn", True)
    assert "rft ledger people add --machine" in found.remedy


def test_a_damaged_ledger_fails(here: Clone) -> None:
    with book.opened(here, report_line=lambda _: None) as ledger:
        ledger.begin()
        state = ledger.state
    (here.root / remote.FILE).write_text(yaml.safe_dump({"genesis": state.genesis}))
    raw = git(here.root, "cat-file", "commit", chain.REF) + "\n"
    (here.root / "commit").write_text(raw.replace("U1NIU0lH", "U1NIU0lI", 1))
    git(here.root, "update-ref", chain.REF, git(here.root, "hash-object", "-t", "commit", "-w", "commit"))
    assert examine(here, "ledger").status == "fail"


def test_old_tools_are_a_warning_with_a_remedy(here: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `ssh` that is older than the newcomer's system has."""
    assert examine(here, "signing").status == "ok"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho OpenSSH_8.4p1 >&2\n")
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    keys._openssh.cache_clear()
    found = examine(here, "signing")
    keys._openssh.cache_clear()
    assert (found.status, "OpenSSH 8.4 is too old" in found.words) == ("warn", True)
    assert found.remedy == "Runs work without it, but none can be approved."


# -- the verb --------------------------------------------------------------------------------------
def test_doctor_makes_these_checks(
    here: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here.root)
    (here.root / "dvc.yaml").write_text("stages: {}\n")
    (here.root / ".dvc").mkdir()
    (here.root / ".dvc" / "config").write_text("")
    arguments = ["doctor", "--json", *(part for name in ("signing", "remote") for part in ("--only", name))]
    assert cli.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["status"]) for each in found["checks"]] == [
        ("signing", "ok"),
        ("ledger", "ok"),
        ("remote", "warn"),
    ]


def test_the_shipped_file_is_what_is_written(tmp_path: Path) -> None:
    """Beginning a ledger changes one line of it."""
    shipped = (Path(__file__).resolve().parents[2] / workspace.FILE).read_text()
    clone = Clone(tmp_path)
    (tmp_path / workspace.FILE).write_text(shipped)
    assert remote.shared(clone) == remote.Shared()
    remote.pin(clone, remote.Shared(), "a" * 64)
    assert (tmp_path / workspace.FILE).read_text() == shipped.replace("genesis: null", f"genesis: {'a' * 64}")
