"""The verbs of the ledger: who may decide, what was decided, what is served, what is refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import ladder_clone
import people
import pytest

from flows import cli
from tasks.ledger import book
from tasks.runs import records
from tasks.runs.clone import Clone

BOB = ("ledger", "people", "add", "--role", "author", "--reason", "x")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("verbs"))
        assert ladder_clone.run_ladder(scripted).decision == "promote"
    return scripted.clone


@pytest.fixture
def rft(clone: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(clone.root)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # no verb here needs a server

    def run(*arguments: str, code: int = 0) -> str:
        assert cli.main(list(arguments)) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.err if code else captured.out

    return run


@pytest.mark.slow
def test_a_team_decides(rft, clone: Clone, tmp_path: Path) -> None:
    run = records.load_all(clone)[0].name
    ada, bob = people.by("Ada"), people.by("Bob")
    assert "tiny: look 1 at test " in rft("ledger"), "the run registered it"
    assert "the first to decide becomes the owner" in rft("ledger", "people", "list")
    assert "Nothing was promoted yet: the champion is the beginning" in rft("champion")
    assert "Nothing of tiny was promoted yet" in rft("champion", "--params", "params.yaml")

    assert "Rejected: this prompt with these weights" in rft("reject", run, "--reason", "not yet", *ada)
    assert "is lifted: not yet" in rft("reject", run, "--lift", "--reason", "now", *ada)
    public = str(people.key("Bob").with_suffix(".pub"))
    add = ("ledger", "people", "add", "bob", "--role", "approver", "--public", public, "--reason", "joined")
    assert "key SHA256:" in rft(*add, *bob, code=2)
    assert "Enrolled: bob" in rft(*add, *ada)
    assert "approver  SHA256:" in rft("ledger", "people", "list")
    assert "approvers=2, four_eyes=False" in rft("ledger", "rules", "approvers=2", "--reason", "strict", *ada)

    assert f"tiny: run {run} waits: 0 of 2 approvals, until" in rft("ledger")
    first = rft("approve", run, "--reason", "half the calls", *ada)
    assert f"Run {run} has 1 of 2 approvals" in first
    assert "It waits for 1 more until" in first
    shown = rft("ledger").splitlines()[-2:]
    assert f"tiny: run {run} waits: 1 of 2 approvals (" in shown[0]
    assert shown[1].endswith(f"rft approve {run} --reason TEXT")
    assert "waits: 1 of 2 approvals" in rft("runs")
    became = [json.loads(line)["became"] for line in rft("ledger", "--json").splitlines()]
    assert next(each for each in became if each) == {
        "kind": "waits",
        "words": "waits: 1 of 2 approvals",
        "approved_by": [rft("ledger", "people", "list").split()[0]],
        "approvals_needed": 2,
        "approve": shown[1].strip(),
    }
    assert "names no remote, so there is nobody to share with" in rft("ledger", "share", code=2)
    printed = rft("approve", run, "--reason", "better", "--print", *bob)
    command = next(line.strip() for line in printed.splitlines() if "-Y sign" in line)
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    mixed = rft("approve", run, "--signature", "x", "--reason", "y", code=2)
    assert "--signature names a statement that is signed already" in mixed
    assert "--reason TEXT is missing" in rft("approve", run, code=2)
    signature = next(clone.state.glob("ledger/*.sig"))
    # nobody answers at PREFECT_API_URL: what people signed does not wait for Prefect
    approved = rft("approve", run, "--signature", str(signature))
    made = book.read(clone).state.promotions[book.read(clone).state.champion("tiny")]
    assert f"Run {run} is the champion of tiny: champion {made.number}." in approved

    assert f"tiny: champion {made.number}, since {made.time}" in rft("champion", "tiny")
    assert "tiny: the beginning" in rft("champion", "--at", "2020-01-01")
    assert "--at 'soon' is not a date" in rft("champion", "--at", "soon", code=2)
    assert "of model 'x'" in rft("rollback", "--model", "x", "--reason", "why", *ada, code=2)
    rows = [json.loads(line) for line in rft("ledger", "--json").splitlines()]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["act"]["kind"] == "promotion"
    assert [row["statement"]["reason"] for row in rows if row["act"]["kind"] == "approval"] == [
        "half the calls",
        "better",
    ]
    assert next(row["became"]["kind"] for row in rows if row["became"]) == "champion"
    assert "waits" not in rft("runs")
    output = rft("ledger", "verify")
    assert "PROMOTION of entry" in output
    assert f"Verified: {len(rows)} entries, every signature, role and hash" in output

    back = rft("rollback", "--reason", "complaints", *bob)
    assert "The champion of tiny is the beginning again (the base policy with the seed prompt)" in back
    assert f"in place of champion {made.number}." in back
    assert "Removed bob" in rft(
        "ledger", "people", "remove", "bob", "--compromised-since", "2", "--reason", "stolen", *ada
    )
    assert "DOUBTFUL: signed with key SHA256:" in rft("ledger")
    compromises = [row["doubtful"] for row in map(json.loads, rft("ledger", "--json").splitlines()) if row["doubtful"]]
    assert {each["since"] for each in compromises} == {2}
    assert any(each["path"] for each in compromises), "the promotion rests on bob's approval"
    assert "entries are doubtful, and the lines above say why" in rft("ledger", "verify")
    assert "is marked as compromised" in rft(*add, *ada, code=2)
    assert book.read(clone, reverify=True).state.champion("tiny") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ledger", "people", "add", "bob", "--reason", "x"), "a person needs NAME, --role and --public KEY"),
        ((*BOB, "Bob Ross", "--public", "ssh-ed25519 AAAA"), "name = 'Bob Ross'"),
        ((*BOB, "bob", "--public", "nonsense"), "is not a public key"),
        (("ledger", "people", "remove", "nobody", "--reason", "x"), "nobody is not enrolled"),
        (("ledger", "rules", "approvers", "--reason", "x"), "write KEY=VALUE, with one of approvers"),
        (("ledger", "rules", "approvers=0", "--reason", "x"), "approvers = 0: Input should be greater than or"),
        (("ledger", "restart"), "--reason TEXT is missing"),
        (("champion", "tiny", "--params", "params.yaml"), "MODEL names the model, and so do --params and --set"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_message(rft, arguments: tuple[str, ...], message: str) -> None:
    import re

    key = people.by("Ada") if arguments[0] == "people" or arguments[1:2] == ("rules",) else ()
    output = rft(*arguments, *key, code=2)
    assert output.startswith("error: ")
    assert re.search(message, output), output


@pytest.mark.slow
def test_a_clone_is_backed_up_and_restored(rft, clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, because a restore ends with the whole ledger verified."""
    monkeypatch.delenv("PREFECT_API_URL")
    rft("ledger", "rules", "approvers=1", "--reason", "to have an entry", *people.by("Ada"))
    saved, into = tmp_path / "saved", tmp_path / "into"
    told = rft("backup", "make", str(saved))
    number = book.read(clone).state.number
    assert re.search(rf"Backed up to {saved}: a ledger up to entry {number}, 1 run, \d+ files and Git's objects", told)
    assert "[backup] " in told
    assert "people add --machine --reason TEXT" in told
    assert "  copied now: 0 files, 0 B; the rest was there" in rft("backup", "make", str(saved))
    assert "is whole: a ledger up to entry" in rft("backup", "verify", str(saved))
    monkeypatch.chdir(tmp_path)  # no clone
    output = rft("backup", "restore", "saved", "into")
    assert f"Restored to {into}, as it was at " in output
    assert f"Verified: {number} entries of the ledger, every signature, role and hash." in output
    assert f"cd {into} && make setup" in output
    monkeypatch.chdir(into)
    assert records.load_all(clone)[0].name in rft("runs")
    assert "Verified:" in rft("ledger", "verify")
    assert "is not empty" in rft("backup", "restore", str(saved), str(into), code=2)
    assert "lies inside of what is backed up" in rft("backup", "make", "here", code=2)
    next(saved.glob("objects/*/*")).unlink()
    assert "1 of its files are damaged" in rft("backup", "verify", str(saved), code=2)
