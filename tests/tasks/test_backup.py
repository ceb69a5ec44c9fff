"""`rft backup` and `rft backup restore`: what a clone knows is laid out elsewhere, byte for byte,
and no key is among it; also when it is killed, damaged, moved, or its cache lies elsewhere.

Issue 14, item 5. Real Git, DVC, MLflow and ssh-keygen.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import ladder_clone
import people
import pytest

from rft.errors import InfrastructureError, UserError
from tasks import backup
from tasks.backup import databases, manifest
from tasks.display import tracking
from tasks.ledger import book, keys
from tasks.ledger.policy import EnrolMachine
from tasks.promotion import acts, agents, champions
from tasks.runs import records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone

pytestmark = pytest.mark.story  # whole clones saved and laid out again: 45 s

CANARY = "canary-7f3a-of-a-secret"


def silent(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A promoted run, an MLflow run with a page, Prefect's history, edits, and secrets wherever
    people have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("backup"))
        clone, root = scripted.clone, scripted.root
        record = ladder_clone.run_ladder(scripted)
        page = clone.page(record.name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<p>the report</p>")
        client = tracking.client(clone)
        made = client.create_run(tracking.experiment(client, clone, "tiny"), run_name=record.name)
        client.log_artifact(made.info.run_id, str(page))
        assert people.approve(clone, record.name).promoted
        with sqlite3.connect(_parent(root / ".rft/prefect/prefect.db")) as history:
            history.execute("PRAGMA journal_mode=WAL")
            history.execute("CREATE TABLE flow_run (name TEXT)")
            history.execute("INSERT INTO flow_run VALUES ('brave-otter')")
        history.close()
        (root / "notes.txt").write_text("untracked\n")
        (root / "constraints.txt").write_text("edited\n")
        (root / "data/README.md").unlink()
        (root / ".env.local").write_text(CANARY)
        (root / "deploy_key").write_bytes(people.key("Ada").read_bytes())
        (root / ".dvc/config.local").write_text(f"['remote \"store\"']\n    password = {CANARY}\n")
        clone.git("remote", "add", "origin", f"https://bob:{CANARY}@git.example/agent.git")
        clone.git("tag", "before-lunch")
        (root / "data/inbox/other.jsonl").write_text("{}\n")
    return clone


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def here(template: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A copy, so it is a clone that was moved, too: MLflow's addresses lead to the first place."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(Path(shutil.copytree(template.root, tmp_path / "clone", symlinks=True)))


@pytest.fixture(scope="module")
def saved(template: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A back-up of the template. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("saved") / "back up"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        backup.save(template, folder, silent)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copied"))


def restored(folder: Path, into: Path) -> Clone:
    backup.restore(folder, into, silent)
    return Clone(into.resolve())


def only(clone: Clone) -> records.RunRecord:
    return records.load_all(clone)[0]


def cached(clone: Clone) -> dict[str, bytes]:
    folder = clone.dvc_cache
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/**/*") if path.is_file()}


def refs(clone: Clone) -> str:
    return clone.git("for-each-ref")


def test_restored_elsewhere_it_is_the_same(
    template: Clone, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = restored(saved, tmp_path / "new place" / "a clone")
    assert refs(there) == refs(template)
    assert there.git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert there.git("status", "--porcelain") == template.git("status", "--porcelain").replace("?? deploy_key\n", ""), (
        "edits as they were, but for the key"
    )
    assert cached(there) == cached(template), "every byte is some revision's"
    assert records.load_all(there) == records.load_all(template)
    for name in (".rft/champion/tiny.json", "infra/ledger.yaml", "data/inbox/window.jsonl"):
        assert (there.root / name).read_bytes() == (template.root / name).read_bytes()
    ours, theirs = book.read(template, reverify=True), book.read(there, reverify=True)
    assert [each.entry.content for each in ours.stored] == [each.entry.content for each in theirs.stored]
    assert theirs.state.doubtful() == {}
    # the champion's bytes are verified as they are read
    agent = agents.find(there, "champion")
    assert agent.run == only(there).name
    assert Revision(there, agent.at.commit).is_cached()
    with sqlite3.connect(there.root / ".rft/prefect/prefect.db") as history:
        assert history.execute("SELECT name FROM flow_run").fetchall() == [("brave-otter",)]
    history.close()


def test_mlflows_artifacts_open_at_the_new_place_and_new_ones_go_there(
    template: Clone, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = restored(saved, tmp_path / "new place")
    client = tracking.client(there)
    found = client.get_experiment_by_name("tiny")
    assert found.artifact_location == (there.root / "mlruns/artifacts").as_uri()
    (run,) = client.search_runs([found.experiment_id])
    shown = Path(client.download_artifacts(run.info.run_id, f"{only(there).name}.html", str(tmp_path)))
    assert shown.read_text() == "<p>the report</p>"
    assert run.info.artifact_uri.startswith(there.root.as_uri())
    made = client.create_run(found.experiment_id)
    client.log_artifact(made.info.run_id, str(there.root / "notes.txt"))
    assert list((there.root / "mlruns/artifacts").rglob("notes.txt"))
    assert not list((template.root / "mlruns").rglob("notes.txt"))
    versions = client.search_model_versions("name='tiny'")
    assert {str(version.version) for version in versions} == {"1", "2"}
    # no column of any table still leads to the old place
    left: list[str] = []
    with sqlite3.connect(there.root / "mlruns/mlflow.db") as opened:
        for (table,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in opened.execute(f'SELECT * FROM "{table}"'):
                left += [f"{table}: {value}" for value in row if f"{template.root}/" in str(value)]
    opened.close()
    assert left == []


def test_no_key_no_password_and_no_canary_is_in_it(template: Clone, saved: Path) -> None:
    private = keys.machine(template).file.read_bytes()
    secret = [private, people.key("Ada").read_bytes(), CANARY.encode(), private.splitlines()[2]]
    for path in (path for path in saved.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(each in content for each in secret), path
    # Git packs what it holds: the bundle is unpacked, too
    bare = saved.parent / "bare.git"
    subprocess.run(["git", "clone", "--quiet", "--mirror", str(next(saved.glob("bundles/*"))), str(bare)], check=True)
    objects = subprocess.run(
        ["git", "cat-file", "--batch-all-objects", "--batch"], cwd=bare, capture_output=True, check=True
    )
    assert not any(each in objects.stdout for each in secret)
    message = "\n".join(manifest.read(saved).left_out)
    for phrase in (
        "the machine key",
        "rft ledger people add --machine",
        "deploy_key: it holds a private key",
        ".dvc/config.local, which may hold passwords",
        ".env.local: environment files",
        "the password in the address of Git's remote origin",
        "data/inbox/other.jsonl: Git ignores this",
    ):
        assert phrase in message
    assert CANARY not in message
    (remote,) = manifest.read(saved).git.remotes
    assert remote.url == "https://git.example/agent.git"


def test_the_restored_clone_goes_on_once_an_owner_enrolled_its_key(
    template: Clone, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = restored(saved, tmp_path / "there")
    book.read(there)
    assert keys.machine(there).public != keys.machine(template).public
    change = acts.enrolled(EnrolMachine, name="restored", key=keys.machine(there).public)
    acts.change(there, change, people.signer("Ada"), "the disk is gone")
    acts.rollback(there, "tiny", people.signer("Ada"), "to see that it moves")
    assert book.read(there, reverify=True).state.champion("tiny") == 0
    # and it can be backed up where it came from: it is the same ledger, with more entries
    again = backup.save(there, Path(shutil.copytree(saved, tmp_path / "again")), silent)
    assert again.made.num_entries == book.read(there).state.number
    params = ladder_clone.config.load(there.root / "params.yaml")
    assert champions.of_params(there, params).champion.version == 0


def test_each_damaged_file_is_named_and_nothing_is_restored(copied: Path, tmp_path: Path) -> None:
    made = manifest.read(copied)
    record, page = (next(file for file in made.files if file.kind == kind) for kind in ("records", "pages"))
    cut = next(file for file in made.files if file.kind == "cache" and file.size > 2)
    flipped = manifest.place(copied, record.sha256)
    content = bytearray(flipped.read_bytes())
    content[3] ^= 1
    flipped.write_bytes(content)
    manifest.place(copied, page.sha256).unlink()
    path = manifest.place(copied, cut.sha256)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError) as error:
        backup.restore(copied, tmp_path / "into", silent)
    message = str(error.value)
    assert "3 of its files are damaged" in message
    assert f"other bytes than the manifest names. It holds {record.path}" in message
    assert f"missing. It holds {page.path}" in message
    assert cut.path in message
    assert not (tmp_path / "into").exists()
    assert not (tmp_path / "into.part").exists()


def test_the_named_remedy_for_damage_works(here: Clone, copied: Path) -> None:
    made = manifest.read(copied)
    for file in made.files[:3]:
        manifest.place(copied, file.sha256).unlink(missing_ok=True)
    next(copied.glob("bundles/*")).unlink()
    backup.save(here, copied, silent)
    assert {file.path for file in backup.verify(copied, silent).files} == {file.path for file in made.files}


def test_links_of_the_tree_lead_nowhere_else(here: Clone, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.txt").write_text("theirs")
    (here.root / "link").symlink_to(outside)
    here.git("add", "--force", "link")
    here.git("commit", "--quiet", "--message", "a link", "link")
    folder = tmp_path / "saved"
    backup.save(here, folder, silent)
    raw = json.loads((folder / "manifest.json").read_text())
    raw["git"]["deleted"] = ["link/theirs.txt"]
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="leads out of the clone"):
        backup.restore(folder, tmp_path / "into", silent)
    raw["git"]["deleted"] = []
    raw["files"][0]["path"] = "link/mine.txt"
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="leads out of the clone"):
        backup.restore(folder, tmp_path / "into", silent)
    assert [path.name for path in outside.iterdir()] == ["theirs.txt"]


def test_mlflow_in_a_clone_that_was_moved_before(here: Clone, tmp_path: Path) -> None:
    """Its addresses lead to where it was; and `mlruns` is in the path of both."""
    backup.save(here, tmp_path / "saved", silent)
    first = restored(tmp_path / "saved", tmp_path / "mlruns" / "a b")
    backup.save(first, tmp_path / "again", silent)
    moved = first.root.rename(tmp_path / "mlruns" / "c")
    for number, source in enumerate((Clone(moved), None)):
        if source is not None:
            made = backup.save(source, tmp_path / "moved", silent).made
            assert not any("MLflow's artifacts at" in line for line in made.left_out)
        there = restored(tmp_path / ("moved" if source else "again"), tmp_path / "mlruns" / f"into {number}")
        with sqlite3.connect(there.root / "mlruns/mlflow.db") as opened:
            found = [row[0] for row in opened.execute("SELECT artifact_uri FROM runs")]
            found += [row[0] for row in opened.execute("SELECT artifact_location FROM experiments WHERE name = 'tiny'")]
        opened.close()
        assert len(found) == 2
        assert all(address.startswith(f"{there.root.as_uri()}/mlruns/artifacts") for address in found)


def test_a_damaged_bundle_is_named(copied: Path, tmp_path: Path) -> None:
    bundle = next(copied.glob("bundles/*"))
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.write_bytes(content)
    with pytest.raises(UserError, match=r"1 of its files are damaged.*\n.*It holds Git's refs and objects"):
        backup.verify(copied, silent)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", ".git/hooks/post-checkout", "a//b", ""])
def test_a_changed_manifest_writes_nowhere_else(copied: Path, tmp_path: Path, path: str) -> None:
    raw = json.loads((copied / "manifest.json").read_text())
    raw["files"][0]["path"] = path
    (copied / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"manifest.json: files.0.path: .*not the path of a file inside the clone"):
        backup.restore(copied, tmp_path / "into", silent)


def test_the_second_backup_copies_what_is_new_alone(here: Clone, copied: Path, tmp_path: Path) -> None:
    again = backup.save(here, copied, silent)
    assert {file.path for file in again.made.files} == {file.path for file in manifest.read(copied).files}
    assert again.num_copied == 0, "a copied clone has the same bytes and refs"
    assert again.num_removed == 0
    # one more commit, one page gone, one file gone whose bytes nothing else has
    here.page(only(here).name).unlink()
    (here.state / "champion/tiny.json").unlink()
    (here.root / "params.yaml").write_text((here.root / "params.yaml").read_text() + "\n# a comment\n")
    here.git("commit", "--quiet", "--message", "settings", "params.yaml")
    more = backup.save(here, copied, silent)
    assert more.num_copied == 1, "the bundle: its refs moved"
    assert more.num_removed == 2, "the old bundle and that file; the bytes of the page are in MLflow, too"
    assert len(list(copied.glob("bundles/*"))) == 1
    there = restored(copied, tmp_path / "into")
    assert there.git("rev-parse", "HEAD") == here.git("rev-parse", "HEAD")
    assert not there.page(only(here).name).exists()


def test_what_the_clone_lost_stays_and_what_was_removed_on_purpose_goes(here: Clone, copied: Path) -> None:
    before = cached(here)
    at = Revision(here, only(here).revision or "")
    folder = at.outs["data/train/weights"]
    lost = [folder.md5, *(md5 for _, md5 in at.files("data/train/weights"))]
    for md5 in lost:
        (here.dvc_cache / "files/md5" / md5[:2] / md5[2:]).unlink()
    again = backup.save(here, copied, silent)
    assert sorted(again.kept) == sorted(f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}" for md5 in lost)
    assert backup.verify(copied, silent) == again.made
    # a test list that was erased leaves the back-up, too
    (look,) = book.read(here).state.looks.values()
    listed = f".dvc/cache/files/md5/{look.act.examples.md5[:2]}/{look.act.examples.md5[2:]}"
    assert listed in {file.path for file in again.made.files}
    from tasks.promotion import retiring

    retiring.erase(here, look.number, "a person asked", lambda _: people.signer("Ada"), silent)
    after = backup.save(here, copied, silent)
    assert listed not in {file.path for file in after.made.files}
    assert not manifest.place(copied, look.act.examples.sha256).exists()
    assert before


def test_a_cache_that_is_damaged_does_not_damage_the_backup(here: Clone, copied: Path) -> None:
    """And the first back-up of it says so."""
    out = Revision(here, only(here).revision or "").outs["data/gate/decision.json"]
    path = here.dvc_cache / "files/md5" / out.md5[:2] / out.md5[2:]
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"other" + good)
    name = f".dvc/cache/files/md5/{out.md5[:2]}/{out.md5[2:]}"
    again = backup.save(here, copied, silent)
    assert again.damaged == [name]
    (file,) = [file for file in again.made.files if file.path == name]
    assert manifest.place(copied, file.sha256).read_bytes() == good
    fresh = backup.save(here, copied.parent / "fresh", silent)
    assert fresh.damaged == [name]


def test_a_cache_elsewhere_and_shared_gives_this_clones_bytes_alone(here: Clone, tmp_path: Path) -> None:
    wanted = cached(here)
    shutil.move(here.dvc_cache, tmp_path / "shared cache")
    (here.root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'shared cache'}\n")
    others = tmp_path / "shared cache/files/md5/ab"
    others.mkdir(exist_ok=True)
    (others / "0123456789abcdef0123456789abcd").write_text("another project's")
    made = backup.save(here, tmp_path / "saved", silent).made
    assert "another project's" not in {
        manifest.place(tmp_path / "saved", f.sha256).read_text("latin") for f in made.files
    }
    there = restored(tmp_path / "saved", tmp_path / "into")
    assert there.dvc_cache == there.root / ".dvc/cache"
    assert cached(there) == wanted
    # a setting that Git holds would lead the restored clone to the other one's cache
    settings = here.root / ".dvc/config"
    settings.write_text(settings.read_text() + f"[cache]\n    dir = {tmp_path / 'shared cache'}\n")
    (here.root / ".dvc/config.local").unlink()
    here.git("commit", "--quiet", "--message", "shared", ".dvc/config")
    made = backup.save(here, tmp_path / "saved", silent).made
    assert any("where DVC's cache lies" in line for line in made.left_out)
    there = restored(tmp_path / "saved", tmp_path / "into again")
    assert there.dvc_cache == there.root / ".dvc/cache"
    assert cached(there) == wanted
    with pytest.raises(UserError, match="lies inside of what is backed up"):
        backup.save(here, tmp_path / "shared cache/backup", silent)


def test_bad_places_are_refused(here: Clone, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lies inside of what is backed up"):
        backup.save(here, here.root / "backup", silent)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.doc").write_text("mine")
    with pytest.raises(UserError, match="is not empty, and is not a back-up of agent-rft"):
        backup.save(here, other, silent)
    with pytest.raises(UserError, match=r"is not a back-up: it has no manifest\.json"):
        backup.restore(other, tmp_path / "into", silent)
    with pytest.raises(UserError, match=r"is not empty\. Name a folder that does not exist"):
        backup.restore(copied, other, silent)
    with pytest.raises(UserError, match="cannot lie in each other"):
        backup.restore(copied, copied / "clone", silent)
    (tmp_path / "into.part").mkdir()
    with pytest.raises(UserError, match=r"into\.part is in the way"):
        backup.restore(copied, tmp_path / "into", silent)
    later = (copied / "manifest.json").read_text().replace('"agent-rft/2"', '"agent-rft/99"')
    (copied / "manifest.json").write_text(later)
    with pytest.raises(UserError, match="Read it with the version that wrote it"):
        backup.restore(copied, tmp_path / "into", silent)
    assert sorted(path.name for path in other.iterdir()) == ["thesis.doc"]


def test_another_clones_backup_is_not_replaced(here: Clone, copied: Path) -> None:
    raw = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(raw | {"runs": [*raw["runs"], "20260101-0000-abcd"]}))
    with pytest.raises(
        UserError, match=r"back-up of another clone.*run 20260101-0000-abcd, of which this clone has no"
    ):
        backup.save(here, copied, silent)
    (copied / "manifest.json").write_text(json.dumps(raw | {"entry": "0" * 64}))
    with pytest.raises(UserError, match=r"back-up of another clone.*this clone's lacks it"):
        backup.save(here, copied, silent)


def test_a_shallow_clone_is_refused(here: Clone, tmp_path: Path) -> None:
    (here.root / ".git/shallow").write_text(here.git("rev-parse", "HEAD") + "\n")
    with pytest.raises(UserError, match="git fetch --unshallow"):
        backup.save(here, tmp_path / "saved", silent)


def test_nothing_is_backed_up_while_a_run_goes_on(here: Clone, tmp_path: Path) -> None:
    records.save(here, only(here).model_copy(update={"name": "going", "revision": None, "state": "running"}))
    with (
        records.held(records.lock(here, "going")),
        pytest.raises(UserError, match=r"run going is going on\. Nothing was backed up\. Wait until it ends"),
    ):
        backup.save(here, tmp_path / "saved", silent)
    assert not (tmp_path / "saved").exists()
    made = backup.save(here, tmp_path / "saved", silent).made
    assert any("had begun in 1 unfinished run (going)" in line for line in made.left_out)


def test_a_full_disk_is_seen_before(here: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InfrastructureError, match=r"its disk has 0\.00 GB free\. Nothing was backed up"):
        backup.save(here, tmp_path / "saved", silent)
    with pytest.raises(UserError, match="is an unfinished back-up"):
        backup.restore(tmp_path / "saved", tmp_path / "into", silent)


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks import backup
from tasks.backup import manifest
from tasks.runs.clone import Clone

what, clone, folder, into = sys.argv[1:]

def tell(phase, done, total, num_bytes):
    if phase == what and done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

if what == "backup":
    backup.save(Clone(Path(clone)), Path(folder), tell)
else:
    backup.restore(Path(folder), Path(into), tell)
"""


def killed(repository: Path, what: str, *paths: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, what, *map(str, paths)],
        env=os.environ | {"PYTHONPATH": str(repository)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_killed_backup_goes_on_and_leaves_the_one_before_whole(here: Clone, tmp_path: Path, repository: Path) -> None:
    folder, into = tmp_path / "saved", tmp_path / "into"
    killed(repository, "backup", here.root, folder, into)
    with pytest.raises(UserError, match=r"is an unfinished back-up: it has no manifest.json yet.*rft backup"):
        backup.restore(folder, into, silent)
    have = len(list(folder.glob("objects/*/*")))
    assert have
    first = backup.save(here, folder, silent)
    assert first.num_copied < have + len(list(folder.glob("objects/*/*")))
    assert {path.name for path in folder.iterdir()} == {"agent-rft-backup.txt", "bundles", "manifest.json", "objects"}
    # every page and input is another now, and the second back-up is killed
    (here.root / "notes.txt").write_text("changed")
    here.git("tag", "after-lunch")
    killed(repository, "backup", here.root, folder, into)
    assert backup.verify(folder, silent) == first.made, "the old one is whole"
    backup.save(here, folder, silent)
    killed(repository, "restore", here.root, folder, into)
    assert not into.exists()
    there = restored(folder, into)
    assert (there.root / "notes.txt").read_text() == "changed"
    assert "after-lunch" in refs(there)
    assert not (tmp_path / "into.part").exists()


def test_a_database_is_copied_while_somebody_writes(tmp_path: Path) -> None:
    source, target = tmp_path / "mlflow.db", tmp_path / "copy.db"
    script = (
        "import sqlite3, sys\n"
        f"db = sqlite3.connect({str(source)!r}, timeout=60)\n"
        "db.execute('PRAGMA journal_mode=WAL'); db.execute('CREATE TABLE t (a, b)'); db.commit()\n"
        "print('ready', flush=True)\n"
        "for n in range(10**9):\n"
        "    db.execute('INSERT INTO t VALUES (?, ?)', (n, 'x' * 500)); "
        "db.execute('INSERT INTO t VALUES (?, 1)', (n,)); db.commit()\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.3)
        for _ in range(5):
            target.unlink(missing_ok=True)
            databases.copy(source, target)
            with sqlite3.connect(target) as copy:
                odd = copy.execute("SELECT count(*) FROM (SELECT a FROM t GROUP BY a HAVING count(*) != 2)").fetchone()
                assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            copy.close()
            assert odd == (0,), "never half a transaction"
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout
        writer.stdout.close()
    for log in tmp_path.glob("mlflow.db-*"):
        log.unlink()
    source.write_bytes(b"SQLite format 3\0" + b"no" * 4000)
    with pytest.raises(InfrastructureError, match=r"mlflow.db: SQLite cannot copy it whole.*Nothing was backed up"):
        databases.copy(source, tmp_path / "other.db")


def test_servers_of_others_are_named_without_their_passwords(
    here: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://bob:{CANARY}@db.example/mlflow")
    monkeypatch.setenv("PREFECT_API_URL", f"https://bob:{CANARY}@prefect.example/api")
    message = "\n".join(backup.save(here, tmp_path / "saved", silent).made.left_out)
    assert "MLflow's store at postgresql://...@db.example/mlflow (MLFLOW_TRACKING_URI)" in message
    assert "Prefect's server at https://...@prefect.example/api (PREFECT_API_URL)" in message
    assert CANARY not in message


def test_a_detached_head_and_an_input_folder_come_along(here: Clone, tmp_path: Path) -> None:
    model = here.root / "data/inbox/base"
    model.mkdir()
    (model / "config.json").write_text("{}")
    record = only(here).model_copy(update={"inputs": ["data/inbox/base", "../elsewhere"]})
    records.save(here, record)
    here.git("checkout", "--quiet", "--detach")
    here.git("commit", "--quiet", "--allow-empty", "--message", "on no branch")
    made = backup.save(here, tmp_path / "saved", silent).made
    assert any(line.startswith("../elsewhere: a run took it from outside") for line in made.left_out)
    there = restored(tmp_path / "saved", tmp_path / "into")
    assert there.git("rev-parse", "HEAD") == here.git("rev-parse", "HEAD")
    assert (there.root / ".git/HEAD").read_text().strip() == here.git("rev-parse", "HEAD")
    assert (there.root / "data/inbox/base/config.json").read_text() == "{}"
