"""Moving the champion: only on a decision whose every hash holds, once, and back again; and the
ledger of it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import ladder_clone
import pytest

from rft import config, files, reports
from rft.errors import InfrastructureError, UserError
from tasks import ladder
from tasks.display import tracking
from tasks.promotion import agents, ledger, registry
from tasks.promotion.registry import Registry
from tasks.runs import records
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with one recorded run that the gate would promote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        scripted = ladder_clone.make(tmp_path_factory.mktemp("registry"))
        assert ladder_clone.climb(scripted).decision == "promote"
        tracking.client(scripted.clone)  # its tables are made once
    return scripted.clone


@pytest.fixture
def here(climbed: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return Clone(Path(shutil.copytree(climbed.root, tmp_path / "clone")))


def only(clone: Clone) -> RunRecord:
    return records.load_all(clone)[0]


def params(clone: Clone) -> config.Params:
    return config.load(clone.root / "params.yaml")


def change(clone: Clone, **changes: object) -> RunRecord:
    record = only(clone).model_copy(update=changes)
    records.save(clone, record)
    return record


def test_approve_serve_roll_back_and_approve_again(here: Clone) -> None:
    record = only(here)
    act = registry.approve(here, record, "Ada", "half the calls")
    assert (act.before, act.after, act.own_run, act.overrides) == ("1", "2", False, [])
    held = Registry(here, "tiny")
    assert (held.version_at("champion"), held.version_at("previous")) == ("2", "1")
    tags = held.tags("2")
    weights = here.root / ".dvc/cache/files/md5" / tags["dvc.md5"][:2] / tags["dvc.md5"][2:]
    assert (tags["run"], tags["dvc.path"], weights.exists()) == (record.name, "data/train/weights", True)
    prompt = held._client.get_prompt_version_by_alias(held.prompt_name, "champion")
    served = registry.served(here, params(here))
    assert served.champion.prompt is not None
    assert prompt.template == served.champion.prompt.system

    assert registry.approve(here, record, "Bob", "again").who == "Ada", "it is champion already"
    with runs.start(here, runs.plan(here, params(here), served)) as run:
        shelf = run.shelf("champion")
        champion = reports.read(reports.Champion, shelf / "champion.json")
        assert (champion.version, champion.run, champion.weights) == (2, record.name, "lora")
        assert files.tree_sha256(shelf / (champion.weights_path or "")) == champion.weights_sha256
        assert (shelf / (champion.profile_path or "")).exists()
    at = Revision(here, run.record.revision or "")
    assert at.file("data/champion/weights.dvc") is not None
    assert at.file("data/champion/weights/model.bin") is None, "Git holds hashes, DVC bytes"
    assert at.tree_sha256("data/champion/weights") == champion.weights_sha256

    # N12: another base model than its weights fit is refused before a warm start is spent
    changed = params(here).model_copy(update={"policy": config.Policy(seed=7)})
    with pytest.raises(
        UserError,
        match=rf"policy\.seed: changed since run {record.name}, .* rollback --model tiny --by NAME --reason TEXT",
    ):
        runs.plan(here, changed, served)

    back = registry.rollback(here, "tiny", "Ada", "complaints")
    assert (back.before, back.after, back.run) == ("2", "1", None)
    assert registry.served(here, params(here)).champion == reports.Champion()
    with pytest.raises(UserError, match="no @previous version"):
        registry.rollback(here, "tiny", "Ada", "further")
    assert registry.approve(here, record, "Ada", "it was not us").after == "2"
    assert [one.action for one in ledger.acts(here)] == ["promote", "rollback", "promote"]


def champion_on_page(clone: Clone, record: RunRecord) -> str:
    text = ladder.write_page(clone, record, clone.root / "nothing").read_text()
    return re.search(r"champion</[^>]+>\s*<[^>]+>([^<]*)<", text)[1]  # type: ignore[index]


def test_a_version_has_one_number_wherever_it_is_named(here: Clone) -> None:
    """N5: the champion's file, the run's record and page, the registry, the ledger and the message,
    before, between and after."""

    def numbers(run: RunRecord) -> set[object]:
        in_file = json.loads(Revision(here, run.revision or "").file("data/champion/champion.json") or b"")["version"]
        return {in_file, run.champion_version, registry.served(here, params(here)).champion.version}

    def another() -> RunRecord:
        with runs.start(here, runs.plan(here, params(here), registry.served(here, params(here)))) as run:
            run.update(state="stopped")
        return run.record

    record = only(here)
    assert numbers(record) == {1}
    assert json.loads((here.root / "data/champion/champion.json").read_text())["version"] == 1, (
        "the file that the repository comes with"
    )
    assert champion_on_page(here, record) == "version 1, the beginning"
    act = registry.approve(here, record, "Ada", "why")
    assert (act.before, act.after) == ("1", "2")
    second = another()
    assert numbers(second) == {2}
    assert champion_on_page(here, second) == "version 2"
    back = registry.rollback(here, registry.model_name(params(here)), "Ada", "why")
    assert (back.before, back.after) == ("2", "1")
    assert numbers(another()) == {1}


def test_the_beginning_is_known_though_others_had_registered_a_version_first(here: Clone) -> None:
    """It is not number 1 then, and was called a version of other hands; of theirs it was said that
    it is the beginning."""
    client, model = tracking.client(here), registry.model_name(params(here))
    client.create_registered_model(model)
    client.create_model_version(model, source="elsewhere:/theirs")
    act = registry.approve(here, only(here), "Ada", "better")
    assert (act.before, act.after) == ("2", "3")
    first = registry.first_promoted(here, model)
    assert first is not None
    assert first.number == 3
    assert registry.rollback(here, model, "Ada", "complaints").after == "2"
    assert agents.find(here, "champion").served.champion.version == 1
    with pytest.raises(UserError, match="version 1 was registered by other hands"):
        agents.find(here, "1")


def test_a_run_that_was_judged_when_the_beginning_was_called_0_can_be_approved(here: Clone) -> None:
    assert registry.approve(here, change(here, champion_version=0), "Ada", "why").after == "2"


def test_what_cannot_be_approved(here: Clone) -> None:
    with pytest.raises(UserError, match=r"uncommitted code .*a.py.*--override-dirty"):
        registry.approve(here, change(here, edits_sha256="e", edited=["a.py"]), "Ada", "why")
    with pytest.raises(UserError, match="judged against champion version 3, but version 1, the beginning is served"):
        registry.approve(here, change(here, edits_sha256=None, champion_version=3), "Ada", "why")
    with pytest.raises(UserError, match="is not over"):
        registry.approve(here, only(here).model_copy(update={"revision": None, "state": "running"}), "Ada", "why")
    record = change(here, champion_version=1)
    no = registry.reject(here, record, "Ada", "the notes look odd")
    assert no.action == "reject"
    with pytest.raises(UserError, match=r"was rejected by Ada.*the notes look odd"):
        registry.approve(here, record, "Bob", "why")
    with pytest.raises(UserError, match="was decided already"):
        registry.reject(here, record, "Bob", "why")
    assert len(ledger.acts(here)) == 1


@pytest.mark.parametrize(
    ("scenario", "words"), [("reject", "the gate itself decided reject"), ("drift_stop", "came to no decision")]
)
def test_a_run_that_the_gate_did_not_promote_cannot_be_approved(
    scenario: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a", scenario)  # type: ignore[arg-type]
    store = scripted.root / "mlruns/mlflow.db"
    empty = store.read_bytes()
    if scenario == "reject":
        record = ladder_clone.climb(scripted)
    else:
        with runs.start(
            scripted.clone,
            runs.plan(scripted.clone, params(scripted.clone), registry.served(scripted.clone, params(scripted.clone))),
        ) as run:
            run.update(state="stopped", message="drifted")
        record = run.record
    for decide in (registry.approve, registry.reject):
        with pytest.raises(UserError, match=words):
            decide(scripted.clone, record, "Ada", "why")
    assert ledger.acts(scripted.clone) == []
    assert store.read_bytes() == empty


def test_an_override_and_an_own_run_stand_in_the_ledger(here: Clone) -> None:
    record = change(here, edits_sha256="e", edited=["a.py"], started_by="Ada")
    act = registry.approve(here, record, "ada", "I know what I do", override_dirty=True)
    assert (act.overrides, act.own_run) == (["dirty"], True)
    assert ledger.acts(here) == [act]


@pytest.mark.parametrize("path", ["data/train/weights", "data/gate/decision.json", "data/gate/request.json"])
def test_bytes_that_were_changed_stop_a_promotion(here: Clone, path: str) -> None:
    at = Revision(here, only(here).revision or "")
    md5 = dict(at.files(path))["model.bin"] if at.outs[path].is_folder else at.outs[path].md5
    cached = here.dvc_cache / "files/md5" / md5[:2] / md5[2:]
    kept = cached.read_bytes()
    cached.chmod(0o644)
    cached.write_bytes(kept.replace(b"e", b"a"))
    with pytest.raises(InfrastructureError, match="was changed: its bytes are not those"):
        registry.approve(here, only(here), "Ada", "why")
    cached.unlink()
    with pytest.raises(InfrastructureError, match="is not in this clone's DVC cache"):
        registry.approve(here, only(here), "Ada", "why")
    assert registry.served(here, params(here)).champion == reports.Champion()
    cached.write_bytes(kept)
    assert registry.approve(here, only(here), "Ada", "why").after == "2"


class Cut(Exception):
    """The power went."""


@pytest.mark.parametrize("step", range(6))
def test_a_promotion_that_was_cut_off_is_finished_at_the_next_start(
    here: Clone, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left = [step]

    def cut(real):
        def wrapped(*arguments, **named):
            if left[0] == 0:
                raise Cut
            left[0] -= 1
            return real(*arguments, **named)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "version_of", cut(Registry.version_of))
        patch.setattr(Registry, "point", cut(Registry.point))
        patch.setattr(ledger, "append", cut(ledger.append))
        patch.setattr(Path, "unlink", cut(Path.unlink))
        with pytest.raises(Cut):
            registry.approve(here, only(here), "Ada", "why")
    served = registry.served(here, params(here))
    assert served.champion.version == 2
    assert Registry(here, "tiny").version_at("previous") == "1"
    [act] = ledger.acts(here)
    assert (act.before, act.after) == ("1", "2")
    assert ledger.announced(here) is None
    assert len(Registry(here, "tiny")._client.search_model_versions("name = 'tiny'")) == 2


def test_a_torn_line_is_written_again_and_a_damaged_one_is_named(here: Clone) -> None:
    act = registry.reject(here, only(here), "Ada", "no: ähnlich")
    with here.ledger.open("ab") as file:
        file.write(b'{"id": "half')
    assert ledger.acts(here) == [act]
    ledger.append(here, act)
    other = act.model_copy(update={"id": "other"})
    ledger.append(here, other)
    assert ledger.acts(here) == [act, other]
    assert [json.loads(line)["who"] for line in here.ledger.read_text().splitlines()] == ["Ada", "Ada"]
    here.ledger.write_text("{}\n")
    with pytest.raises(UserError, match=r"ledger\.jsonl:1: not an entry"):
        ledger.acts(here)
