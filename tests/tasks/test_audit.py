"""Audits of a real clone: what is whole is verified, and what was changed is named."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import ladder_clone
import people
import pytest
import yaml

from rft import stage_files
from rft.errors import UserError
from rft.reports.audit import Audit, Link
from tasks import audit
from tasks.audit import Question
from tasks.audit.upwards import Sought
from tasks.display import tracking
from tasks.ledger import book
from tasks.ledger.policy import Compromised, Enrol
from tasks.promotion import acts
from tasks.runs import git as gits
from tasks.runs import records, transfer
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone


@pytest.fixture(scope="module")
def promoted(clone_with_run: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose first run was promoted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        clone = Clone(Path(shutil.copytree(clone_with_run.root, tmp_path_factory.mktemp("audit") / "clone")))
        run = records.load_all(clone)[0]
        acts.request_promotion(clone, run)
        people.approve(clone, run.name)
    return clone


@pytest.fixture
def clone(promoted: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(Path(shutil.copytree(promoted.root, tmp_path / "clone", symlinks=True)))


def ask(clone: Clone, what: str | None = None, **more) -> Audit:
    return audit.ask(clone, Question(what, **more), report_line=lambda _: None)


def at(clone: Clone) -> Revision:
    return Revision(clone, records.load_all(clone)[0].revision or "")


def broken(found: Audit) -> list[tuple[str, str, str]]:
    return [(link.source.partition(":")[0], link.says, link.target.partition(":")[0]) for link in found.broken()]


def link(found: Audit, says: str) -> Link:
    return next(each for each in found.links if each.says == says)


@pytest.mark.slow
def test_a_version_rests_on_what_is_verified_down_to_its_conversations(clone: Clone) -> None:
    found = ask(clone)
    assert found.broken() == []
    assert {link.state for link in found.links} == {"verified"}
    kinds = {node.kind for node in found.nodes}
    assert kinds >= {
        "alias",
        "version",
        "entry",
        "person",
        "machine",
        "run",
        "revision",
        "code",
        "environment",
        "stage",
    }
    assert kinds >= {"bytes", "weights", "base model", "examples", "window", "conversations", "recipe", "parameters"}
    assert found.question == "what tiny, champion 6, rests on"
    assert len({node.id for node in found.nodes}) == len(found.nodes)
    ids = {node.id for node in found.nodes}
    assert all(link.source in ids and link.target in ids for link in found.links)
    assert found == ask(clone, "6") == ask(clone, "tiny@champion") == ask(clone, "tiny")


@pytest.mark.slow
def test_a_flipped_bit_in_the_cache_is_named_by_its_link(clone: Clone) -> None:
    out = at(clone).outs["data/baseline/report.json"]
    path = clone.dvc_cache / "files/md5" / out.md5[:2] / out.md5[2:]
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    found = ask(clone)
    assert broken(found) == [("stage", "wrote", "bytes"), ("stage", "decided on", "bytes")]
    assert found.broken()[0].target.endswith("data/baseline/report.json")
    assert found.broken()[0].state == "altered"


@pytest.mark.slow
def test_missing_bytes_say_that_no_remote_could_have_them(clone: Clone) -> None:
    out = at(clone).outs["data/train/metrics.jsonl"]
    (clone.dvc_cache / "files/md5" / out.md5[:2] / out.md5[2:]).unlink()
    found = ask(clone)
    assert [(link.state, link.target.rpartition("/")[2]) for link in found.broken()] == [("missing", "metrics.jsonl")]
    assert "no DVC remote is set" in found.broken()[0].why


@pytest.mark.slow
def test_missing_bytes_are_fetched_by_hash(clone: Clone, tmp_path: Path) -> None:
    settings = clone.root / ".dvc/config.local"
    settings.write_text(f"[core]\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'store'}\n")
    transfer.push(clone, at(clone).commit)
    out = at(clone).outs["data/train/metrics.jsonl"]
    cached = clone.dvc_cache / "files/md5" / out.md5[:2] / out.md5[2:]
    cached.unlink()
    assert ask(clone).broken() == []
    assert cached.exists()
    cached.unlink()
    (tmp_path / "store/files/md5" / out.md5[:2] / out.md5[2:]).unlink()
    found = ask(clone)
    assert [link.state for link in found.broken()] == ["missing"]
    assert str(tmp_path / "store") in found.broken()[0].why


@pytest.mark.slow
def test_bytes_that_gc_removed_are_erased(clone: Clone) -> None:
    record = records.load_all(clone)[0]
    records.save(clone, record.model_copy(update={"bytes_removed": "2026-11-23T00:00:00Z"}))
    out = at(clone).outs["data/train/metrics.jsonl"]
    (clone.dvc_cache / "files/md5" / out.md5[:2] / out.md5[2:]).unlink()
    found = ask(clone)
    assert found.broken() == []
    assert [link.state for link in found.links if link.state != "verified"] == ["erased"]


@pytest.mark.slow
def test_a_moved_alias_is_named(clone: Clone) -> None:
    client = tracking.client(clone)
    other = next(each for each in client.search_model_versions("name = 'tiny'") if each.tags["rft.champion"] == "0")
    client.set_registered_model_alias("tiny", "champion", other.version)
    assert broken(ask(clone)) == [("alias", "shows", "version")]
    client.set_model_version_tag("tiny", "2", "revision", "0" * 40)
    assert ("alias", "describes", "version") in broken(ask(clone))


@pytest.mark.slow
def test_a_changed_champion_file_is_named(clone: Clone) -> None:
    path = clone.state / "champion/tiny.json"
    told = json.loads(path.read_text())
    told["champion"]["prompt"]["system"] = "Do as I say."
    path.write_text(json.dumps(told))
    assert broken(ask(clone)) == [("alias", "shows", "version")]


@pytest.mark.slow
def test_a_clone_without_mlflow_says_that_nobody_looked(clone: Clone) -> None:
    (clone.root / "mlruns/mlflow.db").unlink()
    found = ask(clone)
    assert found.broken() == []
    assert {link.state for link in found.links if link.source.startswith("alias:mlflow")} == {"not verifiable"}
    assert not (clone.root / "mlruns/mlflow.db").exists(), "an audit makes none"


def rewrite(clone: Clone, changes: dict[str, bytes | None]) -> str:
    """Make the run's revision anew with other files, and point its ref there."""
    before, index = at(clone).commit, clone.state / "index"

    def git(*arguments: str, given: bytes | None = None) -> str:
        return gits.git(clone.root, *arguments, given=given, index=index)

    git("read-tree", before)
    for name, content in changes.items():
        if content is None:
            git("update-index", "--force-remove", name)
        else:
            blob = git("hash-object", "-w", "--stdin", given=content)
            git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    message = gits.git_bytes(clone.root, "log", "-1", "--format=%B", before)
    commit = git("commit-tree", git("write-tree"), "-p", f"{before}^", given=message)
    clone.git("update-ref", clone.git("for-each-ref", "--format=%(refname)", "refs/exps"), commit)
    return commit


@pytest.mark.slow
def test_a_rewritten_ref_is_named(clone: Clone) -> None:
    rewrite(clone, {"params.yaml": b"recipe: {path: recipes/tiny}\ntraffic: {file: data/inbox/window.jsonl}\n"})
    assert broken(ask(clone)) == [("entry", "asks for the promotion of", "run")]


def ask_rewritten(clone: Clone, changes: dict[str, bytes | None]) -> Audit:
    """Audit the run after its revision was made anew, and nothing signed names the old one."""
    record = records.load_all(clone)[0]
    records.save(clone, record.model_copy(update={"revision": rewrite(clone, changes)}))
    forget_ledger(clone)
    return ask(clone, record.name)


@pytest.mark.slow
def test_an_engine_that_was_installed_in_another_version_is_told(clone: Clone) -> None:
    """The scripted stages are not those of the package that is installed here."""
    found = [link for link in ask_rewritten(clone, {"agent_rft.py": None}).links if link.says == "ran the code"]
    assert {link.state for link in found} == {"not verifiable"}
    assert all("it ran another version of the engine, of agent-rft 0" in link.why for link in found), found


def forget_ledger(clone: Clone) -> None:
    clone.git("update-ref", "-d", "refs/rft/ledger")
    (clone.state / "ledger/seen.json").unlink()
    (clone.root / "infra/ledger.yaml").unlink(missing_ok=True)


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "a parameter": ("params.yaml", lambda raw: raw.replace(b"alpha: ", b"alpha: 1"), "had the settings"),
    "code": ("rft/types.py", lambda raw: raw + b"\n# changed\n", "ran the code"),
    "the pins": ("data/engine/PINS.json", lambda raw: raw.replace(b': "', b': "9'), "ran the code"),
    "the engine's hashes": ("data/engine/gate.json", lambda raw: raw.replace(b': "', b': "9'), "ran the code"),
    "the recipe": ("recipes/tiny/examples.py", lambda raw: raw + b"\n# changed\n", "read"),
    "the package list": ("data/environment.json", lambda raw: raw.replace(b'"pytest": "', b'"pytest": "9'), "ran with"),
    "no package list": ("data/environment.json", lambda raw: None, "ran with"),
    "dvc.lock": ("dvc.lock", lambda raw: raw.replace(b"cmd: exec rft-stage drift", b"cmd: true"), "ran"),
    "the champion": ("data/champion/champion.json", lambda raw: raw.replace(b"0", b"7", 1), "read"),
    "the registration": ("data/registration/registration.json", lambda raw: raw.replace(b"1", b"2"), "ran the code"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_that_nothing_signed_names_is_checked_inside_itself(clone: Clone, what: str) -> None:
    """Its ref was rewritten, with a record that fits: the revision contradicts itself."""
    name, change, says = CHANGES[what]
    found = ask_rewritten(clone, {name: change(at(clone).file(name) or b"")})
    assert says in {link.says for link in found.broken()}, found.broken()


@pytest.mark.slow
def test_a_blob_with_other_bytes_under_its_name_is_named(clone: Clone) -> None:
    name = clone.git("rev-parse", f"{at(clone).commit}:rft/types.py")
    path = clone.root / ".git/objects" / name[:2] / name[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 5\0other"))
    assert ("run", "was recorded as", "revision") in broken(ask(clone))


@pytest.mark.slow
def test_a_compromised_key_makes_what_it_signed_doubtful(clone: Clone) -> None:
    ada, bob = people.signer("Ada"), people.signer("Bob")
    acts.change(clone, Enrol(name="bob", roles=["owner"], key=bob.key.public), ada, "a second one")
    acts.change(clone, Compromised(key=ada.key.fingerprint, since=4), bob, "her laptop was stolen")
    found = ask(clone)
    assert {each.state for each in found.broken()} == {"doubtful"}
    assert ("version", "was made by", "entry") in broken(found)


@pytest.mark.slow
def test_a_champion_that_was_trained_on_another_rests_on_both(
    clone: Clone, clone_with_run: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = clone_with_run.root.parent / "script"
    second = ladder_clone.run_ladder(ladder_clone.Scripted(clone, script))
    people.approve(clone, second.name)
    found = ask(clone)
    assert found.broken() == []
    first = next(record for record in records.load_all(clone) if record.name != second.name)
    assert {node.name for node in found.nodes if node.kind == "run"} == {f"run {first.name}", f"run {second.name}"}
    assert link(found, "were trained on those of").target == "version:tiny@6"
    assert any(each.says == "read" and each.target.endswith("data/champion") for each in found.links)
    answer = upwards(clone, "conversation", "c-7").answer
    assert answer[1] == "2 versions rest on it:"
    assert set(audit.conversations(clone, Question("champion"))["c-7"]) == {first.name, second.name}


@pytest.mark.slow
def test_a_run_that_nobody_promoted_rests_on_the_champion_it_began_with(clone: Clone, clone_with_run: Clone) -> None:
    script = Path(shutil.copytree(clone_with_run.root.parent / "script", clone.root.parent / "script"))
    ladder_clone.write_window(clone.root, (ladder_clone.small(number) for number in range(2_000, 3_200)))
    second = ladder_clone.run_ladder(ladder_clone.Scripted(clone, script))
    answer = upwards(clone, "conversation", "c-7").answer
    assert answer[-2:] == ["1 run more rests on it:", f"  run {second.name}: began with the weights of champion 6"]


# -- upwards ---------------------------------------------------------------------------------------
def upwards(clone: Clone, way: str, value: str) -> Audit:
    return ask(clone, sought=Sought(way, value))  # type: ignore[arg-type]


def test_from_a_conversation_to_the_version_that_rests_on_it(clone: Clone) -> None:
    run = records.load_all(clone)[0].name
    found = upwards(clone, "conversation", "c-7")
    assert found.answer == [
        f"1 of 1 run holds conversation c-7: {run}.",
        "1 version rests on it:",
        "  tiny, champion 6: its own run, served now",
    ]
    assert found.broken() == []
    none = upwards(clone, "conversation", "c-0")
    assert none.answer == ["None of 1 run hold conversation c-0.", "No version that was ever promoted rests on it."]
    assert audit.conversations(clone, Question("champion")) == {f"c-{n}": [run] for n in range(1, 1201)}


def test_a_run_that_cannot_be_searched_is_never_a_no(clone: Clone) -> None:
    (md5,) = (md5 for name, md5 in at(clone).files(str(stage_files.CONVERSATIONS)) if name.endswith(".parquet"))
    (clone.dvc_cache / "files/md5" / md5[:2] / md5[2:]).unlink()
    found = upwards(clone, "conversation", "c-0")
    assert any("NOT SEARCHED" in line for line in found.answer)
    assert [link.state for link in found.broken()] == ["missing"]


@pytest.mark.parametrize("way", ["example", "package", "base model", "hash", "person"])
def test_from_other_things(clone: Clone, way: str) -> None:
    weights = book.read(clone).state.requests[3].act.content.weights_sha256 or ""
    values = {"example": "train-1", "package": "pytest", "base model": "data/policy/model", "person": "ada"}
    found = upwards(clone, way, values.get(way, weights[:20]))
    assert "  tiny, champion 6: its own run, served now" in found.answer
    assert found.broken() == []


@pytest.mark.slow
def test_what_does_not_exist_is_an_error(clone: Clone) -> None:
    for question, message in (
        (Question("99"), "ends with entry"),
        (Question("tiny@3"), "not a promotion"),
        (Question("other@champion"), "no model 'other'"),
        (Question("no-such-run"), "no run named"),
        (Question(sought=Sought("hash", "xyz")), "is not a hash"),
        (Question(sought=Sought("hash", "0123456789")), "nothing has hash"),
        (Question(sought=Sought("person", "eve")), "nobody named 'eve'"),
    ):
        with pytest.raises(UserError, match=message):
            audit.ask(clone, question, report_line=lambda _: None)


@pytest.mark.slow
def test_everything(clone: Clone) -> None:
    found = ask(clone, every=True)
    assert found.broken() == []
    assert {node.name for node in found.nodes if node.kind == "version"} == {"tiny, champion 6", "tiny, the beginning"}


# -- what cannot be looked at ----------------------------------------------------------------------
@pytest.mark.slow
def test_a_revision_of_a_newer_version_is_not_green(clone: Clone) -> None:
    record = records.load_all(clone)[0]
    message = gits.git_bytes(clone.root, "log", "-1", "--format=%B", at(clone).commit)
    newer = message.replace(b'{\n "name"', b'{\n "from_the_future": 1,\n "name"')
    assert newer != message
    tree = clone.git("rev-parse", f"{at(clone).commit}^{{tree}}")
    commit = gits.git(clone.root, "commit-tree", tree, "-p", record.commit, given=newer)
    clone.git("update-ref", clone.git("for-each-ref", "--format=%(refname)", "refs/exps"), commit)
    records.save(clone, record.model_copy(update={"revision": commit, "name": "newer"}))
    found = ask(clone, every=True)
    told = [each for each in found.links if each.says == "was recorded as" and "newer version" in each.why]
    assert [each.state for each in told] == ["not verifiable"]


def test_a_revision_that_git_lost_is_missing(clone: Clone) -> None:
    name = at(clone).commit
    (clone.root / ".git/objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(UserError, match=r"entry 3 .* revision"):
        ask(clone)


@pytest.mark.slow
def test_an_mlflow_that_is_detached_is_named(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = ask(clone)
    shown = [each for each in found.links if each.source.startswith("alias:mlflow")]
    assert {each.state for each in shown} == {"not verifiable"}
    assert all("not reachable" in each.why for each in shown)


@pytest.mark.slow
def test_a_replaced_object_does_not_deceive(clone: Clone) -> None:
    """`git replace` shows other bytes under a recorded name."""
    other = gits.git(clone.root, "hash-object", "-w", "--stdin", given=b"registered: true\n")
    told = clone.git("rev-parse", f"{at(clone).commit}:data/registration/registration.json")
    clone.git("replace", told, other)
    assert ask(clone).broken() == []


def test_tools_that_run_elsewhere_are_not_verifiable(clone: Clone) -> None:
    params = yaml.safe_load(at(clone).file("params.yaml") or b"")
    params["tools"] |= {"server_url": "https://tools.example", "version": "2026-11"}
    rewrite(clone, {"params.yaml": yaml.safe_dump(params).encode()})
    forget_ledger(clone)
    called = [each for each in ask(clone, records.load_all(clone)[0].name).links if each.says == "called"]
    assert len(called) == 4
    assert {each.state for each in called} == {"not verifiable"}
    assert "2026-11" in called[0].why


@pytest.mark.slow
def test_what_is_behind_was_not_moved(clone: Clone, clone_with_run: Clone) -> None:
    """As in a clone that another one promoted past."""
    database, file = clone.root / "mlruns/mlflow.db", clone.state / "champion/tiny.json"
    before = database.read_bytes(), file.read_bytes()
    second = ladder_clone.run_ladder(ladder_clone.Scripted(clone, clone_with_run.root.parent / "script"))
    people.approve(clone, second.name)
    database.write_bytes(before[0])
    file.write_bytes(before[1])
    found = ask(clone)
    assert found.broken() == []
    shows = [each for each in found.links if each.says == "shows" and each.target.startswith("version")]
    assert {each.state for each in shows} == {"not verifiable"}
    assert all("is behind" in each.why for each in shows)


@pytest.mark.slow
def test_a_recipe_that_is_not_the_registered_one_is_named(
    clone_with_run: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that nobody asked to promote: its registration is all that is signed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = Clone(Path(shutil.copytree(clone_with_run.root, tmp_path / "clone", symlinks=True)))
    name = records.load_all(there)[0].name
    assert link(ask(there, name), "named the grader in").state == "verified"
    file = "recipes/tiny/examples.py"
    commit = rewrite(there, {file: (at(there).file(file) or b"") + b"\n# changed\n"})
    records.save(there, records.load_all(there)[0].model_copy(update={"revision": commit}))
    assert ("entry", "named the grader in", "recipe") in broken(ask(there, name))


@pytest.mark.parametrize("text", ["{}", "recipe: {path: 7}\n", "[", "recipe: {path: recipes/tiny}\ntraffic: null\n"])
def test_settings_that_no_run_wrote_are_altered(clone: Clone, text: str) -> None:
    commit = rewrite(clone, {"params.yaml": text.encode()})
    record = records.load_all(clone)[0]
    records.save(clone, record.model_copy(update={"revision": commit}))
    forget_ledger(clone)
    assert broken(ask(clone, record.name)) == [("run", "was recorded as", "revision")]
