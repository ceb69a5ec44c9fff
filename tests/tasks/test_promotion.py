"""Making a run the champion: only on a decision whose every hash holds, once, and back again; and
what shows the champion elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import ladder_clone
import people
import pytest

from rft import config, files, reports
from rft.errors import InfrastructureError, UserError
from tasks import stage_runner
from tasks.display import tracking
from tasks.display.tracking import Tracker
from tasks.ledger import book, chain, keys, memory, statement
from tasks.ledger.authorise import Refused
from tasks.ledger.clocks import WrongClock
from tasks.ledger.entry import Reconcile
from tasks.ledger.policy import Enrol, Remove, Rules, SetClocks, SetRules
from tasks.promotion import acts, agents, champions, projections
from tasks.promotion.mlflow_registry import MLflowRegistry
from tasks.runs import champion, records
from tasks.runs import run as runs
from tasks.runs.artifacts import Revision
from tasks.runs.champion import Served
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord


def only(clone: Clone) -> RunRecord:
    return records.load_all(clone)[0]


def params(clone: Clone) -> config.Params:
    return config.load(clone.root / "params.yaml")


def judged_against(number: int) -> Served:
    return Served(reports.Champion(version=number))


def shown(clone: Clone, model: str = "tiny") -> tuple[int | None, int | None]:
    found = MLflowRegistry(clone).shown(model)
    assert found
    return found.champion, found.previous


def prompt_shown(clone: Clone) -> str:
    return tracking.client(clone).get_prompt_version_by_alias("tiny-prompt", "champion").template


@pytest.mark.slow
def test_a_request_after_an_entry_of_a_clock_that_ran_ahead_waits_as_long_as_any(
    here: Clone, run_ladder: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its expiry is counted from the entry's time, which is never before that of the last one. An
    owner must say that clocks are not compared: else nobody could append after such an entry."""
    with monkeypatch.context() as patch:
        patch.setattr(statement, "now", lambda: "2041-01-01T00:00:00Z")
        record = run_ladder(rollout=params(here).rollout.model_copy(update={"max_turns": 5}))
    with pytest.raises(WrongClock, match=r"the ledger's last entry is of 2041-.* rft ledger clocks --reason TEXT"):
        people.approve(here, record.name)
    acts.change(here, SetClocks(until="2041-02-01T00:00:00Z"), people.signer("Ada"), "its battery was flat")
    people.approve(here, record.name)
    [request] = book.read(here).state.requests.values()
    assert request.act.expires == "2041-01-31T00:00:00Z"
    assert request.promoted


@pytest.mark.slow
def test_approve_serve_roll_back_and_approve_again(here: Clone) -> None:
    record = only(here)
    made = people.approve(here, record.name).promoted
    assert made is not None
    assert (made.before, made.who, made.own_run, made.why) == (0, "ada", False, "half the calls")
    assert shown(here) == (made.number, 0)
    tags = tracking.client(here).get_model_version_by_alias("tiny", "champion").tags
    weights = here.root / ".dvc/cache/files/md5" / tags["dvc.md5"][:2] / tags["dvc.md5"][2:]
    assert (tags["run"], tags["dvc.path"], weights.exists()) == (record.name, "data/train/weights", True)
    served = champions.of_params(here, params(here))
    assert served.champion.prompt is not None
    assert prompt_shown(here) == served.champion.prompt.system

    entries = book.read(here).state.number
    again = people.approve(here, record.name, "Ada", "again").promoted
    assert again == made, "it is champion already"
    assert book.read(here).state.number == entries
    with runs.start(here, runs.plan(here, params(here), served)) as run:
        stage_folder = run.stage_folder("champion")
        found = reports.read(reports.Champion, stage_folder / "champion.json")
        assert (found.version, found.run, found.weights) == (made.number, record.name, "lora")
        assert files.tree_sha256(stage_folder / (found.weights_path or "")) == found.weights_sha256
        assert (stage_folder / (found.profile_path or "")).exists()
    at = Revision(here, run.record.revision or "")
    assert at.file("data/champion/weights.dvc") is not None
    assert at.file("data/champion/weights/model.bin") is None, "Git holds hashes, DVC bytes"
    assert at.tree_sha256("data/champion/weights") == found.weights_sha256

    # N12: another base model than its weights fit is refused before a warm start is spent
    changed = params(here).model_copy(update={"policy": config.Policy(seed=7)})
    with pytest.raises(
        UserError, match=rf"policy\.seed: changed since run {record.name}, .* rollback --model tiny --reason TEXT"
    ):
        runs.plan(here, changed, served)

    back = acts.rollback(here, "tiny", people.signer("Ada"), "complaints")
    assert (back.before, back.to, back.problems) == (made.number, None, ())
    assert champions.of_params(here, params(here)).champion == reports.Champion()
    assert shown(here) == (0, None)
    with pytest.raises(UserError, match="at its beginning"):
        acts.rollback(here, "tiny", people.signer("Ada"), "further")
    third = people.approve(here, record.name, "Ada", "it was not us").promoted
    assert third is not None
    assert third.number > made.number, "a promotion is its entry"
    assert shown(here) == (third.number, 0)
    kinds = [each.entry.act.kind for each in book.read(here, reverify=True).stored]
    once = ["approval", "promotion"]
    assert kinds == ["genesis", "registration", "request", "policy", *once, "rollback", *once]


@pytest.mark.slow
def test_r11_a_rollback_to_the_beginning_restores_the_seed_prompts_alias(here: Clone) -> None:
    people.approve(here, only(here).name)
    promoted = prompt_shown(here)
    acts.rollback(here, "tiny", people.signer("Ada"), "complaints")
    report = Revision(here, only(here).revision or "").report(reports.PromptReport)
    assert report is not None
    seed = report.candidates[0].settings if report.candidates else report.winner
    assert prompt_shown(here) == seed.system != promoted


def champion_on_page(clone: Clone, record: RunRecord) -> str:
    text = stage_runner.write_page(clone, record, clone.root / "nothing").read_text()
    return re.search(r"champion</[^>]+>\s*<[^>]+>([^<]*)<", text)[1]  # type: ignore[index]


@pytest.mark.slow
def test_a_champion_has_one_number_wherever_it_is_named(here: Clone) -> None:
    """N5: the champion's file, the run's record and page, the registry, the ledger and the message,
    before, between and after."""

    def numbers(run: RunRecord) -> set[object]:
        in_file = json.loads(Revision(here, run.revision or "").file("data/champion/champion.json") or b"")["version"]
        return {in_file, run.champion_version, champions.of_params(here, params(here)).champion.version}

    def another() -> RunRecord:
        with runs.start(here, runs.plan(here, params(here), champions.of_params(here, params(here)))) as run:
            run.update(state="stopped")
        return run.record

    record = only(here)
    assert numbers(record) == {0}
    assert json.loads((here.root / "data/champion/champion.json").read_text())["version"] == 0, (
        "the file that the repository comes with"
    )
    assert champion_on_page(here, record) == "the beginning"
    made = people.approve(here, record.name).promoted
    assert made is not None
    second = another()
    assert numbers(second) == {made.number}
    assert champion_on_page(here, second) == f"champion {made.number}"
    in_file = json.loads((here.state / "champion/tiny.json").read_text())
    assert (in_file["champion"]["version"], in_file["revision"]) == (made.number, record.revision)
    assert acts.rollback(here, "tiny", people.signer("Ada"), "why").to is None
    assert numbers(another()) == {0}


@pytest.mark.slow
def test_a_run_that_was_judged_when_the_beginning_was_called_1_can_be_approved(here: Clone, run_ladder) -> None:
    assert people.approve(here, run_ladder(served=judged_against(1)).name).promoted


@pytest.mark.slow
def test_what_cannot_be_approved(here: Clone, run_ladder) -> None:
    name = run_ladder(edited=True).name
    with pytest.raises(UserError, match=r"uncommitted code .*a.py.*--override-dirty"):
        people.approve(here, name)
    assert [each.entry.act.kind for each in book.read(here).stored][-1] == "approval"
    made = people.approve(here, name, "Ada", "I know what I do", override=True).promoted
    assert made is not None
    assert [override.person for override in made.overrides] == ["ada"]


@pytest.mark.slow
def test_a_request_says_what_the_revision_holds_whatever_this_clones_record_says(here: Clone, run_ladder) -> None:
    """A record is a file: one line of an editor made a dirty run clean, and of Ada's run Eve's."""
    record = run_ladder(edited=True)
    lies = {"edits_sha256": None, "edited": [], "champion_version": 7, "key": "x", "started_by": "Eve", "start": None}
    changed = record.model_copy(update=lies)
    records.save(here, changed)
    lines: list[str] = []
    asked = acts.request_promotion(here, changed, lines.append).act
    assert (asked.edited, asked.champion, asked.key) == (["a.py"], 0, record.key)
    assert (asked.started_by, asked.revision) == (record.started_by, record.revision)
    assert re.fullmatch("[0-9a-f]{64}", asked.edits_sha256 or "")
    assert "holds files that its commit does not (a.py)" in lines[0]
    with pytest.raises(Refused, match=r"uncommitted code \(a.py\).*--override-dirty"):
        people.approve(here, record.name)


@pytest.mark.slow
def test_a_record_that_was_changed_before_the_run_ended_hides_no_edits(here: Clone, run_ladder) -> None:
    record = run_ladder(edited=True, begun=lambda run: run.update(edits_sha256=None, edited=[]))
    assert not record.dirty
    with pytest.raises(Refused, match=r"uncommitted code \(a.py\).*--override-dirty"):
        people.approve(here, record.name)


@pytest.mark.slow
def test_a_record_that_names_another_runs_revision_is_refused(here: Clone, run_ladder) -> None:
    clean, dirty = only(here), run_ladder(edited=True)
    records.save(here, dirty.model_copy(update={"revision": clean.revision}))
    with pytest.raises(UserError, match=rf"for run {dirty.name}, is that of run {clean.name}"):
        people.approve(here, dirty.name)
    records.save(here, dirty.model_copy(update={"revision": clean.commit}))
    with pytest.raises(UserError, match="came to no decision"):
        people.approve(here, dirty.name)
    assert not book.read(here).state.requests


@pytest.mark.slow
def test_a_run_is_not_mistaken_for_another_whose_name_goes_on(here: Clone, run_ladder) -> None:
    """Names of one minute differ in a letter at the end, and only the longer one was asked for."""
    first, longer = only(here), run_ladder()
    longer = longer if longer.name.startswith(first.name) else run_ladder()
    acts.request_promotion(here, longer)
    assert agents.find(here, first.name).run == first.name
    assert people.approve(here, first.name).request.act.run == first.name


def test_nothing_is_signed_while_it_is_unknown_which_words_are_secret(here: Clone) -> None:
    (here.root / "params.yaml").write_text("run: {notify: [")
    head = book.read(here).head
    with pytest.raises(UserError, match=r"params\.yaml: not YAML .*the secrets that it names are unknown"):
        acts.change(here, SetRules(model=None, rules=Rules(approvers=2)), people.signer("Ada"), "the key is hunter2")
    assert book.read(here).head == head


@pytest.mark.slow
def test_what_takes_long_does_not_hold_the_ledger(here: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval hashes every byte of the weights, and may fetch them first."""
    name, is_free = only(here).name, []
    acts.request_promotion(here, only(here))

    def watched(at: Revision, request: object) -> None:
        with records.held(book.lock(here)) as free:
            is_free.append(free)
        real(at, request)  # type: ignore[arg-type]

    real = agents.assert_same
    monkeypatch.setattr(agents, "assert_same", watched)
    people.approve(here, name)
    assert is_free
    assert all(is_free)


def test_a_request_against_another_champion_is_refused(here: Clone, run_ladder) -> None:
    with pytest.raises(Refused, match="would be judged against champion 3 of tiny, but the beginning is served"):
        run_ladder(served=judged_against(3))
    with pytest.raises(UserError, match="is not over"):
        acts.request_promotion(here, only(here).model_copy(update={"revision": None, "state": "running"}))


@pytest.mark.slow
def test_r9_a_no_holds_for_prompt_and_weights_whatever_run_brings_them(here: Clone, run_ladder) -> None:
    first = only(here)
    no = acts.reject(here, first.name, people.signer("Ada"), "the notes look odd")
    assert no.person == "ada"
    with pytest.raises(Refused, match=r"rejected by ada .*the notes look odd.*--lift"):
        people.approve(here, first.name)
    again = run_ladder()
    assert again.name != first.name
    with pytest.raises(Refused, match="A no holds for them in whatever run"):
        people.approve(here, again.name)
    with pytest.raises(Refused, match="rejected by ada"):
        acts.reject(here, first.name, people.signer("Ada"), "why")
    acts.lift(here, first.name, people.signer("Ada"), "they are right")
    assert people.approve(here, again.name).promoted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "message"), [("reject", "the gate itself decided reject"), ("drift_stop", "came to no decision")]
)
def test_a_run_that_the_gate_did_not_promote_cannot_be_approved(
    scenario: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a", scenario)  # type: ignore[arg-type]
    store = scripted.root / "mlruns/mlflow.db"
    empty = store.read_bytes()
    if scenario == "reject":
        record = ladder_clone.run_ladder(scripted)
    else:
        with runs.start(
            scripted.clone,
            runs.plan(scripted.clone, params(scripted.clone), champion.BEGINNING),
        ) as run:
            run.update(state="stopped", message="drifted")
        record = run.record
    for decide in (acts.approve, acts.reject):
        with pytest.raises(UserError, match=message):
            decide(scripted.clone, record.name, people.signer("Ada"), "why")
    assert not book.read(scripted.clone).state.requests
    assert store.read_bytes() == empty


@pytest.mark.slow
@pytest.mark.parametrize("path", ["data/train/weights", "data/gate/decision.json", "data/gate/request.json"])
def test_bytes_that_were_changed_stop_a_promotion(here: Clone, path: str) -> None:
    name = only(here).name
    acts.request_promotion(here, only(here))
    at = Revision(here, only(here).revision or "")
    md5 = dict(at.files(path))["model.bin"] if at.outs[path].is_folder else at.outs[path].md5
    cached = here.dvc_cache / "files/md5" / md5[:2] / md5[2:]
    kept = cached.read_bytes()
    cached.chmod(0o644)
    cached.write_bytes(kept.replace(b"e", b"a"))
    with pytest.raises(InfrastructureError, match="was changed: its bytes are not those"):
        people.approve(here, name)
    cached.unlink()
    with pytest.raises(InfrastructureError, match=r"failed in|is not in this clone's DVC cache"):
        people.approve(here, name)
    assert champions.of_params(here, params(here)).champion == reports.Champion()
    cached.write_bytes(kept)
    assert people.approve(here, name).promoted


def test_an_approval_is_of_the_content_that_was_asked_for(here: Clone) -> None:
    """A request whose hashes are not those of its revision: by a machine that lies."""
    acts.request_promotion(here, only(here))
    with book.opened(here) as ledger:
        request = acts.find(ledger, only(here).name)
        content = request.act.content.model_copy(update={"decision_sha256": "0" * 64})
        ledger.append(request.act.model_copy(update={"run": "a-lie", "content": content}))
    with pytest.raises(UserError, match=r"decision_sha256 of its revision .* are not those"):
        people.approve(here, "a-lie")


# -- what shows the champion -----------------------------------------------------------------------
@pytest.mark.slow
def test_what_somebody_moved_by_hand_is_recorded_and_set_right(here: Clone) -> None:
    made = people.approve(here, only(here).name).promoted
    assert made is not None
    client = tracking.client(here)
    beginning = client.get_model_version_by_alias("tiny", "previous").version
    client.set_registered_model_alias("tiny", "champion", beginning)
    assert projections.reconcile(here) == []
    assert shown(here) == (made.number, 0)
    last = book.read(here).stored[-1].entry.act
    assert isinstance(last, Reconcile)
    assert (last.projection, last.found, last.set) == (
        "MLflow registry",
        f"@champion on version {beginning}, @previous on {beginning}",
        f"champion {made.number}",
    )
    assert projections.reconcile(here) == []
    assert book.read(here).stored[-1].entry.act == last, "nothing was wrong any more"
    (here.state / "champion/tiny.json").write_text("{}")
    assert projections.reconcile(here) == []
    assert json.loads((here.state / "champion/tiny.json").read_text())["champion"]["version"] == made.number


@pytest.mark.slow
def test_a_registered_version_leads_to_run_revision_page_and_audit(here: Clone, run_ladder) -> None:
    record = run_ladder(begun=lambda run: Tracker(run, "tiny", print).settle(60))
    made = people.approve(here, record.name).promoted
    assert made is not None
    version = tracking.client(here).get_model_version_by_alias("tiny", "champion")
    assert version.run_id == record.mlflow_run_id
    tags = version.tags
    assert (tags["run"], tags["revision"], tags["entry"]) == (record.name, record.revision, made.id)
    assert tags["dvc.lock_sha256"] == Revision(here, record.revision or "").lock_sha256
    assert tags["audit"] == f"rft audit tiny@{made.number}"
    assert tags["report"] == f"runs:/{record.mlflow_run_id}/{record.name}.html"
    assert version.description.startswith(f"**Champion {made.number} of tiny**, promoted {made.time} by ada: half the")
    decision = Revision(here, record.revision or "").report(reports.Decision)
    assert decision is not None
    for phrase in (f"promote: {decision.reason}", tags["weights_sha256"], tags["prompt_sha256"], tags["audit"]):
        assert phrase in version.description
    before = tracking.client(here).get_model_version_by_alias("tiny", "previous")
    assert (before.run_id or "", before.tags["audit"]) == ("", "rft audit tiny@0")
    assert before.description.startswith("**The beginning of tiny**")


@pytest.mark.slow
def test_a_projection_that_names_an_unknown_entry_is_left_alone(here: Clone) -> None:
    """The ledger was cut behind our back, what was seen deleted: the registry knows."""
    made = people.approve(here, only(here).name).promoted
    assert made is not None
    head = here.git("rev-parse", "refs/rft/ledger")
    acts.rollback(here, "tiny", people.signer("Ada"), "complaints")
    here.git("update-ref", "refs/rft/ledger", head)
    (here.state / "ledger/seen.json").unlink()
    problems = projections.reconcile(here)
    assert [problem.split(":")[0] for problem in problems] == ["champion file of tiny", "MLflow registry of tiny"]
    assert all(
        f"it names entry {made.number + 1}, and the ledger here ends with {made.number}" in each for each in problems
    )
    assert shown(here) == (0, None)


@pytest.mark.slow
def test_r10_a_name_that_mlflow_refuses_neither_blocks_nor_loses_the_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    scripted = ladder_clone.make(tmp_path / "a")
    shutil.move(scripted.root / "recipes/tiny", scripted.root / "recipes/billing (v2)")
    scripted.set_params(recipe={"path": "recipes/billing (v2)"})
    scripted.git("add", "--all")
    scripted.git("commit", "--quiet", "--message", "renamed")
    record = ladder_clone.run_ladder(scripted)
    outcome = people.approve(scripted.clone, record.name)
    assert outcome.promoted is not None
    [problem] = outcome.problems
    assert "MLflow registry of billing (v2)" in problem
    assert "billing (v2)-prompt" in problem
    assert champions.of_params(scripted.clone, params(scripted.clone)).champion.run == record.name
    assert acts.rollback(scripted.clone, "billing (v2)", people.signer("Ada"), "why").to is None


@pytest.mark.slow
def test_mlflow_that_is_down_is_told_of_and_tried_again(here: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none/mlflow.db")
        outcome = people.approve(here, only(here).name)
    assert outcome.promoted is not None
    [problem] = outcome.problems
    assert problem.startswith("MLflow registry of tiny: ")
    assert projections.reconcile(here) == []
    assert shown(here) == (outcome.promoted.number, 0)


class Cut(Exception):
    """The power went."""


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 4, 6, 8])
def test_a_projection_that_was_cut_off_is_brought_in_line_without_a_false_record(
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

    from mlflow import MlflowClient

    with monkeypatch.context() as patch:
        for name in (
            "create_registered_model",
            "set_registered_model_tag",
            "create_model_version",
            "register_prompt",
            "set_prompt_alias",
            "set_registered_model_alias",
            "delete_registered_model_tag",
        ):
            patch.setattr(MlflowClient, name, cut(getattr(MlflowClient, name)))
        outcome = people.approve(here, only(here).name)
    assert outcome.promoted is not None
    assert outcome.problems
    assert projections.reconcile(here) == []
    assert shown(here) == (outcome.promoted.number, 0)
    assert not any(isinstance(each.entry.act, Reconcile) for each in book.read(here).stored)
    assert len(tracking.client(here).search_model_versions("name = 'tiny'")) == 2


@pytest.mark.slow
def test_four_eyes_and_who_started_the_run(here: Clone, run_ladder) -> None:
    ada, record = people.signer("Ada"), only(here)
    owner, bob = (people.signer(name).key.public for name in ("Ada", "Bob"))
    acts.change(here, acts.enrolled(Enrol, name="ada", roles=["owner"], key=owner), ada, "the first")
    acts.change(here, acts.enrolled(Enrol, name="bob", roles=["approver"], key=bob), ada, "joined")
    assert acts.start(here, "tiny", record) is None, "nobody is asked for a key where it is not a rule"
    acts.change(here, SetRules(model=None, rules=Rules(four_eyes=True)), ada, "strict")
    lines: list[str] = []
    here.git("config", "gpg.format", "ssh")
    here.git("config", "user.signingkey", str(people.key("Eve")))
    assert acts.start(here, "tiny", record, lines.append) is None
    assert "is not enrolled): it needs one approver more" in lines[0]
    here.git("config", "user.signingkey", str(people.key("Bob")))
    bobs, of_one_who_left = (
        run_ladder(begun=lambda run: run.update(start=acts.start(here, "tiny", run.record))) for _ in "12"
    )
    records.save(here, bobs.model_copy(update={"start": None}))  # the revision has it
    with pytest.raises(Refused, match=f"four eyes are the rule, and bob started run {bobs.name}"):
        people.approve(here, bobs.name, "Bob")
    acts.change(here, acts.enrolled(Remove, name="bob"), ada, "left")
    acts.request_promotion(here, of_one_who_left, lines.append)
    assert f"who started run {of_one_who_left.name} is unknown" in lines[-1]
    unknown = people.approve(here, record.name)
    assert (unknown.promoted, unknown.approval_status.needed) == (None, 2)
    assert people.approve(here, bobs.name).promoted


@pytest.mark.slow
def test_a_signature_that_was_made_elsewhere(here: Clone, tmp_path: Path) -> None:
    name = only(here).name
    with pytest.raises(UserError, match="nobody is enrolled yet"):
        acts.wanted(here, name, "why")
    acts.reject(here, name, people.signer("Ada"), "not yet")
    acts.lift(here, name, people.signer("Ada"), "now")
    wanted = acts.wanted(here, name, "better")
    document = tmp_path / "approve.json"
    document.write_bytes(wanted.content_bytes)
    subprocess.run(keys.sign_command(str(people.key("Ada")), document), shell=True, check=True, capture_output=True)
    signed = statement.made_elsewhere(tmp_path / "approve.json.sig")
    changed = signed.model_copy(update={"statement": wanted.model_copy(update={"reason": "other"})})
    with pytest.raises(UserError, match="does not fit the statement"):
        acts.submit(here, name, changed)
    assert acts.submit(here, name, signed).approval_status.is_enough
    entries = book.read(here).state.number
    assert acts.submit(here, name, signed).approval_status.is_enough, (
        "what came after it was cut off, and is tried again"
    )
    assert book.read(here).state.number == entries
    document.write_text("{}")
    with pytest.raises(UserError, match="Not a statement of agent-rft"):
        statement.made_elsewhere(tmp_path / "approve.json.sig")


def without_ledger(clone: Clone) -> None:
    clone.git("update-ref", "-d", chain.REF)
    memory.path(clone).unlink()


def test_a_record_from_before_the_first_release_is_never_forgotten(here: Clone) -> None:
    without_ledger(here)
    (here.state / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(
        UserError, match=r"ledger\.jsonl, a record of approvals, has a format from before .* af656ea.* move it away"
    ):
        champions.of_params(here, params(here))


@pytest.mark.slow
def test_what_was_moved_by_hand_after_a_kill_at_the_last_write_is_recorded(here: Clone) -> None:
    """The mark of what was being followed must not outlive the next start: it would hide it."""
    made = people.approve(here, only(here).name).promoted
    assert made is not None
    client = tracking.client(here)
    client.set_registered_model_tag("tiny", "rft.following", str(made.number))  # all but its removal was done
    assert projections.reconcile(here) == []
    assert "rft.following" not in client.get_registered_model("tiny").tags
    assert book.read(here).state.number == made.number, "nobody moved anything"
    beginning = client.get_model_version_by_alias("tiny", "previous").version
    client.set_registered_model_alias("tiny", "champion", beginning)
    assert projections.reconcile(here) == []
    assert isinstance(book.read(here).stored[-1].entry.act, Reconcile)


@pytest.mark.slow
def test_an_override_that_does_not_stand_any_more_is_made_again(here: Clone, run_ladder) -> None:
    """It was seen, taken for one that stands, and the promotion refused for the lack of it: in a
    loop, by its own remedy."""
    name, ada, dora = run_ladder(edited=True).name, people.signer("Ada"), people.signer("Dora")
    acts.change(here, acts.enrolled(Enrol, name="ada", roles=["owner"], key=ada.key.public), ada, "the first")
    acts.change(here, acts.enrolled(Enrol, name="dora", roles=["owner"], key=dora.key.public), ada, "joined")
    acts.approve(here, name, dora, "mine", override_dirty=True)
    acts.change(here, acts.enrolled(Remove, name="dora"), ada, "left")
    with pytest.raises(Refused, match="--override-dirty"):
        people.approve(here, name)
    assert people.approve(here, name, "Ada", "again", override=True).promoted


@pytest.mark.slow
def test_a_lift_is_told_by_the_run_that_was_rejected(here: Clone, run_ladder) -> None:
    first = only(here)
    acts.reject(here, first.name, people.signer("Ada"), "odd")
    with pytest.raises(Refused, match=rf"reject {first.name} --lift"):
        acts.request_promotion(here, run_ladder())


@pytest.mark.slow
def test_an_unreachable_remote_of_the_ledger_stops_no_reconciliation(here: Clone) -> None:
    people.approve(here, only(here).name)
    here.git("remote", "add", "gone", "/nowhere.git")
    (here.root / "infra/ledger.yaml").write_text("remote: gone\n")
    [problem] = projections.reconcile(here)
    assert "infra/ledger.yaml" in problem


@pytest.mark.slow
def test_agents_are_found_by_number_and_run(here: Clone) -> None:
    record = only(here)
    made = people.approve(here, record.name).promoted
    assert made is not None
    for which in ("champion", str(made.number), record.name):
        agent = agents.find(here, which)
        assert (agent.version, agent.run, agent.description) == (
            made.number,
            record.name,
            f"tiny champion {made.number}",
        )
        assert agent.standing.startswith("champion; approved by ada on ")
    for which in ("previous", "0"):
        assert agents.find(here, which).description == "tiny the beginning"
    with pytest.raises(UserError, match=r"tiny has no champion 2: its champion is champion \d"):
        agents.find(here, "2")
